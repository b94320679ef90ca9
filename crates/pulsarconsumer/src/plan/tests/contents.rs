//! The contents of the Deployment.

use super::*;
use kube::CustomResourceExt as _;

#[test]
fn applies_the_tutorials_deployment_with_only_owned_fields() {
    let first = Scene::new(consumer()).plan(0);
    let labels = json!({"pulsarcrd": "sample-pulsarcrd"});
    let pod_labels = json!({
        "pulsarcrd": "sample-pulsarcrd", "quintet.dev/kind": "PulsarConsumer",
        "pulsar.pulsarconsumer.krvarma.com/uid": "me",
    });
    let container = json!({
        "name": "pulsarconsumer", "image": "krvarma/pulsarconsumer:latest", "imagePullPolicy": "Always",
        "env": [
            {"name": "PULSAR_SERVER", "value": "pulsar://localhost:6650"},
            {"name": "PULSAR_TOPIC", "value": "my-topic"},
            {"name": "PULSAR_SUBSCRIPTION_NAME", "value": "first-subscription"},
        ],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
        },
    });
    let pod = json!({
        "automountServiceAccountToken": false,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
    });
    let expected = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": "sample-deployment", "namespace": "ns", "labels": labels,
            "annotations": {"quintet.dev/applied": "v1-ahts4hfs3rttkbns-1"},
            "ownerReferences": [{
                "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
                "name": "sample", "uid": "me", "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "replicas": 1, "selector": {"matchLabels": labels},
            "strategy": {
                "type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
            },
            "template": {"metadata": {"labels": pod_labels}, "spec": pod},
        },
    });
    assert_eq!(applies(&first), Some((&expected, false)), "a first apply does not force");
}

#[test]
fn the_objects_labels_are_not_in_the_selector() {
    let mut labelled = consumer();
    labelled.metadata.labels =
        Some([("app".to_owned(), "x".to_owned()), (NAME_LABEL.to_owned(), "y".to_owned())].into());
    let (with, without) = (wanted(&labelled), wanted(&consumer()));
    assert_eq!(with["metadata"]["labels"], json!({"app": "x", NAME_LABEL: "sample-pulsarcrd"}));
    assert_eq!(with["spec"], without["spec"], "neither the selector nor the template changes");
}

#[test]
fn the_spec_overrides_the_managers_image() {
    let own = with(&json!({"image": "mine:1"}));
    assert_eq!(container(&own)["image"], "mine:1");
    assert_ne!(wanted(&own)["metadata"]["annotations"], wanted(&consumer())["metadata"]["annotations"]);
}

#[rstest]
#[case(json!({"serverAddress": "pulsar://other:6650"}))]
#[case(json!({"topic": "other"}))]
#[case(json!({"topics": ["my-topic", "other"]}))]
#[case(json!({"topicsPattern": "my-.*"}))]
#[case(json!({"subscriptionName": "other"}))]
#[case(json!({"replicas": 0}))]
#[case(json!({"image": "other"}))]
fn applies_every_field_of_the_spec(#[case] fields: Value) {
    let mut scene = Scene::settled(consumer());
    scene.consumer = with(&fields);
    let plan = scene.plan(0);
    assert!(applies(&plan).unwrap().1);
    assert_eq!(plan.status, None, "the status waits for the Deployment");
    assert!(Scene::settled(with(&fields)).plan(0).steps.is_empty());
}

fn variable(consumer: &PulsarConsumer, name: &str) -> Option<Value> {
    let env = container(consumer)["env"].as_array().unwrap().clone();
    env.into_iter().find(|one| one["name"] == name)
}

fn oauth2() -> Value {
    json!({"auth": {"oauth2": {"tokenURL": "https://issuer/token", "clientID": "app", "clientSecret": {"name": "s"},
        "audience": "urn:pulsar", "scope": "a b"}}})
}

#[rstest]
#[case(json!({"subscriptionType": "Key_Shared"}), "PULSAR_SUBSCRIPTION_TYPE", "Key_Shared")]
#[case(json!({"initialPosition": "Earliest"}), "PULSAR_INITIAL_POSITION", "Earliest")]
#[case(json!({"auth": {"tokenSecret": {"name": "s"}}}), "PULSAR_TOKEN_FILE", "/var/run/secrets/pulsar/token/token")]
#[case(oauth2(), "PULSAR_OAUTH2_TOKEN_URL", "https://issuer/token")]
#[case(oauth2(), "PULSAR_OAUTH2_CLIENT_ID", "app")]
#[case(oauth2(), "PULSAR_OAUTH2_CLIENT_SECRET_FILE", "/var/run/secrets/pulsar/oauth2/client-secret")]
#[case(oauth2(), "PULSAR_OAUTH2_AUDIENCE", "urn:pulsar")]
#[case(oauth2(), "PULSAR_OAUTH2_SCOPE", "a b")]
#[case(json!({"auth": {"tlsSecret": {"name": "s"}}}), "PULSAR_TLS_CERT_FILE", "/var/run/secrets/pulsar/tls/tls.crt")]
#[case(json!({"auth": {"tlsSecret": {"name": "s"}}}), "PULSAR_TLS_KEY_FILE", "/var/run/secrets/pulsar/tls/tls.key")]
#[case(json!({"tls": {"caSecret": {"name": "s"}}}), "PULSAR_TLS_CA_FILE", "/var/run/secrets/pulsar/ca/ca.crt")]
#[case(json!({"deadLetterPolicy": {"maxRedeliverCount": 3}}), "PULSAR_MAX_REDELIVER_COUNT", "3")]
#[case(json!({"deadLetterPolicy": {"maxRedeliverCount": 3}}), "PULSAR_DEAD_LETTER_TOPIC",
    "persistent://public/default/my-topic-first-subscription-DLQ")]
#[case(json!({"deadLetterPolicy": {"maxRedeliverCount": 3, "deadLetterTopic": "dead"}}), "PULSAR_DEAD_LETTER_TOPIC", "dead")]
#[case(json!({"deadLetterPolicy": {"maxRedeliverCount": 3}}), "PULSAR_DEAD_LETTER_SUBSCRIPTION", "first-subscription-dlq")]
#[case(json!({"deadLetterPolicy": {"maxRedeliverCount": 3, "initialSubscription": "s"}}), "PULSAR_DEAD_LETTER_SUBSCRIPTION", "s")]
#[case(json!({"deadLetterPolicy": retries()}), "PULSAR_RETRY_LETTER_TOPIC", "again")]
#[case(json!({"deadLetterPolicy": retries()}), "PULSAR_RETRY_DELAYS", "1s,1m")]
#[case(json!({"topics": ["a", "b/c/d"]}), "PULSAR_TOPICS", "a,b/c/d")]
#[case(json!({"topicsPattern": "a-.*"}), "PULSAR_TOPICS_PATTERN", "a-.*")]
#[case(json!({"ackTimeout": "30s"}), "PULSAR_ACK_TIMEOUT", "30s")]
#[case(json!({"listenerName": "external"}), "PULSAR_LISTENER_NAME", "external")]
#[case(json!({"readCompacted": true}), "PULSAR_READ_COMPACTED", "true")]
#[case(json!({"replicateSubscriptionState": true}), "PULSAR_REPLICATE_SUBSCRIPTION_STATE", "true")]
#[case(json!({"negativeAckRedeliveryDelay": "1m30s"}), "PULSAR_NEGATIVE_ACK_REDELIVERY_DELAY", "1m30s")]
#[case(json!({"receiverQueueSize": 10}), "PULSAR_RECEIVER_QUEUE_SIZE", "10")]
#[case(json!({"receiverQueueBytes": 1_048_576}), "PULSAR_RECEIVER_QUEUE_BYTES", "1048576")]
#[case(json!({"healthPort": 9000}), "PULSAR_HTTP_BIND_ADDRESS", "[::]:9000")]
fn sets_variables_for_further_fields(#[case] fields: Value, #[case] name: &str, #[case] value: &str) {
    assert_eq!(variable(&with(&fields), name), Some(json!({"name": name, "value": value})));
    assert_eq!(variable(&consumer(), name), None);
}

fn retries() -> Value {
    json!({"maxRedeliverCount": 3, "retryLetterTopic": "again", "retryDelays": ["1s", "1m"]})
}

#[rstest]
#[case(json!({"topics": ["a"]}), "PULSAR_TOPIC")]
#[case(json!({"topicsPattern": "a"}), "PULSAR_TOPIC")]
#[case(json!({"readCompacted": false}), "PULSAR_READ_COMPACTED")]
fn omits_variables_of_other_settings(#[case] fields: Value, #[case] name: &str) {
    assert_eq!(variable(&with(&fields), name), None);
}

#[test]
fn escapes_references_to_variables() {
    let topic = variable(&with(&json!({"topic": "a$(PULSAR_SERVER)"})), "PULSAR_TOPIC").unwrap();
    assert_eq!(topic["value"], "a$$(PULSAR_SERVER)");
}

#[test]
fn mounts_secrets_and_sets_no_variable_from_them() {
    let secured = with(&json!({
        "serverAddress": "pulsar+ssl://broker:6651",
        "auth": {"tokenSecret": {"name": "credentials", "key": "jwt"}, "tlsSecret": {"name": "identity"}},
        "tls": {"caSecret": {"name": "authorities"}},
    }));
    let pod = &wanted(&secured)["spec"]["template"]["spec"];
    let secret = |volume: &str, name: &str, key: &str, path: &str| json!({"name": volume, "secret": {"secretName": name, "items": [{"key": key, "path": path}]}});
    assert_eq!(pod["volumes"][0], secret("pulsar-token", "credentials", "jwt", "token"));
    let items = json!([{"key": "tls.crt", "path": "tls.crt"}, {"key": "tls.key", "path": "tls.key"}]);
    let identity = json!({"name": "pulsar-tls", "secret": {"secretName": "identity", "items": items}});
    assert_eq!(pod["volumes"][1], identity);
    assert_eq!(pod["volumes"][2], secret("pulsar-ca", "authorities", "ca.crt", "ca.crt"));
    assert_eq!(pod["volumes"].as_array().unwrap().len(), 3);
    let mounts = json!([
        {"name": "pulsar-token", "mountPath": "/var/run/secrets/pulsar/token", "readOnly": true},
        {"name": "pulsar-tls", "mountPath": "/var/run/secrets/pulsar/tls", "readOnly": true},
        {"name": "pulsar-ca", "mountPath": "/var/run/secrets/pulsar/ca", "readOnly": true},
    ]);
    assert_eq!(pod["containers"][0]["volumeMounts"], mounts);
    let issued = wanted(&with(&oauth2()));
    let volume = secret("pulsar-oauth2", "s", "client-secret", "client-secret");
    assert_eq!(issued["spec"]["template"]["spec"]["volumes"], json!([volume]));
    assert!(!pod["containers"][0]["env"].to_string().contains("secretKeyRef"));
}

#[test]
fn merges_the_template_over_the_pods() {
    let theirs = json!({
        "metadata": {"labels": {"team": "a"}, "annotations": {"x": "y"}},
        "spec": {
            "nodeSelector": {"disk": "ssd"},
            "terminationGracePeriodSeconds": 60,
            "securityContext": {"runAsUser": 1000},
            "initContainers": [{"name": "wait", "image": "busybox"}],
            "containers": [
                {"name": "pulsarconsumer", "resources": {"limits": {"cpu": "1"}}, "imagePullPolicy": "Never",
                    "env": [{"name": "A", "value": "b"}],
                    "volumeMounts": [{"name": "v", "mountPath": "/data"}]},
                {"name": "sidecar", "image": "proxy"},
            ],
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
    });
    let consumer = with(&json!({
        "template": theirs, "image": "mine", "auth": {"tokenSecret": {"name": "s"}},
    }));
    let template = &wanted(&consumer)["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    assert_eq!((&labels["team"], &labels["pulsarcrd"]), (&json!("a"), &json!("sample-pulsarcrd")));
    assert_eq!(template["metadata"]["annotations"], json!({"x": "y"}));
    let pod = &template["spec"];
    assert_eq!(
        (&pod["nodeSelector"], &pod["terminationGracePeriodSeconds"]),
        (&json!({"disk": "ssd"}), &json!(60))
    );
    let security = &pod["securityContext"];
    assert_eq!(*security, json!({"runAsUser": 1000}), "it replaces the default");
    assert_eq!(pod["initContainers"][0]["imagePullPolicy"], "Always");
    let names = |list: &Value| -> Vec<String> {
        list.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&pod["containers"]), ["pulsarconsumer", "sidecar"]);
    assert_eq!(names(&pod["volumes"]), ["pulsar-token", "v"]);
    let container = &pod["containers"][0];
    assert_eq!((&container["image"], &container["imagePullPolicy"]), (&json!("mine"), &json!("Never")));
    assert_eq!(pod["containers"][1]["imagePullPolicy"], "Always");
    assert_eq!(container["resources"]["limits"]["cpu"], "1");
    assert_eq!(names(&container["volumeMounts"]), ["pulsar-token", "v"]);
    assert_eq!(variable(&consumer, "A"), Some(json!({"name": "A", "value": "b"})));
    assert!(variable(&consumer, "PULSAR_TOPIC").is_some());
    let read_only = &container["securityContext"]["readOnlyRootFilesystem"];
    assert!(read_only.is_null(), "another image may write files");
}

#[rstest]
#[case::none(json!({}), json!(false), Value::Null)]
#[case::empty(json!({"serviceAccountName": ""}), json!(false), Value::Null)]
#[case::asked_for(json!({"automountServiceAccountToken": true}), json!(true), Value::Null)]
#[case::named(json!({"serviceAccountName": "x"}), Value::Null, json!("x"))]
#[case::named_without(json!({"serviceAccountName": "x", "automountServiceAccountToken": false}), json!(false), json!("x"))]
fn mounts_the_token_of_a_named_service_account_only(
    #[case] spec: Value,
    #[case] token: Value,
    #[case] account: Value,
) {
    let wanted = wanted(&with(&json!({"template": {"spec": spec}})));
    let pod = &wanted["spec"]["template"]["spec"];
    assert_eq!((&pod["automountServiceAccountToken"], &pod["serviceAccount"]), (&token, &account));
}

#[rstest]
#[case::the_tutorials_image(json!({}), None, None)]
#[case::the_managers_own(json!({}), Some(8080), Some(8080))]
#[case::another_image(json!({"image": "mine"}), Some(8080), None)]
#[case::another_image_with_probes(json!({"image": "mine", "healthPort": 9000}), None, Some(9000))]
#[case::switched_off(json!({"healthPort": 0}), Some(8080), None)]
fn probes_images_with_a_health_port(
    #[case] fields: Value,
    #[case] default: Option<u16>,
    #[case] port: Option<u16>,
) {
    let mut scene = Scene::new(with(&fields));
    scene.world.image = Arc::new(Image { name: IMAGE.into(), health_port: default, ..Image::default() });
    let plan = scene.plan(0);
    let container = applies(&plan).unwrap().0.pointer(CONTAINER).unwrap();
    assert_eq!(container["ports"][0]["containerPort"].as_u64(), port.map(u64::from));
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"]["path"].as_str(), port.map(|_| path));
    }
}

#[test]
fn names_no_user_if_the_cluster_chooses_it() {
    let mut scene = Scene::new(consumer());
    scene.world.image = Arc::new(Image { name: IMAGE.into(), any_user: true, ..Image::default() });
    let plan = scene.plan(0);
    let context = applies(&plan).unwrap().0.pointer("/spec/template/spec/securityContext").unwrap();
    assert_eq!(*context, json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}));
}

#[rstest]
#[case("busybox", "Always")]
#[case("registry:5000/busybox", "Always")]
#[case("busybox:latest", "Always")]
#[case("busybox:1.0", "IfNotPresent")]
#[case("busybox@sha256:0", "IfNotPresent")]
fn uses_the_default_pull_policy_of_kubernetes(#[case] image: &str, #[case] policy: &str) {
    assert_eq!(container(&with(&json!({"image": image})))["imagePullPolicy"], policy);
}

#[test]
fn exclusive_uses_recreate_and_removes_rolling_update() {
    let exclusive = with(&json!({"subscriptionType": "Exclusive"}));
    assert_eq!(wanted(&exclusive)["spec"]["strategy"], json!({"type": "Recreate"}));
    let mut scene = Scene::settled(consumer());
    scene.consumer = exclusive;
    let plan = scene.plan(0);
    let [first, second, _] = &plan.steps[..] else { panic!("{:?}", plan.steps) };
    let [Action::MergePatch { body, .. }] = &first[..] else { panic!("{first:?}") };
    assert_eq!(
        *body,
        json!({
            "metadata": {"uid": "d", "resourceVersion": "7"},
            "spec": {"strategy": {"type": "Recreate", "rollingUpdate": null}},
        })
    );
    assert!(matches!(second[..], [Action::Apply { .. }]));
}

#[test]
fn the_schema_has_the_tutorials_fields() {
    let crd = serde_json::to_value(PulsarConsumer::crd()).unwrap();
    let version = &crd["spec"]["versions"][0];
    let schema = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    assert_eq!(schema["required"], json!(["serverAddress", "subscriptionName"]));
    let replicas = &schema["properties"]["replicas"];
    assert_eq!((&replicas["default"], &replicas["minimum"]), (&json!(1), &json!(0.0)));
    assert_eq!(crd["spec"]["names"]["shortNames"], json!(["pcon"]));
    assert_eq!(
        version["subresources"]["scale"],
        json!({
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector"})
    );
    let columns = version["additionalPrinterColumns"].as_array().unwrap();
    let columns: Vec<&str> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(columns, ["Server", "Topic", "Subscription", "Replicas", "Ready", "Backlog", "Age"]);
}
