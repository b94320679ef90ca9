//! DaemonJob: run a pod to completion once on every eligible node.
//!
//! The manager creates each node's pods directly and pins them by node affinity. A pod's name follows from
//! the UIDs of the DaemonJob and the node and from the pod's number. A repeated creation therefore fails with
//! AlreadyExists. The ledger keeps the outcome of a pod after its deletion. A finalizer holds each pod until
//! the ledger has its outcome. A node is done when its last attempt succeeded with the current template.

pub mod api;
pub mod assess;
pub mod backoff;
pub mod clocks;
pub mod command;
pub mod controller;
pub mod deadline;
pub mod eligibility;
pub mod explain;
pub mod failure_policy;
pub mod fleet;
pub mod history;
pub mod index;
pub mod labels;
pub mod ledger;
pub mod mark_prefixes;
pub mod marks;
pub mod metrics;
pub mod node_state;
pub mod observe;
pub mod outcome;
pub mod parallelism;
pub mod plan;
pub mod problems;
mod record;
pub mod release;
pub mod removal;
pub mod rollout;
pub mod run;
pub mod schedule;
pub mod status;
pub mod survey;
pub mod sweep;
pub mod ttl;
pub mod waves;

use quintet_runtime::model::rule::Rule;

pub use controller::register;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "daemonjob";

/// The finalizer of every pod of a DaemonJob. The manager removes it when the ledger has the pod's outcome,
/// or when no outcome is needed.
pub const FINALIZER: &str = "dj.dysproz.io/ledger";

/// The RBAC rules of the controller.
pub const RULES: &[Rule] = &[
    Rule::allow("dj.dysproz.io", &["daemonjobs"], &["get", "list", "watch"])
        .because("The controller reads DaemonJobs."),
    Rule::allow("dj.dysproz.io", &["daemonjobs/status"], &["patch"])
        .because("The controller applies their status."),
    Rule::allow("dj.dysproz.io", &["daemonjobs/finalizers"], &["update"])
        .because("Pods name their DaemonJob as owner with blockOwnerDeletion, for which admission may require this permission."),
    Rule::allow("", &["pods"], &["get", "list", "watch", "create", "delete", "patch"])
        .because("The controller creates the pods of the nodes, removes their finalizer, and deletes pods."),
    Rule::allow("", &["configmaps"], &["get", "list", "watch", "create", "patch"])
        .because("The ledger keeps the outcomes of deleted pods. RBAC cannot restrict this to ConfigMaps with its label."),
    Rule::allow("", &["nodes"], &["list", "watch"])
        .because("The controller creates pods for the nodes that the template selects."),
];

/// The optional RBAC rules of the controller: see `daemonJob.nodeMarks` of the chart. After an unclear answer to a
/// patch, the manager reads the Node.
pub const NODE_MARK_RULES: &[Rule] = &[Rule::allow("", &["nodes"], &["get", "patch"]).because(
    "The controller makes the changes of onSuccess. RBAC cannot restrict them to some labels and taints.",
)];

/// The RBAC rules of [`sweep`], which runs even if the kind is disabled. No finalizer may block a deletion.
pub const SWEEP_RULES: &[Rule] = &[
    Rule::allow("", &["pods"], &["get", "list", "watch", "patch"]).because(
        "The sweeper removes the finalizer from pods whose DaemonJob is gone or whose kind is disabled.",
    ),
    Rule::allow("dj.dysproz.io", &["daemonjobs"], &["get"])
        .because("The sweeper checks whether a pod's DaemonJob still exists."),
];

/// The RBAC rules of `quintet uninstall` for this kind.
pub const UNINSTALL_RULES: &[Rule] = &[
    Rule::allow("", &["pods"], &["list", "patch"])
        .because("Uninstall removes the finalizer from the pods of DaemonJobs."),
    Rule::allow("dj.dysproz.io", &["daemonjobs"], &["list"])
        .because("Uninstall reports the DaemonJobs that remain."),
];
