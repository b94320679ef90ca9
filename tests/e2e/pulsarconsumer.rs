//! PulsarConsumer: its Deployment and the conditions about its pods. Nodes are simulated; where a kubelet's
//! status matters, the test writes it.

use std::fs;

use quintet_e2e::shell::Shell;
use quintet_e2e::{TestEnv, condition, workspace};
use quintet_localcluster::{documents, image};
use serde_json::{Value, json};

use crate::daemonjob_samples::{promise, samples};

const SAMPLE: &str = "pulsarconsumer-sample-1";
const DEPLOYMENT: &str = "pulsarconsumer-sample-1-deployment";

/// A PulsarConsumer with these fields in addition to the tutorial's.
pub(crate) fn consumer(name: &str, fields: &Value) -> Value {
    let mut consumer = json!({
        "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": { "name": name },
        "spec": { "serverAddress": "pulsar://broker:6650", "topic": "t", "subscriptionName": "s", "replicas": 1 },
    });
    for (field, value) in fields.as_object().into_iter().flatten() {
        consumer["spec"][field] = value.clone();
    }
    consumer
}

/// Whether the desired number of consumers is ready for the current spec.
pub(crate) fn is_available(consumer: &Value) -> bool {
    condition(consumer, "Available").0 == "True"
        && condition(consumer, "Applied").0 == "True"
        && consumer["status"]["observedGeneration"] == consumer["metadata"]["generation"]
}

pub(crate) fn container(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

fn revision(deployment: &Value) -> String {
    deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn applies_observes_and_repairs_the_deployment() {
    let env = TestEnv::new("pc-life");
    let _manager = env.manager("pulsarconsumer");
    let watch = env.watch("pulsarconsumers", "");
    env.apply_sample("pulsarconsumer/pulsarconsumer-sample-1.yaml").unwrap();
    let consumer = env.wait_for("pulsarconsumer", SAMPLE, "the consumer is Available", |consumer| {
        consumer["status"]["replicas"] == 1 && condition(consumer, "Available").0 == "True"
    });
    assert_eq!(consumer["status"]["server"], "pulsar://localhost:6650");
    assert_eq!(consumer["status"]["topic"], "my-topic");
    assert_eq!(consumer["status"]["subscription"], "first-subscription");
    let writes = env.writes_at_rest();
    assert_eq!(writes.iter().filter(|write| write.contains("deployments")).count(), 1, "{writes:?}");
    // The Deployment, the status, the ready status, the condition Progressing; more if the Deployment controller takes
    // longer than 1 s.
    let is_early = |consumer: &Value| {
        consumer["status"]["conditions"].is_array()
            && consumer["status"]["replicas"].as_i64().unwrap_or(0) == 0
    };
    let early = watch.events().iter().filter(|(_, consumer)| is_early(consumer)).count();
    assert!(writes.len() <= 4 + early, "{early} statuses without a pod: {writes:?}");
    let deployment = env.get("deployment", DEPLOYMENT).unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["name"], "pulsarconsumer");
    assert_eq!(container["image"], image::name("pulsar-consumer"));
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
    let variables = container["env"].to_string();
    for name in ["PULSAR_SERVER", "PULSAR_TOPIC", "PULSAR_SUBSCRIPTION_NAME"] {
        assert!(variables.contains(name), "{variables}");
    }
    assert_eq!(
        deployment["spec"]["selector"]["matchLabels"],
        json!({ "pulsarcrd": format!("{SAMPLE}-pulsarcrd") })
    );

    // The manager repairs its fields and keeps those of others.
    let patch = r#"{"spec":{"template":{"spec":{"containers":[{"name":"pulsarconsumer","image":"evil"}]}}},
        "metadata":{"annotations":{"theirs":"kept"}}}"#;
    env.kubectl(&["patch", "deployment", DEPLOYMENT, "-p", patch]).unwrap();
    let repaired = env.wait_for("deployment", DEPLOYMENT, "the image is repaired", |deployment| {
        deployment["spec"]["template"]["spec"]["containers"][0]["image"] == image::name("pulsar-consumer")
    });
    assert_eq!(repaired["metadata"]["annotations"]["theirs"], "kept");

    // A deleted Deployment is created again.
    let uid = repaired["metadata"]["uid"].clone();
    env.kubectl(&["delete", "deployment", DEPLOYMENT, "--wait=false"]).unwrap();
    env.wait_for("deployment", DEPLOYMENT, "the Deployment exists again", |deployment| {
        deployment["metadata"]["uid"].is_string() && deployment["metadata"]["uid"] != uid
    });

    // The scale subresource works.
    env.kubectl(&["scale", "pulsarconsumer", SAMPLE, "--replicas=2"]).unwrap();
    env.wait_for("pulsarconsumer", SAMPLE, "two consumers are ready", |consumer| {
        consumer["status"]["replicas"] == 2 && condition(consumer, "Available").0 == "True"
    });
    env.kubectl(&["delete", "pulsarconsumer", SAMPLE, "--timeout=60s"]).unwrap();
    env.wait("the Deployment is gone", || env.get("deployment", DEPLOYMENT).is_none());
}

#[test]
fn never_changes_a_foreign_deployment() {
    let env = TestEnv::new("pc-foreign");
    let _manager = env.manager("pulsarconsumer");
    let theirs = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": DEPLOYMENT },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "app": "theirs" } },
            "template": { "metadata": { "labels": { "app": "theirs" } },
                "spec": { "containers": [{ "name": "theirs", "image": "theirs" }] } } } });
    env.apply(&theirs).unwrap();
    let before = env.get("deployment", DEPLOYMENT).unwrap()["spec"].clone();
    env.apply_sample("pulsarconsumer/pulsarconsumer-sample-1.yaml").unwrap();
    env.wait_for("pulsarconsumer", SAMPLE, "the status reports the foreign Deployment", |consumer| {
        condition(consumer, "Available") == ("False".into(), "NotOwned".into())
    });
    assert_eq!(env.get("deployment", DEPLOYMENT).unwrap()["spec"], before);
    assert!(env.writes().iter().all(|write| !write.contains("deployments")), "{:?}", env.writes());
}

#[test]
fn admission_rejects_bad_input() {
    let ours = |fields: &Value| {
        let mut container = json!({ "name": "pulsarconsumer" });
        container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({ "template": { "spec": { "containers": [container] } } })
    };
    let env = TestEnv::new("pc-bad");
    let cases = [
        (json!({ "serverAddress": "http://broker" }), "must look like pulsar://host:6650"),
        (json!({ "serverAddress": "pulsar://broker:6650:1" }), "must look like pulsar://host:6650"),
        (json!({ "serverAddress": "" }), "spec.serverAddress"),
        (json!({ "serverAddress": "pulsar://[fe80::1%eth0]:6650" }), "must look like pulsar://host:6650"),
        (json!({ "serverAddress": "pulsar://[10.0.0.1]" }), "must look like pulsar://host:6650"),
        (json!({ "topic": "a/b" }), "topic must be my-topic, tenant/namespace/my-topic or"),
        (json!({ "topic": "kafka://a/b/c" }), "topic must be my-topic"),
        (json!({ "topic": "a b" }), "topic must be my-topic"),
        (json!({ "topic": "a\u{a0}b" }), "topic must be my-topic"),
        (json!({ "topic": "a$b/c/d" }), "topic must be my-topic"),
        (
            json!({ "topic": "t", "deadLetterPolicy": { "maxRedeliverCount": 3, "deadLetterTopic": "t" } }),
            "deadLetterTopic must be another topic",
        ),
        (
            json!({ "topic": "t", "deadLetterPolicy": {
                "maxRedeliverCount": 3, "deadLetterTopic": "persistent://public/default/t" } }),
            "deadLetterTopic must be another topic",
        ),
        (
            json!({ "topic": "public/default/t", "deadLetterPolicy": { "maxRedeliverCount": 3, "deadLetterTopic": "t" } }),
            "deadLetterTopic must be another topic",
        ),
        (
            json!({ "topic": "persistent://a/b/c", "deadLetterPolicy": {
                "maxRedeliverCount": 3, "deadLetterTopic": "a/b/c" } }),
            "deadLetterTopic must be another topic",
        ),
        (
            json!({ "subscriptionName": "my sub", "deadLetterPolicy": { "maxRedeliverCount": 3 } }),
            "deadLetterPolicy needs a deadLetterTopic here",
        ),
        (json!({ "topic": "" }), "spec.topic"),
        (json!({ "topic": null }), "set exactly one of topic, topics and topicsPattern"),
        (json!({ "topics": ["a"] }), "set exactly one of topic, topics and topicsPattern"),
        (json!({ "topic": null, "topics": ["a,b"] }), "without a comma"),
        (
            json!({ "topic": null, "topics": ["a", "public/default/a"] }),
            "topics must have each topic only once",
        ),
        (json!({ "topic": null, "topicsPattern": "a/b" }), "topicsPattern must be REGEX"),
        (json!({ "topic": null, "topicsPattern": "a(" }), "topicsPattern must end with a regular expression"),
        (
            json!({ "topic": null, "topicsPattern": "a", "adminURL": "http://b", "autoscaling": { "maxReplicas": 1 } }),
            "KEDA reads the backlog of named topics only",
        ),
        (
            json!({ "topic": null, "topics": ["a", "b"], "deadLetterPolicy": { "maxRedeliverCount": 3 } }),
            "deadLetterPolicy needs a deadLetterTopic for several topics",
        ),
        (
            json!({ "topic": null, "topics": ["a", "b"], "deadLetterPolicy": {
                "maxRedeliverCount": 3, "deadLetterTopic": "public/default/b" } }),
            "deadLetterTopic must be another topic",
        ),
        (
            json!({ "deadLetterPolicy": { "maxRedeliverCount": 3, "retryLetterTopic": "public/default/t" } }),
            "retryLetterTopic must be another topic than the one that is consumed",
        ),
        (
            json!({ "deadLetterPolicy": { "maxRedeliverCount": 3, "deadLetterTopic": "d", "retryLetterTopic": "d" } }),
            "retryLetterTopic must be another topic than deadLetterTopic",
        ),
        (
            json!({ "deadLetterPolicy": { "maxRedeliverCount": 3, "retryDelays": ["1s"] } }),
            "retryDelays needs retryLetterTopic",
        ),
        (
            json!({ "deadLetterPolicy": { "maxRedeliverCount": 3, "retryLetterTopic": "r", "retryDelays": ["0s"] } }),
            "each of retryDelays must be a positive duration",
        ),
        (json!({ "ackTimeout": "500ms" }), "ackTimeout must be a duration of at least 1s"),
        (
            json!({ "ackTimeout": "1s", "subscriptionType": "Failover" }),
            "ackTimeout needs the subscriptionType Shared",
        ),
        (
            json!({ "ackTimeout": "1s", "deadLetterPolicy": { "maxRedeliverCount": 3 } }),
            "ackTimeout and deadLetterPolicy exclude each other",
        ),
        (
            json!({ "deadLetterPolicy": { "maxRedeliverCount": 3, "deadLetterTopic": "non-persistent://a/b/c" } }),
            "deadLetterTopic must be",
        ),
        (json!({ "readCompacted": true }), "readCompacted needs the subscriptionType Exclusive or Failover"),
        (json!({ "subscriptionName": "" }), "spec.subscriptionName"),
        (json!({ "replicas": -1 }), "spec.replicas"),
        (
            json!({ "subscriptionType": "Exclusive", "replicas": 2 }),
            "an Exclusive subscription has one consumer",
        ),
        (
            json!({ "subscriptionType": "Exclusive", "adminURL": "http://b", "autoscaling": { "maxReplicas": 1 } }),
            "remove autoscaling",
        ),
        (json!({ "subscriptionType": "Several" }), "spec.subscriptionType"),
        (json!({ "tls": { "caSecret": { "name": "x" } } }), "tls needs an encrypted serverAddress"),
        (
            json!({ "auth": { "tlsSecret": { "name": "x" } } }),
            "auth.tlsSecret needs an encrypted serverAddress",
        ),
        (json!({ "auth": {} }), "auth needs tokenSecret, oauth2 or tlsSecret"),
        (
            json!({ "auth": { "tokenSecret": { "name": "x" }, "oauth2": { "tokenURL": "https://i/t", "clientID": "c",
                "clientSecret": { "name": "x" } } } }),
            "auth must not have both tokenSecret and oauth2",
        ),
        (
            json!({ "auth": { "oauth2": { "tokenURL": "https://user:password@i/t", "clientID": "c", "clientSecret": { "name": "x" } } } }),
            "tokenURL must look like",
        ),
        (
            json!({ "adminURL": "http://b", "adminTLS": { "caSecret": { "name": "x" } } }),
            "adminTLS needs an encrypted adminURL",
        ),
        (json!({ "autoscaling": { "maxReplicas": 3 } }), "autoscaling needs adminURL"),
        (
            json!({ "adminURL": "http://b", "autoscaling": { "maxReplicas": 3, "minReplicas": 4 } }),
            "minReplicas must not be above maxReplicas",
        ),
        (json!({ "adminURL": "http://user:secret@b" }), "adminURL must look like http://host:8080"),
        (json!({ "adminURL": "ftp://b" }), "adminURL must look like http://host:8080"),
        (json!({ "backlogPollSeconds": 9 }), "spec.backlogPollSeconds"),
        (
            json!({ "subscriptionType": "Failover", "deadLetterPolicy": { "maxRedeliverCount": 3 } }),
            "deadLetterPolicy needs the subscriptionType Shared or Key_Shared",
        ),
        (json!({ "negativeAckRedeliveryDelay": "soon" }), "must be a positive duration such as 500ms"),
        (json!({ "negativeAckRedeliveryDelay": "1.5s" }), "must be a positive duration such as 500ms"),
        (json!({ "negativeAckRedeliveryDelay": "0s" }), "must be a positive duration"),
        (ours(&json!({ "env": [{ "name": "PULSAR_TOPIC", "value": "x" }] })), "that begin with PULSAR_"),
        (ours(&json!({ "env": [{ "name": "A" }, { "name": "A" }] })), "Duplicate value"),
        (
            ours(&json!({ "envFrom": [{ "prefix": "PULSAR_", "configMapRef": { "name": "x" } }] })),
            "that begin with PULSAR_",
        ),
        (ours(&json!({ "envFrom": [{ "secretRef": { "name": "x" } }] })), "envFrom without a prefix"),
        (ours(&json!({ "args": ["--topic=x"] })), "template must not set command, args"),
        (ours(&json!({ "command": ["sh"] })), "template must not set command, args"),
        (ours(&json!({ "image": "x" })), "whose image is spec.image"),
        (ours(&json!({ "restartPolicy": "Never" })), "restartPolicy must be Always"),
        (
            json!({ "template": { "spec": { "containers": [{ "name": "pulsar-consumer" }] } } }),
            "every container but pulsarconsumer",
        ),
        (json!({ "template": { "spec": { "serviceAccount": "x" } } }), "set serviceAccountName"),
        (ours(&json!({ "ports": [{ "name": "health", "containerPort": 1 }] })), "set healthPort to 0 first"),
        (
            ours(&json!({ "readinessProbe": { "exec": { "command": ["true"] } } })),
            "set healthPort to 0 first",
        ),
        (
            json!({ "template": { "metadata": { "labels": { "pulsarcrd": "x" } } } }),
            "template must not set the labels",
        ),
        (
            json!({ "image": "x", "template": { "spec": { "containers": [{ "name": "pulsarconsumer",
                "env": [{ "name": "PULSAR_SUBSCRIPTION_TYPE", "value": "Failover" }] }] } } }),
            "PULSAR_SUBSCRIPTION_TYPE: set subscriptionType",
        ),
        (json!({ "template": { "spec": { "restartPolicy": "Never" } } }), "restartPolicy must be Always"),
        (json!({ "serverAddress": "pulsar://broker:0" }), "must look like pulsar://host:6650"),
        (json!({ "adminURL": "http://b:999999" }), "adminURL must look like http://host:8080"),
        (json!({ "subscriptionName": " " }), "subscriptionName must have no slash"),
        (json!({ "auth": { "tokenSecret": { "name": "../x" } } }), "a Secret's name has lower-case letters"),
        (
            json!({ "adminURL": "http://b", "topic": "non-persistent://a/b/c", "autoscaling": { "maxReplicas": 1 } }),
            "autoscaling needs a persistent topic",
        ),
    ];
    for (fields, words) in cases {
        let text = env.apply(&consumer("bad", &fields)).expect_err(&fields.to_string());
        assert!(text.contains(words), "{fields}: {text}");
    }
    let empty = json!({ "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": { "name": "bad" }, "spec": {} });
    let text = env.apply(&empty).unwrap_err();
    for field in ["spec.serverAddress", "spec.subscriptionName"] {
        assert!(text.contains(field), "{text}");
    }
    // Similar fields that are valid.
    for fields in [
        json!({ "serverAddress": "pulsar://[::1]:6650,broker,[2001:db8:1:2:3:4:5:6],[::ffff:10.0.0.1]:1" }),
        json!({ "topic": "non-persistent://public/default/t", "deadLetterPolicy": {
            "maxRedeliverCount": 3, "deadLetterTopic": "t" } }),
        json!({ "topic": "a/b/t", "deadLetterPolicy": { "maxRedeliverCount": 3, "deadLetterTopic": "t" } }),
        json!({ "topic": null, "topics": ["a", "b/c/a"], "deadLetterPolicy": {
            "maxRedeliverCount": 3, "deadLetterTopic": "d", "retryLetterTopic": "r", "retryDelays": ["1s", "1s"] } }),
        json!({ "topic": null, "topicsPattern": "persistent://a/b/c|d{1,2}", "readCompacted": true,
            "subscriptionType": "Exclusive", "listenerName": "external", "replicateSubscriptionState": true }),
        json!({ "ackTimeout": "1000ms" }),
        json!({ "ackTimeout": "1s", "deadLetterPolicy": { "maxRedeliverCount": 3 }, "image": "x" }),
        json!({ "image": "x", "template": { "spec": { "containers": [{ "name": "pulsarconsumer",
            "livenessProbe": { "exec": { "command": ["true"] } } }] } } }),
        json!({ "template": { "spec": { "containers": [{ "name": "other", "image": "x",
            "env": [{ "name": "PULSAR_TOPIC", "value": "x" }] }] } } }),
    ] {
        env.apply(&consumer("good", &fields)).unwrap();
    }
    env.apply(&consumer(&"n".repeat(53), &json!({}))).unwrap();
    let text = env.apply(&consumer(&"n".repeat(54), &json!({}))).unwrap_err();
    assert!(text.contains("use at most 53 characters"), "{text}");
}

#[test]
fn only_an_exclusive_subscription_rejects_a_scale() {
    let env = TestEnv::new("pc-scale");
    env.apply(&consumer("one", &json!({ "subscriptionType": "Exclusive", "replicas": 0 }))).unwrap();
    env.kubectl(&["scale", "pcon", "one", "--replicas=1"]).unwrap();
    let text = env.kubectl(&["scale", "pcon", "one", "--replicas=2"]).unwrap_err();
    assert!(text.contains("an Exclusive subscription has one consumer"), "{text}");
    let everything = json!({
        "serverAddress": "pulsar+ssl://broker:6651", "tls": { "caSecret": { "name": "ca" } },
        "adminURL": "https://broker:8443", "autoscaling": { "maxReplicas": 3 },
        "deadLetterPolicy": { "maxRedeliverCount": 3 }, "subscriptionType": "Key_Shared",
    });
    env.apply(&consumer("many", &everything)).unwrap();
    env.kubectl(&["scale", "pcon", "many", "--replicas=2"]).unwrap();
}

/// The API server serves here as an `https` admin API that requires a token.
#[test]
fn verifies_the_admin_api_with_the_ca_in_admin_tls() {
    let env = TestEnv::new("pc-admin-tls");
    let _manager = env.manager("pulsarconsumer");
    env.kubectl(&["create", "role", "secrets", "--verb=get", "--resource=secrets"]).unwrap();
    let account = "--serviceaccount=quintet-system:quintet";
    env.kubectl(&["create", "rolebinding", "secrets", "--role=secrets", account]).unwrap();
    let view = env.kubectl(&["config", "view", "--raw", "--minify", "--flatten", "-o", "json"]).unwrap();
    let view: Value = serde_json::from_str(&view).unwrap();
    let cluster = &view["clusters"][0]["cluster"];
    let mut fields = json!({ "adminURL": cluster["server"], "backlogPollSeconds": 10 });
    env.apply(&consumer("one", &fields)).unwrap();
    env.wait_for("pulsarconsumer", "one", "the certificate is not trusted", |one| {
        one["status"]["conditions"].to_string().contains("set adminTLS.caSecret to its CA")
    });
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "ca" },
        "data": { "ca.crt": cluster["certificate-authority-data"] } });
    env.apply(&secret).unwrap();
    fields["adminTLS"] = json!({ "caSecret": { "name": "ca" } });
    env.apply(&consumer("one", &fields)).unwrap();
    env.wait_for("pulsarconsumer", "one", "the API server asks for a token", |one| {
        condition(one, "BacklogObserved").1 == "AdminRefused"
    });
}

/// A Deployment that the tutorial's operator made for a PulsarConsumer.
fn tutorials_deployment(name: &str, uid: &Value) -> Value {
    let labels = json!({ "app": "pulsarconsumer", "pulsarcrd": format!("{name}-pulsarcrd") });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": format!("{name}-deployment"), "labels": labels,
            "ownerReferences": [{ "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
                "name": name, "uid": uid, "controller": true, "blockOwnerDeletion": true }],
        },
        "spec": {
            "replicas": 1, "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "pulsarconsumer", "image": "krvarma/pulsarconsumer:latest" }] },
            },
        },
    })
}

#[test]
fn replaces_a_deployment_of_the_tutorial_when_it_is_deleted() {
    let env = TestEnv::new("pc-tutorial");
    env.apply(&consumer("one", &json!({}))).unwrap();
    let uid = env.get("pulsarconsumer", "one").unwrap()["metadata"]["uid"].clone();
    let file = env.kube().log(&format!("{}.json", env.namespace()));
    fs::write(&file, tutorials_deployment("one", &uid).to_string()).unwrap();
    env.kubectl(&["create", "--field-manager=manager", "-f", file.to_str().unwrap()]).unwrap();
    let before = env.get("deployment", "one-deployment").unwrap()["spec"].clone();
    let _manager = env.manager("pulsarconsumer");
    let consumer = env.wait_for("pulsarconsumer", "one", "it reports a foreign Deployment", |consumer| {
        condition(consumer, "Applied") == ("False".into(), "NotOwned".into())
    });
    let words = consumer["status"]["conditions"].to_string();
    assert!(words.contains("kubectl delete deployments one-deployment"), "{words}");
    assert_eq!(env.get("deployment", "one-deployment").unwrap()["spec"], before);
    let page = workspace().join("docs/pulsarconsumer.md");
    let delete = documents::command(&page, "kubectl delete deployment NAME-deployment", "");
    Shell::new(env.cluster(), env.namespace()).stdout(&delete.replace("NAME", "one"));
    env.wait_for("pulsarconsumer", "one", "the manager's Deployment is available", is_available);
    let deployment = env.get("deployment", "one-deployment").unwrap();
    assert_eq!(deployment["spec"]["selector"]["matchLabels"], json!({ "pulsarcrd": "one-pulsarcrd" }));
}

#[test]
fn adds_and_removes_fields_and_repairs_those_of_others() {
    let env = TestEnv::new("pc-fields");
    let _manager = env.manager("pulsarconsumer");
    env.kubectl(&["create", "serviceaccount", "special"]).unwrap();
    let everything = json!({
        "subscriptionType": "Exclusive",
        "auth": { "tokenSecret": { "name": "credentials" } },
        "template": { "metadata": { "annotations": { "x": "y" } }, "spec": {
            "serviceAccountName": "special", "tolerations": [{ "key": "k", "operator": "Exists" }],
            "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
                { "weight": 1, "preference": { "matchExpressions": [{ "key": "a", "operator": "Exists" }] } }] } },
            "volumes": [{ "name": "data", "emptyDir": {} }],
            "containers": [
                { "name": "pulsarconsumer", "env": [{ "name": "A", "value": "b" }],
                    "resources": { "requests": { "cpu": "0.25", "memory": "1024Ki" } },
                    "volumeMounts": [{ "name": "data", "mountPath": "/data" }] },
                { "name": "sidecar", "image": "x" },
            ] } },
    });
    env.apply(&consumer("one", &everything)).unwrap();
    env.wait_for("pulsarconsumer", "one", "the consumer is available", is_available);
    let deployment = env.get("deployment", "one-deployment").unwrap();
    assert_eq!(deployment["spec"]["strategy"]["type"], "Recreate");
    let pod = &deployment["spec"]["template"]["spec"];
    assert!(pod["automountServiceAccountToken"].is_null());
    assert_eq!(
        (pod["containers"].as_array().unwrap().len(), &pod["volumes"][1]["name"]),
        (2, &json!("data"))
    );
    let before = env.writes().len();

    // All fields are removed again, Recreate too.
    env.apply(&consumer("one", &json!({ "topic": "other" }))).unwrap();
    env.wait_for("pulsarconsumer", "one", "the consumer is available again", is_available);
    let deployment = env.wait_for("deployment", "one-deployment", "Recreate is over", |one| {
        one["spec"]["strategy"]["type"] == "RollingUpdate"
    });
    let spec = &deployment["spec"]["template"]["spec"];
    assert!(spec["serviceAccountName"].is_null() && spec["serviceAccount"].is_null(), "{spec:#}");
    assert_eq!(spec["automountServiceAccountToken"], false, "{spec:#}");
    assert!(
        spec["volumes"].is_null() && spec["tolerations"].is_null() && spec["affinity"].is_null(),
        "{spec:#}"
    );
    let container = container(&deployment);
    assert_eq!(spec["containers"].as_array().unwrap().len(), 1);
    assert!(container["resources"] == json!({}) && container["volumeMounts"].is_null());
    let variables: Vec<&str> =
        container["env"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    let always = ["PULSAR_SERVER", "PULSAR_TOPIC", "PULSAR_SUBSCRIPTION_NAME"];
    assert_eq!(variables, [&always[..], &["PULSAR_HTTP_BIND_ADDRESS", "PULSAR_CONSUMER_NAME"]].concat());
    assert_eq!(deployment["spec"]["strategy"]["type"], "RollingUpdate");
    let writes = env.writes().split_off(before);
    let is_done = |write: &&String| write.starts_with("patch deployments") && write.ends_with(" 200");
    assert_eq!(writes.iter().filter(is_done).count(), 2, "the template, then the strategy: {writes:?}");

    // Back to Exclusive, although another client owns a field of the rolling update.
    let other = ["patch", "deployment", "one-deployment", "--field-manager=other", "--type=merge", "-p"];
    let changes = r#"{"spec":{"replicas":5,"strategy":{"rollingUpdate":{"maxSurge":3}}}}"#;
    env.kubectl(&[&other[..], &[changes]].concat()).unwrap();
    env.wait_for("deployment", "one-deployment", "the other client's changes are reverted", |one| {
        one["spec"]["replicas"] == 1 && one["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == "25%"
    });
    env.apply(&consumer("one", &json!({ "subscriptionType": "Exclusive" }))).unwrap();
    env.wait_for("deployment", "one-deployment", "the strategy is Recreate", |one| {
        one["spec"]["strategy"] == json!({ "type": "Recreate" })
    });
    env.wait_for("pulsarconsumer", "one", "the consumer is available again", is_available);
}

#[test]
fn recreates_all_pods_for_another_subscription_type() {
    let env = TestEnv::new("pc-type");
    let _manager = env.manager("pulsarconsumer");
    env.apply(&consumer("one", &json!({ "replicas": 2 }))).unwrap();
    env.wait_for("pulsarconsumer", "one", "the consumers are available", is_available);
    let before = env.writes().len();
    env.apply(&consumer("one", &json!({ "replicas": 2, "subscriptionType": "Failover" }))).unwrap();
    let deployment = env.wait_for("deployment", "one-deployment", "the rollout is over", |one| {
        one["spec"]["strategy"]["type"] == "RollingUpdate"
            && container(one)["env"].to_string().contains("Failover")
    });
    assert_eq!(deployment["status"]["updatedReplicas"], 2);
    assert_eq!(revision(&deployment), "2", "the strategy alone makes no revision");
    let writes = env.writes().split_off(before);
    let is_done = |write: &&String| write.starts_with("patch deployments") && write.ends_with(" 200");
    assert_eq!(writes.iter().filter(is_done).count(), 3, "Recreate twice, then the strategy: {writes:?}");
    let one = env.wait_for("pulsarconsumer", "one", "the consumers are ready", |one| {
        condition(one, "Ready") == ("True".into(), "ConsumersReady".into())
            && condition(one, "Progressing") == ("True".into(), "NewReplicaSetAvailable".into())
    });
    assert_eq!(one["status"]["updatedReplicas"], 2);
}

#[test]
fn every_sample_ends_as_its_comment_states() {
    let env = TestEnv::new("pc-samples");
    let _manager = env.manager("pulsarconsumer");
    for file in samples("pulsarconsumer") {
        let path = file.display().to_string();
        env.kubectl(&["apply", "-f", &path]).unwrap_or_else(|error| panic!("{path}: {error}"));
        let text = fs::read_to_string(&file).unwrap();
        let (_, manifest) = text.split_once("kind: PulsarConsumer").unwrap();
        let name = manifest.lines().find_map(|line| line.strip_prefix("  name: ")).unwrap();
        let (type_, reason) = promise(&text, "Available (ConsumersReady)");
        env.wait_for("pulsarconsumer", name, &format!("{path} is {type_} ({reason})"), |consumer| {
            condition(consumer, &type_).1 == reason
        });
    }
}

/// The status that a kubelet would write for a container.
pub(crate) fn pod_status(phase: &str, state: &Value) -> Value {
    json!({ "status": { "phase": phase, "containerStatuses": [{
        "name": "pulsarconsumer", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state,
    }] } })
}

#[test]
fn reports_why_a_pod_does_not_become_ready() {
    let env = TestEnv::new("pc-why");
    let _manager = env.manager("pulsarconsumer");
    let template = json!({ "metadata": { "annotations": { "kwok.quintet.dev/start": "never" } } });
    let waiting = |reason: &str| json!({ "waiting": { "reason": reason } });
    let running = json!({ "running": { "startedAt": "2026-01-01T00:00:00Z" } });
    let crashed = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
    let cases = [
        ("secret", "Pending", waiting("ContainerCreating"), "ConsumersNotReady"),
        ("broker", "Running", running, "ConsumersNotReady"),
        ("image", "Pending", waiting("ImagePullBackOff"), "ImagePullFailed"),
        ("crash", "Running", crashed, "ConsumerFailed"),
    ];
    for (name, ..) in &cases {
        let fields = json!({ "healthPort": 8080, "template": template, "auth": { "tokenSecret": { "name": "credentials" } } });
        env.apply(&consumer(name, &fields)).unwrap();
    }
    for (name, phase, state, _) in &cases {
        let label = format!("pulsarcrd={name}-pulsarcrd");
        env.wait("the pod is bound", || {
            env.list("pods", &label).first().is_some_and(|pod| pod["spec"]["nodeName"].is_string())
        });
        let pod = env.list("pods", &label).remove(0);
        let mut status = pod_status(phase, state);
        if *name == "crash" {
            status["status"]["containerStatuses"][0]["lastState"] = json!({ "terminated": {
                "exitCode": 1, "reason": "Error", "message": "Server: x\nthe broker refuses the token\n" } });
        }
        env.patch("pod/status", pod["metadata"]["name"].as_str().unwrap(), &status);
    }
    for (name, .., reason) in cases {
        let consumer = env.wait_for("pulsarconsumer", name, reason, |consumer| {
            condition(consumer, "Available") == ("False".into(), reason.into())
                && consumer["status"]["conditions"].to_string().contains("pod ")
        });
        let text = consumer["status"]["conditions"].to_string();
        let words = match name {
            "crash" => "exit code 1; last output: the broker refuses the token",
            "image" => "cannot pull an image",
            _ => "run: kubectl describe pod",
        };
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn reports_a_template_that_the_api_server_rejects() {
    let env = TestEnv::new("pc-refused");
    let _manager = env.manager("pulsarconsumer");
    let container = json!({ "name": "pulsarconsumer", "resources": { "limits": { "memory": "64MB" } } });
    env.apply(&consumer("one", &json!({ "template": { "spec": { "containers": [container] } } }))).unwrap();
    let refused = env.wait_for("pulsarconsumer", "one", "the quantity is rejected", |one| {
        condition(one, "Applied") == ("False".into(), "Refused".into())
    });
    assert!(refused["status"]["conditions"].to_string().contains("quantit"), "{refused:#}");
    env.apply(&consumer("one", &json!({}))).unwrap();
    env.wait_for("pulsarconsumer", "one", "the consumer is available", is_available);
}

/// Reloader replaces pods when a Secret changes: it adds a variable with the Secret's hash to the container.
#[test]
fn keeps_the_variable_of_reloader() {
    let env = TestEnv::new("pc-reloader");
    let _manager = env.manager("pulsarconsumer");
    let annotations = json!({ "secret.reloader.stakater.com/auto": "true" });
    env.apply(&consumer("one", &json!({ "template": { "metadata": { "annotations": annotations } } })))
        .unwrap();
    env.wait_for("pulsarconsumer", "one", "the consumer is available", is_available);
    let deployment = env.get("deployment", "one-deployment").unwrap();
    assert_eq!(deployment["spec"]["template"]["metadata"]["annotations"], annotations);
    let patch = r#"{"spec":{"template":{"spec":{"containers":[{"name":"pulsarconsumer",
        "env":[{"name":"STAKATER_CREDENTIALS_SECRET","value":"1f3a"}]}]}}}}"#;
    env.kubectl(&["patch", "deployment", "one-deployment", "--field-manager=Reloader", "-p", patch]).unwrap();
    env.wait_for("deployment", "one-deployment", "the pods are replaced", |one| {
        revision(one) == "2" && one["status"]["updatedReplicas"] == 1 && one["status"]["replicas"] == 1
    });
    env.writes_at_rest();
    env.wait_for("pulsarconsumer", "one", "the consumer is available", is_available);
    let deployment = env.get("deployment", "one-deployment").unwrap();
    assert!(container(&deployment)["env"].to_string().contains("STAKATER_CREDENTIALS_SECRET"));
    assert_eq!(revision(&deployment), "2");
}

/// Two managers may both write. They apply the same fields and do not undo each other's writes.
#[test]
fn two_active_managers_do_not_conflict() {
    let env = TestEnv::new("pc-two");
    let _first = env.manager_with("first", "pulsarconsumer", &[]);
    let _second = env.manager_with("second", "pulsarconsumer", &[]);
    let names: Vec<String> = (0..5).map(|number| format!("c{number}")).collect();
    for name in &names {
        env.apply(&consumer(name, &json!({}))).unwrap();
    }
    let settled = |replicas: i64| {
        for name in &names {
            env.wait_for("pulsarconsumer", name, "the consumer is available", |consumer| {
                is_available(consumer) && consumer["status"]["replicas"] == replicas
            });
        }
    };
    settled(1);
    for name in &names {
        env.kubectl(&["scale", "pcon", name, "--replicas=3"]).unwrap();
    }
    settled(3);
    let before = env.writes_at_rest();
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(env.writes(), before, "neither manager writes");
    for name in &names {
        let deployment = env.get("deployment", &format!("{name}-deployment")).unwrap();
        // Created, and scaled once.
        assert_eq!(deployment["metadata"]["generation"], 2, "{deployment:#}");
    }
}
