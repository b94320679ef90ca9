//! The rollout as an object of each kind: the sample's pod, on a part of the nodes at a time.

use anyhow::{Context as _, Result};
use quintet_localcluster::kube::is_true;
use serde_json::{Value, json};

use super::figures::{Contender, Scenario};
use crate::daemonjob::runs::sample;

pub const NAME: &str = "bench";

/// The label of a DaemonSet's pods with the version of their template.
const VERSION: &str = "bench.quintet.dev/version";

/// An object, the path of its collection, and its own path.
pub struct Entry {
    pub object: Value,
    pub collection: String,
    pub path: String,
}

impl Entry {
    fn new(group: &str, kind: &str, namespace: &str, spec: &Value) -> Self {
        let collection = format!("/apis/{group}/namespaces/{namespace}/{}s", kind.to_lowercase());
        let object = json!({"apiVersion": group, "kind": kind, "metadata": {"name": NAME}, "spec": spec});
        Self { object, path: format!("{collection}/{NAME}"), collection }
    }

    /// The rollout of a contender. A DaemonSet has the first version of its template.
    pub fn of(contender: Contender, namespace: &str, scenario: &Scenario) -> Result<Self> {
        let (parallelism, settle_seconds) = (scenario.parallelism(), scenario.settle_seconds);
        let mut pod = sample()?["spec"]["template"]["spec"].take();
        let (group, kind, spec) = match contender {
            Contender::DaemonJob => return Self::in_waves(namespace, scenario),
            Contender::BroadcastJob => {
                // The simulated kubelet completes pods with this annotation.
                let metadata = json!({"annotations": {"kwok.quintet.dev/exit-code": "0"}});
                let template = json!({"metadata": metadata, "spec": pod});
                let policy = json!({"type": "Pause"});
                let spec = json!({"parallelism": parallelism, "failurePolicy": policy, "template": template});
                ("apps.kruise.io/v1alpha1", "BroadcastJob", spec)
            }
            Contender::DaemonSet => {
                // A DaemonSet requires the policy Always, the default.
                pod.as_object_mut().context("the sample's pod has no spec")?.remove("restartPolicy");
                let strategy =
                    json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": parallelism}});
                let labels = json!({"app": NAME, VERSION: "1"});
                let spec = json!({
                    "selector": {"matchLabels": {"app": NAME}},
                    "minReadySeconds": settle_seconds,
                    "updateStrategy": strategy,
                    "template": {"metadata": {"labels": labels}, "spec": pod},
                });
                ("apps/v1", "DaemonSet", spec)
            }
            Contender::Plan => {
                let container = &pod["containers"][0];
                let spec = json!({
                    "concurrency": parallelism,
                    "nodeSelector": {"matchLabels": pod["nodeSelector"]},
                    "postCompleteDelay": format!("{settle_seconds}s"),
                    "upgrade": {"image": container["image"], "command": container["command"]},
                    "version": "v1",
                });
                ("upgrade.cattle.io/v1", "Plan", spec)
            }
        };
        Ok(Self::new(group, kind, namespace, &spec))
    }

    /// The sample, without rollout fields.
    pub fn plain(namespace: &str) -> Result<Self> {
        Ok(Self::new("dj.dysproz.io/v1", "DaemonJob", namespace, &sample()?["spec"]))
    }

    /// The sample in waves, whose nodes settle.
    pub fn in_waves(namespace: &str, scenario: &Scenario) -> Result<Self> {
        let mut spec = sample()?["spec"].take();
        let lost_after = scenario.lost_after_seconds;
        spec["parallelism"] = json!(scenario.parallelism());
        spec["failurePolicy"] =
            json!({"type": "Pause", "maxFailedNodes": 0, "nodeLostAfterSeconds": lost_after});
        spec["rollout"] = json!({"waveSizes": ["10%", "50%"], "settleSeconds": scenario.settle_seconds});
        Ok(Self::new("dj.dysproz.io/v1", "DaemonJob", namespace, &spec))
    }
}

/// The patch to the second version of a DaemonSet's template.
pub fn update() -> Value {
    json!({"spec": {"template": {"metadata": {"labels": {VERSION: "2"}}}}})
}

/// Whether a pod has the template that the bench rolls out.
pub fn has_template(contender: Contender, pod: &Value) -> bool {
    contender != Contender::DaemonSet || pod["metadata"]["labels"][VERSION] == "2"
}

/// Whether a container of the pod has started.
pub fn has_started(pod: &Value) -> bool {
    pod["status"]["phase"].as_str().is_some_and(|phase| phase != "Pending")
}

/// Whether a pod has done its work.
pub fn has_succeeded(contender: Contender, pod: &Value) -> bool {
    match contender {
        // Its pods do not end.
        Contender::DaemonSet => is_true(pod, "Ready"),
        _ => pod["status"]["phase"] == "Succeeded",
    }
}
