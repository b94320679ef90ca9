//! Decides when the manager writes the ledger.
//!
//! The ledger must have a line before a pod is released, before a run counts as finished, and before a
//! failure could be lost. Other lines wait for such a write, or five minutes, by the manager's clock.

use std::borrow::Cow;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::object::{Object as _, controller_reference};
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::refusals::Verb;
use quintet_runtime::model::resource::{CONFIG_MAPS, Resource};
use serde_json::{Map, Value, json};

use crate::api::{DaemonJob, DaemonJobStatus};
use crate::history::Latest;
use crate::labels::{NAME_LABEL, UID_LABEL};
use crate::ledger::{
    Entry, FORMAT, GONE, Gone, LEDGER_LABEL, Outcome, SHARDS, Shard, Unusable, shard_name, shard_of,
};
use crate::observe::World;
use crate::outcome::PodOutcome;
use crate::rollout::rollout_before;
use crate::survey::Survey;

/// The shortest time between two writes of the ledger for which only a pod waits.
const PACE: SignedDuration = SignedDuration::from_secs(1);
/// The longest time for which only the pod has an outcome that nothing waits for.
const LONGEST_SILENCE: SignedDuration = SignedDuration::from_mins(5);

/// Writes of a plan.
pub(crate) type Actions = Vec<Action<DaemonJobStatus>>;

type Flags = [bool; SHARDS as usize];

fn at(uid: &str) -> usize {
    usize::from(shard_of(uid))
}

/// The ledger step of a plan.
pub(crate) struct Record<'a> {
    /// Lines that the ledger lacks, by shard and node UID.
    unrecorded: [BTreeMap<&'a str, Cow<'a, Entry>>; SHARDS as usize],
    /// The shards that this plan writes.
    flushed: Flags,
    /// Shards that this version must not write, or not yet.
    unwritable: Flags,
    /// When a shard that waits must be written.
    pub again: Option<Timestamp>,
}

impl<'a> Record<'a> {
    /// Collects the missing lines, and decides which of them this plan writes.
    pub(crate) fn of(job: &DaemonJob, world: &World, survey: &'a Survey<'_>, now: Timestamp) -> Self {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let mut record = Self {
            unrecorded: Default::default(),
            flushed: [false; SHARDS as usize],
            unwritable: [false; SHARDS as usize],
            again: None,
        };
        for shard in world.shards().filter(|shard| !shard.is_known_format()) {
            if let Some(number) = shard.number(name) {
                record.unwritable[usize::from(number)] = true;
            }
        }
        record.add_nodes(survey, now);
        record.add_gone_nodes(survey);
        for shard in &world.deleted_shards {
            if let Some(number) = shard.number(name) {
                let written = if shard.terminating() { &mut record.unwritable } else { &mut record.flushed };
                written[usize::from(number)] = true;
            }
        }
        record.flush_all_if_due(job, world, survey);
        record.flush_what_pods_wait_for(world, survey, now);
        record.flush_what_was_silent_for_long(world, survey, now);
        record.withhold(name, world, now);
        record
    }

    fn add_nodes(&mut self, survey: &'a Survey<'_>, now: Timestamp) {
        for history in &survey.histories.nodes {
            let Some(uid) = history.node.map(|node| &*node.meta.uid) else { continue };
            if history.is_frozen {
                continue;
            }
            let lost = history.lost.then(|| Entry {
                node: history.node.map_or_else(|| "".into(), |node| node.meta.name.clone()),
                hash: survey.key.hash.clone(),
                rollout: survey.key.rollout,
                run: survey.key.run,
                pod: history.number,
                outcome: Outcome::RecordLost,
                ended: whole_seconds(now),
                ..Entry::default()
            });
            // A lost record is written immediately, because nothing shows the loss after the shard exists
            // again.
            if lost.is_some() {
                self.flushed[at(uid)] = true;
            }
            let owed = match &history.latest {
                Some(Latest::Owed(latest)) => Some(Cow::Borrowed(&**latest)),
                _ => None,
            };
            let entry = lost.map(Cow::Owned).or(owed);
            if let Some(entry) = entry.filter(|entry| history.recorded != Some(entry)) {
                self.unrecorded[at(uid)].insert(uid, entry);
            }
        }
    }

    fn add_gone_nodes(&mut self, survey: &'a Survey<'_>) {
        for (uid, gone) in survey.histories.gone.iter().filter(|(_, gone)| !gone.is_frozen) {
            if gone.has_pods
                && let Some(owed) = &gone.owed
            {
                self.unrecorded[at(uid)].insert(uid, Cow::Borrowed(owed));
            }
            // The failure of a deleted node is written before its line is dropped.
            self.flushed[at(uid)] |= gone.owed.is_some() || gone.must_settle && !gone.has_pods;
        }
    }

    /// Writes every shard at the end of a run, at suspend, at a change of the spec, and before the process
    /// exits.
    fn flush_all_if_due(&mut self, job: &DaemonJob, world: &World, survey: &Survey<'_>) {
        let before = job.status.as_ref();
        let changed = before.is_some_and(|before| before.observed_generation != job.metadata.generation);
        let all = world.stopping
            || changed
            || job.spec.suspend == Some(true)
            || survey.ending.is_some()
            || survey.is_finished();
        for shard in 0..usize::from(SHARDS) {
            self.flushed[shard] |= all && !self.unrecorded[shard].is_empty();
        }
    }

    /// Writes the shards for which a pod or a node waits. A terminating pod waits, and so does a pod that
    /// ended with a reason for its deletion, because that reason must not decide later. A node waits if it
    /// was suspect and is Ready, or if its failure stopped the rollout. Otherwise a later eviction would
    /// change the outcome for a new leader.
    fn flush_what_pods_wait_for(&mut self, world: &World, survey: &Survey<'_>, now: Timestamp) {
        let mut waits = [false; SHARDS as usize];
        for assessed in survey.pods().iter().filter(|assessed| !assessed.recorded) {
            let waiting = assessed.is_deleted || assessed.deleted_for.is_some();
            if let (PodOutcome::Ended { .. }, true) = (&assessed.fate, waiting)
                && let Some(target) = survey.histories.target_uid(assessed)
            {
                waits[at(target)] = true;
            }
        }
        for history in &survey.histories.nodes {
            let Some(node) = history.node else { continue };
            let uid = &*node.meta.uid;
            let was_suspect = || history.recorded.is_some_and(|recorded| recorded.unclear().is_some());
            let has_failed =
                || history.latest.as_ref().is_some_and(|one| one.has_failed_in(survey.key.rollout));
            let is_owed = || self.unrecorded[at(uid)].contains_key(uid);
            if node.ready && was_suspect() || survey.failures.brakes() && has_failed() && is_owed() {
                waits[at(uid)] = true;
            }
        }
        let until = world.clocks.flushed.and_then(|last| last.checked_add(PACE).ok());
        let until = until.filter(|until| *until > now);
        match until {
            Some(until) if waits != [false; SHARDS as usize] => self.requeue_at(until),
            Some(_) => {}
            None => self.flushed.iter_mut().zip(waits).for_each(|(flushed, waits)| *flushed |= waits),
        }
    }

    fn flush_what_was_silent_for_long(&mut self, world: &World, survey: &Survey<'_>, now: Timestamp) {
        let last = world.clocks.flushed_or_began().unwrap_or(now);
        let until = last.checked_add(LONGEST_SILENCE).unwrap_or(now);
        let mut waits = self.unrecorded.each_ref().map(|lines| !lines.is_empty());
        for (uid, gone) in &survey.histories.gone {
            // A deleted node without pods needs no line.
            waits[at(uid)] |= gone.recorded.is_some() && !gone.has_pods;
        }
        for (flushed, waits) in self.flushed.iter_mut().zip(waits) {
            *flushed |= waits && until <= now;
        }
        if until > now && waits.contains(&true) {
            self.requeue_at(until);
        }
    }

    /// Does not repeat a write that the API server recently rejected. Steps that need the write wait for it.
    fn withhold(&mut self, name: &str, world: &World, now: Timestamp) {
        for number in 0..SHARDS {
            let shard = usize::from(number);
            self.flushed[shard] &= !self.unwritable[shard];
            if !self.flushed[shard] || world.refusals.is_empty() {
                continue;
            }
            let name = shard_name(name, number);
            let refused = [Verb::Create, Verb::MergePatch]
                .into_iter()
                .filter_map(|verb| world.refusals.of(verb, &CONFIG_MAPS, &name));
            if let Some(until) = refused.map(|refusal| refusal.until).max().filter(|until| *until > now) {
                self.flushed[shard] = false;
                self.requeue_at(until);
            }
        }
    }

    fn requeue_at(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |already| already.min(at)));
    }

    /// Whether this plan writes the shard of this node.
    pub(crate) fn writes_shard_of(&self, uid: &str) -> bool {
        self.flushed[at(uid)]
    }

    /// Whether the shard of this node stays as it is. A shard that is written now may have been lost.
    pub(crate) fn keeps_shard_of(&self, uid: &str) -> bool {
        !self.flushed[at(uid)] && !self.unwritable[at(uid)]
    }

    /// The writes of the ledger step, one for each shard.
    pub(crate) fn writes(
        &self,
        job: &DaemonJob,
        world: &World,
        survey: &Survey<'_>,
        now: Timestamp,
    ) -> Actions {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        let numbers = (0..SHARDS).filter(|shard| self.flushed[usize::from(*shard)]);
        numbers.filter_map(|number| self.write(job, world, survey, name, number, now)).collect()
    }

    fn write(
        &self,
        job: &DaemonJob,
        world: &World,
        survey: &Survey<'_>,
        name: &str,
        number: u8,
        now: Timestamp,
    ) -> Option<Action<DaemonJobStatus>> {
        let present = world.ledger.iter().find(|shard| shard.number(name) == Some(number));
        let deleted = world.deleted_shards.iter().find(|shard| shard.number(name) == Some(number));
        let unrecorded = &self.unrecorded[usize::from(number)];
        let mut data: Map<String, Value> = unrecorded
            .iter()
            .map(|(uid, entry)| ((*uid).to_owned(), Value::from(entry.to_string())))
            .collect();
        let old = present.or(deleted);
        // Until the status has the new rollout, the failures of the earlier rollout may still count. An
        // unusable line that counts deleted nodes stays, and so do the lines that would be added to it.
        let before = old.map_or_else(|| Some(Gone::default()), |shard| shard.gone.clone().ok());
        let (dropped, gone) = match &before {
            Some(before) if !survey.changes => {
                let dropped: Vec<&str> = old.map(|shard| dropped(shard, survey)).unwrap_or_default();
                let gone = folded(job, before, &dropped, survey, now);
                (dropped, gone)
            }
            _ => (Vec::new(), before.clone().unwrap_or_default()),
        };
        if let Some(shard) = present {
            data.extend(dropped.into_iter().map(|uid| (uid.to_owned(), Value::Null)));
            if before.is_some_and(|before| before != gone && !(before == Gone::default() && gone.is_empty()))
            {
                let line = if gone.is_empty() { Value::Null } else { gone.to_string().into() };
                data.insert(GONE.to_owned(), line);
            }
            return (!data.is_empty()).then(|| patch_shard(shard, &data));
        }
        if let Some(shard) = deleted {
            let seen = shard.entries.iter().filter(|(uid, _)| !dropped.contains(&&***uid));
            for (uid, entry) in seen {
                let line = || match entry {
                    Ok(entry) => Some(entry.to_string()),
                    Err(Unusable::Newer(line)) => Some(line.to_string()),
                    Err(Unusable::Unreadable(_)) => None,
                };
                if let Some(line) = line().filter(|_| !data.contains_key(&**uid)) {
                    data.insert(uid.to_string(), line.into());
                }
            }
        } else if data.is_empty() {
            return None;
        }
        if !gone.is_empty() {
            data.insert(GONE.to_owned(), gone.to_string().into());
        }
        Some(create_shard(job, number, &data))
    }
}

/// The UIDs of the nodes in a shard whose Node was deleted and that have no pod.
fn dropped<'s>(shard: &'s Shard, survey: &Survey<'_>) -> Vec<&'s str> {
    let histories = &survey.histories;
    let is_dropped = |uid: &&str| {
        histories.at(uid).is_none()
            && !histories.gone.get(uid).is_some_and(|gone| gone.has_pods || gone.is_frozen)
    };
    shard.entries.keys().map(|uid| &**uid).filter(is_dropped).collect()
}

/// The count of deleted nodes, including the nodes whose lines are dropped in the same write.
fn folded(job: &DaemonJob, before: &Gone, dropped: &[&str], survey: &Survey<'_>, now: Timestamp) -> Gone {
    let rollout = survey.key.rollout;
    let mut gone = if before.rollout == rollout { before.clone() } else { Gone::new(rollout) };
    // While the failure policy stops the rollout, time alone must not let it continue.
    let braked = rollout_before(job, &survey.key).and_then(|rollout| rollout.braked_since.as_ref());
    gone.forget_before(braked.map_or(now, |since| since.0.min(now)));
    for uid in dropped {
        if let Some(at) = survey.histories.gone.get(uid).and_then(|gone| gone.counts_since) {
            gone.add(at);
        }
    }
    gone
}

fn patch_shard(shard: &Shard, data: &Map<String, Value>) -> Action<DaemonJobStatus> {
    Action::MergePatch {
        resource: CONFIG_MAPS,
        namespace: shard.meta.namespace.clone(),
        name: shard.meta.name.clone(),
        body: json!({
            "metadata": { "uid": &*shard.meta.uid, "resourceVersion": &*shard.meta.resource_version },
            "data": data,
        }),
    }
}

fn create_shard(job: &DaemonJob, number: u8, data: &Map<String, Value>) -> Action<DaemonJobStatus> {
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
