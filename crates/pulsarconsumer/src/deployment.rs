//! The applied Deployment of a PulsarConsumer: only the fields that this kind owns.

use kube::Resource as _;
use quintet_pulsar_topic::dead_letter_subscription;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::core_types::Deployment;
use quintet_runtime::model::object::controller_reference;
use quintet_runtime::model::resource::{DEPLOYMENTS, Resource};
use serde_json::{Value, json};

use crate::api::{PulsarConsumer, PulsarConsumerSpec, SecretKey, SubscriptionType};
use crate::merge::merge;

/// The suffix of the Deployment's name, as in the tutorial.
const DEPLOYMENT_SUFFIX: &str = "-deployment";
/// Label: the object's name and `-pulsarcrd`, as in the tutorial. Only this label selects the pods, because
/// the labels of the object may change, and a Deployment's selector may not.
pub const NAME_LABEL: &str = "pulsarcrd";
/// Label of the pods: the PulsarConsumer's UID.
pub const UID_LABEL: &str = "pulsar.pulsarconsumer.krvarma.com/uid";
/// The name of the container, as in the tutorial.
pub const CONTAINER: &str = "pulsarconsumer";
/// A Secret that the container mounts.
pub struct Mount {
    volume: &'static str,
    path: &'static str,
    /// The default key in the Secret, which is also the name of the file.
    key: &'static str,
}

/// The token.
pub const TOKEN: Mount =
    Mount { volume: "pulsar-token", path: "/var/run/secrets/pulsar/token", key: "token" };
/// The secret of the OAuth2 client.
pub const OAUTH2: Mount =
    Mount { volume: "pulsar-oauth2", path: "/var/run/secrets/pulsar/oauth2", key: "client-secret" };
/// The CA certificates.
pub const AUTHORITIES: Mount =
    Mount { volume: "pulsar-ca", path: "/var/run/secrets/pulsar/ca", key: "ca.crt" };
/// The volume of the client certificate and its key, and its mount path.
const IDENTITY: (&str, &str) = ("pulsar-tls", "/var/run/secrets/pulsar/tls");
/// The keys of a Secret with a certificate and its key, as for the type kubernetes.io/tls.
pub const TLS_KEYS: [&str; 2] = ["tls.crt", "tls.key"];

impl Mount {
    /// The key in a Secret.
    pub fn key_of<'a>(&self, secret: &'a SecretKey) -> &'a str {
        secret.key.as_deref().unwrap_or(self.key)
    }

    /// The path of the file.
    fn file(&self) -> String {
        format!("{}/{}", self.path, self.key)
    }

    fn volume<'a>(&self, secret: &'a SecretKey) -> SecretVolume<'a> {
        SecretVolume {
            place: (self.volume, self.path),
            secret: &secret.name,
            files: vec![(self.key_of(secret), self.key)],
        }
    }
}

/// The variable of the subscription type.
const SUBSCRIPTION_TYPE: &str = "PULSAR_SUBSCRIPTION_TYPE";
/// The default user and group of the consumer, as in images without users.
const USER: i64 = 65_532;

/// The default image of consumers, its health port, and the user of the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The image.
    pub name: String,
    /// The port of its /healthz and /readyz; None without probes.
    pub health_port: Option<u16>,
    /// Whether the cluster chooses the user and group of the pods. Otherwise they are 65532.
    pub any_user: bool,
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
            "template": template(consumer, default),
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

/// The template of the pods, with the user's merged over it.
fn template(consumer: &PulsarConsumer, default: &Image) -> Value {
    let (meta, spec) = (consumer.meta(), &consumer.spec);
    let mut template = json!({
        "metadata": { "labels": {
            NAME_LABEL: label_value(consumer), KIND_LABEL: "PulsarConsumer", UID_LABEL: meta.uid,
        } },
        "spec": {},
    });
    let theirs = spec.template.as_ref();
    // A context of the template replaces this one, because the template may need a user that the cluster chooses.
    if theirs.is_none_or(|theirs| theirs.spec().get("securityContext").is_none()) {
        let mut context = json!({ "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } });
        if !default.any_user {
            context["runAsUser"] = USER.into();
            context["runAsGroup"] = USER.into();
        }
        template["spec"]["securityContext"] = context;
    }
    template["spec"]["containers"] = Value::Array(vec![container(spec, default)]);
    let volumes: Vec<Value> = secret_volumes(spec)
        .map(|SecretVolume { place, secret, files }| {
            let item = |(key, file): (&str, &str)| json!({ "key": key, "path": file });
            let items: Vec<Value> = files.into_iter().map(item).collect();
            json!({ "name": place.0, "secret": { "secretName": secret, "items": items } })
        })
        .collect();
    if !volumes.is_empty() {
        template["spec"]["volumes"] = volumes.into();
    }
    if let Some(theirs) = theirs {
        merge(&mut template, &theirs.0, "");
    }
    let pod = &mut template["spec"];
    let account = pod.get("serviceAccountName").filter(|account| *account != "").cloned();
    match account {
        // The API server copies it to the deprecated field, which would stay after a removal.
        Some(account) => pod["serviceAccount"] = account,
        // A consumer needs no API server. A named account may have a purpose, so its token is mounted.
        None if pod.get("automountServiceAccountToken").is_none() => {
            pod["automountServiceAccountToken"] = false.into();
        }
        None => {}
    }
    for list in ["initContainers", "containers"] {
        let containers = pod.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter(|one| one.get("imagePullPolicy").is_none()) {
            // The API server's default for one image would stay for the next.
            container["imagePullPolicy"] =
                pull_policy(container["image"].as_str().unwrap_or_default()).into();
        }
    }
    template
}

/// A volume and its Secret.
struct SecretVolume<'a> {
    /// The volume, and its mount path.
    place: (&'static str, &'static str),
    secret: &'a str,
    /// Keys in the Secret, and their files.
    files: Vec<(&'a str, &'static str)>,
}

fn secret_volumes(spec: &PulsarConsumerSpec) -> impl Iterator<Item = SecretVolume<'_>> {
    let token = spec.token_secret().map(|secret| TOKEN.volume(secret));
    let oauth2 = spec.oauth2().map(|oauth2| OAUTH2.volume(&oauth2.client_secret));
    let identity = spec.tls_secret().map(|secret| SecretVolume {
        place: IDENTITY,
        secret: &secret.name,
        files: TLS_KEYS.map(|key| (key, key)).to_vec(),
    });
    let authorities = spec.tls.as_ref().map(|tls| AUTHORITIES.volume(&tls.ca_secret));
    [token, oauth2, identity, authorities].into_iter().flatten()
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
        "env": env(spec, port),
        // The pod's status gets the last output of a failed consumer, which has the reason.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": security,
    });
    if let Some(port) = port {
        let probe = |path: &str, period: i32, failures: i32| {
            json!({
                "httpGet": { "path": path, "port": port, "scheme": "HTTP" },
                "periodSeconds": period,
                "failureThreshold": failures,
            })
        };
        container["ports"] = json!([{ "name": "health", "containerPort": port, "protocol": "TCP" }]);
        container["livenessProbe"] = probe("/healthz", 20, 3);
        container["readinessProbe"] = probe("/readyz", 5, 2);
    }
    let mounts: Vec<Value> = secret_volumes(spec)
        .map(|one| json!({ "name": one.place.0, "mountPath": one.place.1, "readOnly": true }))
        .collect();
    if !mounts.is_empty() {
        container["volumeMounts"] = mounts.into();
    }
    container
}

/// The default pull policy of the API server for an image.
fn pull_policy(image: &str) -> &'static str {
    let name = image.rsplit('/').next().unwrap_or(image);
    match name.split_once(':') {
        _ if name.contains('@') => "IfNotPresent",
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

/// The environment: the tutorial's three variables, then one for each field that is set. It has no secret.
fn env(spec: &PulsarConsumerSpec, port: Option<u16>) -> Vec<Value> {
    // A kubelet expands $(NAME), and turns $$ into $.
    let text = |name: &str, value: &str| json!({ "name": name, "value": value.replace('$', "$$") });
    let mut env = vec![text("PULSAR_SERVER", &spec.server_address)];
    env.extend(spec.topic.as_deref().map(|topic| text("PULSAR_TOPIC", topic)));
    env.extend(spec.topics.as_deref().map(|topics| text("PULSAR_TOPICS", &topics.join(","))));
    env.extend(spec.topics_pattern.as_deref().map(|pattern| text("PULSAR_TOPICS_PATTERN", pattern)));
    env.push(text("PULSAR_SUBSCRIPTION_NAME", &spec.subscription_name));
    env.extend(spec.subscription_type.map(|type_| json!({ "name": SUBSCRIPTION_TYPE, "value": type_ })));
    env.extend(
        spec.initial_position.map(|begin| json!({ "name": "PULSAR_INITIAL_POSITION", "value": begin })),
    );
    if spec.token_secret().is_some() {
        env.push(text("PULSAR_TOKEN_FILE", &TOKEN.file()));
    }
    if let Some(oauth2) = spec.oauth2() {
        env.push(text("PULSAR_OAUTH2_TOKEN_URL", &oauth2.token_url));
        env.push(text("PULSAR_OAUTH2_CLIENT_ID", &oauth2.client_id));
        env.push(text("PULSAR_OAUTH2_CLIENT_SECRET_FILE", &OAUTH2.file()));
        env.extend(oauth2.audience.as_deref().map(|audience| text("PULSAR_OAUTH2_AUDIENCE", audience)));
        env.extend(oauth2.scope.as_deref().map(|scope| text("PULSAR_OAUTH2_SCOPE", scope)));
    }
    if spec.tls_secret().is_some() {
        for (variable, key) in ["PULSAR_TLS_CERT_FILE", "PULSAR_TLS_KEY_FILE"].into_iter().zip(TLS_KEYS) {
            env.push(text(variable, &format!("{}/{key}", IDENTITY.1)));
        }
    }
    if spec.tls.is_some() {
        env.push(text("PULSAR_TLS_CA_FILE", &AUTHORITIES.file()));
    }
    if let Some(policy) = &spec.dead_letter_policy {
        env.push(text("PULSAR_MAX_REDELIVER_COUNT", &policy.max_redeliver_count.to_string()));
        env.extend(spec.dead_letter_topic().map(|topic| text("PULSAR_DEAD_LETTER_TOPIC", &topic)));
        let default = dead_letter_subscription(&spec.subscription_name);
        let subscription = policy.initial_subscription.as_deref().unwrap_or(&default);
        env.push(text("PULSAR_DEAD_LETTER_SUBSCRIPTION", subscription));
        env.extend(spec.retry_letter_topic().map(|topic| text("PULSAR_RETRY_LETTER_TOPIC", topic)));
        let delays = policy.retry_delays.as_deref();
        env.extend(delays.map(|delays| text("PULSAR_RETRY_DELAYS", &delays.join(","))));
    }
    let texts = [
        ("PULSAR_NEGATIVE_ACK_REDELIVERY_DELAY", &spec.negative_ack_redelivery_delay),
        ("PULSAR_ACK_TIMEOUT", &spec.ack_timeout),
        ("PULSAR_LISTENER_NAME", &spec.listener_name),
    ];
    env.extend(texts.into_iter().filter_map(|(name, value)| Some(text(name, value.as_deref()?))));
    let flags = [
        ("PULSAR_READ_COMPACTED", spec.read_compacted),
        ("PULSAR_REPLICATE_SUBSCRIPTION_STATE", spec.replicate_subscription_state),
    ];
    env.extend(flags.into_iter().filter(|(_, flag)| *flag == Some(true)).map(|(name, _)| text(name, "true")));
    if let Some(size) = spec.receiver_queue_size {
        env.push(text("PULSAR_RECEIVER_QUEUE_SIZE", &size.to_string()));
    }
    if let Some(bytes) = spec.receiver_queue_bytes {
        env.push(text("PULSAR_RECEIVER_QUEUE_BYTES", &bytes.to_string()));
    }
    if let Some(port) = port {
        env.push(text("PULSAR_HTTP_BIND_ADDRESS", &format!("[::]:{port}")));
        env.push(json!({
            "name": "PULSAR_CONSUMER_NAME",
            "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.name" } },
        }));
    }
    env
}
