//! Which nodes a DaemonJob runs on: DaemonSet's rules, as pure functions.
//!
//! Sources: the DaemonSet controller's `NodeShouldRunDaemonPod` (two different questions: may a pod be made, may
//! one go on running) and the tolerations that it adds to every pod.

use quintet_kit::types::{Node, Taint};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// What a template says about nodes, parsed once for all of them.
#[derive(Debug, Default)]
pub struct Placement {
    node_name: Option<String>,
    node_selector: Vec<(String, String)>,
    /// Terms are alternatives; None where no required affinity is given.
    required: Option<Vec<Term>>,
    tolerations: Vec<Toleration>,
}

/// Whether a node may have a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A pod may be made, and go on running.
    Run,
    /// No pod may be made, but one that runs may go on.
    Continue(Why),
    /// Neither.
    Refuse(Why),
}

/// Why a node may not have a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its labels or name are not selected.
    NotSelected,
    /// A taint is not tolerated.
    Taint(Box<str>),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Term {
    match_expressions: Vec<Requirement>,
    match_fields: Vec<Requirement>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Requirement {
    key: String,
    operator: String,
    values: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Toleration {
    key: String,
    operator: String,
    value: String,
    effect: String,
}

/// The tolerations that the DaemonSet controller adds, as (key, effect).
const DAEMON_TOLERATIONS: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
];
/// Added for pods on the host's network only.
const HOST_NETWORK_TOLERATION: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

fn added_tolerations(spec: &Map<String, Value>) -> impl Iterator<Item = (&'static str, &'static str)> {
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool) == Some(true);
    DAEMON_TOLERATIONS.into_iter().chain(host_network.then_some(HOST_NETWORK_TOLERATION))
}

impl Placement {
    /// Parses what a pod's spec says about nodes. What cannot be understood selects no node rather than all:
    /// the API server would refuse such a pod.
    pub fn of(spec: &Map<String, Value>) -> Self {
        let list = |value: Option<&Value>| value.filter(|value| !value.is_null()).cloned();
        let required = spec
            .get("affinity")
            .and_then(|affinity| {
                affinity.pointer("/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution")
            })
            .filter(|required| !required.is_null())
            .map(|required| {
                list(required.get("nodeSelectorTerms"))
                    .and_then(|terms| serde_json::from_value(terms).ok())
                    .unwrap_or_default()
            });
        let mut tolerations: Vec<Toleration> = list(spec.get("tolerations"))
            .and_then(|tolerations| serde_json::from_value(tolerations).ok())
            .unwrap_or_default();
        tolerations.extend(added_tolerations(spec).map(|(key, effect)| Toleration {
            key: key.to_owned(),
            operator: "Exists".to_owned(),
            value: String::new(),
            effect: effect.to_owned(),
        }));
        Self {
            node_name: spec
                .get("nodeName")
                .and_then(Value::as_str)
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
            node_selector: spec
                .get("nodeSelector")
                .and_then(Value::as_object)
                .map(|selector| {
                    selector
                        .iter()
                        .map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()))
                        .collect()
                })
                .unwrap_or_default(),
            required,
            tolerations,
        }
    }

    /// The verdict on a node.
    pub fn verdict(&self, node: &Node) -> Verdict {
        let named = self.node_name.as_deref().is_none_or(|name| name == &*node.meta.name);
        let labelled =
            self.node_selector.iter().all(|(key, value)| node.meta.labels.get(key) == Some(value.as_str()));
        let required = self.required.as_ref().is_none_or(|terms| terms.iter().any(|term| term.matches(node)));
        if !(named && labelled && required) {
            return Verdict::Refuse(Why::NotSelected);
        }
        let mut verdict = Verdict::Run;
        let cordon = Taint {
            key: "node.kubernetes.io/unschedulable".into(),
            value: "".into(),
            effect: "NoSchedule".into(),
        };
        // A cordon counts even before the node controller has made a taint of it.
        let taints = node.taints.iter().chain(node.unschedulable.then_some(&cordon));
        for taint in taints.filter(|taint| !self.tolerates(taint)) {
            match &*taint.effect {
                "NoExecute" => return Verdict::Refuse(Why::Taint(taint.key.clone())),
                "NoSchedule" if verdict == Verdict::Run => {
                    verdict = Verdict::Continue(Why::Taint(taint.key.clone()));
                }
                _ => {}
            }
        }
        verdict
    }

    fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| {
            (toleration.effect.is_empty() || *toleration.effect == *taint.effect)
                && (toleration.key.is_empty() && toleration.operator == "Exists"
                    || *toleration.key == *taint.key)
                && match toleration.operator.as_str() {
                    "Exists" => true,
                    "" | "Equal" => *toleration.value == *taint.value,
                    "Gt" => {
                        numbers(&taint.value, &toleration.value).is_some_and(|(taint, ours)| taint > ours)
                    }
                    "Lt" => {
                        numbers(&taint.value, &toleration.value).is_some_and(|(taint, ours)| taint < ours)
                    }
                    _ => false,
                }
        })
    }
}

impl Term {
    /// An empty term matches nothing, as the API says.
    fn matches(&self, node: &Node) -> bool {
        let empty = self.match_expressions.is_empty() && self.match_fields.is_empty();
        !empty
            && self.match_expressions.iter().all(|wanted| wanted.matches(node.meta.labels.get(&wanted.key)))
            && self
                .match_fields
                .iter()
                .all(|wanted| wanted.key == "metadata.name" && wanted.matches(Some(&node.meta.name)))
    }
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        let listed = value.is_some_and(|value| self.values.iter().any(|wanted| wanted == value));
        let compared = || numbers(value?, self.values.first()?);
        match self.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            "Gt" => compared().is_some_and(|(value, wanted)| value > wanted),
            "Lt" => compared().is_some_and(|(value, wanted)| value < wanted),
            _ => false,
        }
    }
}

fn numbers(one: &str, other: &str) -> Option<(i64, i64)> {
    Some((one.parse().ok()?, other.parse().ok()?))
}

/// The spec of the pod for one node: pinned to it by required node affinity on its name, ANDed into each of the
/// user's own terms (terms are alternatives, so a further term would un-pin it), with DaemonSet's tolerations.
pub fn pinned(spec: &Map<String, Value>, node: &str) -> Value {
    let mut spec = spec.clone();
    let pin = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    let mut affinity =
        spec.get("affinity").filter(|affinity| affinity.is_object()).cloned().unwrap_or(json!({}));
    if !affinity["nodeAffinity"].is_object() {
        affinity["nodeAffinity"] = json!({});
    }
    let required = &mut affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let mut terms = required["nodeSelectorTerms"].as_array().cloned().unwrap_or_default();
    if required.is_null() {
        terms.push(json!({}));
    }
    for term in &mut terms {
        match term["matchFields"].as_array_mut() {
            Some(fields) => fields.push(pin.clone()),
            None => term["matchFields"] = json!([pin]),
        }
    }
    *required = json!({ "nodeSelectorTerms": terms });
    spec.insert("affinity".to_owned(), affinity);

    let mut tolerations = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    for (key, effect) in added_tolerations(&spec) {
        let added = json!({ "key": key, "operator": "Exists", "effect": effect });
        if !tolerations.contains(&added) {
            tolerations.push(added);
        }
    }
    spec.insert("tolerations".to_owned(), Value::Array(tolerations));
    Value::Object(spec)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn node(value: Value) -> Node {
        serde_json::from_value(value).unwrap()
    }

    fn verdict(spec: &Value, of: Value) -> Verdict {
        Placement::of(spec.as_object().unwrap()).verdict(&node(of))
    }

    fn affinity(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    #[rstest]
    #[case::no_wish(json!({}), true)]
    #[case::selector(json!({"nodeSelector": {"zone": "a"}}), true)]
    #[case::selector_of_others(json!({"nodeSelector": {"zone": "b"}}), false)]
    #[case::selector_of_absent(json!({"nodeSelector": {"rack": "1"}}), false)]
    #[case::null_selector(json!({"nodeSelector": null, "affinity": null, "tolerations": null}), true)]
    #[case::node_name(json!({"nodeName": "n"}), true)]
    #[case::other_node_name(json!({"nodeName": "m"}), false)]
    #[case::in_(affinity(&json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]}])), true)]
    #[case::not_in(affinity(&json!([{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}])), false)]
    #[case::not_in_absent(affinity(&json!([{"matchExpressions": [{"key": "rack", "operator": "NotIn", "values": ["a"]}]}])), true)]
    #[case::exists(affinity(&json!([{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}])), true)]
    #[case::does_not_exist(affinity(&json!([{"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}])), false)]
    #[case::gt(affinity(&json!([{"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["7"]}]}])), true)]
    #[case::gt_equal(affinity(&json!([{"matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["8"]}]}])), false)]
    #[case::lt(affinity(&json!([{"matchExpressions": [{"key": "cores", "operator": "Lt", "values": ["9"]}]}])), true)]
    #[case::gt_of_no_number(affinity(&json!([{"matchExpressions": [{"key": "zone", "operator": "Gt", "values": ["1"]}]}])), false)]
    #[case::terms_are_alternatives(affinity(&json!([{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}])), true)]
    #[case::expressions_are_anded(affinity(&json!([{"matchExpressions": [{"key": "rack", "operator": "Exists"}, {"key": "zone", "operator": "Exists"}]}])), false)]
    #[case::field(affinity(&json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}])), true)]
    #[case::other_field(affinity(&json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}])), false)]
    #[case::empty_term(affinity(&json!([{}])), false)]
    #[case::no_terms(affinity(&json!([])), false)]
    #[case::unknown_operator(affinity(&json!([{"matchExpressions": [{"key": "zone", "operator": "Near", "values": ["a"]}]}])), false)]
    fn selection(#[case] spec: Value, #[case] selected: bool) {
        let node = json!({"metadata": {"name": "n", "labels": {"zone": "a", "cores": "8"}}});
        let expected = if selected { Verdict::Run } else { Verdict::Refuse(Why::NotSelected) };
        assert_eq!(verdict(&spec, node), expected);
    }

    #[rstest]
    #[case::none(json!({}), json!([]), 'r')]
    #[case::no_schedule(json!({}), json!([{"key": "k", "effect": "NoSchedule"}]), 'c')]
    #[case::no_execute(json!({}), json!([{"key": "k", "effect": "NoExecute"}]), 'n')]
    #[case::prefer(json!({}), json!([{"key": "k", "effect": "PreferNoSchedule"}]), 'r')]
    #[case::both(json!({}), json!([{"key": "k", "effect": "NoSchedule"}, {"key": "k", "effect": "NoExecute"}]), 'n')]
    #[case::exists(json!({"tolerations": [{"key": "k", "operator": "Exists"}]}), json!([{"key": "k", "value": "v", "effect": "NoExecute"}]), 'r')]
    #[case::all(json!({"tolerations": [{"operator": "Exists"}]}), json!([{"key": "k", "effect": "NoSchedule"}, {"key": "l", "effect": "NoExecute"}]), 'r')]
    #[case::equal(json!({"tolerations": [{"key": "k", "value": "v"}]}), json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]), 'r')]
    #[case::unequal(json!({"tolerations": [{"key": "k", "value": "w"}]}), json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]), 'c')]
    #[case::other_effect(json!({"tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]}), json!([{"key": "k", "effect": "NoExecute"}]), 'n')]
    #[case::not_ready(json!({}), json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]), 'r')]
    #[case::not_ready_no_schedule(json!({}), json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]), 'c')]
    #[case::unreachable(json!({}), json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]), 'r')]
    #[case::disk(json!({}), json!([{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}]), 'r')]
    #[case::memory(json!({}), json!([{"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}]), 'r')]
    #[case::pid(json!({}), json!([{"key": "node.kubernetes.io/pid-pressure", "effect": "NoSchedule"}]), 'r')]
    #[case::cordoned(json!({}), json!([{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]), 'r')]
    #[case::network(json!({}), json!([{"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"}]), 'c')]
    #[case::host_network(json!({"hostNetwork": true}), json!([{"key": "node.kubernetes.io/network-unavailable", "effect": "NoSchedule"}]), 'r')]
    #[case::control_plane(json!({}), json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]), 'c')]
    fn taint_cases(#[case] spec: Value, #[case] taints: Value, #[case] expected: char) {
        let found = verdict(&spec, json!({"metadata": {"name": "n"}, "spec": {"taints": taints}}));
        let found = match found {
            Verdict::Run => 'r',
            Verdict::Continue(_) => 'c',
            Verdict::Refuse(_) => 'n',
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_cordon_is_tolerated() {
        let cordoned = json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}});
        assert_eq!(verdict(&json!({}), cordoned), Verdict::Run);
    }

    #[test]
    fn the_pin_is_anded_into_every_term_of_the_user() {
        let spec = affinity(&json!([
            {"matchExpressions": [{"key": "zone", "operator": "Exists"}]},
            {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["x"]}]}
        ]));
        let pinned = pinned(spec.as_object().unwrap(), "n");
        let terms = pinned
            .pointer(
                "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
            )
            .unwrap();
        let pin = json!({"key": "metadata.name", "operator": "In", "values": ["n"]});
        assert_eq!(terms[0]["matchFields"], json!([pin]));
        assert_eq!(terms[0]["matchExpressions"][0]["key"], "zone");
        assert_eq!(terms[1]["matchFields"][1], pin);
    }

    #[test]
    fn other_affinity_is_kept() {
        let spec = json!({"affinity": {"podAntiAffinity": {"x": 1},
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [1]}}});
        let pinned = pinned(spec.as_object().unwrap(), "n");
        assert_eq!(pinned["affinity"]["podAntiAffinity"]["x"], 1);
        assert_eq!(
            pinned["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0],
            1
        );
        assert_eq!(pinned["tolerations"].as_array().unwrap().len(), 6);
    }
}
