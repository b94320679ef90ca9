//! The objects that managers are measured with.

use serde_json::{Value, json};

/// A kind and its percentage of the objects, high for kinds that cost the rest of the cluster little.
pub struct Kind {
    /// The controller's name in metrics; with an s, the collection.
    pub name: &'static str,
    group: &'static str,
    percent: usize,
    object: fn(usize) -> Value,
}

/// The Greeting does not tick meanwhile, the consumer has no pods, and the DaemonJob finishes.
pub const KINDS: [Kind; 5] = [
    Kind { name: "book", group: "christianb93.github.com", percent: 30, object: book },
    Kind { name: "greeting", group: "example.com", percent: 30, object: greeting },
    Kind {
        name: "podset",
        group: "batch.tutorial.kubebuilder.io",
        percent: 20,
        object: |n| pod_set(&name(n), 1),
    },
    Kind {
        name: "pulsarconsumer",
        group: "pulsar.pulsarconsumer.krvarma.com",
        percent: 15,
        object: consumer,
    },
    Kind { name: "daemonjob", group: "dj.dysproz.io", percent: 5, object: |n| daemon_job(&name(n)) },
];

impl Kind {
    /// The number of objects of this kind among all.
    pub fn share(&self, objects: usize) -> usize {
        objects * self.percent / 100
    }

    pub fn collection(&self, namespace: &str) -> String {
        format!("/apis/{}/v1/namespaces/{namespace}/{}s", self.group, self.name)
    }

    pub fn object(&self, number: usize) -> Value {
        (self.object)(number)
    }
}

/// The name of an object of every kind.
pub fn name(number: usize) -> String {
    format!("object-{number}")
}

fn book(number: usize) -> Value {
    json!({
        "apiVersion": "christianb93.github.com/v1", "kind": "Book", "metadata": {"name": name(number)},
        "spec": {"title": format!("Volume {number}"), "author": "Dickens"},
    })
}

fn greeting(number: usize) -> Value {
    json!({
        "apiVersion": "example.com/v1", "kind": "Greeting", "metadata": {"name": name(number)},
        "spec": {"message": format!("Hello, {number}!"), "intervalSeconds": 86_400},
    })
}

fn consumer(number: usize) -> Value {
    json!({
        "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": {"name": name(number)},
        "spec": {
            "serverAddress": "pulsar://localhost:6650", "topic": "my-topic",
            "subscriptionName": format!("subscription-{number}"), "replicas": 0,
        },
    })
}

pub fn pod_sets(namespace: &str) -> String {
    format!("/apis/batch.tutorial.kubebuilder.io/v1/namespaces/{namespace}/podsets")
}

pub fn daemon_jobs(namespace: &str) -> String {
    format!("/apis/dj.dysproz.io/v1/namespaces/{namespace}/daemonjobs")
}

/// A pod of a practical size, with variables and limits.
pub fn pod_spec(restart: &str) -> Value {
    let variables: Vec<Value> = ["HOST", "PORT", "REGION", "LEVEL", "MODE", "ENDPOINT"]
        .iter()
        .map(|name| json!({"name": name, "value": format!("the-value-of-{}", name.to_lowercase())}))
        .collect();
    json!({
        "restartPolicy": restart,
        // No scheduler binds these pods, because only the manager is measured.
        "schedulerName": "nobody",
        "containers": [{
            "name": "main",
            "image": "registry.example.com/team/application:1.27.3",
            "command": ["/application", "--listen=:8080", "--config=/etc/application/config.yaml"],
            "env": variables,
            "ports": [{"name": "http", "containerPort": 8080}],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        }],
    })
}

/// A PodSet whose pods have the labels that both managers select.
pub fn pod_set(name: &str, replicas: usize) -> Value {
    json!({
        "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "template": {"metadata": {"labels": {"twin.bench/kind": "PodSet"}}, "spec": pod_spec("Always")},
        },
    })
}

/// A DaemonJob whose pods succeed.
pub fn daemon_job(name: &str) -> Value {
    let mut spec = pod_spec("OnFailure");
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("schedulerName");
    }
    json!({
        "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "metadata": {"name": name},
        // The simulated kubelets complete pods with this annotation.
        "spec": {"template": {"metadata": {"annotations": {"kwok.quintet.dev/exit-code": "0"}}, "spec": spec}},
    })
}
