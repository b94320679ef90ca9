//! What should be done for one PulsarConsumer: a pure function of what is observed and the time.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::Resource as _;
use kube::core::Selector;
use quintet_kit::conditions::{self, Wanted};
use quintet_kit::object::{Object as _, Pairs, controller_reference};
use quintet_kit::plan::{Action, Event, EventType, Plan, Refusal};
use quintet_kit::resource::{DEPLOYMENTS, Resource};
use quintet_kit::types::Deployment;
use quintet_kit::{KIND_LABEL, digest};
use serde_json::{Map, Value, json};

use crate::api::{PulsarConsumer, PulsarConsumerStatus};
use crate::observe::{Tried, World};

/// What follows the object's name in its Deployment's, as in the post.
pub const DEPLOYMENT_SUFFIX: &str = "-deployment";
/// Label: the object's name and `-pulsarcrd`, as in the post. It alone selects the pods: the object's own labels may
/// change, a Deployment's selector may not.
pub const NAME_LABEL: &str = "pulsarcrd";
/// Label of the pods: the PulsarConsumer's UID.
pub const UID_LABEL: &str = "pulsar.pulsarconsumer.krvarma.com/uid";
/// Annotation of the Deployment: identifies what was last applied.
pub const APPLIED_ANNOTATION: &str = "quintet.dev/applied";
/// The name of the container, as in the post.
pub const CONTAINER: &str = "pulsarconsumer";

/// How soon something is looked at again that nobody reports: a stranger's Deployment that went, an admission
/// webhook that no longer overrules us.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_mins(1);
/// How soon an apply is looked at again of which the watch shows nothing, because it changed nothing.
const FOLLOW_UP: SignedDuration = SignedDuration::from_secs(5);
/// How long the first status waits for the pods of a new Deployment to be counted: usually a fraction of this.
const SETTLING: SignedDuration = SignedDuration::from_secs(2);

const AVAILABLE: &str = "Available";
const APPLIED: &str = "Applied";
const NOT_OWNED: &str = "DeploymentNotOwned";
const OVERRULED: &str = "Overruled";

/// How things stand with the Deployment.
enum Standing<'a> {
    /// It is as this object asks.
    Settled(&'a Deployment),
    /// It is to be applied, now.
    Due { body: Value, over: Option<String> },
    /// The API server has refused it lately.
    Refused(&'a Refusal, Option<&'a Deployment>),
    /// It was applied, and this is not as it was applied.
    Overruled(String, &'a Deployment),
    /// It is ours and on its way out.
    Terminating(&'a Deployment),
    /// Its name is taken.
    NotOwned(&'a Deployment),
}

impl Standing<'_> {
    /// The Deployment, if it is ours.
    fn own(&self) -> Option<&Deployment> {
        match self {
            Self::Settled(own) | Self::Overruled(_, own) | Self::Terminating(own) => Some(own),
            Self::Refused(_, own) => *own,
            Self::Due { .. } | Self::NotOwned(_) => None,
        }
    }
}

/// Makes the plan.
pub fn plan(consumer: &PulsarConsumer, world: &World, now: Timestamp) -> Plan<PulsarConsumerStatus, Tried> {
    let mut plan = Plan::default();
    if consumer.terminating() {
        // The owner reference takes the Deployment away.
        return plan;
    }
    let before = consumer.status.clone().unwrap_or_default();
    let standing = match standing(consumer, world, now) {
        Standing::Due { body, over } => {
            plan.steps.push(vec![Action::Apply {
                resource: DEPLOYMENTS,
                namespace: consumer.key().namespace,
                name: deployment_name(consumer),
                body,
                // What is not there yet may be a stranger's by the time it is applied.
                force: over.is_some(),
            }]);
            if let Some(over) = over {
                plan.steps.push(vec![Action::Effect(Tried { over, at: now })]);
            }
            // Nothing is said now: what the Deployment reports of this apply will be.
            plan.look_again(in_future(now, FOLLOW_UP));
            return plan;
        }
        standing => standing,
    };
    match &standing {
        Standing::Settled(own) => {
            if let Some(until) = settling(consumer, own, &before, now) {
                plan.look_again(until);
                return plan;
            }
        }
        Standing::Refused(refusal, _) => plan.look_again(refusal.until),
        Standing::Overruled(..) | Standing::Terminating(_) | Standing::NotOwned(_) | Standing::Due { .. } => {
            plan.look_again(in_future(now, LOOK_AGAIN));
        }
    }
    let status = status(consumer, &standing, &before, now);
    announce(&before, &status, &mut plan.events);
    plan.status = Some(status);
    plan
}

/// Whether a plan leaves the Deployment as somebody else keeps making it.
pub fn is_overruled(plan: &Plan<PulsarConsumerStatus, Tried>) -> bool {
    plan.status.as_ref().is_some_and(|status| reason(status, APPLIED) == Some(OVERRULED))
}

/// The name of the Deployment, as in the post.
pub fn deployment_name(consumer: &PulsarConsumer) -> String {
    format!("{}{DEPLOYMENT_SUFFIX}", consumer.meta().name.as_deref().unwrap_or_default())
}

fn in_future(now: Timestamp, wait: SignedDuration) -> Timestamp {
    now.checked_add(wait).unwrap_or(Timestamp::MAX)
}

fn standing<'a>(consumer: &PulsarConsumer, world: &'a World, now: Timestamp) -> Standing<'a> {
    let uid = consumer.meta().uid.as_deref().unwrap_or_default();
    let own = match world.deployment.as_deref() {
        Some(found) if found.meta.owner.as_ref().is_none_or(|owner| *owner.uid != *uid) => {
            return Standing::NotOwned(found);
        }
        Some(own) if own.terminating() => return Standing::Terminating(own),
        own => own,
    };
    let (body, applied) = deployment(consumer, own, &world.image);
    let difference = own.map(|own| difference(&body, &applied, own));
    if let (Some(own), Some(None)) = (own, &difference) {
        return Standing::Settled(own);
    }
    if let Some(refusal) = world.refusals.of("apply", &deployment_name(consumer))
        && refusal.until > now
    {
        return Standing::Refused(refusal, own);
    }
    let over = own.map(|own| fingerprint(&applied, own));
    if let (Some(own), Some(Some(difference)), Some(tried)) = (own, difference, &world.tried)
        && over.as_ref() == Some(&tried.over)
        && in_future(tried.at, LOOK_AGAIN) > now
    {
        return Standing::Overruled(difference, own);
    }
    Standing::Due { body, over }
}

/// The Deployment as it is applied, every field that we own and no other, and the mark that it carries.
///
/// A selector cannot be changed. One that another operator gave to our Deployment is kept, and its labels go onto the
/// pods.
fn deployment(consumer: &PulsarConsumer, own: Option<&Deployment>, default_image: &str) -> (Value, String) {
    let (meta, spec) = (consumer.meta(), &consumer.spec);
    let name = meta.name.as_deref().unwrap_or_default();
    let selector = own
        .and_then(|own| own.spec.get("selector").cloned())
        .unwrap_or_else(|| json!({ "matchLabels": { NAME_LABEL: label_value(name) } }));
    let mut labels = json!({
        NAME_LABEL: label_value(name),
        KIND_LABEL: "PulsarConsumer",
        UID_LABEL: meta.uid,
    });
    for (key, value) in selector["matchLabels"].as_object().into_iter().flatten() {
        labels[key] = value.clone();
    }
    // The object's own labels are for finding the Deployment, as in the post; they select nothing.
    let mut own_labels = json!(meta.labels.clone().unwrap_or_default());
    own_labels[NAME_LABEL] = label_value(name).into();
    let mut body = json!({
        "apiVersion": DEPLOYMENTS.api_version(),
        "kind": DEPLOYMENTS.kind,
        "metadata": {
            "name": deployment_name(consumer),
            "namespace": meta.namespace,
            "labels": own_labels,
            "ownerReferences": [controller_reference(&Resource::of::<PulsarConsumer>(), meta)],
        },
        "spec": {
            "replicas": spec.replicas,
            "selector": selector,
            // Explicit, for a field that we do not own could not be taken away again.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": { "maxSurge": "25%", "maxUnavailable": "25%" },
            },
            "template": {
                "metadata": { "labels": labels },
                "spec": {
                    "containers": [{
                        "name": CONTAINER,
                        "image": spec.image.as_deref().unwrap_or(default_image),
                        "env": [
                            { "name": "PULSAR_SERVER", "value": spec.server_address },
                            { "name": "PULSAR_TOPIC", "value": spec.topic },
                            { "name": "PULSAR_SUBSCRIPTION_NAME", "value": spec.subscription_name },
                        ],
                        // Not runAsNonRoot: the post's image, and any that a user names, may run as root.
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "capabilities": { "drop": ["ALL"] },
                            "seccompProfile": { "type": "RuntimeDefault" },
                        },
                    }],
                },
            },
        },
    });
    let applied = format!("v1-{}", digest::of_json(&body, 16));
    body["metadata"]["annotations"] = json!({ APPLIED_ANNOTATION: applied });
    if let Some(own) = own {
        // If another object has taken the name meanwhile, the server refuses.
        body["metadata"]["uid"] = json!(own.meta.uid);
    }
    (body, applied)
}

fn label_value(name: &str) -> String {
    format!("{name}-pulsarcrd")
}

/// The first field of the body that is not so in the Deployment.
fn difference(body: &Value, applied: &str, own: &Deployment) -> Option<String> {
    for (key, value) in body["metadata"]["labels"].as_object().into_iter().flatten() {
        if own.meta.labels.get(key) != value.as_str() {
            return Some(format!("metadata.labels[{key}]"));
        }
    }
    if own.meta.annotations.get(APPLIED_ANNOTATION) != Some(applied) {
        return Some(format!("metadata.annotations[{APPLIED_ANNOTATION}]"));
    }
    missing(&body["spec"], Some(&own.spec), "spec")
}

/// The path of the first value of `wanted` that `found` does not have. What `found` has besides is others' and the
/// server's; lists of named things are lists of those things in any order, as for the server.
fn missing(wanted: &Value, found: Option<&Value>, path: &str) -> Option<String> {
    match (wanted, found) {
        (Value::Object(wanted), Some(Value::Object(found))) => {
            wanted.iter().find_map(|(key, value)| missing(value, found.get(key), &format!("{path}.{key}")))
        }
        (Value::Array(wanted), Some(Value::Array(found)))
            if !wanted.is_empty() && wanted.iter().all(|item| item["name"].is_string()) =>
        {
            wanted.iter().find_map(|item| {
                let name = &item["name"];
                let same = found.iter().find(|other| other["name"] == *name);
                missing(item, same, &format!("{path}[{}]", name.as_str().unwrap_or_default()))
            })
        }
        // The server leaves out what is empty.
        (Value::String(wanted), None) if wanted.is_empty() => None,
        (wanted, found) => (Some(wanted) != found).then(|| path.to_owned()),
    }
}

/// Identifies an apply: what, and onto what.
fn fingerprint(applied: &str, own: &Deployment) -> String {
    let pairs = |pairs: &Pairs| -> Map<String, Value> {
        pairs.iter().map(|(key, value)| (key.to_owned(), value.into())).collect()
    };
    let onto = json!([own.meta.uid, pairs(&own.meta.labels), pairs(&own.meta.annotations), own.spec]);
    format!("{applied}-{}", digest::of_json(&onto, 24))
}

/// Until when the first status waits, because its Deployment is new and its pods are about to be counted: what would
/// be said of it now would be said anew in a moment.
fn settling(
    consumer: &PulsarConsumer,
    own: &Deployment,
    before: &PulsarConsumerStatus,
    now: Timestamp,
) -> Option<Timestamp> {
    let counted = is_current(own) && own.replicas >= consumer.spec.replicas || own.trouble.is_some();
    let until = in_future(own.meta.created?, SETTLING);
    // A server's clock that is far ahead of ours must not keep the status away.
    let near = now < until && until <= in_future(now, SETTLING * 2);
    (before.observed_generation.is_none() && !counted && near).then_some(until)
}

/// Whether the Deployment's figures are about its current spec.
fn is_current(own: &Deployment) -> bool {
    own.observed_generation >= own.meta.generation
}

fn status(
    consumer: &PulsarConsumer,
    standing: &Standing<'_>,
    before: &PulsarConsumerStatus,
    now: Timestamp,
) -> PulsarConsumerStatus {
    let (meta, spec) = (consumer.meta(), &consumer.spec);
    let own = standing.own();
    let applied = applied(consumer, standing);
    let available = match standing {
        Standing::NotOwned(_) | Standing::Terminating(_) => Wanted { type_: AVAILABLE, ..applied.clone() },
        _ => available(consumer, own),
    };
    PulsarConsumerStatus {
        observed_generation: meta.generation,
        server: Some(spec.server_address.clone()),
        topic: Some(spec.topic.clone()),
        subscription: Some(spec.subscription_name.clone()),
        replicas: Some(own.map_or(0, |own| own.replicas)),
        ready_replicas: Some(own.map_or(0, |own| own.ready)),
        selector: Some(own.and_then(selector).unwrap_or_else(|| {
            format!("{NAME_LABEL}={}", label_value(meta.name.as_deref().unwrap_or_default()))
        })),
        conditions: conditions::next(&before.conditions, [available, applied], meta.generation, now),
    }
}

/// The Deployment's selector, as a query writes it.
fn selector(own: &Deployment) -> Option<String> {
    let selector: LabelSelector = serde_json::from_value(own.spec.get("selector")?.clone()).ok()?;
    Some(Selector::try_from(selector).ok()?.to_string())
}

/// Whether as many consumers are ready as are wanted.
fn available(consumer: &PulsarConsumer, own: Option<&Deployment>) -> Wanted {
    let wanted = consumer.spec.replicas;
    let Some(own) = own else {
        return Wanted {
            type_: AVAILABLE,
            status: Some(false),
            reason: "DeploymentMissing",
            message: format!("There is no Deployment {}.", deployment_name(consumer)),
        };
    };
    let enough = own.ready >= wanted && is_current(own);
    let counts = if wanted == 0 && own.ready == 0 {
        "No consumer is wanted".to_owned()
    } else {
        format!("{} of {wanted} consumers are ready", own.ready)
    };
    Wanted {
        type_: AVAILABLE,
        status: Some(enough),
        reason: match (enough, &own.trouble) {
            (true, _) => "ConsumersReady",
            (false, Some(_)) => "DeploymentTrouble",
            (false, None) => "ConsumersNotReady",
        },
        message: match &own.trouble {
            Some(trouble) => format!("{counts}: {trouble}"),
            None => format!("{counts}."),
        },
    }
}

/// Whether the Deployment is as this object asks.
fn applied(consumer: &PulsarConsumer, standing: &Standing<'_>) -> Wanted {
    let name = deployment_name(consumer);
    let (status, reason, message) = match standing {
        Standing::Settled(_) | Standing::Due { .. } => {
            (true, "AsSpecified", format!("Deployment {name} is as specified."))
        }
        Standing::Refused(refusal, _) => {
            (false, "Refused", format!("Deployment {name} was refused: {}", refusal.message))
        }
        Standing::Overruled(path, _) => (
            false,
            OVERRULED,
            format!(
                "Deployment {name} was applied, but its {path} is not what was asked for: look for an \
                 admission webhook that changes it."
            ),
        ),
        Standing::Terminating(_) => {
            (false, "DeploymentTerminating", format!("Deployment {name} is being deleted, then made again."))
        }
        Standing::NotOwned(found) => {
            let owner = match &found.meta.owner {
                Some(owner)
                    if *owner.kind == *"PulsarConsumer"
                        && Some(&*owner.name) == consumer.meta().name.as_deref() =>
                {
                    format!("an earlier PulsarConsumer {} (UID {})", owner.name, owner.uid)
                }
                Some(owner) => format!("{} {}", owner.kind, owner.name),
                None => "nobody".to_owned(),
            };
            (
                false,
                NOT_OWNED,
                format!(
                    "Deployment {name} exists already and belongs to {owner}. It is left alone: delete it, or \
                     give this PulsarConsumer another name."
                ),
            )
        }
    };
    Wanted { type_: APPLIED, status: Some(status), reason, message }
}

/// The reason of a condition.
fn reason<'a>(status: &'a PulsarConsumerStatus, type_: &str) -> Option<&'a str> {
    status.conditions.iter().find(|one| one.type_ == type_).map(|one| one.reason.as_str())
}

/// An Event when the Deployment is found in other hands, made from the difference of two statuses so that it comes
/// once. (What the API server refuses is reported where it is sent.)
fn announce(before: &PulsarConsumerStatus, after: &PulsarConsumerStatus, events: &mut Vec<Event>) {
    for wanted in [NOT_OWNED, OVERRULED] {
        if reason(after, APPLIED) == Some(wanted) && reason(before, APPLIED) != Some(wanted) {
            let note = after.conditions.iter().find(|one| one.type_ == APPLIED);
            events.push(Event {
                type_: EventType::Warning,
                reason: wanted,
                action: "Apply",
                note: note.map(|one| one.message.clone()).unwrap_or_default(),
            });
        }
    }
}

#[cfg(test)]
mod tests;
