//! Names of topics: `my-topic`, `tenant/namespace/my-topic` or `persistent://tenant/namespace/my-topic`. A pattern has a
//! regular expression as its last part.

use std::fmt;
use std::str::FromStr;

use regex_lite::Regex;

/// The part of a partition's name before its number.
const PARTITION: &str = "-partition-";

/// A full topic name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopicName {
    /// Whether messages are stored.
    pub persistent: bool,
    tenant: String,
    namespace: String,
    name: String,
}

/// Why a topic name is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a topic name: {why}")]
pub struct Malformed {
    name: String,
    why: &'static str,
}

impl FromStr for TopicName {
    type Err = Malformed;

    fn from_str(name: &str) -> Result<Self, Malformed> {
        let (persistent, tenant, namespace, local) = parts(name)?;
        if local.is_empty() || local.chars().any(|c| c.is_control() || c.is_whitespace()) {
            let why = "the last part must not be empty, and must have no spaces or control characters";
            return Err(Malformed { name: name.to_owned(), why });
        }
        let [tenant, namespace, name] = [tenant, namespace, local].map(str::to_owned);
        Ok(Self { persistent, tenant, namespace, name })
    }
}

/// Whether a topic is persistent, its tenant, its namespace, and the last part of its name.
fn parts(name: &str) -> Result<(bool, &str, &str, &str), Malformed> {
    let malformed = |why| Malformed { name: name.to_owned(), why };
    let (persistent, rest) = match name.split_once("://") {
        None => (true, None),
        Some(("persistent", rest)) => (true, Some(rest)),
        Some(("non-persistent", rest)) => (false, Some(rest)),
        Some(_) => return Err(malformed("before :// there must be persistent or non-persistent")),
    };
    let parts: Vec<&str> = rest.unwrap_or(name).split('/').collect();
    let (tenant, namespace, local) = match parts[..] {
        [local] if rest.is_none() => ("public", "default", local),
        [tenant, namespace, local] => (tenant, namespace, local),
        _ => {
            return Err(malformed(
                "write it as topic, tenant/namespace/topic or persistent://tenant/namespace/topic",
            ));
        }
    };
    // The same rule as in Pulsar.
    let named = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-=:._".contains(c))
    };
    if !named(tenant) || !named(namespace) {
        return Err(malformed("tenants and namespaces have only letters, digits and any of -=:._"));
    }
    Ok((persistent, tenant, namespace, local))
}

impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domain = if self.persistent { "persistent" } else { "non-persistent" };
        write!(f, "{domain}://{}/{}/{}", self.tenant, self.namespace, self.name)
    }
}

impl TopicName {
    /// The names of this number of partitions; for 0, the name of the topic.
    pub fn partitions(&self, count: u32) -> Vec<String> {
        if count == 0 {
            vec![self.to_string()]
        } else {
            (0..count).map(|number| format!("{self}{PARTITION}{number}")).collect()
        }
    }
}

/// The topic of a partition and the partition's number, or the name itself and -1, as in Java's message IDs.
pub fn split_partition(name: &str) -> (&str, i32) {
    let split = name.rsplit_once(PARTITION);
    split.and_then(|(topic, number)| Some((topic, number.parse().ok()?))).unwrap_or((name, -1))
}

/// The persistent topics of a namespace whose last parts match a regular expression.
#[derive(Clone, Debug)]
pub struct TopicsPattern {
    /// The tenant and the namespace.
    pub namespace: String,
    regex: Regex,
    /// Topics that do not match: those that the program writes to.
    pub except: Vec<TopicName>,
}

impl FromStr for TopicsPattern {
    type Err = String;

    fn from_str(pattern: &str) -> Result<Self, String> {
        let (persistent, tenant, namespace, local) = parts(pattern).map_err(|error| error.to_string())?;
        if !persistent {
            return Err(format!("{pattern:?} is not a pattern: only persistent topics can match one"));
        }
        if local.is_empty() {
            return Err(format!("{pattern:?} is not a pattern: it has no regular expression"));
        }
        let regex = Regex::new(&format!("^(?:{local})$"))
            .map_err(|error| format!("{local:?} is not a regular expression: {error}"))?;
        Ok(Self { namespace: format!("{tenant}/{namespace}"), regex, except: Vec::new() })
    }
}

impl TopicsPattern {
    /// Whether a topic of the namespace, or the topic of a partition, matches. Pulsar's own topics do not.
    pub fn matches(&self, name: &str) -> bool {
        let (topic, _) = split_partition(name);
        let Some((true, .., local)) = parts(topic).ok() else { return false };
        let is_internal = local.starts_with("__") || local.ends_with("__transaction_pending_ack");
        !is_internal
            && self.regex.is_match(local)
            && !self.except.iter().any(|except| except.to_string() == topic)
    }
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
        assert_eq!(name.parse::<TopicName>().unwrap().to_string(), complete);
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
        let error = name.parse::<TopicName>().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[rstest]
    #[case("orders-.*", &["orders-a", "orders-b-partition-3"], &["orders", "new-orders-a", "orders-dead", "__orders-a"])]
    #[case("a|b", &["a", "b"], &["ab", "xa", "bx", "b-partition-x"])]
    #[case("persistent://public/default/x[0-9]+", &["x1"], &["x"])]
    #[case(".*", &["t"], &["__change_events", "t-s__transaction_pending_ack", "orders-dead-partition-0"])]
    fn a_pattern_matches_the_whole_last_part(
        #[case] pattern: &str,
        #[case] matching: &[&str],
        #[case] others: &[&str],
    ) {
        let mut pattern: TopicsPattern = pattern.parse().unwrap();
        pattern.except.push("orders-dead".parse().unwrap());
        assert_eq!(pattern.namespace, "public/default");
        let matches = |name: &&&str| pattern.matches(&format!("persistent://public/default/{name}"));
        assert_eq!(matching.iter().find(|name| !matches(name)), None);
        assert_eq!(others.iter().find(matches), None);
        assert!(!pattern.matches("non-persistent://public/default/t"));
    }

    #[rstest]
    #[case("orders-(", "not a regular expression")]
    #[case("non-persistent://a/b/.*", "only persistent")]
    #[case("a/b", "write it as")]
    #[case("a/b/", "no regular expression")]
    fn rejects_invalid_patterns(#[case] pattern: &str, #[case] why: &str) {
        let error = pattern.parse::<TopicsPattern>().unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn numbers_partitions() {
        let topic: TopicName = "t".parse().unwrap();
        assert_eq!(topic.partitions(0), ["persistent://public/default/t"]);
        assert_eq!(
            topic.partitions(2),
            ["persistent://public/default/t-partition-0", "persistent://public/default/t-partition-1"]
        );
        assert_eq!(split_partition("t-partition-12"), ("t", 12));
        assert_eq!(split_partition("t-partition-x"), ("t-partition-x", -1));
    }
}
