//! The Grafana dashboards, from a list of panels with their queries.

use serde_json::{Value, json};

/// One panel.
struct Panel {
    title: &'static str,
    what: &'static str,
    /// Queries and their legends.
    asked: &'static [(&'static str, &'static str)],
    unit: &'static str,
    kind: &'static str,
}

const fn lines(
    title: &'static str,
    what: &'static str,
    unit: &'static str,
    asked: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { title, what, asked, unit, kind: "timeseries" }
}

const fn number(
    title: &'static str,
    what: &'static str,
    asked: &'static [(&'static str, &'static str)],
) -> Panel {
    Panel { title, what, asked, unit: "short", kind: "stat" }
}

/// Panels in a row of a dashboard.
const COLUMNS: u32 = 2;
const WIDTH: u32 = 24 / COLUMNS;
const HEIGHT: u32 = 8;

/// The label matchers of every query, with the dashboard's variables.
const SELECTED: &str = r#"namespace="$namespace",pod=~"$pod""#;

/// The panels of the manager and its controllers.
const MANAGER: &[Panel] = &[
    number(
        "Leader",
        "The pod that holds the Lease.",
        &[("max by (pod) (leader_election_master_status{SELECTED}) == 1", "{{pod}}")],
    ),
    number(
        "Managers",
        "Running pods, by version.",
        &[("count by (version) (quintet_build_info{SELECTED})", "{{version}}")],
    ),
    lines(
        "Leader changes",
        "How often each pod acquired or lost the Lease.",
        "short",
        &[("sum by (pod) (changes(leader_election_master_status{SELECTED}[$__rate_interval]))", "{{pod}}")],
    ),
    lines(
        "Renewals that read the Lease first",
        "The leader reads the Lease if another client changed it, or if the last renewal got no answer.",
        "ops",
        &[("sum by (pod) (rate(leader_election_slowpath_total{SELECTED}[$__rate_interval]))", "{{pod}}")],
    ),
    lines(
        "Restarts",
        "How often each pod's process restarted.",
        "short",
        &[("sum by (pod) (changes(process_start_time_seconds{SELECTED}[$__rate_interval]))", "{{pod}}")],
    ),
    lines(
        "Reconciles",
        "Reconciles of each controller, by result.",
        "ops",
        &[(
            "sum by (controller, result) (rate(controller_runtime_reconcile_total{SELECTED}[$__rate_interval]))",
            "{{controller}} {{result}}",
        )],
    ),
    lines(
        "Failures",
        "Reconciles that failed, panicked or timed out, and terminal errors, which are not retried.",
        "ops",
        &[
            (
                "sum by (controller) (rate(controller_runtime_terminal_reconcile_errors_total{SELECTED}[$__rate_interval]))",
                "{{controller}} terminal",
            ),
            (
                "sum by (controller) (rate(controller_runtime_reconcile_errors_total{SELECTED}[$__rate_interval]))",
                "{{controller}} failed",
            ),
            (
                "sum by (controller) (rate(controller_runtime_reconcile_panics_total{SELECTED}[$__rate_interval]))",
                "{{controller}} panicked",
            ),
            (
                "sum by (controller) (rate(controller_runtime_reconcile_timeouts_total{SELECTED}[$__rate_interval]))",
                "{{controller}} timed out",
            ),
        ],
    ),
    lines(
        "Failing objects",
        "Objects whose last reconcile failed, and objects for which the API server rejects writes.",
        "short",
        &[
            ("max by (controller) (quintet_failing_objects{SELECTED})", "{{controller}} failing"),
            ("max by (controller) (quintet_refused_objects{SELECTED})", "{{controller}} rejected"),
        ],
    ),
    lines(
        "Reconcile duration, 99th percentile",
        "How long a reconcile takes.",
        "s",
        &[(
            "histogram_quantile(0.99, sum by (controller, le) (rate(controller_runtime_reconcile_time_seconds_bucket{SELECTED}[$__rate_interval])))",
            "{{controller}}",
        )],
    ),
    lines(
        "Concurrent reconciles",
        "Running reconciles, and the limit.",
        "short",
        &[
            ("sum by (controller) (controller_runtime_active_workers{SELECTED})", "{{controller}}"),
            (
                "max by (controller) (controller_runtime_max_concurrent_reconciles{SELECTED})",
                "{{controller}} limit",
            ),
        ],
    ),
    lines(
        "Queue",
        "Objects that wait for a reconcile.",
        "short",
        &[("sum by (controller) (workqueue_depth{SELECTED})", "{{controller}}")],
    ),
    lines(
        "Queue additions and retries",
        "Keys that a controller adds to its queue.",
        "ops",
        &[
            (
                "sum by (controller) (rate(workqueue_adds_total{SELECTED}[$__rate_interval]))",
                "{{controller}}",
            ),
            (
                "sum by (controller) (rate(workqueue_retries_total{SELECTED}[$__rate_interval]))",
                "{{controller}} retries",
            ),
        ],
    ),
    lines(
        "Queue wait, 99th percentile",
        "How long an object waits for its reconcile.",
        "s",
        &[(
            "histogram_quantile(0.99, sum by (controller, le) (rate(workqueue_queue_duration_seconds_bucket{SELECTED}[$__rate_interval])))",
            "{{controller}}",
        )],
    ),
    lines(
        "Queue work duration, 99th percentile",
        "How long a controller processes a key from the queue.",
        "s",
        &[(
            "histogram_quantile(0.99, sum by (controller, le) (rate(workqueue_work_duration_seconds_bucket{SELECTED}[$__rate_interval])))",
            "{{controller}}",
        )],
    ),
    lines(
        "Running reconciles",
        "How long they have run: in total, and the longest.",
        "s",
        &[
            ("max by (controller) (workqueue_unfinished_work_seconds{SELECTED})", "{{controller}} total"),
            (
                "max by (controller) (workqueue_longest_running_processor_seconds{SELECTED})",
                "{{controller}} longest",
            ),
        ],
    ),
    lines(
        "API server latency, 99th percentile",
        "Time from a request to the first byte of the answer.",
        "s",
        &[(
            "histogram_quantile(0.99, sum by (verb, le) (rate(rest_client_request_duration_seconds_bucket{SELECTED}[$__rate_interval])))",
            "{{verb}}",
        )],
    ),
    lines(
        "Watch silence",
        "Time since the last event of a watch. The API server sends a bookmark about once a minute.",
        "s",
        &[("max by (cache) (quintet_informer_silence_seconds{SELECTED})", "{{cache}}")],
    ),
    lines(
        "Requests to the API server",
        "By method and status code.",
        "reqps",
        &[(
            "sum by (method, code) (rate(rest_client_requests_total{SELECTED}[$__rate_interval]))",
            "{{method}} {{code}}",
        )],
    ),
    lines(
        "Objects in caches",
        "Objects in a manager's memory.",
        "short",
        &[("max by (resource) (quintet_informer_objects{SELECTED})", "{{resource}}")],
    ),
    lines(
        "Memory",
        "Resident memory of each manager.",
        "bytes",
        &[("process_resident_memory_bytes{SELECTED}", "{{pod}}")],
    ),
    lines(
        "CPU",
        "CPU use of each manager, in cores.",
        "short",
        &[("rate(process_cpu_seconds_total{SELECTED}[$__rate_interval])", "{{pod}}")],
    ),
    lines(
        "Dropped",
        "Objects that the manager cannot decode, and Events that it dropped.",
        "short",
        &[
            (
                "max by (resource) (quintet_informer_undecodable_objects{SELECTED})",
                "{{resource}} undecodable",
            ),
            ("sum(increase(quintet_events_dropped_total{SELECTED}[$__rate_interval]))", "Events dropped"),
        ],
    ),
    lines(
        "Certificate of /metrics",
        "How often the manager read the certificate, and how often that failed.",
        "short",
        &[
            (
                "sum by (pod) (increase(certwatcher_read_certificate_total{SELECTED}[$__rate_interval]))",
                "{{pod}}",
            ),
            (
                "sum by (pod) (increase(certwatcher_read_certificate_errors_total{SELECTED}[$__rate_interval]))",
                "{{pod}} failed",
            ),
        ],
    ),
];

/// The panels of the kinds.
const KINDS: &[Panel] = &[
    lines(
        "DaemonJob: nodes",
        "Summed over all DaemonJobs.",
        "short",
        &[("max by (state) (quintet_daemonjob_nodes{SELECTED})", "{{state}}")],
    ),
    lines(
        "DaemonJob: pods created, ledger writes",
        "Writes of the DaemonJob controller.",
        "ops",
        &[
            ("sum(rate(quintet_daemonjob_attempts_total{SELECTED}[$__rate_interval]))", "pods created"),
            ("sum(rate(quintet_daemonjob_ledger_writes_total{SELECTED}[$__rate_interval]))", "ledger writes"),
        ],
    ),
    lines(
        "DaemonJob: failed pods",
        "By reason.",
        "short",
        &[(
            "sum by (reason) (increase(quintet_daemonjob_pod_failures_total{SELECTED}[$__rate_interval]))",
            "{{reason}}",
        )],
    ),
    lines(
        "PodSet: pods",
        "Summed over all PodSets.",
        "short",
        &[("max by (state) (quintet_podset_pods{SELECTED})", "{{state}}")],
    ),
    lines(
        "PulsarConsumer: consumers",
        "Summed over all PulsarConsumers.",
        "short",
        &[("max by (state) (quintet_pulsarconsumer_pods{SELECTED})", "{{state}}")],
    ),
    lines(
        "PulsarConsumer: backlog",
        "Entries without acknowledgement, and those of them that the broker delivered.",
        "short",
        &[
            (
                "max by (exported_namespace, name) (quintet_pulsarconsumer_backlog{SELECTED})",
                "{{exported_namespace}}/{{name}}",
            ),
            (
                "max by (exported_namespace, name) (quintet_pulsarconsumer_unacked{SELECTED})",
                "{{exported_namespace}}/{{name}} delivered",
            ),
        ],
    ),
    lines(
        "PulsarConsumer: delivered",
        "Messages per second, consumers that the broker counts, and desired consumers.",
        "short",
        &[
            (
                "max by (exported_namespace, name) (quintet_pulsarconsumer_delivered_per_second{SELECTED})",
                "{{exported_namespace}}/{{name}} per second",
            ),
            (
                "max by (exported_namespace, name) (quintet_pulsarconsumer_consumers{SELECTED})",
                "{{exported_namespace}}/{{name}} consumers",
            ),
            (
                "max by (exported_namespace, name) (quintet_pulsarconsumer_desired{SELECTED})",
                "{{exported_namespace}}/{{name}} desired",
            ),
        ],
    ),
    lines(
        "PulsarConsumer: backlog reads",
        "By result.",
        "ops",
        &[(
            "sum by (result) (rate(quintet_pulsarconsumer_backlog_polls_total{SELECTED}[$__rate_interval]))",
            "{{result}}",
        )],
    ),
    lines(
        "PulsarConsumer: unknown backlogs",
        "1 for each PulsarConsumer whose backlog the manager cannot read.",
        "short",
        &[(
            "max by (exported_namespace, name) (quintet_pulsarconsumer_backlog_unknown{SELECTED})",
            "{{exported_namespace}}/{{name}}",
        )],
    ),
    lines(
        "Greeting: printed lines",
        "By cause.",
        "ops",
        &[("sum by (cause) (rate(quintet_greeting_said_total{SELECTED}[$__rate_interval]))", "{{cause}}")],
    ),
    lines(
        "Greeting: waiting output",
        "Bytes that wait for a reader of standard output.",
        "bytes",
        &[("max by (pod) (quintet_greeting_output_waiting_bytes{SELECTED})", "{{pod}}")],
    ),
];

/// The name and the text of each dashboard.
pub(super) fn all() -> Vec<(&'static str, String)> {
    [("manager", "Quintet: manager", MANAGER), ("kinds", "Quintet: kinds", KINDS)]
        .map(|(name, title, panels)| (name, format!("{:#}\n", dashboard(name, title, panels))))
        .to_vec()
}

fn dashboard(name: &str, title: &str, panels: &[Panel]) -> Value {
    let variable = |name: &str, label: &str, query: &str, multi: bool| {
        json!({
            "name": name, "label": label, "type": "query", "refresh": 2, "sort": 1,
            "datasource": { "type": "prometheus", "uid": "${datasource}" },
            "definition": query, "query": { "query": query, "refId": name },
            // "All" means the found pods, not every pod of the namespace.
            "multi": multi, "includeAll": multi, "allValue": null,
        })
    };
    let panels: Vec<Value> = (0..).zip(panels).map(|(at, panel)| shown(at, panel)).collect();
    json!({
        "uid": format!("quintet-{name}"),
        "title": title,
        "tags": ["quintet"],
        "schemaVersion": 39,
        "editable": true,
        "refresh": "1m",
        "time": { "from": "now-6h", "to": "now" },
        "templating": { "list": [
            { "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus" },
            variable("namespace", "Namespace", "label_values(quintet_build_info, namespace)", false),
            variable("pod", "Pod", "label_values(quintet_build_info{namespace=\"$namespace\"}, pod)", true),
        ] },
        "panels": panels,
    })
}

fn shown(at: u32, panel: &Panel) -> Value {
    let targets: Vec<Value> = ('A'..)
        .zip(panel.asked)
        .map(|(id, (query, legend))| {
            json!({
                "refId": id, "legendFormat": legend, "expr": query.replace("SELECTED", SELECTED),
                "datasource": { "type": "prometheus", "uid": "${datasource}" },
            })
        })
        .collect();
    let mut shown = json!({
        "id": at + 1,
        "title": panel.title,
        "description": panel.what,
        "type": panel.kind,
        "datasource": { "type": "prometheus", "uid": "${datasource}" },
        "gridPos": { "x": at % COLUMNS * WIDTH, "y": at / COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT },
        "fieldConfig": { "defaults": { "unit": panel.unit, "min": 0 }, "overrides": [] },
        "targets": targets,
    });
    if panel.kind == "stat" {
        // An instant query: a range query would show the last value of a series that has ended.
        for target in shown["targets"].as_array_mut().into_iter().flatten() {
            target["instant"] = json!(true);
            target["range"] = json!(false);
        }
        shown["options"] =
            json!({ "textMode": "value_and_name", "reduceOptions": { "calcs": ["lastNotNull"] } });
    }
    shown
}
