//! The metrics of the process, with the names that the dashboards and alerts of controller-runtime use.
//!
//! Labels must not contain object names, so that the number of series is limited.

use std::sync::Arc;

use prometheus::{
    Encoder as _, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::LEASE_NAME;

/// Every metric of the process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// The registry to which kinds add their metrics.
    pub registry: Registry,
    /// `controller_runtime_reconcile_total{controller,result}`.
    pub reconciles: IntCounterVec,
    /// `controller_runtime_reconcile_errors_total{controller}`.
    pub reconcile_errors: IntCounterVec,
    /// `controller_runtime_terminal_reconcile_errors_total{controller}`. Existing alerts query it; it stays 0,
    /// because every failed reconcile is retried.
    terminal_errors: IntCounterVec,
    /// `controller_runtime_reconcile_panics_total{controller}`.
    pub reconcile_panics: IntCounterVec,
    /// `controller_runtime_reconcile_timeouts_total{controller}`.
    pub reconcile_timeouts: IntCounterVec,
    /// `controller_runtime_reconcile_time_seconds{controller}`.
    pub reconcile_time: HistogramVec,
    /// `controller_runtime_max_concurrent_reconciles{controller}`.
    pub max_concurrent: IntGaugeVec,
    /// `controller_runtime_active_workers{controller}`.
    pub active_workers: IntGaugeVec,
    /// `workqueue_depth{name,controller,priority}`.
    pub queue_depth: IntGaugeVec,
    /// `workqueue_adds_total{name,controller}`.
    pub queue_adds: IntCounterVec,
    /// `workqueue_queue_duration_seconds{name,controller}`.
    pub queue_duration: HistogramVec,
    /// `workqueue_work_duration_seconds{name,controller}`.
    pub work_duration: HistogramVec,
    /// `workqueue_retries_total{name,controller}`.
    pub queue_retries: IntCounterVec,
    /// `workqueue_unfinished_work_seconds{name,controller}`.
    pub unfinished_work: GaugeVec,
    /// `workqueue_longest_running_processor_seconds{name,controller}`.
    pub longest_running: GaugeVec,
    /// `rest_client_request_duration_seconds{verb,host}`.
    pub request_duration: HistogramVec,
    /// `rest_client_requests_total{code,method,host}`.
    pub requests: IntCounterVec,
    /// `quintet_failing_objects{controller}`.
    pub failing: IntGaugeVec,
    /// `quintet_refused_objects{controller}`.
    pub refused: IntGaugeVec,
    /// `leader_election_master_status{name}`.
    pub leader: GaugeVec,
    /// `leader_election_slowpath_total{name}`: as in client-go, renewals that do not follow directly on the last
    /// write.
    pub slow_renewals: IntCounterVec,
    /// The Lease name in the two metrics above.
    pub lease: Arc<str>,
    /// `certwatcher_read_certificate_total`.
    pub certificate_reads: IntCounter,
    /// `certwatcher_read_certificate_errors_total`.
    pub certificate_read_errors: IntCounter,
    /// `quintet_informer_objects{resource}`.
    pub cached: IntGaugeVec,
    /// `quintet_informer_silence_seconds{cache}`.
    pub silence: GaugeVec,
    /// `quintet_informer_undecodable_objects{resource}`.
    pub undecodable: IntGaugeVec,
    /// `quintet_events_dropped_total`.
    pub events_dropped: IntCounter,
}

/// The buckets of `controller_runtime_reconcile_time_seconds` in controller-runtime.
const PASS_SECONDS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];

impl Metrics {
    /// Creates and registers the metrics, with those of the process (`process_*`).
    #[expect(clippy::too_many_lines, reason = "one entry for each metric, in the order of the fields")]
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let counter = |name: &str, help: &str, labels: &[&str]| -> Result<IntCounterVec, prometheus::Error> {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let gauge = |name: &str, help: &str, labels: &[&str]| -> Result<IntGaugeVec, prometheus::Error> {
            let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        let histogram = |name: &str, help: &str, labels: &[&str], buckets: Vec<f64>| {
            let histogram = HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), labels)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let seconds = |name: &str, help: &str, labels: &[&str]| {
            let gauge = GaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        // The same buckets as in controller-runtime make the quantiles of its dashboards comparable.
        let pass = PASS_SECONDS.to_vec();
        let waits = prometheus::exponential_buckets(10e-9, 10.0, 12)?;
        let leader =
            seconds("leader_election_master_status", "1 while this process may write, else 0.", &["name"])?;
        let build = IntGaugeVec::new(
            Opts::new("quintet_build_info", "1; the labels say what this process was built of."),
            &["version", "target"],
        )?;
        registry.register(Box::new(build.clone()))?;
        let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), target.as_str()]).set(1);
        let plain = |name: &str, help: &str| -> Result<IntCounter, prometheus::Error> {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        Ok(Self {
            reconciles: counter(
                "controller_runtime_reconcile_total",
                "Reconciles by controller and result.",
                &["controller", "result"],
            )?,
            reconcile_errors: counter(
                "controller_runtime_reconcile_errors_total",
                "Failed reconciles that will be retried.",
                &["controller"],
            )?,
            terminal_errors: counter(
                "controller_runtime_terminal_reconcile_errors_total",
                "Failed reconciles that will not be retried; always 0.",
                &["controller"],
            )?,
            reconcile_panics: counter(
                "controller_runtime_reconcile_panics_total",
                "Reconciles that panicked and will be retried.",
                &["controller"],
            )?,
            reconcile_timeouts: counter(
                "controller_runtime_reconcile_timeouts_total",
                "Reconciles that exceeded their time limit and will be retried.",
                &["controller"],
            )?,
            reconcile_time: histogram(
                "controller_runtime_reconcile_time_seconds",
                "Duration of reconciles.",
                &["controller"],
                pass,
            )?,
            max_concurrent: gauge(
                "controller_runtime_max_concurrent_reconciles",
                "The most reconciles at the same time.",
                &["controller"],
            )?,
            active_workers: gauge(
                "controller_runtime_active_workers",
                "Running reconciles.",
                &["controller"],
            )?,
            queue_depth: gauge(
                "workqueue_depth",
                "Keys waiting for a reconcile.",
                &["name", "controller", "priority"],
            )?,
            queue_adds: counter("workqueue_adds_total", "Keys added.", &["name", "controller"])?,
            queue_duration: histogram(
                "workqueue_queue_duration_seconds",
                "How long keys waited for their reconcile.",
                &["name", "controller"],
                waits.clone(),
            )?,
            work_duration: histogram(
                "workqueue_work_duration_seconds",
                "Duration of reconciles.",
                &["name", "controller"],
                waits,
            )?,
            unfinished_work: seconds(
                "workqueue_unfinished_work_seconds",
                "Total running time of the running reconciles.",
                &["name", "controller"],
            )?,
            longest_running: seconds(
                "workqueue_longest_running_processor_seconds",
                "Running time of the longest running reconcile.",
                &["name", "controller"],
            )?,
            request_duration: histogram(
                "rest_client_request_duration_seconds",
                "How long the API server took to begin its answers.",
                &["verb", "host"],
                vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0],
            )?,
            queue_retries: counter(
                "workqueue_retries_total",
                "Reconciles retried after a failure.",
                &["name", "controller"],
            )?,
            requests: counter(
                "rest_client_requests_total",
                "Requests to the API server by status code, method and host.",
                &["code", "method", "host"],
            )?,
            leader,
            slow_renewals: counter(
                "leader_election_slowpath_total",
                "Renewals by the holder of the lease that had to read it first.",
                &["name"],
            )?,
            lease: LEASE_NAME.into(),
            failing: gauge(
                "quintet_failing_objects",
                "Objects whose last reconcile failed.",
                &["controller"],
            )?,
            refused: gauge(
                "quintet_refused_objects",
                "Objects with a write that the API server rejected and that waits for its retry.",
                &["controller"],
            )?,
            certificate_reads: plain(
                "certwatcher_read_certificate_total",
                "Reads of the certificate of the metrics address.",
            )?,
            certificate_read_errors: plain(
                "certwatcher_read_certificate_errors_total",
                "Reads of the certificate after which it could not be used.",
            )?,
            cached: gauge("quintet_informer_objects", "Objects in a cache.", &["resource"])?,
            silence: seconds(
                "quintet_informer_silence_seconds",
                "Time since the last event of a watch. Bookmarks come about once a minute.",
                &["cache"],
            )?,
            undecodable: gauge(
                "quintet_informer_undecodable_objects",
                "Objects that cannot be decoded and are skipped.",
                &["resource"],
            )?,
            events_dropped: plain(
                "quintet_events_dropped_total",
                "Events that were not sent because too many were waiting.",
            )?,
            registry,
        })
    }

    /// Sets the worker count and creates the counters of a controller at zero: a rate needs a value before the first
    /// event.
    pub fn begin_controller(&self, controller: &'static str, workers: usize) {
        let labels = [controller];
        self.max_concurrent.with_label_values(&labels).set(i64::try_from(workers).unwrap_or(i64::MAX));
        for result in ["success", "requeue", "requeue_after", "error"] {
            self.reconciles.with_label_values(&[controller, result]).reset();
        }
        let Self { reconcile_errors, terminal_errors, reconcile_panics, reconcile_timeouts, .. } = self;
        for counter in [reconcile_errors, terminal_errors, reconcile_panics, reconcile_timeouts] {
            counter.with_label_values(&labels).reset();
        }
        for counter in [&self.queue_adds, &self.queue_retries] {
            counter.with_label_values(&[controller, controller]).reset();
        }
    }

    /// The metrics in the Prometheus text format.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        let mut buffer = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_all_metrics_and_writes_text() {
        let metrics = Metrics::new().unwrap();
        metrics.reconciles.with_label_values(&["book", "success"]).inc();
        let text = metrics.text().unwrap();
        assert!(
            text.contains("controller_runtime_reconcile_total{controller=\"book\",result=\"success\"} 1"),
            "{text}"
        );
        assert!(text.contains("process_resident_memory_bytes"), "{text}");
    }
}
