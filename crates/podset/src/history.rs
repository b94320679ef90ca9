//! `quintet rollout`: the history of a PodSet's templates, the way back to one of them, and the progress of a rollout.

use jiff::Timestamp;
use kube::Resource as _;
use quintet_runtime::model::clock::whole_seconds;
use quintet_runtime::model::conditions::{READY, find_true};
use quintet_runtime::model::object::Key;
use quintet_runtime::model::pod_template::RawTemplate;
use quintet_runtime::model::rollout::{RolloutState, RolloutStatus};
use quintet_runtime::model::table::aligned;
use serde_json::{Value, json};

use crate::api::PodSet;
use crate::revision::{self, Revision, StoredRevision};
use crate::rollout::Limits;
use crate::template::{DEFAULT_TEMPLATE, hash_of, template_hash};

/// The annotation of `kubectl rollout restart`. Its change is a change of the template.
const RESTARTED_AT: &str = "kubectl.kubernetes.io/restartedAt";

/// The templates of a PodSet, the oldest first.
#[derive(Debug)]
pub struct History<'a> {
    podset: &'a PodSet,
    entries: Vec<Entry>,
}

/// A stored template.
#[derive(Debug)]
struct Entry {
    number: i64,
    hash: String,
    created: Option<Timestamp>,
    template: Option<RawTemplate>,
}

impl Entry {
    fn images(&self) -> String {
        let template = self.template.as_ref().unwrap_or(&DEFAULT_TEMPLATE);
        let containers = template.spec().get("containers").and_then(Value::as_array);
        let images = containers.into_iter().flatten().filter_map(|container| container["image"].as_str());
        images.collect::<Vec<_>>().join(",")
    }
}

impl<'a> History<'a> {
    /// The revisions among these that belong to the PodSet.
    pub fn of(podset: &'a PodSet, key: &Key, stored: Vec<StoredRevision>) -> Self {
        let own = stored.into_iter().filter_map(|stored| {
            let template = stored.template();
            let Revision { meta, number } = stored.revision;
            let hash = hash_of(template.as_ref()).into_owned();
            let is_own = meta.is_controlled_by(key) && *meta.name == revision::name(podset, &hash);
            is_own.then_some(Entry { number, hash, created: meta.created, template })
        });
        let mut entries: Vec<Entry> = own.collect();
        entries.sort_by_key(|entry| entry.number);
        Self { podset, entries }
    }

    /// A table, with the use of each template.
    pub fn table(&self) -> String {
        let updated = template_hash(self.podset);
        let headings = ["REVISION", "TEMPLATE", "USED AS", "IMAGES", "CREATED"];
        let mut lines = vec![headings.map(str::to_owned).to_vec()];
        lines.extend(self.entries.iter().map(|entry| {
            let is_updated = entry.hash == updated;
            let used_as = match (is_updated, self.is_current(entry)) {
                (true, true) => "updated,current",
                (true, false) => "updated",
                (false, true) => "current",
                (false, false) => "",
            };
            let created = entry.created.map(|at| at.to_string()).unwrap_or_default();
            vec![entry.number.to_string(), entry.hash.clone(), used_as.to_owned(), entry.images(), created]
        }));
        aligned(&lines)
    }

    /// Whether an entry has the template of the last complete rollout.
    fn is_current(&self, entry: &Entry) -> bool {
        let current = self.podset.status.as_ref().and_then(|status| status.current_revision.as_deref());
        current == Some(&revision::name(self.podset, &entry.hash))
    }

    /// The template with this number. An error is one sentence.
    pub fn template(&self, number: i64) -> Result<&RawTemplate, String> {
        Ok(self.entry(number)?.template.as_ref().unwrap_or(&DEFAULT_TEMPLATE))
    }

    fn entry(&self, number: i64) -> Result<&Entry, String> {
        self.entries.iter().find(|entry| entry.number == number).ok_or_else(|| {
            let numbers: Vec<String> = self.entries.iter().map(|entry| entry.number.to_string()).collect();
            let others = if numbers.is_empty() { "none".to_owned() } else { numbers.join(", ") };
            format!("{} has no revision {number}; it has {others}", name(self.podset))
        })
    }

    /// The return to the template with this number, or else to the current one, or else to the last one before that of
    /// the spec. None means that the spec has this template. An error is one sentence.
    pub fn undo(&self, number: Option<i64>) -> Result<Option<Undo>, String> {
        refuse_while_paused(self.podset, "undo")?;
        let updated = template_hash(self.podset);
        let entry = if let Some(number) = number {
            self.entry(number)?
        } else {
            let mut older = self.entries.iter().filter(|entry| entry.hash != updated);
            // A canary that replaced another one returns to the template of the other pods.
            let current = older.clone().find(|entry| self.is_current(entry));
            current
                .or_else(|| older.next_back())
                .ok_or_else(|| format!("{} has no older template to return to", name(self.podset)))?
        };
        if entry.hash == updated {
            return Ok(None);
        }
        let change = match &entry.template {
            Some(template) => json!({ "op": "add", "path": "/spec/template", "value": template.0 }),
            None => json!({ "op": "remove", "path": "/spec/template" }),
        };
        let operations = unchanged(self.podset, &change);
        Ok(Some(Undo { number: entry.number, images: entry.images(), operations }))
    }
}

/// The return to an older template.
#[derive(Debug, PartialEq)]
pub struct Undo {
    /// The number of its revision.
    pub number: i64,
    /// The images of its containers.
    pub images: String,
    /// The JSON patch.
    pub operations: Value,
}

/// The JSON patch that replaces all pods by new ones of the same template. An error is one sentence.
pub fn restart(podset: &PodSet, now: Timestamp) -> Result<Value, String> {
    refuse_while_paused(podset, "restart")?;
    let mut template = podset.spec.template.as_ref().unwrap_or(&DEFAULT_TEMPLATE).0.clone();
    let metadata = &mut template["metadata"];
    if !metadata["annotations"].is_object() {
        metadata["annotations"] = json!({});
    }
    let now = json!(whole_seconds(now).to_string());
    if metadata["annotations"][RESTARTED_AT] == now {
        return Err(format!("{} was restarted within the last second: run the command again", name(podset)));
    }
    metadata["annotations"][RESTARTED_AT] = now;
    Ok(unchanged(podset, &json!({ "op": "add", "path": "/spec/template", "value": template })))
}

/// The JSON patch that pauses or resumes the rollout. An error is one sentence.
pub fn pause(podset: &PodSet, paused: bool) -> Result<Value, String> {
    if Limits::of(podset).paused == paused {
        return Err(format!("{} is {}", name(podset), if paused { "paused already" } else { "not paused" }));
    }
    let path = "/spec/updateStrategy";
    // Fields of a newer definition must stay.
    Ok(unchanged(
        podset,
        &match (paused, &podset.spec.update_strategy) {
            (true, None) => json!({ "op": "add", "path": path, "value": { "paused": true } }),
            (true, Some(_)) => json!({ "op": "add", "path": format!("{path}/paused"), "value": true }),
            (false, _) => json!({ "op": "remove", "path": format!("{path}/paused") }),
        },
    ))
}

/// The patch, for this generation of the spec alone.
fn unchanged(podset: &PodSet, change: &Value) -> Value {
    let meta = podset.meta();
    json!([
        { "op": "test", "path": "/metadata/uid", "value": meta.uid },
        { "op": "test", "path": "/metadata/generation", "value": meta.generation },
        change,
    ])
}

fn refuse_while_paused(podset: &PodSet, what: &str) -> Result<(), String> {
    if Limits::of(podset).paused {
        let (name, namespace) = (name(podset), podset.meta().namespace.as_deref().unwrap_or_default());
        return Err(format!("cannot {what} {name}: first run quintet rollout resume {name} -n {namespace}"));
    }
    Ok(())
}

fn name(podset: &PodSet) -> String {
    format!("podset/{}", podset.meta().name.as_deref().unwrap_or_default())
}

/// The progress of a rollout, from the status. A rollout that is paused continues.
pub fn progress(podset: &PodSet) -> RolloutStatus {
    let meta = podset.meta();
    let status = podset.status.as_ref();
    if status.and_then(|status| status.observed_generation) != meta.generation {
        let message = "The manager has not observed the change of the spec yet.";
        return RolloutStatus::new(RolloutState::Continues, message);
    }
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    match (find_true(conditions, READY), find_true(conditions, "Stalled")) {
        (Some(ready), _) => RolloutStatus::new(RolloutState::Complete, &*ready.message),
        (None, Some(stalled)) => RolloutStatus::new(RolloutState::Failed, &*stalled.message),
        (None, None) => {
            // It contains what the API server rejects, if it rejects something.
            let ready = conditions.iter().find(|condition| condition.type_ == READY);
            let message = ready.map_or("", |ready| &ready.message);
            RolloutStatus::new(RolloutState::Continues, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quintet_runtime::model::object::Object as _;
    use rstest::rstest;

    fn podset(image: &str, paused: bool) -> PodSet {
        serde_json::from_value(json!({
            "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
            "metadata": {"name": "p", "namespace": "ns", "uid": "set", "generation": 3},
            "spec": {"template": template(image), "updateStrategy": {"paused": paused}},
        }))
        .unwrap()
    }

    fn template(image: &str) -> Value {
        if image.is_empty() {
            Value::Null
        } else {
            json!({"spec": {"containers": [{"name": "c", "image": image}]}})
        }
    }

    /// Revisions with these images, numbered from 1. An empty image stands for the built-in template.
    fn revisions(images: &[&str]) -> Vec<StoredRevision> {
        let revision = |(at, image): (usize, &&str)| {
            let hash = template_hash(&podset(image, false));
            json!({
                "metadata": {"name": revision::name(&podset(image, false), &hash), "namespace": "ns",
                    "ownerReferences": [{"apiVersion": "g/v1", "kind": "PodSet", "name": "p", "uid": "set", "controller": true}]},
                "revision": at + 1, "data": {"spec": {"template": template(image)}},
            })
        };
        images.iter().enumerate().map(|one| serde_json::from_value(revision(one)).unwrap()).collect()
    }

    fn undone(podset: &PodSet, images: &[&str], number: Option<i64>) -> Result<Option<(i64, Value)>, String> {
        let undo = History::of(podset, &podset.key(), revisions(images)).undo(number)?;
        Ok(undo.map(|undo| (undo.number, undo.operations[2].clone())))
    }

    #[test]
    fn returns_to_the_last_template_or_a_numbered_one() {
        let podset = podset("three", false);
        let to = |image: &str| json!({"op": "add", "path": "/spec/template", "value": template(image)});
        let images = ["", "two", "three"];
        assert_eq!(undone(&podset, &images, None), Ok(Some((2, to("two")))));
        assert_eq!(
            undone(&podset, &images, Some(1)),
            Ok(Some((1, json!({"op": "remove", "path": "/spec/template"}))))
        );
        assert_eq!(undone(&podset, &images, Some(3)), Ok(None));
        assert_eq!(
            undone(&podset, &images, Some(7)),
            Err("podset/p has no revision 7; it has 1, 2, 3".to_owned())
        );
        assert_eq!(
            undone(&podset, &["three"], None),
            Err("podset/p has no older template to return to".to_owned())
        );
    }

    #[test]
    fn a_second_canary_returns_to_the_current_template() {
        let mut podset = podset("three", false);
        let current = revision::name(&podset, &template_hash(&self::podset("one", false)));
        podset.status = serde_json::from_value(json!({"currentRevision": current})).unwrap();
        let undo = undone(&podset, &["one", "two", "three"], None).unwrap().unwrap();
        assert_eq!(undo.0, 1);
    }

    #[test]
    fn the_patch_fits_one_generation() {
        let podset = podset("two", false);
        let undo =
            History::of(&podset, &podset.key(), revisions(&["one", "two"])).undo(None).unwrap().unwrap();
        assert_eq!(undo.operations[0]["value"], "set");
        assert_eq!(undo.operations[1], json!({"op": "test", "path": "/metadata/generation", "value": 3}));
        assert_eq!(undo.images, "one");
    }

    #[test]
    fn ignores_revisions_of_others_and_exchanged_ones() {
        let podset = podset("two", false);
        let mut stored = revisions(&["one", "two"]);
        stored[0].data["spec"]["template"] = template("exchanged");
        let key = Key { uid: "other".into(), ..podset.key() };
        assert_eq!(History::of(&podset, &podset.key(), stored).entries.len(), 1);
        assert_eq!(History::of(&podset, &key, revisions(&["one"])).entries.len(), 0);
    }

    #[test]
    fn prints_the_use_of_each_template() {
        let mut podset = podset("two", false);
        let hash = template_hash(&self::podset("one", false)).into_owned();
        podset.status =
            serde_json::from_value(json!({"currentRevision": revision::name(&podset, &hash)})).unwrap();
        let history = History::of(&podset, &podset.key(), revisions(&["", "one", "two"]));
        let table = history.table();
        let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["1", "v1-default", "-", "busybox", "-"]);
        assert_eq!(words[2], ["2", &hash, "current", "one", "-"]);
        assert_eq!((words[3][2], words[3][3]), ("updated", "two"));
        assert_eq!(history.template(1).unwrap(), &*DEFAULT_TEMPLATE);
    }

    #[test]
    fn a_restart_changes_one_annotation() {
        let now: Timestamp = "2026-01-01T00:00:00.5Z".parse().unwrap();
        for (image, expected) in [("one", template("one")), ("", DEFAULT_TEMPLATE.0.clone())] {
            let mut expected = expected;
            expected["metadata"] = json!({"annotations": {RESTARTED_AT: "2026-01-01T00:00:00Z"}});
            assert_eq!(restart(&podset(image, false), now).unwrap()[2]["value"], expected);
        }
    }

    #[test]
    fn refuses_while_paused() {
        let paused = podset("two", true);
        let expected = "cannot undo podset/p: first run quintet rollout resume podset/p -n ns";
        assert_eq!(undone(&paused, &["one", "two"], None), Err(expected.to_owned()));
        assert!(restart(&paused, Timestamp::UNIX_EPOCH).is_err());
        assert_eq!(pause(&paused, true), Err("podset/p is paused already".to_owned()));
    }

    #[test]
    fn pauses_and_resumes() {
        let mut of = podset("two", false);
        assert_eq!(pause(&of, false), Err("podset/p is not paused".to_owned()));
        let change = |of: &PodSet, paused| pause(of, paused).unwrap()[2].clone();
        let path = "/spec/updateStrategy";
        let field = format!("{path}/paused");
        assert_eq!(change(&of, true), json!({"op": "add", "path": field, "value": true}));
        of.spec.update_strategy.as_mut().unwrap().paused = Some(true);
        assert_eq!(change(&of, false), json!({"op": "remove", "path": field}));
        of.spec.update_strategy = None;
        assert_eq!(change(&of, true), json!({"op": "add", "path": path, "value": {"paused": true}}));
    }

    #[rstest]
    #[case::new(2, &[("Ready", "True", "done")], RolloutState::Continues, "The manager has not observed the change of the spec yet.")]
    #[case::complete(3, &[("Ready", "True", "done")], RolloutState::Complete, "done")]
    #[case::continues(3, &[("Ready", "False", "two of three")], RolloutState::Continues, "two of three")]
    #[case::stalled(3, &[("Ready", "False", "late"), ("Stalled", "True", "stuck")], RolloutState::Failed, "stuck")]
    fn reads_the_progress(
        #[case] observed: i64,
        #[case] conditions: &[(&str, &str, &str)],
        #[case] state: RolloutState,
        #[case] message: &str,
    ) {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status, message)| {
                json!({"type": type_, "status": status, "message": message, "reason": "R",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let mut podset = podset("one", false);
        podset.status =
            serde_json::from_value(json!({"observedGeneration": observed, "conditions": conditions}))
                .unwrap();
        assert_eq!(progress(&podset), RolloutStatus::new(state, message));
    }
}
