//! The broker's figures of a subscription, and their copy in the status.
//!
//! Metrics have the exact figures. The status is for users: the controller writes it when a figure changes
//! from or to 0, or by more than a tenth.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use quintet_pulsar_topic::Topic;
use quintet_runtime::model::clock::whole_seconds;
use serde::Deserialize;
use serde::de::{DeserializeSeed as _, IgnoredAny};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use crate::answer::Named;
use crate::api::PulsarConsumerStatus;

/// The figures of a subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Unacknowledged entries; a batch of messages is one.
    pub backlog: i64,
    /// Delivered and unacknowledged messages.
    pub unacked: i64,
    /// The number of consumers; for several topics, the largest of their numbers.
    pub consumers: i32,
    /// Delivered messages per second.
    pub rate: f64,
}

/// Why the figures are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The condition's reason.
    pub reason: &'static str,
    /// The condition's message.
    pub message: String,
    /// Whether the topic or subscription does not exist.
    pub is_none_yet: bool,
}

impl Unknown {
    /// The admin API rejects the credentials.
    pub const ADMIN_REFUSED: &'static str = "AdminRefused";
    /// The topic does not exist.
    pub const NO_TOPIC: &'static str = "TopicNotFound";
    /// The subscription does not exist.
    pub const NO_SUBSCRIPTION: &'static str = "SubscriptionNotFound";

    /// With this reason and message.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        let is_none_yet = [Self::NO_TOPIC, Self::NO_SUBSCRIPTION].contains(&reason);
        Self { reason, message: message.into(), is_none_yet }
    }

    /// A Secret or a key does not exist.
    pub const NO_SECRET: &'static str = "SecretNotFound";
    /// The manager may not read a Secret.
    pub const SECRET_FORBIDDEN: &'static str = "SecretForbidden";
}

/// The numbers of partitions of topics; 0 for a topic without partitions.
pub type Partitions = BTreeMap<Topic, u32>;

/// A reading of the backlog.
#[derive(Clone, Debug, PartialEq)]
pub struct BacklogSample {
    /// The figures, or why they are unknown.
    pub figures: Result<Figures, Unknown>,
    /// The known numbers of partitions.
    pub partitions: Partitions,
}

impl BacklogSample {
    /// The sum over all topics. Their first failure decides. Without readings, the `last` partitions stay.
    pub fn sum(readings: Result<Vec<TopicSample>, Unknown>, last: Partitions) -> Self {
        let readings = match readings {
            Ok(readings) => readings,
            Err(unknown) => return Self { figures: Err(unknown), partitions: last },
        };
        let partitions =
            readings.iter().filter_map(|one| Some((one.topic.clone(), one.partitions?))).collect();
        let figures = readings.into_iter().try_fold(Figures::default(), |sum, one| {
            let Figures { backlog, unacked, consumers, rate } = one.figures?;
            Ok(Figures {
                backlog: sum.backlog.saturating_add(backlog),
                unacked: sum.unacked.saturating_add(unacked),
                consumers: sum.consumers.max(consumers),
                rate: sum.rate + rate,
            })
        });
        Self { figures, partitions }
    }
}

/// A reading of a topic.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicSample {
    /// The topic.
    pub topic: Topic,
    /// The figures, or that the topic or subscription does not exist.
    pub figures: Result<Figures, Unknown>,
    /// The number of partitions; None if it was never known.
    pub partitions: Option<u32>,
}

/// A topic's statistics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopicFigures {
    /// The figures of the subscription; None without this subscription.
    pub subscription: Option<Figures>,
    /// The number of partitions; 0 for a topic without partitions.
    pub partitions: u32,
}

/// Reads the statistics of a topic. The caller limits the size of `answer`.
pub fn figures(answer: &[u8], subscription: &str) -> Result<TopicFigures, serde_json::Error> {
    let stats: TopicStats<'_> = serde_json::from_slice(answer)?;
    let mut subscriptions = serde_json::Deserializer::from_str(stats.subscriptions.get());
    let subscription = Named::<SubscriptionStats>(subscription, PhantomData)
        .deserialize(&mut subscriptions)?
        .map(|stats| Figures {
            backlog: stats.msg_backlog.max(0),
            unacked: stats.unacked_messages.max(0),
            consumers: i32::try_from(stats.consumers.len()).unwrap_or(i32::MAX),
            rate: stats.msg_rate_out,
        });
    Ok(TopicFigures { subscription, partitions: stats.metadata.partitions })
}

#[derive(Deserialize)]
struct TopicStats<'a> {
    // Required, so that other JSON is an error.
    #[serde(borrow)]
    subscriptions: &'a RawValue,
    #[serde(default)]
    metadata: TopicMetadata,
}

/// Only a topic with partitions has it.
#[derive(Default, Deserialize)]
struct TopicMetadata {
    partitions: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SubscriptionStats {
    msg_backlog: i64,
    unacked_messages: i64,
    msg_rate_out: f64,
    consumers: Vec<IgnoredAny>,
}

/// Returns a status with only the figures that follow `before`.
pub fn backlog_status(
    before: &PulsarConsumerStatus,
    sample: Option<&BacklogSample>,
    now: Timestamp,
) -> PulsarConsumerStatus {
    let figures = match sample.map(|sample| &sample.figures) {
        // The old figures are of a topic or subscription that is gone.
        Some(Err(unknown)) if unknown.is_none_yet => return PulsarConsumerStatus::default(),
        Some(Ok(figures)) => Some(figures),
        Some(Err(_)) | None => None,
    };
    let is_news = |figures: &&Figures| {
        let pairs = [(before.backlog, figures.backlog), (before.unacked, figures.unacked)];
        before.consumers != Some(figures.consumers)
            || pairs.into_iter().any(|(old, new)| {
                old.is_none_or(|old| (old == 0) != (new == 0) || (new - old).abs() * 10 > old)
            })
    };
    // Old figures stay with their time if a read fails; the condition reports the failure.
    let (backlog, unacked, consumers, backlog_time) = match figures.filter(is_news) {
        None => (before.backlog, before.unacked, before.consumers, before.backlog_time.clone()),
        Some(Figures { backlog, unacked, consumers, .. }) => {
            (Some(*backlog), Some(*unacked), Some(*consumers), Some(Time(whole_seconds(now))))
        }
    };
    PulsarConsumerStatus { backlog, unacked, consumers, backlog_time, ..PulsarConsumerStatus::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn sample(figures: Result<Figures, Unknown>) -> BacklogSample {
        BacklogSample { figures, partitions: Partitions::new() }
    }

    fn status(backlog: i64, consumers: i32) -> PulsarConsumerStatus {
        PulsarConsumerStatus {
            backlog: Some(backlog),
            unacked: Some(0),
            consumers: Some(consumers),
            backlog_time: Some(Time(at(0))),
            ..PulsarConsumerStatus::default()
        }
    }

    #[rstest]
    // From and to 0.
    #[case(0, 1, 1, 1, Some(1))]
    #[case(500, 0, 1, 1, Some(0))]
    // More than a tenth.
    #[case(100, 111, 1, 1, Some(111))]
    #[case(100, 89, 1, 1, Some(89))]
    // A tenth or less.
    #[case(100, 110, 1, 3_600, None)]
    #[case(100, 90, 1, 3_600, None)]
    // Another number of consumers, with everything.
    #[case(100, 101, 2, 1, Some(101))]
    fn writes_figures_after_relevant_changes(
        #[case] before: i64,
        #[case] backlog: i64,
        #[case] consumers: i32,
        #[case] second: i64,
        #[case] expected: Option<i64>,
    ) {
        let sample = sample(Ok(Figures { backlog, unacked: 0, consumers, rate: 0.0 }));
        let status = backlog_status(&status(before, 1), Some(&sample), at(second));
        assert_eq!(status.backlog, Some(expected.unwrap_or(before)));
        assert_eq!(status.backlog_time.is_some_and(|time| time.0 == at(second)), expected.is_some());
    }

    #[test]
    fn writes_first_figures_and_keeps_unreadable_ones() {
        let first = sample(Ok(Figures::default()));
        let first = backlog_status(&PulsarConsumerStatus::default(), Some(&first), at(0));
        assert_eq!((first.backlog, first.unacked, first.consumers), (Some(0), Some(0), Some(0)));
        assert_eq!(backlog_status(&status(7, 1), None, at(99)).backlog, Some(7));
        let unreadable = sample(Err(Unknown::new("AdminFailed", "")));
        assert_eq!(backlog_status(&status(7, 1), Some(&unreadable), at(99)).backlog, Some(7));
    }

    #[rstest]
    #[case(Unknown::NO_TOPIC)]
    #[case(Unknown::NO_SUBSCRIPTION)]
    fn drops_the_figures_of_what_is_gone(#[case] reason: &'static str) {
        let gone = sample(Err(Unknown::new(reason, "")));
        assert_eq!(backlog_status(&status(7, 1), Some(&gone), at(99)), PulsarConsumerStatus::default());
    }

    #[test]
    fn reads_the_answer_of_the_broker() {
        let answer =
            br#"{"msgRateIn": 0.0, "subscriptions": {"o": {}, "s": {"msgBacklog": 102, "unackedMessages": 3,
            "msgRateOut": 1.5, "consumers": [{"consumerName": "a"}, {}]}, "\u0061b": {}}, "x": [1]}"#;
        let read = |subscription: &str| figures(answer, subscription).unwrap().subscription;
        assert_eq!(read("s"), Some(Figures { backlog: 102, unacked: 3, consumers: 2, rate: 1.5 }));
        assert_eq!(read("ab"), Some(Figures::default()));
        assert_eq!(read("other"), None);
        let partitions = |answer: &[u8]| figures(answer, "s").unwrap().partitions;
        assert_eq!(partitions(br#"{"subscriptions": {}}"#), 0);
        assert_eq!(partitions(br#"{"subscriptions": {}, "metadata": {"partitions": 3, "x": 1}}"#), 3);
        for nonsense in
            [&b"[]"[..], b"{}", b"{\"subscriptions\": 1}", b"{\"subscriptions\": {}} x", b"<html>"]
        {
            assert!(figures(nonsense, "s").is_err());
        }
    }

    #[test]
    fn sums_figures_and_keeps_known_partitions() {
        let one = |topic: &str, figures: Result<Figures, Unknown>, partitions: Option<u32>| TopicSample {
            topic: Topic::of(topic),
            figures,
            partitions,
        };
        let some = |backlog, consumers| Ok(Figures { backlog, unacked: 1, consumers, rate: 0.5 });
        let last = Partitions::from([(Topic::of("a"), 9)]);
        let sum = |readings| BacklogSample::sum(readings, last.clone());
        let both = sum(Ok(vec![one("a", some(2, 3), Some(0)), one("b", some(5, 1), Some(4))]));
        assert_eq!(both.figures, Ok(Figures { backlog: 7, unacked: 2, consumers: 3, rate: 1.0 }));
        assert_eq!(both.partitions, Partitions::from([(Topic::of("a"), 0), (Topic::of("b"), 4)]));
        let failure = |reason| Err(Unknown::new(reason, ""));
        let failed = sum(Ok(vec![
            one("a", some(2, 3), Some(0)),
            one("b", failure("first"), None),
            one("c", failure("second"), None),
        ]));
        assert_eq!(failed.figures.unwrap_err().reason, "first");
        assert_eq!(failed.partitions, Partitions::from([(Topic::of("a"), 0)]));
        assert_eq!(sum(Err(Unknown::new("AdminFailed", ""))).partitions, last);
    }
}
