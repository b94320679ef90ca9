//! What should be done for one PulsarConsumer: a pure function of what is observed and the time.

use jiff::Timestamp;
use quintet_runtime::model::core_types::Deployment;
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::plan::{Action, Plan};
use quintet_runtime::model::resource::DEPLOYMENTS;
use serde_json::{Value, json};

use crate::api::{AppliedObject, PulsarConsumer, PulsarConsumerStatus};
use crate::deployment::{deployment, deployment_name};
use crate::keda::{
    KedaObject, SCALED_OBJECTS, TRIGGER_AUTHENTICATIONS, is_partitioned, scaled_object, scaled_object_name,
    trigger_authentication, trigger_authentication_name,
};
use crate::kept::{Attempt, FOLLOW_UP, Kept, LOOK_AGAIN, Past, Standing, Steps, Target, in_future, is_of};
use crate::observe::{Keda, World};
use crate::status::{announce, status};

/// A plan of this kind.
pub type ConsumerPlan = Plan<PulsarConsumerStatus, Attempt>;

/// Makes the plan.
pub fn plan(consumer: &PulsarConsumer, world: &World, now: Timestamp) -> ConsumerPlan {
    let mut plan = Plan::default();
    if consumer.terminating() || world.refusals.namespace_terminating {
        // Owner references take away what was made for it, and in a namespace that goes nothing can be made.
        return plan;
    }
    let before = consumer.status.clone().unwrap_or_default();
    let key = consumer.key();
    let own = world.deployment.as_deref().filter(|found| is_of(*found, &key));
    let target = Target {
        resource: DEPLOYMENTS,
        owner: &key,
        name: deployment_name(consumer),
        body: deployment(consumer, &world.image),
    };
    let recreate = target.body["spec"]["strategy"]["type"] == "Recreate";
    let past = Past { told: &before.applied, attempts: &world.attempts, refusals: &world.refusals };
    let mut standing = Standing::of(target, world.deployment.as_deref(), past, now);
    let mut scaling = scaling(consumer, world, past, now);
    plan.again = standing.look_again(now).into_iter().chain(scaling.look_again(now)).min();
    let due = standing.take_due();
    if !due.is_empty() {
        prepare(&mut plan, own, recreate);
    }
    plan.steps.extend(due);
    plan.steps.extend(scaling.steps());
    plan.steps.extend(leftovers(consumer, world));
    // The status does not wait for a deletion that is refused: an Event has said so.
    plan.withhold(&world.refusals, now);
    if !plan.steps.is_empty() {
        // Nothing is said now: what comes of this will be.
        plan.look_again(in_future(now, FOLLOW_UP));
        return plan;
    }
    let mut after = status(consumer, world, &standing, &scaling, &before, now);
    after.applied = applied(&standing, &scaling, past);
    plan.events = announce(&before, &after);
    plan.status = Some(after);
    plan
}

/// Removes what keeps the API server from accepting the strategy Recreate, before an apply.
fn prepare(plan: &mut ConsumerPlan, own: Option<&Deployment>, recreate: bool) {
    let Some(own) = own.filter(|own| recreate && !own.spec["strategy"]["rollingUpdate"].is_null()) else {
        return;
    };
    // Another field manager may own it, so that an apply of ours would not remove it.
    let body = json!({
        "metadata": { "uid": own.meta.uid, "resourceVersion": own.meta.resource_version },
        "spec": { "strategy": { "type": "Recreate", "rollingUpdate": Value::Null } },
    });
    let (namespace, name) = (own.meta.namespace.clone(), own.meta.name.clone());
    plan.steps.push(vec![Action::Merge { resource: DEPLOYMENTS, namespace, name, body }]);
}

/// How things stand with the autoscaling.
#[derive(Debug)]
pub enum Scaling<'a> {
    /// The object wants none.
    Off,
    /// Nothing is known of KEDA.
    Unknown,
    /// The cluster has no KEDA.
    NoKeda,
    /// The topic is looked at first.
    Waiting,
    /// KEDA is told.
    On {
        /// The TriggerAuthentication; None where there is nothing to authenticate with.
        authentication: Option<Standing<'a, KedaObject>>,
        /// The ScaledObject.
        scaled_object: Standing<'a, KedaObject>,
    },
}

impl Scaling<'_> {
    /// What is due, in order: KEDA looks for the authentication as soon as it sees the ScaledObject.
    fn steps(&mut self) -> Steps {
        let Self::On { authentication, scaled_object } = self else { return Vec::new() };
        authentication.iter_mut().chain([scaled_object]).flat_map(Standing::take_due).collect()
    }

    fn look_again(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Off | Self::NoKeda => None,
            // Its coming is told; a look that failed is not.
            Self::Unknown => Some(in_future(now, LOOK_AGAIN)),
            Self::Waiting => Some(in_future(now, FOLLOW_UP)),
            Self::On { authentication, scaled_object } => {
                let standings = authentication.iter().chain([scaled_object]);
                standings.filter_map(|standing| standing.look_again(now)).min()
            }
        }
    }
}

fn scaling<'a>(consumer: &PulsarConsumer, world: &'a World, past: Past<'a>, now: Timestamp) -> Scaling<'a> {
    let Some(autoscaling) = &consumer.spec.autoscaling else { return Scaling::Off };
    let (scaled, authentication) = match &world.keda {
        Keda::Unknown => return Scaling::Unknown,
        Keda::Absent => return Scaling::NoKeda,
        Keda::There { scaled_object, trigger_authentication } => (scaled_object, trigger_authentication),
    };
    let key = consumer.key();
    let said = scaled.as_deref().filter(|scaled| is_of(*scaled, &key)).and_then(is_partitioned);
    let partitioned = match (autoscaling.partitioned, &world.backlog, said) {
        (Some(partitioned), ..) | (None, None, Some(partitioned)) => partitioned,
        (None, Some(reading), said) => reading.partitioned.or(said).unwrap_or_default(),
        (None, None, None) => return Scaling::Waiting,
    };
    let standing = |resource, name, body, found: &'a Option<std::sync::Arc<KedaObject>>| {
        let target = Target { resource, owner: &key, name, body };
        Standing::of(target, found.as_deref(), past, now)
    };
    let name = trigger_authentication_name(consumer);
    Scaling::On {
        authentication: trigger_authentication(consumer)
            .map(|body| standing(TRIGGER_AUTHENTICATIONS, name, body, authentication)),
        scaled_object: standing(
            SCALED_OBJECTS,
            scaled_object_name(consumer),
            scaled_object(consumer, autoscaling, partitioned),
            scaled,
        ),
    }
}

/// What the status says of applies.
fn applied(standing: &Standing<'_, Deployment>, scaling: &Scaling<'_>, past: Past<'_>) -> Vec<AppliedObject> {
    let mut all = vec![standing.applied(&DEPLOYMENTS, past)];
    if let Scaling::On { authentication, scaled_object } = scaling {
        all.push(scaled_object.applied(&SCALED_OBJECTS, past));
        all.extend(authentication.iter().map(|one| one.applied(&TRIGGER_AUTHENTICATIONS, past)));
    }
    all.into_iter().flatten().collect()
}

/// Deletes what was made for KEDA and is no longer wanted.
fn leftovers(consumer: &PulsarConsumer, world: &World) -> Steps {
    let Keda::There { scaled_object, trigger_authentication } = &world.keda else { return Vec::new() };
    let (key, spec) = (consumer.key(), &consumer.spec);
    let scales = spec.autoscaling.is_some();
    let candidates = [
        (SCALED_OBJECTS, scaled_object, scales),
        (TRIGGER_AUTHENTICATIONS, trigger_authentication, scales && spec.auth.is_some()),
    ];
    let mut steps = Vec::new();
    for (resource, found, wanted) in candidates {
        if let Some(own) = found.as_deref().filter(|found| !wanted && is_of(*found, &key))
            && !own.terminating()
        {
            steps.push(vec![Action::Delete {
                resource,
                namespace: key.namespace.clone(),
                name: own.meta().name.clone(),
                uid: own.meta().uid.clone(),
                resource_version: None,
            }]);
        }
    }
    steps
}

/// Whether a status is about the topic and the subscription that the object has now.
pub fn is_about(consumer: &PulsarConsumer, before: &PulsarConsumerStatus) -> bool {
    let spec = &consumer.spec;
    before.topic.as_ref() == Some(&spec.topic)
        && before.subscription.as_ref() == Some(&spec.subscription_name)
}

#[cfg(test)]
mod tests;
