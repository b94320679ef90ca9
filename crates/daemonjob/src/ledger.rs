//! The ledger: what is known of a node when its pods are gone.
//!
//! Eight ConfigMaps at most, made when they are first needed, owned by the DaemonJob, one line for each node UID that a
//! person can read. The pods themselves are the record for as long as they are there; a line is written before a
//! pod's finalizer comes off. 150 bytes a line keep 5,000 nodes far below the size that the API server takes.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use quintet_kit::digest;
use quintet_kit::object::{Meta, Object, Pairs, WireMeta};
use serde::Deserialize;

/// Label on every shard; its value says how the lines are written.
pub const LEDGER_LABEL: &str = "dj.dysproz.io/ledger";
/// How this version writes lines. A shard that says otherwise is never written to.
pub const FORMAT: &str = "v1";
/// How many shards a ledger has at most. It can never change: a node's shard follows from it.
pub const SHARDS: u8 = 8;

/// The shard that a node's line is in: the first three bits of the SHA-256 of its UID.
pub fn shard_of(node_uid: &str) -> u8 {
    digest::first_byte(node_uid) / (u8::MAX / SHARDS + 1)
}

/// The name of a shard.
pub fn shard_name(daemonjob: &str, shard: u8) -> String {
    format!("{daemonjob}-ledger-{shard}")
}

/// How a run of a node ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The pod ran to completion.
    Succeeded,
    /// The pod failed, and that counts.
    Failed,
    /// The pod failed in a way that the failure policy takes for final: the node is not tried again.
    FailedIndex,
    /// The pod failed in a way that the failure policy takes for the end of the whole run.
    FailedJob,
    /// The pod was made to go before it had ended: that does not count.
    Disrupted,
    /// The pod failed, and the failure policy says that this does not count.
    Ignored,
    /// The pod did not start in time: the node is skipped until the next run.
    PendingDeadlineExceeded,
    /// What was recorded of the node is gone: it is skipped until the template changes.
    RecordLost,
}

impl Outcome {
    const ALL: [Self; 8] = [
        Self::Succeeded,
        Self::Failed,
        Self::FailedIndex,
        Self::FailedJob,
        Self::Disrupted,
        Self::Ignored,
        Self::PendingDeadlineExceeded,
        Self::RecordLost,
    ];

    /// The word that stands in the ledger.
    pub fn word(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::FailedIndex => "FailedIndex",
            Self::FailedJob => "FailedJob",
            Self::Disrupted => "Disrupted",
            Self::Ignored => "Ignored",
            Self::PendingDeadlineExceeded => "PendingDeadlineExceeded",
            Self::RecordLost => "RecordLost",
        }
    }
}

/// A success of a node: what must not run a second time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Success {
    /// The hash of the template.
    pub hash: Arc<str>,
    /// The node's boot ID when the pod was made.
    pub boot: Arc<str>,
}

/// One line: all that is known of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node's name.
    pub node: Arc<str>,
    /// The hash of the template of the last run.
    pub hash: Arc<str>,
    /// The number of the last run, counted for each node by itself.
    pub run: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Failures with this hash since the last success, as they count against backoffLimit.
    pub failures: u32,
    /// Pods that were made to go, or ignored, with this hash since the last success: they only make it wait.
    pub disruptions: u32,
    /// The node's boot ID when the pod of the last run was made.
    pub boot: Arc<str>,
    /// The last success, where the last run was none.
    pub success: Option<Success>,
    /// When the last run ended.
    pub at: Timestamp,
}

impl Entry {
    /// The last success, of the last run or of one before.
    pub fn last_success(&self) -> Option<Success> {
        match self.outcome {
            Outcome::Succeeded => Some(Success { hash: self.hash.clone(), boot: self.boot.clone() }),
            _ => self.success.clone(),
        }
    }

    /// What is known of the node after one further run.
    pub fn after(before: Option<&Self>, ended: Ended) -> Self {
        let Ended { node, hash, run, outcome, failures, boot, at } = ended;
        let same = before.filter(|before| before.hash == hash && before.outcome != Outcome::Succeeded);
        let (counted, disruptions) = same.map_or((0, 0), |before| (before.failures, before.disruptions));
        let waits = matches!(outcome, Outcome::Disrupted | Outcome::Ignored);
        Self {
            success: before.and_then(Self::last_success).filter(|_| outcome != Outcome::Succeeded),
            failures: counted.saturating_add(failures),
            disruptions: disruptions.saturating_add(u32::from(waits)),
            node,
            hash,
            run,
            outcome,
            boot,
            at,
        }
    }
}

/// One run of a node that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The node's name.
    pub node: Arc<str>,
    /// The hash of its template.
    pub hash: Arc<str>,
    /// Its number.
    pub run: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// By how much that counts against backoffLimit.
    pub failures: u32,
    /// The node's boot ID when the pod was made.
    pub boot: Arc<str>,
    /// When it ended.
    pub at: Timestamp,
}

/// The greatest run number that is believed: there is always a next one.
pub const MOST_RUNS: u64 = 1 << 53;

/// What an absent value is written as.
const NONE: &str = "-";

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let or_none = |text: &str| if text.is_empty() { NONE.to_owned() } else { text.to_owned() };
        write!(
            f,
            "{} {} run={} {} failures={}",
            or_none(&self.node),
            or_none(&self.hash),
            self.run,
            self.outcome.word(),
            self.failures
        )?;
        if self.disruptions > 0 {
            write!(f, " disruptions={}", self.disruptions)?;
        }
        if let Some(Success { hash, boot }) = &self.success {
            write!(f, " success={}/{}", hash, or_none(boot))?;
        }
        write!(f, " boot={} {}", or_none(&self.boot), self.at)
    }
}

/// A line that is not one of ours.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a line of this ledger: {0}")]
pub struct Unreadable(Box<str>);

impl FromStr for Entry {
    type Err = Unreadable;

    fn from_str(line: &str) -> Result<Self, Unreadable> {
        parse(line).ok_or_else(|| Unreadable(quintet_kit::conditions::shorten(line.to_owned(), 200).into()))
    }
}

fn parse(line: &str) -> Option<Entry> {
    let known = |text: &str| -> Arc<str> { if text == NONE { "".into() } else { text.into() } };
    let mut words = line.split_ascii_whitespace();
    let (node, hash) = (words.next()?, words.next()?);
    let run = words.next()?.strip_prefix("run=")?.parse().ok().filter(|run| *run <= MOST_RUNS)?;
    let outcome = words.next()?;
    let outcome = Outcome::ALL.into_iter().find(|known| known.word() == outcome)?;
    let failures = words.next()?.strip_prefix("failures=")?.parse().ok()?;
    let (mut disruptions, mut success) = (0, None);
    let mut word = words.next()?;
    if let Some(count) = word.strip_prefix("disruptions=") {
        disruptions = count.parse().ok()?;
        word = words.next()?;
    }
    if let Some(earlier) = word.strip_prefix("success=") {
        let (hash, boot) = earlier.split_once('/')?;
        success = Some(Success { hash: hash.into(), boot: known(boot) });
        word = words.next()?;
    }
    let boot = known(word.strip_prefix("boot=")?);
    let at = words.next()?.parse().ok()?;
    let entry = Entry {
        node: known(node),
        hash: known(hash),
        run,
        outcome,
        failures,
        disruptions,
        boot,
        success,
        at,
    };
    words.next().is_none().then_some(entry)
}

/// One ConfigMap of a ledger, decoded once.
#[derive(Clone, Debug, PartialEq, Default, Deserialize)]
#[serde(from = "WireShard")]
pub struct Shard {
    /// Metadata.
    pub meta: Meta,
    /// Lines by node UID; a line that cannot be read is there all the same.
    pub entries: BTreeMap<Arc<str>, Result<Entry, Unreadable>>,
}

impl Shard {
    /// Its number, by its name; None where the name is not that of a shard of this DaemonJob.
    pub fn number(&self, daemonjob: &str) -> Option<u8> {
        (0..SHARDS).find(|shard| shard_name(daemonjob, *shard) == *self.meta.name)
    }

    /// Whether its lines are written as this version writes them.
    pub fn is_known_format(&self) -> bool {
        // One that has lost its label was ours, or it would not be here.
        self.meta.labels.get(LEDGER_LABEL).is_none_or(|format| format == FORMAT)
    }
}

impl Object for Shard {
    quintet_kit::identified_by_meta!();
}

#[derive(Deserialize)]
struct WireShard {
    #[serde(default)]
    metadata: WireMeta,
    data: Option<BTreeMap<Arc<str>, Box<str>>>,
}

impl From<WireShard> for Shard {
    fn from(wire: WireShard) -> Self {
        let mut meta = Meta::from(wire.metadata);
        meta.annotations = Pairs::default();
        let lines = wire.data.unwrap_or_default();
        Self { meta, entries: lines.into_iter().map(|(uid, line)| (uid, line.parse())).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::json;

    fn at() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn ended(run: u64, hash: &str, outcome: Outcome) -> Ended {
        let failures = u32::from(outcome == Outcome::Failed);
        Ended { node: "n".into(), hash: hash.into(), run, outcome, failures, boot: "b".into(), at: at() }
    }

    /// These lines are in the clusters of users: they must be read for ever, and written like this by format v1.
    #[rstest]
    #[case("node-1 v1-7ji4ojlv5d run=1 Succeeded failures=0 boot=0e7d 2026-01-01T00:00:00Z")]
    #[case("node-1 v1-7ji4ojlv5d run=3 Failed failures=2 disruptions=1 boot=- 2026-01-01T00:00:00Z")]
    #[case("n v1-b run=7 FailedIndex failures=1 success=v1-a/0e7d boot=0e7d 2026-01-01T00:00:00Z")]
    #[case("n v1-b run=2 FailedJob failures=1 boot=x 2026-01-01T00:00:00Z")]
    #[case("n v1-b run=2 Disrupted failures=0 disruptions=1 success=v1-a/- boot=x 2026-01-01T00:00:00Z")]
    #[case("n v1-b run=2 Ignored failures=0 disruptions=1 boot=x 2026-01-01T00:00:00Z")]
    #[case("n v1-b run=2 PendingDeadlineExceeded failures=0 boot=x 2026-01-01T00:00:00Z")]
    #[case("n v1-b run=0 RecordLost failures=0 boot=- 2026-01-01T00:00:00Z")]
    fn golden_lines(#[case] line: &str) {
        assert_eq!(line.parse::<Entry>().unwrap().to_string(), line);
    }

    #[rstest]
    #[case("")]
    #[case("done")]
    #[case("n v1-b run=x Succeeded failures=0 boot=x 2026-01-01T00:00:00Z")]
    #[case("n v1-b run=1 Vanished failures=0 boot=x 2026-01-01T00:00:00Z")]
    #[case("n v1-b run=1 Succeeded failures=0 boot=x yesterday")]
    #[case("n v1-b run=1 Succeeded failures=0 boot=x 2026-01-01T00:00:00Z more")]
    fn other_lines_are_unreadable(#[case] line: &str) {
        assert!(line.parse::<Entry>().is_err());
    }

    /// Where a node's line is must never change either.
    #[test]
    fn golden_shards() {
        let shards: Vec<u8> = ["a", "b", "c", "d", "e", "node-uid"].into_iter().map(shard_of).collect();
        assert_eq!(shards, [6, 1, 1, 0, 1, 5]);
        let mut sizes = [0; SHARDS as usize];
        for node in 0..5_000 {
            sizes[usize::from(shard_of(&format!("uid-{node}")))] += 1;
        }
        assert!(sizes.iter().all(|size| (500..750).contains(size)), "{sizes:?}");
    }

    #[test]
    fn runs_are_folded() {
        let one = Entry::after(None, ended(1, "h", Outcome::Failed));
        let two = Entry::after(Some(&one), ended(2, "h", Outcome::Disrupted));
        let three = Entry::after(Some(&two), ended(3, "h", Outcome::Failed));
        assert_eq!((three.failures, three.disruptions, three.run), (2, 1, 3));
        let done = Entry::after(Some(&three), ended(4, "h", Outcome::Succeeded));
        assert_eq!((done.failures, done.success.clone()), (2, None));
        assert_eq!(done.last_success().unwrap().hash, "h".into());
        // A new success begins a new count; another template too. The last success is kept.
        let again = Entry::after(Some(&done), ended(5, "h", Outcome::Failed));
        assert_eq!((again.failures, again.last_success()), (1, done.last_success()));
        let other = Entry::after(Some(&again), ended(6, "i", Outcome::Failed));
        assert_eq!((other.failures, other.last_success()), (1, done.last_success()));
    }

    #[test]
    fn a_shard_is_decoded_and_a_bad_line_spoils_itself_alone() {
        let shard: Shard = serde_json::from_value(json!({
            "metadata": {"name": "d-ledger-3", "labels": {LEDGER_LABEL: "v1"}},
            "data": {"a": "n v1-h run=1 Succeeded failures=0 boot=x 2026-01-01T00:00:00Z", "b": "scribble"}
        }))
        .unwrap();
        assert_eq!(shard.number("d"), Some(3));
        assert_eq!(shard.number("e"), None);
        assert!(shard.is_known_format());
        assert!(shard.entries["a"].is_ok() && shard.entries["b"].is_err());
        let newer: Shard =
            serde_json::from_value(json!({"metadata": {"labels": {LEDGER_LABEL: "v2"}}, "data": null}))
                .unwrap();
        assert!(!newer.is_known_format());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            outcome in 0..Outcome::ALL.len(), run in 0..=MOST_RUNS, failures: u32, disruptions: u32, boot in "[0-9a-f-]{2,36}", node in "([a-z]{1,9})?",
            success in prop::option::of(("v1-[a-z2-7]{10}", "[0-9a-f-]{2,36}")), second in 0..4_000_000_000_i64,
        ) {
            let outcome = Outcome::ALL[outcome];
            let entry = Entry {
                node: node.as_str().into(), hash: "v1-7ji4ojlv5d".into(), run, outcome, failures, disruptions,
                boot: boot.as_str().into(),
                success: success.map(|(hash, boot)| Success { hash: hash.into(), boot: boot.into() }),
                at: Timestamp::from_second(second).unwrap(),
            };
            prop_assert_eq!(entry.to_string().parse::<Entry>().unwrap(), entry);
        }
    }
}
