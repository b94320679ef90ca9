//! `cargo xtask bench greeting`: every line once, beside kopf and the post's handlers; what a restart in the middle does
//! to lines; writes, memory and time; and many timers.

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

/// Greeting beside kopf: lines missing and doubled by restarts, writes, time, memory, timers.
///
/// Each round runs, in alternating order, Quintet's manager and kopf with the post's handlers: N Greetings are created,
/// changed and deleted, without a restart, with a restart by SIGTERM in the middle of each of the three, and with one
/// by SIGKILL. At the end both get many Greetings whose timers tick.
///
/// kopf is installed from PyPI, once, into a virtual environment in the cache; that needs python3 with its venv module.
///
/// It fails if a line of ours is doubled, or missing without a SIGKILL; if a Greeting costs more than two writes for
/// its creation, one for a change and two for its deletion; or if a tick writes.
///
/// A round takes about five minutes on two cores, and the timers as much again.
///
/// With `--quick` there are 40 Greetings and 200 timers.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Number of Greetings that are created, changed and deleted
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = value_parser!(u16).range(10..=5_000),
        conflicts_with = "quick")]
    greetings: u16,
    /// Number of Greetings whose timers tick; 0 leaves that out
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = value_parser!(u16).range(0..=50_000),
        conflicts_with = "quick")]
    timers: u16,
    #[command(flatten)]
    options: Options,
}

impl Args {
    /// How many Greetings are changed, and how many tick.
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

/// Measures every round, each on a cluster of its own, and the timers on another one.
fn measure(kopf: Option<&Kopf>, args: &Args, program: &Path) -> Result<(Results, Versions)> {
    let (greetings, timers) = args.sizes();
    // A node, so that its version can be told; nothing runs on it.
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
        // kopf is the last one: it looks at its own namespace alone, and what it leaves is nobody's.
        for &contender in contenders {
            let label = format!("{} Greetings with a timer: {contender}", count(timers));
            results.timers.push(rig.step(label, || runs::timers(&rig, contender, kopf, timers))?);
        }
    }
    Ok((results, versions))
}
