//! The pods of consumers, by PulsarConsumer. Labels name it, because the owner of a pod is a ReplicaSet.

use std::sync::Arc;

use quintet_runtime::cache::informer::{Change, Informer};
use quintet_runtime::control::waker::Waker;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::digest;
use quintet_runtime::model::object::{Key, Object as _};

use crate::api::PulsarConsumer;
use crate::deployment::{NAME_LABEL, UID_LABEL, deployment_name};

/// Kubernetes cuts longer beginnings of pods' names.
const LONGEST_PREFIX: usize = 58;

/// The pods of a PulsarConsumer for which `is_wanted` returns true, by name.
pub fn of(pods: &Informer<Pod>, consumer: &PulsarConsumer, is_wanted: fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
    let (key, name) = (consumer.key(), deployment_name(consumer));
    let is_own = |pod: &Pod| pod.label(UID_LABEL) == Some(&*key.uid) && is_wanted(pod);
    // The names of a Deployment's pods begin with its name.
    let names = pods.names(&key.namespace, digest::cut(&name, LONGEST_PREFIX), is_own);
    names.iter().filter_map(|name| pods.find(&key.namespace, name)).collect()
}

/// Whether the status reports why a pod is not ready.
pub fn is_unready(pod: &Pod) -> bool {
    pod.is_counted() && pod.ready_since.is_none()
}

/// Subscribes to pods, and wakes the PulsarConsumer of each pod that is not ready before or after a change.
pub fn follow(pods: &Informer<Pod>, consumers: &Informer<PulsarConsumer>, waker: Waker) {
    let consumers = consumers.clone();
    pods.subscribe(move |change| {
        let versions = match *change {
            Change::Applied { old, new, .. } => [old, Some(new)],
            Change::Deleted { old } => [Some(old), None],
            Change::Undecodable { .. } | Change::Vanished { .. } => return,
        };
        for pod in versions.into_iter().flatten().filter(|pod| is_unready(pod)) {
            if let Some(consumer) = consumer_of(pod, &consumers) {
                waker.wake(consumer);
            }
        }
    });
}

/// The PulsarConsumer in a pod's labels.
fn consumer_of(pod: &Pod, consumers: &Informer<PulsarConsumer>) -> Option<Key> {
    let name = pod.label(NAME_LABEL)?.strip_suffix("-pulsarcrd")?;
    let consumer = consumers.find(&pod.meta.namespace, name)?.key();
    (Some(&*consumer.uid) == pod.label(UID_LABEL)).then_some(consumer)
}
