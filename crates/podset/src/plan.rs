//! The plan for one PodSet: a pure function of the observed state and the time.

use std::collections::BTreeSet;
use std::iter::repeat;
use std::sync::Arc;

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

use crate::adoption::{self, adopt, adoptable};
use crate::api::{PodReplacementPolicy, PodSet, PodSetStatus};
use crate::labels::{ATTEMPT_ANNOTATION, HASH_LABEL, NAME_LABEL, RELEASED_LABEL, UID_LABEL, VERSION_LABEL};
use crate::observe::World;
use crate::revision::{self, CurrentTemplate, Templates};
use crate::rollout::{CandidatePod, Limits, rollout};
use crate::status::{StatusInput, events, status};
use crate::template::{DEFAULT_TEMPLATE, template_hash};

/// The value of [`VERSION_LABEL`] in the tutorial.
const VERSION: &str = "v0.1";
/// How many characters of the PodSet's name a pod's name has: with `-pod-` and 10 more it is a valid host
/// name.
const NAME_LENGTH: usize = 48;

/// Makes the plan.
pub fn plan(podset: &PodSet, world: &World, now: Timestamp) -> Plan<PodSetStatus> {
    let mut plan = Plan::default();
    if podset.terminating() {
        // The garbage collector deletes the pods.
        return plan;
    }
    let limits = Limits::of(podset);
    let hash = template_hash(podset);
    let (mut members, strays) = members(podset, world, &hash, now, &mut plan);
    let templates = Templates::elect(podset, limits, &hash, &members, &world.revisions);
    for member in &mut members {
        member.current = member.outdated && member.pod.label(HASH_LABEL) == Some(&*templates.current);
    }
    let rollout = rollout(limits, templates.kept, &podset.spec.pods_to_delete, members.clone(), now);
    let mut missing = rollout.allowed.saturating_sub(members.len());
    let adopted =
        adoptable(&world.orphans, limits.wanted.saturating_sub(members.len()), &world.refusals, now);
    missing -= adopted.len();
    let terminating = world.pods.iter().filter(|pod| pod.is_running() && pod.meta.deleted.is_some()).count();
    if podset.spec.pod_replacement_policy == Some(PodReplacementPolicy::Failed) {
        missing = missing.saturating_sub(terminating);
    }
    if world.refusals.namespace_terminating {
        missing = 0;
    }

    let pods = members.iter().map(|member| member.pod).chain(adopted.iter().copied());
    let mut sources = sources(podset, world, &templates, missing, pods);
    let Ended { mut going, mut released, held_until } = ended(world, &strays, &mut sources, now);
    going.extend(&rollout.going);
    plan.requeue_at(held_until);

    // An admission policy may remove the label of each new pod, so the first one is created alone.
    let is_tried = members.is_empty() || !strays.is_empty();
    // A pod without the label may get it back meanwhile.
    let is_stray = |pod: &Pod| pod.is_running() && !has_label(podset, pod);
    let deletes = going.into_iter().map(|pod| Action::delete(PODS, &pod.meta, is_stray(pod)));
    let deletes: Vec<_> = deletes.collect();
    let Creations { creates, more, labels, refused } = creations(podset, world, sources, is_tried, now);
    plan.requeue_at(refused.map(|refusal| refusal.until).filter(|until| *until > now));
    // Without a labelled pod that is at least as new, each new pod may lack the label: an admission policy may remove it.
    let newest = members.iter().filter_map(|member| member.pod.meta.created).max();
    released.retain(|pod| missing == 0 || newest >= pod.meta.created);
    let unmarked = world.unlabelled.iter().filter(|pod| has_label(podset, pod));
    let patches = released.into_iter().filter_map(|pod| release(pod));
    let adoptions = adopted.iter().map(|pod| adopt(podset, pod, &templates.current));
    let patches: Vec<_> =
        patches.chain(unmarked.map(|pod| mark(pod))).chain(labels).chain(adoptions).collect();
    let (first, last) = revision::writes(podset, &templates, world);
    if matches!(world.current_template, CurrentTemplate::Unreadable(_)) {
        plan.requeue_at(now + FIRST_BACKOFF);
    }
    let failure = failure(world, refused, [&deletes, &patches], first.iter().chain(&last));
    // An ended pod is deleted after its replacement was created. Until then it keeps its name, so that a
    // repeated plan uses the same names. After a rejected creation it is deleted first, because of quotas on
    // objects.
    let steps = if refused.is_none() {
        [first, patches, creates, more, deletes, last]
    } else {
        [first, patches, deletes, creates, more, last]
    };
    plan.steps = steps.into_iter().filter(|step| !step.is_empty()).collect();
    let found = StatusInput {
        templates: &templates,
        limits,
        world,
        is_adopting: !adopted.is_empty(),
        members,
        terminating,
        outdated: rollout.outdated,
        held_until,
        failure,
    };
    let (status, again) = status(podset, &found, now);
    plan.requeue_at(again);
    plan.events = events(podset.status.as_ref(), &status);
    plan.status = Some(status);
    plan
}

/// The failure to report: the reason of the condition, and the API server's message.
fn failure<'a, 'b>(
    world: &'a World,
    refused: Option<&'a Refusal>,
    [deletes, patches]: [&'b [Action<PodSetStatus>]; 2],
    history: impl Iterator<Item = &'b Action<PodSetStatus>>,
) -> Option<(&'static str, &'a str)> {
    let create = refused.map(|refusal| match refusal.reason {
        RefusalReason::LabelsOverwritten => ("LabelsOverwritten", refusal),
        _ => ("FailedCreate", refusal),
    });
    let delete = || Some(("FailedDelete", first_refusal(world, deletes)?));
    let patch = || Some(("FailedPatch", first_refusal(world, patches)?));
    let adoption = || Some(("FailedAdoption", adoption::problem(&world.orphans, &world.refusals)?));
    // An old revision that stays does no harm.
    let written = history.filter(|action| !matches!(action, Action::Delete { .. }));
    let revision = || match &world.current_template {
        CurrentTemplate::Unreadable(why) => Some(("FailedRevision", &**why)),
        _ => Some(("FailedRevision", &*first_refusal(world, written)?.message)),
    };
    let of_pods = create.or_else(delete).or_else(patch);
    of_pods.map(|(reason, refusal)| (reason, &*refusal.message)).or_else(adoption).or_else(revision)
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

/// The pods that need a replacement.
struct Ended<'a> {
    /// Ended pods to delete now.
    going: Vec<&'a Arc<Pod>>,
    /// Pods without the label of the selector to release now.
    released: Vec<&'a Arc<Pod>>,
    /// Until when the first of the others waits.
    held_until: Option<Timestamp>,
}

/// Selects the pods whose replacements are due, and stores their attempts in the sources. An ended pod stays while its
/// replacement waits, because its annotation stores the attempt. So does a pod that lost the label of the selector.
fn ended<'a>(
    world: &'a World,
    strays: &[&'a Arc<Pod>],
    sources: &mut [Source<'_>],
    now: Timestamp,
) -> Ended<'a> {
    let mut found = Ended { going: Vec::new(), released: Vec::new(), held_until: None };
    let ended = world.pods.iter().filter(|pod| !pod.is_running() && pod.meta.deleted.is_none());
    let ended = ended.map(|pod| (pod, false));
    for (pod, is_stray) in ended.chain(strays.iter().map(|pod| (*pod, true))) {
        if is_stray && world.refusals.has_left(&pod.meta) {
            found.going.push(pod);
            continue;
        }
        // Failures of one template do not count for another one. A pod without the label counts for one that can wait.
        let hash = pod.label(HASH_LABEL);
        let is_of =
            |source: &Source<'_>| hash.map_or(source.held < source.missing, |hash| hash == source.hash);
        if let Some(source) = sources.iter_mut().rev().find(|source| is_of(source)) {
            if let Some(at) = replaced_at(pod).filter(|at| *at > now && source.held < source.missing) {
                source.held += 1;
                found.held_until = found.held_until.into_iter().chain([at]).min();
                continue;
            }
            source.attempts.push(next_attempt(pod, now));
        }
        if is_stray { found.released.push(pod) } else { found.going.push(pod) }
    }
    found
}

/// The missing pods of one template.
struct Source<'a> {
    hash: &'a str,
    template: &'a RawTemplate,
    /// How many pods are missing.
    missing: usize,
    /// How many of them wait, because pods of this template keep ending.
    held: usize,
    /// The attempts of pods that replace ended ones.
    attempts: Vec<u32>,
    /// The part of the pods' names that distinguishes them from those of the spec's template, so that the API server's
    /// rejection of one template does not stop the other.
    name_part: Option<&'a str>,
}

impl<'a> Source<'a> {
    fn new(hash: &'a str, template: &'a RawTemplate, missing: usize) -> Self {
        Self { hash, template, missing, held: 0, attempts: Vec::new(), name_part: None }
    }

    /// The template and the attempt of each pod to create.
    fn pods(mut self) -> impl Iterator<Item = (&'a str, &'a RawTemplate, u32)> {
        self.attempts.sort_unstable_by(|one, other| other.cmp(one));
        let attempts = self.attempts.into_iter().chain(repeat(0)).take(self.missing - self.held);
        attempts.map(move |attempt| (self.hash, self.template, attempt))
    }
}

/// The name of the current revision, if the plan of this world needs its content.
pub fn revision_to_read(podset: &PodSet, world: &World) -> Option<String> {
    let limits = Limits::of(podset);
    if !limits.has_partition && !limits.paused {
        // No pod of an older template is kept.
        return None;
    }
    let hash = template_hash(podset);
    // The plan may accept the updated template when pods become available. Then it keeps no pods, and needs no revision.
    let (members, _) = members(podset, world, &hash, Timestamp::MIN, &mut Plan::default());
    let templates = Templates::elect(podset, limits, &hash, &members, &world.revisions);
    let name = revision::name(podset, &templates.current);
    let older = members.iter().filter(|member| member.outdated).count();
    let is_lost = older < templates.kept && (members.len() < limits.wanted || !limits.paused);
    // A revision that lost the label of the watch is still stored.
    (is_lost || templates.kept > 0 && !world.has_revision(&name)).then_some(name)
}

/// The templates of missing pods. Those of the current template come first. Until it is read, its pods wait: another
/// template in its place would break the partition.
fn sources<'a>(
    podset: &'a PodSet,
    world: &'a World,
    templates: &'a Templates<'a>,
    missing: usize,
    pods: impl Iterator<Item = &'a Arc<Pod>>,
) -> Vec<Source<'a>> {
    let updated = podset.spec.template.as_ref().unwrap_or(&DEFAULT_TEMPLATE);
    let older = pods.filter(|pod| is_older(pod, templates.updated)).count();
    let mut lost = templates.kept.saturating_sub(older).min(missing);
    let mut sources = Vec::with_capacity(2);
    match &world.current_template {
        CurrentTemplate::Found { hash, template, .. } if *hash == templates.current => {
            let template = template.as_ref().unwrap_or(&DEFAULT_TEMPLATE);
            sources.push(Source { name_part: Some(hash), ..Source::new(hash, template, lost) });
        }
        CurrentTemplate::Missing => lost = 0,
        _ => {}
    }
    sources.push(Source::new(templates.updated, updated, missing - lost));
    sources
}

/// Creates the missing pods with the first free names. A rejected name is retried, not skipped, because a
/// quota would reject any name. Names before it may be used. The first creation of
/// each template is alone; if `is_tried`, only the first of all.
fn creations<'a>(
    podset: &'a PodSet,
    world: &'a World,
    sources: Vec<Source<'a>>,
    is_tried: bool,
    now: Timestamp,
) -> Creations<'a> {
    let mut made = Creations { creates: Vec::new(), more: Vec::new(), labels: Vec::new(), refused: None };
    if sources.iter().all(|source| source.held == source.missing) {
        return made;
    }
    // All creations wait, or one is attempted and the others follow if it succeeds.
    let stop = world.refusals.creations.as_ref();
    made.refused = stop;
    if stop.is_some_and(|refusal| refusal.until > now) {
        return made;
    }
    let is_tried = is_tried || stop.is_some();
    for source in sources {
        let mut retried: Option<&Refusal> = None;
        let mut is_first = true;
        let names = free_names(podset, world, source.name_part, now);
        for (name, pod) in names.zip(source.pods()) {
            if made.creates.len() + made.more.len() == MOST_CREATIONS {
                break;
            }
            let refusal = world.refusals.of(Verb::Create, &PODS, &name);
            let refusal = refusal.filter(|refusal| refusal.reason != RefusalReason::NameTaken);
            let waits = refusal.filter(|refusal| refusal.until > now);
            if waits.is_some_and(|refusal| refusal.reason == RefusalReason::LabelsMissing) {
                // It is our own pod, which has the name of the missing one.
                made.labels.push(mark_unseen(podset, &name));
                continue;
            }
            if let Some(refusal) = waits {
                // The plan waits for this refusal now, even if all creations were stopped before.
                let earlier = made.refused.filter(|one| one.until > now && one.until < refusal.until);
                made.refused = earlier.or(waits);
                break;
            }
            // The API server may reject the pods of a template, and an admission policy may remove the label of each. So one
            // is created alone; the others follow if it succeeds.
            let is_alone = if is_tried { made.creates.is_empty() } else { is_first };
            let step = if is_alone { &mut made.creates } else { &mut made.more };
            step.push(create(podset, name, pod));
            is_first = false;
            retried = retried.or(refusal);
        }
        made.refused = made.refused.or(retried);
    }
    made
}

/// Restores the label of the watch, of a pod that no cache shows.
fn mark_unseen(podset: &PodSet, name: &str) -> Action<PodSetStatus> {
    let (namespace, name) = (podset.key().namespace, name.into());
    let body = json!({ "metadata": { "labels": { KIND_LABEL: "PodSet" } } });
    Action::MergePatch { resource: PODS, namespace, name, body }
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
    let wait = SignedDuration::from_secs(podset.spec.min_ready_seconds.unwrap_or_default().max(0).into());
    let counted = world.pods.iter().filter(|pod| pod.is_counted());
    let (labelled, strays): (Vec<_>, Vec<_>) = counted.partition(|pod| has_label(podset, pod));
    let members = labelled.into_iter().map(|pod| {
        let at = pod.ready_since.and_then(|since| since.checked_add(wait).ok());
        // Without minReadySeconds the clock does not matter.
        let waits_until = at.filter(|at| wait.is_positive() && *at > now);
        plan.requeue_at(waits_until);
        let (outdated, available) = (is_older(pod, hash), at.is_some() && waits_until.is_none());
        CandidatePod { pod, outdated, current: false, available }
    });
    (members.collect(), strays)
}

/// Whether a pod has another template than the one with this hash. A pod without the hash label counts as one of it,
/// because a needless replacement would be worse.
fn is_older(pod: &Pod, hash: &str) -> bool {
    pod.label(HASH_LABEL).is_some_and(|of| of != hash)
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
    let version = &*pod.meta.resource_version;
    tests.insert(0, json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version }));
    if pod.label(UID_LABEL).is_some() {
        // Without this label no selector matches the pod, even if other labels return.
        let path = format!("/metadata/labels/{}", UID_LABEL.replace('/', "~1"));
        tests.push(json!({ "op": "remove", "path": path }));
    }
    if pod.meta.labels.iter().next().is_some() {
        let path = format!("/metadata/labels/{}", RELEASED_LABEL.replace('/', "~1"));
        tests.push(json!({ "op": "add", "path": path, "value": "true" }));
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
fn first_refusal<'a, 'b>(
    world: &'a World,
    actions: impl IntoIterator<Item = &'b Action<PodSetStatus>>,
) -> Option<&'a Refusal> {
    let mut targets = actions.into_iter().filter_map(Action::target);
    targets.find_map(|(verb, resource, name)| world.refusals.of(verb, resource, name))
}

/// The free names in order. A pod's name is not free, even if the pod ended or is terminating. Nor is a name for which
/// a recent creation found a foreign or released pod. The name of a pod without its label is used again, so that a retry
/// deletes this pod and adds none.
fn free_names<'a>(
    podset: &'a PodSet,
    world: &'a World,
    part: Option<&'a str>,
    now: Timestamp,
) -> impl Iterator<Item = String> + 'a {
    let is_free =
        |pod: &&Arc<Pod>| pod.is_counted() && !has_label(podset, pod) && world.refusals.has_left(&pod.meta);
    let taken = world.pods.iter().filter(|pod| !is_free(pod)).map(|pod| &*pod.meta.name);
    let taken: BTreeSet<&str> = taken.chain(world.taken.iter().map(|name| &**name)).collect();
    (0..).map(move |number| pod_name(podset, part, number)).filter(move |name| {
        let is_foreign = |one: &Refusal| one.reason == RefusalReason::NameTaken && one.until > now;
        !taken.contains(name.as_str())
            && !world.refusals.of(Verb::Create, &PODS, name).is_some_and(is_foreign)
    })
}

/// The name of a pod. Two processes use the same name, so the API server creates only one pod.
fn pod_name(podset: &PodSet, part: Option<&str>, number: u64) -> String {
    let uid = podset.meta().uid.as_deref().unwrap_or_default();
    let name = podset.meta().name.as_deref().unwrap_or_default();
    let number = number.to_string();
    let parts: Vec<&str> = [uid].into_iter().chain(part).chain([&*number]).collect();
    format!("{}{}", name_prefix(name), digest::short(&parts, 10))
}

/// The prefix of the names of a PodSet's pods.
pub fn name_prefix(name: &str) -> String {
    format!("{}-pod-", digest::cut(name, NAME_LENGTH))
}

fn create(
    podset: &PodSet,
    pod_name: String,
    (hash, template, attempt): (&str, &RawTemplate, u32),
) -> Action<PodSetStatus> {
    let meta = podset.meta();
    let namespace = meta.namespace.as_deref().unwrap_or_default();
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
    let (namespace, body) = (namespace.into(), body.into());
    Action::Create { resource: PODS, namespace, name: pod_name, owner_label: Some(UID_LABEL), body }
}

#[cfg(test)]
mod tests;
