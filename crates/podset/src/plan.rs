//! What should be done for one PodSet: a pure function of what is observed and the time.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::iter::repeat;
use std::sync::{Arc, LazyLock};

use jiff::{SignedDuration, Timestamp};
use kube::Resource as _;
use quintet_kit::clock::doubled;
use quintet_kit::object::{Object as _, controller_reference};
use quintet_kit::plan::{Action, Event, EventType, Plan, Refusal};
use quintet_kit::resource::{PODS, Resource};
use quintet_kit::template::RawTemplate;
use quintet_kit::types::Pod;
use quintet_kit::{KIND_LABEL, digest};
use serde_json::json;

use crate::api::{PodSet, PodSetStatus};
use crate::observe::World;
use crate::rollout::{Limits, Member, rollout};
use crate::status::{Findings, news, status};

/// Label: the PodSet's name, as the post set it.
pub const NAME_LABEL: &str = "app";
/// Label: what the post set beside the name. A template may have one of its own.
pub const VERSION_LABEL: &str = "version";
/// Label: the PodSet's UID.
pub const UID_LABEL: &str = "batch.tutorial.kubebuilder.io/podset-uid";
/// Label: the hash of the template that the pod was made from.
pub const HASH_LABEL: &str = "batch.tutorial.kubebuilder.io/template-hash";
/// Annotation: how many pods in a row have ended so early that this one is their replacement.
pub const ATTEMPT_ANNOTATION: &str = "batch.tutorial.kubebuilder.io/attempt";

/// The value of [`VERSION_LABEL`], from the post.
const VERSION: &str = "v0.1";
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

/// The hash of the built-in template: a changed one must not replace any pod.
const BUILT_IN_HASH: &str = "v1-default";

/// The hash of the template that pods are made from.
pub fn template_hash(podset: &PodSet) -> Cow<'static, str> {
    podset.spec.template.as_ref().map_or(Cow::Borrowed(BUILT_IN_HASH), |template| template.hash().into())
}

/// Makes the plan.
pub fn plan(podset: &PodSet, world: &World, now: Timestamp) -> Plan<PodSetStatus> {
    let mut plan = Plan::default();
    if podset.terminating() {
        // Owner references take the pods away; a status would come too late to be read.
        return plan;
    }
    if !world.unmigrated.is_empty() {
        // They are counted when the cache shows them.
        plan.steps = vec![world.unmigrated.iter().map(|pod| adopt(podset, pod)).collect()];
        return plan;
    }
    let limits = Limits::of(podset);
    let hash = template_hash(podset);
    let members = members(podset, world, &hash, now, &mut plan);
    let rollout = rollout(limits, &podset.spec.pods_to_delete, members.clone(), now);
    let missing = rollout.allowed.saturating_sub(members.len());

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
    going.extend(&rollout.going);
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
    for (name, attempt) in free_names(podset, world, now).zip(attempts).take(missing - held.len()) {
        let refusal = refusal(world, "create", &name).filter(|refusal| refusal.reason != "NameTaken");
        if let Some(refusal) = refusal.filter(|refusal| refusal.until > now) {
            plan.look_again(refusal.until);
            failed_create = failed_create.or(Some(("FailedCreate", refusal)));
            break;
        }
        // What was refused is tried alone; the rest follows if it goes through.
        let step = if failed_create.is_none() { &mut creates } else { &mut more };
        step.push(create(podset, &hash, name, attempt));
        failed_create = failed_create.or(refusal.map(|refusal| ("FailedCreate", refusal)));
    }
    // An ended pod goes after its replacement has come: until then it keeps its name, so that whoever makes this
    // plan again uses the same names. It goes before what was refused, which a quota on objects may have been.
    let releases = releases(podset, world);
    let steps = if failed_create.is_none() {
        [releases, creates, more, deletes]
    } else {
        [releases, deletes, creates, more]
    };
    plan.steps = steps.into_iter().filter(|step| !step.is_empty()).collect();
    let is_going = |pod: &&Arc<Pod>| pod.is_running() && pod.meta.deleted.is_some();
    let found = Findings {
        hash: &hash,
        wanted: limits.wanted,
        members,
        terminating: world.pods.iter().filter(is_going).count(),
        outdated: rollout.outdated,
        held_until,
        failure: failed_create.or(failed_delete),
    };
    let (status, again) = status(podset, &found, now);
    if let Some(again) = again {
        plan.look_again(again);
    }
    plan.events = news(podset.status.as_ref(), &status);
    if let Some(note) = &world.strangers {
        plan.events.push(Event {
            type_: EventType::Warning,
            reason: "PodsOfOthers",
            action: "Count",
            note: note.clone(),
        });
    }
    // The next plan relies on the time of the last progress: one of a predecessor that comes late must not count.
    plan.fenced = true;
    plan.status = Some(status);
    plan
}

/// The pods that count, and when one of them becomes available.
fn members<'a>(
    podset: &PodSet,
    world: &'a World,
    hash: &str,
    now: Timestamp,
    plan: &mut Plan<PodSetStatus>,
) -> Vec<Member<'a>> {
    let must_be_ready = SignedDuration::from_secs(podset.spec.min_ready_seconds.unwrap_or_default().into());
    let counted = world.pods.iter().filter(|pod| pod.is_counted() && has_labels(podset, pod));
    let members = counted.map(|pod| {
        let at = pod.ready_since.and_then(|since| since.checked_add(must_be_ready).ok());
        if let Some(at) = at.filter(|at| *at > now) {
            plan.look_again(at);
        }
        // One whose label somebody took off is taken to be of the current template: better none than a needless end.
        let outdated = pod.label(HASH_LABEL).is_some_and(|made_from| made_from != hash);
        Member { pod, outdated, available: at.is_some_and(|at| at <= now) }
    });
    members.collect()
}

/// Releases pods whose labels were taken away, and puts the label back by which pods are watched.
fn releases(podset: &PodSet, world: &World) -> Vec<Action<PodSetStatus>> {
    let strayed = world.pods.iter().filter(|pod| pod.is_counted() && !has_labels(podset, pod));
    let unmarked = world.unlabelled.iter().filter(|pod| has_labels(podset, pod));
    strayed.filter_map(|pod| release(pod)).chain(unmarked.map(|pod| mark(pod))).collect()
}

/// Whether a pod has the labels that the selector of its PodSet asks for.
fn has_labels(podset: &PodSet, pod: &Pod) -> bool {
    let meta = podset.meta();
    pod.label(NAME_LABEL) == meta.name.as_deref() && pod.label(UID_LABEL) == meta.uid.as_deref()
}

/// Lets a pod go on by itself: it is nobody's any more.
fn release(pod: &Pod) -> Option<Action<PodSetStatus>> {
    let operations = pod.meta.without_controller()?;
    Some(Action::Patch {
        resource: PODS,
        namespace: pod.meta.namespace.clone(),
        name: pod.meta.name.clone(),
        operations,
    })
}

fn label(pod: &Pod, labels: &serde_json::Value) -> Action<PodSetStatus> {
    Action::Merge {
        resource: PODS,
        namespace: pod.meta.namespace.clone(),
        name: pod.meta.name.clone(),
        body: json!({ "metadata": { "uid": &*pod.meta.uid, "labels": labels } }),
    }
}

/// Puts back the label by which pods are watched.
fn mark(pod: &Pod) -> Action<PodSetStatus> {
    label(pod, &json!({ KIND_LABEL: "PodSet" }))
}

/// Takes over a pod of the post's operator, whose built-in template was this one.
fn adopt(podset: &PodSet, pod: &Pod) -> Action<PodSetStatus> {
    let meta = podset.meta();
    label(
        pod,
        &json!({ KIND_LABEL: "PodSet", NAME_LABEL: meta.name, UID_LABEL: meta.uid, HASH_LABEL: BUILT_IN_HASH }),
    )
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
/// were not lately found to be a stranger's or a released pod's.
fn free_names<'a>(podset: &'a PodSet, world: &'a World, now: Timestamp) -> impl Iterator<Item = String> + 'a {
    let taken: BTreeSet<&str> = world.pods.iter().map(|pod| &*pod.meta.name).collect();
    (0..).map(|number| pod_name(podset, number)).filter(move |name| {
        !taken.contains(name.as_str())
            && refusal(world, "create", name)
                .is_none_or(|refusal| refusal.reason != "NameTaken" || refusal.until <= now)
    })
}

/// The name of a pod: the same for whoever makes it, so that two makers collide at the API server.
fn pod_name(podset: &PodSet, number: u64) -> String {
    let uid = podset.meta().uid.as_deref().unwrap_or_default();
    let name = podset.meta().name.as_deref().unwrap_or_default();
    format!("{}-pod-{}", digest::cut(name, NAME_LENGTH), digest::short(&[uid, &number.to_string()], 10))
}

fn create(podset: &PodSet, hash: &str, pod_name: String, attempt: u32) -> Action<PodSetStatus> {
    let meta = podset.meta();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let template = podset.spec.template.as_ref().unwrap_or(&DEFAULT_TEMPLATE);
    let mut labels = vec![
        (KIND_LABEL, "PodSet"),
        (NAME_LABEL, meta.name.as_deref().unwrap_or_default()),
        (UID_LABEL, meta.uid.as_deref().unwrap_or_default()),
        (HASH_LABEL, hash),
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

#[cfg(test)]
mod tests;
