//! What is read of pods and nodes in protobuf is what the API server's JSON says of them.

use futures::AsyncReadExt as _;
use http::{Request, header};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use quintet_e2e::Arena;
use quintet_kit::object::Object;
use quintet_kit::protobuf;
use quintet_kit::resource::{NODES, PODS, Resource};
use quintet_kit::types::{Node, Pod};
use serde_json::{Value, json};
use tokio::runtime::Builder;

/// Everything that a status can say of what is read.
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

/// An object as it is read in either way, and the bytes that one of them came in.
async fn both<T: Object>(client: &Client, resource: &Resource, path: &str) -> (T, T, Vec<u8>) {
    let get = |accept| Request::get(path).header(header::ACCEPT, accept).body(Vec::new()).unwrap();
    let json = client.request_text(get("application/json")).await.unwrap();
    let mut encoded = Vec::new();
    client.request_stream(get(protobuf::ACCEPT)).await.unwrap().read_to_end(&mut encoded).await.unwrap();
    let mut read = Vec::new();
    protobuf::object(&encoded, protobuf::table(resource).unwrap(), &mut read).unwrap();
    (serde_json::from_str(&json).unwrap(), serde_json::from_slice(&read).unwrap(), encoded)
}

#[test]
fn what_is_read_in_protobuf_is_what_json_says() {
    let arena = Arena::new("protobuf");
    let namespace = arena.namespace();
    let node = arena.node("n");
    arena
        .apply(&json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "p", "labels": { "a": "1", "empty": "" }, "finalizers": ["quintet.dev/test", "example.com/other"],
                "annotations": { "quintet.dev/quoted": "\"quoted\"\n", "dj.dysproz.io/empty": "", "other": "x" },
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "ConfigMap", "name": "one", "uid": "1" },
                    { "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "name": "d", "uid": "2", "controller": true }] },
            "spec": { "schedulerName": "nobody", "containers": [{ "name": "c", "image": "i" }] } }))
        .unwrap();
    arena
        .kubectl(&[
            "patch",
            "pod",
            "p",
            "--subresource=status",
            "-p",
            &json!({ "status": status() }).to_string(),
        ])
        .unwrap();
    arena.kubectl(&["delete", "pod", "p", "--wait=false", "--grace-period=7"]).unwrap();
    arena
        .kubectl(&[
            "taint",
            "node",
            &node,
            "quintet.dev/empty:NoSchedule",
            "quintet.dev/full=value:NoExecute",
        ])
        .unwrap();
    arena.kubectl(&["cordon", &node]).unwrap();

    let kubeconfig = Kubeconfig::read_from(arena.cluster().kubeconfig()).unwrap();
    Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let path = format!("{}/p", PODS.path(namespace));
        let (pod, read, encoded) = both::<Pod>(&client, &PODS, &path).await;
        assert!(encoded.starts_with(b"k8s\0"), "it came as {}", String::from_utf8_lossy(&encoded));
        assert_eq!(read, pod);
        // It has what there is to read.
        assert!(pod.exits[0].code == -1 && pod.unschedulable.is_some() && pod.meta.deleted.is_some());
        assert!(pod.meta.owner.is_some() && pod.meta.finalizers.len() == 2 && pod.started.is_some());

        let (node, read, _) = both::<Node>(&client, &NODES, &format!("/api/v1/nodes/{node}")).await;
        assert_eq!(read, node);
        assert!(node.unschedulable && node.taints.len() >= 2);

        // And what the server says where there is nothing.
        let missing = Request::get(format!("{path}-missing")).header(header::ACCEPT, protobuf::ACCEPT);
        let answer = client.send(missing.body(kube::client::Body::empty()).unwrap()).await.unwrap();
        assert_eq!(answer.headers()[header::CONTENT_TYPE], protobuf::CONTENT_TYPE);
        // A watch is answered in it too.
        let watch = Request::get(format!("{}?watch=true&timeoutSeconds=1", PODS.path(namespace)));
        let watch = watch.header(header::ACCEPT, protobuf::ACCEPT);
        let answer = client.send(watch.body(kube::client::Body::empty()).unwrap()).await.unwrap();
        let said = answer.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
        assert!(said.starts_with(protobuf::CONTENT_TYPE), "{said}");
    });
    arena.kubectl(&["patch", "pod", "p", "-p", r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["quintet.dev/test","example.com/other"]}}"#]).unwrap();
}
