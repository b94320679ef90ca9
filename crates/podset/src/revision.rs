//! The templates of a PodSet as ControllerRevisions, as for a StatefulSet.
//!
//! The template of the last complete rollout is the current one, and that of the spec the updated one. While
//! `partition` or a pause keeps pods of older templates, a lost pod is replaced from the current template, so that a
//! drained node does not spread the updated one. The caches have only the metadata and the number of a revision; its
//! template is read when a pod is created from it.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use kube::Resource as _;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::digest;
use quintet_runtime::model::object::{Meta, Object, Pairs, controller_reference};
use quintet_runtime::model::plan::Action;
use quintet_runtime::model::pod_template::RawTemplate;
use quintet_runtime::model::resource::Resource;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::api::{PodSet, PodSetStatus};
use crate::labels::{HASH_LABEL, NAME_LABEL, UID_LABEL};
use crate::observe::World;
use crate::rollout::{CandidatePod, Limits};
use crate::template::{hash_of, template_hash};

/// The type of revisions.
pub const CONTROLLER_REVISIONS: Resource =
    Resource::builtin("apps", "v1", "ControllerRevision", "controllerrevisions");

/// The default of revisionHistoryLimit, as for a Deployment.
const HISTORY_LIMIT: usize = 10;
/// How many characters of the PodSet's name a revision's name has. With the rest it is a valid name.
const NAME_LENGTH: usize = 200;

/// Some writes.
type Steps = Vec<Action<PodSetStatus>>;

/// A revision without its template.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Revision {
    /// Its metadata, without annotations.
    #[serde(rename = "metadata", default, deserialize_with = "meta")]
    pub meta: Meta,
    /// Its number. The updated template has the highest.
    #[serde(rename = "revision", default)]
    pub number: i64,
}

fn meta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Meta, D::Error> {
    Ok(Meta { annotations: Pairs::default(), ..Meta::deserialize(deserializer)? })
}

impl Object for Revision {
    quintet_runtime::identified_by_meta!();
}

/// A revision with its template, as the API server stores it.
#[derive(Clone, Debug, Deserialize)]
pub struct StoredRevision {
    /// Its metadata and number.
    #[serde(flatten)]
    pub revision: Revision,
    /// The fields of a PodSet that it stores.
    #[serde(default)]
    pub data: Value,
}

impl StoredRevision {
    /// Its template; None is the built-in one.
    pub fn template(&self) -> Option<RawTemplate> {
        let template = &self.data["spec"]["template"];
        (!template.is_null()).then(|| RawTemplate(template.clone()))
    }
}

/// The current template, for pods that are created from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum CurrentTemplate {
    /// The plan does not need it.
    #[default]
    Unread,
    /// The API server has not answered the read, for this reason.
    Unreadable(String),
    /// No revision of this name has it. New pods have the updated template.
    Missing,
    /// The template.
    Found {
        /// Its hash.
        hash: String,
        /// None is the built-in template.
        template: Option<RawTemplate>,
        /// The number of its revision.
        number: i64,
    },
}

impl CurrentTemplate {
    /// The template of a revision with this name, if the name fits: a name contains the hash of the template.
    pub fn of(podset: &PodSet, name: &str, stored: &StoredRevision) -> Self {
        let template = stored.template();
        let hash = hash_of(template.as_ref()).into_owned();
        if self::name(podset, &hash) == name {
            Self::Found { hash, template, number: stored.revision.number }
        } else {
            Self::Missing
        }
    }
}

/// The name of the revision of a template. It contains the PodSet's UID, because the revisions of a deleted PodSet with
/// the same name may still exist.
pub fn name(podset: &PodSet, hash: &str) -> String {
    format!("{}{hash}", prefix(podset))
}

fn prefix(podset: &PodSet) -> String {
    let meta = podset.meta();
    let uid = meta.uid.as_deref().unwrap_or_default();
    let prefix = digest::cut(meta.name.as_deref().unwrap_or_default(), NAME_LENGTH);
    format!("{prefix}-{}-", digest::short(&[uid], 10))
}

/// The templates of a PodSet's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Templates<'a> {
    /// The hash of the spec's template.
    pub updated: &'a str,
    /// The hash of the template of the last complete rollout.
    pub current: String,
    /// How many pods of older templates to keep.
    pub kept: usize,
}

impl<'a> Templates<'a> {
    /// Elects the current template from the counted pods. `updated` is the hash of the spec's template.
    ///
    /// If all pods have one template, it is current, even if the manager did not see the end of its rollout. Without a
    /// known one, that of most of the older pods is. While a partition or a pause keeps pods, the updated template is
    /// accepted only when all desired pods are available with it.
    pub fn elect(
        podset: &PodSet,
        limits: Limits,
        updated: &'a str,
        members: &[CandidatePod<'_>],
        revisions: &[Arc<Revision>],
    ) -> Self {
        let mut older: BTreeMap<&str, usize> = BTreeMap::new();
        for member in members.iter().filter(|member| member.outdated) {
            *older.entry(member.pod.label(HASH_LABEL).unwrap_or_default()).or_default() += 1;
        }
        let stored = podset.status.as_ref().and_then(|status| status.current_revision.as_deref());
        let prefix = prefix(podset);
        let known = stored.and_then(|name| name.strip_prefix(&prefix)).filter(|hash| {
            // A template that neither a pod nor a revision has is lost.
            older.is_empty()
                || *hash == updated
                || older.contains_key(hash)
                || revisions.iter().any(|one| stored == Some(&*one.meta.name))
        });
        let commonest = older.iter().max_by_key(|(_, count)| **count);
        let is_enough = limits.wanted > 0 && members.len() >= limits.wanted;
        let available = members.iter().filter(|member| member.available).count();
        let keeps = limits.has_partition || limits.paused;
        let current = match (known, commonest) {
            (_, Some((hash, count))) if is_enough && *count == members.len() => hash,
            (None, Some((hash, _))) => hash,
            (None, None) => updated,
            (Some(_), None) if !keeps || is_enough && available >= limits.wanted => updated,
            (Some(known), _) => known,
        };
        let kept = if current == updated {
            0
        } else if limits.paused {
            limits.wanted
        } else {
            limits.partition.min(limits.wanted)
        };
        Self { updated, current: current.to_owned(), kept }
    }
}

/// The writes that keep the history: those before the plan's pods, and those after them.
///
/// The revision of the updated template is written before the first pod of it. Otherwise the template would be lost with
/// the next change of the spec. Everything else must not delay pods.
pub fn writes(podset: &PodSet, templates: &Templates<'_>, world: &World) -> (Steps, Steps) {
    if world.refusals.namespace_terminating {
        return (Vec::new(), Vec::new());
    }
    let updated = name(podset, templates.updated);
    let (own, others): (Vec<_>, Vec<_>) = world.revisions.iter().partition(|one| *one.meta.name == *updated);
    let last = others.iter().map(|one| one.number).max().unwrap_or_default();
    let (mut before, mut after) = (Vec::new(), Vec::new());
    match own.first() {
        None => {
            let template = podset.spec.template.as_ref();
            let apply = apply(podset, templates.updated, template, last.saturating_add(1));
            let has_pods = world.pods.iter().any(|pod| pod.label(HASH_LABEL) == Some(templates.updated));
            if has_pods { &mut after } else { &mut before }.push(apply);
        }
        // The user has restored an older template.
        Some(found) if found.number <= last && last < i64::MAX => {
            let body = json!({ "metadata": { "uid": &*found.meta.uid }, "revision": last + 1 });
            after.push(Action::merge_patch(CONTROLLER_REVISIONS, &found.meta, body));
        }
        Some(_) => {}
    }
    let current = name(podset, &templates.current);
    if let CurrentTemplate::Found { hash, template, number } = &world.current_template
        && !world.has_revision(&current)
    {
        after.push(apply(podset, hash, template.as_ref(), *number));
    }
    let stored = podset.status.as_ref().and_then(|status| status.current_revision.clone());
    let hashes: HashSet<&str> = world.pods.iter().filter_map(|pod| pod.label(HASH_LABEL)).collect();
    let in_use: HashSet<String> =
        hashes.into_iter().map(|hash| name(podset, hash)).chain([current]).chain(stored).collect();
    let mut history: Vec<&Arc<Revision>> =
        others.into_iter().filter(|one| !in_use.contains(&*one.meta.name)).collect();
    history.sort_by_key(|one| one.number);
    let limit = podset.spec.revision_history_limit.and_then(|limit| usize::try_from(limit).ok());
    let surplus = history.len().saturating_sub(limit.unwrap_or(HISTORY_LIMIT));
    let old = history.into_iter().take(surplus);
    after.extend(old.map(|one| Action::delete(CONTROLLER_REVISIONS, &one.meta, false)));
    (before, after)
}

/// Whether the revision of the spec's template was stored, and is gone.
pub fn is_lost(podset: &PodSet, world: &World) -> bool {
    let updated = name(podset, &template_hash(podset));
    let stored = podset.status.as_ref().and_then(|status| status.update_revision.as_ref());
    stored == Some(&updated) && !world.has_revision(&updated)
}

/// Creates the revision of a template, or restores its labels.
fn apply(podset: &PodSet, hash: &str, template: Option<&RawTemplate>, number: i64) -> Action<PodSetStatus> {
    let meta = podset.meta();
    let (namespace, name) = (meta.namespace.as_deref().unwrap_or_default(), name(podset, hash));
    let body = json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": { KIND_LABEL: "PodSet", NAME_LABEL: meta.name, UID_LABEL: meta.uid, HASH_LABEL: hash },
            "ownerReferences": [controller_reference(&Resource::of::<PodSet>(), meta)],
        },
        "revision": number,
        "data": { "spec": { "template": template } },
    });
    let (resource, namespace) = (CONTROLLER_REVISIONS, namespace.into());
    Action::Apply { resource, namespace, name, owner_label: None, body, force: true }
}
