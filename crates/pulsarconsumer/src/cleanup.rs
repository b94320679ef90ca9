//! The deletion of a PulsarConsumer with `subscription.cleanup: Delete`.
//!
//! A finalizer keeps the PulsarConsumer until the subscription is gone. The pods stop first, because a broker keeps a
//! subscription with consumers, and a consumer creates a missing one. Nothing waits for a Secret or a permission that is
//! deleted too. Of all else the status reports, and the user can change `cleanup` to Keep.

use jiff::{SignedDuration, Timestamp};
use kube::Resource as _;
use quintet_pulsar_topic::{Topic, dead_letter_subscription};
use quintet_runtime::model::conditions::{self, Wanted};
use quintet_runtime::model::core_types::Deployment;
use quintet_runtime::model::finalizer;
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::plan::{Action, Event, EventType, Plan};
use quintet_runtime::model::refusals::Verb;
use quintet_runtime::model::resource::DEPLOYMENTS;
use serde_json::json;

use crate::FINALIZER;
use crate::api::{PulsarConsumer, PulsarConsumerSpec, PulsarConsumerStatus};
use crate::backlog::Unknown;
use crate::deployment::{UID_LABEL, deployment_name, is_current};
use crate::managed_object::{ConsumerPlan, Effect, FOLLOW_UP, in_future, is_of};
use crate::observe::{Sharing, World};
use crate::topic::Topics;

/// The subscription of a deleted PulsarConsumer is deleted. Exists only until then.
const SUBSCRIPTION_DELETED: &str = "SubscriptionDeleted";
/// The finalizer of the garbage collector for a deletion that keeps the Deployment.
const ORPHAN: &str = "orphan";
/// The reasons of a deletion without obstacles.
const EXPECTED: [&str; 2] = ["ConsumersRunning", "Deleting"];
/// The reasons and the action of Events.
const KEPT: &str = "SubscriptionKept";
const NOT_DELETED: &str = "SubscriptionNotDeleted";
const DELETE: &str = "DeleteSubscription";
/// The pause between two attempts to delete the subscription.
const PAUSE: SignedDuration = SignedDuration::from_secs(10);

/// Adds the finalizer if the spec needs it, and removes it otherwise. None if it is as it should be.
pub fn finalizer_change(consumer: &PulsarConsumer) -> Option<Action<PulsarConsumerStatus, Effect>> {
    match (consumer.spec.deletes_subscription(), finalizer::has(consumer, FINALIZER)) {
        (true, false) => Some(finalizer::add(consumer, FINALIZER)),
        (false, true) => Some(finalizer::remove(consumer, FINALIZER)),
        (true, true) | (false, false) => None,
    }
}

/// Whether a deleted PulsarConsumer must leave its subscription to `other`.
pub fn is_shared(consumer: &PulsarConsumer, other: &PulsarConsumer) -> bool {
    let url =
        |one: &PulsarConsumer| one.spec.admin_url.as_deref().map(|url| url.trim_end_matches('/').to_owned());
    let (spec, theirs) = (&consumer.spec, &other.spec);
    consumer.meta().uid != other.meta().uid
        && (url(consumer) == url(other) || spec.server_address == theirs.server_address)
        && (spec.subscription_name == theirs.subscription_name
            && Topics::of(spec).overlap(&Topics::of(theirs))
            || keeps_dead_letters(theirs, &spec.subscription_name, &Topics::of(spec)))
        && !(other.terminating() && theirs.deletes_subscription() && !finalizer::has(other, ORPHAN))
}

/// Whether a PulsarConsumer's dead letters would be lost without a subscription of these topics.
fn keeps_dead_letters(spec: &PulsarConsumerSpec, subscription: &str, topics: &Topics) -> bool {
    let Some(policy) = &spec.dead_letter_policy else { return false };
    let name = policy.initial_subscription.clone();
    let name = name.unwrap_or_else(|| dead_letter_subscription(&spec.subscription_name));
    let topic = spec.dead_letter_topic().map(|topic| Topic::of(&topic));
    name == subscription && topic.is_some_and(|topic| topics.have(&topic))
}

/// Whether the user has deleted a PulsarConsumer without its Deployment. The garbage collector removes its finalizer when it
/// has removed the owner, perhaps before a manager sees it. Then the Deployment shows it.
fn is_orphaning(consumer: &PulsarConsumer, world: &World) -> bool {
    let uid = &*consumer.key().uid;
    finalizer::has(consumer, ORPHAN)
        || world.deployment.as_deref().is_some_and(|found| {
            found.meta.owner.is_none() && found.spec["template"]["metadata"]["labels"][UID_LABEL] == uid
        })
}

/// The next step of the deletion.
enum Step<'a> {
    /// Nothing keeps the PulsarConsumer any more.
    Finish,
    /// The subscription stays, for this reason.
    Keep(EventType, String),
    /// The pods stop. The Deployment, if it still has to be scaled.
    Stop(Option<&'a Deployment>),
    /// The subscription is deleted at this time. The reason and message of the last failure.
    Delete(Timestamp, Option<&'a Unknown>),
}

fn next_step<'a>(consumer: &PulsarConsumer, world: &'a World, now: Timestamp) -> Step<'a> {
    let own = world.deployment.as_deref().filter(|found| is_of(*found, &consumer.key()));
    let is_stopped = own.is_none_or(|own| is_current(own) && own.spec["replicas"] == 0 && own.replicas == 0);
    match (world.deletion.as_ref().map(|attempt| (attempt.at, &attempt.result)), &world.sharing) {
        _ if !consumer.spec.deletes_subscription() => Step::Finish,
        (Some((_, Ok(()))), _) => Step::Finish,
        (_, Sharing::With(other)) => {
            Step::Keep(EventType::Normal, format!("PulsarConsumer {other} uses it."))
        }
        // The user keeps the Deployment, which needs the subscription.
        _ if is_orphaning(consumer, world) => {
            Step::Keep(EventType::Normal, "the Deployment is kept too.".to_owned())
        }
        // A client that deletes a whole namespace or manifest deletes the Secret or the permission too.
        (Some((_, Err(unknown))), _)
            if [Unknown::NO_SECRET, Unknown::SECRET_FORBIDDEN].contains(&unknown.reason) =>
        {
            Step::Keep(EventType::Warning, unknown.message.clone())
        }
        _ if !is_stopped => Step::Stop(own.filter(|own| own.spec["replicas"] != 0 && !own.terminating())),
        // The Deployment does not count terminating pods.
        _ if world.running_pods > 0 => Step::Stop(None),
        (_, Sharing::Unknown(unknown)) => Step::Delete(in_future(now, PAUSE), Some(unknown)),
        (None, Sharing::Unshared) => Step::Delete(now, None),
        // The clock may have been set back.
        (Some((at, result)), Sharing::Unshared) => {
            Step::Delete(in_future(at, PAUSE).min(in_future(now, PAUSE)), result.as_ref().err())
        }
    }
}

/// Makes the plan for a PulsarConsumer that is being deleted.
pub fn plan(consumer: &PulsarConsumer, world: &World, now: Timestamp) -> ConsumerPlan {
    let mut plan = Plan::default();
    if !finalizer::has(consumer, FINALIZER) {
        // The garbage collector deletes its objects.
        return plan;
    }
    let release = || vec![finalizer::remove(consumer, FINALIZER)];
    match next_step(consumer, world, now) {
        Step::Finish => plan.steps.push(release()),
        Step::Keep(type_, why) => {
            plan.steps.push(release());
            let note = format!("The subscription {} is kept: {why}", consumer.spec.subscription_name);
            plan.events.push(Event { type_, reason: KEPT, action: DELETE, note });
        }
        Step::Stop(own) => {
            let name = deployment_name(consumer);
            let refusal = own.and_then(|_| world.refusals.of(Verb::MergePatch, &DEPLOYMENTS, &name));
            plan.steps.extend(own.map(|own| {
                let body = json!({ "metadata": { "uid": own.meta.uid }, "spec": { "replicas": 0 } });
                vec![Action::merge_patch(DEPLOYMENTS, &own.meta, body)]
            }));
            // The end of a terminating pod causes no event here.
            plan.requeue_at(in_future(now, FOLLOW_UP));
            let running = format!("{} pods are stopping.", world.running_pods);
            let why =
                refusal.map_or(("ConsumersRunning", &*running), |refusal| ("Refused", &*refusal.message));
            report(&mut plan, consumer, world, why, now);
        }
        Step::Delete(due, failure) => {
            if due <= now {
                plan.steps.push(vec![Action::Effect(Effect::DeleteSubscription)]);
            }
            // The result wakes the PulsarConsumer. The effect is repeated in case a process loses it.
            plan.requeue_at(if due <= now { in_future(now, PAUSE) } else { due });
            let deleting = ("Deleting", "The subscription is being deleted.");
            let why = failure.map_or(deleting, |unknown| (unknown.reason, &*unknown.message));
            report(&mut plan, consumer, world, why, now);
        }
    }
    plan.withhold(&world.refusals, now);
    if plan.steps.is_empty() && plan.status.is_none() {
        // The finalizer stays for now.
        plan.events.clear();
    }
    plan
}

/// Adds a status whose condition has the reason why the PulsarConsumer still exists, and an Event for a new obstacle.
fn report(
    plan: &mut ConsumerPlan,
    consumer: &PulsarConsumer,
    world: &World,
    (reason, message): (&'static str, &str),
    now: Timestamp,
) {
    let meta = consumer.meta();
    let name = meta.name.as_deref().unwrap_or_default();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let message = format!(
        "{message} To keep the subscription, run: kubectl patch pulsarconsumer {name} --type=merge \
         --namespace={namespace} --patch='{{\"spec\":{{\"subscription\":{{\"cleanup\":\"Keep\"}}}}}}'"
    );
    let mut status = consumer.status.clone().unwrap_or_default();
    let was = status.conditions.iter().find(|one| one.type_ == SUBSCRIPTION_DELETED);
    if !EXPECTED.contains(&reason) && was.is_none_or(|was| was.reason != reason) {
        let note = format!("{reason}: {message}");
        plan.events.push(Event { type_: EventType::Warning, reason: NOT_DELETED, action: DELETE, note });
    }
    let wanted = Wanted { type_: SUBSCRIPTION_DELETED, status: Some(false), reason, message };
    let condition = conditions::next(&status.conditions, [wanted], meta.generation, now);
    // The other conditions are about the pods and the Deployment, which stop.
    status.conditions = condition;
    let own = world.deployment.as_deref().filter(|found| is_of(*found, &consumer.key()));
    (status.observed_generation, status.replicas) =
        (meta.generation, Some(own.map_or(0, |own| own.replicas)));
    (status.updated_replicas, status.ready_replicas) = (own.map(|own| own.updated), own.map(|own| own.ready));
    plan.status = Some(status);
}
