//! Creates, changes and deletes Greetings, with or without restarts; and counts the ticks of many timers.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use quintet_localcluster::audit::{Author, Tally};
use serde_json::{Value, json};

use super::figures::{Contender, Cycle, Mode, Phase, Timers};
use super::kopf::Kopf;
use super::lines::Lines;
use super::requests::{Request, Requests};
use crate::contest::Worker;
use crate::peer::GLANCE;
use crate::process;
use crate::rig::{LOOK, Rig, settled};
use crate::stats::{Quantiles, float};

/// After this time without a line, no further one is expected. A killed manager's Lease expires in 15 s.
const SILENCE: Duration = Duration::from_secs(20);
/// After all lines and this time without a line, no duplicate is expected.
const QUIET: Duration = Duration::from_secs(3);
/// Greetings that are created one at a time.
const PROBES: usize = 50;
/// Seconds between ticks of one Greeting while ticks are counted.
pub const INTERVAL: u32 = 10;
/// The time in which ticks are counted.
pub const WINDOW: Duration = Duration::from_secs(30);
/// The tutorial's interval.
const USUAL: u32 = 60;

struct Entry<'a> {
    rig: &'a Rig,
    contender: Contender,
    kopf: Option<&'a Kopf>,
    namespace: String,
    interval: u32,
    lines: Lines,
}

impl<'a> Entry<'a> {
    fn new(rig: &'a Rig, contender: Contender, kopf: Option<&'a Kopf>, interval: u32) -> Result<Self> {
        let out: PathBuf = rig.cluster().kube().log(match contender {
            Contender::Greeting => "manager.out",
            Contender::Kopf => "kopf.out",
        });
        let (namespace, lines) = (rig.namespace()?, Lines::follow(&out)?);
        Ok(Self { rig, contender, kopf, namespace, interval, lines })
    }

    fn start(&self) -> Result<Worker> {
        match self.kopf.filter(|_| self.contender == Contender::Kopf) {
            Some(kopf) => kopf.start(self.rig, &self.namespace, self.interval).map(Worker::Peer),
            None => self.rig.manager().map(Worker::Quintet),
        }
    }

    fn collection(&self) -> String {
        format!("/apis/example.com/v1/namespaces/{}/greetings", self.namespace)
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.collection())
    }

    fn greeting(&self, name: &str, message: &str) -> Value {
        let mut greeting = json!({
            "apiVersion": "example.com/v1", "kind": "Greeting", "metadata": {"name": name},
            "spec": {"message": message},
        });
        if self.contender == Contender::Greeting {
            greeting["spec"]["intervalSeconds"] = json!(self.interval);
        }
        greeting
    }

    fn author(&self) -> Author {
        match self.contender {
            Contender::Greeting => Author::Quintet,
            Contender::Kopf => Author::Kopf,
        }
    }

    /// Creates one Greeting and returns the time until its `Create:` line.
    fn create_one(&self, name: &str) -> Result<Duration> {
        let (line, began) = (format!("Create: {name}"), Instant::now());
        self.rig.create(&self.collection(), &self.greeting(name, name))?;
        self.rig.poll(&line, GLANCE, || {
            Ok(self.lines.seen().get(&line).map(|(_, at)| at.saturating_duration_since(began)))
        })
    }

    fn tally(&self) -> Result<Tally> {
        self.rig.tally(&self.namespace, self.author())
    }

    /// Waits for all lines, or until no further one is expected, and then for duplicates.
    fn wait_for_lines(&self, expected: &[String]) -> Result<()> {
        self.wait_for_any(expected)?;
        self.wait_until_quiet()
    }

    fn wait_until_quiet(&self) -> Result<()> {
        settled("no line is printed", QUIET, self.rig.patience(), || Ok(self.lines.but_ticks())).map(|_| ())
    }

    /// Waits for all lines, or until no further one is expected.
    fn wait_for_any(&self, expected: &[String]) -> Result<()> {
        let (mut last, mut since) = (0, Instant::now());
        self.rig.wait_until("the lines", || {
            let now = self.lines.count(expected);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            Ok(now == expected.len() || since.elapsed() > SILENCE)
        })
    }

    /// Sends requests and counts their lines. A mode with a restart restarts the process after half of them.
    fn phase(
        &self,
        running: Worker,
        mode: Mode,
        requests: Vec<Request>,
        expected: &[String],
    ) -> Result<(Worker, Phase, Vec<Instant>)> {
        self.rig.forget_requests()?;
        let requests = Requests::start(self.rig, requests);
        let (mut running, mut ended) = (running, None);
        if mode != Mode::Undisturbed {
            self.rig.poll("half of the lines", GLANCE, || {
                Ok((self.lines.count(expected) >= expected.len() / 2).then_some(()))
            })?;
            if mode == Mode::Sigterm {
                running.stop()?;
            } else {
                running.kill()?;
            }
            ended = Some(Instant::now());
            running = self.start()?;
        }
        let sent = requests.finish(self.rig)?;
        self.wait_for_lines(expected)?;
        let seen = self.lines.seen();
        let counts: Vec<usize> =
            expected.iter().map(|line| seen.get(line).map_or(0, |(count, _)| *count)).collect();
        // A line from before the end may be read up to `LOOK` after it.
        let again = ended.and_then(|ended| {
            let after = |line: &String| seen.get(line).map(|(_, at)| *at).filter(|at| *at > ended + LOOK);
            expected.iter().filter_map(after).min().map(|at| (at - ended).as_secs_f64())
        });
        drop(seen);
        let phase = Phase {
            expected: expected.len(),
            printed: counts.iter().sum(),
            missing: counts.iter().filter(|count| **count == 0).count(),
            doubled: counts.iter().map(|count| count.saturating_sub(1)).sum(),
            lines_again_seconds: again,
            writes: self.tally()?,
        };
        Ok((running, phase, sent))
    }
}

fn lines(prefix: &str, word: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}: {word} {number}")).collect()
}

/// Measures one contender in one round and one mode.
pub fn cycle(
    rig: &Rig,
    contender: Contender,
    kopf: Option<&Kopf>,
    (mode, round, count): (Mode, usize, usize),
) -> Result<Cycle> {
    let entry = Entry::new(rig, contender, kopf, USUAL)?;
    let running = entry.start()?;
    entry.create_one("warm")?;
    entry.wait_until_quiet()?;
    let idle_memory = process::memory(running.pid())?;
    let mut one_at_a_time = Vec::new();
    if mode == Mode::Undisturbed {
        for probe in 0..PROBES {
            one_at_a_time.push(entry.create_one(&format!("probe-{probe}"))?.as_secs_f64() * 1_000.0);
        }
    }
    let cpu_before = process::cpu_seconds(running.pid())?;
    let name = |number: usize| format!("g-{number}");
    let numbers = 0..count;

    let create = numbers.clone().map(|number| {
        Request::Create(entry.collection(), entry.greeting(&name(number), &format!("hello {number}")))
    });
    let (greeted, created) = (lines("Greeting", "hello", count), lines("Create", "hello", count));
    let expected = [greeted, created.clone()].concat();
    let (running, create, sent) = entry.phase(running, mode, create.collect(), &expected)?;
    let all_at_once: Vec<f64> = {
        let seen = entry.lines.seen();
        let took = |(line, sent): (&String, &Instant)| {
            let at = seen.get(line).map(|(_, at)| *at)?;
            Some(at.saturating_duration_since(*sent).as_secs_f64() * 1_000.0)
        };
        created.iter().zip(&sent).filter_map(took).collect()
    };
    let memory = process::memory(running.pid())?;

    let update = numbers.clone().map(|number| {
        let patch = json!({"spec": {"message": format!("changed {number}")}});
        Request::Merge(entry.path(&name(number)), patch)
    });
    let expected = lines("Update", "changed", count);
    let (running, update, _) = entry.phase(running, mode, update.collect(), &expected)?;

    let delete = numbers.map(|number| Request::Delete(entry.path(&name(number))));
    let expected = lines("Delete", "changed", count);
    let (running, delete, _) = entry.phase(running, mode, delete.collect(), &expected)?;

    // Only for a process without a restart.
    let cpu_seconds = match mode {
        Mode::Undisturbed => Some(process::cpu_seconds(running.pid())? - cpu_before),
        _ => None,
    };
    rig.delete(&entry.collection())?;
    rig.wait_until_empty(&entry.collection())?;
    running.stop()?;
    Ok(Cycle {
        contender,
        mode,
        round,
        create,
        update,
        delete,
        one_at_a_time: Quantiles::of(&one_at_a_time),
        all_at_once: Quantiles::of(&all_at_once),
        idle_memory,
        memory,
        cpu_seconds,
    })
}

/// Creates many Greetings and measures the cost of their timers. The Greetings stay, so no other manager for
/// them may run after this.
pub fn timers(rig: &Rig, contender: Contender, kopf: Option<&Kopf>, count: usize) -> Result<Timers> {
    let entry = Entry::new(rig, contender, kopf, INTERVAL)?;
    let running = entry.start()?;
    entry.create_one("warm")?;
    entry.wait_until_quiet()?;
    let memory_before = process::memory(running.pid())?;
    let requests = (0..count).map(|number| {
        Request::Create(entry.collection(), entry.greeting(&format!("t-{number}"), &format!("tock {number}")))
    });
    let began = Instant::now();
    let requests = Requests::start(rig, requests.collect());
    let expected: Vec<String> = (0..count).map(|number| format!("Create: tock {number}")).collect();
    requests.finish(rig)?;
    entry.wait_for_any(&expected)?;
    let (said, created_seconds) = {
        let seen = entry.lines.seen();
        let came: Vec<Instant> = expected.iter().filter_map(|line| Some(seen.get(line)?.1)).collect();
        let last = came.iter().max().map_or(0.0, |last| last.saturating_duration_since(began).as_secs_f64());
        (came.len(), last)
    };
    let created = entry.tally()?;
    // Wait until the ticks of the creations are over.
    let since = Instant::now();
    rig.wait_until("an interval has passed", || Ok(since.elapsed().as_secs() >= u64::from(INTERVAL)))?;
    rig.forget_requests()?;
    let ticks = || entry.lines.with_prefix("Timer: tock");
    let (cpu_before, ticks_before, began) = (process::cpu_seconds(running.pid())?, ticks(), Instant::now());
    rig.wait_until("the ticks", || Ok(began.elapsed() >= WINDOW))?;
    let (cpu_after, ticks_after) = (process::cpu_seconds(running.pid())?, ticks());
    let seconds = began.elapsed().as_secs_f64();
    let writes = entry.tally()?;
    let memory = process::memory(running.pid())?;
    running.stop()?;
    Ok(Timers {
        contender,
        count,
        created_seconds,
        said,
        created,
        ticks: ticks_after - ticks_before,
        due: float(count) * seconds / f64::from(INTERVAL),
        writes,
        cpu_seconds: cpu_after - cpu_before,
        memory_before,
        memory,
    })
}
