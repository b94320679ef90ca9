//! The metrics of the process, with the names that the dashboards and alerts of controller-runtime use.
//!
//! Labels must not contain object names, so that the number of series is limited. One metric lists a bounded number of
//! objects that have a problem.

use std::sync::Arc;

use jiff::Timestamp;
use prometheus::{
    Encoder as _, GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec,
    Opts, Registry, TextEncoder, exponential_buckets,
};

use crate::LEASE_NAME;
use crate::model::problem::{ObjectProblem, Problem, ProblemState, Selection};

/// Defines [`Metrics`] from a table. A row has a field, the type of the metric with its labels, the name, the help
/// text, and for a histogram the buckets.
macro_rules! metrics {
    (@opts $name:literal, $help:literal) => {
        Opts::new($name, $help)
    };
    (@opts $name:literal, $help:literal, $buckets:expr) => {
        HistogramOpts::new($name, $help).buckets($buckets)
    };
    (@new $type:ident, $opts:expr) => {
        $type::with_opts($opts)
    };
    (@new $type:ident, $opts:expr, $($label:ident),+) => {
        $type::new($opts, &[$(stringify!($label)),+])
    };
    ($($field:ident: $type:ident $([$($label:ident),+])? = $name:literal, $help:literal $(, $buckets:expr)?;)+) => {
        /// Every metric of the process. Cheap to clone.
        #[derive(Clone, Debug)]
        pub struct Metrics {
            /// The registry to which kinds add their metrics.
            pub registry: Registry,
            /// The Lease name, the label of `leader_election_master_status`.
            pub lease: Arc<str>,
            $(
                #[doc = concat!("`", $name, $("{", stringify!($($label),+), "}",)? "`: ", $help)]
                pub $field: $type,
            )+
        }

        impl Metrics {
            /// Creates the metrics and adds them to a registry.
            fn register(registry: Registry) -> Result<Self, prometheus::Error> {
                Ok(Self {
                    $($field: {
                        let opts = metrics!(@opts $name, $help $(, $buckets)?);
                        let metric = metrics!(@new $type, opts $($(, $label)+)?)?;
                        registry.register(Box::new(metric.clone()))?;
                        metric
                    },)+
                    lease: LEASE_NAME.into(),
                    registry,
                })
            }
        }
    };
}

metrics! {
    reconciles: IntCounterVec[controller, result] =
        "controller_runtime_reconcile_total", "Reconciles by controller and result.";
    reconcile_errors: IntCounterVec[controller] =
        "controller_runtime_reconcile_errors_total", "Failed reconciles that will be retried.";
    reconcile_panics: IntCounterVec[controller] =
        "controller_runtime_reconcile_panics_total", "Reconciles that panicked and will be retried.";
    reconcile_timeouts: IntCounterVec[controller] =
        "controller_runtime_reconcile_timeouts_total",
        "Reconciles that exceeded their time limit and will be retried.";
    reconcile_time: HistogramVec[controller] =
        "controller_runtime_reconcile_time_seconds", "Duration of reconciles.", PASS_SECONDS.to_vec();
    max_concurrent: IntGaugeVec[controller] =
        "controller_runtime_max_concurrent_reconciles", "The most reconciles at the same time.";
    active_workers: IntGaugeVec[controller] = "controller_runtime_active_workers", "Running reconciles.";
    queue_depth: IntGaugeVec[name, controller, priority] = "workqueue_depth", "Keys waiting for a reconcile.";
    queue_adds: IntCounterVec[name, controller] = "workqueue_adds_total", "Keys added.";
    queue_duration: HistogramVec[name, controller] =
        "workqueue_queue_duration_seconds", "How long keys waited for their reconcile.",
        exponential_buckets(10e-9, 10.0, 12)?;
    work_duration: HistogramVec[name, controller] =
        "workqueue_work_duration_seconds", "Duration of reconciles.",
        exponential_buckets(10e-9, 10.0, 12)?;
    queue_retries: IntCounterVec[name, controller] =
        "workqueue_retries_total", "Reconciles retried after a failure.";
    unfinished_work: GaugeVec[name, controller] =
        "workqueue_unfinished_work_seconds", "Total running time of the running reconciles.";
    longest_running: GaugeVec[name, controller] =
        "workqueue_longest_running_processor_seconds", "Running time of the longest running reconcile.";
    request_duration: HistogramVec[verb, host] =
        "rest_client_request_duration_seconds", "How long the API server took to begin its answers.",
        vec![0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
    requests: IntCounterVec[code, method, host] =
        "rest_client_requests_total", "Requests to the API server by status code, method and host.";
    failing: IntGaugeVec[controller] = "quintet_failing_objects", "Objects whose last reconcile failed.";
    refused: IntGaugeVec[controller] =
        "quintet_refused_objects",
        "Objects with a write that the API server rejected and that waits for its retry.";
    problems: GaugeVec[state, kind, namespace, name, reason] =
        "quintet_object_problem_seconds",
        "How long an object has had a problem. Lists at most 100 problems, the most urgent first.";
    unlisted: IntGaugeVec[state] =
        "quintet_object_problems_unlisted", "Problems that quintet_object_problem_seconds does not list.";
    leader: GaugeVec[name] = "leader_election_master_status", "1 while this process may write, else 0.";
    namespace_leader: IntGaugeVec[watched] =
        "quintet_namespace_leader",
        "1 while this process may write for objects of a namespace, else 0. * means all namespaces.";
    memory_limit: IntGauge =
        "quintet_memory_limit_bytes", "The memory limit of the container; 0 if there is none or it is unknown.";
    certificate_reads: IntCounter =
        "certwatcher_read_certificate_total", "Reads of the certificate of the metrics address.";
    certificate_read_errors: IntCounter =
        "certwatcher_read_certificate_errors_total",
        "Reads of the certificate after which it could not be used.";
    cached: IntGaugeVec[resource] = "quintet_informer_objects", "Objects in a cache.";
    silence: GaugeVec[cache] =
        "quintet_informer_silence_seconds",
        "Time since the last event of a watch. Bookmarks come about once a minute.";
    undecodable: IntGaugeVec[resource] =
        "quintet_informer_undecodable_objects", "Objects that cannot be decoded and are skipped.";
    store_restored: IntCounter =
        "quintet_store_restored_total",
        "How often a cache, a reconcile or the election found that etcd was restored.";
    events_dropped: IntCounter =
        "quintet_events_dropped_total", "Events that were not sent because too many were waiting.";
    build: IntGaugeVec[version, target] =
        "quintet_build_info", "1; the labels say what this process was built of.";
}

/// The buckets of `controller_runtime_reconcile_time_seconds` in controller-runtime. The same buckets make the
/// quantiles of its dashboards comparable.
const PASS_SECONDS: [f64; 40] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25,
    1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0,
    50.0, 60.0,
];

impl Metrics {
    /// Creates and registers the metrics, on Linux with those of the process (`process_*`).
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        #[cfg(target_os = "linux")]
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let metrics = Self::register(registry)?;
        let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
        metrics.build.with_label_values(&[env!("CARGO_PKG_VERSION"), target.as_str()]).set(1);
        Ok(metrics)
    }

    /// Sets the worker count and creates the counters of a controller at zero: a rate needs a value before the first
    /// event.
    pub fn begin_controller(&self, controller: &'static str, workers: usize) {
        let labels = [controller];
        self.max_concurrent.with_label_values(&labels).set(i64::try_from(workers).unwrap_or(i64::MAX));
        for result in ["success", "requeue", "requeue_after", "error"] {
            self.reconciles.with_label_values(&[controller, result]).reset();
        }
        for counter in [&self.reconcile_errors, &self.reconcile_panics, &self.reconcile_timeouts] {
            counter.with_label_values(&labels).reset();
        }
        for counter in [&self.queue_adds, &self.queue_retries] {
            counter.with_label_values(&[controller, controller]).reset();
        }
    }

    /// Replaces the listed problems of objects.
    pub fn list_problems(&self, selection: &Selection, now: Timestamp) {
        self.problems.reset();
        // Two controllers may report an object for the same reason. The longer problem is set last.
        for ObjectProblem { problem, kind, key } in selection.listed.iter().rev() {
            let Problem { state, reason, .. } = problem;
            let labels: [&str; 5] = [state.word(), kind, &key.namespace, &key.name, reason];
            self.problems.with_label_values(&labels).set(problem.seconds(now));
        }
        for (state, unlisted) in ProblemState::ALL.into_iter().zip(selection.unlisted) {
            let unlisted = i64::try_from(unlisted).unwrap_or(i64::MAX);
            self.unlisted.with_label_values(&[state.word()]).set(unlisted);
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
    use crate::model::object::Key;
    use crate::model::problem::Selector;

    #[test]
    fn registers_all_metrics_and_writes_text() {
        let metrics = Metrics::new().unwrap();
        metrics.reconciles.with_label_values(&["book", "success"]).inc();
        let text = metrics.text().unwrap();
        assert!(
            text.contains("controller_runtime_reconcile_total{controller=\"book\",result=\"success\"} 1"),
            "{text}"
        );
        assert_eq!(text.contains("process_resident_memory_bytes"), cfg!(target_os = "linux"), "{text}");
    }

    #[test]
    fn lists_each_problem_once_and_drops_those_that_ended() {
        let (metrics, at) = (Metrics::new().unwrap(), |second| Timestamp::from_second(second).unwrap());
        let list = |names: &[&str]| {
            let mut selector = Selector::default();
            // The sweeper of the kind reports the same object, later.
            for (name, since) in names.iter().flat_map(|name| [(name, 100), (name, 130)]) {
                let key = Key { namespace: "n".into(), name: (*name).into(), uid: (*name).into() };
                let problem = Problem::failing("ReconcileFailed", at(since));
                selector.add(ObjectProblem { problem, kind: "Greeting", key });
            }
            metrics.list_problems(&selector.select(), at(160));
            let text = metrics.text().unwrap();
            let lines =
                text.lines().filter(|line| !line.starts_with('#') && line.contains("_object_problem"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let line = |name: &str| {
            format!(
                "quintet_object_problem_seconds{{kind=\"Greeting\",name=\"{name}\",namespace=\"n\",\
                 reason=\"ReconcileFailed\",state=\"failing\"}} 60"
            )
        };
        let unlisted = ["failing", "held", "paused", "waiting"]
            .map(|state| format!("quintet_object_problems_unlisted{{state=\"{state}\"}} 0"));
        assert_eq!(list(&["a", "b"]), [&[line("a"), line("b")][..], &unlisted].concat());
        assert_eq!(list(&["b"]), [&[line("b")][..], &unlisted].concat());
        assert_eq!(list(&[]), unlisted, "a metric without a series is left out");
    }
}
