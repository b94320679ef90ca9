//! The moments of a run at which a fault can occur, each with a digest of the state.
//!
//! Equal digests are equal states: the objects, the changes that each watch has not delivered, the requests of each process
//! under way or without success, and the leader. UIDs, versions, times and names of pods do not count. Neither does the memory
//! of a process, except as far as its requests show it.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher as _};

use serde_json::Value;

use crate::plan::{Trouble, is_read};

/// The place of a fault, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The n-th request of this name.
    Request(String, usize),
    /// The n-th line of the watches of this type.
    Line(String, usize),
}

/// A moment at which a fault can occur.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The place of the fault.
    pub place: Place,
    /// A digest of the state, and of the kind of the request or line.
    pub state: u64,
}

/// The object of a request or a line. The name of a list or watch is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// The plural without its group.
    pub resource: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The numbers of the lasting effects of faults on a process, by kind.
pub type Effects = [usize; 6];

/// A digest that is the same in each run.
pub fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// A request without success.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Open {
    UnderWay,
    Faulty(Trouble),
    Rejected(u16),
}

/// A process, as the API server sees it.
#[derive(Default)]
struct Process {
    /// The number of processes that had ended before it.
    successor_of: usize,
    /// The revision up to which its watches have delivered the changes, by type.
    shown: BTreeMap<String, u64>,
    /// Its requests under way or without success, by object and name.
    open: BTreeMap<(Target, String), Open>,
}

impl Process {
    /// Ends the failures for an object of requests for which `ends` is true.
    fn end_failures(&mut self, of: &Target, ends: impl Fn(&str, Open) -> bool) {
        self.open
            .retain(|(target, name), open| *open == Open::UnderWay || target != of || !ends(name, *open));
    }
}

/// Records the moments of a run.
#[derive(Default)]
pub struct Recorder {
    /// The moments since the last fault.
    pub moments: Vec<Moment>,
    /// The number of steps of the scenario so far.
    pub step: usize,
    processes: BTreeMap<String, Process>,
    ended: usize,
    holder: String,
    /// The revisions of all changes, by type.
    changes: BTreeMap<String, Vec<u64>>,
    /// A digest of the objects, until one changes.
    objects: Option<u64>,
}

/// Whether changes of this type concern no plan.
fn is_ignored(resource: &str) -> bool {
    matches!(resource, "leases" | "events")
}

impl Recorder {
    /// Records a moment: a request of `who`, or a line that it is shown. `objects` describes the objects, and `effects` the
    /// lasting effects of faults on a process.
    pub fn moment(
        &mut self,
        who: &str,
        place: Place,
        kind: &str,
        objects: impl FnOnce() -> Vec<String>,
        effects: impl Fn(&str) -> Effects,
    ) {
        let objects = *self.objects.get_or_insert_with(|| digest(objects()));
        let of =
            |(name, process): (&String, &Process)| (name == who, self.state(name, process, effects(name)));
        let mut processes: Vec<(bool, u64)> = self.processes.iter().map(of).collect();
        processes.sort_unstable();
        let state = digest((kind, objects, self.step, processes));
        self.moments.push(Moment { place, state });
    }

    fn state(&self, name: &str, process: &Process, effects: Effects) -> u64 {
        let missing = |resource: &str, shown: u64| {
            let changes = self.changes.get(resource).map_or(&[][..], Vec::as_slice);
            changes.len() - changes.partition_point(|revision| *revision <= shown)
        };
        let shown = process.shown.iter();
        let missing: Vec<(&String, usize)> = shown.map(|(of, shown)| (of, missing(of, *shown))).collect();
        // A leader always renews the Lease.
        let counts = |name: &str, open: Open| open != Open::UnderWay || !name.ends_with("leases");
        let open = process.open.iter().map(|((_, name), open)| (name, *open));
        let mut open: Vec<(&String, Open)> = open.filter(|(name, open)| counts(name, *open)).collect();
        open.sort_unstable();
        digest((self.holder == name, process.successor_of, missing, open, effects))
    }

    /// A process sends a request, perhaps with a fault.
    pub fn asked(&mut self, who: &str, name: &str, target: Target, fault: Option<Trouble>) {
        if name.ends_with("-events") {
            return;
        }
        let successor_of = self.ended;
        let process = self.processes.entry(who.to_owned());
        let process = process.or_insert_with(|| Process { successor_of, ..Process::default() });
        process.open.insert((target, name.to_owned()), fault.map_or(Open::UnderWay, Open::Faulty));
    }

    /// The server answers a request. A success ends the failures of this request. A read of an object also shows the outcome of
    /// writes, and no dry run follows a created pod.
    pub fn answered(&mut self, who: &str, name: &str, target: &Target, code: u16) {
        let Some(process) = self.processes.get_mut(who) else { return };
        let request = (target.clone(), name.to_owned());
        // The client does not get the answer of a request with a fault.
        if process.open.get(&request) != Some(&Open::UnderWay) {
            return;
        }
        process.open.remove(&request);
        let is_done = (200..300).contains(&code);
        if name.starts_with("get-") && (is_done || code == 404) {
            process.end_failures(target, |_, open| matches!(open, Open::Faulty(_)));
        } else if name == "create-pods" && is_done {
            process.open.retain(|(_, of), open| of != "try-pods" || *open == Open::UnderWay);
        } else if !is_done && !is_read(name) {
            process.open.insert(request, Open::Rejected(code));
        }
    }

    /// A watch delivers a line. It shows that an object was created or deleted.
    pub fn shown(&mut self, who: &str, type_: &str, target: &Target, revision: u64) {
        if let Some(process) = self.processes.get_mut(who).filter(|_| !is_ignored(&target.resource)) {
            let shown = process.shown.entry(target.resource.clone()).or_default();
            *shown = revision.max(*shown);
            match type_ {
                "BOOKMARK" => {}
                "DELETED" => process.end_failures(target, |_, _| true),
                _ => process.end_failures(target, |name, _| name.starts_with("create-")),
            }
        }
    }

    /// An object changes.
    pub fn committed(&mut self, resource: &str, revision: u64, object: &Value) {
        if resource == "leases" {
            object["spec"]["holderIdentity"].as_str().unwrap_or_default().clone_into(&mut self.holder);
        }
        if !is_ignored(resource) {
            self.changes.entry(resource.to_owned()).or_default().push(revision);
            self.objects = None;
        }
    }

    /// A process has ended.
    pub fn ended(&mut self, who: &str) {
        self.ended += usize::from(self.processes.remove(who).is_some());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str) -> Target {
        Target { resource: "pods".to_owned(), namespace: "default".to_owned(), name: name.to_owned() }
    }

    /// Sends a request and answers it.
    fn again(recorder: &mut Recorder, name: &str, of: &str, code: u16) {
        recorder.asked("a", name, pod(of), None);
        recorder.answered("a", name, &pod(of), code);
    }

    /// The state of a run with two processes and a change of a pod, after `change`.
    fn state(created: &str, change: impl FnOnce(&mut Recorder)) -> u64 {
        let mut recorder = Recorder::default();
        recorder.committed("leases", 1, &json!({ "spec": { "holderIdentity": "a" } }));
        for who in ["a", "b"] {
            recorder.asked(who, "watch-pods", pod(""), None);
            recorder.shown(who, "ADDED", &pod("old"), 2);
        }
        recorder.asked("a", "create-pods", pod(created), None);
        recorder.committed("pods", 3, &Value::Null);
        change(&mut recorder);
        recorder.moment("a", Place::Line("pods".to_owned(), 1), "pods ADDED", Vec::new, |_| [0; 6]);
        recorder.moments[0].state
    }

    #[test]
    fn digests_tell_states_apart() {
        let usual = state("p", |_| ());
        assert_eq!(state("q", |_| ()), usual, "the name of a pod");
        let lease = json!({ "spec": { "holderIdentity": "a" } });
        assert_eq!(state("p", |recorder| recorder.committed("leases", 4, &lease)), usual, "a renewal");
        let others: [fn(&mut Recorder); 7] = [
            |recorder| recorder.shown("a", "ADDED", &pod("old"), 3),
            |recorder| recorder.shown("b", "ADDED", &pod("old"), 3),
            |recorder| recorder.answered("a", "create-pods", &pod("p"), 201),
            |recorder| recorder.answered("a", "create-pods", &pod("p"), 409),
            |recorder| recorder.asked("a", "create-pods", pod("p"), Some(Trouble::Error)),
            |recorder| recorder.ended("b"),
            |recorder| recorder.step = 1,
        ];
        let states: std::collections::BTreeSet<u64> =
            others.map(|change| state("p", change)).into_iter().chain([usual]).collect();
        assert_eq!(states.len(), 8);
    }

    #[test]
    fn a_failure_lasts_until_its_object_shows_the_outcome() {
        let done = state("p", |recorder| recorder.answered("a", "create-pods", &pod("p"), 201));
        let after_failure = |change: fn(&mut Recorder)| {
            state("p", |recorder| {
                recorder.asked("a", "create-pods", pod("p"), Some(Trouble::ResetAfter));
                change(recorder);
            })
        };
        assert_eq!(after_failure(|recorder| again(recorder, "create-pods", "p", 201)), done);
        assert_eq!(after_failure(|recorder| again(recorder, "get-pods", "p", 404)), done);
        assert_eq!(after_failure(|recorder| recorder.shown("a", "ADDED", &pod("p"), 2)), done);
        assert_eq!(after_failure(|recorder| recorder.shown("a", "DELETED", &pod("p"), 2)), done);
        assert_ne!(after_failure(|recorder| again(recorder, "create-pods", "q", 201)), done);
        assert_ne!(after_failure(|recorder| again(recorder, "get-pods", "q", 200)), done);
        assert_ne!(after_failure(|recorder| recorder.shown("a", "ADDED", &pod("q"), 2)), done);
    }
}
