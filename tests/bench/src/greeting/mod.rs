//! `cargo xtask bench greeting`: the lines of Greetings beside kopf with the tutorial's handlers, also with
//! restarts; writes, memory and time; and many timers.

pub mod figures;
mod kopf;
mod lines;
mod requests;
mod runs;

use std::path::Path;

use anyhow::Result;
use clap::value_parser;
use strum::VariantArray as _;

use self::figures::{Contender, Mode, Results};
use self::kopf::Kopf;
use super::contest::order;
use super::host::Versions;
use super::options::Options;
use super::rig::Rig;
use super::table::count;

/// Compare Greeting with kopf: missing and duplicate lines after restarts, writes, time, memory, timers.
///
/// Each round runs, in alternating order, Quintet's manager and kopf with the tutorial's handlers. The round
/// creates, changes and deletes N Greetings three times: without a restart, with a SIGTERM in the middle of
/// each phase, and with a SIGKILL in the middle of each phase. At the end, Quintet and kopf both get many
/// Greetings whose timers tick.
///
/// The first run installs kopf from PyPI into a virtual environment in the cache directory, with python3 and
/// venv.
///
/// The bench fails if Quintet prints a line twice, or omits a line without a SIGKILL. A Greeting may take two
/// writes for its creation, one write for a change and two writes for its deletion. A tick of a timer may
/// write nothing.
///
/// A round takes about five minutes on two cores, and the timers take another five minutes.
///
/// With `--quick`, the bench measures 40 Greetings and 200 timers.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of Greetings that are created, changed and deleted
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = value_parser!(u16).range(10..=5_000),
        conflicts_with = "quick")]
    greetings: u16,
    /// Number of Greetings whose timers tick, or 0 to skip the timers
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value_parser!(u16).range(0..=50_000),
        conflicts_with = "quick")]
    timers: u16,
    #[command(flatten)]
    options: Options,
}

impl Args {
    /// The number of Greetings, and of Greetings with a timer.
    fn sizes(&self) -> (usize, usize) {
        if self.options.quick { (40, 200) } else { (self.greetings.into(), self.timers.into()) }
    }

    fn command(&self) -> String {
        let Self { greetings, timers, options } = self;
        options.command("greeting", &format!("--greetings {greetings}"), &format!("--timers {timers}"))
    }
}

pub fn run(args: &Args) -> Result<()> {
    let kopf = if args.options.without_peers { None } else { Some(Kopf::installed()?) };
    let measure = |_, program: &Path| measure(kopf.as_ref(), args, program);
    args.options.run(vec![args.sizes().0], "Greetings", &args.command(), measure)
}

/// Measures each round on a separate cluster, and the timers on another one.
fn measure(kopf: Option<&Kopf>, args: &Args, program: &Path) -> Result<(Results, Versions)> {
    let (greetings, timers) = args.sizes();
    // `Versions::of` reads the version of kwok from a node. No pod runs on it.
    let up = || Rig::up(1, greetings.max(timers), program);
    let mut versions = Versions::default();
    let mut results = Results {
        greetings,
        kopf: kopf.map(|kopf| kopf.version.clone()),
        cycles: Vec::new(),
        timers: Vec::new(),
    };
    let contenders = if kopf.is_some() { Contender::VARIANTS } else { &[Contender::Greeting] };
    let rounds = args.options.rounds();
    for round in 1..=rounds {
        let rig = up()?;
        versions = Versions::of(&rig, program)?;
        for mode in Mode::VARIANTS {
            for contender in order(contenders, round) {
                let all = count(greetings);
                let label = format!("{all} Greetings, {mode}, round {round} of {rounds}: {contender}");
                let cycle = || runs::cycle(&rig, contender, kopf, (*mode, round, greetings));
                results.cycles.push(rig.step(label, cycle)?);
            }
        }
    }
    if timers > 0 {
        let rig = up()?;
        // kopf is last, because `runs::timers` leaves its Greetings: kopf watches only its own namespace.
        for &contender in contenders {
            let label = format!("{} Greetings with a timer: {contender}", count(timers));
            results.timers.push(rig.step(label, || runs::timers(&rig, contender, kopf, timers))?);
        }
    }
    Ok((results, versions))
}
