//! The command line: selects what to run, and prints the results.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use crate::bytes::Input;
use crate::dice::Dice;
use crate::pairs;
use crate::plan::{Fault, Plan};
use crate::run::Outcome;
use crate::scenarios::{ALL, Scenario};
use crate::sweep::{Sum, guarded, plans, side_by_side, sweep};
use crate::transitions::Transition;
use crate::watcher::Keeps;

/// Run every scenario with every fault
#[derive(Debug, Parser)]
#[command(name = "cargo xtask faults")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
struct Args {
    /// Run only scenarios whose names contain FILTER
    filter: Option<String>,
    /// Run only this plan, by a printed name, and print every step
    #[arg(long, value_name = "NAME", conflicts_with = "filter")]
    plan: Option<String>,
    /// Run every plan. Without it, run one of every 41 plans, spread evenly
    #[arg(long)]
    all: bool,
    /// Run one of every N plans
    #[arg(long, value_name = "N", conflicts_with = "all")]
    every: Option<usize>,
    /// Run only plans whose names contain TEXT
    #[arg(long, value_name = "TEXT", conflicts_with = "plan")]
    fault: Option<String>,
    /// The seed for the order of the server's events
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Instead of plans, run sequences of changes generated from the kinds' schemas
    #[arg(long, conflicts_with = "fault")]
    transitions: bool,
    /// Instead of plans, run hostile bytes for every decoder
    #[arg(long, conflicts_with_all = ["fault", "transitions"])]
    bytes: bool,
    /// Instead of plans with one fault, run random plans with several faults for this number of seconds
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["fault", "transitions", "bytes"])]
    soak: Option<u64>,
    /// Instead of plans with one fault, run plans with two faults
    #[arg(long, conflicts_with_all = ["plan", "transitions", "bytes", "soak"])]
    pairs: bool,
    /// Print the names of the plans, and run none
    #[arg(long)]
    list: bool,
    /// Stop after this number of plans with violations
    #[arg(long, value_name = "N", default_value_t = usize::MAX)]
    stop_after: usize,
    /// With --plan, also print the managers' logs
    #[arg(long)]
    logs: bool,
}

/// Runs the program. The exit code is 1 if there are violations.
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
        None if args.pairs => all_pairs(&args, threads),
        None if is_under_cargo_test(&args) => {
            let codes = [many(&args, threads), transitions(&args, threads), bytes(&args, threads)];
            if codes.contains(&ExitCode::FAILURE) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        None => many(&args, threads),
    }
}

/// Whether no option selects what to run; then a part of everything runs.
fn is_under_cargo_test(args: &Args) -> bool {
    !args.all && args.every.is_none() && args.fault.is_none() && !args.list
}

/// N of "one of every N".
fn every(args: &Args) -> usize {
    if args.all { 1 } else { args.every.unwrap_or(41).max(1) }
}

/// Prints the summary, with a line for tools that add test results up.
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
    // Each sequence is two runs, and most take longer than a plan.
    let every = if is_under_cargo_test(args) && !args.transitions { 101 } else { every(args) };
    let all = Transition::all(args.filter.as_deref().unwrap_or_default(), every, args.seed);
    let count = all.len();
    let wrong = side_by_side("sequences", all, threads, |transition| {
        let mut wrong = transition.run(args.seed, Keeps::Nothing).violations;
        if !wrong.is_empty() {
            wrong.extend(transition.told());
        }
        (transition.name(), wrong)
    });
    sum_up("sequences", count, wrong, began)
}

/// Runs random plans of two to four faults until the time is over.
fn soak(args: &Args, threads: usize) -> ExitCode {
    let began = Instant::now();
    let until = began + Duration::from_secs(args.soak.unwrap_or_default());
    let filter = args.filter.as_deref().unwrap_or_default();
    let runs: Vec<(&Scenario, Outcome, Vec<Plan>)> = ALL
        .iter()
        .filter(|scenario| scenario.name.contains(filter))
        .map(|scenario| {
            let usual = usual(scenario, args.seed);
            let mut plans = plans(scenario, &usual);
            // A restore may take back what another fault did.
            plans.retain(|plan| !plan.has_restore());
            (scenario, usual, plans)
        })
        .collect();
    if runs.is_empty() {
        eprintln!("error: no scenario has {filter:?} in its name");
        return ExitCode::FAILURE;
    }
    let mut dice = Dice::new(args.seed);
    let (mut all, mut wrong) = (0, 0);
    while Instant::now() < until {
        // A batch takes some seconds.
        let batch: Vec<(usize, Plan)> = (0..threads * 64)
            .map(|_| {
                let index = dice.below(runs.len());
                let (scenario, _, plans) = &runs[index];
                let parts = (0..2 + dice.below(3)).map(|_| dice.one(plans).fault.clone()).collect();
                (index, Plan { scenario: scenario.name.to_owned(), fault: Fault::Several(parts) })
            })
            .collect();
        all += batch.len();
        wrong += side_by_side("plans", batch, threads, |(index, plan)| {
            let (scenario, usual, _) = &runs[*index];
            (
                plan.to_string(),
                guarded(&scenario.story(), plan, args.seed, Some(usual), Keeps::Nothing).violations,
            )
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

/// Prints and decodes one input.
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

/// Runs one sequence and prints every step.
fn one_transition(name: &str, seed: u64) -> ExitCode {
    let Some(transition) = Transition::by_name(name, seed) else {
        eprintln!("error: there is no sequence {name:?}; use a name that a run has printed");
        return ExitCode::FAILURE;
    };
    for line in transition.told() {
        println!("{line}");
    }
    let outcome = transition.run(seed, Keeps::Steps);
    told(&outcome);
    println!("1 sequence, {} violations", outcome.violations.len());
    if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the steps, the objects at the end, and the violations.
fn told(outcome: &Outcome) {
    for line in &outcome.trace {
        println!("{line}");
    }
    println!("\nat the end, after {} s of the cluster's time:", outcome.took.as_secs());
    for line in outcome.end.iter().chain(&outcome.lines) {
        println!("  {line}");
    }
    for excused in &outcome.excused {
        println!("excused because of a late write: {excused}");
    }
    for violation in &outcome.violations {
        println!("VIOLATION {violation}");
    }
}

fn scenario(name: &str) -> Option<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name)
}

/// Runs one plan and prints every step.
fn one(name: &str, seed: u64) -> ExitCode {
    let plan: Plan = match name.parse() {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let Some(scenario) = scenario(&plan.scenario) else {
        eprintln!("error: there is no scenario {:?}; `--list` lists them", plan.scenario);
        return ExitCode::FAILURE;
    };
    let usual = usual(scenario, seed);
    let outcome = match plan.fault {
        Fault::None => guarded(&scenario.story(), &plan, seed, None, Keeps::Steps),
        _ => guarded(&scenario.story(), &plan, seed, Some(&usual), Keeps::Steps),
    };
    told(&outcome);
    if outcome.hits < plan.fault.parts().len() {
        println!("a fault did not occur: there is no such request or line");
    }
    println!("1 plan, {} violations", outcome.violations.len());
    if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usual(scenario: &Scenario, seed: u64) -> Outcome {
    let none = Plan { scenario: scenario.name.to_owned(), fault: Fault::None };
    guarded(&scenario.story(), &none, seed, None, Keeps::Nothing)
}

/// Runs the plans with two faults, one scenario after the other.
fn all_pairs(args: &Args, threads: usize) -> ExitCode {
    let began = Instant::now();
    let (filter, fault) = (args.filter.as_deref(), args.fault.as_deref());
    let contains = |name: &str, text: Option<&str>| text.is_none_or(|text| name.contains(text));
    let (mut sum, mut firsts, mut wrong) = (Sum::default(), 0, 0);
    for scenario in ALL.iter().filter(|scenario| contains(scenario.name, filter)) {
        let usual = usual(scenario, args.seed);
        let mut pairs = pairs::pairs(scenario, &usual, every(args), args.seed, threads);
        (firsts, wrong) = (firsts + pairs.firsts, wrong + pairs.wrong);
        pairs.plans.retain(|plan| contains(&plan.to_string(), fault));
        if args.list {
            for plan in &pairs.plans {
                println!("{plan}");
            }
            continue;
        }
        let plans = pairs.plans.into_iter().map(|plan| (0, plan)).collect();
        sum = sweep(&[(scenario, usual)], plans, args.seed, threads, args.stop_after, sum);
        eprintln!("{}: {} equal pairs left out, {} pairs so far", scenario.name, pairs.equal, sum.plans);
        if wrong + sum.violations.len() >= args.stop_after {
            break;
        }
    }
    if args.list {
        return ExitCode::SUCCESS;
    }
    if sum.plans == 0 {
        eprintln!("error: no pair is selected; a smaller N of --every selects more pairs");
        return ExitCode::FAILURE;
    }
    report(&sum);
    println!("{} pairs, and {firsts} plans with only the first fault", sum.plans);
    sum_up("plans", sum.plans + firsts, wrong + sum.violations.len(), began)
}

fn many(args: &Args, threads: usize) -> ExitCode {
    let began = Instant::now();
    let is_selected =
        |scenario: &&Scenario| args.filter.as_deref().is_none_or(|filter| scenario.name.contains(filter));
    let scenarios: Vec<(&Scenario, Outcome)> =
        ALL.iter().filter(is_selected).map(|scenario| (scenario, usual(scenario, args.seed))).collect();
    if scenarios.is_empty() && !args.all && args.every.is_none() {
        // Under `cargo test`, the filter selects tests by name.
        return ExitCode::SUCCESS;
    }
    if scenarios.is_empty() {
        eprintln!("error: no scenario has {:?} in its name", args.filter.as_deref().unwrap_or_default());
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
        let is_selected =
            |plan: &Plan| args.fault.as_deref().is_none_or(|fault| plan.to_string().contains(fault));
        let plans = plans(scenario, usual).into_iter().filter(is_selected);
        chosen.extend(plans.enumerate().filter(|(at, _)| at % every == 0).map(|(_, plan)| (index, plan)));
    }
    if args.list {
        for (_, plan) in &chosen {
            println!("{plan}");
        }
        return ExitCode::SUCCESS;
    }
    let sum = sweep(&scenarios, chosen, args.seed, threads, args.stop_after, Sum::default());
    report(&sum);
    sum_up("plans", sum.plans, wrong + sum.violations.len(), began)
}

/// Prints the table: plans by class of fault and kind.
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
        println!("{} plans with a fault that did not occur, such as {}", sum.missed.len(), sum.missed[0]);
    }
    if sum.excused > 0 {
        println!("{} plans with violations that a late write excuses", sum.excused);
    }
}
