//! Which node each pod and each ledger line belongs to.
//!
//! A reconcile keeps the entries of objects that have not changed. Looking up every UID and parsing every
//! label again would take two fifths of its time.

use std::cell::OnceCell;
use std::sync::Arc;

use foldhash::HashMap;
use quintet_runtime::model::core_types::{Node, Pod};

use crate::labels::{NODE_UID_LABEL, ROLLOUT_ANNOTATION, hash_of, number_of, numbered};
use crate::ledger::Shard;
use crate::outcome::DeletedFor;

/// The nodes of the pods and ledger lines of one DaemonJob, by their place in the list of all nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Index {
    /// The hash of the template.
    hash: Arc<str>,
    /// The UIDs of the nodes.
    nodes: Vec<Arc<str>>,
    /// The entries of the pods.
    pods: Vec<(Arc<Pod>, PodEntry)>,
    /// The nodes of the lines of each shard.
    shards: Vec<(Arc<Shard>, Lines)>,
}

/// The node of each line of a shard, if it exists.
type Lines = Box<[Option<u32>]>;

/// The labels and annotations of a pod, parsed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PodEntry {
    /// The place of the node of its label, if the node exists.
    pub node: Option<u32>,
    /// Its number.
    pub number: u64,
    /// The number of its rollout, from its annotation.
    pub rollout: Option<u64>,
    /// Whether it has the current template.
    pub is_current: bool,
    /// The reason for its deletion.
    pub deleted_for: Option<DeletedFor>,
}

impl Index {
    /// The index of these objects, which is `before` if nothing has changed since. The pods are in the order of
    /// their names.
    pub fn of<'w>(
        before: &Arc<Self>,
        hash: &str,
        nodes: &[Arc<Node>],
        pods: &[Arc<Pod>],
        shards: impl Iterator<Item = &'w Arc<Shard>> + Clone,
    ) -> Arc<Self> {
        let is_its = |uid: &Arc<str>, is: &Arc<str>| Arc::ptr_eq(uid, is) || uid == is;
        let has_same_nodes = is_same(&before.nodes, nodes, |uid, node| is_its(uid, &node.meta.uid));
        let has_same_hash = *before.hash == *hash;
        if has_same_nodes
            && has_same_hash
            && is_same(&before.pods, pods, |(known, _), pod| Arc::ptr_eq(known, pod))
            && is_same(&before.shards, shards.clone(), |(known, _), shard| Arc::ptr_eq(known, shard))
        {
            return before.clone();
        }
        let by_uid: OnceCell<HashMap<&str, u32>> = OnceCell::new();
        let find = |uid: &str| {
            let all = || (0..).zip(nodes).map(|(at, node)| (&*node.meta.uid, at)).collect();
            by_uid.get_or_init(all).get(uid).copied()
        };
        // Most pods that change keep their node, and need no look-up.
        let of_pod = |pod: &Pod, before: Option<u32>| {
            let uid = pod.label(NODE_UID_LABEL)?;
            let is_it = |at: &u32| nodes.get(*at as usize).is_some_and(|node| *node.meta.uid == *uid);
            before.filter(is_it).or_else(|| find(uid))
        };
        let mut known_pods = if has_same_hash { &before.pods[..] } else { &[] }.iter().peekable();
        let pods = pods.iter().map(|pod| {
            let is_it = |(known, _): &&(Arc<Pod>, _)| Arc::ptr_eq(known, pod);
            // Both lists are in the order of the names.
            let is_earlier = |(known, _): &&(Arc<Pod>, _)| known.meta.name < pod.meta.name;
            while known_pods.next_if(|known| !is_it(known) && is_earlier(known)).is_some() {}
            let entry = match known_pods.next_if(|known| is_it(known) || known.0.meta.name == pod.meta.name) {
                Some((known, entry)) if Arc::ptr_eq(known, pod) => {
                    let node = if has_same_nodes { entry.node } else { of_pod(pod, entry.node) };
                    PodEntry { node, ..*entry }
                }
                before => PodEntry {
                    node: of_pod(pod, before.and_then(|(_, entry)| entry.node)),
                    number: number_of(pod),
                    rollout: numbered(pod, ROLLOUT_ANNOTATION),
                    is_current: hash_of(pod, hash) == hash,
                    deleted_for: DeletedFor::of(pod),
                },
            };
            (pod.clone(), entry)
        });
        let shards = shards.map(|shard| {
            let mut known = before.shards.iter().filter(|_| has_same_nodes);
            let known = known.find(|(known, _)| Arc::ptr_eq(known, shard));
            let find_all = || shard.entries.keys().map(|uid| find(uid)).collect();
            (shard.clone(), known.map_or_else(find_all, |(_, lines)| lines.clone()))
        });
        let (pods, shards) = (pods.collect(), shards.collect());
        let nodes = nodes.iter().map(|node| node.meta.uid.clone()).collect();
        Arc::new(Self { hash: hash.into(), nodes, pods, shards })
    }

    /// The entries of the pods, in their order.
    pub fn pods(&self) -> impl Iterator<Item = &PodEntry> {
        self.pods.iter().map(|(_, entry)| entry)
    }

    /// The nodes of the lines of each shard, in their order.
    pub fn shards(&self) -> impl Iterator<Item = &[Option<u32>]> {
        self.shards.iter().map(|(_, nodes)| &**nodes)
    }
}

fn is_same<A, B>(
    before: &[A],
    now: impl IntoIterator<Item = B, IntoIter: Clone>,
    is_equal: impl Fn(&A, B) -> bool,
) -> bool {
    let now = now.into_iter();
    before.len() == now.clone().count() && before.iter().zip(now).all(|(one, other)| is_equal(one, other))
}
