//! The status of a PulsarConsumer: figures, and conditions with reasons that a user can act on.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource as _;
use quintet_runtime::model::conditions::{self, READY, Wanted};
use quintet_runtime::model::core_types::{Deployment, Exit, Pod};
use quintet_runtime::model::plan::{Event, EventType};
use quintet_runtime::model::resource::DEPLOYMENTS;

use crate::api::{PulsarConsumer, PulsarConsumerStatus};
use crate::backlog::backlog_status;
use crate::deployment::{CONTAINER, NAME_LABEL, deployment_name, is_current, is_rolled_out, label_value};
use crate::keda::{
    KedaObject, SCALED_OBJECTS, TRIGGER_AUTHENTICATIONS, scaled_object_name, trigger_authentication_name,
};
use crate::managed_object::{ApplyState, DRIFTED, NOT_OWNED};
use crate::observe::World;
use crate::plan::{Scaling, is_about};

/// All desired consumers are ready.
pub const AVAILABLE: &str = "Available";
/// The Deployment matches the spec.
pub const APPLIED: &str = "Applied";
/// The Deployment's condition.
pub const PROGRESSING: &str = "Progressing";
/// The backlog is known.
pub const BACKLOG_OBSERVED: &str = "BacklogObserved";
/// KEDA scales the object.
pub const AUTOSCALING_READY: &str = "AutoscalingReady";

/// The status.
pub fn status(
    consumer: &PulsarConsumer,
    world: &World,
    apply_state: &ApplyState<'_, Deployment>,
    scaling: &Scaling<'_>,
    before: &PulsarConsumerStatus,
    now: Timestamp,
) -> PulsarConsumerStatus {
    let (meta, spec) = (consumer.meta(), &consumer.spec);
    let own = apply_state.own();
    let applied = applied(consumer, apply_state);
    let available = match apply_state {
        ApplyState::NotOwned(_) | ApplyState::Terminating(_) => {
            Ok(Wanted { type_: AVAILABLE, ..applied.clone() })
        }
        // Enough pods are ready, perhaps of an older spec, so the condition stays.
        _ if own.is_some_and(|own| own.ready >= desired(consumer, own) && !is_current(own)) => Err(AVAILABLE),
        _ => Ok(steady(available(consumer, world, own), before)),
    };
    let ready = steady(ready(consumer, world, &applied, own), before);
    let rollout = rollout(own, &ready);
    let mut wanted = vec![available, Ok(applied), Ok(ready)];
    wanted.extend(rollout);
    if spec.admin_url.is_some() {
        wanted.push(backlog_observed(world));
    }
    wanted.extend(autoscaling_ready(consumer, scaling));
    let backlog = match spec.admin_url {
        Some(_) if is_about(consumer, before) => backlog_status(before, world.backlog.as_ref(), now),
        // The backlog in the status is of another topic.
        Some(_) => backlog_status(&PulsarConsumerStatus::default(), world.backlog.as_ref(), now),
        None => PulsarConsumerStatus::default(),
    };
    PulsarConsumerStatus {
        observed_generation: meta.generation,
        server: Some(spec.server_address.clone()),
        topic: Some(spec.shown_topics().into_owned()),
        subscription: Some(spec.subscription_name.clone()),
        replicas: Some(own.map_or(0, |own| own.replicas)),
        updated_replicas: Some(own.map_or(0, |own| own.updated)),
        ready_replicas: Some(own.map_or(0, |own| own.ready)),
        selector: Some(format!("{NAME_LABEL}={}", label_value(consumer))),
        conditions: next(&standing_conditions(consumer, before), wanted, meta.generation, now),
        ..backlog
    }
}

/// The status of an object without topics. Its Deployment stays as it is.
pub fn without_topics(
    consumer: &PulsarConsumer,
    before: PulsarConsumerStatus,
    now: Timestamp,
) -> PulsarConsumerStatus {
    let generation = consumer.meta().generation;
    let message = "Set exactly one of spec.topic, spec.topics and spec.topicsPattern.".to_owned();
    let applied = Wanted { type_: APPLIED, status: Some(false), reason: "TopicMissing", message };
    let wanted = [Wanted { type_: READY, ..applied.clone() }, applied];
    let conditions = conditions::next(&before.conditions, wanted, generation, now);
    PulsarConsumerStatus { observed_generation: generation, conditions, ..before }
}

/// The last conditions, except those about another topic.
fn standing_conditions(consumer: &PulsarConsumer, before: &PulsarConsumerStatus) -> Vec<Condition> {
    let about = is_about(consumer, before);
    let kept = before.conditions.iter().filter(|one| about || one.type_ != BACKLOG_OBSERVED);
    kept.cloned().collect()
}

/// Keeps the last message for a consumer that keeps failing, because its last output may have a new timestamp
/// each time.
fn steady(wanted: Wanted, before: &PulsarConsumerStatus) -> Wanted {
    let said =
        condition(before, wanted.type_).filter(|one| one.reason == wanted.reason && wanted.reason == FAILED);
    let begins = |text: &str| text.split_once(LAST_WORDS).map(|(begin, _)| begin.to_owned());
    match said {
        Some(said) if begins(&said.message).is_some() && begins(&said.message) == begins(&wanted.message) => {
            Wanted { message: said.message.clone(), ..wanted }
        }
        _ => wanted,
    }
}

/// The reason while pods are replaced or created.
const UNFINISHED: &str = "RolloutUnfinished";
/// The reason if another client scales the Deployment.
const MANAGED_ELSEWHERE: &str = "ReplicasManagedElsewhere";
/// The reason of a consumer that has ended.
const FAILED: &str = "ConsumerFailed";
/// The text before the last output of a container.
const LAST_WORDS: &str = "; last output";

/// The type of a condition that this process has not observed yet, so that the last one stays.
type Unlooked = &'static str;

/// The conditions of the next status, in their order.
fn next(
    before: &[Condition],
    wanted: Vec<Result<Wanted, Unlooked>>,
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let mut all = Vec::new();
    for one in wanted {
        let wanted = match one {
            Ok(wanted) => wanted,
            Err(type_) => match before.iter().find(|condition| condition.type_ == type_) {
                Some(stands) => {
                    all.push(Condition { observed_generation: generation, ..stands.clone() });
                    continue;
                }
                None => Wanted {
                    type_,
                    status: None,
                    reason: "NotObservedYet",
                    message: "Not observed yet.".to_owned(),
                },
            },
        };
        all.extend(conditions::next(before, [wanted], generation, now));
    }
    all
}

/// The desired number of consumers: that of the Deployment if another client scales it.
fn desired(consumer: &PulsarConsumer, own: &Deployment) -> i32 {
    let scaled = own.spec["replicas"].as_i64().filter(|_| own.scaled_by.is_some());
    scaled.and_then(|replicas| replicas.try_into().ok()).unwrap_or(consumer.spec.replicas)
}

/// The desired consumers by the last status: the existing pods if another client scales the Deployment.
pub fn desired_replicas(consumer: &PulsarConsumer) -> i32 {
    let is_scaled = |one: &Condition| one.type_ == APPLIED && one.reason == MANAGED_ELSEWHERE;
    let status = consumer.status.as_ref().filter(|status| status.conditions.iter().any(is_scaled));
    status.and_then(|status| status.replicas).unwrap_or(consumer.spec.replicas)
}

/// Whether all desired consumers are ready.
fn available(consumer: &PulsarConsumer, world: &World, own: Option<&Deployment>) -> Wanted {
    let say = |status, reason, message| Wanted { type_: AVAILABLE, status: Some(status), reason, message };
    let Some(own) = own else {
        let message = format!("There is no Deployment {}.", deployment_name(consumer));
        return say(false, "DeploymentMissing", message);
    };
    let wanted = desired(consumer, own);
    let counts = if wanted == 0 && own.ready == 0 {
        "No consumer is desired".to_owned()
    } else {
        format!("{} of {wanted} consumers are ready", own.ready)
    };
    if own.ready >= wanted && is_current(own) {
        // A rollout may be stuck while pods of the older template are ready.
        let updated = match own.updated {
            updated if is_rolled_out(own) || updated >= wanted => String::new(),
            updated => format!(", {updated} of {wanted} have the current template"),
        };
        let trouble = own.trouble.as_ref().map_or_else(|| ".".to_owned(), |trouble| format!(": {trouble}"));
        return say(true, "ConsumersReady", format!("{counts}{updated}{trouble}"));
    }
    if let Some((reason, trouble)) = obstacle(world, own) {
        return say(false, reason, format!("{counts}: {trouble}"));
    }
    let describe = world.unready.first().map_or_else(String::new, |pod| {
        let pod = &pod.meta.name;
        format!(" To see why pod {pod} is not ready, run: kubectl describe pod {pod}")
    });
    say(false, "ConsumersNotReady", format!("{counts}.{describe}"))
}

/// Why consumers are not ready, from their pods, then from the Deployment.
fn obstacle(world: &World, own: &Deployment) -> Option<(&'static str, String)> {
    let of_pods = world.unready.iter().find_map(|pod| trouble(pod));
    of_pods.or_else(|| own.trouble.as_ref().map(|trouble| ("DeploymentTrouble", trouble.to_string())))
}

/// Whether the rollout of the current spec is complete, as kstatus and `kubectl wait` read it.
fn ready(consumer: &PulsarConsumer, world: &World, applied: &Wanted, own: Option<&Deployment>) -> Wanted {
    if applied.status == Some(false) && applied.reason != MANAGED_ELSEWHERE {
        return Wanted { type_: READY, ..applied.clone() };
    }
    let Some(own) = own else {
        return Wanted { type_: READY, ..available(consumer, world, own) };
    };
    let say = |status, reason, message| Wanted { type_: READY, status: Some(status), reason, message };
    let wanted = &own.spec["replicas"];
    let counts =
        format!("{} of {wanted} consumers have the current template, {} are ready", own.updated, own.ready);
    if is_rolled_out(own) && own.ready >= own.replicas {
        return say(true, "ConsumersReady", format!("{counts}."));
    }
    match obstacle(world, own) {
        Some((reason, trouble)) => say(false, reason, format!("{counts}: {trouble}")),
        None => say(false, UNFINISHED, format!("{counts}.")),
    }
}

/// The Deployment's condition Progressing, and the condition Stalled if the deadline is exceeded.
fn rollout(own: Option<&Deployment>, ready: &Wanted) -> Vec<Result<Wanted, Unlooked>> {
    let Some(own) = own else { return Vec::new() };
    let Some(found) = own.progressing.as_ref().filter(|_| is_current(own)) else {
        return own.progressing.iter().map(|_| Err(PROGRESSING)).collect();
    };
    let reason = PROGRESSING_REASONS.split(' ').find(|reason| *reason == &*found.reason);
    let (status, reason) = (found.status, reason.unwrap_or("OtherReason"));
    let mut all = vec![Ok(Wanted { type_: PROGRESSING, status, reason, message: found.message.to_string() })];
    if status == Some(false) && ready.status == Some(false) {
        all.push(Ok(Wanted { reason, ..ready.stalled() }));
    }
    all
}

/// The reasons of the Deployment controller.
const PROGRESSING_REASONS: &str = "NewReplicaSetCreated FoundNewReplicaSet ReplicaSetUpdated NewReplicaSetAvailable \
     ReplicaSetCreateError ProgressDeadlineExceeded DeploymentPaused DeploymentResumed";

/// Why a pod is not ready, from its status. The text must be stable, although a kubelet alternates between
/// words for the same failure.
fn trouble(pod: &Pod) -> Option<(&'static str, String)> {
    let name = &pod.meta.name;
    if let Some(words) = &pod.unschedulable {
        return Some(("Unschedulable", format!("no node fits pod {name}: {words}")));
    }
    let failed = |exit: &Exit| {
        let (code, last_words) = (exit.code, exit.message.lines().last().unwrap_or(&exit.reason));
        let of = if *exit.container == *CONTAINER { "" } else { &format!(" of {}", exit.container) };
        (FAILED, format!("pod {name} exited with exit code {code}{LAST_WORDS}{of}: {last_words}"))
    };
    if let Some(exit) = &pod.crashed {
        return Some(failed(exit));
    }
    match pod.waiting.as_deref() {
        Some(waiting) if waiting.contains("Image") => {
            return Some(("ImagePullFailed", format!("cannot pull an image of pod {name}")));
        }
        Some("CreateContainerConfigError" | "CreateContainerError" | "RunContainerError") => {
            return Some(("ContainerNotCreated", format!("cannot create a container of pod {name}")));
        }
        _ => {}
    }
    // The container failed before its current start.
    pod.last_exit.as_deref().map(failed)
}

/// Whether the Deployment matches the spec.
fn applied(consumer: &PulsarConsumer, apply_state: &ApplyState<'_, Deployment>) -> Wanted {
    let name = deployment_name(consumer);
    let replicas = consumer.spec.replicas;
    let scaled = apply_state.own().filter(|own| own.spec["replicas"] != replicas);
    let scaled = scaled.and_then(|own| own.scaled_by.as_ref());
    let (status, reason, message) = match (apply_state.trouble(&DEPLOYMENTS, &name), scaled) {
        (Some((reason, message)), _) => (false, reason, message),
        (None, Some(manager)) => (
            false,
            MANAGED_ELSEWHERE,
            format!(
                "{manager} scales Deployment {name}, and spec.replicas ({replicas}) is not applied. Let it scale the \
                 PulsarConsumer instead, then run: kubectl scale deployment {name} --replicas={replicas}"
            ),
        ),
        (None, None) => (true, "AsSpecified", format!("Deployment {name} matches the spec.")),
    };
    Wanted { type_: APPLIED, status: Some(status), reason, message }
}

fn backlog_observed(world: &World) -> Result<Wanted, Unlooked> {
    let reading = world.backlog.as_ref().ok_or(BACKLOG_OBSERVED)?;
    let (status, reason, message) = match &reading.figures {
        Ok(_) => (true, "Observed", "The backlog is read from the admin API.".to_owned()),
        Err(unknown) => (false, unknown.reason, unknown.message.clone()),
    };
    Ok(Wanted { type_: BACKLOG_OBSERVED, status: Some(status), reason, message })
}

fn autoscaling_ready(consumer: &PulsarConsumer, scaling: &Scaling<'_>) -> Option<Result<Wanted, Unlooked>> {
    let (status, reason, message) = match scaling {
        Scaling::Off => return None,
        Scaling::Unknown => return Some(Err(AUTOSCALING_READY)),
        Scaling::NoKeda => (
            Some(false),
            "KedaMissing",
            "The manager finds no ScaledObjects. Install KEDA; the manager detects it within two minutes. If KEDA is \
             installed, set the chart value pulsarConsumer.autoscaling to true."
                .to_owned(),
        ),
        Scaling::Waiting => (None, "NotObservedYet", "The backlog has not been read yet.".to_owned()),
        Scaling::On { authentication, scaled_object } => {
            let name = trigger_authentication_name(consumer);
            let trouble =
                authentication.as_ref().and_then(|one| one.trouble(&TRIGGER_AUTHENTICATIONS, &name));
            let name = scaled_object_name(consumer);
            match trouble.or_else(|| scaled_object.trouble(&SCALED_OBJECTS, &name)) {
                Some((reason, message)) => (Some(false), reason, message),
                None => match scaled_object.own().and_then(|own| own.ready.as_ref()) {
                    Some(ready) if ready.is_true => {
                        let limit = partition_limit(consumer, scaled_object);
                        (Some(true), "ScaledObjectReady", format!("ScaledObject {name} is ready.{limit}"))
                    }
                    Some(ready) => (
                        Some(false),
                        "ScaledObjectNotReady",
                        format!("ScaledObject {name} is not ready: {}", ready.message),
                    ),
                    None => {
                        (None, "KedaPending", format!("KEDA has not reported on ScaledObject {name} yet."))
                    }
                },
            }
        }
    };
    Some(Ok(Wanted { type_: AUTOSCALING_READY, status, reason, message }))
}

/// A sentence about the partitions, if they limit the pods.
fn partition_limit(consumer: &PulsarConsumer, scaled_object: &ApplyState<'_, KedaObject>) -> String {
    let max = scaled_object.own().and_then(|own| own.spec["maxReplicaCount"].as_i64());
    let wanted = consumer.spec.autoscaling.as_ref().map(|autoscaling| i64::from(autoscaling.max_replicas));
    match (max, wanted) {
        (Some(max), Some(wanted)) if max < wanted => format!(
            " It runs at most {max} of {wanted} pods, because each partition has only one active Failover consumer."
        ),
        _ => String::new(),
    }
}

/// A condition of a status.
pub fn condition<'a>(status: &'a PulsarConsumerStatus, type_: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|one| one.type_ == type_)
}

/// Returns Events for new problems that a user should know, from the difference of two statuses, so that each
/// is recorded once. The executor reports rejected writes.
pub fn events(before: &PulsarConsumerStatus, after: &PulsarConsumerStatus) -> Vec<Event> {
    /// Reasons that are temporary, or that another Event reports.
    const QUIET: [&str; 6] =
        ["ConsumersNotReady", "DeploymentMissing", "Refused", "Terminating", "NotObservedYet", "KedaPending"];
    let is_available = conditions::is_true(&after.conditions, AVAILABLE);
    let is_of_apply =
        |reason: &str| condition(after, APPLIED).is_some_and(|applied| applied.reason == reason);
    let mut events: Vec<Event> = Vec::new();
    for now in after.conditions.iter().filter(|now| now.status != "True") {
        let was = condition(before, &now.type_);
        let is_news = was.is_none_or(|was| was.status != now.status || was.reason != now.reason);
        if !is_news || QUIET.contains(&now.reason.as_str()) {
            continue;
        }
        let (reason, action) = match now.type_.as_str() {
            APPLIED if now.reason == NOT_OWNED => (NOT_OWNED, "Apply"),
            APPLIED if now.reason == DRIFTED => (DRIFTED, "Apply"),
            AVAILABLE if now.reason != NOT_OWNED && now.reason != DRIFTED => {
                ("ConsumersUnavailable", "Consume")
            }
            READY if !is_available || now.reason == UNFINISHED || is_of_apply(&now.reason) => continue,
            READY => ("RolloutBlocked", "Update"),
            BACKLOG_OBSERVED => ("BacklogUnknown", "ObserveBacklog"),
            AUTOSCALING_READY => ("AutoscalingNotReady", "Autoscale"),
            _ => continue,
        };
        let note = format!("{}: {}", now.reason, now.message);
        events.push(Event { type_: EventType::Warning, reason, action, note });
    }
    events
}
