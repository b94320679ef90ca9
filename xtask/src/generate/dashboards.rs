//! Grafana dashboards, from one line for each panel: what is asked of Prometheus, and how it is shown.

use serde_json::{Value, json};

/// One panel.
struct Panel {
    title: &'static str,
    what: &'static str,
    /// What is asked, and the legend of its lines.
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

/// Panels beside each other in a row of a dashboard.
const COLUMNS: u32 = 2;
const WIDTH: u32 = 24 / COLUMNS;
const HEIGHT: u32 = 8;

/// What every query selects by; the variables are the dashboard's.
const SELECTED: &str = r#"namespace="$namespace",pod=~"$pod""#;

/// The manager as a process and as controllers.
const MANAGER: &[Panel] = &[
    number(
        "Leader",
        "The pod that may write.",
        &[("max by (pod) (leader_election_master_status{SELECTED}) == 1", "{{pod}}")],
    ),
    number(
        "Managers",
        "Pods that are seen, by version.",
        &[("count by (version) (quintet_build_info{SELECTED})", "{{version}}")],
    ),
    lines(
        "Changes of the leader",
        "How often a pod took the Lease or lost it.",
        "short",
        &[("sum by (pod) (changes(leader_election_master_status{SELECTED}[$__rate_interval]))", "{{pod}}")],
    ),
    lines(
        "Renewals that read the Lease first",
        "Of a leader whose Lease somebody else has changed, or whose last try was not answered.",
        "ops",
        &[("sum by (pod) (rate(leader_election_slowpath_total{SELECTED}[$__rate_interval]))", "{{pod}}")],
    ),
    lines(
        "Restarts",
        "How often a pod's process began anew.",
        "short",
        &[("sum by (pod) (changes(process_start_time_seconds{SELECTED}[$__rate_interval]))", "{{pod}}")],
    ),
    lines(
        "Passes",
        "How often a controller looked at an object, by how that ended.",
        "ops",
        &[(
            "sum by (controller, result) (rate(controller_runtime_reconcile_total{SELECTED}[$__rate_interval]))",
            "{{controller}} {{result}}",
        )],
    ),
    lines(
        "Failures",
        "Passes that failed, panicked or were cut off, and those that are not repeated.",
        "ops",
        &[
            (
                "sum by (controller) (rate(controller_runtime_terminal_reconcile_errors_total{SELECTED}[$__rate_interval]))",
                "{{controller}} gave up",
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
        "Objects in trouble",
        "Those whose last pass failed, and those for which the API server refuses something.",
        "short",
        &[
            ("max by (controller) (quintet_failing_objects{SELECTED})", "{{controller}} failing"),
            ("max by (controller) (quintet_refused_objects{SELECTED})", "{{controller}} refused"),
        ],
    ),
    lines(
        "Time of a pass, 99th percentile",
        "How long passes take.",
        "s",
        &[(
            "histogram_quantile(0.99, sum by (controller, le) (rate(controller_runtime_reconcile_time_seconds_bucket{SELECTED}[$__rate_interval])))",
            "{{controller}}",
        )],
    ),
    lines(
        "Passes at once",
        "How many run, and how many may.",
        "short",
        &[
            ("sum by (controller) (controller_runtime_active_workers{SELECTED})", "{{controller}}"),
            (
                "max by (controller) (controller_runtime_max_concurrent_reconciles{SELECTED})",
                "{{controller}} at most",
            ),
        ],
    ),
    lines(
        "Queue",
        "Objects that wait for a pass.",
        "short",
        &[("sum by (controller) (workqueue_depth{SELECTED})", "{{controller}}")],
    ),
    lines(
        "Added to the queue, and repeated",
        "What is asked of a controller.",
        "ops",
        &[
            (
                "sum by (controller) (rate(workqueue_adds_total{SELECTED}[$__rate_interval]))",
                "{{controller}}",
            ),
            (
                "sum by (controller) (rate(workqueue_retries_total{SELECTED}[$__rate_interval]))",
                "{{controller}} repeated",
            ),
        ],
    ),
    lines(
        "Wait in the queue, 99th percentile",
        "How long an object waits for its pass.",
        "s",
        &[(
            "histogram_quantile(0.99, sum by (controller, le) (rate(workqueue_queue_duration_seconds_bucket{SELECTED}[$__rate_interval])))",
            "{{controller}}",
        )],
    ),
    lines(
        "Work, 99th percentile",
        "How long a pass holds its place in the queue.",
        "s",
        &[(
            "histogram_quantile(0.99, sum by (controller, le) (rate(workqueue_work_duration_seconds_bucket{SELECTED}[$__rate_interval])))",
            "{{controller}}",
        )],
    ),
    lines(
        "Passes that run now",
        "How long they have run: all together, and the longest.",
        "s",
        &[
            ("max by (controller) (workqueue_unfinished_work_seconds{SELECTED})", "{{controller}} together"),
            (
                "max by (controller) (workqueue_longest_running_processor_seconds{SELECTED})",
                "{{controller}} longest",
            ),
        ],
    ),
    lines(
        "Answers of the API server, 99th percentile",
        "How long it takes to begin an answer.",
        "s",
        &[(
            "histogram_quantile(0.99, sum by (verb, le) (rate(rest_client_request_duration_seconds_bucket{SELECTED}[$__rate_interval])))",
            "{{verb}}",
        )],
    ),
    lines(
        "Silence of watches",
        "How long ago a watch last said anything; bookmarks come about once a minute.",
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
        "What a manager keeps in memory.",
        "short",
        &[("max by (resource) (quintet_informer_objects{SELECTED})", "{{resource}}")],
    ),
    lines("Memory", "Of each manager.", "bytes", &[("process_resident_memory_bytes{SELECTED}", "{{pod}}")]),
    lines(
        "CPU",
        "Of each manager, in cores.",
        "short",
        &[("rate(process_cpu_seconds_total{SELECTED}[$__rate_interval])", "{{pod}}")],
    ),
    lines(
        "Left out",
        "Objects that cannot be read, and Events that were not sent.",
        "short",
        &[
            ("max by (resource) (quintet_informer_undecodable_objects{SELECTED})", "{{resource}} not read"),
            ("sum(increase(quintet_events_dropped_total{SELECTED}[$__rate_interval]))", "Events not sent"),
        ],
    ),
    lines(
        "Certificate of the metrics address",
        "How often it was read, and could not be used.",
        "short",
        &[
            (
                "sum by (pod) (increase(certwatcher_read_certificate_total{SELECTED}[$__rate_interval]))",
                "{{pod}}",
            ),
            (
                "sum by (pod) (increase(certwatcher_read_certificate_errors_total{SELECTED}[$__rate_interval]))",
                "{{pod}} not usable",
            ),
        ],
    ),
];

/// What the kinds are at.
const KINDS: &[Panel] = &[
    lines(
        "DaemonJob: nodes",
        "Summed over all DaemonJobs.",
        "short",
        &[("max by (state) (quintet_daemonjob_nodes{SELECTED})", "{{state}}")],
    ),
    lines(
        "DaemonJob: pods made, and ledgers written",
        "What DaemonJobs cost.",
        "ops",
        &[
            ("sum(rate(quintet_daemonjob_attempts_total{SELECTED}[$__rate_interval]))", "pods made"),
            (
                "sum(rate(quintet_daemonjob_ledger_writes_total{SELECTED}[$__rate_interval]))",
                "ledgers written",
            ),
        ],
    ),
    lines(
        "DaemonJob: pods that failed",
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
        "Entries that are not acknowledged, and those of them that were delivered.",
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
        "Messages per second, the consumers that the broker knows, and the desired ones.",
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
        "PulsarConsumer: looks at backlogs",
        "By result.",
        "ops",
        &[(
            "sum by (result) (rate(quintet_pulsarconsumer_backlog_polls_total{SELECTED}[$__rate_interval]))",
            "{{result}}",
        )],
    ),
    lines(
        "PulsarConsumer: backlogs that cannot be read",
        "1 for each.",
        "short",
        &[(
            "max by (exported_namespace, name) (quintet_pulsarconsumer_backlog_unknown{SELECTED})",
            "{{exported_namespace}}/{{name}}",
        )],
    ),
    lines(
        "Greeting: lines said",
        "By cause.",
        "ops",
        &[("sum by (cause) (rate(quintet_greeting_said_total{SELECTED}[$__rate_interval]))", "{{cause}}")],
    ),
    lines(
        "Greeting: lines that wait",
        "Bytes that nobody has read from standard output yet.",
        "bytes",
        &[("max by (pod) (quintet_greeting_output_waiting_bytes{SELECTED})", "{{pod}}")],
    ),
];

/// Every dashboard: its name and its text.
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
            // All are those that were found, and not every pod of the namespace.
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
        // What is so now: a series that has ended would be shown with its last value.
        for target in shown["targets"].as_array_mut().into_iter().flatten() {
            target["instant"] = json!(true);
            target["range"] = json!(false);
        }
        shown["options"] =
            json!({ "textMode": "value_and_name", "reduceOptions": { "calcs": ["lastNotNull"] } });
    }
    shown
}
