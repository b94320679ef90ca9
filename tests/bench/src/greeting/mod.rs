//! `cargo xtask bench greeting`: every line once, beside kopf and the post's handlers; what a restart in the middle does
//! to lines; writes, memory and time; and many timers.

pub mod figures;
mod kopf;
mod lines;
mod requests;
mod runs;

use std::path::{Path, PathBuf};

use anyhow::Result;
use quintet_localcluster::build;
use quintet_localcluster::progress::Step;

use self::figures::{Contender, Mode, Results};
use self::kopf::Kopf;
use super::contest::order;
use super::host::{Machine, Versions};
use super::report::{Report, Run};
use super::rig::{self, Rig};
use super::table::count;

/// `cargo xtask bench greeting`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Greeting beside kopf: lines missing and doubled by restarts, writes, time, memory, timers",
    long_about = "Greeting beside kopf: lines missing and doubled by restarts, writes, time, memory, timers.\n\n\
    Each round runs, in alternating order, Quintet's manager and kopf with the post's handlers: N Greetings are created, \
    changed and deleted, without a restart, with a restart by SIGTERM in the middle of each of the three, and with one by \
    SIGKILL. At the end both get many Greetings whose timers tick.\n\n\
    kopf is installed from PyPI, once, into a virtual environment in the cache; that needs python3 with its venv module.\n\n\
    It fails if a line of ours is doubled, or missing without a SIGKILL; if a Greeting costs more than two writes for its \
    creation, one for a change and two for its deletion; or if a tick writes.\n\n\
    A round takes about five minutes on two cores, and the timers as much again."
)]
pub struct Args {
    /// Number of Greetings that are created, changed and deleted
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u16).range(10..=5_000))]
    greetings: u16,
    /// How often everything but the timers is measured
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u8).range(1..=99))]
    rounds: u8,
    /// Number of Greetings whose timers tick; 0 leaves that out
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(0..=50_000))]
    timers: u16,
    /// See whether it works: 40 Greetings, one round, 200 timers
    #[arg(long, conflicts_with_all = ["greetings", "rounds", "timers", "write"])]
    pub quick: bool,
    /// Leave kopf out
    #[arg(long)]
    without_peers: bool,
    /// Measure this program instead of building the release program
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Keep the outcome in docs/bench and tests/bench/results, beside runs with other numbers of Greetings
    #[arg(long)]
    write: bool,
}

/// What the options come to.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    greetings: usize,
    rounds: usize,
    timers: usize,
}

impl Args {
    fn plan(&self) -> Plan {
        if self.quick {
            return Plan { greetings: 40, rounds: 1, timers: 200 };
        }
        Plan { greetings: self.greetings.into(), rounds: self.rounds.into(), timers: self.timers.into() }
    }

    /// The command that does the same, as far as it changes what is measured.
    fn command(&self) -> String {
        let mut words = vec!["cargo xtask bench greeting".to_owned()];
        if self.quick {
            words.push("--quick".to_owned());
        } else {
            let Plan { greetings, rounds, timers } = self.plan();
            words.push(format!("--greetings {greetings} --rounds {rounds} --timers {timers}"));
        }
        if self.without_peers {
            words.push("--without-peers".to_owned());
        }
        words.extend(self.program.is_some().then(|| "--program FILE".to_owned()));
        words.extend((!self.quick).then(|| "--write".to_owned()));
        words.join(" ")
    }
}

/// Runs the bench.
pub fn run(args: &Args) -> Result<()> {
    let plan = args.plan();
    let kopf = if args.without_peers { None } else { Some(Kopf::installed()?) };
    let program = match &args.program {
        Some(program) => program.canonicalize()?,
        None => build::release()?,
    };
    let machine = Machine::now();
    let (results, versions) = measure(kopf.as_ref(), &plan, &program)?;
    let runs = vec![Run {
        about: format!("{} Greetings", count(plan.greetings)),
        size: plan.greetings,
        command: args.command(),
        machine,
        versions: versions.built(args.program.is_none())?,
        failures: Some(results.failures()),
        caveats: Vec::new(),
        measurements: results,
    }];
    report(runs).finish(args.write)
}

/// The page and the results, with these runs.
pub fn report(runs: Vec<Run<Results>>) -> Report<Results> {
    Report { name: "greeting", title: "Greeting, measured", method: method(), runs }
}

/// Measures every round, each on a cluster of its own, and the timers on another one.
fn measure(kopf: Option<&Kopf>, plan: &Plan, program: &Path) -> Result<(Results, Versions)> {
    // A node, so that its version can be told; nothing runs on it.
    let up = || Rig::up(1, plan.greetings.max(plan.timers), program);
    let mut versions = Versions::default();
    let mut results = Results {
        greetings: plan.greetings,
        kopf: kopf.map(|kopf| kopf.version.clone()),
        cycles: Vec::new(),
        timers: Vec::new(),
    };
    let contenders = if kopf.is_some() { &Contender::ALL[..] } else { &Contender::ALL[..1] };
    let all = count(plan.greetings);
    for round in 1..=plan.rounds {
        let rig = up()?;
        versions = Versions::of(&rig, program)?;
        for mode in Mode::ALL {
            for contender in order(contenders, round) {
                let mut step = Step::start_long(format!(
                    "{all} Greetings, {}, round {round} of {}: {}",
                    mode.name(),
                    plan.rounds,
                    contender.name()
                ));
                let options = (mode, round, plan.greetings);
                results.cycles.push(runs::cycle(&rig, contender, kopf, options, &mut step)?);
                step.done();
            }
        }
    }
    if plan.timers > 0 {
        let rig = up()?;
        // kopf is the last one: it looks at its own namespace alone, and what it leaves is nobody's.
        for &contender in contenders {
            let many = count(plan.timers);
            let mut step = Step::start_long(format!("{many} Greetings with a timer: {}", contender.name()));
            results.timers.push(runs::timers(&rig, contender, kopf, plan.timers, &mut step)?);
            step.done();
        }
    }
    Ok((results, versions))
}

/// What a reader of the tables has to know.
fn method() -> Vec<String> {
    [
        "Each section below is from the newest run with its number of Greetings, and says by which command.",
        "One cluster for each round, and another one for the timers: etcd, kube-apiserver, kube-controller-manager and \
         kube-scheduler as processes of this machine, with the chart's definitions. Greeting is the release program with all five kinds and the Lease, and the rights of the chart's ServiceAccount. \
         kopf is what `pip install` brings, with handlers that print what the post's print (tests/bench/src/greeting/handlers.py), \
         one process for one namespace (`--standalone`), and print each line by one call at once: as the post prints them, \
         Python would keep lines until some kilobytes have come together, lose them when it is killed, and mix the lines of \
         two threads.",
        rig::METHOD,
        "In each run one Greeting is said first, so that nothing is done for the first time later. Then all are created, \
         changed and deleted, eight requests at a time as fast as the API server answers; each of the three ends when all \
         its lines have come and none has come for 3 s, or when none has come for 20 s. A restart is when half of the lines \
         of the three have been seen: the process is ended, and started anew at once, while the requests go on.",
        "Lines that are due are four for each Greeting: Greeting, Create, Update and Delete. One that comes again counts as \
         doubled. Timer lines are left out there. Until lines come again is the longest of the three pauses, from the end of \
         the old process; ours then waits for a Lease that nobody has released (15 s), which kopf does not have.",
        "Writes are those in the API server's audit log that were carried out, by their user agent; those that were refused \
         are a column of their own. Leases are left out, Events counted apart. \
         Times are from before the request is sent until the line is read from the file that it is printed into, which is \
         looked at every millisecond.",
        "Many timers: said is how many creations were said, and after how long the last of them, until all were or none came \
         for 20 s; after another interval ticks are counted. What is still said of the creations then is counted in too: the \
         writes tell.",
        "RSS is the memory of the process; PSS is that with pages shared with others counted in part.",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parsed as parse;

    #[test]
    fn options_come_to_a_plan() {
        assert_eq!(parse::<Args>(&[]).unwrap().plan(), Plan { greetings: 200, rounds: 7, timers: 10_000 });
        assert_eq!(
            parse::<Args>(&["--quick"]).unwrap().plan(),
            Plan { greetings: 40, rounds: 1, timers: 200 }
        );
        assert!(parse::<Args>(&["--quick", "--rounds", "2"]).is_err());
        assert!(parse::<Args>(&["--quick", "--write"]).is_err());
        assert!(parse::<Args>(&["--greetings", "9"]).is_err());
    }

    #[test]
    fn a_document_names_the_command_that_made_it() {
        let command = |words: &[&str]| parse::<Args>(words).unwrap().command();
        assert_eq!(command(&["--quick"]), "cargo xtask bench greeting --quick");
        assert_eq!(
            command(&["--rounds", "2", "--without-peers"]),
            "cargo xtask bench greeting --greetings 200 --rounds 2 --timers 10000 --without-peers --write"
        );
    }
}
