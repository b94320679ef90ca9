//! Selects the pods to delete: surplus pods, and pods of an older template within the limits of the spec.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::int_or_percent::{Round, scaled_value};

use crate::api::{PodSet, UpdateStrategyType};
use crate::ranking::ranked;

/// The default of maxUnavailable in percent, as for a Deployment.
const MAX_UNAVAILABLE: usize = 25;
/// The schema's maximum of replicas. An object from before the schema may have more.
const MOST_REPLICAS: usize = 100_000;

/// The limits of the spec, in pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The desired number of pods.
    pub wanted: usize,
    /// How many pods must be available for the condition Available, as for a Deployment, but always one.
    pub needed: usize,
    /// How many desired pods may be unavailable through deletions of this controller.
    pub unavailable: usize,
    /// How many pods may exist above the desired number during a rollout.
    pub surge: usize,
    /// How many pods of older templates the partition keeps.
    pub partition: usize,
    /// Whether the spec sets a partition, even one that keeps none of the present replicas.
    pub has_partition: bool,
    /// Whether the rollout is paused.
    pub paused: bool,
    /// Whether to replace pods of older templates.
    pub rolls: bool,
}

impl Limits {
    /// The limits of this PodSet.
    pub fn of(podset: &PodSet) -> Self {
        // An object from before the schema may have a negative number.
        let wanted = usize::try_from(podset.spec.replicas).unwrap_or_default().min(MOST_REPLICAS);
        let strategy = podset.spec.update_strategy.as_ref();
        let amount = |amount: Option<&IntOrString>, round| scaled_value(amount?, wanted, round);
        let surge = strategy.and_then(|strategy| amount(strategy.max_surge.as_ref(), Round::Up)).unwrap_or(0);
        let partition = |of| scaled_value(strategy?.partition.as_ref()?, of, Round::Up);
        let paused = strategy.is_some_and(|strategy| strategy.paused == Some(true));
        let unavailable = strategy
            .and_then(|strategy| amount(strategy.max_unavailable.as_ref(), Round::Down))
            .unwrap_or(wanted * MAX_UNAVAILABLE / 100);
        // With both at 0, nothing could be replaced.
        let unavailable = if surge == 0 { unavailable.max(1) } else { unavailable };
        Self {
            wanted,
            needed: wanted.saturating_sub(unavailable).max(wanted.min(1)),
            unavailable,
            surge,
            partition: partition(wanted).unwrap_or(0),
            has_partition: partition(MOST_REPLICAS).is_some_and(|partition| partition > 0),
            paused,
            rolls: !paused
                && strategy.is_none_or(|strategy| strategy.type_ == UpdateStrategyType::RollingUpdate),
        }
    }
}

/// A counted pod.
#[derive(Clone, Copy, Debug)]
pub struct CandidatePod<'a> {
    /// The pod.
    pub pod: &'a Arc<Pod>,
    /// Whether it has an older template.
    pub outdated: bool,
    /// Whether it has the current template, which is an older one.
    pub current: bool,
    /// Whether it is available.
    pub available: bool,
}

/// The next step of a rollout.
#[derive(Debug, PartialEq)]
pub struct Rollout<'a> {
    /// The pods to delete now.
    pub going: Vec<&'a Arc<Pod>>,
    /// How many counted pods may exist.
    pub allowed: usize,
    /// How many of them are still to be replaced.
    pub outdated: usize,
}

/// Selects the pods to delete, and keeps this number of outdated ones. Both reasons use one order: named pods first, then
/// outdated ones, then ReplicaSet's order. Pods of the current template are kept longest, so that a scale-down does not
/// leave more pods of the updated template than before.
///
/// Surplus pods are always deleted, available ones only while enough others are available. An outdated pod is
/// deleted only while unavailable new pods and missing pods stay within maxUnavailable, as for a Deployment.
/// Otherwise a crashing template would cost an old pod whenever one of them is briefly unavailable.
pub fn rollout<'a>(
    limits: Limits,
    kept: usize,
    named: &[String],
    members: Vec<CandidatePod<'a>>,
    now: Timestamp,
) -> Rollout<'a> {
    let (counted, mut available) = (members.len(), members.iter().filter(|member| member.available).count());
    let unproven = members.iter().filter(|member| !member.outdated && !member.available).count();
    let outdated = members.iter().filter(|member| member.outdated).count();
    let replaced = if limits.rolls { outdated.saturating_sub(kept) } else { 0 };
    let allowed = limits.wanted + limits.surge.min(replaced);
    let mut surplus = counted.saturating_sub(allowed);
    let mut rollout = Rollout { going: Vec::new(), allowed, outdated: replaced };
    if surplus == 0 && replaced == 0 {
        return rollout;
    }
    let named: HashSet<&str> = named.iter().map(String::as_str).collect();
    let is_named = |member: &CandidatePod<'_>| named.contains(&*member.pod.meta.name);
    let mut order = ranked(members, now);
    // The same order decides which outdated pods to keep.
    order.sort_by_key(|member| (!is_named(member), member.current));
    let mut yet = replaced;
    let mut order: Vec<(CandidatePod<'_>, bool)> = order
        .into_iter()
        .map(|member| {
            let is_replaced = member.outdated && yet > 0;
            yet -= usize::from(is_replaced);
            (member, is_replaced)
        })
        .collect();
    order.sort_by_key(|(member, is_replaced)| {
        (!is_named(member), !is_replaced, member.available, member.current)
    });
    let least = limits.wanted.saturating_sub(limits.unavailable);
    let mut replaceable = counted.saturating_sub(least + unproven);
    // A pod without a node may wait for the room of the named one.
    let may_wait = order.iter().any(|(member, _)| !member.available && member.pod.node.is_some());
    for (member, is_replaced) in order {
        let may_go = surplus > 0 || is_replaced && replaceable > 0;
        if !may_go || member.available && available <= least {
            // No other surplus pod goes in place of one that the user named and that must wait.
            surplus -= usize::from(surplus > 0 && is_named(&member) && may_wait);
            continue;
        }
        available -= usize::from(member.available);
        surplus = surplus.saturating_sub(1);
        if member.outdated || member.available {
            replaceable = replaceable.saturating_sub(1);
        }
        rollout.going.push(member.pod);
    }
    rollout
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn now() -> Timestamp {
        "2026-01-02T00:00:00Z".parse().unwrap()
    }

    fn limits(spec: &Value) -> Limits {
        Limits::of(
            &serde_json::from_value(json!({
                "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
                "metadata": {"name": "p"}, "spec": spec}))
            .unwrap(),
        )
    }

    #[rstest]
    #[case::default(json!({"replicas": 10}), 2, 0)]
    #[case::at_least_one(json!({"replicas": 3}), 1, 0)]
    #[case::both_zero(json!({"replicas": 10, "updateStrategy": {"maxUnavailable": 0, "maxSurge": "0%"}}), 1, 0)]
    #[case::surge_alone(json!({"replicas": 10, "updateStrategy": {"maxUnavailable": 0, "maxSurge": 1}}), 0, 1)]
    #[case::surge_is_rounded_up(json!({"replicas": 10, "updateStrategy": {"maxSurge": "11%", "maxUnavailable": "19%"}}), 1, 2)]
    #[case::stored_nonsense(json!({"replicas": 4, "updateStrategy": {"maxSurge": -1, "maxUnavailable": "x"}}), 1, 0)]
    fn computes_limits_in_pods(#[case] spec: Value, #[case] unavailable: usize, #[case] surge: usize) {
        let limits = limits(&spec);
        assert_eq!((limits.unavailable, limits.surge), (unavailable, surge));
        assert!(limits.rolls);
    }

    #[test]
    fn on_delete_and_paused_do_not_roll() {
        for strategy in [json!({"type": "OnDelete"}), json!({"paused": true})] {
            assert!(!limits(&json!({"updateStrategy": strategy})).rolls);
        }
        assert_eq!(limits(&json!({"replicas": -5})).wanted, 0);
        assert_eq!(limits(&json!({"replicas": 3, "updateStrategy": {"partition": "50%"}})).partition, 2);
    }

    /// Pods from words: `o` has an older template, `c` the current one, `n` the updated one; `a` is available, `r` ready, `u`
    /// neither.
    fn pods(words: &str) -> Vec<(String, Arc<Pod>)> {
        words
            .split_whitespace()
            .enumerate()
            .map(|(at, word)| {
                let mut pod = Pod { ready_since: word.contains(['a', 'r']).then(now), ..Pod::default() };
                pod.meta.name = format!("{word}{at}").into();
                (word.to_owned(), Arc::new(pod))
            })
            .collect()
    }

    fn members(pods: &[(String, Arc<Pod>)]) -> Vec<CandidatePod<'_>> {
        pods.iter()
            .map(|(word, pod)| CandidatePod {
                pod,
                outdated: word.contains(['o', 'c']),
                current: word.contains('c'),
                available: word.contains('a'),
            })
            .collect()
    }

    /// The decision if the updated template is not the current one.
    fn decide<'a>(limits: &Limits, named: &[String], pods: &'a [(String, Arc<Pod>)]) -> Rollout<'a> {
        rollout(*limits, limits.partition, named, members(pods), now())
    }

    #[rstest]
    #[case::enough(json!({"replicas": 2}), "na na", "", 2)]
    #[case::too_many(json!({"replicas": 2}), "na nu na", "nu1", 2)]
    #[case::too_many_of_old_first(json!({"replicas": 2}), "na na oa", "oa2", 2)]
    #[case::a_crashing_template_costs_no_briefly_unavailable_pod(json!({"replicas": 4, "updateStrategy": {"maxUnavailable": 2}}), "oa ou nu nu", "", 4)]
    #[case::deletes_ready_old_pods_within_the_limit(json!({"replicas": 4, "updateStrategy": {"maxUnavailable": 1}}), "or or or or", "or0", 4)]
    #[case::old_unavailable_first(json!({"replicas": 4, "updateStrategy": {"maxUnavailable": 1}}), "oa oa ou oa", "ou2", 4)]
    #[case::old_unavailable_within_the_limit(json!({"replicas": 3}), "ou ou ou", "ou0", 3)]
    #[case::old_available_within_the_limit(json!({"replicas": 4, "updateStrategy": {"maxUnavailable": 2}}), "oa oa oa oa", "oa0 oa1", 4)]
    #[case::a_crashing_template_stops(json!({"replicas": 4, "updateStrategy": {"maxUnavailable": 2}}), "oa oa nu nu", "", 4)]
    #[case::ready_is_not_available(json!({"replicas": 2, "updateStrategy": {"maxUnavailable": 1}}), "oa nr", "", 2)]
    #[case::surge_first(json!({"replicas": 2, "updateStrategy": {"maxUnavailable": 0, "maxSurge": 1}}), "oa oa", "", 3)]
    #[case::surge_unready(json!({"replicas": 2, "updateStrategy": {"maxUnavailable": 0, "maxSurge": 1}}), "oa oa nu", "", 3)]
    #[case::surge_ready(json!({"replicas": 2, "updateStrategy": {"maxUnavailable": 0, "maxSurge": 1}}), "oa oa na", "oa0", 3)]
    #[case::partition(json!({"replicas": 3, "updateStrategy": {"partition": 2}}), "oa oa oa", "oa0", 3)]
    #[case::partition_reached(json!({"replicas": 3, "updateStrategy": {"partition": 2, "maxSurge": 5}}), "oa oa na", "", 3)]
    #[case::current_pods_last(json!({"replicas": 3, "updateStrategy": {"partition": 1, "maxUnavailable": 2}}), "ca oa oa", "oa1 oa2", 3)]
    #[case::surplus_of_a_canary(json!({"replicas": 3, "updateStrategy": {"partition": 3}}), "ca na ca ca", "na1", 3)]
    #[case::on_delete(json!({"replicas": 2, "updateStrategy": {"type": "OnDelete"}}), "oa ou", "", 2)]
    #[case::paused_with_a_surplus(json!({"replicas": 1, "updateStrategy": {"paused": true}}), "oa nu", "nu1", 1)]
    #[case::down_to_none(json!({"replicas": 0}), "na nu oa", "oa2 nu1 na0", 0)]
    fn deletes(#[case] spec: Value, #[case] words: &str, #[case] going: &str, #[case] allowed: usize) {
        let pods = pods(words);
        let decided = decide(&limits(&spec), &[], &pods);
        let names: Vec<&str> = decided.going.iter().map(|pod| &*pod.meta.name).collect();
        assert_eq!((names.join(" ").as_str(), decided.allowed), (going, allowed));
    }

    #[test]
    fn deletes_named_pods_first_while_enough_stay_available() {
        let mut pods = pods("na na nu na");
        for (at, (_, pod)) in pods.iter_mut().enumerate() {
            Arc::make_mut(pod).node = Some(format!("n{at}").into());
        }
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let going_of = |pods: &[(String, Arc<Pod>)],
                        replicas: usize,
                        unavailable: usize,
                        names: &[&str]|
         -> Vec<String> {
            let strategy = json!({"maxUnavailable": unavailable, "maxSurge": usize::from(unavailable == 0)});
            let spec = json!({"replicas": replicas, "updateStrategy": strategy});
            let decided = decide(&limits(&spec), &named(names), pods);
            decided.going.iter().map(|pod| pod.meta.name.to_string()).collect()
        };
        assert_eq!(going_of(&pods, 3, 1, &["na3", "unknown"]), ["na3"]);
        assert_eq!(going_of(&pods, 2, 1, &["na3"]), ["na3", "nu2"]);
        assert_eq!(going_of(&pods, 4, 1, &["na3"]), Vec::<String>::new(), "a name alone deletes no pod");
        assert_eq!(
            going_of(&pods, 3, 0, &["na3"]),
            Vec::<String>::new(),
            "waits until another pod is available"
        );
        Arc::make_mut(&mut pods[2].1).node = None;
        assert_eq!(going_of(&pods, 3, 0, &["na3"]), ["nu2"], "which may need its room");
    }

    prop_compose! {
        fn any_world()(
            replicas in 0..8_u8, unavailable in 0..4_u8, surge in 0..4_u8, partition in 0..4_u8, rolls: bool,
            words in prop::collection::vec(prop::sample::select(vec!["oa", "or", "ou", "na", "nr", "nu"]), 0..12),
        ) -> (Limits, String) {
            let type_ = if rolls { "RollingUpdate" } else { "OnDelete" };
            let strategy = json!({"type": type_, "maxUnavailable": unavailable, "maxSurge": surge, "partition": partition});
            (limits(&json!({"replicas": replicas, "updateStrategy": strategy})), words.join(" "))
        }
    }

    proptest! {
        /// No deletion takes the available pods below the limit, surplus pods are deleted, and every rollout
        /// ends.
        #[test]
        fn every_rollout_ends_within_its_limits((limits, words) in any_world(), named in prop::collection::vec(0..12_usize, 0..3)) {
            let mut pods = pods(&words);
            let names: Vec<String> =
                named.iter().filter_map(|at| Some(pods.get(*at)?.1.meta.name.to_string())).collect();
            let least = limits.wanted.saturating_sub(limits.unavailable);
            let available = |pods: &[(String, Arc<Pod>)]| pods.iter().filter(|(word, _)| word.contains('a')).count();
            let is_old = |word: &str| word.contains('o');
            for round in 0..60 {
                let (before, counted) = (available(&pods), pods.len());
                let decided = decide(&limits, &names, &pods);
                let going: Vec<_> = decided.going.iter().map(|pod| pod.meta.name.clone()).collect();
                let allowed = decided.allowed;
                prop_assert!(allowed <= limits.wanted + limits.surge);
                let surplus = counted.saturating_sub(allowed);
                let waiting = pods.iter().filter(|(_, pod)| names.contains(&pod.meta.name.to_string())).count();
                prop_assert!(going.len() + waiting >= surplus, "deletes surplus pods");
                pods.retain(|(_, pod)| !going.contains(&pod.meta.name));
                prop_assert!(available(&pods) >= before.min(least));
                if !limits.rolls {
                    prop_assert!(going.len() <= surplus);
                }
                // Simulates the creations, and kubelets that make all pods available.
                for _ in counted..allowed {
                    let mut pod = Pod { ready_since: Some(now()), ..Pod::default() };
                    pod.meta.name = format!("made-{round}-{}", pods.len()).into();
                    pods.push(("na".to_owned(), Arc::new(pod)));
                }
                if going.is_empty() && counted >= allowed && available(&pods) == pods.len() {
                    break;
                }
                for (word, _) in &mut pods {
                    *word = word.replace(['r', 'u'], "a");
                }
            }
            let old = pods.iter().filter(|(word, _)| is_old(word)).count();
            prop_assert_eq!(pods.len(), limits.wanted);
            if limits.rolls {
                prop_assert!(old <= limits.partition);
            }
        }
    }
}
