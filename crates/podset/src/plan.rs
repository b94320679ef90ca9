//! The plan for one PodSet: a pure function of the observed state and the time.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::iter::repeat;
use std::sync::{Arc, LazyLock};

use jiff::{SignedDuration, Timestamp};
use kube::Resource as _;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::clock::{FIRST_BACKOFF, LONGEST_BACKOFF, doubled};
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::digest;
use quintet_runtime::model::object::{Object as _, controller_reference};
use quintet_runtime::model::plan::{Action, MOST_CREATIONS, Plan};
use quintet_runtime::model::pod_template::RawTemplate;
use quintet_runtime::model::refusals::{Refusal, RefusalReason, Verb};
use quintet_runtime::model::resource::{PODS, Resource};
use serde_json::json;

use crate::api::{PodReplacementPolicy, PodSet, PodSetStatus};
use crate::observe::World;
use crate::rollout::{CandidatePod, Limits, rollout};
use crate::status::{StatusInput, events, status};

/// Label: the PodSet's name, as in the tutorial.
pub const NAME_LABEL: &str = "app";
/// Label of the tutorial. A template may set it.
pub const VERSION_LABEL: &str = "version";
/// Label: the PodSet's UID.
pub const UID_LABEL: &str = "batch.tutorial.kubebuilder.io/podset-uid";
/// Label: the hash of the pod's template.
pub const HASH_LABEL: &str = "batch.tutorial.kubebuilder.io/template-hash";
/// Annotation: how many pods in a row ended early before this replacement.
pub const ATTEMPT_ANNOTATION: &str = "batch.tutorial.kubebuilder.io/attempt";

/// The value of [`VERSION_LABEL`] in the tutorial.
const VERSION: &str = "v0.1";
/// How many characters of the PodSet's name a pod's name has: with `-pod-` and 10 more it is a valid host
/// name.
const NAME_LENGTH: usize = 48;

/// The tutorial's pod.
static DEFAULT_TEMPLATE: LazyLock<RawTemplate> = LazyLock::new(|| {
    RawTemplate(json!({"spec": {"containers": [
        {"name": "busybox", "image": "busybox", "command": ["sleep", "3600"]}]}}))
});

/// The hash of the built-in template. It stays the same, so that a new built-in template replaces no pod.
const BUILT_IN_HASH: &str = "v1-default";

/// The hash of the current template.
pub fn template_hash(podset: &PodSet) -> Cow<'static, str> {
    podset.spec.template.as_ref().map_or(Cow::Borrowed(BUILT_IN_HASH), |template| template.hash().into())
}

/// Makes the plan.
pub fn plan(podset: &PodSet, world: &World, now: Timestamp) -> Plan<PodSetStatus> {
    let mut plan = Plan::default();
    if podset.terminating() {
        // The garbage collector deletes the pods.
        return plan;
    }
    let limits = Limits::of(podset);
    let hash = template_hash(podset);
    let (members, strays) = members(podset, world, &hash, now, &mut plan);
    let rollout = rollout(limits, &podset.spec.pods_to_delete, members.clone(), now);
    let mut missing = rollout.allowed.saturating_sub(members.len());
    let terminating = world.pods.iter().filter(|pod| pod.is_running() && pod.meta.deleted.is_some()).count();
    if podset.spec.pod_replacement_policy == Some(PodReplacementPolicy::Failed) {
        missing = missing.saturating_sub(terminating);
    }
    if world.refusals.namespace_terminating {
        missing = 0;
    }

    // An ended pod stays while its replacement waits, because its annotation stores the attempt. So does a pod that
    // lost the label of the selector.
    let (mut going, mut released) = (Vec::new(), Vec::new());
    let mut attempts = Vec::new();
    let mut held = Vec::new();
    let ended = world.pods.iter().filter(|pod| !pod.is_running() && pod.meta.deleted.is_none());
    let ended = ended.map(|pod| (pod, false));
    for (pod, is_stray) in ended.chain(strays.iter().map(|pod| (*pod, true))) {
        // Failures of another template do not count for this one.
        let is_current = pod.label(HASH_LABEL).is_none_or(|made_from| *made_from == *hash);
        match replaced_at(pod).filter(|_| is_current) {
            Some(at) if at > now && held.len() < missing => held.push(at),
            _ => {
                attempts.push(if is_current { next_attempt(pod, now) } else { 0 });
                if is_stray {
                    released.push(pod);
                } else {
                    going.push(pod);
                }
            }
        }
    }
    going.extend(&rollout.going);
    let held_until = held.iter().min().copied();
    if let Some(at) = held_until {
        plan.requeue_at(at);
    }
    attempts.sort_unstable_by(|one, other| other.cmp(one));
    let attempts = attempts.into_iter().chain(repeat(0));

    let deletes: Vec<_> = going.into_iter().map(|pod| Action::delete(PODS, &pod.meta, false)).collect();
    let failed_delete = first_refusal(world, &deletes).map(|refusal| ("FailedDelete", refusal));
    let Creations { creates, more, labels, refused } =
        creations(podset, world, &hash, (missing - held.len(), attempts), now);
    if let Some(at) = refused.map(|refusal| refusal.until).filter(|until| *until > now) {
        plan.requeue_at(at);
    }
    let failed_create = refused.map(|refusal| match refusal.reason {
        RefusalReason::LabelsOverwritten => ("LabelsOverwritten", refusal),
        _ => ("FailedCreate", refusal),
    });
    // Without a labelled pod that is at least as new, each new pod may lack the label: an admission policy may remove it.
    let newest = members.iter().filter_map(|member| member.pod.meta.created).max();
    released.retain(|pod| missing == 0 || newest >= pod.meta.created);
    let unmarked = world.unlabelled.iter().filter(|pod| has_label(podset, pod));
    let patches = released.into_iter().filter_map(|pod| release(pod));
    let patches: Vec<_> = patches.chain(unmarked.map(|pod| mark(pod))).chain(labels).collect();
    let failed_patch = first_refusal(world, &patches).map(|refusal| ("FailedPatch", refusal));
    // An ended pod is deleted after its replacement was created. Until then it keeps its name, so that a
    // repeated plan uses the same names. After a rejected creation it is deleted first, because of quotas on
    // objects.
    let steps = if failed_create.is_none() {
        [patches, creates, more, deletes]
    } else {
        [patches, deletes, creates, more]
    };
    plan.steps = steps.into_iter().filter(|step| !step.is_empty()).collect();
    let found = StatusInput {
        hash: &hash,
        wanted: limits.wanted,
        needed: limits.needed,
        namespace_terminating: world.refusals.namespace_terminating,
        members,
        terminating,
        outdated: rollout.outdated,
        held_until,
        failure: failed_create.or(failed_delete).or(failed_patch),
    };
    let (status, again) = status(podset, &found, now);
    if let Some(again) = again {
        plan.requeue_at(again);
    }
    plan.events = events(podset.status.as_ref(), &status);
    plan.status = Some(status);
    plan
}

/// The creations of a plan.
struct Creations<'a> {
    /// The first step.
    creates: Vec<Action<PodSetStatus>>,
    /// The next step, if the first succeeds.
    more: Vec<Action<PodSetStatus>>,
    /// Patches of existing pods that lost the label of the watch.
    labels: Vec<Action<PodSetStatus>>,
    /// The recent refusal of a creation that is still needed.
    refused: Option<&'a Refusal>,
}

/// Creates the missing pods with the first free names. A rejected name is retried, not skipped, because a
/// quota would reject any name. Names before it may be used.
fn creations<'a>(
    podset: &'a PodSet,
    world: &'a World,
    hash: &str,
    (missing, attempts): (usize, impl Iterator<Item = u32>),
    now: Timestamp,
) -> Creations<'a> {
    let mut made = Creations { creates: Vec::new(), more: Vec::new(), labels: Vec::new(), refused: None };
    if missing == 0 {
        return made;
    }
    // All creations wait, or one is attempted and the others follow if it succeeds.
    made.refused = world.refusals.creations.as_ref();
    if made.refused.is_some_and(|refusal| refusal.until > now) {
        return made;
    }
    for (name, attempt) in free_names(podset, world, now).zip(attempts).take(missing.min(MOST_CREATIONS)) {
        let refusal = refusal(world, &name).filter(|refusal| refusal.reason != RefusalReason::NameTaken);
        if refusal
            .is_some_and(|refusal| refusal.reason == RefusalReason::LabelsMissing && refusal.until > now)
        {
            // It is our own pod, which has the name of the missing one.
            made.labels.push(merge(podset, &name, &json!({ KIND_LABEL: "PodSet" })));
            continue;
        }
        if let Some(refusal) = refusal.filter(|refusal| refusal.until > now) {
            // The plan waits for this refusal now, even if all creations were stopped before.
            made.refused = Some(refusal);
            break;
        }
        // A rejected creation is retried alone; the others follow if it succeeds.
        let is_first = made.refused.is_none() || made.creates.is_empty();
        let step = if is_first { &mut made.creates } else { &mut made.more };
        step.push(create(podset, hash, name, attempt));
        made.refused = made.refused.or(refusal);
    }
    made
}

fn merge(podset: &PodSet, name: &str, labels: &serde_json::Value) -> Action<PodSetStatus> {
    Action::MergePatch {
        resource: PODS,
        namespace: podset.metadata.namespace.as_deref().unwrap_or_default().into(),
        name: name.into(),
        body: json!({ "metadata": { "labels": labels } }),
    }
}

/// Returns the counted pods and those that lost the label of the selector, and requeues for the next pod that becomes
/// available.
fn members<'a>(
    podset: &PodSet,
    world: &'a World,
    hash: &str,
    now: Timestamp,
    plan: &mut Plan<PodSetStatus>,
) -> (Vec<CandidatePod<'a>>, Vec<&'a Arc<Pod>>) {
    let must_be_ready = podset.spec.min_ready_seconds.filter(|seconds| *seconds > 0);
    let must_be_ready = must_be_ready.map(|seconds| SignedDuration::from_secs(seconds.into()));
    let counted = world.pods.iter().filter(|pod| pod.is_counted());
    let (labelled, strays): (Vec<_>, Vec<_>) = counted.partition(|pod| has_label(podset, pod));
    let members = labelled.into_iter().map(|pod| {
        // Without minReadySeconds the clock does not matter.
        let available = match must_be_ready {
            None => pod.ready_since.is_some(),
            Some(wait) => match pod.ready_since.and_then(|since| since.checked_add(wait).ok()) {
                Some(at) if at > now => {
                    plan.requeue_at(at);
                    false
                }
                at => at.is_some(),
            },
        };
        // A pod without the hash label counts as current, because a needless replacement would be worse.
        let outdated = pod.label(HASH_LABEL).is_some_and(|made_from| made_from != hash);
        CandidatePod { pod, outdated, available }
    });
    (members.collect(), strays)
}

/// Whether a pod has the label of its PodSet's selector.
fn has_label(podset: &PodSet, pod: &Pod) -> bool {
    pod.label(UID_LABEL) == podset.meta().uid.as_deref()
}

/// Releases a pod.
fn release(pod: &Pod) -> Option<Action<PodSetStatus>> {
    let mut operations = pod.meta.without_controller()?;
    let tests = operations.as_array_mut()?;
    // Only for the observed version: if the label was restored meanwhile, the pod stays.
    tests.insert(
        0,
        json!({ "op": "test", "path": "/metadata/resourceVersion", "value": &*pod.meta.resource_version }),
    );
    if pod.label(UID_LABEL).is_some() {
        // Without this label no selector matches the pod, even if other labels return.
        let path = format!("/metadata/labels/{}", UID_LABEL.replace('/', "~1"));
        tests.push(json!({ "op": "remove", "path": path }));
    }
    Some(Action::json_patch(PODS, &pod.meta, operations))
}

/// Restores the label of the watch.
fn mark(pod: &Pod) -> Action<PodSetStatus> {
    let labels = json!({ KIND_LABEL: "PodSet" });
    Action::merge_patch(PODS, &pod.meta, json!({ "metadata": { "uid": &*pod.meta.uid, "labels": labels } }))
}

/// When an ended pod may be replaced; None means now. A pod that itself replaced an ended one must have
/// reached an age, which is the backoff for pods that keep failing.
fn replaced_at(pod: &Pod) -> Option<Timestamp> {
    let wait = doubled(FIRST_BACKOFF, attempt(pod).checked_sub(1)?, LONGEST_BACKOFF);
    pod.meta.created?.checked_add(wait).ok()
}

/// The attempt number of a pod's replacement.
fn next_attempt(pod: &Pod, now: Timestamp) -> u32 {
    // An ended pod without a started container has a lifetime of 0. A running one may have waited for its replacement.
    let (end, least) =
        if pod.is_running() { (Some(now), 2 * LONGEST_BACKOFF) } else { (pod.finished, LONGEST_BACKOFF) };
    let lived = end.zip(pod.meta.created).map(|(end, begin)| end.duration_since(begin));
    if lived.is_some_and(|lived| lived >= least) { 0 } else { attempt(pod).saturating_add(1) }
}

fn attempt(pod: &Pod) -> u32 {
    pod.meta.annotations.get(ATTEMPT_ANNOTATION).and_then(|attempt| attempt.parse().ok()).unwrap_or_default()
}

/// The first refusal of these actions, even if its backoff is over.
fn first_refusal<'a>(world: &'a World, actions: &[Action<PodSetStatus>]) -> Option<&'a Refusal> {
    let mut targets = actions.iter().filter_map(Action::target);
    targets.find_map(|(verb, resource, name)| world.refusals.of(verb, resource, name))
}

/// The refusal of the creation of the pod with this name.
fn refusal<'a>(world: &'a World, name: &str) -> Option<&'a Refusal> {
    world.refusals.of(Verb::Create, &PODS, name)
}

/// The free names in order. A pod's name is not free, even if the pod ended or is terminating. Nor is a name for which
/// a recent creation found a foreign or released pod.
fn free_names<'a>(podset: &'a PodSet, world: &'a World, now: Timestamp) -> impl Iterator<Item = String> + 'a {
    let taken: BTreeSet<&str> =
        world.pods.iter().map(|pod| &*pod.meta.name).chain(world.taken.iter().map(|name| &**name)).collect();
    (0..).map(|number| pod_name(podset, number)).filter(move |name| {
        !taken.contains(name.as_str())
            && refusal(world, name)
                .is_none_or(|refusal| refusal.reason != RefusalReason::NameTaken || refusal.until <= now)
    })
}

/// The name of a pod. Two processes use the same name, so the API server creates only one pod.
fn pod_name(podset: &PodSet, number: u64) -> String {
    let uid = podset.meta().uid.as_deref().unwrap_or_default();
    let name = podset.meta().name.as_deref().unwrap_or_default();
    format!("{}{}", name_prefix(name), digest::short(&[uid, &number.to_string()], 10))
}

/// The prefix of the names of a PodSet's pods.
pub fn name_prefix(name: &str) -> String {
    format!("{}-pod-", digest::cut(name, NAME_LENGTH))
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
    Action::Create {
        resource: PODS,
        namespace: namespace.into(),
        name: pod_name,
        owner_label: Some(UID_LABEL),
        body: body.into(),
    }
}

#[cfg(test)]
mod tests;
