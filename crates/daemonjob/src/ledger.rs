//! The ledger: the records of nodes, which outlive their pods.
//!
//! A ledger has up to 16 ConfigMaps, which the manager creates when it needs them and which the DaemonJob
//! owns. A ConfigMap has one line for each node UID, of readable `key=value` words. A further line, `gone`,
//! counts failed nodes whose Node was deleted. While a pod exists, it is its own record. The manager writes
//! the line before it removes the pod's finalizer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::str::FromStr;
use std::sync::Arc;

use foldhash::HashSet;
use jiff::{SignedDuration, Timestamp};
use percent_encoding::{AsciiSet, CONTROLS, PercentEncode, percent_decode_str, utf8_percent_encode};
use quintet_runtime::model::digest;
use quintet_runtime::model::object::{Meta, Object, Pairs};
use serde::Deserialize;

/// The label of every shard. Its value is the format of the lines.
pub const LEDGER_LABEL: &str = "dj.dysproz.io/ledger";
/// The format that this version reads and writes. It never writes to a shard of another format.
pub const FORMAT: &str = "v2";
/// The number of shards. It must never change, because it determines a node's shard.
pub const SHARDS: u8 = 16;
/// The number of shards in format v1, by the first three bits.
const OLD_SHARDS: u8 = 8;
/// The part between the DaemonJob's name and the shard's number, in format v1.
const OLD_NAME: &str = "-ledger-";
/// The key of the line that counts failed nodes whose Node was deleted. It cannot be a UID.
pub const GONE: &str = "gone";
/// How long a failed node counts after the deletion of its Node.
const GONE_COUNTS_FOR: SignedDuration = SignedDuration::from_hours(24);

/// The shard of a node's line: the first four bits of the SHA-256 of its UID.
pub fn shard_of(node_uid: &str) -> u8 {
    digest::first_byte(node_uid) / (u8::MAX / SHARDS + 1)
}

/// The name of a shard's ConfigMap.
pub fn shard_name(daemonjob: &str, shard: u8) -> String {
    format!("{daemonjob}-ledger-v2-{shard}")
}

/// The names of all shards that a ledger may have, including format v1.
pub fn shard_names(daemonjob: &str) -> impl Iterator<Item = String> {
    let old = (0..OLD_SHARDS).map(move |shard| format!("{daemonjob}{OLD_NAME}{shard}"));
    (0..SHARDS).map(move |shard| shard_name(daemonjob, shard)).chain(old)
}

/// The end of a pod. The ledger stores the names of the variants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum Outcome {
    /// The pod ran to completion.
    Succeeded,
    /// The pod failed, and the failure counts.
    Failed,
    /// The pod failed, and podFailurePolicy fails the node permanently.
    FailedIndex,
    /// The pod failed, and podFailurePolicy fails the whole run.
    FailedJob,
    /// The pod was deleted, evicted or preempted before it ended. disruptionLimit counts it.
    Disrupted,
    /// The end of the pod does not count. podFailurePolicy ignores the failure, the manager deleted the pod,
    /// or the node was cordoned or tainted.
    Ignored,
    /// The kubelet rejected the pod at admission, so it never ran. disruptionLimit counts it.
    Rejected,
    /// The pod did not start in time: the node is skipped until the next run.
    PendingDeadlineExceeded,
    /// The record of the node is lost: the node is skipped until the next rollout.
    #[default]
    RecordLost,
    /// The Node was deleted while its pod ran.
    NodeDeleted,
}

impl Outcome {
    /// The word in the ledger.
    pub fn word(self) -> &'static str {
        self.into()
    }

    /// The result of the attempt, if the outcome alone shows that the pod was an attempt.
    fn implies(self) -> Option<AttemptResult> {
        match self {
            Self::Succeeded => Some(AttemptResult::Succeeded),
            Self::Failed | Self::FailedIndex | Self::FailedJob => Some(AttemptResult::Failed),
            _ => None,
        }
    }

    /// Whether podFailurePolicy made the failure final.
    pub fn is_final(self) -> bool {
        matches!(self, Self::FailedIndex | Self::FailedJob)
    }
}

/// The result of an attempt: a pod that started a container or that counted as a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString)]
#[cfg_attr(test, derive(strum::VariantArray))]
pub enum AttemptResult {
    /// The pod succeeded.
    Succeeded,
    /// The pod failed.
    Failed,
    /// The pod neither succeeded nor failed.
    Disrupted,
}

/// The last attempt on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Its result.
    pub result: AttemptResult,
    /// The hash of its template.
    pub hash: Arc<str>,
    /// The number of its rollout.
    pub rollout: u64,
    /// The number of its pod.
    pub pod: u64,
    /// The due time for which its pod was created.
    pub due: Option<Timestamp>,
    /// A digest of the node's boot ID when a successful pod was created. Empty if unknown.
    pub boot: Arc<str>,
    /// A digest of the node's machine ID when a successful pod was created. Empty if unknown.
    pub machine: Arc<str>,
    /// Whether the node was Ready after the attempt, or was not Ready when the pod was created. Otherwise the
    /// node is suspect while it is not Ready. With settleSeconds, whether the node has settled after a success.
    pub clear: bool,
}

/// One line: the record of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The node's name.
    pub node: Arc<str>,
    /// The hash of the last pod's template.
    pub hash: Arc<str>,
    /// The number of the last pod's rollout.
    pub rollout: u64,
    /// The number of the last pod's run.
    pub run: u64,
    /// The number of the last pod. The pods of a node are numbered from 1.
    pub pod: u64,
    /// The end of the last pod.
    pub outcome: Outcome,
    /// Failures in this rollout since the last success, for backoffLimit.
    pub failures: u32,
    /// Consecutive disruptions and rejections in this rollout, for disruptionLimit.
    pub disruptions: u32,
    /// Pods in this rollout whose end does not count. They only add to the backoff.
    pub ignored: u32,
    /// When the first of the last consecutive rejections happened.
    pub rejected_since: Option<Timestamp>,
    /// Exit code and reason, as `1/Error`, of the last failed pod in this rollout since the last success.
    pub exit: Option<Arc<str>>,
    /// The last attempt.
    pub attempt: Option<Attempt>,
    /// For a node that counts as failed: when the manager saw that the Node was deleted.
    pub gone: Option<Timestamp>,
    /// When the last pod ended.
    pub ended: Timestamp,
    /// Words that newer versions wrote.
    pub unknown: Box<[Box<str>]>,
}

/// A pod that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its record, as if it were the first pod of its node.
    pub entry: Entry,
    /// Whether a container started.
    pub has_started: bool,
    /// The due time for which the pod was created.
    pub due: Option<Timestamp>,
    /// A digest of the node's boot ID when the pod was created.
    pub boot: Arc<str>,
    /// A digest of the node's machine ID when the pod was created.
    pub machine: Arc<str>,
    /// Whether the pod was bound and not rejected, its node was Ready when the pod was created, and the node has
    /// not been seen Ready since the pod ended. Then the pod may have run. With settleSeconds, whether the pod
    /// succeeded and its node has not settled.
    pub is_unclear: bool,
}

impl Entry {
    /// The record of the node after one more pod.
    pub fn after(before: Option<&Self>, ended: Ended) -> Self {
        let Ended { mut entry, has_started, due, boot, machine, is_unclear } = ended;
        let nothing = Self::default();
        let same = before.filter(|before| before.counts_on(entry.rollout)).unwrap_or(&nothing);
        let is_rejected = entry.outcome == Outcome::Rejected;
        entry.failures = entry.failures.saturating_add(same.failures);
        entry.disruptions = match entry.outcome {
            Outcome::Disrupted | Outcome::Rejected => same.disruptions.saturating_add(1),
            Outcome::Ignored => same.disruptions,
            _ => 0,
        };
        entry.ignored = same.ignored.saturating_add(u32::from(entry.outcome == Outcome::Ignored));
        entry.rejected_since =
            is_rejected.then(|| same.rejected_since.filter(|_| same.run == entry.run).unwrap_or(entry.ended));
        let exit = entry.exit.take().or_else(|| same.exit.clone());
        entry.exit = exit.filter(|_| entry.outcome != Outcome::Succeeded);
        let earlier = before.and_then(|before| before.attempt.clone());
        // A node that died immediately does not report the containers that it started.
        let has_run = has_started || is_unclear;
        let result = entry.outcome.implies().or(has_run.then_some(AttemptResult::Disrupted));
        // A node that is suspect after an earlier attempt stays suspect until it is Ready.
        let was_clear = earlier.as_ref().is_none_or(|earlier| earlier.clear);
        let attempt = result.map(|result| {
            let of_success =
                |id: Arc<str>| if result == AttemptResult::Succeeded { id } else { Arc::default() };
            Attempt {
                result,
                hash: entry.hash.clone(),
                rollout: entry.rollout,
                pod: entry.pod,
                due,
                boot: of_success(boot),
                machine: of_success(machine),
                clear: was_clear && !is_unclear,
            }
        });
        entry.attempt = attempt.or(earlier);
        let unknown = before.map(|before| before.unknown.as_ref()).unwrap_or_default();
        entry.unknown = unknown.iter().filter(|word| word.starts_with(NODE_WORD)).cloned().collect();
        entry
    }

    /// This entry with the texts of the other entries, where they are equal. They are equal for most nodes.
    fn sharing(mut self, texts: &mut HashSet<Arc<str>>) -> Self {
        let attempt = self.attempt.as_mut().map(|attempt| &mut attempt.hash);
        for text in iter::once(&mut self.hash).chain(&mut self.exit).chain(attempt) {
            if !texts.insert(text.clone())
                && let Some(shared) = texts.get(text)
            {
                text.clone_from(shared);
            }
        }
        self
    }

    /// Whether the next pod of a rollout adds to the counts. A success and a new rollout reset them.
    pub fn counts_on(&self, rollout: u64) -> bool {
        self.rollout == rollout && self.outcome != Outcome::Succeeded
    }

    /// Whether the last attempt succeeded.
    pub fn has_succeeded(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.result == AttemptResult::Succeeded)
    }

    /// Whether an attempt of this rollout is the node's last one.
    pub fn was_tried_in(&self, rollout: u64) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.rollout == rollout)
    }

    /// Whether an attempt failed in this rollout, and no later attempt succeeded. A retry that was disrupted,
    /// or that the manager deleted, does not change this.
    pub fn has_failed_in(&self, rollout: u64) -> bool {
        let last_failed =
            |attempt: &Attempt| attempt.result == AttemptResult::Failed && attempt.rollout == rollout;
        self.attempt.as_ref().is_some_and(last_failed) || self.counts_on(rollout) && self.failures > 0
    }

    /// The last attempt, if the node has not been seen Ready since.
    pub fn unclear(&self) -> Option<&Attempt> {
        self.attempt.as_ref().filter(|attempt| !attempt.clear)
    }

    /// The number of attempts since the node's last success, which determines the backoff.
    pub fn tries(&self) -> u32 {
        self.failures.saturating_add(self.disruptions).saturating_add(self.ignored)
    }
}

/// The end of the last failed pod in a record, after these words, for messages: `exit 1 (Error)`, or only the
/// reason without a container's end. Nothing if there is no such end.
pub fn exit_text(exit: Option<&str>, before: &str) -> impl fmt::Display {
    let exit = exit.and_then(|exit| exit.split_once('/'));
    fmt::from_fn(move |f| match exit {
        Some(("", reason)) => write!(f, "{before}{reason}"),
        Some((code, reason)) => write!(f, "{before}exit {code} ({reason})"),
        None => Ok(()),
    })
}

/// The greatest valid pod number. It leaves room for a next one.
pub const MOST_PODS: u64 = 1 << 53;
/// The prefix of words about the node. The other words are about its last pod.
const NODE_WORD: &str = "n-";

/// A boot ID or machine ID as the ledger stores it. Only its equality matters.
pub fn id_digest(id: &str) -> Arc<str> {
    if id.is_empty() { "".into() } else { digest::short(&[id], 10).into() }
}

/// The ASCII characters that a word cannot contain.
const NOT_IN_WORDS: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// Percent-encodes the characters that a word cannot contain.
fn encoded(value: &str) -> PercentEncode<'_> {
    utf8_percent_encode(value, NOT_IN_WORDS)
}

/// The key and the decoded value of a word.
fn key_and_value(word: &str) -> Option<(&str, Cow<'_, str>)> {
    let (key, value) = word.split_once('=').filter(|(key, _)| !key.is_empty())?;
    // `percent_decode_str` keeps an invalid escape.
    let are_digits = |pair: &[u8]| pair.iter().all(u8::is_ascii_hexdigit);
    let mut escapes = value.split('%').skip(1);
    let is_valid = escapes.all(|rest| rest.as_bytes().get(..2).is_some_and(are_digits));
    percent_decode_str(value).decode_utf8().ok().filter(|_| is_valid).map(|value| (key, value))
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rollout, run, pod, failures, disruptions, ignored, .. } = self;
        write!(f, "node={} template={}", encoded(&self.node), encoded(&self.hash))?;
        write!(f, " rollout={rollout} run={run} pod={pod} outcome={}", self.outcome.word())?;
        for (word, count) in [("failures", failures), ("disruptions", disruptions), ("ignored", ignored)] {
            if *count > 0 {
                write!(f, " {word}={count}")?;
            }
        }
        if let Some(since) = self.rejected_since {
            write!(f, " rejected-since={since}")?;
        }
        if let Some(exit) = &self.exit {
            write!(f, " exit={}", encoded(exit))?;
        }
        if let Some(attempt) = &self.attempt {
            if self.outcome.implies().is_none() {
                let Attempt { result, hash, rollout, pod, .. } = attempt;
                write!(f, " attempt={result}/{}/{rollout}/{pod}", encoded(hash))?;
            }
            if let Some(due) = attempt.due {
                write!(f, " due={due}")?;
            }
            for (word, id) in [("boot", &attempt.boot), ("machine", &attempt.machine)] {
                if !id.is_empty() {
                    write!(f, " {word}={}", encoded(id))?;
                }
            }
            if attempt.clear {
                write!(f, " clear=true")?;
            }
        }
        if let Some(gone) = self.gone {
            write!(f, " gone={gone}")?;
        }
        for word in &self.unknown {
            write!(f, " {word}")?;
        }
        write!(f, " ended={}", self.ended)
    }
}

/// Why the manager does not use a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The line is not a list of words, so the record is lost.
    Unreadable,
    /// The line has a value that this version does not know. The manager does not change it.
    Newer(Box<str>),
}

impl FromStr for Entry {
    type Err = Unusable;

    fn from_str(line: &str) -> Result<Self, Unusable> {
        let words: Option<Vec<_>> = line.split_ascii_whitespace().map(key_and_value).collect();
        let words = words.filter(|words| !words.is_empty()).ok_or(Unusable::Unreadable)?;
        parse(&words).ok_or_else(|| Unusable::Newer(line.into()))
    }
}

/// The words that every line has.
const NEEDED: [&str; 7] = ["node", "template", "rollout", "run", "pod", "outcome", "ended"];

/// None if a value is unknown or a required word is missing.
fn parse(words: &[(&str, Cow<'_, str>)]) -> Option<Entry> {
    if !NEEDED.iter().all(|needed| words.iter().any(|(key, _)| key == needed)) {
        return None;
    }
    let (mut entry, mut unknown) = (Entry::default(), Vec::new());
    let (mut stored, mut boot, mut machine, mut clear) = (None, Arc::default(), Arc::default(), false);
    let mut due = None;
    for (key, value) in words {
        let text = || Arc::from(&**value);
        match *key {
            "node" => entry.node = text(),
            "template" => entry.hash = text(),
            "rollout" => entry.rollout = value.parse().ok()?,
            "run" => entry.run = value.parse().ok()?,
            "pod" => entry.pod = value.parse().ok().filter(|pod| *pod <= MOST_PODS)?,
            "outcome" => entry.outcome = value.parse().ok()?,
            "failures" => entry.failures = value.parse().ok()?,
            "disruptions" => entry.disruptions = value.parse().ok()?,
            "ignored" => entry.ignored = value.parse().ok()?,
            "rejected-since" => entry.rejected_since = Some(value.parse().ok()?),
            "exit" => entry.exit = Some(text()),
            "attempt" => {
                let (result, rest) = value.split_once('/')?;
                let (rest, pod) = rest.rsplit_once('/')?;
                let (hash, rollout) = rest.rsplit_once('/')?;
                let (rollout, pod) = (rollout.parse().ok()?, pod.parse().ok()?);
                stored = Some((result.parse().ok()?, Arc::from(hash), rollout, pod));
            }
            "due" => due = Some(value.parse().ok()?),
            "boot" => boot = text(),
            "machine" => machine = text(),
            "clear" => clear = value.parse().ok()?,
            "gone" => entry.gone = Some(value.parse().ok()?),
            "ended" => entry.ended = value.parse().ok()?,
            _ => unknown.push(format!("{key}={}", encoded(value)).into_boxed_str()),
        }
    }
    let implied =
        entry.outcome.implies().map(|result| (result, entry.hash.clone(), entry.rollout, entry.pod));
    let attempt =
        |(result, hash, rollout, pod)| Attempt { result, hash, rollout, pod, due, boot, machine, clear };
    entry.attempt = implied.or(stored).map(attempt);
    entry.unknown = unknown.into();
    Some(entry)
}

/// Failed nodes of one rollout whose Node was deleted, by the hour in which the manager saw that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// The number of the rollout.
    pub rollout: u64,
    /// The number of nodes, by the beginning of the hour.
    hours: BTreeMap<Timestamp, u32>,
    /// Words that newer versions wrote.
    unknown: Box<[Box<str>]>,
}

const HOUR_WORD: &str = "hour-";

fn hour_of(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second().div_euclid(3_600) * 3_600).unwrap_or(at)
}

impl Gone {
    /// An empty count for this rollout.
    pub fn new(rollout: u64) -> Self {
        Self { rollout, ..Self::default() }
    }

    /// Whether it counts no node.
    pub fn is_empty(&self) -> bool {
        self.hours.is_empty()
    }

    /// Adds one node.
    pub fn add(&mut self, at: Timestamp) {
        let count = self.hours.entry(hour_of(at)).or_default();
        *count = count.saturating_add(1);
    }

    /// The number of nodes that count at this time.
    pub fn count(&self, now: Timestamp) -> usize {
        let counts = self.hours.iter().filter(|(hour, _)| still_counts(**hour, now));
        counts.map(|(_, count)| usize::try_from(*count).unwrap_or(usize::MAX)).fold(0, usize::saturating_add)
    }

    /// Drops the hours that no longer count.
    pub fn forget_before(&mut self, now: Timestamp) {
        self.hours.retain(|hour, _| still_counts(*hour, now));
    }
}

/// Whether a failed node that was deleted at `gone` still counts.
pub fn still_counts(gone: Timestamp, now: Timestamp) -> bool {
    hour_of(gone).checked_add(GONE_COUNTS_FOR).is_ok_and(|end| end > now)
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rollout={}", self.rollout)?;
        for (hour, count) in &self.hours {
            write!(f, " {HOUR_WORD}{hour}={count}")?;
        }
        for word in &self.unknown {
            write!(f, " {word}")?;
        }
        Ok(())
    }
}

impl FromStr for Gone {
    type Err = Unusable;

    fn from_str(line: &str) -> Result<Self, Unusable> {
        let read = || {
            let (mut rollout, mut hours, mut unknown) = (None, BTreeMap::new(), Vec::new());
            for word in line.split_ascii_whitespace() {
                let (key, value) = word.split_once('=')?;
                if key == "rollout" {
                    rollout = Some(value.parse().ok()?);
                } else if let Some(hour) = key.strip_prefix(HOUR_WORD) {
                    hours.insert(hour.parse().ok()?, value.parse().ok()?);
                } else {
                    unknown.push(word.into());
                }
            }
            Some(Self { rollout: rollout?, hours, unknown: unknown.into() })
        };
        read().ok_or(Unusable::Unreadable)
    }
}

/// One ConfigMap of a ledger, decoded once.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(from = "WireShard")]
pub struct Shard {
    /// Metadata.
    pub meta: Meta,
    /// The lines by node UID, including unusable lines.
    pub entries: BTreeMap<Arc<str>, Result<Entry, Unusable>>,
    /// Failed nodes whose Node was deleted. The manager does not change an unusable line.
    pub gone: Result<Gone, Unusable>,
}

impl Shard {
    /// The shard's number, from its name. None if the name is not a shard name of this DaemonJob.
    pub fn number(&self, daemonjob: &str) -> Option<u8> {
        (0..SHARDS).find(|shard| shard_name(daemonjob, *shard) == *self.meta.name)
    }

    /// Whether this version reads and writes the format of the shard.
    pub fn is_known_format(&self) -> bool {
        // A shard without its label was found by other means, and had this format.
        self.meta.labels.get(LEDGER_LABEL).is_none_or(|format| format == FORMAT)
    }

    /// Whether a shard of another format may contain a node's line.
    pub fn may_have(&self, daemonjob: &str, node_uid: &str) -> bool {
        let number = self.meta.name.strip_prefix(daemonjob).and_then(|rest| rest.strip_prefix(OLD_NAME));
        if let Some(number) = number.and_then(|number| number.parse::<u8>().ok()) {
            return digest::first_byte(node_uid) / (u8::MAX / OLD_SHARDS + 1) == number;
        }
        self.number(daemonjob).is_none_or(|number| number == shard_of(node_uid))
    }
}

impl Object for Shard {
    quintet_runtime::identified_by_meta!();
}

#[derive(Deserialize)]
struct WireShard {
    #[serde(default)]
    metadata: Meta,
    data: Option<BTreeMap<Arc<str>, Box<str>>>,
}

impl From<WireShard> for Shard {
    fn from(wire: WireShard) -> Self {
        let meta = Meta { annotations: Pairs::default(), ..wire.metadata };
        let mut lines = wire.data.unwrap_or_default();
        let gone = lines.remove(GONE).map_or_else(|| Ok(Gone::default()), |line| line.parse());
        let mut texts = HashSet::default();
        let mut entry = |line: Box<str>| line.parse().map(|entry: Entry| entry.sharing(&mut texts));
        Self { meta, entries: lines.into_iter().map(|(uid, line)| (uid, entry(line))).collect(), gone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;
    use strum::VariantArray as _;

    fn at() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn ended(pod: u64, rollout: u64, outcome: Outcome) -> Ended {
        let entry = Entry {
            node: "n".into(),
            hash: "h".into(),
            rollout,
            run: 1,
            pod,
            outcome,
            failures: u32::from(outcome == Outcome::Failed),
            exit: (outcome == Outcome::Failed).then(|| "1/Error".into()),
            ended: at(),
            ..Entry::default()
        };
        Ended {
            entry,
            has_started: outcome != Outcome::Rejected,
            due: None,
            boot: "b".into(),
            machine: "m".into(),
            is_unclear: false,
        }
    }

    /// Clusters of users contain these lines. Every version must read them, and write format v2 in this form.
    #[rstest]
    #[case(
        "node=node-1 template=v1-7ji4ojlv5d rollout=1 run=1 pod=1 outcome=Succeeded boot=abcdefghij machine=klmnopqrst clear=true ended=2026-01-01T00:00:00Z"
    )]
    #[case(
        "node=node-1 template=v1-b rollout=2 run=3 pod=3 outcome=Failed failures=2 exit=137/OOMKilled clear=true ended=2026-01-01T00:00:00Z"
    )]
    #[case(
        "node=n template=v1-b rollout=2 run=1 pod=7 outcome=FailedIndex failures=1 ended=2026-01-01T00:00:00Z"
    )]
    #[case(
        "node=n template=v1-b rollout=2 run=1 pod=2 outcome=FailedJob failures=1 clear=true ended=2026-01-01T00:00:00Z"
    )]
    #[case(
        "node=n template=v1-b rollout=2 run=1 pod=2 outcome=Disrupted disruptions=1 attempt=Succeeded/v1-a/1/1 boot=x clear=true ended=2026-01-01T00:00:00Z"
    )]
    #[case(
        "node=n template=v1-b rollout=2 run=1 pod=2 outcome=Ignored ignored=1 attempt=Disrupted/v1-b/2/1 ended=2026-01-01T00:00:00Z"
    )]
    #[case(
        "node=n template=v1-b rollout=2 run=2 pod=2 outcome=Succeeded due=2026-01-01T03:30:00Z boot=x clear=true ended=2026-01-01T03:31:00Z"
    )]
    #[case(
        "node=n template=v1-b rollout=2 run=1 pod=2 outcome=Rejected disruptions=3 rejected-since=2025-12-31T23:59:00Z ended=2026-01-01T00:00:00Z"
    )]
    #[case(
        "node=n template=v1-b rollout=2 run=1 pod=2 outcome=PendingDeadlineExceeded ended=2026-01-01T00:00:00Z"
    )]
    #[case("node= template=v1-b rollout=2 run=1 pod=0 outcome=RecordLost ended=2026-01-01T00:00:00Z")]
    #[case(
        "node=n template=v1-b rollout=2 run=1 pod=2 outcome=NodeDeleted attempt=Disrupted/v1-b/2/2 gone=2026-01-01T00:00:00Z ended=2026-01-01T00:00:00Z"
    )]
    fn golden_lines(#[case] line: &str) {
        assert_eq!(line.parse::<Entry>().unwrap().to_string(), line);
    }

    #[rstest]
    #[case::empty("")]
    #[case::no_words("done")]
    #[case::one_word_without_a_value("node=n scribble template=v1-b")]
    #[case::bad_encoding("node=%zz template=v1-b")]
    fn rejects_a_line_that_is_not_a_list_of_words(#[case] line: &str) {
        assert!(matches!(line.parse::<Entry>(), Err(Unusable::Unreadable)), "{line}");
    }

    const LINE: &str = "node=n template=v1-b rollout=2 run=1 pod=2 outcome=Failed failures=1";

    #[rstest]
    #[case::outcome("node=n template=v1-b rollout=2 run=1 pod=2 outcome=Vanished ended=2026-01-01T00:00:00Z")]
    #[case::number("node=n template=v1-b rollout=two run=1 pod=2 outcome=Failed ended=2026-01-01T00:00:00Z")]
    #[case::time("node=n template=v1-b rollout=2 run=1 pod=2 outcome=Failed ended=yesterday")]
    #[case::no_pod_of_the_attempt(
        "node=n template=v1-b rollout=2 run=1 pod=2 outcome=Rejected attempt=Failed/a/1 ended=2026-01-01T00:00:00Z"
    )]
    #[case::a_word_is_missing(LINE)]
    fn marks_a_line_with_an_unknown_value_as_newer(#[case] line: &str) {
        assert!(matches!(line.parse::<Entry>(), Err(Unusable::Newer(_))), "{line}");
    }

    #[test]
    fn keeps_unknown_words_of_the_node_longer_than_of_the_pod() {
        let line = format!("{LINE} wave=3 n-mark=a%20b ended=2026-01-01T00:00:00Z");
        let entry: Entry = line.parse().unwrap();
        assert!(entry.to_string().contains(" wave=3 n-mark=a%20b "), "{entry}");
        let after = Entry::after(Some(&entry), ended(3, 2, Outcome::Failed)).to_string();
        assert!(after.contains(" n-mark=a%20b ") && !after.contains("wave"), "{after}");
    }

    /// A node's shard must never change either.
    #[test]
    fn golden_shards() {
        let shards: Vec<u8> = ["a", "b", "c", "d", "e", "node-uid"].into_iter().map(shard_of).collect();
        assert_eq!(shards, [12, 3, 2, 1, 3, 10]);
        let mut sizes = [0; SHARDS as usize];
        for node in 0..5_000 {
            sizes[usize::from(shard_of(&format!("uid-{node}")))] += 1;
        }
        assert!(sizes.iter().all(|size| (250..375).contains(size)), "{sizes:?}");
    }

    /// The API server accepts 1 MiB, so a shard has room for 65,000 nodes with long names.
    #[test]
    fn a_shard_of_fifteen_thousand_nodes_has_at_most_300_kib() {
        let mut sizes = [0; SHARDS as usize];
        for node in 0..15_000 {
            let uid = format!("{node:08x}-0000-4000-8000-{node:012x}");
            let mut one = ended(1, 1, Outcome::Succeeded);
            one.entry.node = format!("ip-10-0-{node:05}.eu-central-1.compute.internal").into();
            one.entry.hash = "v1-7ji4ojlv5d".into();
            (one.boot, one.machine) = ("abcdefghij".into(), "klmnopqrst".into());
            one.due = Some(at());
            sizes[usize::from(shard_of(&uid))] += uid.len() + Entry::after(None, one).to_string().len();
        }
        let largest = sizes.into_iter().max().unwrap();
        println!("the largest shard of 15,000 nodes has {largest} bytes");
        assert!(largest <= 300 * 1024, "{largest}");
    }

    #[test]
    fn counts_failures_and_disruptions_across_pods() {
        let one = Entry::after(None, ended(1, 1, Outcome::Failed));
        let two = Entry::after(Some(&one), ended(2, 1, Outcome::Disrupted));
        let three = Entry::after(Some(&two), ended(3, 1, Outcome::Rejected));
        assert_eq!((three.failures, three.disruptions, three.pod), (1, 2, 3));
        assert!(two.rejected_since.is_none() && three.rejected_since.is_some());
        let four = Entry::after(Some(&three), ended(4, 1, Outcome::Failed));
        assert_eq!((four.failures, four.disruptions), (2, 0), "a failure resets the disruptions");
        let done = Entry::after(Some(&four), ended(5, 1, Outcome::Succeeded));
        assert!(done.has_succeeded() && !done.has_failed_in(1));
        let again = Entry::after(Some(&done), ended(6, 1, Outcome::Failed));
        assert_eq!(again.failures, 1, "a success resets the failures");
        let other = Entry::after(Some(&again), ended(7, 2, Outcome::Failed));
        assert_eq!(other.failures, 1, "a new rollout resets the failures");
    }

    #[rstest]
    #[case::rejected(Outcome::Rejected, false, true)]
    #[case::deleted_before_it_started(Outcome::Ignored, false, true)]
    #[case::deleted_after_it_started(Outcome::Ignored, true, false)]
    #[case::evicted_after_it_started(Outcome::Disrupted, true, false)]
    #[case::failed(Outcome::Failed, true, false)]
    fn only_an_attempt_replaces_a_success(
        #[case] outcome: Outcome,
        #[case] has_started: bool,
        #[case] stays: bool,
    ) {
        let done = Entry::after(None, ended(1, 1, Outcome::Succeeded));
        let next = Entry::after(Some(&done), Ended { has_started, ..ended(2, 2, outcome) });
        assert_eq!(next.has_succeeded(), stays);
        let attempt = next.to_string().parse::<Entry>().unwrap().attempt.unwrap();
        assert_eq!((attempt.rollout, attempt.pod), if stays { (1, 1) } else { (2, 2) });
    }

    #[test]
    fn a_node_stays_suspect_until_it_is_ready() {
        let unclear = Ended { is_unclear: true, ..ended(1, 1, Outcome::Disrupted) };
        let one = Entry::after(None, unclear.clone());
        assert!(one.unclear().is_some());
        let two = Entry::after(Some(&one), ended(2, 1, Outcome::Failed));
        assert!(two.unclear().is_some(), "the node was not Ready during the second attempt");
        let unseen = Ended { has_started: false, ..unclear };
        assert!(Entry::after(None, unseen).unclear().is_some(), "the node may not have reported the start");
    }

    #[test]
    fn deleted_nodes_count_for_a_day_by_the_hour() {
        let hour = SignedDuration::from_hours(1);
        let mut gone = Gone::new(3);
        gone.add(at() + SignedDuration::from_mins(59));
        gone.add(at() + hour);
        gone.add(at() + hour);
        let line = gone.to_string();
        assert_eq!(line, "rollout=3 hour-2026-01-01T00:00:00Z=1 hour-2026-01-01T01:00:00Z=2");
        assert_eq!(line.parse::<Gone>().unwrap(), gone);
        assert_eq!((gone.count(at()), gone.count(at() + hour * 24), gone.count(at() + hour * 25)), (3, 2, 0));
        gone.forget_before(at() + hour * 24);
        assert_eq!(gone.to_string(), "rollout=3 hour-2026-01-01T01:00:00Z=2");
    }

    #[rstest]
    #[case::scribble("scribble")]
    #[case::no_rollout("hour-2026-01-01T00:00:00Z=1")]
    #[case::newer_value("rollout=1 hour-2026-01-01T00:00:00Z=many")]
    fn rejects_an_invalid_line_of_deleted_nodes(#[case] line: &str) {
        assert!(line.parse::<Gone>().is_err());
    }

    #[test]
    fn keeps_unknown_words_in_the_line_of_deleted_nodes() {
        let line = "rollout=3 hour-2026-01-01T00:00:00Z=1 wave=2";
        assert_eq!(line.parse::<Gone>().unwrap().to_string(), line);
    }

    #[test]
    fn reads_the_other_lines_beside_an_invalid_line() {
        let shard: Shard = serde_json::from_value(json!({
            "metadata": {"name": "d-ledger-v2-3", "labels": {LEDGER_LABEL: "v2"}},
            "data": {"a": format!("{LINE} ended=2026-01-01T00:00:00Z"), "b": "scribble",
                "gone": "rollout=1 hour-2026-01-01T00:00:00Z=1"}
        }))
        .unwrap();
        assert_eq!(shard.number("d"), Some(3));
        assert_eq!(shard.number("e"), None);
        assert!(shard.is_known_format());
        assert!(shard.entries["a"].is_ok() && shard.entries["b"].is_err());
        assert_eq!((shard.entries.len(), shard.gone.unwrap().count(at())), (2, 1));
    }

    #[rstest]
    #[case::v1_of_this_node("d-ledger-6", "v1", true)]
    #[case::v1_of_other_nodes("d-ledger-1", "v1", false)]
    #[case::newer_of_this_node("d-ledger-v2-12", "v3", true)]
    #[case::newer_of_other_nodes("d-ledger-v2-3", "v3", false)]
    #[case::newer_with_another_name("d-records-a", "v3", true)]
    fn finds_the_shard_of_another_format_that_may_have_a_node(
        #[case] name: &str,
        #[case] format: &str,
        #[case] expected: bool,
    ) {
        let shard: Shard = serde_json::from_value(
            json!({"metadata": {"name": name, "labels": {LEDGER_LABEL: format}}, "data": null}),
        )
        .unwrap();
        assert!(!shard.is_known_format());
        assert_eq!(shard.may_have("d", "a"), expected);
    }

    proptest! {
        #[test]
        fn parses_every_line_that_it_prints(
            outcome in 0..Outcome::VARIANTS.len(), pod in 0..=MOST_PODS, failures: u32, disruptions: u32, ignored: u32,
            node in ".{0,9}", stored in prop::option::of((0..3_usize, ".{1,9}", any::<u64>(), any::<u64>())), boot in "[a-z2-7]{0,10}",
            clear: bool, exit in prop::option::of("[0-9]{0,3}/.{1,9}"), second in 0..4_000_000_000_i64, gone: bool,
        ) {
            let outcome = Outcome::VARIANTS[outcome];
            let time = Timestamp::from_second(second).unwrap();
            let itself = outcome.implies().map(|result| (result, Arc::from("v1-7ji4ojlv5d"), 3, pod));
            let stored = stored.map(|(result, hash, rollout, pod)| {
                (AttemptResult::VARIANTS[result], hash.as_str().into(), rollout, pod)
            });
            let attempt = itself.or(stored).map(|(result, hash, rollout, pod)| Attempt {
                result, hash, rollout, pod, due: gone.then_some(time), boot: boot.as_str().into(), machine: "".into(), clear,
            });
            let entry = Entry {
                node: node.as_str().into(), hash: "v1-7ji4ojlv5d".into(), rollout: 3, run: 4, pod, outcome, failures,
                disruptions, ignored, rejected_since: gone.then_some(time), exit: exit.map(Arc::from),
                attempt, gone: gone.then_some(time),
                ended: time, unknown: Box::default(),
            };
            prop_assert_eq!(entry.to_string().parse::<Entry>().unwrap(), entry);
        }
    }
}
