//! All plans of a story, and how they are run side by side.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IsTerminal as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::plan::{Event, Fault, Plan, Trouble, is_read};
use crate::run::{Outcome, run};
use crate::scenarios::{Scenario, Story};

/// Of requests that come again and again for as long as a process lives, so many are disturbed.
const REPEATED: usize = 4;
/// Of others, so many.
const MOST: usize = 60;

fn is_ended_by_a_failure(scenario: &Scenario) -> bool {
    [
        "daemonjob-failure",
        "daemonjob-brake",
        "daemonjob-failed-node-deselected",
        "daemonjob-failed-node-evicted",
        "daemonjob-node-deleted",
    ]
    .contains(&scenario.name)
}

/// Every plan that follows from a run without a fault.
pub fn plans(scenario: &Scenario, usual: &Outcome) -> Vec<Plan> {
    let mut faults = Vec::new();
    for (name, count) in &usual.requests {
        let most = if name.ends_with("leases") || name.ends_with("events") || name.starts_with("watch-") {
            REPEATED
        } else {
            MOST
        };
        for nth in 1..=(*count).min(most) {
            let of: &[Trouble] = if is_read(name) { &Trouble::OF_READS } else { &Trouble::OF_WRITES };
            for trouble in of {
                faults.push(Fault::Request(name.clone(), nth, *trouble));
            }
            // Where the first failure ends the run, a node that was kept waiting never had its turn.
            let waits = !is_ended_by_a_failure(scenario);
            if waits && matches!(&**name, "create-pods" | "create-configmaps") {
                faults.push(Fault::Request(name.clone(), nth, Trouble::Stranger));
            }
        }
    }
    for (resource, count) in &usual.events {
        for nth in 1..=(*count).min(MOST) {
            for event in Event::ALL {
                // Where the first failure ends the run, a node that nobody is shown never has its turn.
                let is_missed =
                    is_ended_by_a_failure(scenario) && resource == "nodes" && event == Event::Silence;
                if is_missed {
                    continue;
                }
                faults.push(Fault::Line(resource.clone(), nth, event));
            }
        }
    }
    let scenario = scenario.name.to_owned();
    faults.into_iter().map(|fault| Plan { scenario: scenario.clone(), fault }).collect()
}

/// What came of all plans.
#[derive(Debug, Default)]
pub struct Sum {
    /// Plans by kind of object and class of fault, with how many have violations.
    pub classes: BTreeMap<(String, String), (usize, usize)>,
    /// Plans whose fault never came about.
    pub missed: Vec<String>,
    /// What was wrong, by plan.
    pub violations: Vec<(String, Vec<String>)>,
    /// What was wrong for a while, by a write that came late.
    pub excused: usize,
    /// How many plans were run.
    pub plans: usize,
}

/// What is run, in which order, by how many threads.
pub fn sweep(
    scenarios: &[(&Scenario, Outcome)],
    mut plans: Vec<(usize, Plan)>,
    seed: u64,
    threads: usize,
    stop_after: usize,
) -> Sum {
    let all = plans.len();
    let began = Instant::now();
    let queue: Mutex<VecDeque<(usize, Plan)>> = Mutex::new(plans.drain(..).collect());
    let sum = Mutex::new(Sum::default());
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
                    let outcome = guarded(&scenario.story(), &plan, seed, Some(usual), false);
                    let mut sum = lock(&sum);
                    note(&mut sum, scenario, &plan, &outcome);
                    let done = sum.plans;
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

/// Does something with all of these by so many threads, and says how many went wrong. What was wrong is printed below the name.
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

/// A run; a panic in it is a violation like any other.
pub fn guarded(story: &Story<'_>, plan: &Plan, seed: u64, usual: Option<&Outcome>, trace: bool) -> Outcome {
    let ran = catch_unwind(AssertUnwindSafe(|| run(story, plan, seed, usual, trace)));
    ran.unwrap_or_else(|_| Outcome {
        violations: vec!["a panic ended the run".to_owned()],
        hit: true,
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
    let counts = sum.classes.entry((plan.class(), kind)).or_default();
    counts.0 += 1;
    if !outcome.hit {
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

/// Takes the last sign of progress off a terminal.
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
