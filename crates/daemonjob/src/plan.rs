//! What should be done for one DaemonJob: a pure function of what is observed and the time.
//!
//! [`crate::survey`] says what there is to say of every node; here it becomes writes, in an order in which a crash
//! between any two of them loses nothing:
//!
//! 1. what must go goes, and finalizers come off pods whose outcome the ledger has;
//! 2. outcomes are written to the ledger, where something waits for that;
//! 3. finalizers come off pods that were just recorded, and pods that nobody needs any more are deleted;
//! 4. pods are made, once the status has told that the run began.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::{SignedDuration, Timestamp};
use quintet_kit::clock::whole_seconds;
use quintet_kit::object::{Meta, Object as _, controller_reference};
use quintet_kit::plan::{Action, LABELS_MISSING, Plan};
use quintet_kit::resource::{CONFIG_MAPS, PODS, Resource};
use quintet_kit::types::{Node, Phase, Pod};
use quintet_kit::{KIND_LABEL, conditions};
use serde_json::{Map, Value, json};

use crate::FINALIZER;
use crate::api::{DaemonJob, DaemonJobStatus};
use crate::ledger::{Entry, FORMAT, LEDGER_LABEL, Outcome, SHARDS, Shard, shard_name, shard_of};
use crate::nodes::{Verdict, pinned};
use crate::observe::World;
use crate::outcome::{Fate, GIVEN_UP_ANNOTATION, Rules, given_up_in};
use crate::status;
use crate::survey::{
    BOOT_ID_ANNOTATION, HASH_LABEL, Judged, NODE_NAME_ANNOTATION, NODE_UID_LABEL, RUN_LABEL, State, Survey,
    hash_of, pod_name, survey,
};

/// Label: the DaemonJob's name, as the post meant to set it.
pub const NAME_LABEL: &str = "daemonjob";
/// Label: the DaemonJob's UID.
pub const UID_LABEL: &str = "dj.dysproz.io/daemonjob-uid";

/// How long an outcome that waits for the ledger waits for others to go with it.
const GATHERING: SignedDuration = SignedDuration::from_secs(1);
/// Failed pods that are kept for a person to look at.
const KEPT_FAILED_PODS: usize = 100;

type Actions = Vec<Action<DaemonJobStatus>>;

/// Makes the plan.
pub fn plan(job: &DaemonJob, world: &World, now: Timestamp) -> Plan<DaemonJobStatus> {
    let mut plan = Plan::default();
    if job.terminating() {
        // Owner references take the pods away, and the sweeper their finalizers; a status would come too late.
        return plan;
    }
    let survey = survey(job, world, now);
    let superseded = superseded(&survey);
    let book = Bookkeeping::of(job, world, &survey, &superseded, now);
    if world.stopping {
        plan.steps.extend([book.writes(job, world, &survey)].into_iter().filter(|step| !step.is_empty()));
        return plan;
    }
    if let Some(at) = survey.again {
        plan.look_again(at);
    }
    if let Some(at) = book.again {
        plan.look_again(at);
    }
    let expiry = expiry(job, &survey);
    let is_expired = expiry.is_some_and(|at| at <= now);
    if let (Some(at), false) = (expiry, is_expired) {
        plan.look_again(at);
    }

    let mut first = restored_labels(job, world, &survey);
    for judged in &survey.pods {
        match removal(job, world, &survey, judged, now) {
            Removal::Keep(Some(until)) => plan.look_again(until),
            Removal::Keep(None) => {}
            Removal::GiveUp(since) => first.push(give_up(judged.pod, since)),
            Removal::IfUnchanged => first.push(delete(judged.pod, true)),
        }
    }
    let (now_free, then_free): (Vec<_>, Vec<_>) = survey
        .pods
        .iter()
        .filter(|judged| judged.pod.meta.deleted.is_some())
        .filter_map(|judged| book.release(world, judged).map(|release| (judged.pod, release)))
        .partition(|(_, release)| *release == Release::Now);
    first.extend(now_free.iter().filter_map(|(pod, _)| release(&pod.meta)));
    let ledger = book.writes(job, world, &survey);
    let mut last: Actions = then_free.iter().filter_map(|(pod, _)| release(&pod.meta)).collect();
    last.extend(book.unneeded(&survey, &superseded, is_expired).map(|judged| delete(judged.pod, false)));
    let creations: Actions = if survey.begins || survey.hold.is_some() {
        Vec::new()
    } else {
        let due = survey.nodes.iter().filter_map(|surveyed| match surveyed.state {
            State::Due(run) => Some((surveyed.node, run)),
            _ => None,
        });
        due.map(|(node, run)| create(job, node, &survey.hash, run)).collect()
    };
    for mut step in [first, ledger, last, creations] {
        // What was refused lately is not tried, and keeps nothing else from being done.
        step.retain(|action| match withheld(world, action, now) {
            Some(until) => {
                plan.look_again(until);
                false
            }
            None => true,
        });
        if !step.is_empty() {
            plan.steps.push(step);
        }
    }

    let status = status::status(job, world, &survey, now);
    plan.events = status::news(job, world, &status);
    // The next plan relies on what it says of the run: one of a predecessor that comes late must not count.
    plan.fenced = true;
    plan.status = Some(status);
    plan
}

/// Until when the API server is not asked for this again.
fn withheld(world: &World, action: &Action<DaemonJobStatus>, now: Timestamp) -> Option<Timestamp> {
    let (verb, name): (_, &str) = match action {
        Action::Create { name, .. } => ("create", name),
        Action::Delete { name, .. } => ("delete", name),
        Action::Patch { name, .. } => ("patch", name),
        Action::Merge { name, .. } => ("merge", name),
        _ => return None,
    };
    if world.refusals.is_empty() {
        return None;
    }
    world.refusals.of(verb, name).map(|refusal| refusal.until).filter(|until| *until > now)
}

/// What becomes of a pod before its time.
enum Removal {
    /// It stays; perhaps only until then.
    Keep(Option<Timestamp>),
    /// It is marked as given up in the run that started then, and goes next; or it is no longer.
    GiveUp(Option<Timestamp>),
    /// It goes, unless it has changed meanwhile: whether it has started or ended decides.
    IfUnchanged,
}

/// Whether a pod that has not ended must go.
fn removal(
    job: &DaemonJob,
    world: &World,
    survey: &Survey<'_>,
    judged: &Judged<'_>,
    now: Timestamp,
) -> Removal {
    let pod = judged.pod;
    if !pod.is_counted() || world.old_job {
        return Removal::Keep(None);
    }
    if job.spec.suspend == Some(true) || survey.ending.is_some() {
        return Removal::IfUnchanged;
    }
    let node = judged.home.and_then(|uid| survey.histories.get(&**uid)?.node);
    // Nobody else deletes a pod that is pinned to a node that does not exist; and one that was made anew under the
    // name would get it.
    let Some(node) = node else { return Removal::IfUnchanged };
    let has_started = pod.started.is_some() || pod.phase != Phase::Pending;
    let outdated = !has_started && hash_of(pod, &survey.hash) != &*survey.hash;
    let misplaced = matches!(survey.placement.verdict(node), Verdict::Refuse(_));
    // Made by a predecessor that did not know what was recorded, or beside another.
    let surplus = judged.recorded || is_doubled(survey, judged);
    if outdated || misplaced || surplus || judged.exhausted {
        return Removal::IfUnchanged;
    }
    match (Rules::of(job).pending_until(pod), given_up_in(pod)) {
        (Some(until), None) if until <= now => Removal::GiveUp(Some(survey.start)),
        (Some(until), Some(_)) if until <= now => Removal::IfUnchanged,
        // It has started after all, or may take longer now.
        (_, Some(_)) => Removal::GiveUp(None),
        (until, None) => Removal::Keep(until),
    }
}

/// Marks a pod as given up, or takes the mark off, if it has not changed.
fn give_up(pod: &Pod, in_run: Option<Timestamp>) -> Action<DaemonJobStatus> {
    Action::Merge {
        resource: PODS,
        namespace: pod.meta.namespace.clone(),
        name: pod.meta.name.clone(),
        body: json!({ "metadata": {
            "uid": &*pod.meta.uid,
            "resourceVersion": &*pod.meta.resource_version,
            "annotations": { GIVEN_UP_ANNOTATION: in_run.map(|run| run.to_string()) },
        }}),
    }
}

/// Whether another counted pod for the same node name goes before this one: one that has started, else the one of
/// the later run.
fn is_doubled(survey: &Survey<'_>, judged: &Judged<'_>) -> bool {
    let order = |judged: &Judged<'_>| (judged.pod.started.is_some(), judged.run, judged.pod.meta.uid.clone());
    let Some(name) = judged.on.filter(|name| survey.doubled.contains(name)) else { return false };
    let others = survey.pods.iter().filter(|other| other.pod.is_counted() && other.on == Some(name));
    others.map(order).max() > Some(order(judged))
}

fn delete(pod: &Pod, if_unchanged: bool) -> Action<DaemonJobStatus> {
    Action::Delete {
        resource: PODS,
        namespace: pod.meta.namespace.clone(),
        name: pod.meta.name.clone(),
        uid: pod.meta.uid.clone(),
        resource_version: if_unchanged.then(|| pod.meta.resource_version.clone()),
    }
}

/// Takes our finalizer off, if it is still where it was seen.
pub fn release<S>(meta: &Meta) -> Option<Action<S>> {
    let operations = meta.without_finalizer(FINALIZER)?;
    Some(Action::Patch {
        resource: PODS,
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        operations,
    })
}

/// When the finalizer of a terminating pod comes off.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Release {
    /// Nothing is owed to it.
    Now,
    /// Once this plan's ledger step went through.
    Recorded,
}

/// What is written to the ledger, and what waits for that.
struct Bookkeeping<'a> {
    /// Outcomes that the ledger does not have, by shard and node UID.
    unrecorded: [BTreeMap<&'a str, Entry>; SHARDS as usize],
    /// The shards that are written now.
    flushed: [bool; SHARDS as usize],
    /// Shards that this version must not write.
    unwritable: [bool; SHARDS as usize],
    /// When the first of the shards that gather more is to be written.
    again: Option<Timestamp>,
}

impl<'a> Bookkeeping<'a> {
    fn of(
        job: &DaemonJob,
        world: &World,
        survey: &'a Survey<'_>,
        superseded: &HashSet<&str>,
        now: Timestamp,
    ) -> Self {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let mut book = Self {
            unrecorded: Default::default(),
            flushed: [false; SHARDS as usize],
            unwritable: [false; SHARDS as usize],
            again: None,
        };
        for shard in world.shards().filter(|shard| !shard.is_known_format()) {
            if let Some(number) = shard.number(name) {
                book.unwritable[usize::from(number)] = true;
            }
        }
        for (uid, history) in &survey.histories {
            let lost = history.lost.then(|| Entry {
                node: history.node.map_or_else(|| "-".into(), |node| node.meta.name.clone()),
                hash: survey.hash.clone(),
                run: history.run,
                outcome: Outcome::RecordLost,
                failures: 0,
                disruptions: 0,
                boot: "".into(),
                success: None,
                at: whole_seconds(now),
            });
            let is_lost = lost.is_some();
            let entry = lost.or_else(|| history.latest.clone());
            let Some(entry) = entry.filter(|entry| history.recorded != Some(entry)) else { continue };
            let shard = usize::from(shard_of(uid));
            // What is lost is said at once, or the next look at a shard made anew would find nothing amiss.
            book.flushed[shard] |= is_lost;
            book.unrecorded[shard].insert(uid, entry);
        }
        for shard in &world.deleted_shards {
            if let Some(number) = shard.number(name) {
                let written = if shard.terminating() { &mut book.unwritable } else { &mut book.flushed };
                written[usize::from(number)] = true;
            }
        }
        let all = world.stopping
            || job.spec.suspend == Some(true)
            || survey.ending.is_some()
            || survey.is_finished();
        for shard in 0..usize::from(SHARDS) {
            book.flushed[shard] |= all && !book.unrecorded[shard].is_empty();
        }
        for judged in &survey.pods {
            let Fate::Ended { at, .. } = judged.fate else { continue };
            let is_ahead = at > now;
            let waits = judged.pod.meta.deleted.is_some() || superseded.contains(&*judged.pod.meta.uid);
            let Some(uid) = judged.home.filter(|_| (waits || is_ahead) && !judged.recorded) else { continue };
            let shard = usize::from(shard_of(uid));
            let until = at.checked_add(GATHERING).unwrap_or(now);
            // The clock of a node that is ahead keeps nothing waiting, and is not asked twice.
            if is_ahead || until <= now {
                book.flushed[shard] = true;
            } else if !book.flushed[shard] {
                book.again = Some(book.again.map_or(until, |already| already.min(until)));
            }
        }
        for number in 0..SHARDS {
            let shard = usize::from(number);
            book.flushed[shard] &= !book.unwritable[shard];
            // A write that was refused lately is not tried; until it goes through nothing that needs it is done.
            if book.flushed[shard] && !world.refusals.is_empty() {
                let name = shard_name(name, number);
                let refused = ["create", "merge"].iter().filter_map(|verb| world.refusals.of(verb, &name));
                if let Some(until) = refused.map(|refusal| refusal.until).max().filter(|until| *until > now) {
                    book.flushed[shard] = false;
                    book.again = Some(book.again.map_or(until, |already| already.min(until)));
                }
            }
        }
        book
    }

    /// Whether the finalizer of a terminating pod may come off.
    fn release(&self, world: &World, judged: &Judged<'_>) -> Option<Release> {
        match (&judged.fate, judged.home) {
            (Fate::Open, _) => None,
            (Fate::NeverRan, _) | (Fate::Ended { .. }, None) => Some(Release::Now),
            (Fate::Ended { .. }, Some(_)) if judged.recorded || world.refusals.namespace_terminating => {
                Some(Release::Now)
            }
            (Fate::Ended { .. }, Some(uid)) => {
                self.flushed[usize::from(shard_of(uid))].then_some(Release::Recorded)
            }
        }
    }

    /// The writes of the ledger step: one for each shard.
    fn writes(&self, job: &DaemonJob, world: &World, survey: &Survey<'_>) -> Actions {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        (0..SHARDS)
            .filter(|shard| self.flushed[usize::from(*shard)])
            .filter_map(|number| {
                let unrecorded = &self.unrecorded[usize::from(number)];
                let present = world.ledger.iter().find(|shard| shard.number(name) == Some(number));
                let deleted = world.deleted_shards.iter().find(|shard| shard.number(name) == Some(number));
                let lines =
                    unrecorded.iter().map(|(uid, entry)| ((*uid).to_owned(), Value::from(entry.to_string())));
                match (present, deleted) {
                    (Some(shard), _) => {
                        let mut data: Map<String, Value> = lines.collect();
                        data.extend(dropped(shard, survey).map(|uid| (uid.to_owned(), Value::Null)));
                        (!data.is_empty()).then(|| amend(shard, &data))
                    }
                    (None, Some(shard)) => {
                        let gone: HashSet<&str> = dropped(shard, survey).collect();
                        let seen = shard.entries.iter().filter(|(uid, _)| !gone.contains(&***uid));
                        let mut data: Map<String, Value> = seen
                            .filter_map(|(uid, entry)| {
                                Some((uid.to_string(), entry.as_ref().ok()?.to_string().into()))
                            })
                            .collect();
                        data.extend(lines);
                        Some(begin(job, number, &data))
                    }
                    (None, None) => (!unrecorded.is_empty()).then(|| begin(job, number, &lines.collect())),
                }
            })
            .collect()
    }

    /// Finished pods that nobody needs any more, and whose outcomes the ledger has or gets in this plan.
    fn unneeded<'s>(
        &self,
        survey: &'s Survey<'_>,
        superseded: &HashSet<&str>,
        is_expired: bool,
    ) -> impl Iterator<Item = &'s Judged<'s>> {
        let flushed = self.flushed;
        survey.pods.iter().filter(move |judged| {
            let over = matches!(judged.fate, Fate::Ended { .. }) && judged.pod.meta.deleted.is_none();
            let safe = judged.recorded || judged.home.is_none_or(|uid| flushed[usize::from(shard_of(uid))]);
            over && safe && (is_expired || superseded.contains(&*judged.pod.meta.uid))
        })
    }
}

/// Node UIDs in a shard that no node has any more.
fn dropped<'s>(shard: &'s Shard, survey: &'s Survey<'_>) -> impl Iterator<Item = &'s str> {
    shard.entries.keys().map(|uid| &**uid).filter(|uid| !survey.histories.contains_key(uid))
}

fn amend(shard: &Shard, data: &Map<String, Value>) -> Action<DaemonJobStatus> {
    Action::Merge {
        resource: CONFIG_MAPS,
        namespace: shard.meta.namespace.clone(),
        name: shard.meta.name.clone(),
        body: json!({
            "metadata": { "uid": &*shard.meta.uid, "resourceVersion": &*shard.meta.resource_version },
            "data": data,
        }),
    }
}

fn begin(job: &DaemonJob, number: u8, data: &Map<String, Value>) -> Action<DaemonJobStatus> {
    let meta = &job.metadata;
    let (name, uid) = (meta.name.as_deref().unwrap_or_default(), meta.uid.as_deref().unwrap_or_default());
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name_of_shard = shard_name(name, number);
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name_of_shard,
            "namespace": namespace,
            "labels": { LEDGER_LABEL: FORMAT, NAME_LABEL: name, UID_LABEL: uid },
            "ownerReferences": [controller_reference(&Resource::of::<DaemonJob>(), meta)],
        },
        "data": data,
    });
    Action::Create {
        resource: CONFIG_MAPS,
        namespace: namespace.into(),
        name: name_of_shard,
        body: body.into(),
    }
}

/// UIDs of pods that have ended and are of no interest any more. Of each node the last pod and the last failed one are
/// kept; of failed ones a hundred in all, the latest.
fn superseded<'s>(survey: &'s Survey<'_>) -> HashSet<&'s str> {
    let ended = survey.pods.iter().filter_map(|judged| match judged.fate {
        Fate::Ended { at, .. } => Some((judged, at)),
        _ => None,
    });
    let uid = |judged: &'s Judged<'_>| &*judged.pod.meta.uid;
    let has_failed = |judged: &Judged<'_>| judged.pod.phase == Phase::Failed;
    // Pods are sorted by node and run: the later one replaces the earlier.
    let mut last: HashMap<(&str, bool), (&Judged<'_>, Timestamp)> = HashMap::new();
    for (judged, at) in ended.clone() {
        let home = judged.home.map_or("", |uid| uid);
        last.insert((home, false), (judged, at));
        if has_failed(judged) {
            last.insert((home, true), (judged, at));
        }
    }
    let mut kept: HashSet<&str> = last.values().map(|(judged, _)| uid(judged)).collect();
    let mut failed: Vec<_> = ended
        .clone()
        .filter(|(judged, _)| has_failed(judged) && kept.contains(uid(judged)))
        .map(|(judged, at)| (std::cmp::Reverse(at), uid(judged)))
        .collect();
    failed.sort_unstable();
    for (_, uid) in failed.iter().skip(KEPT_FAILED_PODS) {
        kept.remove(uid);
    }
    ended.map(|(judged, _)| uid(judged)).filter(|uid| !kept.contains(uid)).collect()
}

/// When the pods of a run that is over are deleted: told by the status, so that it is told first.
fn expiry(job: &DaemonJob, survey: &Survey<'_>) -> Option<Timestamp> {
    let ttl = SignedDuration::from_secs(i64::from(job.spec.ttl_seconds_after_finished?));
    let before = job.status.as_ref()?;
    let is_over =
        !survey.begins && job.spec.suspend != Some(true) && (survey.is_finished() || survey.ending.is_some());
    let ended = before.conditions.iter().find(|one| one.type_ == "Failed" && one.status == "True");
    let complete =
        before.completion_time.as_ref().filter(|_| conditions::is_true(&before.conditions, "Complete"));
    let at = complete.or(ended.map(|failed| &failed.last_transition_time)).filter(|_| is_over)?;
    at.0.checked_add(ttl).ok()
}

/// Puts back the labels without which a watch does not see what is ours.
fn restored_labels(job: &DaemonJob, world: &World, survey: &Survey<'_>) -> Actions {
    let restore = |resource, meta: &Meta, labels: Value| Action::Merge {
        resource,
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        body: json!({ "metadata": { "uid": &*meta.uid, "labels": labels } }),
    };
    let pods =
        world.unlabelled.pods.iter().map(|pod| restore(PODS, &pod.meta, json!({ KIND_LABEL: "DaemonJob" })));
    let shards = world.unlabelled.shards.iter();
    let shards = shards.map(|shard| restore(CONFIG_MAPS, &shard.meta, json!({ LEDGER_LABEL: FORMAT })));
    // One that was unlabelled while nobody looked: it stands where a pod was to be made.
    let met = survey.nodes.iter().filter_map(|surveyed| match surveyed.state {
        State::Due(run) if !world.refusals.is_empty() => {
            let name = pod_name(job, surveyed.node, run);
            world.refusals.of("create", &name).filter(|refusal| refusal.reason == LABELS_MISSING)?;
            Some(Action::Merge {
                resource: PODS,
                namespace: job.metadata.namespace.as_deref().unwrap_or_default().into(),
                name: name.into(),
                body: json!({ "metadata": { "labels": { KIND_LABEL: "DaemonJob" } } }),
            })
        }
        _ => None,
    });
    pods.chain(shards).chain(met).collect()
}

fn create(job: &DaemonJob, node: &Node, hash: &str, run: u64) -> Action<DaemonJobStatus> {
    let meta = &job.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name = pod_name(job, node, run);
    let mut body = job.spec.template.pod(
        namespace,
        &name,
        &controller_reference(&Resource::of::<DaemonJob>(), meta),
        &[
            (KIND_LABEL, "DaemonJob"),
            (NAME_LABEL, meta.name.as_deref().unwrap_or_default()),
            (UID_LABEL, meta.uid.as_deref().unwrap_or_default()),
            (NODE_UID_LABEL, &node.meta.uid),
            (HASH_LABEL, hash),
            (RUN_LABEL, &run.to_string()),
        ],
        &[(NODE_NAME_ANNOTATION, &node.meta.name), (BOOT_ID_ANNOTATION, &node.boot_id)],
        Some(FINALIZER),
    );
    let mut spec = pinned(job.spec.template.spec(), &node.meta.name);
    // A pod that is always restarted never completes; the post made it OnFailure too.
    if matches!(spec.get("restartPolicy").and_then(Value::as_str), None | Some("Always")) {
        spec["restartPolicy"] = json!("OnFailure");
    }
    body["spec"] = spec;
    Action::Create { resource: PODS, namespace: namespace.into(), name, body: body.into() }
}

#[cfg(test)]
mod tests;
