//! A manager for PodSet, written with kube-runtime's Controller in the style of its examples, for the
//! comparison in `cargo xtask bench manager`. It implements the rules in their simplest form, like the
//! controller-runtime manager. Pods are numbered from 0, so that a stale cache creates no duplicates.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::routing::get;
use clap::Parser as _;
use futures::StreamExt as _;
use http::header::{HeaderValue, USER_AGENT};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, CustomResource, Resource as _, ResourceExt as _};
use kube_runtime::controller::Action;
use kube_runtime::reflector::{ObjectRef, Store, store};
use kube_runtime::{Controller, WatchStreamExt as _, watcher};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

/// The fields that this manager reads.
#[derive(CustomResource, Clone, Debug, Serialize, Deserialize)]
#[kube(
    group = "batch.tutorial.kubebuilder.io",
    version = "v1",
    kind = "PodSet",
    namespaced,
    status = "PodSetStatus",
    schema = "disabled"
)]
struct PodSetSpec {
    replicas: i32,
    template: PodTemplateSpec,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSetStatus {
    observed_generation: Option<i64>,
    replicas: i32,
    ready_replicas: i32,
}

#[derive(Debug, clap::Parser)]
struct Flags {
    /// The kubeconfig of the cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The address of /readyz
    #[arg(long, value_name = "ADDRESS")]
    health_probe_bind_address: SocketAddr,
}

struct Context {
    client: Client,
    pods: Store<Pod>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    let kubeconfig = Kubeconfig::read_from(&flags.kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    config
        .headers
        .push((USER_AGENT, HeaderValue::from_static(concat!("kube-runtime/", env!("CARGO_PKG_VERSION")))));
    let client = Client::try_from(config)?;
    let (pods, writer) = store();
    let seen = watcher(Api::<Pod>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .touched_objects();
    let controller = Controller::new(Api::<PodSet>::all(client.clone()), watcher::Config::default());
    let context = Arc::new(Context { client, pods: pods.clone() });
    let listener = TcpListener::bind(flags.health_probe_bind_address).await?;
    tokio::spawn(async move {
        // Until then, /readyz does not answer. This task must not wait for the PodSets: the controller waits
        // for their store, and kube-runtime wakes only one task that waits for a store.
        pods.wait_until_ready().await?;
        axum::serve(listener, Router::new().route("/readyz", get(|| async { "ok" }))).await?;
        anyhow::Ok(())
    });
    controller
        .owns_stream(seen)
        .shutdown_on_signal()
        .run(reconcile, |_, _, _| Action::requeue(Duration::from_secs(1)), context)
        .for_each(|result| async {
            if let Err(error) = result {
                eprintln!("{error}: {:?}", std::error::Error::source(&error));
            }
        })
        .await;
    Ok(())
}

async fn reconcile(set: Arc<PodSet>, context: Arc<Context>) -> Result<Action, kube::Error> {
    if set.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let (name, namespace) = (set.name_any(), set.namespace().unwrap_or_default());
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let mut status = PodSetStatus { observed_generation: set.metadata.generation, ..PodSetStatus::default() };
    for number in 0.. {
        let is_desired = number < set.spec.replicas;
        let pod_name = format!("{name}-{number}");
        let known = context.pods.get(&ObjectRef::new(&pod_name).within(&namespace));
        match known.filter(|pod| is_owned(pod, &set)) {
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => {}
            Some(pod) if !is_desired || is_finished(&pod) => {
                ignore(404, pods.delete(&pod_name, &DeleteParams::default()).await.map(|_| ()))?;
            }
            Some(pod) => {
                status.replicas += 1;
                status.ready_replicas += i32::from(is_ready(&pod));
            }
            None if is_desired => {
                let pod = new_pod(pod_name, &set);
                ignore(409, pods.create(&PostParams::default(), &pod).await.map(|_| ()))?;
            }
            None => break,
        }
    }
    if set.status.as_ref() != Some(&status) {
        let mut set = PodSet::clone(&set);
        set.status = Some(status);
        let sets: Api<PodSet> = Api::namespaced(context.client.clone(), &namespace);
        sets.replace_status(&name, &PostParams::default(), &set).await?;
    }
    Ok(Action::await_change())
}

/// Treats one error code as a success.
fn ignore(code: u16, answer: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == code => Ok(()),
        answer => answer,
    }
}

fn new_pod(name: String, set: &PodSet) -> Pod {
    let template = &set.spec.template;
    let of_template = template.metadata.clone().unwrap_or_default();
    let metadata = ObjectMeta {
        name: Some(name),
        namespace: set.namespace(),
        labels: of_template.labels,
        annotations: of_template.annotations,
        owner_references: set.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    };
    Pod { metadata, spec: template.spec.clone(), status: None }
}

fn is_owned(pod: &Pod, set: &PodSet) -> bool {
    let mut owners = pod.owner_references().iter();
    owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == set.metadata.uid.as_ref())
}

fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
