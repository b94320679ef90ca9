//! Objects that fail, wait, or are paused or held, and the selection of those that a metric names.
//!
//! Thousands of objects may have a problem at once. So the metric lists at most [`LISTED`] problems, and counts the
//! others.

use std::collections::{BinaryHeap, HashMap};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::model::conditions::{READY, find_true};
use crate::model::object::{Key, Object};

/// The most problems that the metric lists.
pub const LISTED: usize = 100;

/// The state of an object with a problem, the most urgent state first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum ProblemState {
    /// Something failed.
    Failing,
    /// It waits for something that may come by itself, or for an approval.
    Waiting,
    /// A user has paused it with an annotation, until the end of an incident.
    Paused,
    /// Its spec suspends or pauses it. No alert reports that, so these objects must hide no other.
    Held,
}

impl ProblemState {
    /// All states, in their order.
    pub const ALL: [Self; 4] = [Self::Failing, Self::Waiting, Self::Paused, Self::Held];

    /// The value of the label `state`.
    pub fn word(self) -> &'static str {
        self.into()
    }
}

/// A problem of an object. Problems sort by their state, then the longest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The state.
    pub state: ProblemState,
    /// Since when, as far as the status or this process knows.
    pub since: Timestamp,
    /// The reason, CamelCase and one of few.
    pub reason: &'static str,
}

impl Problem {
    /// An object that fails.
    pub fn failing(reason: &'static str, since: Timestamp) -> Self {
        Self { state: ProblemState::Failing, since, reason }
    }

    /// An object that waits.
    pub fn waiting(reason: &'static str, since: Timestamp) -> Self {
        Self { state: ProblemState::Waiting, since, reason }
    }

    /// An object that a user has paused with an annotation.
    pub fn paused(reason: &'static str, since: Timestamp) -> Self {
        Self { state: ProblemState::Paused, since, reason }
    }

    /// An object whose spec suspends or pauses it.
    pub fn held(reason: &'static str, since: Timestamp) -> Self {
        Self { state: ProblemState::Held, since, reason }
    }

    /// How long the problem has lasted, in seconds; 0 if a clock was set back.
    pub fn seconds(&self, now: Timestamp) -> f64 {
        now.duration_since(self.since).max(SignedDuration::ZERO).as_secs_f64()
    }
}

/// A problem if fewer pods are ready than desired, and the condition Ready is False. Without this condition, no manager
/// has seen the desired number.
pub fn missing_pods(ready: Option<i32>, desired: i32, conditions: &[Condition]) -> Option<Problem> {
    let is_not_ready = |one: &&Condition| one.type_ == READY && one.status == "False";
    let not_ready = conditions.iter().find(is_not_ready)?;
    let is_missing = ready.unwrap_or_default() < desired;
    is_missing.then(|| Problem::failing("PodsMissing", not_ready.last_transition_time.0))
}

/// Adds the condition Stalled, unless the object already has a problem that explains why it fails.
pub fn or_stalled(mut problems: Vec<Problem>, conditions: &[Condition]) -> Vec<Problem> {
    let has_failed = problems.iter().any(|problem| problem.state == ProblemState::Failing);
    if let Some(stalled) = find_true(conditions, "Stalled").filter(|_| !has_failed) {
        problems.push(Problem::failing("Stalled", stalled.last_transition_time.0));
    }
    problems
}

/// Finds the problems of an object in JSON at a time.
pub type FindProblems = fn(&str, Timestamp) -> Vec<Problem>;

/// The problems of an object in JSON. An object that is being deleted, or that cannot be decoded, has none.
pub fn problems_in<T: Object>(
    json: &str,
    now: Timestamp,
    problems: fn(&T, Timestamp) -> Vec<Problem>,
) -> Vec<Problem> {
    match serde_json::from_str::<T>(json) {
        Ok(object) if !object.terminating() => problems(&object, now),
        _ => Vec::new(),
    }
}

/// A problem with its object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectProblem {
    /// The problem.
    pub problem: Problem,
    /// The kind of the object.
    pub kind: &'static str,
    /// The object.
    pub key: Key,
}

/// The kind, the object and the reason of a problem.
type Id = (&'static str, Key, &'static str);

/// When this process last searched for each problem and did not find it. The time in a status may be older than the
/// problem, for example the start of the run in which a node has failed. Such a time also hides that the problem was
/// over for a while.
#[derive(Debug, Default)]
pub struct Onsets {
    /// When the last search began. None if the search may have missed problems.
    last: Option<Timestamp>,
    /// For each problem that the last search found, when the last search without it began.
    known: HashMap<Id, Option<Timestamp>>,
    /// The same for the problems that the current search has found.
    found: HashMap<Id, Option<Timestamp>>,
}

impl Onsets {
    /// Corrects since when a found problem has lasted: not since before the last search that did not find it.
    pub fn correct(&mut self, mut found: ObjectProblem) -> ObjectProblem {
        let id = (found.kind, found.key.clone(), found.problem.reason);
        let absent = self.known.get(&id).copied().unwrap_or(self.last);
        let since = found.problem.since;
        found.problem.since = absent.map_or(since, |absent| since.max(absent));
        self.found.insert(id, absent);
        found
    }

    /// Ends a search. `began` is None if the search may have missed problems.
    pub fn end(&mut self, began: Option<Timestamp>) {
        self.known = std::mem::take(&mut self.found);
        self.last = began;
    }
}

/// Selects the problems to list from any number of problems, in bounded memory.
#[derive(Debug, Default)]
pub struct Selector {
    /// The least urgent problem is the greatest.
    listed: BinaryHeap<ObjectProblem>,
    /// See [`Selection::unlisted`].
    unlisted: [usize; ProblemState::ALL.len()],
}

/// The selected problems.
#[derive(Debug, PartialEq, Eq)]
pub struct Selection {
    /// The listed problems, in their order.
    pub listed: Vec<ObjectProblem>,
    /// The number of the other problems, in the order of [`ProblemState::ALL`].
    pub unlisted: [usize; ProblemState::ALL.len()],
}

impl Selector {
    /// Adds a problem.
    pub fn add(&mut self, problem: ObjectProblem) {
        self.listed.push(problem);
        if self.listed.len() > LISTED
            && let Some(last) = self.listed.pop()
        {
            self.unlisted[last.problem.state as usize] += 1;
        }
    }

    /// Returns the selection.
    pub fn select(self) -> Selection {
        Selection { listed: self.listed.into_sorted_vec(), unlisted: self.unlisted }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn of(name: &str, problem: Problem) -> ObjectProblem {
        let key = Key { namespace: "n".into(), name: name.into(), uid: name.into() };
        ObjectProblem { problem, kind: "PodSet", key }
    }

    fn select(problems: impl IntoIterator<Item = ObjectProblem>) -> Selection {
        let mut selector = Selector::default();
        problems.into_iter().for_each(|problem| selector.add(problem));
        selector.select()
    }

    fn names(selection: &Selection) -> Vec<&str> {
        selection.listed.iter().map(|one| &*one.key.name).collect()
    }

    #[test]
    fn lists_failing_objects_first_and_the_longest_first() {
        let selection = select([
            of("held", Problem::held("Suspended", at(1))),
            of("paused", Problem::paused("PausedByAnnotation", at(7))),
            of("waits", Problem::waiting("NodesPending", at(2))),
            of("fails", Problem::failing("Stalled", at(9))),
            of("fails longer", Problem::failing("PodsMissing", at(5))),
        ]);
        assert_eq!(names(&selection), ["fails longer", "fails", "waits", "paused", "held"]);
        assert_eq!(selection.unlisted, [0; 4]);
    }

    #[test]
    fn counts_the_problems_that_it_does_not_list() {
        let fails = |number: usize| {
            let since = at(i64::try_from(number).unwrap());
            of(&number.to_string(), Problem::failing("Stalled", since))
        };
        let held = (0..7).map(|number| of(&format!("held {number}"), Problem::held("Suspended", at(0))));
        // The most recent ones come first, so that all of them are in the list for a while.
        let selection = select(held.chain((0..LISTED + 3).rev().map(fails)));
        let expected: Vec<String> = (0..LISTED).map(|number| number.to_string()).collect();
        assert_eq!(names(&selection), expected);
        assert_eq!(selection.unlisted, [3, 0, 0, 7]);
    }

    /// Objects may be suspended for years.
    #[test]
    fn objects_that_their_spec_holds_hide_no_other() {
        let held = (0..LISTED).map(|number| of(&format!("held {number}"), Problem::held("Suspended", at(0))));
        let others = [
            of("paused", Problem::paused("PausedByAnnotation", at(9))),
            of("waits", Problem::waiting("NodesPending", at(9))),
            of("fails", Problem::failing("MaxFailedNodesExceeded", at(9))),
        ];
        let selection = select(held.chain(others));
        assert_eq!(names(&selection)[..3], ["fails", "waits", "paused"]);
        assert_eq!(selection.unlisted, [0, 0, 0, 3]);
    }

    /// An object that has a problem for longer stays in the list, however many others come and go.
    #[test]
    fn later_problems_displace_no_earlier_one() {
        let mut selector = Selector::default();
        selector.add(of("first", Problem::failing("Stalled", at(0))));
        for number in 1..10_000 {
            selector.add(of(&number.to_string(), Problem::failing("Stalled", at(number))));
            assert!(selector.listed.len() <= LISTED, "the memory is bounded");
        }
        assert_eq!(names(&selector.select())[0], "first");
    }

    proptest! {
        /// The order in which problems are found changes nothing, and no listed problem is less urgent than another.
        #[test]
        fn the_order_of_discovery_does_not_matter(
            found in proptest::collection::vec((0..ProblemState::ALL.len(), 0..50_i64, 0..300_u32), 0..300),
        ) {
            let problem = |(state, since, name): (usize, i64, u32)| {
                let problem = Problem { state: ProblemState::ALL[state], since: at(since), reason: "Stalled" };
                of(&name.to_string(), problem)
            };
            let mut all: Vec<_> = found.into_iter().map(problem).collect();
            let selection = select(all.clone());
            all.reverse();
            prop_assert_eq!(&selection, &select(all.clone()));
            all.sort();
            let listed = all.len().min(LISTED);
            prop_assert_eq!(&selection.listed, &all[..listed]);
            prop_assert_eq!(selection.unlisted.iter().sum::<usize>(), all.len() - listed);
        }
    }

    #[test]
    fn a_problem_that_comes_back_begins_again() {
        let mut onsets = Onsets::default();
        let mut search = |began: Option<i64>, reason: Option<(&'static str, i64)>| {
            let found = reason.map(|(reason, since)| of("a", Problem::failing(reason, at(since))));
            let since = found.map(|found| onsets.correct(found).problem.since.as_second());
            onsets.end(began.map(at));
            since
        };
        let fails = |since| Some(("NodesFailed", since));
        assert_eq!(search(None, None), None);
        assert_eq!(search(Some(100), fails(10)), Some(10), "before this process");
        assert_eq!(search(Some(160), fails(10)), Some(10));
        assert_eq!(search(Some(220), None), None);
        assert_eq!(search(Some(280), fails(10)), Some(220), "the status has an older time");
        assert_eq!(search(Some(340), fails(10)), Some(220));
        assert_eq!(search(Some(400), fails(350)), Some(350), "the status has the time");
        assert_eq!(
            search(Some(460), Some(("WaveFailed", 10))),
            Some(400),
            "another reason is another problem"
        );
        assert_eq!(search(None, None), None);
        assert_eq!(search(Some(580), fails(10)), Some(10), "the last search may have missed it");
    }

    fn condition(type_: &str, status: &str) -> Condition {
        serde_json::from_value(serde_json::json!({"type": type_, "status": status, "reason": "Because",
            "message": "", "lastTransitionTime": "1970-01-01T00:00:07Z"}))
        .unwrap()
    }

    #[test]
    fn stalled_is_added_only_if_nothing_else_fails() {
        let (waits, fails) = (Problem::waiting("Wait", at(1)), Problem::failing("Fail", at(2)));
        let stalled = Problem::failing("Stalled", at(7));
        let conditions = [condition("Stalled", "True")];
        assert_eq!(or_stalled(Vec::new(), &conditions), [stalled]);
        assert_eq!(or_stalled(vec![waits], &conditions), [waits, stalled]);
        assert_eq!(or_stalled(vec![waits, fails], &conditions), [waits, fails]);
        assert_eq!(or_stalled(vec![waits], &[]), [waits]);
        assert_eq!(or_stalled(Vec::new(), &[condition("Stalled", "False")]), []);
    }

    #[test]
    fn pods_are_missing_only_if_a_manager_has_seen_it() {
        let not_ready = [condition("Ready", "False")];
        let missing = Some(Problem::failing("PodsMissing", at(7)));
        assert_eq!(missing_pods(Some(1), 2, &not_ready), missing);
        assert_eq!(missing_pods(None, 2, &not_ready), missing);
        assert_eq!(missing_pods(Some(3), 2, &not_ready), None, "a surge hides no other object");
        assert_eq!(missing_pods(Some(0), 0, &not_ready), None);
        assert_eq!(missing_pods(Some(1), 2, &[condition("Ready", "True")]), None, "scaled a moment ago");
        assert_eq!(missing_pods(None, 2, &[]), None);
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_negative_duration() {
        let problem = Problem::failing("Stalled", at(100));
        assert!((problem.seconds(at(160)) - 60.0).abs() < f64::EPSILON);
        assert!(problem.seconds(at(40)).abs() < f64::EPSILON);
    }
}
