//! The pods of consumers, by the PulsarConsumer that their label names: their owner is a ReplicaSet.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::cache::informer::{Change, Informer};
use quintet_runtime::control::waker::Waker;
use quintet_runtime::model::clock::is_recent;
use quintet_runtime::model::core_types::{Phase, Pod};
use quintet_runtime::model::object::{Key, Object as _};

use crate::api::PulsarConsumer;
use crate::deployment::{NAME_LABEL, UID_LABEL};
use crate::kept::in_future;
use crate::observe::Inquiry;

/// How long a pod may take to become ready before its kubelet's Events are asked for the reason.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);

/// The shortest time between two looks.
const BREATH: SignedDuration = SignedDuration::from_secs(5);
/// How long an answer stands.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(60);

type ByConsumer = HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<Pod>>>;

/// The pods that are not ready: what there is to say of a consumer is said of them.
#[derive(Default)]
pub struct Unready {
    pods: Mutex<ByConsumer>,
}

impl Unready {
    /// Follows the pods of the process and wakes the PulsarConsumer of each that comes or goes.
    pub fn follow(self: Arc<Self>, pods: &Informer<Pod>, consumers: &Informer<PulsarConsumer>, waker: Waker) {
        let consumers = consumers.clone();
        pods.subscribe(move |change| {
            let (pod, now) = match change {
                Change::Applied { new, .. } => (new, is_unready(new).then(|| Arc::clone(new))),
                Change::Deleted { old } => (old, None),
                Change::Undecodable { .. } | Change::Vanished { .. } => return,
            };
            if let Change::Applied { old: Some(old), .. } = change
                && let Some(before) = old.label(UID_LABEL)
                && pod.label(UID_LABEL) != Some(before)
            {
                // It is nobody's any more.
                self.set(before, &old.meta.name, None);
            }
            let Some(uid) = pod.label(UID_LABEL) else { return };
            if self.set(uid, &pod.meta.name, now)
                && let Some(consumer) = consumer_of(pod, &consumers)
            {
                waker.wake(consumer);
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, ByConsumer> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a pod; true where that is news.
    fn set(&self, uid: &str, name: &Arc<str>, pod: Option<Arc<Pod>>) -> bool {
        let mut all = self.lock();
        if let Some(pod) = pod {
            let before = all.entry(uid.into()).or_default().insert(name.clone(), pod.clone());
            return before.is_none_or(|before| !before.same(&pod));
        }
        let Some(pods) = all.get_mut(uid) else { return false };
        let was = pods.remove(name).is_some();
        if pods.is_empty() {
            all.remove(uid);
        }
        was
    }

    /// Those of a PulsarConsumer, by name.
    pub fn of(&self, consumer: &Key) -> Vec<Arc<Pod>> {
        let all = self.lock();
        let pods = all.get(&consumer.uid).into_iter().flat_map(BTreeMap::values);
        pods.filter(|pod| pod.meta.namespace == consumer.namespace).cloned().collect()
    }
}

/// The PulsarConsumer that a pod's labels name.
fn consumer_of(pod: &Pod, consumers: &Informer<PulsarConsumer>) -> Option<Key> {
    let name = pod.label(NAME_LABEL)?.strip_suffix("-pulsarcrd")?;
    let consumer = consumers.find(&pod.meta.namespace, name)?.key();
    (Some(&*consumer.uid) == pod.label(UID_LABEL)).then_some(consumer)
}

fn is_unready(pod: &Pod) -> bool {
    pod.is_counted() && pod.ready_since.is_none()
}

/// When a pod is asked about, because it is not ready and does not say why itself; None where it says why, or where its
/// turn has not come yet.
fn asked_at(pod: &Pod) -> Option<Timestamp> {
    let is_bound = pod.node.is_some();
    let says_nothing = pod.held_up().is_none() && (pod.waiting.is_some() || pod.phase == Phase::Running);
    // A kubelet that has not reported yet says nothing either.
    let is_new = pod.waiting.is_none() && pod.phase == Phase::Pending;
    (is_bound && (says_nothing || is_new))
        .then(|| in_future(pod.started.or(pod.meta.created).unwrap_or_default(), PATIENCE))
}

impl Inquiry {
    /// Whether it was made lately.
    fn is_fresh(&self, now: Timestamp) -> bool {
        is_recent(self.at, ASK_AGAIN, now)
    }
}

/// The pod that is to be asked about: the first one that says nothing for too long, unless it was asked about lately.
pub fn whom_to_ask<'a>(
    unready: &'a [Arc<Pod>],
    last: Option<&Inquiry>,
    now: Timestamp,
) -> Option<&'a Arc<Pod>> {
    let silent = unready.iter().find(|pod| asked_at(pod).is_some_and(|at| at <= now))?;
    let is_fresh = last.is_some_and(|last| last.uid == silent.meta.uid && last.is_fresh(now));
    (!is_fresh).then_some(silent)
}

/// When to look again, because a pod's turn to be asked about comes, or an answer is no longer fresh.
pub fn ask_next(unready: &[Arc<Pod>], last: Option<&Inquiry>, now: Timestamp) -> Option<Timestamp> {
    let turns = || unready.iter().filter_map(|pod| asked_at(pod));
    let silent = turns().any(|at| at <= now);
    // One that is silent was asked about before this plan was made: see `whom_to_ask`.
    let breath = in_future(now, BREATH);
    let last = last.filter(|last| last.is_fresh(now));
    let again = silent.then(|| last.map_or(breath, |last| in_future(last.at, ASK_AGAIN).max(breath)));
    again.into_iter().chain(turns().filter(|at| *at > now)).min()
}

/// What a kubelet says of a pod that is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// A volume cannot be mounted.
    Mount {
        /// The volume's name.
        volume: String,
        /// The kubelet's words.
        message: String,
    },
    /// The readiness probe is answered with this status code.
    Unready {
        /// The code.
        code: u16,
    },
}

impl Complaint {
    /// Whether it is about a container that has not started.
    pub fn is_of_a_start(&self) -> bool {
        matches!(self, Self::Mount { .. })
    }
}

/// Reads one Event of a kubelet about a pod.
pub fn complaint(reason: &str, message: &str) -> Option<Complaint> {
    match reason {
        "FailedMount" => {
            let (_, rest) = message.split_once("volume \"")?;
            let (volume, rest) = rest.split_once('"')?;
            let message = rest.trim_start_matches([' ', ':']).to_owned();
            Some(Complaint::Mount { volume: volume.to_owned(), message })
        }
        "Unhealthy" => {
            let (_, code) = message.strip_prefix("Readiness probe failed:")?.split_once("statuscode: ")?;
            let digits = code.find(|c: char| !c.is_ascii_digit()).unwrap_or(code.len());
            Some(Complaint::Unready { code: code[..digits].parse().ok()? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case("FailedMount", "MountVolume.SetUp failed for volume \"pulsar-token\" : secret \"x\" not found",
        Some(Complaint::Mount { volume: "pulsar-token".into(), message: "secret \"x\" not found".into() }))]
    #[case("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 502",
        Some(Complaint::Unready { code: 502 }))]
    #[case("Unhealthy", "Liveness probe failed: HTTP probe failed with statuscode: 502", None)]
    #[case(
        "Unhealthy",
        "Readiness probe failed: Get \"http://10.0.0.1:8080/readyz\": connection refused",
        None
    )]
    #[case("BackOff", "Back-off restarting failed container", None)]
    fn kubelets_are_understood(
        #[case] reason: &str,
        #[case] message: &str,
        #[case] expected: Option<Complaint>,
    ) {
        assert_eq!(complaint(reason, message), expected);
    }

    #[rstest]
    #[case(json!({ "phase": "Running" }), true)]
    #[case(json!({ "phase": "Pending" }), true)]
    #[case(json!({ "phase": "Pending", "containerStatuses": [{ "name": "c", "state": { "waiting": { "reason": "ContainerCreating" } } }] }), true)]
    #[case(json!({ "phase": "Pending", "containerStatuses": [{ "name": "c", "state": { "waiting": { "reason": "ErrImagePull" } } }] }), false)]
    fn who_says_nothing_is_asked_about(#[case] status: serde_json::Value, #[case] asked: bool) {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "p", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "nodeName": "n" },
            "status": status,
        }))
        .unwrap();
        let at = asked.then(|| "2026-01-01T00:00:30Z".parse::<Timestamp>().unwrap());
        assert_eq!(asked_at(&pod), at);
    }

    #[test]
    fn an_answer_is_fresh_for_a_while_and_not_before_it_was_given() {
        let at: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let inquiry = Inquiry { uid: "u".into(), at, complaint: None };
        let hours = SignedDuration::from_hours;
        assert!(inquiry.is_fresh(at) && inquiry.is_fresh(at + ASK_AGAIN / 2));
        assert!(
            !inquiry.is_fresh(at + ASK_AGAIN) && !inquiry.is_fresh(at - hours(24)),
            "the clock was set back"
        );
    }
}
