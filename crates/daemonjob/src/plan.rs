//! What should be done for one DaemonJob: a pure function of what is observed and the time.
//!
//! [`crate::survey`] tells the state of every node. The plan turns it into writes, in an order in which a crash between
//! any two of them loses nothing:
//!
//! 1. pods that must go are marked and deleted, and finalizers come off pods whose outcome the ledger has;
//! 2. outcomes are written to the ledger, if something waits for that;
//! 3. finalizers come off deleted pods that were just recorded; recorded pods that are not needed any more are deleted,
//!    and the others lose their finalizers once the run rests;
//! 4. pods are made, once the status tells the rollout and the run that they are part of.

use jiff::Timestamp;
use quintet_runtime::KIND_LABEL;
use quintet_runtime::model::core_types::Node;
use quintet_runtime::model::object::{Meta, Object as _, controller_reference};
use quintet_runtime::model::plan::{Action, Body, Plan};
use quintet_runtime::model::refusals::{RefusalReason, Verb};
use quintet_runtime::model::resource::{CONFIG_MAPS, PODS, Resource};
use serde_json::{Value, json};

use crate::FINALIZER;
use crate::api::{DaemonJob, DaemonJobStatus};
use crate::assess::assess;
use crate::eligibility::{Placement, Verdict, pinned};
use crate::labels::{
    BOOT_ID_ANNOTATION, HASH_LABEL, MACHINE_ID_ANNOTATION, NAME_LABEL, NODE_NAME_ANNOTATION,
    NODE_READY_ANNOTATION, NODE_UID_LABEL, POD_NUMBER_LABEL, ROLLOUT_ANNOTATION, RUN_ANNOTATION, UID_LABEL,
};
use crate::ledger::{FORMAT, LEDGER_LABEL};
use crate::node_state::{State, pod_name};
use crate::observe::World;
use crate::outcome::Rules;
use crate::record::{Record, Release};
use crate::removal::{Removal, removal, unneeded};
use crate::rollout::{Key, current_key};
use crate::status;
use crate::survey::Survey;

pub(crate) type Actions = Vec<Action<DaemonJobStatus>>;

/// Makes the plan.
pub fn plan(job: &DaemonJob, world: &World, now: Timestamp) -> Plan<DaemonJobStatus> {
    let mut plan = Plan::default();
    if job.terminating() {
        // Owner references take the pods away, and the sweeper their finalizers; a status would come too late.
        return plan;
    }
    let survey = assess(job, world, now);
    let record = Record::of(job, world, &survey, now);
    let ledger = record.writes(job, world, &survey, now);
    let (now_free, then_free): (Vec<_>, Vec<_>) = survey
        .pods()
        .iter()
        .filter(|judged| judged.is_deleted)
        .filter_map(|judged| record.release(world, &survey, judged).map(|release| (judged.pod, release)))
        .partition(|(_, release)| *release == Release::Now);
    let now_free = now_free.iter().filter_map(|(pod, _)| release(&pod.meta));
    let then_free = then_free.iter().filter_map(|(pod, _)| release(&pod.meta));
    if world.stopping {
        // A drain may have deleted the pods together with this manager: its successor may have no node.
        let steps = [now_free.collect(), ledger, then_free.collect()];
        plan.steps.extend(steps.into_iter().filter(|step: &Actions| !step.is_empty()));
        return plan;
    }
    for at in [survey.again, record.again].into_iter().flatten() {
        plan.look_again(at);
    }

    let rules = Rules::of(job);
    let mut first = restored_labels(job, world, &survey);
    for judged in survey.pods() {
        let removal = removal(job, world, &survey, &rules, judged, now);
        if let Removal::Keep(Some(until)) = removal {
            plan.look_again(until);
        }
        first.extend(removal.action(judged.pod));
    }
    first.extend(now_free);
    let mut last: Actions = then_free.collect();
    let (unneeded, expires) = unneeded(job, &survey, now);
    let (tidied, more_at) = record.tidied(world, &survey, &unneeded, now);
    last.extend(tidied);
    for at in [expires, more_at].into_iter().flatten() {
        plan.look_again(at);
    }
    let creations: Actions = if survey.begins || survey.changes || survey.hold.is_some() {
        Vec::new()
    } else {
        let due = survey.nodes.iter().filter_map(|surveyed| match surveyed.state {
            State::Due(number) => Some((surveyed.node, number)),
            _ => None,
        });
        due.map(|(node, number)| create(job, node, &survey.key, number)).collect()
    };
    plan.steps.extend([first, ledger, last, creations].into_iter().filter(|step| !step.is_empty()));

    let status = status::status(job, world, &survey, now);
    plan.events = status::news(job, world, &status);
    plan.status = Some(status);
    plan
}

/// Takes our finalizer off, if it is still where it was seen.
pub fn release<S>(meta: &Meta) -> Option<Action<S>> {
    let operations = meta.without_finalizer(FINALIZER)?;
    Some(Action::Patch {
        resource: PODS,
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        operations,
    })
}

/// Puts back the labels without which a watch does not see what is ours.
fn restored_labels(job: &DaemonJob, world: &World, survey: &Survey<'_>) -> Actions {
    let restore = |resource, meta: &Meta, labels: Value| Action::Merge {
        resource,
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        body: json!({ "metadata": { "uid": &*meta.uid, "labels": labels } }),
    };
    let pods =
        world.unlabelled.pods.iter().map(|pod| restore(PODS, &pod.meta, json!({ KIND_LABEL: "DaemonJob" })));
    let shards = world.unlabelled.shards.iter();
    let shards = shards.map(|shard| restore(CONFIG_MAPS, &shard.meta, json!({ LEDGER_LABEL: FORMAT })));
    // A pod that lost its label while no manager ran: it has the name of a pod that is due.
    let met = survey.nodes.iter().filter_map(|surveyed| match surveyed.state {
        State::Due(run) if !world.refusals.is_empty() => {
            let name = pod_name(job, surveyed.node, run);
            world
                .refusals
                .of(Verb::Create, &PODS, &name)
                .filter(|refusal| refusal.reason == RefusalReason::LabelsMissing)?;
            Some(Action::Merge {
                resource: PODS,
                namespace: job.metadata.namespace.as_deref().unwrap_or_default().into(),
                name: name.into(),
                body: json!({ "metadata": { "labels": { KIND_LABEL: "DaemonJob" } } }),
            })
        }
        _ => None,
    });
    pods.chain(shards).chain(met).collect()
}

/// A node that the template allows a pod on, if there is one.
pub fn eligible_node<'w>(job: &DaemonJob, world: &'w World) -> Option<&'w Node> {
    let placement = Placement::of(job.spec.template.spec());
    world.nodes.iter().map(|node| &**node).find(|node| placement.verdict(node) == Verdict::Run)
}

/// A pod of this template that the API server can judge: for this node, or for one that does not exist.
pub fn pod_on_trial(job: &DaemonJob, world: &World, node: Option<&Node>) -> Option<Body> {
    let key = current_key(job, world);
    let meta = Meta { name: "node".into(), uid: "node".into(), ..Meta::default() };
    let absent = Node { meta, ..Node::default() };
    // Pods that are made have numbers from 1.
    match create(job, node.unwrap_or(&absent), &key, 0) {
        Action::Create { body, .. } => Some(body),
        _ => None,
    }
}

fn create(job: &DaemonJob, node: &Node, key: &Key, number: u64) -> Action<DaemonJobStatus> {
    let meta = &job.metadata;
    let namespace = meta.namespace.as_deref().unwrap_or_default();
    let name = pod_name(job, node, number);
    let (rollout, run) = (key.rollout.to_string(), key.run.to_string());
    let annotations = [
        (NODE_NAME_ANNOTATION, &*node.meta.name),
        (ROLLOUT_ANNOTATION, &rollout),
        (RUN_ANNOTATION, &run),
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
    // A pod that is always restarted never completes; the tutorial made it OnFailure too.
    if matches!(spec.get("restartPolicy").and_then(Value::as_str), None | Some("Always")) {
        spec["restartPolicy"] = json!("OnFailure");
    }
    body["spec"] = spec;
    Action::Create { resource: PODS, namespace: namespace.into(), name, body: body.into() }
}

#[cfg(test)]
mod tests;
