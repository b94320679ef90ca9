//! Names of Pulsar's topics, and patterns of names, for the manager and for the programs in pods.
//!
//! A name is `my-topic`, `tenant/namespace/my-topic` or `persistent://tenant/namespace/my-topic`. In a pattern, the last
//! part is a regular expression.

use std::fmt;
use std::str::FromStr;

use regex_lite::Regex;

/// The domain of a topic whose messages Pulsar stores.
const PERSISTENT: &str = "persistent";

/// The part of a partition's name before its number.
const PARTITION: &str = "-partition-";

/// A topic's full name: `persistent://tenant/namespace/my-topic`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topic(String);

/// Why a name or a pattern is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a {what}: {why}")]
pub struct Malformed {
    name: String,
    what: &'static str,
    why: String,
}

impl Topic {
    /// Completes a name and does not check it. A short name is in the tenant `public`, in the namespace `default`.
    pub fn of(name: &str) -> Self {
        let (domain, rest) = name.split_once("://").unwrap_or((PERSISTENT, name));
        let place = if rest.splitn(3, '/').count() == 3 { "" } else { "public/default/" };
        Self(format!("{domain}://{place}{rest}"))
    }

    /// Completes and checks a name or, `what`, a pattern.
    fn checked(name: &str, what: &'static str) -> Result<Self, Malformed> {
        let malformed = |why: &str| Malformed { name: name.to_owned(), what, why: why.to_owned() };
        let rest = match name.split_once("://") {
            None if name.contains('/') => Some(name),
            None => None,
            Some(("persistent" | "non-persistent", rest)) => Some(rest),
            Some(_) => return Err(malformed("before :// there must be persistent or non-persistent")),
        };
        if rest.is_some_and(|rest| rest.split('/').count() != 3) {
            return Err(malformed(
                "write it as topic, tenant/namespace/topic or persistent://tenant/namespace/topic",
            ));
        }
        let full = Self::of(name);
        // The same rule as in Pulsar.
        let is_named = |part: &str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "-=:._".contains(c))
        };
        if !parts(&full.0).1.split('/').all(is_named) {
            return Err(malformed("tenants and namespaces have only letters, digits and any of -=:._"));
        }
        Ok(full)
    }

    /// Whether Pulsar stores its messages.
    pub fn is_persistent(&self) -> bool {
        parts(&self.0).0 == PERSISTENT
    }

    /// The topics of this number of partitions; for 0, the topic.
    pub fn partitions(&self, count: u32) -> Vec<Self> {
        match count {
            0 => vec![self.clone()],
            _ => (0..count).map(|number| Self(format!("{self}{PARTITION}{number}"))).collect(),
        }
    }

    /// The full name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The topic of a partition and the partition's number; otherwise the name itself.
pub fn split_partition(full: &str) -> (&str, Option<u32>) {
    let split = full.rsplit_once(PARTITION);
    let partition = split.and_then(|(topic, number)| Some((topic, number.parse().ok()?)));
    partition.map_or((full, None), |(topic, number)| (topic, Some(number)))
}

impl FromStr for Topic {
    type Err = Malformed;

    fn from_str(name: &str) -> Result<Self, Malformed> {
        let topic = Self::checked(name, "topic name")?;
        let last = parts(&topic.0).2;
        if last.is_empty() || last.chars().any(|c| c.is_control() || c.is_whitespace()) {
            let why =
                "the last part must not be empty, and must have no spaces or control characters".to_owned();
            return Err(Malformed { name: name.to_owned(), what: "topic name", why });
        }
        Ok(topic)
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The default subscription that keeps the dead letters of a subscription.
pub fn dead_letter_subscription(subscription: &str) -> String {
    format!("{subscription}-dlq")
}

/// The persistent topics of a namespace whose last part matches a regular expression.
#[derive(Clone, Debug)]
pub struct Pattern {
    namespace: String,
    regex: Regex,
    /// Topics that do not match.
    pub except: Vec<Topic>,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        let parts = |pattern: &Self| (pattern.namespace.clone(), pattern.regex.as_str().to_owned());
        parts(self) == parts(other) && self.except == other.except
    }
}

impl Eq for Pattern {}

impl FromStr for Pattern {
    type Err = Malformed;

    /// Reads a topic's name with a regular expression as its last part.
    fn from_str(pattern: &str) -> Result<Self, Malformed> {
        let malformed = |why| Malformed { name: pattern.to_owned(), what: "pattern", why };
        let name = Topic::checked(pattern, "pattern")?;
        let (domain, namespace, last) = parts(&name.0);
        if domain != PERSISTENT {
            return Err(malformed("only persistent topics can match one".to_owned()));
        }
        if last.is_empty() {
            return Err(malformed("it has no regular expression".to_owned()));
        }
        let regex = Regex::new(&format!("^(?:{last})$"))
            .map_err(|error| malformed(format!("{last:?} is not a regular expression: {error}")))?;
        Ok(Self { namespace: namespace.to_owned(), regex, except: Vec::new() })
    }
}

impl Pattern {
    /// The tenant and the namespace: `public/default`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Whether the full name of a topic or of a partition matches. Pulsar's own topics do not.
    pub fn matches(&self, full: &str) -> bool {
        let whole = split_partition(full).0;
        let (domain, namespace, last) = parts(whole);
        let is_internal = last.starts_with("__") || last.ends_with("__transaction_pending_ack");
        domain == PERSISTENT
            && namespace == self.namespace
            && !is_internal
            && self.regex.is_match(last)
            && !self.except.iter().any(|except| except.0 == whole)
    }
}

/// The domain of a full name, its tenant and namespace, and its last part.
fn parts(full: &str) -> (&str, &str, &str) {
    let (domain, rest) = full.split_once("://").unwrap_or_default();
    let second = rest.match_indices('/').nth(1).map_or(rest.len(), |(at, _)| at);
    (domain, &rest[..second], rest.get(second + 1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("my-topic", "persistent://public/default/my-topic")]
    #[case("a/b/c", "persistent://a/b/c")]
    #[case("persistent://a/b/c", "persistent://a/b/c")]
    #[case("non-persistent://a/b/c", "non-persistent://a/b/c")]
    #[case("ünïcode:1", "persistent://public/default/ünïcode:1")]
    fn completes_names(#[case] name: &str, #[case] complete: &str) {
        assert_eq!(name.parse::<Topic>().unwrap().to_string(), complete);
        assert_eq!(Topic::of(name).to_string(), complete);
    }

    #[rstest]
    #[case("", "not be empty")]
    #[case("a/b", "write it as")]
    #[case("a/b/c/d", "write it as")]
    #[case("persistent://c", "write it as")]
    #[case("kafka://a/b/c", "before ://")]
    #[case("a b", "spaces")]
    #[case("a\nb", "control")]
    #[case("a//c", "tenants and namespaces")]
    #[case("a/b$/c", "tenants and namespaces")]
    fn rejects_invalid_names_with_a_reason(#[case] name: &str, #[case] why: &str) {
        let error = name.parse::<Topic>().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[rstest]
    #[case("orders-.*", &["orders-a", "orders-b-partition-3"], &["orders", "new-orders-a", "orders-dead", "__orders-a"])]
    #[case("a|b", &["a", "b"], &["ab", "xa", "bx", "b-partition-x"])]
    #[case("persistent://public/default/x[0-9]+", &["x1"], &["x", "a/b/x1", "non-persistent://public/default/x1"])]
    #[case(".*", &["t"], &["__change_events", "t-s__transaction_pending_ack", "orders-dead-partition-0"])]
    fn a_pattern_matches_the_whole_last_part(
        #[case] pattern: &str,
        #[case] matching: &[&str],
        #[case] others: &[&str],
    ) {
        let mut pattern: Pattern = pattern.parse().unwrap();
        pattern.except.push(Topic::of("orders-dead"));
        assert_eq!(pattern.namespace(), "public/default");
        assert_eq!(matching.iter().find(|name| !pattern.matches(Topic::of(name).as_str())), None);
        assert_eq!(others.iter().find(|name| pattern.matches(Topic::of(name).as_str())), None);
    }

    #[rstest]
    #[case("orders-(", "not a regular expression")]
    #[case("non-persistent://a/b/.*", "only persistent")]
    #[case("a/b", "write it as")]
    #[case("a/b/", "no regular expression")]
    fn rejects_invalid_patterns(#[case] pattern: &str, #[case] why: &str) {
        let error = pattern.parse::<Pattern>().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn numbers_partitions() {
        let names =
            |count| Topic::of("t").partitions(count).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(0), ["persistent://public/default/t"]);
        assert_eq!(
            names(2),
            ["persistent://public/default/t-partition-0", "persistent://public/default/t-partition-1"]
        );
        assert_eq!(split_partition("t-partition-12"), ("t", Some(12)));
        assert_eq!(split_partition("t-partition-x"), ("t-partition-x", None));
    }
}
