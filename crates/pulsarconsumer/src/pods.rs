//! The pods of consumers, by PulsarConsumer. Labels name it, because the owner of a pod is a ReplicaSet.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use quintet_runtime::cache::informer::{Change, Informer};
use quintet_runtime::control::waker::Waker;
use quintet_runtime::lock;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::object::{Key, Object as _};

use crate::api::PulsarConsumer;
use crate::deployment::{NAME_LABEL, UID_LABEL};

type ByConsumer = HashMap<Arc<str>, BTreeMap<Arc<str>, Arc<Pod>>>;

/// The pods that are not ready. The status reports their reasons.
#[derive(Default)]
pub struct Unready {
    pods: Mutex<ByConsumer>,
}

impl Unready {
    /// Subscribes to pods, and wakes the PulsarConsumer of each change.
    pub fn follow(self: Arc<Self>, pods: &Informer<Pod>, consumers: &Informer<PulsarConsumer>, waker: Waker) {
        let consumers = consumers.clone();
        pods.subscribe(move |change| {
            let (pod, now) = match change {
                Change::Applied { new, .. } => (new, is_unready(new).then(|| Arc::clone(new))),
                Change::Deleted { old } => (old, None),
                Change::Undecodable { .. } | Change::Vanished { .. } => return,
            };
            if let Change::Applied { old: Some(old), .. } = change
                && let Some(before) = old.label(UID_LABEL)
                && pod.label(UID_LABEL) != Some(before)
            {
                // The pod no longer belongs to that PulsarConsumer.
                self.set(before, &old.meta.name, None);
            }
            let Some(uid) = pod.label(UID_LABEL) else { return };
            if self.set(uid, &pod.meta.name, now)
                && let Some(consumer) = consumer_of(pod, &consumers)
            {
                waker.wake(consumer);
            }
        });
    }

    /// Stores or removes a pod. Returns whether this is a change.
    fn set(&self, uid: &str, name: &Arc<str>, pod: Option<Arc<Pod>>) -> bool {
        let mut all = lock(&self.pods);
        if let Some(pod) = pod {
            let before = all.entry(uid.into()).or_default().insert(name.clone(), pod.clone());
            return before.is_none_or(|before| !before.same(&pod));
        }
        let Some(pods) = all.get_mut(uid) else { return false };
        let was = pods.remove(name).is_some();
        if pods.is_empty() {
            all.remove(uid);
        }
        was
    }

    /// The pods of a PulsarConsumer that are not ready, by name.
    pub fn of(&self, consumer: &Key) -> Vec<Arc<Pod>> {
        let all = lock(&self.pods);
        let pods = all.get(&consumer.uid).into_iter().flat_map(BTreeMap::values);
        pods.filter(|pod| pod.meta.namespace == consumer.namespace).cloned().collect()
    }
}

/// The PulsarConsumer in a pod's labels.
fn consumer_of(pod: &Pod, consumers: &Informer<PulsarConsumer>) -> Option<Key> {
    let name = pod.label(NAME_LABEL)?.strip_suffix("-pulsarcrd")?;
    let consumer = consumers.find(&pod.meta.namespace, name)?.key();
    (Some(&*consumer.uid) == pod.label(UID_LABEL)).then_some(consumer)
}

fn is_unready(pod: &Pod) -> bool {
    pod.is_counted() && pod.ready_since.is_none()
}
