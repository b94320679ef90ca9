//! The metrics of the consumer.

use prometheus::{IntCounter, IntGauge, Registry, TextEncoder};

/// The counters of a consumer.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    /// Received messages, including redelivered ones.
    pub received: IntCounter,
    /// Bytes of their payloads.
    pub bytes: IntCounter,
    /// Messages that were printed and acknowledged.
    pub acknowledged: IntCounter,
    /// Messages that had been delivered before.
    pub redelivered: IntCounter,
    /// Entries that could not be read.
    pub unreadable: IntCounter,
    /// Messages that went to the dead-letter topic.
    pub dead_lettered: IntCounter,
    /// Entries that went to the retry-letter topic.
    pub retried: IntCounter,
    /// Whether the consumer is subscribed.
    pub connected: IntGauge,
    /// How often a subscription was lost or failed.
    pub reconnects: IntCounter,
}

impl Metrics {
    /// Registers the metrics at zero.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(format!("pulsar_consumer_{name}_total"), help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let metrics = Self {
            received: counter("messages_received", "Messages received, including redelivered ones")?,
            bytes: counter("bytes_received", "Bytes of the payloads of messages received")?,
            acknowledged: counter("messages_acknowledged", "Messages printed and acknowledged")?,
            redelivered: counter("messages_redelivered", "Messages received that had been delivered before")?,
            unreadable: counter("entries_unreadable", "Messages or batches that could not be read")?,
            dead_lettered: counter("messages_dead_lettered", "Messages sent to the dead-letter topic")?,
            retried: counter("entries_retried", "Messages or batches sent to the retry-letter topic")?,
            reconnects: counter("reconnects", "Times that the subscription was lost or failed")?,
            connected: IntGauge::new("pulsar_consumer_connected", "1 while subscribed, else 0")?,
            registry,
        };
        metrics.registry.register(Box::new(metrics.connected.clone()))?;
        #[cfg(target_os = "linux")]
        metrics.registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        Ok(metrics)
    }

    /// The metrics in Prometheus's text format.
    pub fn text(&self) -> prometheus::Result<String> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_every_metric() {
        let metrics = Metrics::new().unwrap();
        metrics.received.inc_by(3);
        let text = metrics.text().unwrap();
        assert!(text.contains("pulsar_consumer_messages_received_total 3"), "{text}");
        assert!(text.contains("pulsar_consumer_connected 0"), "{text}");
    }
}
