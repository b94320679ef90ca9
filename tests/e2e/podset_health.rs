//! How Helm, Flux and Argo CD see a PodSet in each state.
//!
//! The tests produce each row of the table in docs/podset.md and compare it with kstatus and with the health
//! check in samples/gitops. Nodes are simulated.

use quintet_e2e::health::{Judge, Page};
use quintet_e2e::{TestEnv, condition};
use serde_json::{Value, json};

use crate::podset::podset;
use crate::podset_rollout::template;

const PAGE: Page = Page {
    file: "podset.md",
    kind: "podset",
    key: "resource.customizations.health.batch.tutorial.kubebuilder.io_PodSet",
    conditions: &["Ready", "Stalled"],
};

const UNSEEN: &str = "no manager has seen the spec";
const UPDATING: &str = "pods are being created or replaced";
const REJECTED: &str = "pods are rejected, until `progressDeadlineSeconds`";
const COMPLETE: &str = "the rollout is complete";
const POD_FAILED: &str = "a pod failed after the rollout";
const PAUSED: &str = "the rollout is paused";
const EXPIRED: &str = "the rollout made no progress for `progressDeadlineSeconds`";
const DELETED: &str = "being deleted";

#[test]
fn every_state_of_a_podset() {
    let env = TestEnv::new("ps-health");
    let judge = Judge::new(&env, PAGE);
    let mut new = podset("new", &json!({ "template": template("busybox", &json!({})) }));
    new["metadata"]["finalizers"] = json!(["example.com/keep"]);
    env.apply(&new).unwrap();
    judge.expect(UNSEEN, &env.get("podset", "new").unwrap());
    let manager = env.manager("podset");
    judge.wait_for_reason(COMPLETE, "new", "PodsUpdated");
    assert_eq!(manager.stop().unwrap(), Some(0));
    let changed =
        json!({ "updateStrategy": { "type": "OnDelete" }, "template": template("other", &json!({})) });
    env.patch("podset", "new", &json!({ "spec": changed }));
    judge.expect(UNSEEN, &env.get("podset", "new").unwrap());
    let _manager = env.manager("podset");
    judge.wait_for_reason(COMPLETE, "new", "OnDelete");
    let strategy = json!({ "type": "RollingUpdate", "partition": 1 });
    env.patch("podset", "new", &json!({ "spec": { "updateStrategy": strategy } }));
    judge.wait_for_reason(COMPLETE, "new", "PartitionReached");
    env.kubectl(&["delete", "podset", "new", "--wait=false"]).unwrap();
    judge.expect(DELETED, &env.get("podset", "new").unwrap());
    env.patch("podset", "new", &json!({ "metadata": { "finalizers": null } }));

    let set = |template: Value, more: Value| {
        let mut set = podset("set", &more);
        (set["spec"]["replicas"], set["spec"]["template"]) = (json!(2), template);
        set
    };
    let mut rejected = template("busybox", &json!({}));
    rejected["spec"]["serviceAccountName"] = json!("missing");
    env.apply(&set(rejected, json!({}))).unwrap();
    judge.wait_for_reason(REJECTED, "set", "FailedCreate");
    let unready = template("busybox", &json!({ "kwok.quintet.dev/ready": "false" }));
    env.apply(&set(unready, json!({}))).unwrap();
    judge.wait(UPDATING, "set", |set| {
        set["status"]["replicas"] == 2 && condition(set, "Ready").1 == "Updating"
    });
    let annotate = |ready: &str| {
        let annotation = format!("kwok.quintet.dev/ready={ready}");
        env.kubectl(&["annotate", "pods", "--overwrite", &annotation, "-l", "app=set"]).unwrap();
    };
    annotate("true");
    judge.wait_for_reason(COMPLETE, "set", "PodsUpdated");
    annotate("false");
    judge.wait_for_reason(POD_FAILED, "set", "PodsUnavailable");

    let broken = template("missing", &json!({ "kwok.quintet.dev/start": "never" }));
    env.apply(&set(broken.clone(), json!({ "updateStrategy": { "paused": true } }))).unwrap();
    judge.wait_for_reason(PAUSED, "set", "Paused");
    env.apply(&set(broken, json!({ "progressDeadlineSeconds": 2 }))).unwrap();
    judge.wait_for_reason(EXPIRED, "set", "ProgressDeadlineExceeded");
    judge.end_of_table();
}
