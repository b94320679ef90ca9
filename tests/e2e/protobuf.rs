//! Pods and Nodes decoded from protobuf equal those from the API server's JSON.

use axum::body::to_bytes;
use http::{Request, header};
use kube::Client;
use kube::client::Body;
use quintet_e2e::TestEnv;
use quintet_e2e::objects::connect;
use quintet_runtime::model::core_types::{Node, Pod};
use quintet_runtime::model::object::Object;
use quintet_runtime::model::protobuf;
use quintet_runtime::model::resource::PODS;
use serde_json::{Value, json};
use tokio::runtime::Builder;

/// A node that does not exist, so that no kubelet changes the pod.
const NOWHERE: &str = "nowhere";

/// A status with every field that the decoder reads.
fn status() -> Value {
    let ended = |code: i32, message: &str| {
        json!({ "terminated": { "exitCode": code, "reason": "Error", "message": message, "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:00:07Z" } })
    };
    let waiting = json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off" } });
    let running = json!({ "running": { "startedAt": "2026-01-01T00:00:01Z" } });
    let container = |name: &str, state: &Value, last: &Value| {
        json!({ "name": name, "ready": name == "ready", "restartCount": 3, "image": "i", "imageID": "i", "state": state,
            "lastState": last })
    };
    json!({
        "phase": "Failed", "reason": "Evicted", "message": "the node was low on memory",
        "startTime": "2026-01-01T00:00:00Z",
        "conditions": [
            { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z" },
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node: \"why\"\n\tü" },
            { "type": "DisruptionTarget", "status": "True", "lastTransitionTime": null },
        ],
        "initContainerStatuses": [container("init", &ended(0, ""), &json!({}))],
        "containerStatuses": [
            container("ready", &running, &ended(137, "killed")),
            container("waiting", &waiting, &ended(1, "last words")),
            container("ended", &ended(-1, "last words"), &running),
        ],
    })
}

/// The status of a pod that the kubelet rejected.
fn rejected() -> Value {
    json!({ "phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected",
        "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:02Z" }] })
}

/// Requests a path as protobuf. Returns the status code, the content type and the bytes.
async fn get(client: &Client, path: &str) -> (u16, String, Vec<u8>) {
    let request = Request::get(path).header(header::ACCEPT, protobuf::ACCEPT);
    let answer = client.send(request.body(Body::empty()).unwrap()).await.unwrap();
    let (code, of) =
        (answer.status().as_u16(), answer.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned());
    let bytes = to_bytes(axum::body::Body::new(answer.into_body()), usize::MAX).await.unwrap();
    (code, of, bytes.to_vec())
}

/// An object decoded from JSON and from protobuf, at the same resourceVersion.
async fn both<T: Object>(client: &Client, path: &str) -> (T, T) {
    loop {
        let request = Request::get(path).body(Vec::new()).unwrap();
        let json: T = serde_json::from_str(&client.request_text(request).await.unwrap()).unwrap();
        let (_, of, encoded) = get(client, path).await;
        assert_eq!(of, protobuf::CONTENT_TYPE);
        let mut read = Vec::new();
        protobuf::object(&encoded, T::in_protobuf().unwrap(), &mut read).unwrap();
        let read: T = serde_json::from_slice(&read).unwrap();
        // Another client may have written in between.
        if read.resource_version() == json.resource_version() {
            return (json, read);
        }
    }
}

#[test]
fn protobuf_and_json_decode_to_the_same_objects() {
    let env = TestEnv::new("protobuf");
    let namespace = env.namespace();
    let node = env.node("n");
    env
        .apply(&json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "p", "labels": { "a": "1", "empty": "" }, "finalizers": ["quintet.dev/test", "example.com/other"],
                "annotations": { "quintet.dev/quoted": "\"quoted\"\n", "dj.dysproz.io/empty": "", "other": "x" },
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "ConfigMap", "name": "one", "uid": "1" },
                    { "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "name": "d", "uid": "2", "controller": true }] },
            "spec": { "nodeName": NOWHERE, "restartPolicy": "Never",
                "initContainers": [{ "name": "init", "image": "i", "restartPolicy": "Always" }],
                "containers": [{ "name": "ready", "image": "i" }, { "name": "ended", "image": "i", "restartPolicy": "Never",
                    "restartPolicyRules": [
                        { "action": "Restart", "exitCodes": { "operator": "In", "values": [1, 2] } },
                        { "action": "Restart", "exitCodes": { "operator": "NotIn", "values": [0, 3] } }] }] } }))
        .unwrap();
    env.apply(&json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "rejected" },
            "spec": { "nodeName": NOWHERE, "containers": [{ "name": "c", "image": "i" }] } }))
        .unwrap();
    // A failed pod has no grace period, so the deletion comes first.
    env.kubectl(&["delete", "pod", "p", "--wait=false", "--grace-period=7"]).unwrap();
    let status = json!({ "status": status() }).to_string();
    env.kubectl(&["patch", "pod", "p", "--subresource=status", "-p", &status]).unwrap();
    let status = json!({ "status": rejected() }).to_string();
    env.kubectl(&["patch", "pod", "rejected", "--subresource=status", "-p", &status]).unwrap();
    env.kubectl(&[
        "taint",
        "node",
        &node,
        "quintet.dev/empty:NoSchedule",
        "quintet.dev/full=value:PreferNoSchedule",
    ])
    .unwrap();
    env.kubectl(&["cordon", &node]).unwrap();

    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let client = connect(&env.cluster().kubeconfig()).await.unwrap();
        let path = format!("{}/p", PODS.path(namespace));
        let (pod, read) = both::<Pod>(&client, &path).await;
        assert_eq!(read, pod);
        // The decoded pod has the expected values.
        assert_eq!((pod.exits[0].code, pod.meta.grace_seconds, pod.meta.finalizers.len()), (-1, 7, 2));
        assert!(pod.unschedulable.is_some() && pod.meta.deleted.is_some() && pod.started.is_some());
        assert!(pod.meta.owner.is_some() && pod.node.as_deref() == Some(NOWHERE));
        // The sidecar's restarts do not count, and a rule restarts the container that ended.
        assert_eq!((pod.restarts, pod.restartable, pod.has_running_container), (9, true, true));

        let (pod, read) = both::<Pod>(&client, &format!("{}/rejected", PODS.path(namespace))).await;
        assert_eq!(read, pod);
        assert_eq!(pod.rejection.as_deref(), Some("OutOfcpu: Pod was rejected"));
        assert!(pod.finished.is_some());

        let (node, read) = both::<Node>(&client, &format!("/api/v1/nodes/{node}")).await;
        assert_eq!(read, node);
        assert!(node.unschedulable && node.taints.len() >= 2);

        // The Status for a missing object.
        let (code, of, answer) = get(&client, &format!("{path}-missing")).await;
        assert_eq!((code, &*of), (404, protobuf::CONTENT_TYPE));
        let answer: Value = serde_json::from_slice(&protobuf::status(&answer).unwrap()).unwrap();
        assert_eq!((&answer["code"], &answer["reason"]), (&json!(404), &json!("NotFound")));

        // A frame of a watch: its length, then the event.
        let watch =
            format!("{}?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dp", PODS.path(namespace));
        let (code, of, frames) = get(&client, &watch).await;
        assert!(code == 200 && of.starts_with(protobuf::CONTENT_TYPE), "{code} {of}");
        let (length, rest) = frames.split_first_chunk().unwrap();
        let frame = &rest[..usize::try_from(u32::from_be_bytes(*length)).unwrap()];
        let mut line = Vec::new();
        protobuf::event(frame, Pod::in_protobuf().unwrap(), &mut line).unwrap();
        let line: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!((&line["type"], &line["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("p")));
    });
    let without = json!({ "metadata": { "finalizers": null } }).to_string();
    env.kubectl(&["patch", "pod", "p", "--type=merge", "-p", &without]).unwrap();
}
