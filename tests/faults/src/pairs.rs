//! Plans with two faults in one scenario. Of the plans that have the same second fault in an equal state, only the first is kept.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use crate::dice::Dice;
use crate::moments::{Moment, digest};
use crate::plan::{Fault, Plan, Trouble};
use crate::run::Outcome;
use crate::scenarios::Scenario;
use crate::sweep::{faults_of, guarded, is_ended_by_a_failure, plans, side_by_side};
use crate::watcher::Keeps;

/// The first fault of pairs, and whether they have a standby.
#[derive(Debug)]
struct First {
    fault: Fault,
    has_standby: bool,
}

/// The distinct pairs of a scenario.
#[derive(Debug, Default)]
pub struct Pairs {
    /// The pairs, by their first faults.
    pub plans: Vec<Plan>,
    /// The number of pairs that equal an earlier pair, or a plan with the second fault alone.
    pub equal: usize,
    /// The number of plans with only the first fault, which show where the second fault can occur.
    pub firsts: usize,
    /// The number of those plans with violations.
    pub wrong: usize,
}

/// About one of every `every` distinct pairs of a scenario. `usual` is the result without a fault. Prints the violations of
/// plans with only the first fault.
pub fn pairs(scenario: &Scenario, usual: &Outcome, every: usize, seed: u64, threads: usize) -> Pairs {
    // Two faults may delay a node by more than one.
    if is_ended_by_a_failure(scenario) {
        return Pairs::default();
    }
    // Some of the first faults, and some of the second faults of each.
    let of_firsts = every.isqrt().max(1);
    let firsts = firsts(scenario, usual, of_firsts, seed);
    let recorded: Mutex<BTreeMap<usize, Vec<Moment>>> = Mutex::default();
    let runs: Vec<(usize, &First)> = firsts.iter().enumerate().collect();
    let wrong = side_by_side("runs with the first fault", runs, threads, |(number, first)| {
        let plan = first.plan(scenario);
        let outcome = guarded(&scenario.story(), &plan, seed, Some(usual), Keeps::Moments);
        let has_occurred = outcome.hits == first.fault.parts().len();
        let moments = if has_occurred { outcome.moments } else { Vec::new() };
        recorded.lock().unwrap_or_else(PoisonError::into_inner).insert(*number, moments);
        (plan.to_string(), outcome.violations)
    });
    let recorded = recorded.into_inner().unwrap_or_else(PoisonError::into_inner);
    let pairs = combine(scenario, firsts.iter().zip(recorded.values()), every.div_ceil(of_firsts));
    Pairs { firsts: firsts.len(), wrong, ..pairs }
}

impl First {
    /// The plan that shows where the second fault can occur.
    fn plan(&self, scenario: &Scenario) -> Plan {
        // Requests are counted from 1, so this fault never occurs. Its plan has a standby.
        let never = Fault::Request(String::new(), 0, Trouble::HandOver);
        let parts = self.fault.parts().iter().cloned().chain(self.has_standby.then_some(never));
        Plan { scenario: scenario.name.to_owned(), fault: Fault::Several(parts.collect()) }
    }
}

/// No fault, and one of every `every` faults, each with and without a standby if it does not need one.
fn firsts(scenario: &Scenario, usual: &Outcome, every: usize, seed: u64) -> Vec<First> {
    let none = [false, true].map(|has_standby| First { fault: Fault::None, has_standby });
    let faults = plans(scenario, usual).into_iter().map(|plan| plan.fault).filter(Fault::can_pair);
    let both = faults.flat_map(|fault| {
        let standbys: &[bool] = if fault.needs_standby() { &[true] } else { &[false, true] };
        standbys.iter().map(move |has_standby| First { fault: fault.clone(), has_standby: *has_standby })
    });
    let is_chosen = |first: &First| Dice::of(seed, &format!("{}{first:?}", scenario.name)).below(every) == 0;
    none.into_iter().chain(both.filter(is_chosen)).collect()
}

/// Adds each possible second fault to each first fault, and keeps one of every `every` distinct pairs.
fn combine<'a>(
    scenario: &Scenario,
    recorded: impl Iterator<Item = (&'a First, &'a Vec<Moment>)>,
    every: usize,
) -> Pairs {
    let (mut pairs, mut seen) = (Pairs::default(), HashSet::new());
    for (first, moments) in recorded {
        for moment in moments {
            for second in faults_of(scenario, &moment.place).into_iter().filter(Fault::can_pair) {
                let needs_standby = first.fault.needs_standby() || second.needs_standby();
                if needs_standby != first.has_standby {
                    continue;
                }
                let kind = digest((moment.state, second.class()));
                let is_new = seen.insert(kind);
                if first.fault == Fault::None {
                    continue;
                }
                pairs.equal += usize::from(!is_new);
                if is_new && kind.is_multiple_of(every as u64) {
                    let fault = Fault::Several(vec![first.fault.clone(), second]);
                    pairs.plans.push(Plan { scenario: scenario.name.to_owned(), fault });
                }
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moments::Place;
    use crate::plan::Event;
    use crate::scenarios::ALL;

    #[test]
    fn equal_states_need_one_plan() {
        let line = |nth, state| Moment { place: Place::Line("pods".to_owned(), nth), state };
        let crash = Fault::Request("create-pods".to_owned(), 1, Trouble::CrashAfter);
        let without = First { fault: Fault::None, has_standby: false };
        let with = First { fault: crash, has_standby: false };
        let alone = vec![line(1, 1)];
        let moments = vec![line(2, 1), line(3, 2), line(4, 2), line(5, 3)];
        let pairs = combine(&ALL[0], [(&without, &alone), (&with, &moments)].into_iter(), 1);
        assert_eq!((pairs.plans.len(), pairs.equal), (2 * Event::ALL.len(), 2 * Event::ALL.len()));
        let names: Vec<String> = pairs.plans.iter().map(Plan::to_string).collect();
        assert_eq!(names[0], "podset-create/request:create-pods.1/crash-after+event:pods.3/twice");
        for (name, plan) in names.iter().zip(pairs.plans) {
            assert_eq!(name.parse(), Ok(plan));
        }
    }

    /// The order in which watches start differs between runs, so a few second faults do not occur.
    #[test]
    fn most_second_faults_occur() {
        let scenario = &ALL[0];
        let none = Plan { scenario: scenario.name.to_owned(), fault: Fault::None };
        let usual = guarded(&scenario.story(), &none, 1, None, Keeps::Nothing);
        let run = |plan: &Plan, keeps: Keeps| guarded(&scenario.story(), plan, 1, Some(&usual), keeps);
        let fault = Fault::Request("create-pods".to_owned(), 1, Trouble::CrashAfter);
        let first = First { fault, has_standby: false };
        let moments = run(&first.plan(scenario), Keeps::Moments).moments;
        let pairs = combine(scenario, [(&first, &moments)].into_iter(), 40);
        let occurred = pairs.plans.iter().filter(|plan| run(plan, Keeps::Nothing).hits == 2).count();
        assert!(
            occurred > 0 && occurred * 2 > pairs.plans.len() && pairs.equal > 0,
            "{occurred} of {pairs:?}"
        );
    }
}
