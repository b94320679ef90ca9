//! Names of topics, and the topics that a PulsarConsumer consumes.

use std::collections::HashSet;
use std::fmt;

use quintet_runtime::model::resource::escape;
use regex_lite::Regex;

use crate::api::PulsarConsumerSpec;

/// A topic's full name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Topic(String);

impl Topic {
    /// Completes the name in a spec. A short name is in tenant `public`, namespace `default`.
    pub fn of(name: &str) -> Self {
        let (domain, rest) = name.split_once("://").unwrap_or(("persistent", name));
        let place = if rest.splitn(3, '/').count() == 3 { "" } else { "public/default/" };
        Self(format!("{domain}://{place}{rest}"))
    }

    /// The topic of a partition.
    pub fn partition(&self, number: u32) -> Self {
        Self(format!("{self}{PARTITION}{number}"))
    }

    /// The name of the topic that this topic is a partition of; otherwise its own.
    fn without_partition(&self) -> &str {
        let split = self.0.rsplit_once(PARTITION);
        split.filter(|(_, number)| number.parse::<u32>().is_ok()).map_or(&self.0, |(topic, _)| topic)
    }

    /// Whether Pulsar stores its messages.
    pub fn is_persistent(&self) -> bool {
        self.0.starts_with("persistent://")
    }

    /// The default dead-letter topic of a subscription, named as by Pulsar's clients.
    pub fn dead_letter(&self, subscription: &str) -> String {
        format!("{self}-{subscription}-DLQ")
    }

    /// Its path in the admin API, below `/admin/v2/`.
    pub fn path(&self) -> String {
        let (domain, rest) = self.0.split_once("://").unwrap_or_default();
        let segments: Vec<String> = [domain].into_iter().chain(rest.splitn(3, '/')).map(escape).collect();
        segments.join("/")
    }
}

/// The part of a partition's name before its number.
const PARTITION: &str = "-partition-";

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The topics that a PulsarConsumer consumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics {
    named: Vec<Topic>,
    /// The topics besides the named ones.
    pub pattern: Option<Pattern>,
    /// The retry-letter topic.
    pub retry_letters: Option<Topic>,
}

impl Topics {
    /// The topics of a spec.
    pub fn of(spec: &PulsarConsumerSpec) -> Self {
        let retry_letters = spec.retry_letter_topic().map(Topic::of);
        let letters =
            spec.dead_letter_topic().as_deref().map(Topic::of).into_iter().chain(retry_letters.clone());
        let pattern = |text| Pattern { name: Topic::of(text), except: letters.collect() };
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

    /// Whether both have a topic in common. Two patterns may match the same topic of their namespace.
    pub fn overlap(&self, other: &Self) -> bool {
        let has = |topics: &Self, topic: &Topic| {
            topics.names().any(|name| name.without_partition() == topic.without_partition())
                || topics.pattern.as_ref().is_some_and(|pattern| pattern.may_match(topic))
        };
        let place = |topics: &Self| topics.pattern.as_ref().map(|pattern| pattern.split().0.to_owned());
        self.names().any(|topic| has(other, topic))
            || other.names().any(|topic| has(self, topic))
            || place(self).is_some_and(|ours| Some(ours) == place(other))
    }
}

/// The persistent topics of a namespace whose last part matches a regular expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// A topic's name with the regular expression as its last part.
    name: Topic,
    /// The topics of letters, which do not match.
    except: Vec<Topic>,
}

impl Pattern {
    /// The beginning of the topics' names, and the regular expression.
    fn split(&self) -> (&str, &str) {
        self.name.0.rsplit_once('/').unwrap_or_default()
    }

    /// The path of the namespace in the admin API, below `/admin/v2/`.
    pub fn path(&self) -> String {
        self.split().0.replace("://", "/")
    }

    fn regex(&self) -> Result<Regex, regex_lite::Error> {
        Regex::new(&format!("^(?:{})$", self.split().1))
    }

    /// Whether a topic or the topic of a partition matches. Pulsar's own topics do not.
    fn matches(&self, regex: &Regex, topic: &Topic) -> bool {
        let name = topic.without_partition();
        let (place, local) = name.rsplit_once('/').unwrap_or_default();
        let is_internal = local.starts_with("__") || local.ends_with("__transaction_pending_ack");
        place == self.split().0
            && !is_internal
            && regex.is_match(local)
            && !self.except.iter().any(|except| except.0 == name)
    }

    fn may_match(&self, topic: &Topic) -> bool {
        self.regex().map_or(true, |regex| self.matches(&regex, topic))
    }

    /// The matching topics, with 1 for a topic with partitions and 0 for another. `partitioned` and `others` are the
    /// names that the admin API lists; `others` also has the topic of each partition.
    pub fn select(
        &self,
        partitioned: Vec<String>,
        others: Vec<String>,
    ) -> Result<Vec<(Topic, Option<u32>)>, regex_lite::Error> {
        let regex = self.regex()?;
        let whole: HashSet<String> = partitioned.iter().cloned().collect();
        let others = others.into_iter().map(Topic).filter(|topic| !whole.contains(topic.without_partition()));
        let others = others.map(|topic| (topic, Some(0)));
        let all = partitioned.into_iter().map(|name| (Topic(name), Some(1))).chain(others);
        let mut matching: Vec<_> = all.filter(|(topic, _)| self.matches(&regex, topic)).collect();
        // The order decides which failure is reported.
        matching.sort();
        Ok(matching)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    #[rstest]
    #[case("my-topic", "persistent://public/default/my-topic")]
    #[case("a/b/c", "persistent://a/b/c")]
    #[case("non-persistent://a/b/c", "non-persistent://a/b/c")]
    #[case("persistent://a/b/c", "persistent://a/b/c")]
    fn short_names_are_in_public_default(#[case] name: &str, #[case] full: &str) {
        assert_eq!(Topic::of(name).to_string(), full);
    }

    #[test]
    fn names_dead_letter_topics_like_pulsars_clients() {
        assert_eq!(Topic::of("t").dead_letter("s"), "persistent://public/default/t-s-DLQ");
    }

    fn topics(fields: &Value) -> Topics {
        let mut spec = json!({"serverAddress": "", "subscriptionName": "s"});
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        Topics::of(&serde_json::from_value(spec).unwrap())
    }

    #[rstest]
    #[case("orders-.*", &["orders-a", "orders-b-partition-3"], &["orders", "new-orders-a", "orders-dead", "orders-again"])]
    #[case("a|b", &["a", "b"], &["ab", "xa", "bx", "b-partition-x"])]
    #[case("persistent://public/default/x[0-9]+", &["x1"], &["x", "a/b/x1", "non-persistent://public/default/x1"])]
    #[case(".*", &["t"], &["__change_events", "t-s__transaction_pending_ack", "orders-dead-partition-0"])]
    fn a_pattern_matches_the_whole_last_part(
        #[case] pattern: &str,
        #[case] matching: &[&str],
        #[case] others: &[&str],
    ) {
        let letters = json!({
            "maxRedeliverCount": 3, "deadLetterTopic": "orders-dead", "retryLetterTopic": "public/default/orders-again",
        });
        let topics = topics(&json!({"topicsPattern": pattern, "deadLetterPolicy": letters}));
        let all = [matching, others].concat().iter().map(|name| Topic::of(name).to_string()).collect();
        let selected = topics.pattern.unwrap().select(Vec::new(), all).unwrap();
        let matching: Vec<_> = matching.iter().map(|name| (Topic::of(name), Some(0))).collect();
        assert_eq!(selected, matching);
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
