//! The program: what is run, and what is said of it.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::bytes::Input;
use crate::dice::Dice;
use crate::plan::{Fault, Plan};
use crate::run::Outcome;
use crate::scenarios::{ALL, Scenario};
use crate::sweep::{Sum, guarded, plans, side_by_side, sweep};
use crate::transitions::Transition;

/// Run every story with every fault
#[derive(Debug, Parser)]
#[command(name = "cargo xtask faults")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
struct Args {
    /// Only stories whose names contain FILTER
    filter: Option<String>,
    /// One plan alone, by the name that a run has printed, with everything that happens
    #[arg(long, value_name = "NAME", conflicts_with = "filter")]
    plan: Option<String>,
    /// Everything; without it one plan of every 41, spread evenly
    #[arg(long)]
    all: bool,
    /// One plan of every N
    #[arg(long, value_name = "N", conflicts_with = "all")]
    every: Option<usize>,
    /// Only plans whose names contain TEXT
    #[arg(long, value_name = "TEXT", conflicts_with = "plan")]
    fault: Option<String>,
    /// What the server's own order of things follows from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Sequences of changes that are made up from the kinds' schemas, instead of plans
    #[arg(long, conflicts_with = "fault")]
    transitions: bool,
    /// Hostile bytes for everything that is decoded, instead of plans
    #[arg(long, conflicts_with_all = ["fault", "transitions"])]
    bytes: bool,
    /// Plans of several faults, by chance, for so many seconds
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["fault", "transitions", "bytes"])]
    soak: Option<u64>,
    /// Print the names of the plans instead of running them
    #[arg(long)]
    list: bool,
    /// Stop after so many plans with violations
    #[arg(long, value_name = "N", default_value_t = usize::MAX)]
    stop_after: usize,
    /// Print the logs of the managers, too, where one plan is run
    #[arg(long)]
    logs: bool,
}

/// Runs the program. The code says whether anything was wrong.
pub fn main() -> ExitCode {
    let args = Args::parse();
    if args.logs {
        tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(std::io::stderr).init();
    }
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match &args.plan {
        Some(name) if name.starts_with("bytes:") => one_input(name, args.seed),
        Some(name) if !name.contains('/') && name.contains('.') => one_transition(name, args.seed),
        Some(name) => one(name, args.seed),
        None if args.transitions => transitions(&args, threads),
        None if args.bytes => bytes(&args, threads),
        None if args.soak.is_some() => soak(&args, threads),
        None if is_under_cargo_test(&args) => {
            let codes = [many(&args, threads), transitions(&args, threads), bytes(&args, threads)];
            if codes.contains(&ExitCode::FAILURE) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        None => many(&args, threads),
    }
}

/// Whether nothing is said of what to run: then it is a part of everything.
fn is_under_cargo_test(args: &Args) -> bool {
    !args.all && args.every.is_none() && args.fault.is_none() && !args.list
}

/// One of every so many.
fn every(args: &Args) -> usize {
    if args.all { 1 } else { args.every.unwrap_or(41).max(1) }
}

/// The last lines, also for whoever adds tests up.
fn sum_up(what: &str, all: usize, wrong: usize, began: Instant) -> ExitCode {
    println!("{} s", began.elapsed().as_secs());
    println!(
        "test result: {}. {} passed; {wrong} failed; 0 ignored; 0 measured; 0 filtered out",
        if wrong == 0 { "ok" } else { "FAILED" },
        all - wrong.min(all)
    );
    println!("{all} {what}, {wrong} violations");
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn transitions(args: &Args, threads: usize) -> ExitCode {
    let began = Instant::now();
    // Each is two runs, and mostly longer ones.
    let every = if is_under_cargo_test(args) && !args.transitions { 101 } else { every(args) };
    let all = Transition::all(args.filter.as_deref().unwrap_or_default(), every, args.seed);
    let count = all.len();
    let wrong = side_by_side("sequences", all, threads, |transition| {
        let mut wrong = transition.run(args.seed, false).violations;
        if !wrong.is_empty() {
            wrong.extend(transition.told());
        }
        (transition.name(), wrong)
    });
    sum_up("sequences", count, wrong, began)
}

/// Plans of two to four faults, each by chance, until the time is over.
fn soak(args: &Args, threads: usize) -> ExitCode {
    let began = Instant::now();
    let until = began + Duration::from_secs(args.soak.unwrap_or_default());
    let filter = args.filter.as_deref().unwrap_or_default();
    let stories: Vec<(&Scenario, Outcome, Vec<Plan>)> = ALL
        .iter()
        .filter(|scenario| scenario.name.contains(filter))
        .map(|scenario| {
            let usual = usual(scenario, args.seed);
            let plans = plans(scenario, &usual);
            (scenario, usual, plans)
        })
        .collect();
    if stories.is_empty() {
        eprintln!("error: no story has {filter:?} in its name");
        return ExitCode::FAILURE;
    }
    let mut dice = Dice::new(args.seed);
    let (mut all, mut wrong) = (0, 0);
    while Instant::now() < until {
        // As many as take some seconds.
        let batch: Vec<(usize, Plan)> = (0..threads * 64)
            .map(|_| {
                let story = dice.below(stories.len());
                let (scenario, _, plans) = &stories[story];
                let parts = (0..2 + dice.below(3)).map(|_| dice.one(plans).fault.clone()).collect();
                (story, Plan { scenario: scenario.name.to_owned(), fault: Fault::Several(parts) })
            })
            .collect();
        all += batch.len();
        wrong += side_by_side("plans", batch, threads, |(story, plan)| {
            let (scenario, usual, _) = &stories[*story];
            (plan.to_string(), guarded(&scenario.story(), plan, args.seed, Some(usual), false).violations)
        });
        if wrong >= args.stop_after {
            break;
        }
    }
    sum_up("plans of several faults", all, wrong, began)
}

fn bytes(args: &Args, threads: usize) -> ExitCode {
    let began = Instant::now();
    let all = Input::all(args.filter.as_deref().unwrap_or_default(), every(args));
    let count = all.len();
    let wrong = side_by_side("inputs", all, threads, |input| (input.name(), input.run(args.seed)));
    sum_up("inputs", count, wrong, began)
}

/// One input, and what is said of it.
fn one_input(name: &str, seed: u64) -> ExitCode {
    let Some(input) = Input::by_name(name) else {
        eprintln!("error: there is no input {name:?}; use a name that a run has printed");
        return ExitCode::FAILURE;
    };
    println!("{}", String::from_utf8_lossy(&input.bytes(seed)));
    let wrong = input.run(seed);
    for line in &wrong {
        println!("VIOLATION {line}");
    }
    println!("1 input, {} violations", wrong.len());
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One sequence, with everything that happens.
fn one_transition(name: &str, seed: u64) -> ExitCode {
    let Some(transition) = Transition::by_name(name, seed) else {
        eprintln!("error: there is no sequence {name:?}; use a name that a run has printed");
        return ExitCode::FAILURE;
    };
    for line in transition.told() {
        println!("{line}");
    }
    let outcome = transition.run(seed, true);
    told(&outcome);
    println!("1 sequence, {} violations", outcome.violations.len());
    if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Everything that happened, what there is at the end, and what was wrong.
fn told(outcome: &Outcome) {
    for line in &outcome.trace {
        println!("{line}");
    }
    println!("\nat the end, after {} s of the cluster's time:", outcome.took.as_secs());
    for line in outcome.end.iter().chain(&outcome.lines) {
        println!("  {line}");
    }
    for excused in &outcome.excused {
        println!("for a while, by a write that came late: {excused}");
    }
    for violation in &outcome.violations {
        println!("VIOLATION {violation}");
    }
}

fn scenario(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}

/// One plan, with everything that happens.
fn one(name: &str, seed: u64) -> ExitCode {
    let plan: Plan = match name.parse() {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let Some(scenario) = scenario(&plan.scenario) else {
        eprintln!("error: there is no story {:?}; `--list` lists them", plan.scenario);
        return ExitCode::FAILURE;
    };
    let usual = usual(scenario, seed);
    let outcome = match plan.fault {
        Fault::None => guarded(&scenario.story(), &plan, seed, None, true),
        _ => guarded(&scenario.story(), &plan, seed, Some(&usual), true),
    };
    told(&outcome);
    if !outcome.hit && plan.fault != Fault::None {
        println!("the fault never came about: there is no such request or line");
    }
    println!("1 plan, {} violations", outcome.violations.len());
    if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usual(scenario: &Scenario, seed: u64) -> Outcome {
    let none = Plan { scenario: scenario.name.to_owned(), fault: Fault::None };
    guarded(&scenario.story(), &none, seed, None, false)
}

fn many(args: &Args, threads: usize) -> ExitCode {
    let began = Instant::now();
    let is_wanted =
        |scenario: &&Scenario| args.filter.as_deref().is_none_or(|filter| scenario.name.contains(filter));
    let scenarios: Vec<(&Scenario, Outcome)> =
        ALL.iter().filter(is_wanted).map(|scenario| (scenario, usual(scenario, args.seed))).collect();
    if scenarios.is_empty() && !args.all && args.every.is_none() {
        // Under `cargo test` the filter is one of tests' names.
        return ExitCode::SUCCESS;
    }
    if scenarios.is_empty() {
        eprintln!("error: no story has {:?} in its name", args.filter.as_deref().unwrap_or_default());
        return ExitCode::FAILURE;
    }
    let every = every(args);
    let mut chosen = Vec::new();
    let mut wrong = 0;
    for (index, (scenario, usual)) in scenarios.iter().enumerate() {
        for violation in &usual.violations {
            println!("{}\n    {violation}", scenario.name);
            wrong += 1;
        }
        let is_wanted =
            |plan: &Plan| args.fault.as_deref().is_none_or(|fault| plan.to_string().contains(fault));
        let plans = plans(scenario, usual).into_iter().filter(is_wanted);
        chosen.extend(plans.enumerate().filter(|(at, _)| at % every == 0).map(|(_, plan)| (index, plan)));
    }
    if args.list {
        for (_, plan) in &chosen {
            println!("{plan}");
        }
        return ExitCode::SUCCESS;
    }
    let sum = sweep(&scenarios, chosen, args.seed, threads, args.stop_after);
    report(&sum);
    sum_up("plans", sum.plans, wrong + sum.violations.len(), began)
}

/// The table: plans by class of fault and kind.
fn report(sum: &Sum) {
    let mut kinds: Vec<&str> = sum.classes.keys().map(|(_, kind)| &**kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let mut classes: Vec<&str> = sum.classes.keys().map(|(class, _)| &**class).collect();
    classes.dedup();
    print!("{:<28}", "fault");
    for kind in &kinds {
        print!("{kind:>11}");
    }
    println!();
    for class in classes {
        print!("{class:<28}");
        for kind in &kinds {
            let (plans, wrong) =
                sum.classes.get(&(class.to_owned(), (*kind).to_owned())).copied().unwrap_or_default();
            let shown = if wrong == 0 { plans.to_string() } else { format!("{plans} ({wrong}!)") };
            print!("{shown:>11}");
        }
        println!();
    }
    if !sum.missed.is_empty() {
        println!("{} plans whose fault never came about, as {}", sum.missed.len(), sum.missed[0]);
    }
    if sum.excused > 0 {
        println!("{} plans with something wrong for a while, by a write that came late", sum.excused);
    }
}
