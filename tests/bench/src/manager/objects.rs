//! The objects that managers are measured with.

use serde_json::{Value, json};

/// A kind of Quintet's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Book,
    Greeting,
    PodSet,
    PulsarConsumer,
    DaemonJob,
}

impl Kind {
    /// Every one.
    pub const ALL: [Self; 5] =
        [Self::Book, Self::Greeting, Self::PodSet, Self::PulsarConsumer, Self::DaemonJob];

    /// How many of so many objects are of this kind: most are of those that cost the rest of the cluster least.
    pub fn share(self, objects: usize) -> usize {
        let percent = match self {
            Self::Book | Self::Greeting => 30,
            Self::PodSet => 20,
            Self::PulsarConsumer => 15,
            Self::DaemonJob => 5,
        };
        objects * percent / 100
    }

    /// As metrics name its controller.
    pub fn controller(self) -> &'static str {
        match self {
            Self::Book => "book",
            Self::Greeting => "greeting",
            Self::PodSet => "podset",
            Self::PulsarConsumer => "pulsarconsumer",
            Self::DaemonJob => "daemonjob",
        }
    }

    /// The collection of a namespace's objects.
    pub fn collection(self, namespace: &str) -> String {
        let of = |group: &str, plural: &str| format!("/apis/{group}/v1/namespaces/{namespace}/{plural}");
        match self {
            Self::Book => of("christianb93.github.com", "books"),
            Self::Greeting => of("example.com", "greetings"),
            Self::PodSet => pod_sets(namespace),
            Self::PulsarConsumer => of("pulsar.pulsarconsumer.krvarma.com", "pulsarconsumers"),
            Self::DaemonJob => daemon_jobs(namespace),
        }
    }

    /// One of many: a Greeting that does not tick meanwhile, a PodSet of one pod, a consumer without pods, and a DaemonJob
    /// that ends.
    pub fn object(self, number: usize) -> Value {
        let name = format!("object-{number}");
        let of = |group: &str, kind: &str, spec: Value| {
            let metadata = json!({"name": name});
            json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": metadata, "spec": spec})
        };
        match self {
            Self::Book => of(
                "christianb93.github.com",
                "Book",
                json!({"title": format!("Volume {number}"), "author": "Dickens"}),
            ),
            Self::Greeting => of(
                "example.com",
                "Greeting",
                json!({"message": format!("Hello, {number}!"), "intervalSeconds": 86_400}),
            ),
            Self::PodSet => pod_set(&name, 1),
            Self::PulsarConsumer => of(
                "pulsar.pulsarconsumer.krvarma.com",
                "PulsarConsumer",
                json!({
                    "serverAddress": "pulsar://localhost:6650", "topic": "my-topic",
                    "subscriptionName": format!("subscription-{number}"), "replicas": 0,
                }),
            ),
            Self::DaemonJob => daemon_job(&name),
        }
    }
}

/// The collection of a namespace's PodSets.
pub fn pod_sets(namespace: &str) -> String {
    format!("/apis/batch.tutorial.kubebuilder.io/v1/namespaces/{namespace}/podsets")
}

/// The collection of a namespace's DaemonJobs.
pub fn daemon_jobs(namespace: &str) -> String {
    format!("/apis/dj.dysproz.io/v1/namespaces/{namespace}/daemonjobs")
}

/// Like pods are in practice: some variables, limits and a probe.
pub fn pod_spec(restart: &str) -> Value {
    let variables: Vec<Value> = ["HOST", "PORT", "REGION", "LEVEL", "MODE", "ENDPOINT"]
        .iter()
        .map(|name| json!({"name": name, "value": format!("the-value-of-{}", name.to_lowercase())}))
        .collect();
    json!({
        "restartPolicy": restart,
        // Nobody puts them on nodes: the manager alone is looked at.
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

/// A PodSet of such pods, which either contender finds.
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
        // The simulated kubelets let such pods succeed.
        "spec": {"template": {"metadata": {"annotations": {"kwok.quintet.dev/exit-code": "0"}}, "spec": spec}},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all() {
        assert_eq!(Kind::ALL.map(|kind| kind.share(10_000)).iter().sum::<usize>(), 10_000);
        assert!(Kind::ALL.iter().all(|kind| kind.share(100) > 0));
    }
}
