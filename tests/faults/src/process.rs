//! A manager's process as `quintet` runs it, on the fake server: the same caches, controllers and election.

use std::collections::{BTreeSet, HashSet};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Method;
use jiff::SignedDuration;
use quintet_fake_apiserver::Server;
use quintet_greeting::printer::Printer;
use quintet_runtime::control::context::{Context, ContextConfig};
use quintet_runtime::election::Settings;
use quintet_runtime::election::candidate::Candidate;
use quintet_runtime::model::clock::Clock;
use quintet_runtime::server::client::{self, LONGEST_REST};
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::gate::Gate;
use quintet_runtime::server::metrics::Metrics;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The prefix of managers' names.
pub const MANAGER: &str = "manager-";

/// The keys that DaemonJobs of the scenarios may use in `onSuccess`.
const MARK_PREFIX: &str = "default=example.com/";

/// Which kinds a scenario's managers serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// DaemonJob.
    DaemonJob,
    /// PodSet.
    PodSet,
    /// PulsarConsumer.
    PulsarConsumer,
    /// Greeting.
    Greeting,
    /// Book.
    Book,
}

/// The lines on the standard outputs of all processes of a run, each with its process.
pub type Lines = Arc<Mutex<Vec<(String, String)>>>;

/// The standard output of one process.
struct Output {
    who: String,
    lines: Lines,
    rest: Vec<u8>,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            lines.push((self.who.clone(), line));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A process. Dropping it kills it.
pub struct Process {
    /// Its identity.
    pub who: String,
    /// Its standard output.
    pub printer: Option<Printer>,
    tasks: JoinSet<()>,
    controllers: JoinSet<()>,
    election: JoinSet<()>,
    stop: watch::Sender<bool>,
    release: watch::Sender<bool>,
    context: Context,
}

/// The difference between a process's clock and the server's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Skew {
    /// No difference.
    #[default]
    None,
    /// Ten minutes ahead.
    Ahead,
    /// Ten minutes behind.
    Behind,
}

impl Process {
    /// Starts a process.
    pub fn start(
        server: &Server,
        who: &str,
        kinds: &[Kind],
        skew: Skew,
        lines: &Lines,
    ) -> Result<Self, String> {
        let fails = |error: &dyn std::fmt::Display| format!("the process cannot start: {error}");
        let metrics = Metrics::new().map_err(|error| fails(&error))?;
        let off = SignedDuration::from_mins(10);
        let now = match skew {
            Skew::None => server.now(),
            Skew::Ahead => server.now().checked_add(off).unwrap_or(server.now()),
            Skew::Behind => server.now().checked_sub(off).unwrap_or(server.now()),
        };
        let clock = Clock::tokio(now);
        let gate = Gate::closed();
        let (stop, stopped) = watch::channel(false);
        let (release, released) = watch::channel(false);
        let context = Context::new(ContextConfig {
            client: client::over(server.connect(who), &metrics, LONGEST_REST),
            link: Link::default(),
            gate: gate.clone(),
            metrics: metrics.clone(),
            clock,
            instance: who.to_owned(),
            namespaces: Vec::new(),
            stop: stopped,
        });
        let mut printer = None;
        let mut served = None;
        // As in the manager, a kind and its sweeper share a window.
        let jobs = context.windowed();
        if !kinds.contains(&Kind::Greeting) {
            quintet_runtime::control::sweeper::register::<quintet_greeting::api::Greeting>(
                &context.windowed(),
                quintet_greeting::SWEEPER,
                quintet_greeting::FINALIZER,
            );
        }
        for kind in kinds {
            let own = context.windowed();
            match kind {
                Kind::DaemonJob => {
                    let prefix = MARK_PREFIX.parse()?;
                    let registered = quintet_daemonjob::register(&jobs, &[], &[prefix]);
                    served = Some(registered.map_err(|error| fails(&error))?);
                }
                Kind::PodSet => quintet_podset::register(&own).map_err(|error| fails(&error))?,
                Kind::PulsarConsumer => {
                    let image = quintet_pulsarconsumer::Image {
                        name: "consumer".to_owned(),
                        health_port: Some(8080),
                        any_user: false,
                    };
                    let settings = quintet_pulsarconsumer::Settings { image, ..Default::default() };
                    quintet_pulsarconsumer::register(&own, settings).map_err(|error| fails(&error))?;
                }
                Kind::Greeting => {
                    let output = Output { who: who.to_owned(), lines: lines.clone(), rest: Vec::new() };
                    let started = Printer::start(output).map_err(|error| fails(&error))?;
                    quintet_greeting::register(&own, who, started.clone()).map_err(|error| fails(&error))?;
                    printer = Some(started);
                }
                Kind::Book => quintet_book::register(&own),
            }
        }
        quintet_daemonjob::sweep::register(&jobs, served);
        let (mut tasks, mut controllers, mut election) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
        for (_, controller) in context.take_controllers() {
            controllers.spawn(controller);
        }
        for (_, task) in context.take_tasks() {
            let gate = gate.clone();
            tasks.spawn(async move {
                gate.tried().await;
                task.await;
            });
        }
        let (all, silent) = (context.clone(), context.clone());
        let settings = Settings::new("default".to_owned(), who.to_owned());
        let client = client::over(server.connect(who), &metrics, settings.retry);
        let candidate = Candidate::new(client, settings, gate, context.link.clone(), clock);
        election.spawn(async move {
            let ended = candidate.run(move || context.seen(), move || silent.silences(), released).await;
            if let Err(error) = ended {
                tracing::error!(%error, "the election ended");
            }
        });
        Ok(Self { who: who.to_owned(), printer, tasks, controllers, election, stop, release, context: all })
    }

    /// Stops the process as SIGTERM does.
    pub async fn end(mut self) {
        let _ = self.stop.send(true);
        let ended = timeout(Duration::from_secs(20), async {
            while self.controllers.join_next().await.is_some() {}
            self.context.recorder.flush(Duration::from_millis(200)).await;
            let _ = self.release.send(true);
            while self.election.join_next().await.is_some() {}
        });
        let _ = ended.await;
        self.tasks.abort_all();
    }

    /// The metrics of the process.
    #[cfg(test)]
    pub fn metrics(&self) -> Metrics {
        self.context.metrics.clone()
    }

    /// Reports what the process keeps of deleted objects. `there` are the existing custom resources.
    pub fn remembers_gone(&self, there: &[Arc<Value>]) -> Vec<String> {
        let text = |object: &Value, path: &str| -> String {
            object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let uids: HashSet<String> = there.iter().map(|object| text(object, "/metadata/uid")).collect();
        let who = &self.who;
        let mut wrong = Vec::new();
        for uid in self.context.executor.memory.remembered().iter().filter(|uid| !uids.contains(&***uid)) {
            wrong.push(format!("{who} keeps its writes for {uid}, which is deleted"));
        }
        for (controller, activity) in self.context.activities() {
            let now = activity.now();
            for key in now.failing.keys().chain(now.refused.keys()).filter(|key| !uids.contains(&*key.uid)) {
                wrong.push(format!("{who} keeps failures of {controller} {key}, which is deleted"));
            }
            if now.known > uids.len() {
                let (known, there) = (now.known, uids.len());
                wrong.push(format!(
                    "the queue of {controller} of {who} has {known} objects, but {there} exist"
                ));
            }
        }
        let names: HashSet<(String, String)> = there
            .iter()
            .map(|object| (text(object, "/metadata/namespace"), text(object, "/metadata/name")))
            .collect();
        for family in self.context.metrics.registry.gather() {
            for metric in family.get_metric() {
                let label = |name: &str| {
                    metric
                        .get_label()
                        .iter()
                        .find(|pair| pair.name() == name)
                        .map(|pair| pair.value().to_owned())
                };
                if let (Some(namespace), Some(name)) = (label("namespace"), label("name"))
                    && !names.contains(&(namespace, name.clone()))
                {
                    wrong.push(format!("{who} has metric {} of {name}, which is deleted", family.name()));
                }
            }
        }
        wrong
    }

    /// Reports caches that differ from the store.
    pub fn wrong_caches(&self, server: &Server) -> Vec<String> {
        let mut wrong = Vec::new();
        for (path, cached) in self.context.contents() {
            let (_, list) = server.ask("test", &Method::GET, &path, "", None);
            let stored = list["items"].as_array().into_iter().flatten().map(|object| {
                ["namespace", "name", "uid", "resourceVersion"]
                    .map(|field| object["metadata"][field].as_str().unwrap_or_default().to_owned())
            });
            let stored: BTreeSet<[String; 4]> = stored.collect();
            let lacks: Vec<_> = stored.difference(&cached).collect();
            let has: Vec<_> = cached.difference(&stored).collect();
            if !(lacks.is_empty() && has.is_empty()) {
                wrong.push(format!("the cache of {path} of {} lacks {lacks:?}, and has {has:?}", self.who));
            }
        }
        wrong
    }

    /// Whether a task ended unexpectedly.
    pub fn has_ended(&mut self) -> bool {
        self.tasks.try_join_next().is_some()
            || self.controllers.try_join_next().is_some()
            || self.election.try_join_next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::run::types;

    /// Otherwise a sweep of 100,000 plans would run out of memory.
    #[test]
    fn frees_its_memory_at_the_end_of_a_run() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.unwrap();
        for kind in [Kind::DaemonJob, Kind::PodSet, Kind::PulsarConsumer, Kind::Greeting, Kind::Book] {
            let memory = runtime.block_on(async {
                let server = Server::new(1);
                for kind in types() {
                    server.add(kind.clone());
                }
                let process = Process::start(&server, "manager-a-1", &[kind], Skew::None, &Lines::default());
                let process = process.unwrap();
                sleep(Duration::from_secs(10)).await;
                Arc::downgrade(&process.context.executor.memory)
            });
            // The runtime ends the tasks of the stopped process.
            runtime.block_on(async { sleep(Duration::from_secs(10)).await });
            assert_eq!(memory.strong_count(), 0, "{kind:?}");
        }
    }
}
