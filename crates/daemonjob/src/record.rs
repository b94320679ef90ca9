//! Decides when the manager writes the ledger.
//!
//! The ledger must have a line before a pod is released, before a run counts as finished, and before a
//! failure could be lost. Other lines wait for such a write, for 5,000 others, or five minutes, by the manager's clock.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::object::{Key, Object as _, controller_reference};
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::refusals::{Refusal, Verb};
use quintet_runtime::model::resource::{CONFIG_MAPS, Resource};
use serde_json::{Map, Value, json};

use crate::api::{DaemonJob, DaemonJobStatus};
use crate::clocks::settle_time;
use crate::history::Latest;
use crate::labels::{NAME_LABEL, UID_LABEL};
use crate::ledger::{
    AttemptResult, Entry, FORMAT, GONE, Gone, LEDGER_LABEL, Outcome, SHARDS, Shard, Unusable, shard_name,
    shard_of,
};
use crate::observe::World;
use crate::outcome::PodOutcome;
use crate::survey::Survey;
use crate::waves::Waves;

/// The shortest time between two writes of the ledger for which only a pod waits.
const PACE: SignedDuration = SignedDuration::from_secs(1);
/// The longest time for which only the pod has an outcome that nothing waits for.
const LONGEST_SILENCE: SignedDuration = SignedDuration::from_mins(5);

/// The most lines that wait only for their time. Only recorded pods can be deleted, and from 12,500 ended pods,
/// kube-controller-manager deletes those of other owners too.
const MOST_WAITING: usize = 5_000;

/// Writes of a plan.
pub(crate) type Actions = Vec<Action<DaemonJobStatus>>;

type Flags = [bool; SHARDS as usize];

fn at(uid: &str) -> usize {
    usize::from(shard_of(uid))
}

/// The ledger step of a plan.
pub(crate) struct Record<'a> {
    job: &'a DaemonJob,
    /// The name of the DaemonJob.
    name: &'a str,
    pub world: &'a World,
    pub survey: &'a Survey<'a>,
    pub now: Timestamp,
    /// Lines that the ledger lacks, by shard and node UID.
    unrecorded: [BTreeMap<&'a str, Cow<'a, Entry>>; SHARDS as usize],
    /// The shards that this plan writes.
    flushed: Flags,
    /// Shards that this version must not write, or not yet.
    unwritable: Flags,
    /// The rejection of the last write of a shard that still lacks lines or is deleted.
    pub refusal: Option<&'a Refusal>,
    /// When a shard that waits must be written.
    pub again: Option<Timestamp>,
}

impl<'a> Record<'a> {
    /// Collects the missing lines, and decides which of them this plan writes.
    pub(crate) fn of(job: &'a DaemonJob, world: &'a World, survey: &'a Survey<'a>, now: Timestamp) -> Self {
        let mut record = Self {
            job,
            name: job.metadata.name.as_deref().unwrap_or_default(),
            world,
            survey,
            now,
            unrecorded: Default::default(),
            flushed: Flags::default(),
            unwritable: Flags::default(),
            refusal: None,
            again: None,
        };
        let foreign = world.shards().filter(|shard| !shard.is_known_format());
        for number in foreign.filter_map(|shard| shard.number(record.name)) {
            record.unwritable[usize::from(number)] = true;
        }
        record.add_nodes();
        record.add_gone_nodes();
        for shard in &world.deleted_shards {
            if let Some(number) = shard.number(record.name) {
                let written = if shard.terminating() { &mut record.unwritable } else { &mut record.flushed };
                written[usize::from(number)] = true;
            }
        }
        record.flush_all_if_due();
        record.flush_what_pods_wait_for();
        record.flush_what_was_silent_for_long();
        record.withhold();
        record
    }

    fn add_nodes(&mut self) {
        let survey = self.survey;
        for history in survey.histories.nodes.iter().filter(|history| !history.is_frozen) {
            let node = history.node;
            let uid = &*node.meta.uid;
            let entry = match &history.latest {
                _ if history.lost => Cow::Owned(Entry {
                    node: node.meta.name.clone(),
                    hash: survey.key.hash.clone(),
                    rollout: survey.key.rollout,
                    run: survey.key.run,
                    pod: history.number,
                    outcome: Outcome::RecordLost,
                    ended: whole_seconds(self.now),
                    ..Entry::default()
                }),
                Some(Latest::Owed(latest)) => Cow::Borrowed(&**latest),
                _ => continue,
            };
            // A lost record is written immediately, because nothing shows the loss after the shard exists
            // again.
            if history.lost {
                self.flushed[at(uid)] = true;
            }
            if history.recorded != Some(&*entry) {
                self.unrecorded[at(uid)].insert(uid, entry);
            }
        }
    }

    fn add_gone_nodes(&mut self) {
        for (uid, gone) in self.survey.histories.gone.iter().filter(|(_, gone)| !gone.is_frozen) {
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
    fn flush_all_if_due(&mut self) {
        let (job, survey) = (self.job, self.survey);
        let before = job.status.as_ref();
        let changed = before.is_some_and(|before| before.observed_generation != job.metadata.generation);
        let all = self.world.stopping
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
    /// change the outcome for a new leader. A node that has settled does not wait, because a new leader lets it
    /// settle again. If too many lines wait, all are written.
    fn flush_what_pods_wait_for(&mut self) {
        let survey = self.survey;
        let settles = settle_time(self.job).is_some();
        let mut waits = Flags::default();
        for assessed in survey.pods().iter().filter(|assessed| !assessed.recorded) {
            let waiting = assessed.is_deleted || assessed.deleted_for.is_some();
            if let (PodOutcome::Ended { .. }, true) = (&assessed.fate, waiting)
                && let Some(target) = survey.histories.target_uid(assessed)
            {
                waits[at(target)] = true;
            }
        }
        for history in &survey.histories.nodes {
            let node = history.node;
            let uid = &*node.meta.uid;
            let was_suspect = || {
                let unclear = history.recorded.and_then(Entry::unclear);
                unclear.is_some_and(|attempt| !settles || attempt.result != AttemptResult::Succeeded)
            };
            let has_failed =
                || history.latest.as_ref().is_some_and(|one| one.has_failed_in(survey.key.rollout));
            let is_owed = || self.unrecorded[at(uid)].contains_key(uid);
            if node.ready && was_suspect() || survey.failures.brakes() && has_failed() && is_owed() {
                waits[at(uid)] = true;
            }
        }
        let lacking = self.unrecorded.each_ref().map(BTreeMap::len);
        let writable = lacking.iter().zip(self.unwritable).filter(|(_, unwritable)| !unwritable);
        if writable.map(|(lines, _)| lines).sum::<usize>() > MOST_WAITING {
            waits.iter_mut().zip(lacking).for_each(|(waits, lines)| *waits |= lines > 0);
        }
        let until = self.world.clocks.flushed.and_then(|last| last.checked_add(PACE).ok());
        let until = until.filter(|until| *until > self.now);
        match until {
            Some(until) if waits.contains(&true) => self.requeue_at(until),
            Some(_) => {}
            None => self.flushed.iter_mut().zip(waits).for_each(|(flushed, waits)| *flushed |= waits),
        }
    }

    fn flush_what_was_silent_for_long(&mut self) {
        let (clocks, now) = (&self.world.clocks, self.now);
        let last = clocks.flushed.or(clocks.began).unwrap_or(now);
        let until = last.checked_add(LONGEST_SILENCE).unwrap_or(now);
        let mut waits = self.unrecorded.each_ref().map(|lines| !lines.is_empty());
        for (uid, gone) in &self.survey.histories.gone {
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
    fn withhold(&mut self) {
        let refusals = &self.world.refusals;
        for number in 0..SHARDS {
            let shard = usize::from(number);
            self.flushed[shard] &= !self.unwritable[shard];
            let is_complete = !self.flushed[shard] && self.unrecorded[shard].is_empty();
            if is_complete || refusals.is_empty() {
                continue;
            }
            let name = shard_name(self.name, number);
            let of = |verb| refusals.of(verb, &CONFIG_MAPS, &name);
            self.refusal = self.refusal.or_else(|| of(Verb::MergePatch)).or_else(|| of(Verb::Create));
            let until = |verb| refusals.until(verb, &CONFIG_MAPS, &name);
            let until = until(Verb::Create).max(until(Verb::MergePatch));
            if let Some(until) = until.filter(|until| self.flushed[shard] && *until > self.now) {
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

    /// Whether only this process still has the lines of this node's shard, and creates the shard again. That
    /// may wait after a refusal.
    pub(crate) fn restores_shard_of(&self, uid: &str) -> bool {
        let is_it =
            |shard: &Arc<Shard>| shard.number(self.name).is_some_and(|number| usize::from(number) == at(uid));
        !self.unwritable[at(uid)] && self.world.deleted_shards.iter().any(is_it)
    }

    /// Whether the shard of this node exists and stays as it is.
    pub(crate) fn keeps_shard_of(&self, uid: &str) -> bool {
        !self.flushed[at(uid)] && !self.unwritable[at(uid)] && !self.restores_shard_of(uid)
    }

    /// The writes of the ledger step, one for each shard.
    pub(crate) fn writes(&self) -> Actions {
        let numbers = (0..SHARDS).filter(|shard| self.flushed[usize::from(*shard)]);
        numbers.filter_map(|number| self.write(number)).collect()
    }

    fn write(&self, number: u8) -> Option<Action<DaemonJobStatus>> {
        let (world, survey) = (self.world, self.survey);
        let is_it = |shard: &&Arc<Shard>| shard.number(self.name) == Some(number);
        let (present, deleted) = (world.ledger.iter().find(is_it), world.deleted_shards.iter().find(is_it));
        let lines = self.unrecorded[usize::from(number)].iter();
        let mut data: Map<String, Value> =
            lines.map(|(uid, entry)| ((*uid).to_owned(), Value::from(entry.to_string()))).collect();
        let old = present.or(deleted);
        // Until the status has the new rollout, the failures of the earlier rollout may still count. An
        // unusable line that counts deleted nodes stays, and so do the lines that would be added to it.
        let before = old.map_or_else(|| Some(Gone::default()), |shard| shard.gone.clone().ok());
        let (dropped, gone) = match &before {
            Some(before) if !survey.changes => {
                let dropped: Vec<&str> = old.map(|shard| dropped(shard, survey)).unwrap_or_default();
                let gone = folded(before, &dropped, survey, self.now);
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
                let line = match entry {
                    Ok(entry) => entry.to_string(),
                    Err(Unusable::Newer(line)) => line.to_string(),
                    Err(Unusable::Unreadable) => continue,
                };
                data.entry(&**uid).or_insert(line.into());
            }
        } else if data.is_empty() {
            return None;
        }
        if !gone.is_empty() {
            data.insert(GONE.to_owned(), gone.to_string().into());
        }
        Some(create_shard(self.job, number, &data))
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
fn folded(before: &Gone, dropped: &[&str], survey: &Survey<'_>, now: Timestamp) -> Gone {
    let rollout = survey.key.rollout;
    let mut gone = if before.rollout == rollout { before.clone() } else { Gone::new(rollout) };
    // While the failure policy stops the rollout, time alone must not let it continue. A wave counts all failed nodes.
    if !survey.waves.as_ref().is_some_and(Waves::is_limited) {
        gone.forget_before(survey.braked_since.map_or(now, |since| since.min(now)));
    }
    for uid in dropped {
        if let Some(at) = survey.histories.gone.get(uid).and_then(|gone| gone.counts_since) {
            gone.add(at);
        }
    }
    gone
}

fn patch_shard(shard: &Shard, data: &Map<String, Value>) -> Action<DaemonJobStatus> {
    let body = json!({
        "metadata": { "uid": &*shard.meta.uid, "resourceVersion": &*shard.meta.resource_version },
        "data": data,
    });
    Action::merge_patch(CONFIG_MAPS, &shard.meta, body)
}

fn create_shard(job: &DaemonJob, number: u8, data: &Map<String, Value>) -> Action<DaemonJobStatus> {
    let Key { namespace, name, uid } = job.key();
    let shard = shard_name(&name, number);
    let body = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": shard,
            "namespace": &*namespace,
            "labels": { LEDGER_LABEL: FORMAT, NAME_LABEL: &*name, UID_LABEL: &*uid },
            "ownerReferences": [controller_reference(&Resource::of::<DaemonJob>(), &job.metadata)],
        },
        "data": data,
    });
    Action::Create { resource: CONFIG_MAPS, namespace, name: shard, owner_label: None, body: body.into() }
}
