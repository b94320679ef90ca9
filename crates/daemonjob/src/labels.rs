//! The labels and annotations of a DaemonJob and its pods. Both outlive a process, so the names must never change.

use jiff::Timestamp;
use quintet_runtime::model::core_types::Pod;
use quintet_runtime::model::object::Owner;
use quintet_runtime::model::resource::Resource;

use crate::api::DaemonJob;
use crate::ledger::MOST_PODS;

/// Label: the DaemonJob's name. The tutorial intended this label.
pub const NAME_LABEL: &str = "daemonjob";
/// Label: the DaemonJob's UID.
pub const UID_LABEL: &str = "dj.dysproz.io/daemonjob-uid";
/// Label: the UID of the node that the pod is for.
pub const NODE_UID_LABEL: &str = "dj.dysproz.io/node-uid";
/// Label: the hash of the template that the pod was created from.
pub const HASH_LABEL: &str = "dj.dysproz.io/template-hash";
/// Label: the number of the pod. The pods of a node are numbered from 1.
pub const POD_NUMBER_LABEL: &str = "dj.dysproz.io/pod-number";
/// Annotation: the number of the pod's rollout.
pub const ROLLOUT_ANNOTATION: &str = "dj.dysproz.io/rollout";
/// Annotation: the number of the pod's run.
pub const RUN_ANNOTATION: &str = "dj.dysproz.io/run";
/// Annotation: the due time of the schedule for which the pod was created.
pub const DUE_TIME_ANNOTATION: &str = "dj.dysproz.io/due-time";
/// Annotation: the name of the node that the pod is for.
pub const NODE_NAME_ANNOTATION: &str = "dj.dysproz.io/node-name";
/// Annotation: the node was Ready when the pod was created.
pub const NODE_READY_ANNOTATION: &str = "dj.dysproz.io/node-ready";
/// Annotation: the node's boot ID when the pod was created.
pub const BOOT_ID_ANNOTATION: &str = "dj.dysproz.io/boot-id";
/// Annotation: the node's machine ID when the pod was created.
pub const MACHINE_ID_ANNOTATION: &str = "dj.dysproz.io/machine-id";

/// Annotation of a DaemonJob: the wave that a user has approved, as `<rollout number>/<wave>`.
pub const APPROVED_ANNOTATION: &str = "dj.dysproz.io/approved";
/// Annotation of a DaemonJob: the reason why a user has paused it.
pub const PAUSED_ANNOTATION: &str = "dj.dysproz.io/paused";

/// Annotation of a Node, before the UID of a DaemonJob: the success for which the manager has changed the Node, as
/// `<rollout number>/<pod number>`.
pub const MARKED_ANNOTATION: &str = "dj.dysproz.io/marked-";

/// The DaemonJob that controls a pod.
pub fn daemonjob_of(pod: &Pod) -> Option<&Owner> {
    pod.meta.owner.as_deref().filter(|owner| owner.is_a(&Resource::of::<DaemonJob>()))
}

/// The name of the node that a pod was created for.
pub fn pinned_to(pod: &Pod) -> Option<&str> {
    pod.meta.annotations.get(NODE_NAME_ANNOTATION).or(pod.node.as_deref())
}

/// The number of a pod: its label, or the end of its name if the label was removed.
pub fn number_of(pod: &Pod) -> u64 {
    let believed = |number: &str| number.parse().ok().filter(|number: &u64| *number <= MOST_PODS);
    let named = || believed(pod.meta.name.rsplit('-').next()?);
    pod.label(POD_NUMBER_LABEL).and_then(believed).or_else(named).unwrap_or(0)
}

/// The hash of the template that a pod was created from. A pod without the label counts as a pod of the
/// current template, because no pod is better than a second one.
pub fn hash_of<'p>(pod: &'p Pod, current: &'p str) -> &'p str {
    pod.label(HASH_LABEL).unwrap_or(current)
}

/// The due time for which a pod was created.
pub fn due_time_of(pod: &Pod) -> Option<Timestamp> {
    pod.meta.annotations.get(DUE_TIME_ANNOTATION)?.parse().ok()
}

/// The number in an annotation.
pub(crate) fn numbered(pod: &Pod, annotation: &str) -> Option<u64> {
    pod.meta.annotations.get(annotation)?.parse().ok()
}
