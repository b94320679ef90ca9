//! The simulated nodes. This module creates the Node objects; kwok plays their kubelets.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use crate::kube::Kube;
use crate::run;

/// Marks the nodes of this program, which deletes no others.
const OURS: &str = "quintet.dev/simulated=true";

/// Creates missing nodes of `node-1` to `node-N`, and deletes simulated nodes beyond N.
pub(super) fn ensure(kube: &Kube, nodes: usize) -> Result<()> {
    let present = run::stdout(kube.kubectl().args(["get", "nodes", "-l", OURS, "-o", "name"]))?;
    let present: Vec<&str> = present.lines().filter_map(|line| line.strip_prefix("node/")).collect();
    let desired: Vec<String> = (1..=nodes).map(|number| format!("node-{number}")).collect();
    let missing: Vec<_> =
        desired.iter().filter(|name| !present.contains(&name.as_str())).map(|name| node(name)).collect();
    if !missing.is_empty() {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": missing});
        run::stdout_with_input(kube.kubectl().args(["create", "-f", "-"]), Some(&list.to_string()))?;
    }
    let surplus: Vec<&str> =
        present.into_iter().filter(|name| !desired.iter().any(|node| node == name)).collect();
    if !surplus.is_empty() {
        run::stdout(kube.kubectl().args(["delete", "node"]).args(surplus))?;
    }
    Ok(())
}

/// Waits until every simulated node is Ready and without taints.
pub(super) fn wait_until_ready(kube: &Kube, nodes: usize) -> Result<()> {
    let ready = r#"jsonpath={range .items[*]}{.status.conditions[?(@.type=="Ready")].status} {.spec.taints[*].key}{"\n"}{end}"#;
    run::poll("the simulated nodes are Ready", Duration::from_mins(2), Duration::from_millis(150), || {
        let lines = run::stdout(kube.kubectl().args(["get", "nodes", "-l", OURS, "-o", ready]))?;
        Ok((lines.lines().filter(|line| line.trim() == "True").count() >= nodes).then_some(()))
    })
}

/// A simulated node, with the labels by which samples and the deletion select it.
pub fn node(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "quintet.dev/simulated": "true",
                // The sample of the DaemonJob tutorial selects its nodes by this label.
                "app": "v1",
            },
        },
    })
}
