//! Connects PodSets and their pods with the queue and the plan.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use quintet_runtime::cache::deselected::Deselected;
use quintet_runtime::cache::informer::{Change, Informer};
use quintet_runtime::control::context::Context;
use quintet_runtime::control::controller::Controller;
use quintet_runtime::control::reconciler::Reconciler;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::object::{Key, Object as _};
use quintet_runtime::model::plan::Plan;
use quintet_runtime::model::refusals::Refusals;
use quintet_runtime::model::resource::{PODS, Resource};
use quintet_runtime::write::executor::{Error, Executor};
use quintet_runtime::{KIND_LABEL, lock};

use crate::CONTROLLER;
use crate::api::{PodSet, PodSetStatus};
use crate::metrics;
use crate::observe::World;
use crate::plan::{NAME_LABEL, UID_LABEL, name_prefix, plan};

struct PodSets {
    pods: Informer<Pod>,
    executor: Arc<Executor>,
    /// Pods that left the watch without a deletion.
    deselected: Arc<Deselected<Pod>>,
    new_podsets: Arc<NewPodSets>,
}

/// PodSets that were created while this process led and that have no status yet, by UID. They cannot have
/// older pods. The value is whether they were reconciled.
#[derive(Default)]
struct NewPodSets(Mutex<HashMap<Arc<str>, bool>>);

/// Whether a PodSet is new to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Familiarity {
    /// It may be old.
    Other,
    /// It is new, and this is its first reconcile.
    First,
    /// It is new, and was reconciled before.
    Further,
}

impl NewPodSets {
    /// Handles a change. `leads` is whether this process leads.
    fn follow(&self, change: &Change<'_, PodSet>, leads: bool) {
        match change {
            Change::Applied { new, .. } if has_begun(new) => self.forget(&new.key()),
            Change::Applied { new, old: None, came: true } if leads => {
                lock(&self.0).insert(new.key().uid, false);
            }
            Change::Deleted { old } => self.forget(&old.key()),
            _ => {}
        }
    }

    /// Returns whether a PodSet is new, and marks it as reconciled.
    fn look(&self, key: &Key) -> Familiarity {
        match lock(&self.0).get_mut(&key.uid).map(|looked| std::mem::replace(looked, true)) {
            None => Familiarity::Other,
            Some(false) => Familiarity::First,
            Some(true) => Familiarity::Further,
        }
    }

    fn forget(&self, key: &Key) {
        lock(&self.0).remove(&key.uid);
    }
}

/// Whether the status shows that no older pods are left.
fn has_begun(object: &PodSet) -> bool {
    object.status.as_ref().is_some_and(|status| status.selector.is_some())
}

impl Reconciler for PodSets {
    type Object = PodSet;
    type Status = PodSetStatus;
    type World = World;
    type Effect = std::convert::Infallible;

    fn name(&self) -> &'static str {
        CONTROLLER
    }

    fn resource(&self) -> Resource {
        Resource::of::<PodSet>()
    }

    fn status<'a>(&self, object: &'a PodSet) -> Option<&'a PodSetStatus> {
        object.status.as_ref()
    }

    async fn observe(&self, object: &PodSet, refusals: Refusals) -> Result<World, Error> {
        let key = object.key();
        let mut world = World { pods: self.pods.owned_by(&key), refusals, ..World::default() };
        world.taken =
            self.pods.names(&key.namespace, &name_prefix(&key.name), |pod| !pod.meta.is_controlled_by(&key));
        if object.terminating() {
            return Ok(world);
        }
        for pod in self.deselected.owned_by(&key) {
            let found = self.executor.reads.read::<Pod>(&PODS, &key.namespace, &pod.meta.name).await?;
            match found
                .filter(|found| found.meta.uid == pod.meta.uid && found.meta.is_controlled_by(&key))
                .map(Arc::new)
            {
                Some(found) => {
                    world.pods.push(found.clone());
                    world.unlabelled.push(found);
                }
                None => self.deselected.settle(&pod),
            }
        }
        if !has_begun(object) {
            match self.new_podsets.look(&key) {
                Familiarity::First => world.unsearched = true,
                // The answer may be slightly old; the cache has the pods that this process created.
                Familiarity::Further => {
                    let since = self.pods.position(&key.namespace);
                    let selector = format!("{NAME_LABEL}={},{UID_LABEL}!={}", key.name, key.uid);
                    self.look_for_older_pods(object, &key, &mut world, &selector, since).await?;
                }
                Familiarity::Other => {
                    let selector = format!("{NAME_LABEL}={}", key.name);
                    self.look_for_older_pods(object, &key, &mut world, &selector, 0).await?;
                }
            }
        }
        Ok(world)
    }

    fn plan(&self, object: &PodSet, world: &World, now: Timestamp) -> Plan<PodSetStatus> {
        plan(object, world, now)
    }

    fn forget(&self, key: &Key) {
        self.deselected.forget(key);
        self.new_podsets.forget(key);
    }
}

/// Whether a pod has none of Quintet's labels. A pod that lost only the watch's label is not an older one.
fn is_older(pod: &Pod) -> bool {
    pod.label(KIND_LABEL).is_none() && pod.label(UID_LABEL).is_none()
}

impl PodSets {
    /// Lists the pods of the tutorial's operator, which have its label but not the label of the watch, until
    /// the first status is written. Also reports foreign pods with that label. The list is from
    /// resourceVersion `since` or later.
    async fn look_for_older_pods(
        &self,
        object: &PodSet,
        key: &Key,
        world: &mut World,
        selector: &str,
        since: u64,
    ) -> Result<(), Error> {
        let found = self.executor.reads.list::<Pod>(&PODS, &key.namespace, selector, since).await?;
        let (ours, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|pod| pod.meta.is_controlled_by(key));
        let known: HashSet<&str> = world.pods.iter().map(|pod| &*pod.meta.uid).collect();
        let is_missed = |pod: &&Pod| pod.label(KIND_LABEL).is_some() && !known.contains(&*pod.meta.uid);
        if let Some(pod) = ours.iter().find(is_missed) {
            // A predecessor has just created or labelled it; the cache will show it soon.
            return Err(Error::Stale(format!("the cached Pod {}/{}", key.namespace, pod.meta.name)));
        }
        world.unmigrated = ours.into_iter().filter(is_older).map(Arc::new).collect();
        if object.status.as_ref().is_some_and(|status| status.observed_generation.is_some()) {
            // The first status has reported them.
            return Ok(());
        }
        world.foreign_pods = others.first().map(|first| {
            let (count, first) = (others.len(), &first.meta.name);
            format!("{count} foreign pods have the label {selector}, for instance {first}; ignoring them")
        });
        Ok(())
    }
}

/// Adds the PodSet controller to the process.
pub fn register(context: &Context) -> Result<(), prometheus::Error> {
    let pods = context.pods();
    let resource = Resource::of::<PodSet>();
    let objects = context.informer::<PodSet>("podsets", resource, None);
    metrics::follow(&context.metrics.registry, &objects)?;
    let reads = pods.tracked();
    let new_podsets = Arc::<NewPodSets>::default();
    let follower = new_podsets.clone();
    let gate = context.gate.clone();
    objects.subscribe(move |change| follower.follow(change, gate.term().is_some()));
    let reconciler = PodSets {
        new_podsets,
        deselected: Deselected::from(&pods, &objects, Pod::is_counted),
        pods: pods.clone(),
        executor: context.executor.clone(),
    };
    let controller = Controller::new(context, reconciler, objects, reads);
    controller.owns(&pods);
    context.spawn_controller(CONTROLLER, controller.run());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn podset(uid: &str, status: &serde_json::Value) -> Arc<PodSet> {
        let podset = json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
            "metadata": { "name": "p", "namespace": "n", "uid": uid }, "spec": {}, "status": status });
        Arc::new(serde_json::from_value(podset).unwrap())
    }

    #[test]
    fn only_podsets_created_while_leading_are_new() {
        let new_podsets = NewPodSets::default();
        let [new, listed, stood_by] = ["new", "listed", "stood-by"].map(|uid| podset(uid, &json!({})));
        new_podsets.follow(&Change::Applied { new: &new, old: None, came: true }, true);
        new_podsets.follow(&Change::Applied { new: &listed, old: None, came: false }, true);
        new_podsets.follow(&Change::Applied { new: &stood_by, old: None, came: true }, false);
        assert_eq!(
            [&new, &new, &new].map(|set| new_podsets.look(&set.key())),
            [Familiarity::First, Familiarity::Further, Familiarity::Further]
        );
        assert_eq!([&listed, &stood_by].map(|set| new_podsets.look(&set.key())), [Familiarity::Other; 2]);
        // Another PodSet of the same name is new again.
        let again = podset("again", &json!({}));
        new_podsets.follow(&Change::Deleted { old: &new }, true);
        new_podsets.follow(&Change::Applied { new: &again, old: None, came: true }, true);
        assert_eq!(
            [&again, &new].map(|set| new_podsets.look(&set.key())),
            [Familiarity::First, Familiarity::Other]
        );
    }

    #[test]
    fn drops_podsets_with_a_status() {
        let new_podsets = NewPodSets::default();
        let new = podset("new", &json!({}));
        new_podsets.follow(&Change::Applied { new: &new, old: None, came: true }, true);
        let known = podset("new", &json!({ "selector": "app=p" }));
        new_podsets.follow(&Change::Applied { new: &known, old: Some(&new), came: false }, false);
        assert!(lock(&new_podsets.0).is_empty());
    }
}
