//! How Helm, Flux and Argo CD see a Greeting in each state.
//!
//! The tests produce each row of the table in docs/greeting.md and compare it with kstatus and with the health check in
//! samples/gitops.

use std::process::Stdio;

use quintet_e2e::TestEnv;
use quintet_e2e::health::{Judge, Page};
use serde_json::{Value, json};

use crate::greeting::{greeting, stop};

const PAGE: Page = Page {
    file: "greeting.md",
    kind: "greeting",
    key: "resource.customizations.health.example.com_Greeting",
    conditions: &["Ready", "Stalled"],
};

const UNSEEN: &str = "no manager has seen the spec";
const PRINTED: &str = "the message was printed";
const BLOCKED: &str = "standard output is blocked";
const STALLED: &str = "only a user can have it printed";
const DELETED: &str = "being deleted";
/// Uses a separate cluster, whose definition accepts a Greeting without a message, as the tutorial's does.
#[test]
fn every_state_of_a_greeting() {
    let env = TestEnv::alone("gr-health");
    let judge = Judge::new(&env, PAGE);
    let lax = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let patch: Vec<Value> = ["spec", "status/properties/claim"]
        .map(|field| format!("/spec/versions/0/schema/openAPIV3Schema/properties/{field}"))
        .map(|path| json!({ "op": "replace", "path": path, "value": lax }))
        .into();
    let patch = json!(patch).to_string();
    env.kubectl(&["patch", "crd", "greetings.example.com", "--type=json", "-p", &patch]).unwrap();

    env.apply(&greeting("seen", "one")).unwrap();
    judge.expect(UNSEEN, &env.get("greeting", "seen").unwrap());
    let manager = env.manager("greeting");
    judge.wait_for_reason(PRINTED, "seen", "Greeted");
    let mut silent = greeting("silent", "");
    silent["spec"] = json!({});
    env.wait("the changed definition is served", || env.apply(&silent).is_ok());
    judge.wait_for_reason(STALLED, "silent", "NoMessage");
    assert_eq!(manager.stop().unwrap(), Some(0));

    env.patch("greeting", "seen", &json!({ "spec": { "message": "two" } }));
    judge.expect(UNSEEN, &env.get("greeting", "seen").unwrap());
    let claim = json!({ "messageHash": "v9-0", "kind": "Create", "token": "t" });
    env.patch("greeting/status", "seen", &json!({ "status": { "claim": claim } }));
    let mut closed = env.bare_manager_printing("greeting", Stdio::piped());
    drop(closed.stdout.take());
    judge.wait_for_reason(STALLED, "seen", "ClaimedByOtherVersion");
    env.apply(&greeting("lost", "is claimed, and finds the pipe closed")).unwrap();
    env.wait_for("greeting", "lost", "its line is claimed", |lost| !lost["status"]["claim"].is_null());
    env.apply(&greeting("blocked", "waits")).unwrap();
    judge.wait_for_reason(BLOCKED, "blocked", "OutputBlocked");
    env.kubectl(&["delete", "greeting", "lost", "--wait=false"]).unwrap();
    judge.expect(DELETED, &env.get("greeting", "lost").unwrap());
    stop(&mut closed);
    judge.end_of_table();
}
