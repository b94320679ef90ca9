//! DaemonJob: run a pod to completion once on every eligible node.
//!
//! Pods are made directly, one for each node and run, pinned by node affinity; their names are functions of the
//! DaemonJob's and the node's UIDs and a run number, so that a repeated creation meets AlreadyExists. The truth is
//! what the pods say together with the ledger, which keeps it when pods go: a finalizer holds every pod until
//! then. A node is done when its last success was made from the current template.

pub mod api;
pub mod clocks;
pub mod controller;
pub mod eligibility;
pub mod failure_policy;
pub mod history;
pub mod ledger;
pub mod metrics;
pub mod node_state;
pub mod observe;
pub mod outcome;
pub mod plan;
mod record;
pub mod removal;
pub mod run;
pub mod status;
pub mod survey;
pub mod sweep;
pub mod turns;

use quintet_kit::rbac::Rule;

pub use controller::register;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "daemonjob";

/// The finalizer on every pod of a DaemonJob: taken off when the ledger has the pod's outcome, or nobody needs it.
pub const FINALIZER: &str = "dj.dysproz.io/ledger";

/// What this kind may do.
pub const RULES: &[Rule] = &[
    Rule {
        group: "dj.dysproz.io",
        resources: &["daemonjobs"],
        verbs: &["get", "list", "watch"],
        why: "DaemonJobs are what this controller acts for.",
    },
    Rule {
        group: "dj.dysproz.io",
        resources: &["daemonjobs/status"],
        verbs: &["patch"],
        why: "Their status is applied.",
    },
    Rule {
        group: "dj.dysproz.io",
        resources: &["daemonjobs/finalizers"],
        verbs: &["update"],
        why: "Pods name their DaemonJob as owner with blockOwnerDeletion, which clusters may guard by this.",
    },
    Rule {
        group: "",
        resources: &["pods"],
        verbs: &["get", "list", "watch", "create", "delete", "patch"],
        why: "One pod is made for each node and run; finished ones lose their finalizer; those that must go are deleted.",
    },
    Rule {
        group: "",
        resources: &["configmaps"],
        verbs: &["get", "list", "watch", "create", "patch"],
        why: "The ledger keeps what was done when pods are gone. RBAC cannot narrow this to ConfigMaps with its label.",
    },
    Rule {
        group: "",
        resources: &["nodes"],
        verbs: &["list", "watch"],
        why: "Nodes decide where pods are made.",
    },
    Rule {
        group: "batch",
        resources: &["jobs"],
        verbs: &["get"],
        why: "A DaemonJob waits until the Job that the post's operator made for it is gone.",
    },
];

/// What [`sweep`] may do, also where the kind is switched off: its finalizers must hang nothing.
pub const SWEEP_RULES: &[Rule] = &[
    Rule {
        group: "",
        resources: &["pods"],
        verbs: &["get", "list", "watch", "patch"],
        why: "The sweeper takes the finalizer off pods whose DaemonJob is gone or switched off.",
    },
    Rule {
        group: "dj.dysproz.io",
        resources: &["daemonjobs"],
        verbs: &["get"],
        why: "The sweeper asks whether a pod's DaemonJob is gone.",
    },
];
