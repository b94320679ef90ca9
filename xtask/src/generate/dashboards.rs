//! The Grafana dashboards, from the panels in `charts/quintet/files/panels.yaml`.

use std::fs;

use anyhow::{Context as _, Result};
use quintet_localcluster::paths;
use serde::Deserialize;
use serde_json::{Value, json};

/// The panels of each dashboard.
#[derive(Deserialize)]
struct Dashboards {
    manager: Vec<Panel>,
    kinds: Vec<Panel>,
}

/// One panel.
#[derive(Deserialize)]
struct Panel {
    title: String,
    description: String,
    #[serde(default = "time_series")]
    kind: String,
    #[serde(default = "short")]
    unit: String,
    queries: Vec<Query>,
}

/// One query. The legend names its series.
#[derive(Deserialize)]
struct Query {
    query: String,
    legend: String,
}

fn time_series() -> String {
    "timeseries".to_owned()
}

fn short() -> String {
    "short".to_owned()
}

/// Panels in a row of a dashboard.
const COLUMNS: u32 = 2;
const WIDTH: u32 = 24 / COLUMNS;
const HEIGHT: u32 = 8;

/// The label matchers of every query, with the dashboard's variables.
const SELECTED: &str = r#"cluster="$cluster",namespace="$namespace",pod=~"$pod""#;

/// The name and the text of each dashboard.
pub(super) fn all() -> Result<[(&'static str, String); 2]> {
    let file = paths::workspace().join("charts/quintet/files/panels.yaml");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let Dashboards { manager, kinds } =
        serde_saphyr::from_str(&text).with_context(|| file.display().to_string())?;
    Ok([("manager", "Quintet: manager", manager), ("kinds", "Quintet: kinds", kinds)]
        .map(|(name, title, panels)| (name, format!("{}\n", dashboard(name, title, &panels)))))
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
    let namespaces = r#"label_values(quintet_build_info{cluster="$cluster"}, namespace)"#;
    let pods = r#"label_values(quintet_build_info{cluster="$cluster",namespace="$namespace"}, pod)"#;
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
            // If no sample has the label, the variable is empty, and its matcher selects the samples without the label.
            variable("cluster", "Cluster", "label_values(quintet_build_info, cluster)", false),
            variable("namespace", "Namespace", namespaces, false),
            variable("pod", "Pod", pods, true),
        ] },
        "panels": panels,
    })
}

fn shown(at: u32, panel: &Panel) -> Value {
    let targets: Vec<Value> = ('A'..)
        .zip(&panel.queries)
        .map(|(id, Query { query, legend })| {
            json!({
                "refId": id, "legendFormat": legend, "expr": query.replace("SELECTED", SELECTED),
                "datasource": { "type": "prometheus", "uid": "${datasource}" },
            })
        })
        .collect();
    let mut shown = json!({
        "id": at + 1,
        "title": panel.title,
        "description": panel.description,
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
