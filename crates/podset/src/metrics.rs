//! Metrics of all PodSets together, and the problems of each.

use jiff::Timestamp;
use prometheus::Registry;
use quintet_runtime::cache::aggregate_gauge::Sums;
use quintet_runtime::cache::informer::Informer;
use quintet_runtime::model::problem::{Problem, missing_pods, or_stalled};

use crate::api::{PodSet, PodSetStatus};

/// The states of pods.
const STATES: [&str; 5] = ["desired", "ready", "available", "updated", "terminating"];

/// Registers the metrics of this kind and keeps them current.
pub fn follow(registry: &Registry, objects: &Informer<PodSet>) -> Result<(), prometheus::Error> {
    let pods = Sums::new(
        registry,
        "quintet_podset_pods",
        "Pods by state, summed over every PodSet: desired, ready, available, updated, terminating.",
        STATES,
    )?;
    pods.follow(objects, counts);
    Ok(())
}

fn counts(podset: &PodSet) -> [i64; STATES.len()] {
    let PodSetStatus { ready_replicas, available_replicas, updated_replicas, terminating_replicas, .. } =
        podset.status.clone().unwrap_or_default();
    let desired = Some(podset.spec.replicas);
    [desired, ready_replicas, available_replicas, updated_replicas, terminating_replicas]
        .map(|count| count.unwrap_or_default().into())
}

/// The problems that the status shows: ready pods are missing, or the rollout makes no progress.
pub fn problems(podset: &PodSet, _now: Timestamp) -> Vec<Problem> {
    let Some(status) = &podset.status else { return Vec::new() };
    let missing = missing_pods(status.ready_replicas, podset.spec.replicas, &status.conditions);
    or_stalled(Vec::from_iter(missing), &status.conditions)
}
