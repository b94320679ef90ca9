//! All plans of a scenario, and how threads run them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::moments::Place;
use crate::plan::{Event, Fault, Plan, Trouble, is_read};
use crate::run::{Outcome, run};
use crate::scenarios::{Scenario, Story};
use crate::watcher::Keeps;

/// The number of faults for a request that repeats as long as a process lives.
const REPEATED: usize = 4;
/// The number of faults for any other request or line.
const MOST: usize = 60;

/// Whether a failed node ends the run, so that another node that is delayed may never get a pod.
pub fn is_ended_by_a_failure(scenario: &Scenario) -> bool {
    [
        "daemonjob-failure",
        "daemonjob-brake",
        "daemonjob-failed-node-deselected",
        "daemonjob-failed-node-evicted",
        "daemonjob-node-deleted",
    ]
    .contains(&scenario.name)
}

/// The faults that a request or a line may have, except [`Trouble::OF_FIRST_WRITES`].
pub fn faults_of(scenario: &Scenario, place: &Place) -> Vec<Fault> {
    match place {
        Place::Request(name, nth) => {
            troubles(scenario, name).map(|trouble| Fault::Request(name.clone(), *nth, trouble)).collect()
        }
        Place::Line(resource, nth) => {
            // If the first failure ends the run, an unseen node may never get a pod.
            let is_missed = is_ended_by_a_failure(scenario) && resource == "nodes";
            let events = Event::ALL.into_iter().filter(|event| !is_missed || *event != Event::Silence);
            events.map(|event| Fault::Line(resource.clone(), *nth, event)).collect()
        }
    }
}

/// The faults that a request of this name may have.
fn troubles(scenario: &Scenario, name: &str) -> impl Iterator<Item = Trouble> {
    let of: &[Trouble] = if is_read(name) { &Trouble::OF_READS } else { &Trouble::OF_WRITES };
    let of_watches: &[Trouble] = if name.starts_with("watch-") { &Trouble::OF_WATCHES } else { &[] };
    // In place of a pod whose adoption is rejected, the manager would create another one.
    let adopts = name == "apply-pods" && scenario.name == "podset-adopt-again";
    // The API server keeps running, so the write of another node's record, mark or retry reaches the restored store. See the
    // accepted effects in docs/reliability.md. The Event of a suspend is sent beside the record of the suspended pod.
    let is_beside = name.ends_with("-configmaps")
        || name == "patch-nodes"
        || name == "create-events" && scenario.name == "daemonjob-suspend"
        || name == "create-pods" && scenario.name == "daemonjob-retry";
    // If the first failure ends the run, a delayed node may never get a pod.
    let waits = !is_ended_by_a_failure(scenario) && matches!(name, "create-pods" | "create-configmaps");
    let is_possible = move |trouble: &Trouble| match trouble {
        Trouble::Invalid | Trouble::Forbidden => !adopts,
        Trouble::RestoredBumped | Trouble::RestoredRejected => !is_beside,
        _ => true,
    };
    let all = of.iter().chain(of_watches).copied().filter(is_possible);
    all.chain(waits.then_some(Trouble::Stranger))
}

/// The plans with one fault that follow from a run without a fault.
pub fn plans(scenario: &Scenario, usual: &Outcome) -> Vec<Plan> {
    let mut faults = Vec::new();
    for (name, count) in &usual.requests {
        let most = if name.ends_with("leases") || name.ends_with("events") || name.starts_with("watch-") {
            REPEATED
        } else {
            MOST
        };
        for nth in 1..=(*count).min(most) {
            faults.extend(faults_of(scenario, &Place::Request(name.clone(), nth)));
        }
        if !is_read(name) {
            faults.extend(Trouble::OF_FIRST_WRITES.map(|trouble| Fault::Request(name.clone(), 1, trouble)));
        }
    }
    for (resource, count) in &usual.events {
        for nth in 1..=(*count).min(MOST) {
            faults.extend(faults_of(scenario, &Place::Line(resource.clone(), nth)));
        }
    }
    let scenario = scenario.name.to_owned();
    faults.into_iter().map(|fault| Plan { scenario: scenario.clone(), fault }).collect()
}

/// The results of all plans.
#[derive(Debug, Default)]
pub struct Sum {
    /// The numbers of plans, and of those with violations, by class of fault and kind.
    pub classes: BTreeMap<(String, String), (usize, usize)>,
    /// Plans with a fault that did not occur.
    pub missed: Vec<String>,
    /// The violations by plan.
    pub violations: Vec<(String, Vec<String>)>,
    /// The number of plans with violations that a late write excuses.
    pub excused: usize,
    /// The number of plans.
    pub plans: usize,
}

/// Runs the plans in order on this number of threads, and adds their results to `sum`.
pub fn sweep(
    scenarios: &[(&Scenario, Outcome)],
    mut plans: Vec<(usize, Plan)>,
    seed: u64,
    threads: usize,
    stop_after: usize,
    sum: Sum,
) -> Sum {
    let (all, before) = (plans.len(), sum.plans);
    let began = Instant::now();
    let queue: Mutex<VecDeque<(usize, Plan)>> = Mutex::new(plans.drain(..).collect());
    let sum = Mutex::new(sum);
    let shown = Mutex::new(Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    if lock(&sum).violations.len() >= stop_after {
                        return;
                    }
                    let Some((index, plan)) = lock(&queue).pop_front() else { return };
                    let (scenario, usual) = &scenarios[index];
                    let outcome = guarded(&scenario.story(), &plan, seed, Some(usual), Keeps::Nothing);
                    let mut sum = lock(&sum);
                    note(&mut sum, scenario, &plan, &outcome);
                    let done = sum.plans - before;
                    let wrong = sum.violations.len();
                    drop(sum);
                    progress("plans", &shown, done, all, wrong, began);
                }
            });
        }
    });
    clear();
    sum.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `job` for all items on this number of threads. Returns the number of items with violations.
pub fn side_by_side<T: Send>(
    what: &str,
    items: Vec<T>,
    threads: usize,
    job: impl Fn(&T) -> (String, Vec<String>) + Sync,
) -> usize {
    let (all, began) = (items.len(), Instant::now());
    let queue: Mutex<VecDeque<T>> = Mutex::new(items.into());
    let done: Mutex<(usize, usize)> = Mutex::default();
    let shown = Mutex::new(Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let Some(item) = lock(&queue).pop_front() else { return };
                    let (name, wrong) = job(&item);
                    let mut done = lock(&done);
                    done.0 += 1;
                    if !wrong.is_empty() {
                        done.1 += 1;
                        println!("{name}");
                        for line in &wrong {
                            println!("    {line}");
                        }
                    }
                    progress(what, &shown, done.0, all, done.1, began);
                }
            });
        }
    });
    clear();
    lock(&done).1
}

/// Runs a plan. A panic is a violation.
pub fn guarded(story: &Story<'_>, plan: &Plan, seed: u64, usual: Option<&Outcome>, keeps: Keeps) -> Outcome {
    let ran = catch_unwind(AssertUnwindSafe(|| run(story, plan, seed, usual, keeps)));
    ran.unwrap_or_else(|_| Outcome {
        violations: vec!["the run panicked".to_owned()],
        hits: plan.fault.parts().len(),
        ..Outcome::default()
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note(sum: &mut Sum, scenario: &Scenario, plan: &Plan, outcome: &Outcome) {
    sum.plans += 1;
    sum.excused += usize::from(!outcome.excused.is_empty());
    let kind = scenario.name.split('-').next().unwrap_or_default().to_owned();
    let counts = sum.classes.entry((plan.fault.class(), kind)).or_default();
    counts.0 += 1;
    if outcome.hits < plan.fault.parts().len() {
        sum.missed.push(plan.to_string());
    }
    if !outcome.violations.is_empty() {
        counts.1 += 1;
        println!("{plan}");
        for violation in &outcome.violations {
            println!("    {violation}");
        }
        sum.violations.push((plan.to_string(), outcome.violations.clone()));
    }
}

/// Removes the progress line from a terminal.
fn clear() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

fn progress(what: &str, shown: &Mutex<Instant>, done: usize, all: usize, wrong: usize, began: Instant) {
    let pause =
        if std::io::stderr().is_terminal() { Duration::from_millis(200) } else { Duration::from_secs(20) };
    let mut shown = lock(shown);
    if shown.elapsed() < pause {
        return;
    }
    *shown = Instant::now();
    let line = format!("{done} of {all} {what}, {wrong} with violations, {} s", began.elapsed().as_secs());
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
        let _ = std::io::stderr().flush();
    } else {
        eprintln!("{line}");
    }
}
