//! DaemonJob: run a pod to completion once on every eligible node.
//!
//! The plan makes each node's pods directly, pinned by node affinity. A pod's name follows from the UIDs of the
//! DaemonJob and the node and from the pod's number, so a repeated creation meets AlreadyExists. Pods tell what
//! happened while they exist; the ledger keeps it afterwards, and a finalizer holds every pod until then. A node is
//! done when its last attempt succeeded and was made from the current template.

pub mod api;
pub mod assess;
pub mod clocks;
pub mod controller;
pub mod eligibility;
pub mod explain;
pub mod failure_policy;
pub mod fleet;
pub mod history;
pub mod labels;
pub mod ledger;
pub mod metrics;
pub mod node_state;
pub mod observe;
pub mod outcome;
pub mod plan;
mod record;
pub mod removal;
pub mod rollout;
pub mod run;
pub mod status;
pub mod survey;
pub mod sweep;
pub mod turns;

use quintet_runtime::model::rule::Rule;

pub use controller::register;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "daemonjob";

/// The finalizer on every pod of a DaemonJob: removed when the ledger has the pod's outcome, or when no outcome is needed.
pub const FINALIZER: &str = "dj.dysproz.io/ledger";

/// What this kind may do.
pub const RULES: &[Rule] = &[
    Rule {
        group: "dj.dysproz.io",
        resources: &["daemonjobs"],
        verbs: &["get", "list", "watch"],
        why: "The controller reconciles DaemonJobs.",
    },
    Rule {
        group: "dj.dysproz.io",
        resources: &["daemonjobs/status"],
        verbs: &["patch"],
        why: "The controller applies their status.",
    },
    Rule {
        group: "dj.dysproz.io",
        resources: &["daemonjobs/finalizers"],
        verbs: &["update"],
        why: "The owner reference of pods has blockOwnerDeletion, which some clusters protect with this permission.",
    },
    Rule {
        group: "",
        resources: &["pods"],
        verbs: &["get", "list", "watch", "create", "delete", "patch"],
        why: "The controller creates a pod for each node and run, removes its finalizer when it ended, and deletes it.",
    },
    Rule {
        group: "",
        resources: &["configmaps"],
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "The ledger records the outcomes in ConfigMaps. RBAC cannot restrict this to their label.",
    },
    Rule {
        group: "",
        resources: &["nodes"],
        verbs: &["list", "watch"],
        why: "The controller selects nodes for pods.",
    },
];

/// What [`sweep`] may do, also where the kind is switched off: its finalizers must hang nothing.
pub const SWEEP_RULES: &[Rule] = &[
    Rule {
        group: "",
        resources: &["pods"],
        verbs: &["get", "list", "watch", "patch"],
        why: "The sweeper removes the finalizer from pods whose DaemonJob is gone or whose kind is off.",
    },
    Rule {
        group: "dj.dysproz.io",
        resources: &["daemonjobs"],
        verbs: &["get"],
        why: "The sweeper reads whether the DaemonJob of a pod exists.",
    },
];

/// What `quintet uninstall` may do for this kind.
pub const UNINSTALL_RULES: &[Rule] = &[
    Rule {
        group: "",
        resources: &["pods"],
        verbs: &["list", "patch"],
        why: "Uninstall removes the finalizer from the pods of DaemonJobs.",
    },
    Rule {
        group: "dj.dysproz.io",
        resources: &["daemonjobs"],
        verbs: &["list"],
        why: "Uninstall reports the DaemonJobs that remain.",
    },
];
