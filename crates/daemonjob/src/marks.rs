//! Marks: the labels that the manager sets on a Node after a success, and the taints that it removes.
//!
//! A mark is written once for each success. An annotation of the Node records this success, and the same patch
//! writes both. So no crash can separate them, and the manager does not revert what an administrator changes
//! later. The patch tests every value that the decision depends on, because another client may change the Node
//! meanwhile. A write that arrives late therefore fails.

use std::fmt;

use jiff::Timestamp;
use quintet_runtime::model::conditions::shorten;
use quintet_runtime::model::core_types::{Node, Taint};
use quintet_runtime::model::plan::{Action, MOST_CREATIONS};
use quintet_runtime::model::refusals::{Refusal, Verb};
use quintet_runtime::model::resource::NODES;
use serde_json::{Value, json};

use crate::api::{DaemonJob, DaemonJobStatus, OnSuccess};
use crate::history::Histories;
use crate::labels::MARKED_ANNOTATION;
use crate::ledger::{AttemptResult, Entry};
use crate::mark_prefixes::{NotAllowed, Permitted};
use crate::node_state::{SelectedNode, State, counted};
use crate::observe::World;

/// The condition, and the reason of the condition Complete, while marks cannot be written.
pub const REFUSED: &str = "MarkRefused";
/// The reason of the condition Complete while marks are being written.
pub const MARKING: &str = "Marking";
/// This number of refused marks probably shares one cause. Then the manager attempts only one of them.
const SAME_CAUSE: usize = 3;

/// A success of a node. Unlike the run, the two numbers differ for each success: a node that reboots during a
/// run, or that is retried after its record was lost, may succeed again in the same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success {
    /// The number of its rollout.
    pub rollout: u64,
    /// The number of its pod.
    pub pod: u64,
}

impl Success {
    /// The last attempt of a node, if it succeeded and the node has settled.
    pub fn of(latest: &Entry) -> Option<Self> {
        let attempt = latest.attempt.as_ref().filter(|attempt| attempt.clear)?;
        let has_succeeded = attempt.result == AttemptResult::Succeeded;
        has_succeeded.then_some(Self { rollout: attempt.rollout, pod: attempt.pod })
    }

    /// The success that the annotation of a Node records.
    fn recorded(node: &Node, annotation: &str) -> Option<Self> {
        let (rollout, pod) = node.meta.annotations.get(annotation)?.split_once('/')?;
        Some(Self { rollout: rollout.parse().ok()?, pod: pod.parse().ok()? })
    }
}

impl fmt::Display for Success {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.rollout, self.pod)
    }
}

/// The name of the annotation of Nodes for the DaemonJob with this UID.
pub fn annotation(uid: &str) -> String {
    format!("{MARKED_ANNOTATION}{uid}")
}

/// Whether the manager marks a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// The node has the mark of this success.
    Nothing,
    /// The operations of a JSON patch.
    Patch(Value),
    /// The namespace may not change this key.
    Refused {
        /// The key of a label or taint.
        key: Box<str>,
        /// Why the manager may not change it.
        why: NotAllowed,
    },
}

/// Decides whether to mark a node after a success. `annotation` records the successes of the DaemonJob.
pub fn decide(
    spec: &OnSuccess,
    node: &Node,
    permitted: &Permitted,
    annotation: &str,
    success: Success,
) -> Decision {
    if Success::recorded(node, annotation) == Some(success) {
        return Decision::Nothing;
    }
    match first_refused(spec, permitted) {
        Some((key, why)) => Decision::Refused { key: key.into(), why },
        None => Decision::Patch(operations(spec, node, annotation, success)),
    }
}

/// The first key that the namespace may not change.
fn first_refused<'s>(spec: &'s OnSuccess, permitted: &Permitted) -> Option<(&'s str, NotAllowed)> {
    spec.keys().find_map(|key| Some((key, permitted.refuses(key)?)))
}

/// A key as a part of a JSON pointer.
fn pointer(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The JSON patch. It fails if the Node was created again, if another process has marked it, or if a taint that it
/// removes has another index. An index alone would remove another taint, and a merge patch would replace all
/// taints.
fn operations(spec: &OnSuccess, node: &Node, annotation: &str, success: Success) -> Value {
    let test = |path: &str, value: Value| json!({ "op": "test", "path": path, "value": value });
    let add = |path: &str, value: Value| json!({ "op": "add", "path": path, "value": value });
    let mut operations = vec![test("/metadata/uid", json!(&*node.meta.uid))];
    // A test for null holds if the value is absent.
    if node.has_annotations {
        let path = format!("/metadata/annotations/{}", pointer(annotation));
        operations.push(test(&path, json!(node.meta.annotations.get(annotation))));
        operations.push(add(&path, json!(success.to_string())));
    } else {
        operations.push(test("/metadata/annotations", Value::Null));
        operations.push(add("/metadata/annotations", json!({ annotation: success.to_string() })));
    }
    let has_labels = node.meta.labels.iter().next().is_some();
    if !has_labels && spec.labels().next().is_some() {
        operations.push(test("/metadata/labels", Value::Null));
        operations.push(add("/metadata/labels", json!({})));
    }
    let labels = spec.labels();
    operations
        .extend(labels.map(|(key, value)| add(&format!("/metadata/labels/{}", pointer(key)), json!(value))));
    // From the last one, so that a removal changes no index that follows.
    for (at, taint) in node.taints.iter().enumerate().rev().filter(|(_, taint)| removes(spec, taint)) {
        let path = format!("/spec/taints/{at}");
        operations.push(test(&format!("{path}/key"), json!(&*taint.key)));
        operations.push(test(&format!("{path}/effect"), json!(&*taint.effect)));
        operations.push(json!({ "op": "remove", "path": path }));
    }
    operations.into()
}

fn removes(spec: &OnSuccess, taint: &Taint) -> bool {
    spec.taints().any(|one| *one.key == *taint.key && *<&str>::from(one.effect) == *taint.effect)
}

/// Why marks cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkRefusal {
    /// Whether a user must change the spec or the chart. Otherwise the manager retries.
    pub needs_user: bool,
    /// The message, with the remedy.
    pub message: String,
}

impl MarkRefusal {
    /// The reason of the condition.
    pub fn reason(&self) -> &'static str {
        if self.needs_user { "NotAllowed" } else { "FailedWrite" }
    }

    fn not_allowed(job: &DaemonJob, key: &str, why: NotAllowed) -> Self {
        let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
        let message = match why {
            NotAllowed::Reserved => {
                format!(
                    "onSuccess cannot change {key}, which belongs to Kubernetes: use a key of another domain"
                )
            }
            NotAllowed::Namespace | NotAllowed::Prefix => {
                let (prefix, _) = key.split_once('/').unwrap_or(("example.com", ""));
                let what = if why == NotAllowed::Namespace {
                    format!(
                        "DaemonJobs in namespace {namespace} may not change Nodes, so onSuccess cannot change {key}"
                    )
                } else {
                    format!("no prefix that is allowed in namespace {namespace} matches {key}")
                };
                format!(
                    "{what}: let an administrator set the chart value daemonJob.nodeMarks, for example to {{{namespace}: \
                     [{prefix}/]}}"
                )
            }
        };
        Self { needs_user: true, message }
    }

    fn failed_write(first: &Refusal, rejected: usize) -> Self {
        let nodes = counted(rejected as u64, "node");
        let message = shorten(first.message.clone(), 256);
        Self { needs_user: false, message: format!("{nodes} cannot be marked: {message}") }
    }
}

/// The marks that a DaemonJob needs now.
#[derive(Debug, Default)]
pub struct Marks {
    /// The number of done nodes without the mark of their last success.
    pub missing: usize,
    /// Why marks cannot be written, even before the first success.
    pub refusal: Option<MarkRefusal>,
    /// The patches to send.
    pub writes: Vec<Action<DaemonJobStatus>>,
    /// When to attempt a rejected patch again.
    pub again: Option<Timestamp>,
}

impl Marks {
    /// Whether no mark is written until a user acts.
    pub fn needs_user(&self) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| refusal.needs_user)
    }

    /// The marks, or None if the spec has none.
    pub fn of(
        job: &DaemonJob,
        world: &World,
        nodes: &[SelectedNode<'_>],
        histories: &Histories<'_>,
        now: Timestamp,
    ) -> Option<Self> {
        let spec = job.spec.on_success.as_ref().filter(|spec| !spec.is_empty())?;
        let annotation = annotation(job.metadata.uid.as_deref().unwrap_or_default());
        let done = nodes.iter().filter(|selected| selected.state == State::Done);
        let unmarked = done.filter_map(|selected| {
            let success = Success::of(histories.nodes[selected.at].latest.as_deref()?)?;
            let is_marked = Success::recorded(selected.node, &annotation) == Some(success);
            (!is_marked).then_some((&**selected.node, success))
        });
        let mut unmarked: Vec<(&Node, Success)> = unmarked.collect();
        let mut marks = Self { missing: unmarked.len(), ..Self::default() };
        if let Some((key, why)) = first_refused(spec, &world.permitted_marks) {
            marks.refusal = Some(MarkRefusal::not_allowed(job, key, why));
            return Some(marks);
        }
        marks.withhold(&mut unmarked, world, now);
        // The other nodes get their marks when the caches show these.
        for (node, success) in unmarked.into_iter().take(MOST_CREATIONS) {
            let decision = decide(spec, node, &world.permitted_marks, &annotation, success);
            if let Decision::Patch(operations) = decision {
                marks.writes.push(Action::json_patch(NODES, &node.meta, operations));
            }
        }
        Some(marks)
    }

    /// Drops the nodes whose marks the API server rejected, until their next attempt.
    fn withhold(&mut self, unmarked: &mut Vec<(&Node, Success)>, world: &World, now: Timestamp) {
        if world.refusals.is_empty() {
            return;
        }
        let rejection = |node: &Node| world.refusals.of(Verb::JsonPatch, &NODES, &node.meta.name);
        let rejected = unmarked.iter().filter_map(|(node, _)| Some((*node, rejection(node)?)));
        let rejected: Vec<(&Node, &Refusal)> = rejected.collect();
        let Some((next, first)) = rejected.iter().min_by_key(|(_, refusal)| refusal.until) else { return };
        if rejected.len() >= SAME_CAUSE {
            unmarked.retain(|(node, _)| node.meta.uid == next.meta.uid);
        }
        unmarked.retain(|(node, _)| rejection(node).is_none_or(|refusal| refusal.until <= now));
        self.again = rejected.iter().map(|(_, refusal)| refusal.until).filter(|until| *until > now).min();
        self.refusal = Some(MarkRefusal::failed_write(first, rejected.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::sync::Arc;

    const RECORD: &str = "dj.dysproz.io/marked-u";
    const SUCCESS: Success = Success { rollout: 2, pod: 3 };

    fn spec(spec: &Value) -> OnSuccess {
        serde_json::from_value(spec.clone()).unwrap()
    }

    fn prepared() -> OnSuccess {
        spec(&json!({"labels": {"example.com/ready": "yes"},
            "removeTaints": [{"key": "example.com/raw", "effect": "NoSchedule"}]}))
    }

    fn permitted() -> Permitted {
        let prefixes: [Box<str>; 1] = ["example.com/".into()];
        Permitted::Prefixes(prefixes.into())
    }

    fn node(metadata: &Value, taints: &[(&str, &str)]) -> Node {
        let taints = taints.iter().map(|(key, effect)| json!({"key": key, "effect": effect}));
        let mut node = json!({"metadata": metadata, "spec": {"taints": taints.collect::<Vec<_>>()}});
        node["metadata"]["name"] = json!("n");
        node["metadata"]["uid"] = json!("uid");
        serde_json::from_value(node).unwrap()
    }

    fn marked(text: &str) -> Value {
        json!({"labels": {"a": "b"}, "annotations": {RECORD: text}})
    }

    /// The operations as short texts: operation, path and value.
    fn patch(spec: &OnSuccess, node: &Node) -> Vec<String> {
        let Decision::Patch(operations) = decide(spec, node, &permitted(), RECORD, SUCCESS) else {
            return Vec::new();
        };
        let operations = operations.as_array().unwrap();
        let text = |one: &Value| {
            let (op, path) = (one["op"].as_str().unwrap(), one["path"].as_str().unwrap());
            let value = one.get("value").map(|value| format!(" {value}"));
            format!("{op} {path}{}", value.unwrap_or_default())
        };
        operations.iter().map(text).collect()
    }

    #[rstest]
    #[case::never(json!({"annotations": {"other": "x"}}), false)]
    #[case::the_same(marked("2/3"), true)]
    #[case::an_earlier_pod(marked("2/2"), false)]
    #[case::an_earlier_rollout(marked("1/3"), false)]
    #[case::another_daemonjob(json!({"annotations": {"dj.dysproz.io/marked-v": "2/3"}}), false)]
    #[case::unreadable(marked("done"), false)]
    fn marks_a_node_once_for_each_success(#[case] metadata: Value, #[case] is_marked: bool) {
        let decision = decide(&prepared(), &node(&metadata, &[]), &permitted(), RECORD, SUCCESS);
        assert_eq!(decision == Decision::Nothing, is_marked, "{decision:?}");
    }

    #[test]
    fn one_patch_has_the_changes_and_their_record() {
        let node = node(&marked("2/1"), &[("example.com/raw", "NoSchedule")]);
        assert_eq!(
            patch(&prepared(), &node),
            [
                r#"test /metadata/uid "uid""#,
                r#"test /metadata/annotations/dj.dysproz.io~1marked-u "2/1""#,
                r#"add /metadata/annotations/dj.dysproz.io~1marked-u "2/3""#,
                r#"add /metadata/labels/example.com~1ready "yes""#,
                r#"test /spec/taints/0/key "example.com/raw""#,
                r#"test /spec/taints/0/effect "NoSchedule""#,
                "remove /spec/taints/0",
            ]
        );
    }

    /// A Node without annotations or labels lacks these maps.
    #[test]
    fn creates_absent_maps() {
        assert_eq!(
            patch(&prepared(), &node(&json!({}), &[])),
            [
                r#"test /metadata/uid "uid""#,
                "test /metadata/annotations null",
                r#"add /metadata/annotations {"dj.dysproz.io/marked-u":"2/3"}"#,
                "test /metadata/labels null",
                "add /metadata/labels {}",
                r#"add /metadata/labels/example.com~1ready "yes""#,
            ]
        );
        let other = node(&json!({"annotations": {"other": "x"}}), &[]);
        let of_record = &patch(&prepared(), &other)[1];
        assert_eq!(of_record, "test /metadata/annotations/dj.dysproz.io~1marked-u null");
    }

    /// A removal changes the index of the taints after it. Another effect is another taint.
    #[test]
    fn removes_taints_from_the_last_one() {
        let taints = [
            ("example.com/raw", "NoSchedule"),
            ("quarantine", "NoSchedule"),
            ("example.com/raw", "NoExecute"),
            ("example.com/old", "NoSchedule"),
        ];
        let spec = spec(&json!({"removeTaints": [{"key": "example.com/raw", "effect": "NoSchedule"},
            {"key": "example.com/old", "effect": "NoSchedule"}]}));
        let patch = patch(&spec, &node(&marked("2/1"), &taints));
        let removed: Vec<&String> = patch.iter().filter(|one| one.starts_with("remove")).collect();
        assert_eq!(removed, ["remove /spec/taints/3", "remove /spec/taints/0"]);
    }

    #[rstest]
    #[case::another_prefix("example.org/ready", NotAllowed::Prefix)]
    #[case::of_kubernetes("kubernetes.io/ready", NotAllowed::Reserved)]
    fn changes_only_allowed_keys(#[case] key: &str, #[case] why: NotAllowed) {
        let expected = Decision::Refused { key: key.into(), why };
        let label = spec(&json!({"labels": {"example.com/ready": "yes", key: "yes"}}));
        let taint = spec(&json!({"labels": {"example.com/ready": "yes"},
            "removeTaints": [{"key": key, "effect": "NoExecute"}]}));
        for spec in [label, taint] {
            assert_eq!(decide(&spec, &node(&json!({}), &[]), &permitted(), RECORD, SUCCESS), expected);
        }
        let none = decide(&prepared(), &node(&json!({}), &[]), &Permitted::default(), RECORD, SUCCESS);
        let key = "example.com/ready".into();
        assert_eq!(none, Decision::Refused { key, why: NotAllowed::Namespace });
    }

    #[rstest]
    #[case::settled("outcome=Succeeded clear=true", Some(SUCCESS))]
    #[case::not_settled("outcome=Succeeded", None)]
    #[case::failed("outcome=Failed failures=1 clear=true", None)]
    #[case::later_pod_never_ran("outcome=Rejected attempt=Succeeded/h/2/3 clear=true", Some(SUCCESS))]
    #[case::later_pod_failed("outcome=Rejected attempt=Failed/h/2/3 clear=true", None)]
    fn finds_the_success_of_a_node(#[case] words: &str, #[case] expected: Option<Success>) {
        let line = format!("node=n template=h rollout=2 run=1 pod=3 {words} ended=2026-01-01T00:00:00Z");
        let line = if words.contains("attempt=") { line.replace("pod=3 ", "pod=9 ") } else { line };
        assert_eq!(Success::of(&line.parse().unwrap()), expected);
    }

    /// The nodes `0` to `4` without marks, of which some were rejected until these seconds.
    fn attempted(rejected: &[(usize, i64)], now: i64) -> (Vec<String>, Option<i64>) {
        let second = |second: i64| Timestamp::from_second(second).unwrap();
        let mut world = World::default();
        for (node, until) in rejected {
            let refusal = Refusal {
                verb: Verb::JsonPatch,
                reason: quintet_runtime::model::refusals::RefusalReason::Other,
                message: "no".into(),
                times: 1,
                until: second(*until),
            };
            world.refusals.insert(&NODES, node.to_string(), refusal);
        }
        let nodes = (0..5).map(|number: usize| {
            let mut node = node(&json!({}), &[]);
            (node.meta.name, node.meta.uid) = (number.to_string().into(), number.to_string().into());
            Arc::new(node)
        });
        let nodes: Vec<Arc<Node>> = nodes.collect();
        let mut unmarked: Vec<(&Node, Success)> = nodes.iter().map(|node| (&**node, SUCCESS)).collect();
        let mut marks = Marks::default();
        marks.withhold(&mut unmarked, &world, second(now));
        assert_eq!(marks.refusal.is_some(), !rejected.is_empty());
        let names = unmarked.iter().map(|(node, _)| node.meta.name.to_string());
        (names.collect(), marks.again.map(Timestamp::as_second))
    }

    #[rstest]
    #[case::nothing(&[], 5, &["0", "1", "2", "3", "4"], None)]
    #[case::one_waits(&[(1, 10)], 5, &["0", "2", "3", "4"], Some(10))]
    #[case::one_is_due(&[(1, 10)], 10, &["0", "1", "2", "3", "4"], None)]
    #[case::many_wait(&[(1, 10), (2, 11), (3, 12)], 5, &[], Some(10))]
    #[case::the_first_of_many_is_due(&[(1, 10), (2, 11), (3, 12)], 20, &["1"], None)]
    fn attempts_one_of_many_rejected_marks(
        #[case] rejected: &[(usize, i64)],
        #[case] now: i64,
        #[case] names: &[&str],
        #[case] again: Option<i64>,
    ) {
        let (attempted, at) = attempted(rejected, now);
        assert_eq!((attempted, at), (names.iter().map(|name| (*name).to_owned()).collect(), again));
    }

    #[test]
    fn the_message_has_the_missing_value() {
        let job: DaemonJob =
            serde_json::from_value(json!({"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
            "metadata": {"name": "d", "namespace": "team-a"}, "spec": {"template": {}}}))
            .unwrap();
        let of = |why| MarkRefusal::not_allowed(&job, "example.org/ready", why);
        let (none, other) = (of(NotAllowed::Namespace), of(NotAllowed::Prefix));
        let remedy = "set the chart value daemonJob.nodeMarks, for example to {team-a: [example.org/]}";
        for refusal in [&none, &other] {
            assert!(refusal.message.ends_with(remedy), "{}", refusal.message);
            assert_eq!((refusal.reason(), refusal.needs_user), ("NotAllowed", true));
        }
        assert_ne!(none, other);
    }
}
