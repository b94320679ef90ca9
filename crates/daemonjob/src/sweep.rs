//! The sweeper: removes the finalizer from pods whose outcome will not be recorded, so that no pod, drain, namespace
//! or uninstall waits for it.
//!
//! It always runs, whatever kinds are enabled. Pods of a DaemonJob that lives and is served are left to its plan, which
//! takes the finalizer off once the ledger has the outcome.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use quintet_kit::client::{CALL, ask, brief};
use quintet_kit::controller::{Controller, Reconciler};
use quintet_kit::executor::{Error, Executor};
use quintet_kit::informer::{Change, Health, Informer};
use quintet_kit::object::{Key, Object as _, Owner};
use quintet_kit::plan::{Plan, Refusals};
use quintet_kit::resource::{PODS, Resource};
use quintet_kit::shared::Shared;
use quintet_kit::types::Pod;

use crate::FINALIZER;
use crate::api::DaemonJob;
use crate::plan::release;

/// The sweeper's name, in metrics and logs.
pub const NAME: &str = "daemonjob-sweeper";

/// The pods that it looks at where the process serves some namespaces only.
const SELECTOR: &str = "quintet.dev/kind=DaemonJob";
/// How long a pod of a DaemonJob out of our scope must have been over before it is taken for abandoned: another manager
/// may serve it.
const ABANDONED: SignedDuration = SignedDuration::from_mins(1);
/// When to look again where the cache of DaemonJobs is not filled yet.
const SOON: SignedDuration = SignedDuration::from_secs(1);
/// UIDs of owners that are known to be gone: one GET tells it for all of their pods.
const REMEMBERED: usize = 256;

/// Who will record a pod's outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody: it belongs to no DaemonJob, or to one that is gone or going.
    Unowned,
    /// Its DaemonJob lives and this process serves it.
    Served,
    /// Its DaemonJob may live, but the kind is switched off.
    SwitchedOff,
    /// Its DaemonJob lives outside the namespaces that this process serves.
    OutOfScope,
    /// It is not known yet.
    Unknown,
}

/// What is done with one pod.
pub fn plan(pod: &Pod, standing: Standing, now: Timestamp) -> Plan<()> {
    let mut plan = Plan::default();
    let is_off = match standing {
        Standing::Unowned => true,
        Standing::Served => {
            // Should its DaemonJob have gone without a word, with its type.
            plan.look_again(now.checked_add(ABANDONED).unwrap_or(now));
            false
        }
        Standing::SwitchedOff => pod.terminating(),
        Standing::Unknown => {
            plan.look_again(now.checked_add(SOON).unwrap_or(now));
            false
        }
        Standing::OutOfScope => match (pod.meta.deletion_asked(), pod.is_running() && pod.node.is_some()) {
            (Some(asked), false) => {
                // The clock of a node that is ahead keeps nothing waiting.
                let finished = pod.finished.filter(|finished| *finished <= now);
                let over = finished.map_or(asked, |finished| finished.max(asked));
                let until = over.checked_add(ABANDONED).unwrap_or(now);
                if until > now {
                    plan.look_again(until);
                }
                until <= now
            }
            _ => false,
        },
    };
    if let (true, Some(release)) = (is_off, release(&pod.meta)) {
        plan.steps.push(vec![release]);
    }
    plan
}

struct Sweeper {
    /// The DaemonJobs that this process serves; None where the kind is switched off.
    served: Option<Informer<DaemonJob>>,
    /// The namespaces that this process serves; all where there are none.
    namespaces: Vec<String>,
    executor: Arc<Executor>,
    gone: Mutex<VecDeque<Arc<str>>>,
}

fn daemonjob_of(pod: &Pod) -> Option<&Owner> {
    let kind = Resource::of::<DaemonJob>();
    pod.meta.owner.as_ref().filter(|owner| *owner.group == *kind.group && *owner.kind == *kind.kind)
}

impl Reconciler for Sweeper {
    type Object = Pod;
    type Status = ();
    type World = Standing;
    type Effect = std::convert::Infallible;

    fn name(&self) -> &'static str {
        NAME
    }

    fn resource(&self) -> Resource {
        PODS
    }

    fn status<'a>(&self, _object: &'a Pod) -> Option<&'a ()> {
        None
    }

    async fn observe(&self, pod: &Pod, _refusals: Refusals) -> Result<Standing, Error> {
        let Some(owner) = daemonjob_of(pod) else { return Ok(Standing::Unowned) };
        let in_scope = self.namespaces.is_empty()
            || self.namespaces.iter().any(|served| **served == *pod.meta.namespace);
        match &self.served {
            None if in_scope => return Ok(Standing::SwitchedOff),
            Some(served) if in_scope => {
                let key = Key {
                    namespace: pod.meta.namespace.clone(),
                    name: owner.name.clone(),
                    uid: owner.uid.clone(),
                };
                let health = served.health();
                match (served.get(&key), health) {
                    (Some(job), _) if job.terminating() => return Ok(Standing::Unowned),
                    (Some(_), Health::Synced { .. }) => return Ok(Standing::Served),
                    (_, Health::Unsynced) => return Ok(Standing::Unknown),
                    (Some(_), Health::Absent { .. }) | (None, _) => {}
                }
            }
            _ => {}
        }
        let living = if in_scope { Standing::Served } else { Standing::OutOfScope };
        Ok(if self.is_gone(pod, owner).await? { Standing::Unowned } else { living })
    }

    fn plan(&self, pod: &Pod, standing: &Standing, now: Timestamp) -> Plan<()> {
        plan(pod, *standing, now)
    }

    fn concerns(&self, pod: &Pod) -> bool {
        pod.meta.has_finalizer(FINALIZER) && (pod.terminating() || daemonjob_of(pod).is_none())
    }

    fn is_quiet(&self) -> bool {
        true
    }
}

impl Sweeper {
    /// Whether the API server says that the owner is gone or going, that another one has its name, or that its type is gone.
    async fn is_gone(&self, pod: &Pod, owner: &Owner) -> Result<bool, Error> {
        if self.gone().contains(&owner.uid) {
            return Ok(true);
        }
        let kind = Resource::of::<DaemonJob>();
        let is_gone = match self.executor.read_meta(&kind, &pod.meta.namespace, &owner.name).await {
            Ok(found) => found.is_none_or(|meta| meta.uid != owner.uid || meta.deleted.is_some()),
            Err(kube::Error::Api(status))
                if status.code == 404 && !self.executor.is_served(&kind).await? =>
            {
                true
            }
            Err(error) => return Err(error.into()),
        };
        if is_gone {
            let mut gone = self.gone();
            if gone.len() >= REMEMBERED {
                gone.pop_front();
            }
            gone.push_back(owner.uid.clone());
        }
        Ok(is_gone)
    }

    fn gone(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<str>>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds the sweeper to the process. `served` are the DaemonJobs that it serves, None where the kind is switched off.
pub fn register(shared: &Shared, served: Option<Informer<DaemonJob>>) {
    let sweeper = Sweeper {
        served: served.clone(),
        namespaces: shared.namespaces().to_vec(),
        executor: shared.executor.clone(),
        gone: Mutex::default(),
    };
    if shared.namespaces().is_empty() {
        let pods = shared.pods();
        shared.spawn_controller(NAME, sweep(shared, sweeper, pods, served).run());
        return;
    }
    // It serves some namespaces; what an earlier, wider scope has left elsewhere is swept if that is allowed.
    let pods = Informer::<Pod>::new(PODS, &[], Some(SELECTOR));
    let (everywhere, within) = (pods.clone(), shared.pods());
    let shared = shared.clone();
    shared.clone().spawn_controller(NAME, async move {
        let mut stop = shared.stop.clone();
        let asked = async {
            shared.gate.tried().await;
            may_list_everywhere(&shared).await
        };
        let may = tokio::select! {
            may = asked => may,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        if may {
            shared.hand_over(&everywhere);
            let keeps = shared.keep(&everywhere);
            let sweeps = sweep(&shared, sweeper, everywhere, served).run();
            tokio::select! {
                () = keeps => {}
                () = sweeps => {}
            }
        } else {
            let namespaces = shared.namespaces().join(",");
            tracing::warn!(
                namespaces,
                "pods in other namespaces may not be listed: if an earlier installation served them, free its pods \
                 by `quintet uninstall --namespace NAMESPACE`"
            );
            sweep(&shared, sweeper, within, served).run().await;
        }
    });
}

fn sweep(
    shared: &Shared,
    sweeper: Sweeper,
    pods: Informer<Pod>,
    served: Option<Informer<DaemonJob>>,
) -> Controller<Sweeper> {
    let controller = Controller::new(shared, sweeper, pods.clone(), []);
    if let Some(served) = served {
        let waker = controller.waker();
        served.subscribe(move |change| {
            let going = match change {
                Change::Applied { new, .. } if new.terminating() => new,
                Change::Deleted { old } => old,
                _ => return,
            };
            for pod in pods.owned_by(&going.key()).iter().filter(|pod| pod.terminating()) {
                waker.look_again(pod.key());
            }
        });
    }
    controller
}

/// Whether pods may be listed in every namespace. Asked until there is an answer.
async fn may_list_everywhere(shared: &Shared) -> bool {
    loop {
        let path = format!("{}?limit=1&labelSelector={SELECTOR}", PODS.path(""));
        let Ok(request) = http::Request::get(path).body(Vec::new()) else { return false };
        let asked = ask::<serde::de::IgnoredAny>(&shared.client, request);
        match tokio::time::timeout(CALL, asked).await {
            Ok(Ok(_)) => return true,
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => return false,
            answer => {
                let error = match answer {
                    Ok(Err(error)) => brief(&error),
                    _ => "no answer in time".to_owned(),
                };
                tracing::debug!(error, "it is not known yet whether pods may be listed everywhere");
                tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_kit::plan::Action;
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

    fn is_released(pod: &Pod, standing: Standing, now: i64) -> bool {
        !plan(pod, standing, at(now)).steps.is_empty()
    }

    #[rstest]
    #[case::unowned(pod(None, "Running"), Standing::Unowned, true)]
    #[case::unowned_and_terminating(pod(Some(0), "Running"), Standing::Unowned, true)]
    #[case::served(pod(Some(0), "Succeeded"), Standing::Served, false)]
    #[case::switched_off(pod(None, "Succeeded"), Standing::SwitchedOff, false)]
    #[case::switched_off_and_terminating(pod(Some(0), "Running"), Standing::SwitchedOff, true)]
    #[case::out_of_scope(pod(None, "Succeeded"), Standing::OutOfScope, false)]
    #[case::out_of_scope_and_over(pod(Some(0), "Failed"), Standing::OutOfScope, true)]
    #[case::out_of_scope_and_just_over(pod(Some(50), "Failed"), Standing::OutOfScope, false)]
    #[case::out_of_scope_and_not_over(pod(Some(0), "Running"), Standing::OutOfScope, false)]
    fn who_is_released(#[case] pod: Pod, #[case] standing: Standing, #[case] released: bool) {
        assert_eq!(is_released(&pod, standing, 100), released);
    }

    #[test]
    fn what_is_just_over_is_looked_at_again() {
        let pod = pod(Some(50), "Failed");
        assert_eq!(plan(&pod, Standing::OutOfScope, at(100)).again, Some(at(110)));
        assert!(is_released(&pod, Standing::OutOfScope, 110));
    }

    #[test]
    fn the_finalizer_is_taken_from_where_it_stands() {
        let plan = plan(&pod(Some(0), "Failed"), Standing::Unowned, at(100));
        let Action::Patch { operations, .. } = &plan.steps[0][0] else { panic!() };
        assert_eq!(operations[0], json!({"op": "test", "path": "/metadata/uid", "value": "u"}));
        assert_eq!(operations[2], json!({"op": "remove", "path": "/metadata/finalizers/1"}));
        let mut free = pod(Some(0), "Failed");
        free.meta.finalizers = Box::default();
        assert!(!is_released(&free, Standing::Unowned, 100));
    }
}
