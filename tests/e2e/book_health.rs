//! How Helm, Flux and Argo CD see a Book in each state.
//!
//! The tests produce each row of the table in docs/book.md and compare it with kstatus and with the health check in
//! samples/gitops.

use quintet_e2e::TestEnv;
use quintet_e2e::health::{Judge, Page};
use serde_json::json;

use crate::book::book;

const PAGE: Page = Page {
    file: "book.md",
    kind: "book",
    key: "resource.customizations.health.christianb93.github.com_Book",
    conditions: &["Ready", "Stalled"],
};

const UNSEEN: &str = "no manager has seen the spec";
const VALID: &str = "valid";
const INVALID: &str = "stored without a schema and invalid";
const DELETED: &str = "being deleted";
/// Uses a separate cluster, whose definition accepts any spec, as the tutorial's first one does.
#[test]
fn every_state_of_a_book() {
    let env = TestEnv::alone("bk-health");
    let judge = Judge::new(&env, PAGE);
    let lax = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let patch = json!([
        { "op": "replace", "path": path, "value": lax },
        { "op": "remove", "path": "/spec/versions/0/selectableFields" },
    ]);
    env.kubectl(&["patch", "crd", "books.christianb93.github.com", "--type=json", "-p", &patch.to_string()])
        .unwrap();

    let mut kept = book("kept");
    kept["metadata"]["finalizers"] = json!(["example.com/keep"]);
    env.apply(&kept).unwrap();
    judge.expect(UNSEEN, &env.get("book", "kept").unwrap());
    let manager = env.manager("book");
    judge.wait_for_reason(VALID, "kept", "Accepted");
    assert_eq!(manager.stop().unwrap(), Some(0));
    kept["spec"] = json!({});
    env.wait("the changed definition is served", || env.apply(&kept).is_ok());
    judge.expect(UNSEEN, &env.get("book", "kept").unwrap());
    let _manager = env.manager("book");
    judge.wait_for_reason(INVALID, "kept", "Invalid");
    kept["spec"] = book("kept")["spec"].clone();
    env.apply(&kept).unwrap();
    judge.wait_for_reason(VALID, "kept", "Accepted");
    env.kubectl(&["delete", "book", "kept", "--wait=false"]).unwrap();
    judge.expect(DELETED, &env.get("book", "kept").unwrap());
    env.patch("book", "kept", &json!({ "metadata": { "finalizers": null } }));
    judge.end_of_table();
}
