//! The sweeper: removes the finalizer from pods whose outcome will not be recorded. Otherwise the finalizer
//! would block the pod's deletion, and with it a drain, a namespace or an uninstall.
//!
//! The sweeper always runs, even if the kind is disabled. It leaves the pods of an existing, served DaemonJob
//! to the plan, which removes the finalizer after the ledger has the outcome.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::cache::informer::{Change, Informer};
use quintet_runtime::cache::state::Health;
use quintet_runtime::control::context::Context;
use quintet_runtime::control::controller::Controller;
use quintet_runtime::control::reconciler::Reconciler;
use quintet_runtime::lock;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::object::{Key, Object as _, Owner};
use quintet_runtime::model::plan::Plan;
use quintet_runtime::model::refusals::Refusals;
use quintet_runtime::model::resource::Resource;
use quintet_runtime::write::executor::{Error, Executor};

use crate::FINALIZER;
use crate::api::DaemonJob;
use crate::labels::daemonjob_of;
use crate::release::release;

/// The sweeper's name, in metrics and logs.
pub const NAME: &str = "daemonjob-sweeper";

/// How often the sweeper requeues a terminating pod whose DaemonJob is served.
const RECHECK: SignedDuration = SignedDuration::from_mins(1);
/// The delay before a requeue while the cache of DaemonJobs is not synced.
const SOON: SignedDuration = SignedDuration::from_secs(1);
/// The number of UIDs of deleted owners to keep. One GET then serves all pods of an owner.
const KEPT_UIDS: usize = 256;

/// Whether a plan will record a pod's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// No: the pod belongs to no DaemonJob, or to one that is deleted or terminating.
    Unowned,
    /// Yes: its DaemonJob exists and this process serves it.
    Served,
    /// No: its DaemonJob may exist, but the kind is disabled.
    SwitchedOff,
    /// Not known yet.
    Unknown,
}

/// The plan for one pod.
pub fn plan(pod: &Pod, owner_state: OwnerState, now: Timestamp) -> Plan<()> {
    let (is_off, again) = match owner_state {
        OwnerState::Unowned => (true, None),
        // The DaemonJob may disappear without a watch event, together with its definition.
        OwnerState::Served => (false, Some(RECHECK)),
        OwnerState::SwitchedOff => (pod.terminating(), None),
        OwnerState::Unknown => (false, Some(SOON)),
    };
    Plan {
        steps: release(&pod.meta).filter(|_| is_off).map(|release| vec![release]).into_iter().collect(),
        again: again.map(|again| now.checked_add(again).unwrap_or(now)),
        ..Plan::default()
    }
}

struct Sweeper {
    /// The DaemonJobs that this process serves, or None if the kind is disabled.
    served: Option<Informer<DaemonJob>>,
    executor: Arc<Executor>,
    gone: Mutex<VecDeque<Arc<str>>>,
}

impl Reconciler for Sweeper {
    type Object = Pod;
    type Status = ();
    type World = OwnerState;
    type Effect = std::convert::Infallible;

    async fn observe(&self, pod: &Pod, _refusals: Refusals) -> Result<OwnerState, Error> {
        let Some(owner) = daemonjob_of(pod) else { return Ok(OwnerState::Unowned) };
        let Some(served) = &self.served else { return Ok(OwnerState::SwitchedOff) };
        let key =
            Key { namespace: pod.meta.namespace.clone(), name: owner.name.clone(), uid: owner.uid.clone() };
        let health = served.health();
        let is_current = self.executor.is_current(&key.namespace, &served.tracked());
        match (served.get(&key), health) {
            (_, Health::Unsynced) => return Ok(OwnerState::Unknown),
            (Some(job), _) if is_current && job.terminating() => return Ok(OwnerState::Unowned),
            (Some(_), Health::Synced { .. }) if is_current => return Ok(OwnerState::Served),
            _ => {}
        }
        Ok(if self.is_gone(pod, owner).await? { OwnerState::Unowned } else { OwnerState::Served })
    }

    fn plan(&self, pod: &Pod, owner_state: &OwnerState, now: Timestamp) -> Plan<()> {
        plan(pod, *owner_state, now)
    }

    fn concerns(&self, pod: &Pod) -> bool {
        pod.meta.has_finalizer(FINALIZER) && (pod.terminating() || daemonjob_of(pod).is_none())
    }

    fn is_quiet(&self) -> bool {
        true
    }

    fn restored(&self) {
        lock(&self.gone).clear();
    }
}

impl Sweeper {
    /// Whether the owner or its definition is deleted or terminating, or another object has its name.
    async fn is_gone(&self, pod: &Pod, owner: &Owner) -> Result<bool, Error> {
        if lock(&self.gone).contains(&owner.uid) {
            return Ok(true);
        }
        let kind = Resource::of::<DaemonJob>();
        let is_gone = match self.executor.reads.read_meta(&kind, &pod.meta.namespace, &owner.name).await {
            Ok(found) => found.is_none_or(|meta| meta.uid != owner.uid || meta.deleted.is_some()),
            Err(kube::Error::Api(status))
                if status.code == 404 && !self.executor.reads.is_served(&kind).await? =>
            {
                true
            }
            Err(error) => return Err(error.into()),
        };
        if is_gone {
            let mut gone = lock(&self.gone);
            if gone.len() >= KEPT_UIDS {
                gone.pop_front();
            }
            gone.push_back(owner.uid.clone());
        }
        Ok(is_gone)
    }
}

/// Adds the sweeper to the process. `served` are the served DaemonJobs, None if the kind is disabled.
pub fn register(context: &Context, served: Option<Informer<DaemonJob>>) {
    let sweeper =
        Sweeper { served: served.clone(), executor: context.executor.clone(), gone: Mutex::default() };
    let pods = context.pods();
    let controller = Controller::new(context, NAME, sweeper, pods.clone(), []);
    if let Some(served) = served {
        let waker = controller.waker();
        served.subscribe(move |change| {
            let going = match change {
                Change::Applied { new, .. } if new.terminating() => new,
                Change::Deleted { old } => old,
                _ => return,
            };
            for pod in pods.owned_by(&going.key()).iter().filter(|pod| pod.terminating()) {
                waker.enqueue_low_priority(pod.key());
            }
        });
    }
    context.spawn_controller(NAME, controller.run());
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_runtime::model::plan::Action;
    use rstest::rstest;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000 + second).unwrap()
    }

    fn pod(asked: Option<i64>, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "finalizers": ["other/one", FINALIZER],
                "deletionTimestamp": asked.map(|second| at(second + 30).to_string()),
                "deletionGracePeriodSeconds": asked.map(|_| 30)},
            "spec": {"nodeName": "n"},
            "status": {"phase": phase}
        }))
        .unwrap()
    }

    fn is_released(pod: &Pod, owner_state: OwnerState, now: i64) -> bool {
        !plan(pod, owner_state, at(now)).steps.is_empty()
    }

    #[rstest]
    #[case::unowned(pod(None, "Running"), OwnerState::Unowned, true)]
    #[case::unowned_and_terminating(pod(Some(0), "Running"), OwnerState::Unowned, true)]
    #[case::served(pod(Some(0), "Succeeded"), OwnerState::Served, false)]
    #[case::disabled(pod(None, "Succeeded"), OwnerState::SwitchedOff, false)]
    #[case::disabled_and_terminating(pod(Some(0), "Running"), OwnerState::SwitchedOff, true)]
    fn releases_pods_without_a_plan(
        #[case] pod: Pod,
        #[case] owner_state: OwnerState,
        #[case] released: bool,
    ) {
        assert_eq!(is_released(&pod, owner_state, 100), released);
    }

    #[test]
    fn removes_the_finalizer_at_its_index() {
        let plan = plan(&pod(Some(0), "Failed"), OwnerState::Unowned, at(100));
        let Action::JsonPatch { operations, .. } = &plan.steps[0][0] else { panic!() };
        assert_eq!(operations[0], json!({"op": "test", "path": "/metadata/uid", "value": "u"}));
        assert_eq!(operations[2], json!({"op": "remove", "path": "/metadata/finalizers/1"}));
        let mut free = pod(Some(0), "Failed");
        free.meta.finalizers = Box::default();
        assert!(!is_released(&free, OwnerState::Unowned, 100));
    }
}
