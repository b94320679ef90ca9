//! Wiring: one client, one gate, one set of informers, five controllers, two HTTP servers.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use kube::Config;
use kube::config::{Cluster, KubeConfigOptions, Kubeconfig, KubeconfigError};
use quintet_runtime::control::context::{Context, ContextConfig};
use quintet_runtime::election::candidate::Candidate;
use quintet_runtime::election::{self, Settings};
use quintet_runtime::model::clock::Clock;
use quintet_runtime::probes;
use quintet_runtime::server::client;
use quintet_runtime::server::client::{LONGEST_REST, discreet};
use quintet_runtime::server::connectivity::Link;
use quintet_runtime::server::gate::{BEAT, Gate};
use quintet_runtime::server::metrics::Metrics;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::args::{Args, Kind};
use crate::cluster::ClusterArgs;
use crate::endpoint::{self, Pages};
use crate::logs::LogHandle;
use crate::secure::{Guard, Identity};

/// How long an orderly end may take, passes in flight and the release of the lease included.
const END: Duration = Duration::from_secs(20);

/// How long the last Events may keep the lease from being released.
const EVENTS: Duration = Duration::from_millis(200);

/// Stack of the election's thread: TLS handshakes are the deepest that it goes.
const ELECTION_STACK: usize = 512 * 1024;

/// Runs until a signal asks the process to end, or until a task that must run has ended.
pub async fn run(args: Args, log: LogHandle) -> Result<()> {
    let config = configure(&args.cluster).await?;
    let namespace = args
        .leader_election_namespace
        .clone()
        .into_iter()
        .chain(std::env::var("POD_NAMESPACE"))
        .find(|namespace| !namespace.is_empty())
        .unwrap_or_else(|| config.default_namespace.clone());
    let identity = identity();
    let server = config.cluster_url.to_string();
    let mut metrics = Metrics::new().context("the metrics cannot be registered")?;
    metrics.lease = args.leader_election_id.as_str().into();
    let link = Link::default();
    let client = client::build(config.clone(), &metrics, LONGEST_REST, &link)?;
    let clock = Clock::System;
    let gate = if args.leader_elect { Gate::closed() } else { Gate::open() };
    let (stop, stopped) = watch::channel(false);

    let secured = if args.metrics_secure {
        Some((Identity::new(args.metrics_cert_dir.as_deref(), &metrics)?, Guard::new(client.clone())))
    } else {
        None
    };
    // Addresses first: a port that is taken is said before anything is done.
    let metrics_listener = probes::listen(&args.metrics_bind_address).await?;
    let debug_listener = probes::listen(&args.debug_bind_address).await?;
    let probe_listener = probes::listen(&args.health_probe_bind_address).await?;

    let context = Context::new(ContextConfig {
        client,
        link,
        gate: gate.clone(),
        metrics: metrics.clone(),
        clock,
        instance: identity.clone(),
        namespaces: args.namespaces(),
        stop: stopped.clone(),
    });
    register(&args, &context, &identity)?;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        server,
        identity,
        namespaces = if args.namespaces().is_empty() { "(all)".to_owned() } else { args.namespaces().join(",") },
        controllers = ?args.kinds().unwrap_or_default(),
        "starting"
    );

    let mut controllers: JoinSet<&'static str> = JoinSet::new();
    for (name, controller) in context.take_controllers() {
        controllers.spawn(async move {
            controller.await;
            name
        });
    }
    let mut tasks: JoinSet<&'static str> = JoinSet::new();
    for (name, task) in context.take_tasks() {
        let gate = gate.clone();
        tasks.spawn(async move {
            // Who leads from the start lists once.
            gate.tried().await;
            task.await;
            name
        });
    }
    if args.leader_elect {
        let gate = gate.clone();
        tasks.spawn(async move {
            loop {
                gate.heartbeat();
                tokio::time::sleep(BEAT).await;
            }
        });
    }
    let pages = Pages { context: context.clone(), log: log.clone() };
    if let Some(listener) = debug_listener {
        let pages = pages.clone();
        tasks.spawn(async move {
            endpoint::serve_debugging(listener, pages).await;
            "debug"
        });
    }
    if let Some(listener) = metrics_listener {
        tasks.spawn(async move {
            match secured {
                Some((identity, guard)) => endpoint::serve_secured(listener, pages, identity, guard).await,
                None => endpoint::serve(listener, pages).await,
            }
            "metrics"
        });
    }
    // What has ended that must run, and when.
    let dead: Arc<OnceLock<(String, Instant)>> = Arc::default();
    if let Some(listener) = probe_listener {
        let (ended, ready) = (dead.clone(), context.clone());
        let alive: probes::Check = Arc::new(move || {
            let said = ended.get().map(|(what, when)| format!("{what}, {} s ago", when.elapsed().as_secs()));
            said.into_iter().collect()
        });
        let ready: probes::Check = Arc::new(move || ready.unready());
        tasks.spawn(async move {
            probes::probes(listener, alive, ready).await;
            "probes"
        });
    }

    // The lease is released last: until then the writes in flight are covered by it.
    let (release, released) = watch::channel(false);
    let mut election = args.leader_elect.then(|| {
        let settings = Settings {
            lease: args.leader_elect_lease_duration,
            renew_deadline: args.leader_elect_renew_deadline,
            retry: args.leader_elect_retry_period,
            renew: args.leader_elect_renew_period,
            name: args.leader_election_id.clone(),
            ..Settings::new(namespace, identity)
        };
        elect(config, settings, context.clone(), released, log)
    });
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be handled")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be handled")?;
    let failure = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        Some(ended) = tasks.join_next() => Some(match ended {
            Ok(name) => anyhow::anyhow!("the task {name} has ended, which it must not"),
            Err(error) => anyhow::anyhow!("a task has failed: {error}"),
        }),
        Some(ended) = controllers.join_next() => Some(match ended {
            Ok(name) => anyhow::anyhow!("the controller {name} has ended, which it must not"),
            Err(error) => anyhow::anyhow!("a controller has failed: {error}"),
        }),
        ended = election_ended(election.as_mut()) => Some(ended),
    };
    if let Some(failure) = &failure {
        let _ = dead.set((discreet(failure.as_ref()), Instant::now()));
    }
    tracing::info!("ending");
    let _ = stop.send(true);
    let ended = tokio::time::timeout(END, async {
        // Controllers end by themselves; what else runs (watches, servers) has nothing to finish.
        while controllers.join_next().await.is_some() {}
        context.recorder.flush(EVENTS).await;
        let _ = release.send(true);
        if let Some(election) = election.as_mut()
            && !election.is_terminated()
        {
            let _ = election.await;
        }
    });
    if ended.await.is_err() {
        tracing::warn!("the end took too long and was cut off");
    }
    match failure {
        Some(failure) => Err(failure),
        None => Ok(()),
    }
}

/// Competes for the lease on a thread of its own, with a client of its own: neither a list that is decoded nor a queue of
/// writes delays a renewal. Ends with the result.
fn elect(
    config: Config,
    settings: Settings,
    context: Context,
    released: watch::Receiver<bool>,
    log: LogHandle,
) -> oneshot::Receiver<Result<()>> {
    let (sender, ended) = oneshot::channel();
    let compete = move || -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async move {
            let Context { gate, link, clock, metrics, .. } = context.clone();
            // A server that asks for a pause may have it as far as the lease is not lost by it.
            let client = client::build(config, &metrics, settings.retry, &link)?;
            let candidate = Candidate { client, settings, gate, link, clock, metrics };
            Ok(candidate.run(|| context.seen(), released).await?)
        })
    };
    let thread = std::thread::Builder::new().name("election".to_owned()).stack_size(ELECTION_STACK);
    let spawned = thread.spawn(move || {
        let ended = compete();
        if let Err(error) = &ended
            && let Some(election::Error::Uncancelled { .. }) = error.downcast_ref()
        {
            // Whoever cannot cancel a write hears of nothing either.
            tracing::error!(%error, "ending at once");
            log.flush();
            std::process::exit(1);
        }
        // Whoever waits has ended where nobody takes it.
        let _ = sender.send(ended);
    });
    if let Err(error) = spawned {
        tracing::error!(%error, "the election's thread cannot be started");
    }
    ended
}

async fn election_ended(election: Option<&mut oneshot::Receiver<Result<()>>>) -> anyhow::Error {
    match election {
        Some(election) => match election.await {
            Ok(Ok(())) => anyhow::anyhow!("the election has ended, which it must not"),
            Ok(Err(error)) => error,
            Err(_) => anyhow::anyhow!("the election has failed"),
        },
        None => std::future::pending().await,
    }
}

fn register(args: &Args, context: &Context, identity: &str) -> Result<()> {
    let kinds = args.kinds().map_err(anyhow::Error::msg)?;
    // What was begun for a kind must be let go where the kind is switched off.
    let mut daemonjobs = None;
    if !kinds.contains(&Kind::Greeting) {
        quintet_greeting::sweep::register(context);
    }
    for kind in kinds {
        match kind {
            Kind::DaemonJob => {
                let served = quintet_daemonjob::register(context, &args.daemon_job_deletion_taints);
                daemonjobs = Some(served.context("the metrics of DaemonJobs cannot be registered")?);
            }
            Kind::PodSet => {
                quintet_podset::register(context).context("the metrics of PodSets cannot be registered")?;
            }
            Kind::PulsarConsumer => {
                let port = args.pulsar_consumer_health_port;
                let image = quintet_pulsarconsumer::Image {
                    name: args.pulsar_consumer_image.clone(),
                    health_port: (port > 0).then_some(port),
                };
                quintet_pulsarconsumer::register(context, image)
                    .context("the metrics of PulsarConsumers cannot be registered")?;
            }
            Kind::Greeting => {
                let printer = quintet_greeting::printer::Printer::stdout()
                    .context("the printer's thread cannot be started")?;
                quintet_greeting::register(context, identity, printer)
                    .context("the metrics of Greetings cannot be registered")?;
            }
            Kind::Book => quintet_book::register(context),
        }
    }
    quintet_daemonjob::sweep::register(context, daemonjobs);
    Ok(())
}

/// The client configuration: a kubeconfig where one is named or found, else the pod's ServiceAccount. An authority in a file is
/// read anew when that changes.
pub async fn configure(args: &ClusterArgs) -> Result<Config> {
    let Some((name, kubeconfig)) = find_kubeconfig(args)? else {
        if args.context.is_some() {
            bail!("there is no kubeconfig that could have this context: give --kubeconfig or set KUBECONFIG");
        }
        return Config::incluster().context(
            "no cluster is configured: give --kubeconfig, set KUBECONFIG, or run in a pod with a ServiceAccount",
        );
    };
    let cluster = cluster_of(&kubeconfig, args.context.as_deref());
    // A proxy of HTTPS_PROXY is neither heeded nor refused: kube has it in the configuration of every kubeconfig, whatever NO_PROXY says,
    // and where it is set for others the API server may well be reached without it.
    if cluster.and_then(|cluster| cluster.proxy_url.as_deref()).is_some_and(|url| !url.is_empty()) {
        bail!(
            "{name} cannot be used: its cluster has a proxy-url, and Quintet knows no proxies: take it out, \
             or run Quintet where the API server is reached without it"
        );
    }
    let authority = cluster.and_then(authority_file);
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .with_context(|| format!("{name} cannot be used"))?;
    config.root_cert_file = authority;
    Ok(config)
}

/// The kubeconfig that is named or found, and what it is called; None where there is none. One that is there and cannot be read
/// is an error: nobody wants another cluster instead.
fn find_kubeconfig(args: &ClusterArgs) -> Result<Option<(String, Kubeconfig)>> {
    let (name, read) = if let Some(path) = &args.kubeconfig {
        (format!("the kubeconfig {}", path.display()), Kubeconfig::read_from(path))
    } else if let Some(read) = Kubeconfig::from_env().transpose() {
        ("the kubeconfig that KUBECONFIG names".to_owned(), read)
    } else {
        match Kubeconfig::read() {
            Err(KubeconfigError::FindPath) => return Ok(None),
            Err(KubeconfigError::ReadConfig(_, path)) if !path.exists() => return Ok(None),
            read => ("the kubeconfig ~/.kube/config".to_owned(), read),
        }
    };
    let kubeconfig = read.with_context(|| format!("{name} cannot be read"))?;
    Ok(Some((name, kubeconfig)))
}

/// The cluster of a context.
fn cluster_of<'a>(kubeconfig: &'a Kubeconfig, context: Option<&str>) -> Option<&'a Cluster> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == name)?.context.as_ref()?;
    kubeconfig.clusters.iter().find(|cluster| cluster.name == context.cluster)?.cluster.as_ref()
}

/// The file with a cluster's authority; None where the kubeconfig has the authority itself, which goes first.
fn authority_file(cluster: &Cluster) -> Option<PathBuf> {
    let file = cluster.certificate_authority.as_ref();
    file.filter(|_| cluster.certificate_authority_data.is_none()).map(PathBuf::from)
}

/// The identity of this process, unique for its life: a restarted pod of the same name is another candidate.
pub fn identity() -> String {
    let host = std::env::var("POD_NAME")
        .ok()
        .or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok())
        .map_or_else(|| "quintet".to_owned(), |name| name.trim().to_owned());
    let unique = std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_or_else(
        |_| format!("{}-{}", std::process::id(), Clock::System.now().as_nanosecond()),
        |uuid| uuid.trim().to_owned(),
    );
    format!("{host}_{unique}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_in_a_file_is_followed() {
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
            clusters:\n\
            - {name: one, cluster: {server: 'https://one', certificate-authority: /ca.crt}}\n\
            - {name: two, cluster: {server: 'https://two', certificate-authority: /ca.crt, certificate-authority-data: eA==}}\n\
            contexts:\n- {name: a, context: {cluster: one}}\n- {name: b, context: {cluster: two}}\n";
        let kubeconfig = Kubeconfig::from_yaml(text).unwrap();
        let cluster = |context| cluster_of(&kubeconfig, context);
        assert_eq!(authority_file(cluster(None).unwrap()), Some(PathBuf::from("/ca.crt")));
        assert_eq!(authority_file(cluster(Some("b")).unwrap()), None, "what is given in full goes first");
        assert!(cluster(Some("c")).is_none());
    }

    #[test]
    fn no_two_processes_are_the_same_candidate() {
        assert_ne!(identity(), identity());
    }
}
