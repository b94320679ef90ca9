//! A script of requests and watches that must have the same answers from this server and from the real one.
//!
//! UIDs, versions and times are replaced by words in the order of their appearance. Of a pod, only the fields
//! that a controller reads are compared. Of a rejection by a schema, only code and reason are compared,
//! because the message is the validator's.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::AsyncBufReadExt as _;
use http::{Request, header};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

const CONFIG_MAPS: &str = "/api/v1/namespaces/{ns}/configmaps";
const PODS: &str = "/api/v1/namespaces/{ns}/pods";
const PODSETS: &str = "/apis/batch.tutorial.kubebuilder.io/v1/namespaces/{ns}/podsets";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases";
const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

struct Asker<'c> {
    client: &'c Client,
    namespace: &'c str,
    /// The silence after which a watch counts as complete.
    quiet: Duration,
    /// UIDs, versions and tokens, and the words that replace them.
    words: BTreeMap<String, String>,
    /// UID and version of the last answer, by name.
    known: BTreeMap<String, (String, String)>,
    answers: Vec<String>,
}

/// Runs the script in a namespace that has the type PodSet and no other user. Returns a line for each answer.
/// A watch counts as complete after `quiet` without an event.
pub async fn answers(client: &Client, namespace: &str, quiet: Duration) -> Vec<String> {
    let mut asker = Asker {
        client,
        namespace,
        quiet,
        words: BTreeMap::new(),
        known: BTreeMap::new(),
        answers: Vec::new(),
    };
    asker.objects().await;
    asker.applies().await;
    asker.deletions().await;
    asker.pods().await;
    asker.custom_resources().await;
    asker.lists().await;
    asker.watches().await;
    asker.answers
}

fn config_map(name: &str, data: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "labels": { "of": "script" } }, "data": data })
}

fn pod(name: &str, more: &Value) -> Value {
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "containers": [{ "name": "c", "image": "i" }], "nodeSelector": { "no": "where" } } });
    crate::patch::merge(&mut pod, more);
    pod
}

impl Asker<'_> {
    fn fill(&self, text: &str) -> String {
        let mut text = text.replace("{ns}", self.namespace);
        for (name, (uid, version)) in &self.known {
            text = text
                .replace(&format!("{{uid of {name}}}"), uid)
                .replace(&format!("{{version of {name}}}"), version);
        }
        text
    }

    async fn ask(&mut self, method: &str, path: &str, content_type: &str, body: Value) -> Value {
        let body = if body.is_null() { String::new() } else { self.fill(&body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(self.fill(path))
            .header(header::CONTENT_TYPE, content_type)
            .header(
                header::ACCEPT,
                if path.contains("meta=only") {
                    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
                } else {
                    JSON
                },
            )
            .body(kube::client::Body::from(body.into_bytes()));
        let Ok(request) = request else { return Value::Null };
        let (code, text) = match self.client.send(request).await {
            Ok(answer) => {
                let code = answer.status().as_u16();
                let bytes = answer.into_body().collect_bytes().await.unwrap_or_default();
                (code, String::from_utf8_lossy(&bytes).into_owned())
            }
            Err(error) => (0, error.to_string()),
        };
        let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text));
        self.note(&answer);
        let shown = self.normal(&answer);
        self.answers.push(format!("{method} {path} -> {code} {shown}"));
        answer
    }

    fn note(&mut self, answer: &Value) {
        let meta = &answer["metadata"];
        if let (Some(name), Some(uid), Some(version)) =
            (meta["name"].as_str(), meta["uid"].as_str(), meta["resourceVersion"].as_str())
        {
            self.known.insert(name.to_owned(), (uid.to_owned(), version.to_owned()));
        }
    }

    fn word(&mut self, kind: &str, value: &str) -> String {
        let next = format!(
            "<{kind} {}>",
            self.words.values().filter(|word| word.starts_with(&format!("<{kind} "))).count() + 1
        );
        self.words.entry(format!("{kind} {value}")).or_insert(next).clone()
    }

    /// An answer without the values that differ between servers.
    fn normal(&mut self, value: &Value) -> Value {
        if value["kind"] == "Status" && value["status"] == "Failure" {
            let code = &value["code"];
            let mut message = value["message"].as_str().unwrap_or_default().replace(self.namespace, "{ns}");
            if code == 422 && !message.starts_with("the server rejected")
                || code == 410
                || code == 504
                || code == 400
            {
                "...".clone_into(&mut message);
            }
            for (found, word) in &self.words {
                let value = found.split_once(' ').map_or("", |(_, value)| value);
                if value.len() > 8 {
                    message = message.replace(value, word);
                }
            }
            // Versions may be parts of other numbers. Only this message contains one.
            if let Some((start, _)) = message.split_once(" does not match the ResourceVersion in record") {
                message = format!("{start} does not match ...");
            }
            return json!({ "reason": value["reason"], "message": message, "name": value["details"]["name"] });
        }
        let value = self.replaced("", value);
        if value["kind"] == "Pod" {
            let meta = &value["metadata"];
            let mut seen = json!({ "name": meta["name"], "phase": value["status"]["phase"] });
            for field in
                ["uid", "resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "finalizers"]
            {
                seen[field] = meta[field].clone();
            }
            return seen;
        }
        value
    }

    fn replaced(&mut self, field: &str, value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let mut kept = serde_json::Map::new();
                for (name, value) in fields {
                    if matches!(&**name, "managedFields" | "selfLink" | "remainingItemCount") {
                        continue;
                    }
                    let mut value = value.clone();
                    if name == "metadata"
                        && fields.contains_key("items")
                        && value["resourceVersion"].is_string()
                    {
                        // The version of a list depends on the writes of other clients.
                        value["resourceVersion"] = Value::Bool(true);
                    }
                    kept.insert(name.clone(), self.replaced(name, &value));
                }
                Value::Object(kept)
            }
            Value::Array(items) => items.iter().map(|item| self.replaced(field, item)).collect(),
            Value::String(text) => Value::from(match field {
                "uid" => self.word("uid", text),
                "resourceVersion" => self.word("version", text),
                "creationTimestamp" | "deletionTimestamp" => "<time>".to_owned(),
                "continue" => "<more>".to_owned(),
                _ => text.replace(self.namespace, "{ns}"),
            }),
            other => other.clone(),
        }
    }

    async fn objects(&mut self) {
        let a = format!("{CONFIG_MAPS}/a");
        self.ask("POST", CONFIG_MAPS, JSON, config_map("a", &json!({ "k": "1" }))).await;
        self.ask("POST", CONFIG_MAPS, JSON, config_map("a", &json!({ "k": "2" }))).await;
        self.ask("POST", CONFIG_MAPS, JSON, json!({ "metadata": {} })).await;
        self.ask("POST", CONFIG_MAPS, JSON, json!({ "metadata": { "name": "x", "namespace": "other" } }))
            .await;
        self.ask("POST", "/api/v1/namespaces/not-there/configmaps", JSON, config_map("a", &json!({}))).await;
        self.ask("GET", &a, JSON, Value::Null).await;
        self.ask("GET", &format!("{CONFIG_MAPS}/none"), JSON, Value::Null).await;
        self.ask("GET", "/apis/example.org/v1/namespaces/{ns}/nothings", JSON, Value::Null).await;
        self.ask("PUT", &format!("{CONFIG_MAPS}/none"), JSON, config_map("none", &json!({}))).await;
        let mut put = config_map("a", &json!({ "k": "3" }));
        put["metadata"]["resourceVersion"] = json!("{version of a}");
        self.ask("PUT", &a, JSON, put.clone()).await;
        put["metadata"]["resourceVersion"] = json!("1");
        self.ask("PUT", &a, JSON, put).await;
        for (meta, data) in [
            (json!({ "resourceVersion": "{version of a}" }), json!({ "k": "4", "l": "5" })),
            (json!({ "resourceVersion": "{version of a}", "uid": "{uid of a}" }), json!({ "l": null })),
            // Without a change, the version stays.
            (json!({}), json!({ "k": "4" })),
            (json!({ "resourceVersion": "1" }), json!({ "k": "5" })),
            (json!({ "uid": "another" }), json!({ "k": "5" })),
        ] {
            self.ask("PATCH", &a, MERGE, json!({ "metadata": meta, "data": data })).await;
        }
        self.ask("PATCH", &format!("{CONFIG_MAPS}/none"), MERGE, json!({ "data": {} })).await;
        for operations in [
            json!([{ "op": "test", "path": "/metadata/uid", "value": "{uid of a}" }, { "op": "replace", "path": "/data/k", "value": "6" }]),
            json!([{ "op": "test", "path": "/metadata/uid", "value": "another" }, { "op": "replace", "path": "/data/k", "value": "7" }]),
            json!([{ "op": "test", "path": "/metadata/finalizers/0", "value": "x" }, { "op": "remove", "path": "/metadata/finalizers/0" }]),
            json!([{ "op": "test", "path": "/metadata/resourceVersion", "value": "{version of a}" }, { "op": "add", "path": "/data/n", "value": "8" }]),
            // A test for null holds if the value is absent.
            json!([{ "op": "test", "path": "/metadata/annotations", "value": null }, { "op": "add", "path": "/metadata/annotations", "value": { "x/y": "1" } }]),
            json!([{ "op": "test", "path": "/metadata/annotations/x~1z", "value": null }, { "op": "add", "path": "/metadata/annotations/x~1z", "value": "2" }]),
            json!([{ "op": "test", "path": "/metadata/annotations/x~1y", "value": null }, { "op": "add", "path": "/metadata/annotations/x~1y", "value": "3" }]),
            json!([{ "op": "test", "path": "/metadata/annotations", "value": null }]),
        ] {
            self.ask("PATCH", &a, PATCH, operations).await;
        }
    }

    async fn applies(&mut self) {
        let by = |manager: &str, force: bool| format!("{CONFIG_MAPS}/b?fieldManager={manager}&force={force}");
        for (manager, force, data) in [
            ("one", false, json!({ "k": "1", "l": "1" })),
            ("one", false, json!({ "k": "1", "l": "1" })),
            ("one", false, json!({ "k": "2" })),
            ("two", false, json!({ "k": "3", "m": "3" })),
            ("two", true, json!({ "k": "3", "m": "3" })),
            ("one", false, json!({})),
            ("two", false, json!({ "m": "3" })),
        ] {
            self.ask("PATCH", &by(manager, force), APPLY, config_map("b", &data)).await;
        }
        for (name, meta) in [
            ("b", json!({ "uid": "another" })),
            ("b", json!({ "resourceVersion": "1" })),
            ("none", json!({ "uid": "another" })),
        ] {
            let mut config = config_map(name, &json!({ "m": "4" }));
            crate::patch::merge(&mut config["metadata"], &meta);
            let path = format!("{CONFIG_MAPS}/{name}?fieldManager=two&force=true");
            self.ask("PATCH", &path, APPLY, config).await;
        }
    }

    async fn deletions(&mut self) {
        let b = format!("{CONFIG_MAPS}/b");
        let preconditions = |field: &str, value: &str| json!({ "preconditions": { field: value } });
        self.ask("DELETE", &b, JSON, preconditions("uid", "another")).await;
        self.ask("DELETE", &b, JSON, preconditions("resourceVersion", "1")).await;
        self.ask("DELETE", &b, JSON, preconditions("uid", "{uid of b}")).await;
        self.ask("DELETE", &b, JSON, Value::Null).await;
        let c = format!("{CONFIG_MAPS}/c");
        let mut held = config_map("c", &json!({}));
        held["metadata"]["finalizers"] = json!(["example.org/one", "example.org/two"]);
        self.ask("POST", CONFIG_MAPS, JSON, held.clone()).await;
        self.ask("DELETE", &c, JSON, Value::Null).await;
        self.ask("DELETE", &c, JSON, Value::Null).await;
        self.ask("POST", CONFIG_MAPS, JSON, held).await;
        let with = |finalizers: &[&str]| json!({ "metadata": { "finalizers": finalizers } });
        self.ask("PATCH", &c, MERGE, with(&["example.org/one", "example.org/three"])).await;
        self.ask("PATCH", &c, MERGE, with(&["example.org/two"])).await;
        let last = json!([{ "op": "test", "path": "/metadata/finalizers/0", "value": "example.org/two" }, { "op": "remove", "path": "/metadata/finalizers/0" }]);
        self.ask("PATCH", &c, PATCH, last).await;
        self.ask("GET", &c, JSON, Value::Null).await;
    }

    async fn pods(&mut self) {
        // A pod without a node is deleted immediately.
        self.ask("POST", PODS, JSON, pod("free", &json!({}))).await;
        self.ask("DELETE", &format!("{PODS}/free"), JSON, Value::Null).await;
        let bound = json!({ "spec": { "nodeName": "nowhere", "nodeSelector": null } });
        self.ask("POST", PODS, JSON, pod("bound", &bound)).await;
        let path = format!("{PODS}/bound");
        self.ask("DELETE", &path, JSON, Value::Null).await;
        self.ask("DELETE", &path, JSON, json!({ "gracePeriodSeconds": 60 })).await;
        self.ask("DELETE", &path, JSON, json!({ "gracePeriodSeconds": 0 })).await;
        self.ask("GET", &path, JSON, Value::Null).await;
        let mut held = pod("held", &bound);
        held["metadata"]["finalizers"] = json!(["example.org/one"]);
        self.ask("POST", PODS, JSON, held).await;
        let path = format!("{PODS}/held");
        self.ask("DELETE", &path, JSON, json!({ "preconditions": { "uid": "{uid of held}" } })).await;
        self.ask("DELETE", &path, JSON, json!({ "gracePeriodSeconds": 0 })).await;
        self.ask("PATCH", &path, PATCH, json!([{ "op": "remove", "path": "/metadata/finalizers/0" }])).await;
        self.ask("GET", &path, JSON, Value::Null).await;
        // Only one owner can be the controller.
        let owner = |uid: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": uid, "uid": uid, "controller": true });
        let owners = json!({ "metadata": { "ownerReferences": [owner("one"), owner("two")] } });
        self.ask("POST", PODS, JSON, pod("shared", &owners)).await;
        // A finished pod is deleted immediately, even if it has a node.
        self.ask("POST", PODS, JSON, pod("ended", &bound)).await;
        let path = format!("{PODS}/ended");
        self.ask("PATCH", &format!("{path}/status"), MERGE, json!({ "status": { "phase": "Succeeded" } }))
            .await;
        self.ask("DELETE", &path, JSON, Value::Null).await;
        self.ask("GET", &path, JSON, Value::Null).await;
    }

    async fn custom_resources(&mut self) {
        let podset = |spec: Value| json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet", "metadata": { "name": "s" }, "spec": spec });
        let path = format!("{PODSETS}/s");
        self.ask("POST", PODSETS, JSON, podset(json!({ "replicas": -1 }))).await;
        self.ask("POST", PODSETS, JSON, podset(json!({}))).await;
        self.ask("PATCH", &path, MERGE, json!({ "spec": { "replicas": 2 } })).await;
        self.ask("PATCH", &path, MERGE, json!({ "metadata": { "labels": { "a": "b" } } })).await;
        // The object's path does not write the status, and the status path nothing else.
        self.ask("PATCH", &path, MERGE, json!({ "status": { "replicas": 7 } })).await;
        self.ask(
            "PATCH",
            &format!("{path}/status"),
            MERGE,
            json!({ "spec": { "replicas": 9 }, "status": { "replicas": 1 } }),
        )
        .await;
        let status = format!("{path}/status?fieldManager=quintet&force=true");
        let of = |meta: Value, status: Value| {
            let mut meta = meta;
            meta["name"] = json!("s");
            json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet", "metadata": meta, "status": status })
        };
        let two = json!({ "replicas": 2, "readyReplicas": 1 });
        self.ask("PATCH", &status, APPLY, of(json!({ "uid": "{uid of s}" }), two.clone())).await;
        self.ask("PATCH", &status, APPLY, of(json!({ "uid": "{uid of s}" }), json!({ "replicas": 2 }))).await;
        self.ask("PATCH", &status, APPLY, of(json!({ "uid": "another" }), two.clone())).await;
        self.ask("PATCH", &status, APPLY, of(json!({ "resourceVersion": "1" }), two.clone())).await;
        self.ask("PATCH", &status, APPLY, of(json!({ "resourceVersion": "{version of s}" }), two)).await;
        self.ask("PATCH", &path, MERGE, json!({ "metadata": { "finalizers": ["example.org/one"] } })).await;
        self.ask("DELETE", &path, JSON, Value::Null).await;
        self.ask("PATCH", &path, MERGE, json!({ "metadata": { "finalizers": null } })).await;
        self.ask("PATCH", &status, APPLY, of(json!({}), json!({ "replicas": 2 }))).await;
        // The garbage collector removes the finalizer `orphan` after the owner references.
        self.ask("POST", PODSETS, JSON, podset(json!({}))).await;
        self.ask("DELETE", &path, JSON, json!({ "propagationPolicy": "Orphan" })).await;
        let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "l" }, "spec": { "holderIdentity": "me" } });
        self.ask("POST", LEASES, JSON, lease.clone()).await;
        self.ask("PUT", &format!("{LEASES}/l"), JSON, lease.clone()).await;
        let mut stale = lease;
        stale["metadata"]["resourceVersion"] = json!("1");
        self.ask("PUT", &format!("{LEASES}/l"), JSON, stale).await;
    }

    async fn lists(&mut self) {
        for name in ["l1", "l2", "l3"] {
            self.ask("POST", CONFIG_MAPS, JSON, config_map(name, &json!({}))).await;
        }
        let selected = format!("{CONFIG_MAPS}?labelSelector=of%3Dscript");
        self.ask("GET", &selected, JSON, Value::Null).await;
        self.ask("GET", &format!("{selected}&meta=only"), JSON, Value::Null).await;
        self.ask("GET", &format!("{selected}&fieldSelector=metadata.name%3Dl2"), JSON, Value::Null).await;
        let page = self.ask("GET", &format!("{selected}&limit=2"), JSON, Value::Null).await;
        // A continued list does not contain objects that are created meanwhile.
        self.ask("POST", CONFIG_MAPS, JSON, config_map("l4", &json!({}))).await;
        let more = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        let words = self.answers.len();
        self.ask("GET", &format!("{selected}&limit=2&continue={more}"), JSON, Value::Null).await;
        if let Some(answer) = self.answers.get_mut(words) {
            *answer = answer.replace(&more, "<more>");
        }
        self.ask("GET", &format!("{selected}&resourceVersion=9999999999"), JSON, Value::Null).await;
        self.ask("DELETE", &selected, JSON, Value::Null).await;
        self.ask("GET", &selected, JSON, Value::Null).await;
    }

    /// Watches writes with and without a version, as a streaming list, and with a deletion.
    async fn watches(&mut self) {
        let list =
            self.ask("GET", &format!("{CONFIG_MAPS}?labelSelector=of%3Dscript"), JSON, Value::Null).await;
        let from = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let selected = format!("{CONFIG_MAPS}?watch=true&labelSelector=of%3Dscript&timeoutSeconds=300");
        let w = format!("{CONFIG_MAPS}/w");
        self.ask("POST", CONFIG_MAPS, JSON, config_map("w", &json!({ "k": "1" }))).await;
        self.ask("PATCH", &w, MERGE, json!({ "data": { "k": "2" } })).await;
        self.ask("PATCH", &w, MERGE, json!({ "metadata": { "labels": { "of": "nobody" } } })).await;
        self.ask("PATCH", &w, MERGE, json!({ "data": { "k": "3" } })).await;
        self.ask("PATCH", &w, MERGE, json!({ "metadata": { "labels": { "of": "script" } } })).await;
        self.watch("from a list", &format!("{selected}&resourceVersion={from}")).await;
        self.watch("without a version", &selected).await;
        self.watch(
            "streaming list",
            &format!(
                "{selected}&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
            ),
        )
        .await;
        self.watch("streaming list without a match", &format!("{selected}&sendInitialEvents=true")).await;
        self.ask("DELETE", &w, JSON, Value::Null).await;
        self.watch("with a deletion", &format!("{selected}&resourceVersion={from}")).await;
        // After a restore of etcd, clients may ask for such a version. The server accepts it, and sends no earlier event.
        let ahead = from.parse::<u64>().unwrap_or_default() + 1_000_000;
        let path = format!("{selected}&allowWatchBookmarks=true&resourceVersion={ahead}");
        self.watch_creation("from a version that does not exist yet", &path, config_map("x", &json!({})))
            .await;
    }

    async fn watch(&mut self, what: &str, path: &str) {
        self.watch_creation(what, path, Value::Null).await;
    }

    /// Opens a watch, and creates an object unless it is null.
    async fn watch_creation(&mut self, what: &str, path: &str, created: Value) {
        let request =
            Request::get(self.fill(path)).header(header::ACCEPT_ENCODING, "identity").body(Vec::new());
        let Ok(request) = request else { return };
        let mut lines = match self.client.request_stream(request).await {
            Ok(lines) => lines,
            Err(kube::Error::Api(status)) => {
                self.answers.push(format!("watch {what} -> {} {}", status.code, status.reason));
                return;
            }
            Err(error) => {
                self.answers.push(format!("watch {what} -> {error}"));
                return;
            }
        };
        if !created.is_null() {
            self.ask("POST", CONFIG_MAPS, JSON, created).await;
        }
        let mut line = String::new();
        while let Ok(Ok(1..)) = timeout(self.quiet, lines.read_line(&mut line)).await {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            line.clear();
            let annotations = &event["object"]["metadata"]["annotations"];
            let object = match event["type"].as_str() {
                // The time of other bookmarks depends on the server's clock.
                Some("BOOKMARK") if annotations.is_null() => continue,
                Some("BOOKMARK") => json!({ "annotations": annotations }),
                Some("ERROR") => json!({ "code": event["object"]["code"] }),
                _ => self.normal(&event["object"]),
            };
            self.answers.push(format!("watch {what}: {} {object}", event["type"]));
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Server;

    #[tokio::test(start_paused = true)]
    async fn the_script_runs_to_its_end() {
        let server = Server::new(1);
        server.define(&json!({ "spec": { "group": "batch.tutorial.kubebuilder.io", "scope": "Namespaced",
            "names": { "kind": "PodSet", "plural": "podsets" },
            "versions": [{ "name": "v1", "subresources": { "status": {} }, "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }] } }));
        let all = answers(&server.client("script"), "default", Duration::from_secs(2)).await;
        assert!(all.iter().all(|answer| !answer.contains("-> 0 ")), "{all:#?}");
        assert_eq!(all, answers_of(1).await, "one seed, one run");
        let event = |what: &str| all.iter().filter(|answer| answer.starts_with(what)).count();
        assert_eq!(event("watch from a list: \"ADDED\""), 2);
        assert_eq!(event("watch from a list: \"DELETED\""), 1, "it left the selection");
        assert_eq!(event("watch streaming list: \"BOOKMARK\""), 1);
        assert_eq!(event("watch from a version that does not exist yet"), 0, "not even an error");
    }

    async fn answers_of(seed: u64) -> Vec<String> {
        let server = Server::new(seed);
        server.define(&json!({ "spec": { "group": "batch.tutorial.kubebuilder.io", "scope": "Namespaced",
            "names": { "kind": "PodSet", "plural": "podsets" },
            "versions": [{ "name": "v1", "subresources": { "status": {} }, "schema": { "openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }] } }));
        answers(&server.client("script"), "default", Duration::from_secs(2)).await
    }
}
