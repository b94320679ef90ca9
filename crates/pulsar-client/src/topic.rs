//! Names of topics: `my-topic`, `tenant/namespace/my-topic` or `persistent://tenant/namespace/my-topic`.

use std::fmt;
use std::str::FromStr;

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
        if local.is_empty() || local.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(malformed(
                "the last part must not be empty, and must have no spaces or control characters",
            ));
        }
        let [tenant, namespace, name] = [tenant, namespace, local].map(str::to_owned);
        Ok(Self { persistent, tenant, namespace, name })
    }
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
            (0..count).map(|number| format!("{self}-partition-{number}")).collect()
        }
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

    #[test]
    fn numbers_partitions() {
        let topic: TopicName = "t".parse().unwrap();
        assert_eq!(topic.partitions(0), ["persistent://public/default/t"]);
        assert_eq!(
            topic.partitions(2),
            ["persistent://public/default/t-partition-0", "persistent://public/default/t-partition-1"]
        );
    }
}
