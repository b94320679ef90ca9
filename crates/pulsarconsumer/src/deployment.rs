//! The applied Deployment of a PulsarConsumer: only the fields that this kind owns.

use kube::Resource as _;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::core_types::Deployment;
use quintet_runtime::model::object::controller_reference;
use quintet_runtime::model::resource::{DEPLOYMENTS, Resource};
use serde_json::{Map, Value, json};

use crate::api::{ImagePullPolicy, PulsarConsumer, PulsarConsumerSpec, SecretKey, SubscriptionType};
use crate::topic::Topic;

/// The suffix of the Deployment's name, as in the tutorial.
pub const DEPLOYMENT_SUFFIX: &str = "-deployment";
/// Label: the object's name and `-pulsarcrd`, as in the tutorial. Only this label selects the pods, because
/// the labels of the object may change, and a Deployment's selector may not.
pub const NAME_LABEL: &str = "pulsarcrd";
/// Label of the pods: the PulsarConsumer's UID.
pub const UID_LABEL: &str = "pulsar.pulsarconsumer.krvarma.com/uid";
/// The name of the container, as in the tutorial.
pub const CONTAINER: &str = "pulsarconsumer";
/// The volume of the token, and its mount path.
pub const TOKEN: (&str, &str) = ("pulsar-token", "/var/run/secrets/pulsar/token");
/// The volume of the CA certificates, and its mount path.
pub const AUTHORITIES: (&str, &str) = ("pulsar-ca", "/var/run/secrets/pulsar/ca");
/// The variable of the subscription type.
const SUBSCRIPTION_TYPE: &str = "PULSAR_SUBSCRIPTION_TYPE";
/// The default user and group of the consumer, as in images without users.
const USER: i64 = 65_532;

/// The default image of consumers, and its health port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The image.
    pub name: String,
    /// The port of its /healthz and /readyz; None without probes.
    pub health_port: Option<u16>,
}

/// The name of the Deployment, as in the tutorial.
pub fn deployment_name(consumer: &PulsarConsumer) -> String {
    format!("{}{DEPLOYMENT_SUFFIX}", name_of(consumer))
}

/// The value of [`NAME_LABEL`].
pub fn label_value(consumer: &PulsarConsumer) -> String {
    format!("{}-pulsarcrd", name_of(consumer))
}

fn name_of(consumer: &PulsarConsumer) -> &str {
    consumer.meta().name.as_deref().unwrap_or_default()
}

/// The key in a Secret for a volume.
pub fn key_of<'a>(secret: &'a SecretKey, volume: &str) -> &'a str {
    secret.key.as_deref().unwrap_or(if volume == TOKEN.0 { "token" } else { "ca.crt" })
}

/// The health port of an object's consumer.
pub fn health_port(spec: &PulsarConsumerSpec, default: &Image) -> Option<u16> {
    match (spec.health_port, &spec.image) {
        (Some(port), _) => u16::try_from(port).ok().filter(|port| *port > 0),
        (None, None) => default.health_port,
        (None, Some(_)) => None,
    }
}

/// The Deployment. `own` is the existing one, whose pods decide about the strategy.
pub fn deployment(consumer: &PulsarConsumer, default: &Image, own: Option<&Deployment>) -> Value {
    let (meta, spec) = (consumer.meta(), &consumer.spec);
    let pod = spec.pod.clone().unwrap_or_default();
    let mut labels = json!(pod.labels);
    labels[NAME_LABEL] = label_value(consumer).into();
    labels[KIND_LABEL] = "PulsarConsumer".into();
    labels[UID_LABEL] = json!(meta.uid);
    let mut template = json!({ "metadata": { "labels": labels } });
    if !pod.annotations.is_empty() {
        template["metadata"]["annotations"] = json!(pod.annotations);
    }
    template["spec"] = pod_spec(spec, default);
    // The Deployment has the labels of the object, as in the tutorial. They select nothing.
    let mut own_labels = json!(meta.labels.clone().unwrap_or_default());
    own_labels[NAME_LABEL] = label_value(consumer).into();
    json!({
        "apiVersion": DEPLOYMENTS.api_version(),
        "kind": DEPLOYMENTS.kind,
        "metadata": {
            "name": deployment_name(consumer),
            "namespace": meta.namespace,
            "labels": own_labels,
            "ownerReferences": [controller_reference(&Resource::of::<PulsarConsumer>(), meta)],
        },
        "spec": {
            "replicas": spec.replicas,
            "selector": { "matchLabels": { NAME_LABEL: label_value(consumer) } },
            "strategy": strategy(spec, own),
            "template": template,
        },
    })
}

/// An Exclusive subscription rejects a second consumer, and a broker rejects a consumer of another type than
/// the connected ones. Then all old pods are deleted first. Otherwise the new pod is created first, and both
/// may consume for a moment.
fn strategy(spec: &PulsarConsumerSpec, own: Option<&Deployment>) -> Value {
    let wanted = spec.subscription_type.unwrap_or_default();
    if wanted == SubscriptionType::Exclusive || own.is_some_and(|own| may_have_other_types(own, wanted)) {
        return json!({ "type": "Recreate" });
    }
    // Explicit, because an apply could not remove a field that this kind does not own.
    json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": "25%", "maxUnavailable": "25%" } })
}

/// Whether a Deployment may have pods of another subscription type, even terminating ones.
///
/// RollingUpdate never changes the type, so all pods then have the type of the template. After a change with
/// Recreate, a pod of the current template shows that all older pods are gone. A Deployment with 0 pods shows
/// nothing.
fn may_have_other_types(own: &Deployment, wanted: SubscriptionType) -> bool {
    let is_replaced = is_current(own) && own.updated > 0 && own.updated == own.replicas;
    own.spec["strategy"]["type"] == "Recreate" && !is_replaced || json!(wanted) != subscription_type(own)
}

/// Whether a change of the template with Recreate must wait for the Deployment controller: it scales down the
/// ReplicaSets of an unfinished rollout only if it sees Recreate before it sees other replicas.
pub fn must_settle(own: &Deployment, wanted: &Value) -> bool {
    wanted["spec"]["strategy"]["type"] == "Recreate"
        && if own.spec["strategy"]["type"] == "Recreate" { !is_current(own) } else { !is_rolled_out(own) }
}

/// Whether the subscription type changes to Exclusive, so that only one of an autoscaler's pods can connect.
pub fn becomes_exclusive(spec: &PulsarConsumerSpec, own: &Deployment) -> bool {
    let wanted = spec.subscription_type.unwrap_or_default();
    wanted == SubscriptionType::Exclusive
        && json!(wanted) != subscription_type(own)
        && own.spec["replicas"].as_i64() > Some(spec.replicas.into())
}

/// The subscription type of a Deployment's template.
fn subscription_type(own: &Deployment) -> Value {
    let containers = own.spec["template"]["spec"]["containers"].as_array().into_iter().flatten();
    let ours = containers.filter(|one| one["name"] == CONTAINER);
    let mut env = ours.flat_map(|one| one["env"].as_array().into_iter().flatten());
    let found = env.find(|one| one["name"] == SUBSCRIPTION_TYPE);
    found.map_or_else(|| json!(SubscriptionType::default()), |one| one["value"].clone())
}

/// Whether the figures describe the current spec.
pub fn is_current(own: &Deployment) -> bool {
    own.observed_generation >= own.meta.generation
}

/// Whether exactly the desired pods exist, and all of them have the current template.
pub fn is_rolled_out(own: &Deployment) -> bool {
    is_current(own) && own.updated == own.replicas && own.spec["replicas"] == own.replicas
}

fn pod_spec(spec: &PulsarConsumerSpec, default: &Image) -> Value {
    let pod = spec.pod.clone().unwrap_or_default();
    let mut wanted = Map::new();
    let mut set = |field: &str, value: Value| {
        let is_empty = match &value {
            Value::Null => true,
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            _ => false,
        };
        if !is_empty {
            wanted.insert(field.to_owned(), value);
        }
    };
    set("nodeSelector", json!(pod.node_selector));
    set("tolerations", json!(pod.tolerations));
    set("affinity", json!(pod.affinity));
    set("topologySpreadConstraints", json!(pod.topology_spread_constraints));
    set("serviceAccountName", json!(pod.service_account_name));
    // The API server copies it to the deprecated field, which would stay after a removal.
    set("serviceAccount", json!(pod.service_account_name));
    if pod.service_account_name.is_none() {
        // A consumer needs no API server. A named account may have a purpose, so its token is mounted.
        set("automountServiceAccountToken", json!(false));
    }
    set("imagePullSecrets", json!(pod.image_pull_secrets));
    set("priorityClassName", json!(pod.priority_class_name));
    set("terminationGracePeriodSeconds", json!(pod.termination_grace_period_seconds));
    let ours = || {
        json!({
            "runAsNonRoot": true,
            "runAsUser": USER,
            "runAsGroup": USER,
            "seccompProfile": { "type": "RuntimeDefault" },
        })
    };
    set("securityContext", pod.security_context.unwrap_or_else(ours));
    set("containers", json!([container(spec, default)]));
    let volume = |volume: &(&str, &str), file: &str, secret: &SecretKey| {
        json!({
            "name": volume.0,
            "secret": {
                "secretName": secret.name,
                "items": [{ "key": key_of(secret, volume.0), "path": file }],
            },
        })
    };
    let mut volumes = Vec::new();
    volumes.extend(spec.auth.iter().map(|auth| volume(&TOKEN, "token", &auth.token_secret)));
    volumes.extend(spec.tls.iter().map(|tls| volume(&AUTHORITIES, "ca.crt", &tls.ca_secret)));
    set("volumes", Value::Array(volumes));
    Value::Object(wanted)
}

fn container(spec: &PulsarConsumerSpec, default: &Image) -> Value {
    let port = health_port(spec, default);
    let image = spec.image.as_deref().unwrap_or(&default.name);
    let mut security = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
    });
    if spec.image.is_none() {
        // The tutorial's program and Quintet's write no files. Another image may.
        security["readOnlyRootFilesystem"] = true.into();
    }
    let mut container = json!({
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": spec.image_pull_policy.unwrap_or_else(|| pull_policy(image)),
        "env": env(spec, port),
        // The pod's status gets the last output of a failed consumer, which has the reason.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": security,
    });
    if let Some(resources) = &spec.resources {
        container["resources"] = resources.clone();
    }
    if let Some(port) = port {
        let probe = |path: &str, period: i32, failures: i32| {
            json!({
                "httpGet": { "path": path, "port": "health", "scheme": "HTTP" },
                "periodSeconds": period,
                "failureThreshold": failures,
            })
        };
        container["ports"] = json!([{ "name": "health", "containerPort": port, "protocol": "TCP" }]);
        container["livenessProbe"] = probe("/healthz", 20, 3);
        container["readinessProbe"] = probe("/readyz", 5, 2);
    }
    let mounts = [spec.auth.as_ref().map(|_| TOKEN), spec.tls.as_ref().map(|_| AUTHORITIES)];
    let mounts: Vec<Value> = mounts
        .into_iter()
        .flatten()
        .map(|(name, path)| json!({ "name": name, "mountPath": path, "readOnly": true }))
        .collect();
    if !mounts.is_empty() {
        container["volumeMounts"] = mounts.into();
    }
    container
}

/// The default pull policy of the API server for an image. It is explicit, because a default for one image
/// would stay for the next.
fn pull_policy(image: &str) -> ImagePullPolicy {
    let name = image.rsplit('/').next().unwrap_or(image);
    match name.split_once(':') {
        _ if name.contains('@') => ImagePullPolicy::IfNotPresent,
        None | Some((_, "latest")) => ImagePullPolicy::Always,
        Some(_) => ImagePullPolicy::IfNotPresent,
    }
}

/// The environment: the tutorial's three variables, then one for each field that is set. It has no secret.
fn env(spec: &PulsarConsumerSpec, port: Option<u16>) -> Vec<Value> {
    // A kubelet expands $(NAME), and turns $$ into $.
    let text = |name: &str, value: &str| json!({ "name": name, "value": value.replace('$', "$$") });
    let mut env = vec![
        text("PULSAR_SERVER", &spec.server_address),
        text("PULSAR_TOPIC", &spec.topic),
        text("PULSAR_SUBSCRIPTION_NAME", &spec.subscription_name),
    ];
    env.extend(spec.subscription_type.map(|type_| json!({ "name": SUBSCRIPTION_TYPE, "value": type_ })));
    env.extend(
        spec.initial_position.map(|begin| json!({ "name": "PULSAR_INITIAL_POSITION", "value": begin })),
    );
    if spec.auth.is_some() {
        env.push(text("PULSAR_TOKEN_FILE", &format!("{}/token", TOKEN.1)));
    }
    if spec.tls.is_some() {
        env.push(text("PULSAR_TLS_CA_FILE", &format!("{}/ca.crt", AUTHORITIES.1)));
    }
    if let Some(policy) = &spec.dead_letter_policy {
        env.push(text("PULSAR_MAX_REDELIVER_COUNT", &policy.max_redeliver_count.to_string()));
        let topic = policy.dead_letter_topic.clone();
        let topic = topic.unwrap_or_else(|| Topic::of(&spec.topic).dead_letter(&spec.subscription_name));
        env.push(text("PULSAR_DEAD_LETTER_TOPIC", &topic));
        let subscription = policy.initial_subscription.as_deref();
        env.extend(subscription.map(|name| text("PULSAR_DEAD_LETTER_SUBSCRIPTION", name)));
    }
    if let Some(delay) = &spec.negative_ack_redelivery_delay {
        env.push(text("PULSAR_NEGATIVE_ACK_REDELIVERY_DELAY", delay));
    }
    if let Some(size) = spec.receiver_queue_size {
        env.push(text("PULSAR_RECEIVER_QUEUE_SIZE", &size.to_string()));
    }
    if let Some(port) = port {
        env.push(text("PULSAR_HTTP_BIND_ADDRESS", &format!("[::]:{port}")));
        env.push(json!({
            "name": "PULSAR_CONSUMER_NAME",
            "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } },
        }));
    }
    // The schema rejects names that begin with PULSAR_.
    env.extend(spec.env.iter().cloned());
    env
}
