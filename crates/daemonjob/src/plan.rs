//! The plan for one DaemonJob: a pure function of the observed state and the time.
//!
//! [`crate::survey`] determines the state of every node. The plan turns it into writes, in an order in which
//! a crash between two writes loses nothing:
//!
//! 1. Mark and delete running pods that must not run, and release the deleted pods whose outcome the ledger
//!    has.
//! 2. Write outcomes to the ledger, if something waits for them.
//! 3. Release the deleted pods that were just recorded.
//! 4. Create pods, if the status has their rollout and run. Mark nodes after a success.
//!
//! In the background, or with the creations if there are thousands: delete recorded pods that are not needed, and release the
//! other recorded pods after a quiet time.

use jiff::Timestamp;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::core_types::Node;
use quintet_runtime::model::object::{Meta, Object as _, controller_reference};
use quintet_runtime::model::plan::{Action, Body, Plan};
use quintet_runtime::model::refusals::RefusalReason;
use quintet_runtime::model::resource::{CONFIG_MAPS, PODS, Resource};
use serde_json::{Value, json};

use crate::FINALIZER;
use crate::api::{DaemonJob, DaemonJobStatus};
use crate::assess::assess;
use crate::eligibility::{Eligibility, Placement, pinned};
use crate::labels::{
    BOOT_ID_ANNOTATION, DUE_TIME_ANNOTATION, HASH_LABEL, MACHINE_ID_ANNOTATION, NAME_LABEL,
    NODE_NAME_ANNOTATION, NODE_READY_ANNOTATION, NODE_UID_LABEL, POD_NUMBER_LABEL, ROLLOUT_ANNOTATION,
    RUN_ANNOTATION, UID_LABEL,
};
use crate::ledger::{FORMAT, LEDGER_LABEL};
use crate::node_state::{State, pod_name, refusal};
use crate::observe::World;
use crate::record::{Actions, Record};
use crate::release::{Release, release};
use crate::removal::{pod_action, unneeded};
use crate::rollout::{Key, current_key};
use crate::status;
use crate::survey::Survey;

/// The number of pods that may wait for their deletion in the background. A rollout may write in each plan until its end, so
/// that nothing runs in the background meanwhile. From 12,500 ended pods, kube-controller-manager deletes those of other owners too.
const MOST_UNNEEDED: usize = 5_000;

/// Makes the plan.
pub fn plan(job: &DaemonJob, world: &World, now: Timestamp) -> Plan<DaemonJobStatus> {
    let mut plan = Plan::default();
    if job.terminating() {
        // Kubernetes deletes the pods by their owner references, and the sweeper removes their finalizers.
        return plan;
    }
    let survey = assess(job, world, now);
    let record = Record::of(job, world, &survey, now);
    let ledger = record.writes();
    let deleted = survey.pods().iter().filter(|assessed| assessed.is_deleted);
    let (mut now_free, mut then_free) = (Actions::new(), Actions::new());
    for (assessed, when) in deleted.filter_map(|assessed| Some((assessed, record.release(assessed)?))) {
        let free = if when == Release::Now { &mut now_free } else { &mut then_free };
        free.extend(release(&assessed.pod.meta));
    }
    if world.stopping {
        // A drain may delete the pods together with this manager, and no other manager may be able to run.
        plan.steps.extend([now_free, ledger, then_free].into_iter().filter(|step| !step.is_empty()));
        return plan;
    }

    let mut first = restored_labels(job, world, &survey);
    for assessed in survey.pods() {
        let (action, until) = pod_action(job, &survey, assessed, now);
        plan.requeue_at(until);
        first.extend(action);
    }
    first.extend(now_free);
    let (unneeded, expires) = unneeded(job, &survey, now);
    let (tidied, more_at) = record.tidied(&unneeded);
    let (urgent, background) =
        if unneeded.len() > MOST_UNNEEDED { (tidied, Actions::new()) } else { (Actions::new(), tidied) };
    plan.background = background;
    plan.requeue_at([survey.again, record.again, expires, more_at].into_iter().flatten().min());
    let may_create = !(survey.begins || survey.changes || survey.hold.is_some());
    let due = survey.nodes.iter().filter(|_| may_create).filter_map(|selected| match selected.state {
        State::Due(number) => Some((selected.node, number)),
        _ => None,
    });
    let creations = due.map(|(node, number)| create(job, node, &survey.key, number));
    // One step: a rejected creation does not keep a node from its mark, and a rejected mark stops no creation.
    let marks = survey.marks.iter().flat_map(|marks| marks.writes.iter().cloned());
    let creations: Actions = urgent.into_iter().chain(marks).chain(creations).collect();
    plan.steps.extend([first, ledger, then_free, creations].into_iter().filter(|step| !step.is_empty()));

    let status = status::status(job, world, &record, now);
    plan.events = status::events(job, &status);
    plan.repairs = status::repairs(world);
    plan.status = Some(status);
    plan
}

/// Restores the labels by which the watches select pods and shards.
fn restored_labels(job: &DaemonJob, world: &World, survey: &Survey<'_>) -> Actions {
    let restore = |resource, meta: &Meta, labels: Value| {
        Action::merge_patch(resource, meta, json!({ "metadata": { "uid": &*meta.uid, "labels": labels } }))
    };
    let pods =
        world.unlabelled.pods.iter().map(|pod| restore(PODS, &pod.meta, json!({ KIND_LABEL: "DaemonJob" })));
    let shards = world.unlabelled.shards.iter();
    let shards = shards.map(|shard| restore(CONFIG_MAPS, &shard.meta, json!({ LEDGER_LABEL: FORMAT })));
    // A pod that lost its label while no manager ran has the name of a pod that is due.
    let met = survey.nodes.iter().filter_map(|selected| {
        let State::Due(number) = selected.state else { return None };
        let refusal = refusal(job, world, selected.node, number)?;
        let (namespace, name) = (job.key().namespace, pod_name(job, selected.node, number).into());
        let body = json!({ "metadata": { "labels": { KIND_LABEL: "DaemonJob" } } });
        let patch = Action::MergePatch { resource: PODS, namespace, name, body };
        (refusal.reason == RefusalReason::LabelsMissing).then_some(patch)
    });
    pods.chain(shards).chain(met).collect()
}

/// A node that may have a pod of the template, if one exists.
pub fn eligible_node<'w>(job: &DaemonJob, world: &'w World) -> Option<&'w Node> {
    let placement = Placement::of(job.spec.template.spec());
    world.nodes.iter().map(|node| &**node).find(|node| placement.eligibility(node) == Eligibility::Run)
}

/// A pod of this template for a dry run: for this node, or for a node that does not exist.
pub fn pod_on_trial(job: &DaemonJob, world: &World, node: Option<&Node>) -> Option<Body> {
    let key = current_key(job, world);
    let meta = Meta { name: "node".into(), uid: "node".into(), ..Meta::default() };
    let absent = Node { meta, ..Node::default() };
    // Pods that the manager creates are numbered from 1.
    let Action::Create { body, .. } = create(job, node.unwrap_or(&absent), &key, 0) else { return None };
    Some(body)
}

fn create(job: &DaemonJob, node: &Node, key: &Key, number: u64) -> Action<DaemonJobStatus> {
    let meta = &job.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name = pod_name(job, node, number);
    let (rollout, run) = (key.rollout.to_string(), key.run.to_string());
    let due = key.due.map(|due| due.to_string()).unwrap_or_default();
    let annotations = [
        (NODE_NAME_ANNOTATION, &*node.meta.name),
        (ROLLOUT_ANNOTATION, &rollout),
        (RUN_ANNOTATION, &run),
        (DUE_TIME_ANNOTATION, &due),
        (BOOT_ID_ANNOTATION, &node.boot_id),
        (MACHINE_ID_ANNOTATION, &node.machine_id),
        (NODE_READY_ANNOTATION, if node.ready { "true" } else { "" }),
    ];
    let annotations: Vec<(&str, &str)> =
        annotations.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let mut body = job.spec.template.pod(
        namespace,
        &name,
        &controller_reference(&Resource::of::<DaemonJob>(), meta),
        &[
            (KIND_LABEL, "DaemonJob"),
            (NAME_LABEL, meta.name.as_deref().unwrap_or_default()),
            (UID_LABEL, meta.uid.as_deref().unwrap_or_default()),
            (NODE_UID_LABEL, &node.meta.uid),
            (HASH_LABEL, &key.hash),
            (POD_NUMBER_LABEL, &number.to_string()),
        ],
        &annotations,
        Some(FINALIZER),
    );
    let mut spec = pinned(job.spec.template.spec(), &node.meta.name);
    // A pod that always restarts never completes. The tutorial's operator used OnFailure too.
    if matches!(spec.get("restartPolicy").and_then(Value::as_str), None | Some("Always")) {
        spec["restartPolicy"] = json!("OnFailure");
    }
    body["spec"] = spec;
    Action::Create { resource: PODS, namespace: namespace.into(), name, owner_label: None, body: body.into() }
}

#[cfg(test)]
mod tests;
