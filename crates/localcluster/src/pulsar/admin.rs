//! The part of Pulsar's admin API that tests need: topics, subscriptions and their statistics.

use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::http::{self, Request};

/// A generous limit: the first use of a topic takes seconds on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

/// A client of a broker's admin API on this machine.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The port of the broker's web service.
    pub(super) port: u16,
    /// The administrator's token, if the broker requires one.
    pub(super) token: Option<String>,
}

impl Admin {
    /// Creates a topic without partitions, given as `name` or as `persistent://tenant/namespace/name`.
    pub fn create_topic(&self, topic: &str) -> Result<()> {
        self.put(&path(topic), "")
    }

    /// Creates a topic with partitions.
    pub fn create_partitioned_topic(&self, topic: &str, partitions: u32) -> Result<()> {
        self.put(&format!("{}/partitions", path(topic)), &partitions.to_string())
    }

    /// Changes the number of partitions of a topic to a larger one.
    pub fn add_partitions(&self, topic: &str, partitions: u32) -> Result<()> {
        self.post(&format!("{}/partitions", path(topic)), &partitions.to_string())
    }

    /// Creates a subscription at the beginning of a topic.
    pub fn create_subscription(&self, topic: &str, name: &str) -> Result<()> {
        self.put(&format!("{}/subscription/{name}", path(topic)), "\"earliest\"")
    }

    /// Creates a namespace, such as `public/mine`.
    pub fn create_namespace(&self, namespace: &str) -> Result<()> {
        self.put(&format!("namespaces/{namespace}"), "")
    }

    /// Creates a namespace without automatic creation of topics.
    pub fn create_strict_namespace(&self, namespace: &str) -> Result<()> {
        let policies = r#"{"autoTopicCreationOverride": {"allowAutoTopicCreation": false, "topicType": "non-partitioned"}}"#;
        self.put(&format!("namespaces/{namespace}"), policies)
    }

    /// Makes the broker delete topics of a namespace that have had no subscription and no client for a second.
    pub fn delete_unused_topics(&self, namespace: &str) -> Result<()> {
        let policies = r#"{"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 1,
            "deleteWhileInactive": true}"#;
        self.post(&format!("namespaces/{namespace}/inactiveTopicPolicies"), policies)
    }

    /// Allows a role to produce and consume in a namespace.
    pub fn grant(&self, namespace: &str, role: &str) -> Result<()> {
        self.post(&format!("namespaces/{namespace}/permissions/{role}"), "[\"produce\", \"consume\"]")
    }

    /// Revokes all permissions of a role in a namespace.
    pub fn revoke(&self, namespace: &str, role: &str) -> Result<()> {
        self.change("DELETE", &format!("namespaces/{namespace}/permissions/{role}"), "")
    }

    /// Makes the broker close a topic, as if another broker took it over. Its clients reconnect.
    pub fn unload(&self, topic: &str) -> Result<()> {
        self.put(&format!("{}/unload", path(topic)), "")
    }

    /// Deletes a topic with its subscriptions and consumers.
    pub fn delete_topic(&self, topic: &str) -> Result<()> {
        self.change("DELETE", &format!("{}?force=true", path(topic)), "")
    }

    /// Compacts a topic: keeps the latest message of each key, for consumers that read compacted topics.
    pub fn compact(&self, topic: &str) -> Result<()> {
        self.put(&format!("{}/compaction", path(topic)), "")
    }

    /// Whether no compaction of a topic is in progress, and the last one succeeded.
    pub fn is_compacted(&self, topic: &str) -> Result<bool> {
        let (_, body) = self.send("GET", &format!("{}/compaction", path(topic)), "")?;
        Ok(serde_json::from_str::<Value>(&body)?["status"] == "SUCCESS")
    }

    /// The statistics of a topic; `None` if it does not exist.
    pub fn stats(&self, topic: &str) -> Result<Option<Value>> {
        let path = format!("{}/stats?getPreciseBacklog=true", path(topic));
        match self.send("GET", &path, "")? {
            (200, body) => Ok(Some(serde_json::from_str(&body)?)),
            (404, _) => Ok(None),
            (status, body) => bail!("GET {path}: {status} {}", body.trim()),
        }
    }

    /// The statistics of a subscription; null if it does not exist.
    pub fn subscription(&self, topic: &str, name: &str) -> Result<Value> {
        Ok(self.stats(topic)?.map(|mut stats| stats["subscriptions"][name].take()).unwrap_or_default())
    }

    /// The number of entries that a subscription has not acknowledged; `None` if it does not exist.
    pub fn backlog(&self, topic: &str, subscription: &str) -> Result<Option<i64>> {
        Ok(self.subscription(topic, subscription)?["msgBacklog"].as_i64())
    }

    /// Whether the broker knows its namespaces, the last step of its start.
    pub(super) fn is_well(&self) -> bool {
        matches!(self.send("GET", "namespaces/public/default", ""), Ok((200, _)))
    }

    fn put(&self, path: &str, body: &str) -> Result<()> {
        self.change("PUT", path, body)
    }

    fn post(&self, path: &str, body: &str) -> Result<()> {
        self.change("POST", path, body)
    }

    fn change(&self, method: &str, path: &str, body: &str) -> Result<()> {
        match self.send(method, path, body)? {
            (200..=299, _) => Ok(()),
            (status, body) => bail!("{method} {path}: {status} {}", body.trim()),
        }
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let mut headers = vec![("Content-Type", "application/json"), ("Accept", "application/json")];
        headers.extend(bearer.as_deref().map(|bearer| ("Authorization", bearer)));
        let path = format!("/admin/v2/{path}");
        let request = Request { method, port: self.port, path: &path, headers: &headers, body, limit: LIMIT };
        match http::send(&request) {
            Some(answer) => Ok(answer),
            None => bail!("{method} {path}: the broker does not answer"),
        }
    }
}

/// Completes `my-topic` to `persistent/public/default/my-topic`.
fn path(topic: &str) -> String {
    match topic.split_once("://") {
        Some((domain, rest)) => format!("{domain}/{rest}"),
        None if topic.contains('/') => format!("persistent/{topic}"),
        None => format!("persistent/public/default/{topic}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completes_short_names_of_topics() {
        assert_eq!(path("a"), "persistent/public/default/a");
        assert_eq!(path("t/n/a"), "persistent/t/n/a");
        assert_eq!(path("non-persistent://t/n/a"), "non-persistent/t/n/a");
    }
}
