//! The order of deletion: that of the ReplicaSet controller.
//!
//! ReplicaSet compares pairs, and a tie of age buckets ends a comparison. Pairs with different ties can then
//! form a circle. Here every pod has one key, and the keys have a total order.

use std::cmp::Reverse;
use std::collections::HashMap;

use jiff::Timestamp;
use quintet_runtime::model::core_types::{Phase, Pod};

use crate::rollout::CandidatePod;

/// Annotation: pods with a lower cost are deleted first. Default 0.
pub const DELETION_COST_ANNOTATION: &str = "controller.kubernetes.io/pod-deletion-cost";

/// A pod's position in the order. The smallest is deleted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank<'a> {
    assigned: bool,
    phase: u8,
    ready: bool,
    /// Not part of ReplicaSet's order: keeps available pods longer than ready ones.
    available: bool,
    cost: i32,
    doubled_up: Reverse<usize>,
    ready_for: Option<u32>,
    restarts: Reverse<u32>,
    age: Option<u32>,
    /// Names end in a digest, so ties are random, but repeatable.
    name: &'a str,
}

/// Sorts pods in the order of deletion.
pub fn ranked(mut members: Vec<CandidatePod<'_>>, now: Timestamp) -> Vec<CandidatePod<'_>> {
    let mut on_node: HashMap<&str, usize> = HashMap::new();
    for member in &members {
        if let Some(node) = &member.pod.node {
            *on_node.entry(node).or_default() += 1;
        }
    }
    members.sort_by_cached_key(|member| rank(member, &on_node, now));
    members
}

fn rank<'a>(member: &CandidatePod<'a>, on_node: &HashMap<&str, usize>, now: Timestamp) -> Rank<'a> {
    let pod = member.pod;
    let on_node = pod.node.as_deref().and_then(|node| on_node.get(node));
    Rank {
        assigned: pod.node.is_some(),
        phase: match pod.phase {
            Phase::Pending => 0,
            Phase::Unknown => 1,
            Phase::Running | Phase::Succeeded | Phase::Failed => 2,
        },
        ready: pod.ready_since.is_some(),
        available: member.available,
        cost: cost(pod),
        doubled_up: Reverse(on_node.copied().unwrap_or_default()),
        ready_for: pod.ready_since.and_then(|since| bucket(since, now)),
        restarts: Reverse(pod.most_restarts),
        age: pod.meta.created.and_then(|created| bucket(created, now)),
        name: &pod.meta.name,
    }
}

/// The deletion cost; 0 if it is not a number. As for ReplicaSet, a number has no plus sign.
fn cost(pod: &Pod) -> i32 {
    let cost = pod.meta.annotations.get(DELETION_COST_ANNOTATION).filter(|cost| !cost.starts_with('+'));
    cost.and_then(|cost| cost.parse().ok()).unwrap_or_default()
}

/// The integer base-2 logarithm of the age: pods of about the same age are equal (KEP-2185). Otherwise the
/// newest pods would always be deleted, and with them those of the zone that recovered last.
fn bucket(since: Timestamp, now: Timestamp) -> Option<u32> {
    u128::try_from(now.duration_since(since).as_nanos()).ok()?.checked_ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn now() -> Timestamp {
        "2026-01-02T00:00:00Z".parse().unwrap()
    }

    /// A running and ready pod on its own node, with changes.
    fn pod(name: &str, change: &Value) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {}},
            "spec": {"nodeName": name},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "containerStatuses": [{"restartCount": 0}],
            },
        });
        for (pointer, value) in change.as_object().unwrap() {
            let (parent, member) = pointer.rsplit_once('/').unwrap();
            pod.pointer_mut(parent).unwrap()[member] = value.clone();
        }
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn member(pod: &Arc<Pod>) -> CandidatePod<'_> {
        CandidatePod { pod, outdated: false, current: false, available: pod.ready_since.is_some() }
    }

    fn ranked<'a>(pods: impl IntoIterator<Item = &'a Arc<Pod>>, now: Timestamp) -> Vec<&'a Arc<Pod>> {
        let members = super::ranked(pods.into_iter().map(member).collect(), now);
        members.into_iter().map(|member| member.pod).collect()
    }

    fn ready_since(at: &str) -> Value {
        json!([{"type": "Ready", "status": "True", "lastTransitionTime": at}])
    }

    /// Pod `z` is deleted before `a`, although `a` comes first by name.
    #[rstest]
    #[case::unassigned_before_assigned(json!({"/spec/nodeName": null}), json!({"/status/phase": "Pending"}))]
    #[case::pending_before_unknown(json!({"/status/phase": "Pending"}), json!({"/status/phase": "Unknown"}))]
    #[case::unknown_before_running(
        json!({"/status/phase": "Unknown"}), json!({"/status/conditions": []}))]
    #[case::not_ready_before_ready(
        json!({"/status/conditions": []}),
        json!({"/metadata/annotations": {DELETION_COST_ANNOTATION: "-5"}}))]
    #[case::cheap_before_dear(
        json!({"/metadata/annotations": {DELETION_COST_ANNOTATION: "-1"}}),
        json!({"/status/conditions": ready_since("2026-01-01T23:00:00Z")}))]
    #[case::no_cost_is_zero(json!({}), json!({"/metadata/annotations": {DELETION_COST_ANNOTATION: "1"}}))]
    #[case::nonsense_costs_nothing(
        json!({"/metadata/annotations": {DELETION_COST_ANNOTATION: "+9"}}),
        json!({"/metadata/annotations": {DELETION_COST_ANNOTATION: "1"}}))]
    #[case::ready_for_shorter_before_more_restarts(
        json!({"/status/conditions": ready_since("2026-01-01T23:00:00Z")}),
        json!({"/status/containerStatuses": [{"restartCount": 9}]}))]
    #[case::ready_for_about_as_long_are_equals(
        json!({"/status/containerStatuses": [{"restartCount": 1}]}),
        json!({"/status/conditions": ready_since("2026-01-01T00:01:00Z")}))]
    #[case::more_restarts_of_one_container(
        json!({"/status/containerStatuses": [{"restartCount": 2}]}),
        json!({"/status/containerStatuses": [{"restartCount": 1}, {"restartCount": 1}]}))]
    #[case::more_restarts_before_newer(
        json!({"/status/containerStatuses": [{"restartCount": 1}]}),
        json!({"/metadata/creationTimestamp": "2026-01-01T23:00:00Z"}))]
    #[case::newer_first(json!({"/metadata/creationTimestamp": "2026-01-01T23:00:00Z"}), json!({}))]
    fn deletes_first(#[case] first: Value, #[case] second: Value) {
        let (first, second) = (pod("z", &first), pod("a", &second));
        for pods in [vec![&first, &second], vec![&second, &first]] {
            assert_eq!(&*ranked(pods, now())[0].meta.name, "z");
        }
    }

    #[test]
    fn shared_nodes_lose_pods_before_younger_pods() {
        let on = |name, node: &str| pod(name, &json!({"/spec/nodeName": node}));
        let young = pod("b", &json!({"/status/conditions": ready_since("2026-01-01T23:59:00Z")}));
        let (one, two) = (on("c", "full"), on("d", "full"));
        let names: Vec<String> =
            ranked(vec![&young, &two, &one], now()).iter().map(|pod| pod.meta.name.to_string()).collect();
        assert_eq!(names, ["c", "d", "b"]);
    }

    #[test]
    fn keeps_available_pods_longer_than_ready_ones() {
        let (dear, cheap) = (
            pod("a", &json!({"/metadata/annotations": {DELETION_COST_ANNOTATION: "5"}})),
            pod("b", &json!({})),
        );
        let order =
            super::ranked(vec![member(&cheap), CandidatePod { available: false, ..member(&dear) }], now());
        assert_eq!(&*order[0].pod.meta.name, "a");
    }

    #[test]
    fn the_name_decides_ties() {
        let (a, b) = (pod("a", &json!({})), pod("b", &json!({})));
        assert_eq!(&*ranked(vec![&b, &a], now())[0].meta.name, "a");
    }

    #[test]
    fn a_clock_that_runs_behind_makes_a_pod_new() {
        let later = "2026-01-03T00:00:00Z".parse().unwrap();
        assert_eq!(bucket(later, now()), None);
        assert!(bucket(later, now()) < bucket("2026-01-01T23:59:59Z".parse().unwrap(), now()));
    }

    prop_compose! {
        fn any_pod()(
            node in prop::option::of(0..3_u8), phase in 0..3_usize, ready in prop::option::of(0..100_000_i64),
            age in 0..100_000_i64, cost in -1..2_i32, restarts in 0..3_u32,
        ) -> Pod {
            let ago = |seconds: i64| now() - jiff::SignedDuration::from_secs(seconds);
            let cost = cost.to_string();
            Pod {
                meta: quintet_runtime::model::object::Meta {
                    created: Some(ago(age)),
                    annotations: [(DELETION_COST_ANNOTATION, cost.as_str())].into(),
                    ..Default::default()
                },
                node: node.map(|node| node.to_string().into()),
                phase: [Phase::Pending, Phase::Unknown, Phase::Running][phase],
                ready_since: ready.map(ago),
                most_restarts: restarts,
                ..Pod::default()
            }
        }
    }

    proptest! {
        /// The order is total: the result does not depend on the input order.
        #[test]
        fn does_not_depend_on_the_input_order(
            pods in prop::collection::vec(any_pod(), 0..12), shuffle in any::<prop::sample::Index>(),
        ) {
            let pods: Vec<Arc<Pod>> = pods
                .into_iter()
                .enumerate()
                .map(|(index, mut pod)| {
                    pod.meta.name = format!("p{index}").into();
                    Arc::new(pod)
                })
                .collect();
            let mut turned: Vec<&Arc<Pod>> = pods.iter().rev().collect();
            if !turned.is_empty() {
                turned.rotate_left(shuffle.index(pods.len()));
            }
            let order = ranked(&pods, now());
            prop_assert_eq!(order.len(), pods.len());
            prop_assert_eq!(&order, &ranked(turned, now()));
            prop_assert!(order.is_sorted_by_key(|pod| pod.node.is_some()));
        }
    }
}
