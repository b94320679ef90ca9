//! The plan for one PulsarConsumer: a pure function of the observed state and the time.

use jiff::Timestamp;
use kube::Resource as _;
use quintet_runtime::model::core_types::Deployment;
use quintet_runtime::model::object::{Meta, Object as _, Pairs};
use quintet_runtime::model::plan::{Action, Plan};
use quintet_runtime::model::resource::DEPLOYMENTS;
use serde_json::{Value, json};

use crate::api::{AppliedObject, PulsarConsumer, PulsarConsumerStatus};
use crate::backlog::Partitions;
use crate::cleanup;
use crate::deployment::{becomes_exclusive, deployment, deployment_name, must_settle};
use crate::keda::{
    KedaObject, SCALED_OBJECTS, TRIGGER_AUTHENTICATIONS, is_partitioned, max_replicas, scaled_object,
    scaled_object_name, trigger_authentication, trigger_authentication_name,
};
use crate::managed_object::{
    ApplyState, ConsumerPlan, Effect, FOLLOW_UP, LOOK_AGAIN, Past, Steps, Target, in_future, is_of,
};
use crate::observe::{Keda, World};
use crate::status::{events, status, without_topics};
use crate::topic::Topics;

/// Makes the plan.
pub fn plan(consumer: &PulsarConsumer, world: &World, now: Timestamp) -> ConsumerPlan {
    if consumer.terminating() {
        return cleanup::plan(consumer, world, now);
    }
    let mut plan = Plan::default();
    if world.refusals.namespace_terminating {
        // It accepts no new objects.
        return plan;
    }
    plan.steps.extend(cleanup::finalizer_change(consumer).map(|change| vec![change]));
    plan.withhold(&world.refusals, now);
    if !plan.steps.is_empty() {
        // It comes before the pods, which create the subscription.
        return plan;
    }
    let before = consumer.status.clone().unwrap_or_default();
    if !consumer.spec.has_topics() {
        plan.status = Some(without_topics(consumer, before, now));
        return plan;
    }
    let key = consumer.key();
    let own = world.deployment.as_deref().filter(|found| is_of(*found, &key));
    let body = deployment(consumer, &world.image, own);
    let patch = own.and_then(|own| preparing_patch(own, &body));
    let must_settle = own.is_some_and(|own| must_settle(own, &body));
    let target = Target {
        resource: DEPLOYMENTS,
        owner: &key,
        name: deployment_name(consumer),
        body,
        // The patch has the condition, and changes the version.
        is_conditional: patch.is_none(),
        overrides_scaler: own.is_some_and(|own| becomes_exclusive(&consumer.spec, own)),
    };
    let past = past(consumer, world);
    let mut apply_state = ApplyState::of(target, world.deployment.as_deref(), past, now);
    let mut scaling = scaling(consumer, world, past, now);
    let times = [plan.again, apply_state.requeue_at(now), scaling.requeue_at(now)];
    plan.again = times.into_iter().flatten().min();
    let due = apply_state.take_due();
    let is_waiting = must_settle && !due.is_empty();
    plan.steps.extend(patch.filter(|_| !due.is_empty()).map(|patch| vec![patch]));
    plan.steps.extend(due.into_iter().filter(|_| !is_waiting));
    plan.steps.extend(scaling.steps());
    plan.steps.extend(leftovers(consumer, world));
    // The status does not wait for a rejected deletion, which an Event reports.
    plan.withhold(&world.refusals, now);
    if is_waiting || !plan.steps.is_empty() {
        // The next reconcile writes the status, when the result is known.
        plan.requeue_at(in_future(now, FOLLOW_UP));
        return plan;
    }
    let mut after = status(consumer, world, &apply_state, &scaling, &before, now);
    after.applied = applied(&apply_state, &scaling, past);
    plan.events = events(&before, &after);
    plan.status = Some(after);
    plan
}

/// Whether the plan may take back what another manager has written for a newer version of the PulsarConsumer.
pub fn may_be_outdated(consumer: &PulsarConsumer, world: &World) -> bool {
    if !consumer.spec.has_topics() {
        return false;
    }
    let (key, past) = (consumer.key(), past(consumer, world));
    let own = world.deployment.as_deref().filter(|found| is_of(*found, &key));
    let body = |own| Some(deployment(consumer, &world.image, Some(own)));
    if own.is_some_and(|own| past.is_superseded(&DEPLOYMENTS, own, || body(own))) {
        return true;
    }
    let Keda::There { scaled_object: scaled, trigger_authentication: authentication } = &world.keda else {
        return false;
    };
    let is_outdated = |resource, found: Option<&KedaObject>, body: &dyn Fn() -> Option<Value>| match found {
        Some(found) => is_of(found, &key) && past.is_superseded(resource, found, body),
        // The other manager may have deleted it.
        None => past.returned(resource).next().is_some() && body().is_some(),
    };
    let scaled_object = || scaled_object_of(consumer, world);
    let trigger_authentication = || scaled_object().and_then(|_| trigger_authentication(consumer));
    is_outdated(&SCALED_OBJECTS, scaled.as_deref(), &scaled_object)
        || is_outdated(&TRIGGER_AUTHENTICATIONS, authentication.as_deref(), &trigger_authentication)
        || !leftovers(consumer, world).is_empty()
}

/// The earlier applies of a PulsarConsumer.
fn past<'a>(consumer: &'a PulsarConsumer, world: &'a World) -> Past<'a> {
    let reported = consumer.status.as_ref().map(|status| &*status.applied).unwrap_or_default();
    Past { reported, attempts: &world.attempts, refusals: &world.refusals }
}

/// Whether these are the metadata of the same version of a PulsarConsumer. A change of the labels, which the Deployment has
/// too, does not change the generation.
pub fn is_same_version(consumer: &PulsarConsumer, found: &Meta) -> bool {
    let labels = consumer.meta().labels.iter().flatten();
    found.uid == consumer.key().uid
        && found.generation == consumer.generation()
        && found.labels == labels.map(|(key, value)| (&**key, &**value)).collect::<Pairs>()
}

/// Removes `rollingUpdate` before an apply, because the API server rejects it with the strategy Recreate.
fn preparing_patch(own: &Deployment, wanted: &Value) -> Option<Action<PulsarConsumerStatus, Effect>> {
    if wanted["spec"]["strategy"]["type"] != "Recreate" || own.spec["strategy"]["rollingUpdate"].is_null() {
        return None;
    }
    // Another field manager may own it, and then an apply would not remove it.
    let body = json!({
        "metadata": { "uid": own.meta.uid, "resourceVersion": &*own.meta.resource_version },
        "spec": { "strategy": { "type": "Recreate", "rollingUpdate": Value::Null } },
    });
    Some(Action::merge_patch(DEPLOYMENTS, &own.meta, body))
}

/// The state of the autoscaling.
#[derive(Debug)]
pub enum Scaling<'a> {
    /// The spec has no `autoscaling`.
    Off,
    /// It is unknown whether KEDA is installed.
    Unknown,
    /// KEDA is not installed.
    NoKeda,
    /// It is unknown whether a topic has partitions.
    Waiting,
    /// KEDA's objects.
    On {
        /// The TriggerAuthentication; None without `auth`.
        authentication: Option<ApplyState<'a, KedaObject>>,
        /// The ScaledObject.
        scaled_object: ApplyState<'a, KedaObject>,
    },
}

impl Scaling<'_> {
    /// The due steps in order. The TriggerAuthentication comes first, because the ScaledObject refers to it.
    fn steps(&mut self) -> Steps {
        let Self::On { authentication, scaled_object } = self else { return Vec::new() };
        authentication.iter_mut().chain([scaled_object]).flat_map(ApplyState::take_due).collect()
    }

    fn requeue_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Off | Self::NoKeda => None,
            // An installation of KEDA causes an event, a failed read does not.
            Self::Unknown => Some(in_future(now, LOOK_AGAIN)),
            Self::Waiting => Some(in_future(now, FOLLOW_UP)),
            Self::On { authentication, scaled_object } => {
                let apply_states = authentication.iter().chain([scaled_object]);
                apply_states.filter_map(|apply_state| apply_state.requeue_at(now)).min()
            }
        }
    }
}

fn scaling<'a>(consumer: &PulsarConsumer, world: &'a World, past: Past<'a>, now: Timestamp) -> Scaling<'a> {
    if consumer.spec.autoscaling.is_none() {
        return Scaling::Off;
    }
    let (scaled, authentication) = match &world.keda {
        Keda::Unknown => return Scaling::Unknown,
        Keda::Absent => return Scaling::NoKeda,
        Keda::There { scaled_object, trigger_authentication } => (scaled_object, trigger_authentication),
    };
    let Some(scaled_object) = scaled_object_of(consumer, world) else { return Scaling::Waiting };
    let key = consumer.key();
    let apply_state = |resource, name, body, found: &'a Option<std::sync::Arc<KedaObject>>| {
        let target =
            Target { resource, owner: &key, name, body, is_conditional: false, overrides_scaler: false };
        ApplyState::of(target, found.as_deref(), past, now)
    };
    let name = trigger_authentication_name(consumer);
    Scaling::On {
        authentication: trigger_authentication(consumer)
            .map(|body| apply_state(TRIGGER_AUTHENTICATIONS, name, body, authentication)),
        scaled_object: apply_state(SCALED_OBJECTS, scaled_object_name(consumer), scaled_object, scaled),
    }
}

/// The ScaledObject; None without autoscaling or KEDA, and while it is unknown whether a topic has partitions.
fn scaled_object_of(consumer: &PulsarConsumer, world: &World) -> Option<Value> {
    let autoscaling = consumer.spec.autoscaling.as_ref()?;
    let Keda::There { scaled_object: scaled, .. } = &world.keda else { return None };
    let key = consumer.key();
    let own = scaled.as_deref().filter(|scaled| is_of(*scaled, &key));
    let topics = Topics::of(&consumer.spec);
    let none = Partitions::new();
    let partitions = world.backlog.as_ref().map_or(&none, |reading| &reading.partitions);
    // A topic that cannot be read counts as not partitioned.
    let unreadable = world.backlog.as_ref().map(|_| false);
    let with_partitions = |topic| {
        let known = partitions.get(topic).map(|partitions| *partitions > 0);
        let last = || own.and_then(|own| is_partitioned(own, topic));
        Some((topic, known.or(autoscaling.partitioned).or_else(last).or(unreadable)?))
    };
    let triggers = topics.names().map(with_partitions).collect::<Option<Vec<_>>>()?;
    let max_replicas = max_replicas(&consumer.spec, autoscaling, &topics, partitions, own);
    Some(scaled_object(consumer, autoscaling, &triggers, max_replicas))
}

/// The applied objects for the status.
fn applied(
    apply_state: &ApplyState<'_, Deployment>,
    scaling: &Scaling<'_>,
    past: Past<'_>,
) -> Vec<AppliedObject> {
    let mut all = vec![apply_state.applied(&DEPLOYMENTS, past)];
    if let Scaling::On { authentication, scaled_object } = scaling {
        all.push(scaled_object.applied(&SCALED_OBJECTS, past));
        all.extend(authentication.iter().map(|one| one.applied(&TRIGGER_AUTHENTICATIONS, past)));
    }
    all.into_iter().flatten().collect()
}

/// Deletes the objects of KEDA that are no longer needed.
fn leftovers(consumer: &PulsarConsumer, world: &World) -> Steps {
    let Keda::There { scaled_object, trigger_authentication } = &world.keda else { return Vec::new() };
    let (key, spec) = (consumer.key(), &consumer.spec);
    let scales = spec.autoscaling.is_some();
    let candidates = [
        (SCALED_OBJECTS, scaled_object, scales),
        (TRIGGER_AUTHENTICATIONS, trigger_authentication, scales && spec.has_admin_auth()),
    ];
    let mut steps = Vec::new();
    for (resource, found, wanted) in candidates {
        if let Some(own) = found.as_deref().filter(|found| !wanted && is_of(*found, &key))
            && !own.terminating()
        {
            if spec.replicas == 0 && resource == SCALED_OBJECTS {
                steps.extend(restoring_patch(own).map(|patch| vec![patch]));
            }
            steps.push(vec![Action::delete(resource, &own.meta, false)]);
        }
    }
    steps
}

/// Requests that KEDA, when it deletes a ScaledObject, restores the replicas from before its creation, if KEDA
/// has scaled to 0. Other replicas stay, because they may be the user's.
fn restoring_patch(own: &KedaObject) -> Option<Action<PulsarConsumerStatus, Effect>> {
    let advanced = json!({ "restoreToOriginalReplicaCount": true });
    let body = json!({ "metadata": { "uid": own.meta.uid }, "spec": { "advanced": advanced } });
    let patch = Action::merge_patch(SCALED_OBJECTS, &own.meta, body);
    (own.spec["advanced"]["restoreToOriginalReplicaCount"] != true).then_some(patch)
}

/// Whether a status describes the current topics and subscription.
pub fn is_about(consumer: &PulsarConsumer, before: &PulsarConsumerStatus) -> bool {
    let spec = &consumer.spec;
    before.topic.as_deref() == Some(&*spec.shown_topics())
        && before.subscription.as_ref() == Some(&spec.subscription_name)
}

#[cfg(test)]
mod tests;
