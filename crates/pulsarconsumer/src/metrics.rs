//! Metrics: consumers, summed over all PulsarConsumers, and the backlog of each. The series of an object are
//! removed with the object.

use jiff::Timestamp;
use prometheus::{
    GaugeVec, IntCounterVec, IntGaugeVec, Registry, register_gauge_vec_with_registry,
    register_int_counter_vec_with_registry, register_int_gauge_vec_with_registry,
};
use quintet_runtime::cache::aggregate_gauge::Sums;
use quintet_runtime::cache::informer::Informer;
use quintet_runtime::model::object::Key;
use quintet_runtime::model::problem::{Problem, missing_pods, or_stalled};

use crate::api::PulsarConsumer;
use crate::backlog::{BacklogSample, Unknown};
use crate::status::desired_replicas;

/// The states of consumers.
const STATES: [&str; 2] = ["desired", "ready"];
/// The labels of the metrics of one object.
const OBJECT: [&str; 2] = ["namespace", "name"];

/// The metrics of this kind. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    objects: Informer<PulsarConsumer>,
    desired: IntGaugeVec,
    unknown: IntGaugeVec,
    backlog: IntGaugeVec,
    unacked: IntGaugeVec,
    consumers: IntGaugeVec,
    rate: GaugeVec,
    looks: IntCounterVec,
}

impl Metrics {
    /// Registers the metrics, and keeps the sums current.
    pub fn new(registry: &Registry, objects: &Informer<PulsarConsumer>) -> Result<Self, prometheus::Error> {
        let pods = Sums::new(
            registry,
            "quintet_pulsarconsumer_pods",
            "Consumers by state, summed over every PulsarConsumer: desired, ready.",
            STATES,
        )?;
        pods.follow(objects, counts);
        let of_object =
            |name: &str, help: &str| register_int_gauge_vec_with_registry!(name, help, &OBJECT, registry);
        let desired =
            of_object("quintet_pulsarconsumer_desired", "Desired consumers when the backlog was read.")?;
        let unknown = of_object(
            "quintet_pulsarconsumer_backlog_unknown",
            "1 if the backlog could not be read; absent before the topic or subscription exists.",
        )?;
        let backlog = of_object(
            "quintet_pulsarconsumer_backlog",
            "Unacknowledged entries of the subscription. Pulsar counts a batch of messages as one.",
        )?;
        let unacked = of_object(
            "quintet_pulsarconsumer_unacked",
            "Delivered and unacknowledged messages of the subscription.",
        )?;
        let consumers = of_object(
            "quintet_pulsarconsumer_consumers",
            "Consumers of the subscription that the broker reports.",
        )?;
        let rate = register_gauge_vec_with_registry!(
            "quintet_pulsarconsumer_delivered_per_second",
            "Messages per second that the broker delivers to the subscription, averaged over a minute.",
            &OBJECT,
            registry
        )?;
        let looks = register_int_counter_vec_with_registry!(
            "quintet_pulsarconsumer_backlog_polls_total",
            "Reads of backlogs by result: Observed, or the reason of the failure.",
            &["result"],
            registry
        )?;
        let objects = objects.clone();
        Ok(Self { objects, desired, unknown, backlog, unacked, consumers, rate, looks })
    }

    /// Exports a reading of an object's backlog. After a failure it exports no figures, because an old figure
    /// would look current.
    pub fn read(&self, key: &Key, reading: &BacklogSample) {
        let labels: [&str; 2] = [&key.namespace, &key.name];
        match &reading.figures {
            Ok(figures) => {
                let desired = self.objects.get(key).map_or(0, |consumer| desired_replicas(&consumer));
                self.looks.with_label_values(&["Observed"]).inc();
                self.desired.with_label_values(&labels).set(desired.into());
                // There may be none.
                let _ = self.unknown.remove_label_values(&labels);
                self.backlog.with_label_values(&labels).set(figures.backlog);
                self.unacked.with_label_values(&labels).set(figures.unacked);
                self.consumers.with_label_values(&labels).set(figures.consumers.into());
                self.rate.with_label_values(&labels).set(figures.rate);
            }
            Err(unknown) => {
                self.looks.with_label_values(&[unknown.reason]).inc();
                self.forget(key);
                if !unknown.is_none_yet || unknown.reason == Unknown::ADMIN_REFUSED {
                    self.unknown.with_label_values(&labels).set(1);
                }
            }
        }
    }

    /// Removes the series of an object.
    pub fn forget(&self, key: &Key) {
        let labels: [&str; 2] = [&key.namespace, &key.name];
        for gauge in [&self.desired, &self.unknown, &self.backlog, &self.unacked, &self.consumers] {
            // There may be none.
            let _ = gauge.remove_label_values(&labels);
        }
        let _ = self.rate.remove_label_values(&labels);
    }
}

fn counts(consumer: &PulsarConsumer) -> [i64; STATES.len()] {
    let ready = consumer.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
    [desired_replicas(consumer).into(), ready.into()]
}

/// The problems that the status shows: ready consumers are missing, or the rollout makes no progress.
pub fn problems(consumer: &PulsarConsumer, _now: Timestamp) -> Vec<Problem> {
    let Some(status) = &consumer.status else { return Vec::new() };
    let missing = missing_pods(status.ready_replicas, desired_replicas(consumer), &status.conditions);
    or_stalled(Vec::from_iter(missing), &status.conditions)
}
