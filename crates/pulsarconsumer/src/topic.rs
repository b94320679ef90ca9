//! Short and full names of topics.

use std::fmt;

/// A topic's full name.
#[derive(Clone, Debug, PartialEq, Eq)]
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
        Self(format!("{self}-partition-{number}"))
    }

    /// The default dead-letter topic of a subscription, named as by Pulsar's clients.
    pub fn dead_letter(&self, subscription: &str) -> String {
        format!("{self}-{subscription}-DLQ")
    }

    /// The segments of its path in the admin API, below `/admin/v2/`, not escaped.
    pub fn segments(&self) -> impl Iterator<Item = &str> {
        let (domain, rest) = self.0.split_once("://").unwrap_or_default();
        [domain].into_iter().chain(rest.splitn(3, '/'))
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

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
}
