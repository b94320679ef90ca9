//! The nodes on which a DaemonJob runs: the rules of a DaemonSet, as pure functions.
//!
//! Sources: `NodeShouldRunDaemonPod` of the DaemonSet controller, which decides separately whether a pod may
//! be created and whether it may continue. The tolerations that the controller adds to every pod. The helpers
//! that match affinity and taints (component-helpers `scheduling/corev1`, `Toleration.ToleratesTaint`).
//!
//! The API server validates the template, in a dry run. Here a condition without a meaning holds on no node.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Toleration};
use quintet_runtime::model::core_types::{Node, Taint};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// The node rules of a template, parsed once for all nodes.
#[derive(Debug, Default)]
pub struct Placement {
    node_name: Option<String>,
    node_selector: Vec<(String, String)>,
    /// The terms are alternatives. None if there is no required affinity.
    required: Option<Vec<NodeSelectorTerm>>,
    tolerations: Vec<Toleration>,
}

/// The taints with which Kubernetes marks an unhealthy node.
const CONDITION_TAINTS: [&str; 6] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "node.cloudprovider.kubernetes.io/shutdown",
];

/// Whether Kubernetes sets the taint on unhealthy nodes, with an effect that keeps pods away.
pub fn is_condition_taint(taint: &Taint) -> bool {
    CONDITION_TAINTS.contains(&&*taint.key) && matches!(&*taint.effect, "NoSchedule" | "NoExecute")
}

/// Whether a node may have a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Eligibility {
    /// A pod may be created, and may continue.
    #[default]
    Run,
    /// The template does not tolerate this taint: no pod may be created, but a running pod may continue.
    Continue(Taint),
    /// The template does not tolerate this taint: no pod may be created, and no pod may continue.
    Refuse(Taint),
    /// The template does not select its labels or its name: no pod may be created, and no pod may continue.
    NotSelected,
}

impl Eligibility {
    /// Whether the template selects the node.
    pub fn is_selected(&self) -> bool {
        *self != Self::NotSelected
    }

    /// The taint that keeps pods away from the node.
    pub fn taint(&self) -> Option<&Taint> {
        match self {
            Self::Continue(taint) | Self::Refuse(taint) => Some(taint),
            Self::Run | Self::NotSelected => None,
        }
    }
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
/// Added only to pods on the host's network.
const HOST_NETWORK_TOLERATION: (&str, &str) = ("node.kubernetes.io/network-unavailable", "NoSchedule");

fn added_tolerations(spec: &Map<String, Value>) -> impl Iterator<Item = (&'static str, &'static str)> {
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool) == Some(true);
    DAEMON_TOLERATIONS.into_iter().chain(host_network.then_some(HOST_NETWORK_TOLERATION))
}

impl Placement {
    /// Parses the node rules of a pod's spec.
    pub fn of(spec: &Map<String, Value>) -> Self {
        let written = spec.get("tolerations").and_then(Value::as_array).into_iter().flatten();
        let written = written.filter_map(|toleration| Toleration::deserialize(toleration).ok());
        let added = added_tolerations(spec).map(|(key, effect)| Toleration {
            key: Some(key.to_owned()),
            operator: Some("Exists".to_owned()),
            effect: Some(effect.to_owned()),
            ..Toleration::default()
        });
        let labels = spec.get("nodeSelector").and_then(Value::as_object).into_iter().flatten();
        let labels = labels.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned()));
        let name = spec.get("nodeName").and_then(Value::as_str).filter(|name| !name.is_empty());
        Self {
            node_name: name.map(str::to_owned),
            node_selector: labels.collect(),
            required: spec.get("affinity").and_then(required_terms),
            tolerations: written.chain(added).collect(),
        }
    }

    /// Whether a pod may run on a node. A cordon does not count, because added tolerations cover its taint. The
    /// deletion of the node does not count here either.
    pub fn eligibility(&self, node: &Node) -> Eligibility {
        let named = self.node_name.as_deref().is_none_or(|name| name == &*node.meta.name);
        let labelled =
            self.node_selector.iter().all(|(key, value)| node.meta.labels.get(key) == Some(value.as_str()));
        let required =
            self.required.as_ref().is_none_or(|terms| terms.iter().any(|term| matches(term, node)));
        if !(named && labelled && required) {
            return Eligibility::NotSelected;
        }
        let first = |effect: &str| self.untolerated(node).find(|taint| *taint.effect == *effect);
        match (first("NoExecute"), first("NoSchedule")) {
            (Some(taint), _) => Eligibility::Refuse(taint.clone()),
            (None, Some(taint)) => Eligibility::Continue(taint.clone()),
            (None, None) => Eligibility::Run,
        }
    }

    /// The taints of a node that keep pods away.
    fn untolerated<'n>(&self, node: &'n Node) -> impl Iterator<Item = &'n Taint> {
        let keeps_away = |taint: &&Taint| matches!(&*taint.effect, "NoSchedule" | "NoExecute");
        let is_tolerated = |taint: &Taint| self.tolerations.iter().any(|one| tolerates(one, taint));
        node.taints.iter().filter(keeps_away).filter(move |taint| !is_tolerated(taint))
    }

    /// Whether one of Kubernetes' condition taints keeps pods away from a node.
    pub fn is_unhealthy(&self, node: &Node) -> bool {
        self.untolerated(node).any(is_condition_taint)
    }

    /// Whether any other taint keeps pods away from a node.
    pub fn is_tainted(&self, node: &Node) -> bool {
        self.untolerated(node).any(|taint| !is_condition_taint(taint))
    }
}

/// An absent effect or key matches all, and an absent operator means Equal. tolerationSeconds does not
/// count.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let any_or = |expected: &Option<String>, is: &str| {
        expected.as_deref().is_none_or(|expected| expected.is_empty() || expected == is)
    };
    let value = toleration.value.as_deref().unwrap_or_default();
    let numbers = || Some((canonical_number(&taint.value)?, canonical_number(value)?));
    any_or(&toleration.effect, &taint.effect)
        && any_or(&toleration.key, &taint.key)
        && match toleration.operator.as_deref().unwrap_or_default() {
            "Exists" => true,
            "" | "Equal" => *value == *taint.value,
            "Gt" => numbers().is_some_and(|(taint, ours)| taint > ours),
            "Lt" => numbers().is_some_and(|(taint, ours)| taint < ours),
            _ => false,
        }
}

/// A number in canonical form. Tolerations compare no others, while node affinity accepts leading zeros.
fn canonical_number(text: &str) -> Option<i64> {
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}

/// Whether a node meets all conditions of a term. A term without conditions matches no node.
fn matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    // Of the fields, Kubernetes knows only the name, with these operators.
    let is_name = |one: &NodeSelectorRequirement| {
        one.key == "metadata.name" && matches!(&*one.operator, "In" | "NotIn")
    };
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|one| holds(one, node.meta.labels.get(&one.key)))
        && fields.iter().all(|one| is_name(one) && holds(one, Some(&node.meta.name)))
}

/// Whether a condition holds for the value of its label or field.
fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = || value.is_some_and(|value| values.iter().any(|item| item == value));
    let numbers = || match values {
        // The API server accepts a value that is not a number. It matches no node.
        [limit] => Some((value?.parse::<i64>().ok()?, limit.parse::<i64>().ok()?)),
        _ => None,
    };
    match &*requirement.operator {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, limit)| value > limit),
        "Lt" => numbers().is_some_and(|(value, limit)| value < limit),
        _ => false,
    }
}

const REQUIRED: &str = "/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";

/// The terms of required node affinity. None if there is no required node affinity.
fn required_terms(affinity: &Value) -> Option<Vec<NodeSelectorTerm>> {
    let required = affinity.pointer(REQUIRED).filter(|required| !required.is_null())?;
    let terms = required.get("nodeSelectorTerms");
    Some(terms.and_then(|terms| Vec::deserialize(terms).ok()).unwrap_or_default())
}

/// The spec of the pod for one node, with DaemonSet's tolerations and a required node affinity for the node's
/// name. The affinity is added to each of the user's terms: terms are alternatives, so a separate term would
/// not restrict the pod. Parts that the API server would reject are not changed.
pub fn pinned(spec: &Map<String, Value>, node: &str) -> Value {
    let mut spec = spec.clone();
    let pin = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
    let mut affinity =
        spec.get("affinity").filter(|affinity| affinity.is_object()).cloned().unwrap_or(json!({}));
    if !affinity["nodeAffinity"].is_object() {
        affinity["nodeAffinity"] = json!({});
    }
    let required = &mut affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    if required.is_null() {
        *required = json!({ "nodeSelectorTerms": [{ "matchFields": [pin] }] });
    } else if let Some(terms) = required.get_mut("nodeSelectorTerms").and_then(Value::as_array_mut) {
        // An empty term matches no node. With the node's name it would match this node.
        let lacks =
            |term: &Value, part: &str| term.get(part).and_then(Value::as_array).is_none_or(Vec::is_empty);
        let is_empty = |term: &Value| lacks(term, "matchExpressions") && lacks(term, "matchFields");
        if !terms.iter().all(is_empty) {
            terms.retain(|term| !is_empty(term));
            for term in terms {
                match term["matchFields"].as_array_mut() {
                    Some(fields) => fields.push(pin.clone()),
                    None => term["matchFields"] = json!([pin]),
                }
            }
        }
    }
    spec.insert("affinity".to_owned(), affinity);

    let mut tolerations = spec.get("tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    for (key, effect) in added_tolerations(&spec) {
        let added = json!({ "key": key, "operator": "Exists", "effect": effect });
        let is_same = |toleration: &&mut Value| {
            let part = |member: &str| toleration.get(member).and_then(Value::as_str).unwrap_or_default();
            (part("key"), part("operator"), part("value"), part("effect")) == (key, "Exists", "", effect)
        };
        // It replaces the user's equal one, as in a DaemonSet: the user's may have tolerationSeconds. The place
        // stays, because the taint eviction controller uses the first toleration that matches a taint.
        match tolerations.iter_mut().find(is_same) {
            Some(same) => *same = added,
            None => tolerations.push(added),
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

    fn placement(spec: &Value) -> Placement {
        Placement::of(spec.as_object().unwrap())
    }

    fn terms(terms: &Value) -> Value {
        json!({"affinity": {"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    }

    /// Required node affinity, written `key operator value…`. `@` marks a field, `&` joins the requirements
    /// of one term, `|` separates terms, `''` is the empty value.
    fn affinity(text: &str) -> Value {
        let requirement = |text: &str| {
            let mut words = text.split_whitespace().map(|word| if word == "''" { "" } else { word });
            let (key, operator) = (words.next().unwrap(), words.next().unwrap());
            json!({"key": key, "operator": operator, "values": words.collect::<Vec<_>>()})
        };
        let parsed = text.split('|').map(|term| {
            let (fields, labels): (Vec<_>, Vec<_>) = term
                .split('&')
                .map(str::trim)
                .filter(|requirement| !requirement.is_empty())
                .partition(|requirement| requirement.starts_with('@'));
            let fields: Vec<Value> = fields.iter().map(|text| requirement(&text[1..])).collect();
            let labels: Vec<Value> = labels.into_iter().map(requirement).collect();
            json!({"matchExpressions": labels, "matchFields": fields})
        });
        terms(&parsed.collect())
    }

    fn is_selected(spec: &Value) -> bool {
        let node = node(json!({"metadata": {"name": "n", "labels": {
            "zone": "a", "cores": "8", "bare": "", "padded": "007",
            "greatest": "9223372036854775807", "too-great": "9223372036854775808"}}}));
        match placement(spec).eligibility(&node) {
            Eligibility::Run => true,
            Eligibility::NotSelected => false,
            eligibility => panic!("{eligibility:?} without a taint"),
        }
    }

    #[rstest]
    #[case::in_first("zone In a b", true)]
    #[case::in_last("zone In b a", true)]
    #[case::in_others("zone In b c", false)]
    #[case::in_without_the_label("rack In a", false)]
    #[case::in_no_part_of_it("zone In ab", false)]
    #[case::in_empty_value("bare In ''", true)]
    #[case::in_empty_value_without_the_label("rack In ''", false)]
    #[case::in_empty_value_of_another("zone In ''", false)]
    #[case::not_in("zone NotIn a b", false)]
    #[case::not_in_others("zone NotIn b c", true)]
    #[case::not_in_without_the_label("rack NotIn a", true)]
    #[case::not_in_empty_value("bare NotIn ''", false)]
    #[case::not_in_empty_value_without_the_label("rack NotIn ''", true)]
    #[case::exists("zone Exists", true)]
    #[case::exists_without_a_value("bare Exists", true)]
    #[case::exists_without_the_label("rack Exists", false)]
    #[case::does_not_exist("zone DoesNotExist", false)]
    #[case::does_not_exist_without_a_value("bare DoesNotExist", false)]
    #[case::does_not_exist_without_the_label("rack DoesNotExist", true)]
    #[case::gt_less("cores Gt 7", true)]
    #[case::gt_equal("cores Gt 8", false)]
    #[case::gt_more("cores Gt 9", false)]
    #[case::gt_as_numbers("cores Gt 10", false)]
    #[case::gt_leading_zeros("cores Gt 007", true)]
    #[case::gt_label_with_leading_zeros("padded Gt 6", true)]
    #[case::gt_without_the_label("rack Gt 0", false)]
    #[case::gt_label_is_no_number("zone Gt 0", false)]
    #[case::gt_label_is_empty("bare Gt 0", false)]
    #[case::gt_value_is_no_number("cores Gt seven", false)]
    #[case::gt_value_is_a_fraction("cores Gt 7.5", false)]
    #[case::gt_value_is_empty("cores Gt ''", false)]
    #[case::gt_greatest("greatest Gt 9223372036854775806", true)]
    #[case::gt_label_too_great("too-great Gt 0", false)]
    #[case::gt_value_too_great("cores Gt 9223372036854775808", false)]
    #[case::lt_more("cores Lt 9", true)]
    #[case::lt_equal("cores Lt 8", false)]
    #[case::lt_less("cores Lt 7", false)]
    #[case::lt_as_numbers("cores Lt 10", true)]
    #[case::lt_label_with_leading_zeros("padded Lt 8", true)]
    #[case::lt_without_the_label("rack Lt 9", false)]
    #[case::lt_label_is_no_number("zone Lt 9", false)]
    #[case::lt_value_is_no_number("cores Lt nine", false)]
    #[case::lt_value_too_great("cores Lt 9223372036854775808", false)]
    #[case::name_in("@metadata.name In n", true)]
    #[case::name_in_others("@metadata.name In m", false)]
    #[case::name_not_in("@metadata.name NotIn n", false)]
    #[case::name_not_in_others("@metadata.name NotIn m", true)]
    #[case::names_that_contradict("@metadata.name In n & @metadata.name In m", false)]
    #[case::names_in_and_not_in("@metadata.name In n & @metadata.name NotIn n", false)]
    #[case::name_and_label("@metadata.name In n & zone In a", true)]
    #[case::name_and_other_label("@metadata.name In n & zone In b", false)]
    #[case::other_name_and_label("@metadata.name In m & zone In a", false)]
    #[case::all_of_a_term("zone Exists & cores Gt 7 & cores Lt 9 & rack DoesNotExist", true)]
    #[case::all_but_one_of_a_term("zone Exists & cores Gt 7 & cores Lt 8", false)]
    #[case::a_term_that_contradicts_itself("zone Exists & zone DoesNotExist", false)]
    #[case::first_of_two_terms("zone In a | zone In b", true)]
    #[case::second_of_two_terms("zone In b | zone In a", true)]
    #[case::none_of_two_terms("zone In b | rack Exists", false)]
    #[case::halves_of_two_terms("zone In a & rack Exists | zone In b & cores Exists", false)]
    #[case::a_label_or_a_name("zone In b | @metadata.name In n", true)]
    #[case::no_number_in_one_term("cores Gt seven | zone In a", true)]
    #[case::no_number_beside("cores Gt seven & zone In a", false)]
    #[case::empty_term("", false)]
    #[case::empty_terms("|", false)]
    #[case::empty_term_before_one_that_matches("| zone In a", true)]
    #[case::empty_term_after_one_that_does_not("zone In b |", false)]
    #[case::prefixed_key("example.com/rack DoesNotExist", true)]
    // The API server rejects these.
    #[case::rejected_unknown_operator("zone Near b", false)]
    #[case::rejected_operator_in_small_letters("zone in b", false)]
    #[case::rejected_in_without_values("zone In", false)]
    #[case::rejected_not_in_without_values("zone NotIn", true)]
    #[case::rejected_exists_with_a_value("rack Exists a", false)]
    #[case::rejected_does_not_exist_with_a_value("zone DoesNotExist a", false)]
    #[case::rejected_gt_without_values("cores Gt", false)]
    #[case::rejected_gt_with_two_values("cores Gt 9 10", false)]
    #[case::rejected_gt_below_zero("rack Gt -1", false)]
    #[case::rejected_lt_with_two_values("cores Lt 1 2", false)]
    #[case::rejected_key("the/zone/ In b", false)]
    #[case::rejected_prefix("Example.com/rack Exists", false)]
    #[case::rejected_value("zone In -b-", false)]
    #[case::rejected_name_exists("@metadata.name Exists", false)]
    #[case::rejected_name_in_two("@metadata.name In m o", false)]
    #[case::rejected_name_in_none("@metadata.name In", false)]
    #[case::rejected_name("@metadata.name In M", false)]
    #[case::rejected_field("@spec.unschedulable In true", false)]
    #[case::rejected_beside_a_term_that_does_not_match("zone In b | zone Near b", false)]
    fn required_affinity(#[case] text: &str, #[case] selected: bool) {
        assert_eq!(is_selected(&affinity(text)), selected);
    }

    #[rstest]
    #[case::nothing(json!({}), true)]
    #[case::nulls(json!({"nodeSelector": null, "affinity": null, "tolerations": null, "nodeName": null}), true)]
    #[case::no_node_affinity(json!({"affinity": {"nodeAffinity": null, "podAffinity": {}}}), true)]
    #[case::none_required(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": null}}}), true)]
    #[case::preferred_affinity(json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}}]}}}), true)]
    #[case::selector(json!({"nodeSelector": {"zone": "a"}}), true)]
    #[case::selector_of_others(json!({"nodeSelector": {"zone": "b"}}), false)]
    #[case::selector_without_the_label(json!({"nodeSelector": {"rack": "1"}}), false)]
    #[case::selector_of_two(json!({"nodeSelector": {"zone": "a", "cores": "8"}}), true)]
    #[case::selector_of_two_and_one_matches(json!({"nodeSelector": {"zone": "a", "cores": "9"}}), false)]
    #[case::selector_of_empty_value(json!({"nodeSelector": {"bare": ""}}), true)]
    #[case::selector_of_empty_value_without_the_label(json!({"nodeSelector": {"rack": ""}}), false)]
    #[case::empty_selector(json!({"nodeSelector": {}}), true)]
    #[case::node_name(json!({"nodeName": "n"}), true)]
    #[case::other_node_name(json!({"nodeName": "m"}), false)]
    #[case::empty_node_name(json!({"nodeName": ""}), true)]
    #[case::node_name_and_selector_of_others(json!({"nodeName": "n", "nodeSelector": {"zone": "b"}}), false)]
    #[case::absent_lists_in_a_term(terms(&json!([{}])), false)]
    #[case::null_lists_in_a_term(terms(&json!([{"matchExpressions": null, "matchFields": null}])), false)]
    #[case::null_values(terms(&json!([{"matchExpressions": [{"key": "zone", "operator": "Exists", "values": null}]}])), true)]
    // The API server rejects these.
    #[case::rejected_without_terms(terms(&json!([])), false)]
    #[case::rejected_null_terms(terms(&json!(null)), false)]
    #[case::rejected_shape(terms(&json!([{"matchExpressions": "zone"}])), false)]
    #[case::rejected_selector_key(json!({"nodeSelector": {"the zone": "b"}}), false)]
    #[case::rejected_selector_value(json!({"nodeSelector": {"zone": "b c"}}), false)]
    fn selection(#[case] spec: Value, #[case] selected: bool) {
        assert_eq!(is_selected(&spec), selected);
    }

    #[rstest]
    #[case(json!({"zone": "a"}), true)]
    #[case(json!({"zone": "b"}), false)]
    fn requires_both_selector_and_affinity(#[case] selector: Value, #[case] selected: bool) {
        let mut spec = affinity("cores Gt 7");
        spec["nodeSelector"] = selector;
        assert_eq!(is_selected(&spec), selected);
        spec["affinity"] = affinity("cores Gt 8")["affinity"].clone();
        assert!(!is_selected(&spec));
    }

    /// `r`: a pod is created; `c`: a running pod continues; `n`: neither. Taints are `key[=value]:effect`.
    fn on_taints(spec: &Value, taints: &str, unschedulable: bool) -> char {
        let taints = taints.split_whitespace().map(|taint| {
            let (taint, effect) = taint.rsplit_once(':').unwrap();
            let (key, value) = taint.split_once('=').unwrap_or((taint, ""));
            json!({"key": key, "value": value, "effect": effect})
        });
        let taints: Value = taints.collect();
        let node = node(
            json!({"metadata": {"name": "n"}, "spec": {"taints": taints, "unschedulable": unschedulable}}),
        );
        match placement(spec).eligibility(&node) {
            Eligibility::Run => 'r',
            Eligibility::Continue(_) => 'c',
            Eligibility::Refuse(_) | Eligibility::NotSelected => 'n',
        }
    }

    #[rstest]
    #[case::no_taint(json!([]), "", 'r')]
    #[case::no_schedule(json!([]), "k:NoSchedule", 'c')]
    #[case::no_execute(json!([]), "k:NoExecute", 'n')]
    #[case::prefer_no_schedule(json!([]), "k:PreferNoSchedule", 'r')]
    #[case::unknown_effect(json!([]), "k:NoFuture", 'r')]
    #[case::execute_after_schedule(json!([]), "k:NoSchedule l:NoExecute", 'n')]
    #[case::execute_before_schedule(json!([]), "l:NoExecute k:NoSchedule", 'n')]
    #[case::exists(json!([{"key": "k", "operator": "Exists"}]), "k=v:NoSchedule", 'r')]
    #[case::exists_no_execute(json!([{"key": "k", "operator": "Exists"}]), "k=v:NoExecute", 'r')]
    #[case::exists_both_effects(json!([{"key": "k", "operator": "Exists"}]), "k:NoExecute k:NoSchedule", 'r')]
    #[case::exists_another_key(json!([{"key": "l", "operator": "Exists"}]), "k:NoSchedule", 'c')]
    #[case::exists_part_of_the_key(json!([{"key": "k", "operator": "Exists"}]), "kk:NoExecute", 'n')]
    #[case::exists_one_effect(json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]), "k:NoSchedule", 'r')]
    #[case::exists_other_effect(json!([{"key": "k", "operator": "Exists", "effect": "NoSchedule"}]), "k:NoExecute", 'n')]
    #[case::exists_the_other_way_round(json!([{"key": "k", "operator": "Exists", "effect": "NoExecute"}]), "k:NoSchedule", 'c')]
    #[case::exists_softly(json!([{"key": "k", "operator": "Exists", "effect": "PreferNoSchedule"}]), "k:NoSchedule", 'c')]
    #[case::exists_empty_effect(json!([{"key": "k", "operator": "Exists", "effect": ""}]), "k:NoExecute", 'r')]
    #[case::exists_null_parts(json!([{"key": "k", "operator": "Exists", "value": null, "effect": null}]), "k=v:NoExecute", 'r')]
    #[case::every_taint(json!([{"operator": "Exists"}]), "k:NoSchedule l=v:NoExecute", 'r')]
    #[case::every_taint_by_empty_key(json!([{"key": "", "operator": "Exists"}]), "k=v:NoExecute", 'r')]
    #[case::every_taint_of_an_effect(json!([{"operator": "Exists", "effect": "NoSchedule"}]), "k:NoSchedule l:NoSchedule", 'r')]
    #[case::every_taint_of_another_effect(json!([{"operator": "Exists", "effect": "NoSchedule"}]), "k:NoSchedule l:NoExecute", 'n')]
    #[case::equal(json!([{"key": "k", "operator": "Equal", "value": "v"}]), "k=v:NoSchedule", 'r')]
    #[case::unequal(json!([{"key": "k", "operator": "Equal", "value": "w"}]), "k=v:NoSchedule", 'c')]
    #[case::equal_without_values(json!([{"key": "k", "operator": "Equal"}]), "k:NoExecute", 'r')]
    #[case::equal_other_effect(json!([{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}]), "k=v:NoExecute", 'n')]
    #[case::no_operator(json!([{"key": "k", "value": "v"}]), "k=v:NoExecute", 'r')]
    #[case::empty_operator(json!([{"key": "k", "operator": "", "value": "v"}]), "k=v:NoExecute", 'r')]
    #[case::no_operator_unequal(json!([{"key": "k", "value": "w"}]), "k=v:NoSchedule", 'c')]
    #[case::no_operator_and_no_value(json!([{"key": "k"}]), "k:NoSchedule", 'r')]
    #[case::no_operator_is_not_exists(json!([{"key": "k"}]), "k=v:NoSchedule", 'c')]
    #[case::no_key_and_equal(json!([{"operator": "Equal", "value": "v"}]), "k=v:NoSchedule", 'r')]
    #[case::no_key_and_unequal(json!([{"operator": "Equal", "value": "v"}]), "k=v:NoSchedule l:NoSchedule", 'c')]
    #[case::gt(json!([{"key": "k", "operator": "Gt", "value": "900"}]), "k=950:NoSchedule", 'r')]
    #[case::gt_equal(json!([{"key": "k", "operator": "Gt", "value": "950"}]), "k=950:NoSchedule", 'c')]
    #[case::gt_as_numbers(json!([{"key": "k", "operator": "Gt", "value": "900"}]), "k=1000:NoExecute", 'r')]
    #[case::gt_below_zero(json!([{"key": "k", "operator": "Gt", "value": "-1"}]), "k=0:NoExecute", 'r')]
    #[case::gt_taint_is_no_number(json!([{"key": "k", "operator": "Gt", "value": "0"}]), "k=v:NoSchedule", 'c')]
    #[case::gt_taint_without_a_value(json!([{"key": "k", "operator": "Gt", "value": "0"}]), "k:NoSchedule", 'c')]
    #[case::gt_is_no_number(json!([{"key": "k", "operator": "Gt", "value": "v"}]), "k=1:NoSchedule", 'c')]
    #[case::gt_taint_with_leading_zeros(json!([{"key": "k", "operator": "Gt", "value": "6"}]), "k=007:NoSchedule", 'c')]
    #[case::gt_leading_zeros(json!([{"key": "k", "operator": "Gt", "value": "06"}]), "k=7:NoSchedule", 'c')]
    #[case::gt_sign(json!([{"key": "k", "operator": "Gt", "value": "+6"}]), "k=7:NoSchedule", 'c')]
    #[case::gt_minus_zero(json!([{"key": "k", "operator": "Gt", "value": "-0"}]), "k=7:NoSchedule", 'c')]
    #[case::gt_too_great(json!([{"key": "k", "operator": "Gt", "value": "1"}]), "k=9223372036854775808:NoSchedule", 'c')]
    #[case::gt_other_effect(json!([{"key": "k", "operator": "Gt", "value": "1", "effect": "NoSchedule"}]), "k=2:NoExecute", 'n')]
    #[case::gt_another_key(json!([{"key": "l", "operator": "Gt", "value": "1"}]), "k=2:NoSchedule", 'c')]
    #[case::lt(json!([{"key": "k", "operator": "Lt", "value": "1000"}]), "k=950:NoExecute", 'r')]
    #[case::lt_equal(json!([{"key": "k", "operator": "Lt", "value": "950"}]), "k=950:NoExecute", 'n')]
    #[case::lt_taint_is_no_number(json!([{"key": "k", "operator": "Lt", "value": "9"}]), "k=v:NoSchedule", 'c')]
    #[case::unknown_operator(json!([{"key": "k", "operator": "Near", "value": "v"}]), "k=v:NoSchedule", 'c')]
    #[case::for_a_time(json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]), "k:NoExecute", 'r')]
    #[case::for_no_time(json!([{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}]), "k:NoExecute", 'r')]
    #[case::one_of_two(json!([{"key": "k", "operator": "Exists"}]), "k:NoSchedule l:NoSchedule", 'c')]
    #[case::two_of_two(json!([{"key": "k", "operator": "Exists"}, {"key": "l", "value": "v"}]), "k:NoSchedule l=v:NoExecute", 'r')]
    #[case::the_worse_of_two(json!([{"key": "k", "operator": "Exists"}]), "k:NoExecute l:NoSchedule", 'c')]
    #[case::same_key_twice(json!([{"key": "k", "value": "v"}]), "k=v:NoSchedule k=w:NoExecute", 'n')]
    #[case::an_invalid_toleration_does_not_hide_others(json!([7, {"key": "k", "operator": "Exists"}]), "k:NoExecute", 'r')]
    fn taints_and_tolerations(#[case] tolerations: Value, #[case] taints: &str, #[case] expected: char) {
        assert_eq!(on_taints(&json!({"tolerations": tolerations}), taints, false), expected);
    }

    #[rstest]
    #[case::not_ready("not-ready", "crr")]
    #[case::unreachable("unreachable", "crr")]
    #[case::disk("disk-pressure", "rnr")]
    #[case::memory("memory-pressure", "rnr")]
    #[case::pid("pid-pressure", "rnr")]
    #[case::unschedulable("unschedulable", "rnr")]
    #[case::network("network-unavailable", "cnr")]
    #[case::out_of_service("out-of-service", "cnr")]
    fn on_no_schedule_no_execute_and_prefer_no_schedule(#[case] key: &str, #[case] expected: &str) {
        let found: String = ["NoSchedule", "NoExecute", "PreferNoSchedule"]
            .into_iter()
            .map(|effect| on_taints(&json!({}), &format!("node.kubernetes.io/{key}:{effect}"), false))
            .collect();
        assert_eq!(found, expected);
    }

    #[rstest]
    #[case(json!({"hostNetwork": true}), "node.kubernetes.io/network-unavailable:NoSchedule", 'r')]
    #[case(json!({"hostNetwork": true}), "node.kubernetes.io/network-unavailable:NoExecute", 'n')]
    #[case(json!({"hostNetwork": true}), "k:NoSchedule", 'c')]
    #[case(json!({"hostNetwork": false}), "node.kubernetes.io/network-unavailable:NoSchedule", 'c')]
    #[case(json!({"hostNetwork": null}), "node.kubernetes.io/network-unavailable:NoSchedule", 'c')]
    #[case(json!({}), "node-role.kubernetes.io/control-plane:NoSchedule", 'c')]
    #[case(json!({}), "node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule", 'c')]
    fn taints_of_kubernetes(#[case] spec: Value, #[case] taint: &str, #[case] expected: char) {
        assert_eq!(on_taints(&spec, taint, false), expected);
    }

    #[rstest]
    #[case::before_its_taint("", 'r')]
    #[case::with_its_taint("node.kubernetes.io/unschedulable:NoSchedule", 'r')]
    #[case::with_its_key_and_another_effect("node.kubernetes.io/unschedulable:NoExecute", 'n')]
    #[case::with_another_taint("node.kubernetes.io/unschedulable:NoSchedule k:NoSchedule", 'c')]
    fn cordoned(#[case] taints: &str, #[case] expected: char) {
        assert_eq!(on_taints(&json!({}), taints, true), expected);
    }

    #[test]
    fn judges_a_node_that_is_being_deleted_like_any_other() {
        let node = node(
            json!({"metadata": {"name": "n", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["f"]}}),
        );
        assert_eq!(placement(&json!({})).eligibility(&node), Eligibility::Run);
    }

    #[rstest]
    #[case::the_first_one(json!([{"key": "k", "effect": "NoSchedule"}, {"key": "l", "effect": "NoSchedule"}]), "k")]
    #[case::the_one_that_evicts(json!([{"key": "k", "effect": "NoSchedule"}, {"key": "l", "effect": "NoExecute"}]), "l")]
    fn names_the_taint_that_decides(#[case] taints: Value, #[case] named: &str) {
        let node = node(json!({"metadata": {"name": "n"}, "spec": {"taints": taints}}));
        let (Eligibility::Continue(taint) | Eligibility::Refuse(taint)) =
            placement(&json!({})).eligibility(&node)
        else {
            panic!("the eligibility must be Continue or Refuse");
        };
        assert_eq!(&*taint.key, named);
    }

    fn pinned_terms(spec: &Value) -> Value {
        let pinned = pinned(spec.as_object().unwrap(), "n");
        pinned["affinity"].pointer(REQUIRED).unwrap()["nodeSelectorTerms"].clone()
    }

    fn pin() -> Value {
        json!({"key": "metadata.name", "operator": "In", "values": ["n"]})
    }

    #[rstest]
    #[case(json!({}))]
    #[case(json!({"affinity": null}))]
    #[case(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": null}}}))]
    fn adds_required_affinity_for_the_name(#[case] spec: Value) {
        assert_eq!(pinned_terms(&spec), json!([{"matchFields": [pin()]}]));
    }

    #[test]
    fn adds_the_name_to_every_term_of_the_user() {
        let other = json!({"key": "metadata.name", "operator": "NotIn", "values": ["x"]});
        let zone = json!([{"key": "zone", "operator": "Exists"}]);
        let spec = terms(&json!([{"matchExpressions": zone}, {"matchFields": [other], "tomorrow": 1}]));
        assert_eq!(
            pinned_terms(&spec),
            json!([
                {"matchExpressions": zone, "matchFields": [pin()]},
                {"matchFields": [other, pin()], "tomorrow": 1},
            ])
        );
    }

    #[rstest]
    #[case::alone(json!([{}]), json!([{}]))]
    #[case::several(json!([{}, {"matchFields": []}]), json!([{}, {"matchFields": []}]))]
    #[case::beside_another(
        json!([{"matchExpressions": []}, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]),
        json!([{"matchExpressions": [{"key": "zone", "operator": "Exists"}], "matchFields": [pin()]}])
    )]
    #[case::no_terms(json!([]), json!([]))]
    fn an_empty_term_still_matches_no_node(#[case] written: Value, #[case] expected: Value) {
        assert_eq!(pinned_terms(&terms(&written)), expected);
    }

    #[test]
    fn keeps_other_affinity() {
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

    #[test]
    fn adds_tolerations_and_replaces_equal_ones() {
        let own = json!({"key": "k", "operator": "Exists"});
        let limited = json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists",
            "effect": "NoExecute", "tolerationSeconds": 300});
        let of_all_effects = json!({"key": "node.kubernetes.io/disk-pressure", "operator": "Exists"});
        let spec = json!({"hostNetwork": true, "tolerations": [own, limited, of_all_effects]});
        let pinned = pinned(spec.as_object().unwrap(), "n");
        let tolerations = pinned["tolerations"].as_array().unwrap();
        assert_eq!(tolerations.len(), 9);
        let unlimited =
            json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"});
        assert_eq!(tolerations[..3], [own, unlimited, of_all_effects], "the order decides about evictions");
        assert_eq!(tolerations[8]["key"], "node.kubernetes.io/network-unavailable");
    }
}
