//! The topics that a PulsarConsumer consumes.

use quintet_pulsar_topic::{Malformed, Pattern, Topic, split_partition};
use quintet_runtime::model::resource::escape;

use crate::api::PulsarConsumerSpec;

/// The default dead-letter topic of a subscription, named as by Pulsar's clients.
pub fn dead_letter(topic: &Topic, subscription: &str) -> String {
    format!("{topic}-{subscription}-DLQ")
}

/// The path of a topic in the admin API, below `/admin/v2/`.
pub fn path(topic: &Topic) -> String {
    let (domain, rest) = topic.as_str().split_once("://").unwrap_or_default();
    let segments: Vec<String> = [domain].into_iter().chain(rest.splitn(3, '/')).map(escape).collect();
    segments.join("/")
}

/// The topics that a PulsarConsumer consumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics {
    named: Vec<Topic>,
    /// The topics besides the named ones, or why the pattern is invalid.
    pub pattern: Option<Result<Pattern, Malformed>>,
    /// The retry-letter topic.
    pub retry_letters: Option<Topic>,
}

impl Topics {
    /// The topics of a spec.
    pub fn of(spec: &PulsarConsumerSpec) -> Self {
        let retry_letters = spec.retry_letter_topic().map(Topic::of);
        let letters =
            spec.dead_letter_topic().as_deref().map(Topic::of).into_iter().chain(retry_letters.clone());
        let pattern = |text: &str| {
            let mut pattern: Pattern = text.parse()?;
            pattern.except = letters.collect();
            Ok(pattern)
        };
        Self {
            named: spec
                .topic
                .iter()
                .chain(spec.topics.iter().flatten())
                .map(|name| Topic::of(name))
                .collect(),
            pattern: spec.topics_pattern.as_deref().map(pattern),
            retry_letters,
        }
    }

    /// The topics with a known name. The retry-letter topic is the last.
    pub fn names(&self) -> impl Iterator<Item = &Topic> {
        self.named.iter().chain(&self.retry_letters)
    }

    /// Whether a topic or partition is one of these. A pattern that the manager cannot read may match each topic.
    pub fn have(&self, topic: &Topic) -> bool {
        let whole = |topic: &Topic| split_partition(topic.as_str()).0.to_owned();
        let matches =
            |pattern: &Result<Pattern, _>| pattern.as_ref().map_or(true, |one| one.matches(topic.as_str()));
        self.names().any(|name| whole(name) == whole(topic)) || self.pattern.as_ref().is_some_and(matches)
    }

    /// Whether both have a topic in common. Two patterns may match the same topic of their namespace.
    pub fn overlap(&self, other: &Self) -> bool {
        let patterns_overlap = match (&self.pattern, &other.pattern) {
            (Some(Ok(ours)), Some(Ok(theirs))) => ours.namespace() == theirs.namespace(),
            (ours, theirs) => ours.is_some() && theirs.is_some(),
        };
        self.names().any(|topic| other.have(topic))
            || other.names().any(|topic| self.have(topic))
            || patterns_overlap
    }
}

/// Topics of a namespace, with 1 for a topic with partitions and 0 for another.
pub fn sorted(partitioned: Vec<String>, others: Vec<String>) -> Vec<(Topic, Option<u32>)> {
    let all = [(partitioned, 1), (others, 0)];
    let all =
        all.into_iter().flat_map(|(names, count)| names.into_iter().map(move |name| (name, Some(count))));
    let mut all: Vec<_> = all.map(|(name, count)| (Topic::of(&name), count)).collect();
    // The order decides which failure is reported.
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[test]
    fn names_dead_letter_topics_like_pulsars_clients() {
        assert_eq!(dead_letter(&Topic::of("t"), "s"), "persistent://public/default/t-s-DLQ");
    }

    fn topics(fields: &Value) -> Topics {
        let mut spec = json!({"serverAddress": "", "subscriptionName": "s"});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        Topics::of(&serde_json::from_value(spec).unwrap())
    }

    #[rstest]
    #[case(json!({"topic": "a"}), json!({"topics": ["b", "public/default/a"]}), true)]
    #[case(json!({"topic": "a"}), json!({"topics": ["b", "x/y/a"]}), false)]
    #[case(json!({"topic": "a"}), json!({"topicsPattern": "a|b"}), true)]
    #[case(json!({"topic": "x/y/a"}), json!({"topicsPattern": "a|b"}), false)]
    #[case::patterns_of_a_namespace(json!({"topicsPattern": "public/default/a"}), json!({"topicsPattern": "b"}), true)]
    #[case::patterns_of_others(json!({"topicsPattern": "x/y/a"}), json!({"topicsPattern": "a"}), false)]
    #[case::an_unreadable_pattern(json!({"topicsPattern": "("}), json!({"topic": "a"}), true)]
    #[case::retry_letters(
        json!({"topic": "a", "deadLetterPolicy": {"maxRedeliverCount": 1, "retryLetterTopic": "r"}}), json!({"topic": "r"}), true)]
    #[case::dead_letters(
        json!({"topicsPattern": ".*", "deadLetterPolicy": {"maxRedeliverCount": 1, "deadLetterTopic": "d"}}), json!({"topic": "d"}), false)]
    fn overlapping_topics_are_shared(#[case] one: Value, #[case] other: Value, #[case] expected: bool) {
        let (one, other) = (topics(&one), topics(&other));
        assert_eq!((one.overlap(&other), other.overlap(&one)), (expected, expected));
    }
}
