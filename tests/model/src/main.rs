//! `quintet-model` explores every state that a small DaemonJob can reach, and checks the invariants in each.
//!
//! The plan is the real one; [`environment`] models nodes, pods, users, leaders and time. A search ends when
//! it finds no new state. The program prints counts, and the shortest steps to a broken invariant; then the
//! exit code is 1. `--long` allows more disturbances. `--log FILE` appends date, commit and counts. `--case NUMBER`
//! runs one search, and `--faults NUMBER` sets the number of its disturbances. Each further disturbance multiplies
//! the number of states by about 20.

mod environment;
mod frame;
mod invariants;
mod search;
mod state;
mod world;

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use quintet_daemonjob::api::FailurePolicyType::{self, Continue, FailFast, Pause};

use crate::environment::Fault;
use crate::search::{Found, search};
use crate::state::{Budget, FAULTS};
use crate::world::{Feature, Variant};

struct Case {
    scope: usize,
    variant: Variant,
    budget: Budget,
}

const SCOPES: [&str; 3] = [
    "2 nodes, 2 managers, up to 3 pods a node",
    "3 nodes, 1 manager, up to 2 pods a node",
    "1 node, 2 managers, up to 3 pods",
];

/// Disturbances of each kind: Break, Taint, Cordon, Delete, Fail, Reject, Kill, Act, Leader, Day, Away, Clock,
/// PutBack.
type Faults = [u8; FAULTS];

/// All disturbances, without a schedule and `onSuccess`.
const ALL: Faults = [2, 1, 1, 1, 2, 1, 1, 2, 1, 1, 0, 0, 0];
/// Nodes break, and are tainted, cordoned and deleted.
const NODES: Faults = [2, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0];
/// Pods fail, are rejected and deleted.
const PODS: Faults = [0, 1, 0, 0, 2, 1, 1, 0, 0, 0, 0, 0, 0];
/// Users change the spec twice, and a pod fails.
const ACTS: Faults = [0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0];
/// Leaders die during a reconcile.
const LEADERS: Faults = [1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 0];
/// Due times are missed and come again, users change the spec, a node is replaced, pods fail, leaders die.
const DUE_TIMES: Faults = [1, 1, 0, 1, 1, 0, 0, 2, 1, 0, 1, 1, 0];
/// An administrator puts the taint back, users change the spec, a node is replaced, pods fail, leaders die.
const MARKS: Faults = [1, 0, 0, 1, 1, 1, 1, 2, 1, 0, 0, 0, 2];

/// The number of disturbances of a run in the short tier and in the long one.
type Tiers = [u8; 2];

/// Scope, type, parallelism, backoffLimit, disturbances of each kind and in total.
type Row = (usize, FailurePolicyType, u8, u8, Faults, Tiers);

const CASES: [Row; 24] = [
    (0, Pause, 1, 1, PODS, [3, 5]),
    (0, Pause, 1, 0, ACTS, [3, 3]),
    (0, FailFast, 1, 1, PODS, [3, 5]),
    (0, FailFast, 1, 0, ACTS, [3, 3]),
    (0, Continue, 1, 0, PODS, [4, 5]),
    (0, Continue, 1, 1, ACTS, [2, 3]),
    (0, Pause, 1, 0, NODES, [2, 3]),
    (0, Pause, 2, 1, NODES, [1, 3]),
    (0, FailFast, 2, 1, NODES, [1, 3]),
    (0, Continue, 1, 0, NODES, [2, 3]),
    (0, Pause, 1, 0, LEADERS, [2, 3]),
    (0, Pause, 1, 1, ALL, [1, 2]),
    (0, FailFast, 1, 0, ALL, [1, 2]),
    (0, Continue, 1, 1, ALL, [1, 2]),
    (1, Pause, 1, 1, PODS, [2, 4]),
    (1, FailFast, 1, 1, PODS, [2, 4]),
    (1, Continue, 1, 1, PODS, [2, 4]),
    (1, Pause, 1, 0, ACTS, [2, 3]),
    (1, Continue, 1, 0, ACTS, [2, 3]),
    (1, Pause, 2, 0, ALL, [1, 1]),
    (1, FailFast, 2, 1, ALL, [1, 1]),
    (1, Continue, 2, 1, ALL, [1, 1]),
    (1, Pause, 1, 0, NODES, [1, 2]),
    (1, Continue, 1, 0, NODES, [1, 2]),
];

const LATE: Feature = Feature::Schedule { has_deadline: false };
const IN_TIME: Feature = Feature::Schedule { has_deadline: true };

/// The same with another feature. With waves, one failure is tolerated.
const FEATURES: [(Feature, Row); 10] = [
    (Feature::Waves, (0, Pause, 2, 0, LEADERS, [1, 2])),
    (Feature::Waves, (1, Pause, 2, 0, PODS, [2, 3])),
    (Feature::Waves, (1, FailFast, 2, 1, NODES, [1, 2])),
    (Feature::Waves, (1, Pause, 2, 0, ACTS, [1, 2])),
    (IN_TIME, (2, Continue, 1, 1, DUE_TIMES, [3, 4])),
    (LATE, (2, Pause, 1, 0, DUE_TIMES, [3, 4])),
    (IN_TIME, (0, Pause, 1, 0, DUE_TIMES, [2, 3])),
    (LATE, (0, Continue, 2, 1, DUE_TIMES, [2, 3])),
    (Feature::Marks, (2, Continue, 1, 1, MARKS, [2, 3])),
    (Feature::Marks, (0, Pause, 2, 0, MARKS, [1, 2])),
];

fn cases(tier: usize, faults: Option<u8>) -> Vec<Case> {
    let plain = CASES.into_iter().map(|row| (Feature::Plain, row));
    let case = |(feature, row): (Feature, Row)| {
        let (scope, policy, parallelism, backoff_limit, mut each, tiers) = row;
        let max_failed = u8::from(policy == Continue || feature == Feature::Waves);
        let (nodes, attempts) = [(2, 3), (3, 2), (1, 3)][scope];
        if scope == 1 {
            // One manager.
            each[Fault::Leader as usize] = 0;
        }
        let variant = Variant { nodes, attempts, policy, max_failed, parallelism, backoff_limit, feature };
        Case { scope, variant, budget: Budget { all: faults.unwrap_or(tiers[tier]), each } }
    };
    plain.chain(FEATURES).map(case).collect()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)
    };
    let is_long = arguments.iter().any(|argument| argument == "--long");
    let faults = value("--faults").and_then(|text| text.parse().ok());
    let only = value("--case").and_then(|text| text.parse::<usize>().ok());
    let began = Instant::now();
    let cases = cases(usize::from(is_long), faults);
    let found = run(&cases, only);
    let is_sound = report(&cases, &found);
    println!("{} s in all", began.elapsed().as_secs());
    if let Some(file) = value("--log")
        && let Err(error) = log(file, is_long, &cases, &found)
    {
        eprintln!("cannot write {file}: {error}");
        return ExitCode::from(2);
    }
    if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the searches, two at a time. A broken invariant prevents further ones.
fn run(cases: &[Case], only: Option<usize>) -> Vec<Option<Found>> {
    let next = AtomicUsize::new(0);
    let is_broken = AtomicBool::new(false);
    let found: Mutex<Vec<Option<Found>>> = Mutex::new(cases.iter().map(|_| None).collect());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(at) else { return };
                    if is_broken.load(Ordering::Relaxed) || only.is_some_and(|only| only != at) {
                        continue;
                    }
                    let result = search(case.variant, case.budget);
                    println!("{at:2} {} {}", describe(case), counts(&result));
                    is_broken.fetch_or(result.broken.is_some(), Ordering::Relaxed);
                    if let Ok(mut found) = found.lock() {
                        found[at] = Some(result);
                    }
                }
            });
        }
    });
    found.into_inner().unwrap_or_default()
}

fn describe(case: &Case) -> String {
    let Variant { nodes, policy, max_failed, parallelism, backoff_limit, feature, .. } = case.variant;
    let feature = match feature {
        Feature::Plain => "",
        Feature::Waves => ", waves",
        Feature::Schedule { has_deadline: false } => ", schedule",
        Feature::Schedule { has_deadline: true } => ", schedule with deadline",
        Feature::Marks => ", onSuccess",
    };
    format!(
        "{nodes} nodes, {policy:?} {max_failed}, parallelism {parallelism}, backoffLimit {backoff_limit}{feature}:"
    )
}

fn counts(found: &Found) -> String {
    let Found { states, transitions, depth, took, .. } = found;
    format!("{states} states, {transitions} transitions, depth {depth}, {:.1} s", took.as_secs_f64())
}

/// Prints broken invariants with the shortest steps to each, and the counts. Returns whether all hold.
fn report(cases: &[Case], found: &[Option<Found>]) -> bool {
    let broken =
        cases.iter().zip(found).filter_map(|(case, found)| Some((case, found.as_ref()?.broken.as_ref()?)));
    let mut broken: Vec<_> = broken.collect();
    broken.sort_by_key(|(_, (_, steps))| steps.len());
    let mut described = Vec::new();
    for (case, (why, steps)) in &broken {
        println!("\n{} broken: {why}", describe(case));
        if described.contains(&why) {
            continue;
        }
        described.push(why);
        for (number, step) in (1..).zip(steps) {
            println!("{number:5}. {step}");
        }
    }
    for (scope, name) in SCOPES.iter().enumerate() {
        println!("{}", summary(scope, name, cases, found));
    }
    broken.is_empty()
}

fn summary(scope: usize, name: &str, cases: &[Case], found: &[Option<Found>]) -> String {
    let of_scope = || {
        let pairs = cases.iter().zip(found).filter(|(case, _)| case.scope == scope);
        pairs.filter_map(|(_, found)| found.as_ref())
    };
    let states: usize = of_scope().map(|found| found.states).sum();
    let depth = of_scope().map(|found| found.depth).max().unwrap_or_default();
    let seconds: f64 = of_scope().map(|found| found.took.as_secs_f64()).sum();
    let broken = of_scope().filter(|found| found.broken.is_some()).count();
    format!("{name}: {states} states, depth {depth}, {seconds:.0} s, {broken} broken")
}

/// Appends a line with date, commit and counts to a file.
fn log(file: &str, is_long: bool, cases: &[Case], found: &[Option<Found>]) -> std::io::Result<()> {
    let commit = Command::new("git").args(["describe", "--always", "--dirty"]).output()?;
    let commit = String::from_utf8_lossy(&commit.stdout).trim().to_owned();
    let day = jiff::Timestamp::now().strftime("%Y-%m-%d");
    let tier = if is_long { "long" } else { "short" };
    let scopes = SCOPES.iter().enumerate().map(|(scope, name)| summary(scope, name, cases, found));
    let scopes: Vec<String> = scopes.collect();
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    writeln!(file, "{day} {commit} {tier}: {}", scopes.join("; "))
}
