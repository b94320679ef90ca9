//! What should be done for one PodSet: a pure function of what is observed and the time.

use std::collections::BTreeSet;
use std::iter::repeat;
use std::sync::{Arc, LazyLock};

use jiff::{SignedDuration, Timestamp};
use kube::Resource as _;
use quintet_kit::clock::{doubled, whole_seconds};
use quintet_kit::conditions::{self, Wanted};
use quintet_kit::object::{Object as _, controller_reference};
use quintet_kit::plan::{Action, Plan, Refusal};
use quintet_kit::resource::{PODS, Resource};
use quintet_kit::template::RawTemplate;
use quintet_kit::types::Pod;
use quintet_kit::{KIND_LABEL, digest};
use serde_json::json;

use crate::api::{PodSet, PodSetStatus};
use crate::observe::World;
use crate::ranking::ranked;

/// Label: the PodSet's name, as the post set it.
pub const NAME_LABEL: &str = "app";
/// Label: what the post set beside the name. A template may have one of its own.
pub const VERSION_LABEL: &str = "version";
/// Label: the PodSet's UID.
pub const UID_LABEL: &str = "batch.tutorial.kubebuilder.io/podset-uid";
/// Annotation: how many pods in a row have ended so early that this one is their replacement.
pub const ATTEMPT_ANNOTATION: &str = "batch.tutorial.kubebuilder.io/attempt";

/// The value of [`VERSION_LABEL`], from the post.
const VERSION: &str = "v0.1";
/// Pod names that the status lists.
const MOST_NAMES: usize = 100;
/// Characters of the PodSet's name that its pods' names begin with: with `-pod-` and 10 more they are host names.
const NAME_LENGTH: usize = 48;
/// The age at which the second of two pods that end in a row is replaced, as the Job controller's first wait.
const FIRST_BACKOFF: SignedDuration = SignedDuration::from_secs(10);
/// The longest such age, as the Job controller's. A pod that lives for longer ends the row.
const LONGEST_BACKOFF: SignedDuration = SignedDuration::from_mins(10);

/// The post's pod.
static DEFAULT_TEMPLATE: LazyLock<RawTemplate> = LazyLock::new(|| {
    RawTemplate(json!({"spec": {"containers": [
        {"name": "busybox", "image": "busybox", "command": ["sleep", "3600"]}]}}))
});

/// Makes the plan.
pub fn plan(podset: &PodSet, world: &World, now: Timestamp) -> Plan<PodSetStatus> {
    let mut plan = Plan::default();
    if podset.terminating() {
        // Owner references take the pods away; a status would come too late to be read.
        return plan;
    }
    // What was stored before there was a schema may ask for less than none.
    let wanted = usize::try_from(podset.spec.replicas).unwrap_or_default();
    let counted: Vec<&Arc<Pod>> = world.pods.iter().filter(|pod| pod.is_counted()).collect();
    let missing = wanted.saturating_sub(counted.len());
    let surplus = counted.len().saturating_sub(wanted);

    // A pod that has ended stays for as long as its replacement must wait: it is what remembers the wait.
    let mut going = Vec::new();
    let mut attempts = Vec::new();
    let mut held = Vec::new();
    for pod in world.pods.iter().filter(|pod| !pod.is_running() && pod.meta.deleted.is_none()) {
        match replaced_at(pod) {
            Some(at) if at > now && held.len() < missing => held.push(at),
            _ => {
                attempts.push(next_attempt(pod));
                going.push(pod);
            }
        }
    }
    if surplus > 0 {
        going.extend(ranked(counted.clone(), now).into_iter().take(surplus));
    }
    let held_until = held.iter().min().copied();
    if let Some(at) = held_until {
        plan.look_again(at);
    }
    attempts.sort_unstable_by(|one, other| other.cmp(one));
    let attempts = attempts.into_iter().chain(repeat(0));

    let mut failed_delete = None;
    let mut deletes = Vec::new();
    for pod in going {
        let refusal = refusal(world, "delete", &pod.meta.name);
        failed_delete = failed_delete.or(refusal.map(|refusal| ("FailedDelete", refusal)));
        match refusal.filter(|refusal| refusal.until > now) {
            Some(refusal) => plan.look_again(refusal.until),
            None => deletes.push(delete(pod)),
        }
    }
    // A refused name is waited for and not stepped over: what a quota refuses it would refuse under any name. Names
    // before it are free to be tried.
    let mut failed_create = None;
    let mut creates = Vec::new();
    let mut more = Vec::new();
    for (name, attempt) in free_names(podset, world).zip(attempts).take(missing - held.len()) {
        let refusal = refusal(world, "create", &name);
        if let Some(refusal) = refusal.filter(|refusal| refusal.until > now) {
            plan.look_again(refusal.until);
            failed_create = failed_create.or(Some(("FailedCreate", refusal)));
            break;
        }
        // What was refused is tried alone; the rest follows if it goes through.
        let step = if failed_create.is_none() { &mut creates } else { &mut more };
        step.push(create(podset, name, attempt));
        failed_create = failed_create.or(refusal.map(|refusal| ("FailedCreate", refusal)));
    }
    // An ended pod goes after its replacement has come: until then it keeps its name, so that whoever makes this
    // plan again uses the same names. It goes before what was refused, which a quota on objects may have been.
    let steps = if failed_create.is_none() { [creates, more, deletes] } else { [deletes, creates, more] };
    plan.steps = steps.into_iter().filter(|step| !step.is_empty()).collect();
    plan.status =
        Some(status(podset, world, wanted, held_until, failed_create.or(failed_delete), &mut plan, now));
    plan
}

/// When a pod that has ended may be replaced: at once, unless it replaced one that had ended too. Then it must
/// have reached an age, so that pods that fail over and over are made ever more slowly.
fn replaced_at(pod: &Pod) -> Option<Timestamp> {
    let wait = doubled(FIRST_BACKOFF, attempt(pod).checked_sub(1)?, LONGEST_BACKOFF);
    pod.meta.created?.checked_add(wait).ok()
}

/// The attempt that the replacement of a pod is.
fn next_attempt(pod: &Pod) -> u32 {
    // A pod that no container ran in has lived for no time.
    let lived = pod.finished.zip(pod.meta.created).map(|(end, begin)| end.duration_since(begin));
    if lived.is_some_and(|lived| lived >= LONGEST_BACKOFF) { 0 } else { attempt(pod).saturating_add(1) }
}

fn attempt(pod: &Pod) -> u32 {
    pod.meta.annotations.get(ATTEMPT_ANNOTATION).and_then(|attempt| attempt.parse().ok()).unwrap_or_default()
}

fn refusal<'a>(world: &'a World, verb: &'static str, name: &str) -> Option<&'a Refusal> {
    world.refusals.of(verb, name)
}

/// The names that pods can be given, in order: those that no pod has, terminating and ended ones included, and that
/// are not known to be a stranger's.
fn free_names<'a>(podset: &'a PodSet, world: &'a World) -> impl Iterator<Item = String> + 'a {
    let taken: BTreeSet<&str> = world.pods.iter().map(|pod| &*pod.meta.name).collect();
    (0..).map(|number| pod_name(podset, number)).filter(move |name| {
        !taken.contains(name.as_str())
            && refusal(world, "create", name).is_none_or(|refusal| refusal.reason != "NameTaken")
    })
}

/// The name of a pod: the same for whoever makes it, so that two makers collide at the API server.
fn pod_name(podset: &PodSet, number: u64) -> String {
    let uid = podset.meta().uid.as_deref().unwrap_or_default();
    let name = podset.meta().name.as_deref().unwrap_or_default();
    format!("{}-pod-{}", digest::cut(name, NAME_LENGTH), digest::short(&[uid, &number.to_string()], 10))
}

fn create(podset: &PodSet, pod_name: String, attempt: u32) -> Action<PodSetStatus> {
    let meta = podset.meta();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let template = podset.spec.template.as_ref().unwrap_or(&DEFAULT_TEMPLATE);
    let mut labels = vec![
        (KIND_LABEL, "PodSet"),
        (NAME_LABEL, meta.name.as_deref().unwrap_or_default()),
        (UID_LABEL, meta.uid.as_deref().unwrap_or_default()),
    ];
    if template.0.pointer("/metadata/labels").is_none_or(|theirs| theirs.get(VERSION_LABEL).is_none()) {
        labels.push((VERSION_LABEL, VERSION));
    }
    let attempt = (attempt > 0).then(|| attempt.to_string());
    let annotations: Vec<_> = attempt.iter().map(|attempt| (ATTEMPT_ANNOTATION, attempt.as_str())).collect();
    let owner = controller_reference(&Resource::of::<PodSet>(), meta);
    let body = template.pod(namespace, &pod_name, &owner, &labels, &annotations, None);
    Action::Create { resource: PODS, namespace: namespace.into(), name: pod_name, body }
}

fn delete(pod: &Pod) -> Action<PodSetStatus> {
    Action::Delete {
        resource: PODS,
        namespace: pod.meta.namespace.clone(),
        name: pod.meta.name.clone(),
        uid: pod.meta.uid.clone(),
        resource_version: None,
    }
}

fn status(
    podset: &PodSet,
    world: &World,
    wanted: usize,
    held_until: Option<Timestamp>,
    failure: Option<(&'static str, &Refusal)>,
    plan: &mut Plan<PodSetStatus>,
    now: Timestamp,
) -> PodSetStatus {
    let counted: Vec<&Arc<Pod>> = world.pods.iter().filter(|pod| pod.is_counted()).collect();
    let ready: Vec<&Arc<Pod>> = counted.iter().filter(|pod| pod.ready_since.is_some()).copied().collect();
    let must_be_ready = SignedDuration::from_secs(podset.spec.min_ready_seconds.unwrap_or_default().into());
    let mut available = 0;
    for pod in &ready {
        match pod.ready_since.and_then(|since| since.checked_add(must_be_ready).ok()) {
            Some(at) if at > now => plan.look_again(at),
            Some(_) => available += 1,
            None => {}
        }
    }
    let mut pod_names: Vec<String> = ready.iter().map(|pod| pod.meta.name.to_string()).collect();
    pod_names.sort_unstable();
    pod_names.truncate(MOST_NAMES);

    let enough = available >= wanted;
    let waits = held_until
        .filter(|_| !enough)
        .map(|at| format!(" Pods keep ending: the next one is made at {}.", whole_seconds(at)))
        .unwrap_or_default();
    let message = format!("{} of {wanted} pods are available.{waits}", available.min(wanted));
    let conditions = [
        Wanted {
            type_: "Available",
            status: Some(enough),
            reason: if enough { "PodsAvailable" } else { "PodsUnavailable" },
            message,
        },
        Wanted {
            type_: "ReplicaFailure",
            status: Some(failure.is_some()),
            reason: failure.map_or("NoFailure", |(reason, _)| reason),
            message: failure.map(|(_, refusal)| refusal.message.clone()).unwrap_or_default(),
        },
    ];
    let before = podset.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
    let meta = podset.meta();
    PodSetStatus {
        observed_generation: meta.generation,
        replicas: number(counted.len()),
        ready_replicas: number(ready.len()),
        available_replicas: number(available),
        terminating_replicas: number(
            world.pods.iter().filter(|pod| pod.is_running() && pod.meta.deleted.is_some()).count(),
        ),
        pod_names,
        selector: Some(format!(
            "{NAME_LABEL}={},{UID_LABEL}={}",
            meta.name.as_deref().unwrap_or_default(),
            meta.uid.as_deref().unwrap_or_default()
        )),
        conditions: conditions::next(before, conditions, meta.generation, now),
    }
}

fn number(count: usize) -> Option<i32> {
    i32::try_from(count).ok()
}

#[cfg(test)]
mod tests;
