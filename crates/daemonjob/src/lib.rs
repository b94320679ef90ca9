//! DaemonJob: run a pod to completion once on every eligible node.
//!
//! Pods are made directly, one for each node and run, pinned by node affinity; their names are functions of the
//! DaemonJob's and the node's UIDs and a run number, so that a repeated creation meets AlreadyExists. The truth is
//! what the pods say: a node is done when its last success was made from the current template. (The ledger that
//! keeps the truth when pods go has its place in `ledger.rs`; it is not written yet.)

pub mod api;
pub mod controller;
pub mod nodes;
pub mod observe;
pub mod plan;

use quintet_kit::rbac::Rule;

pub use controller::register;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "daemonjob";

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
        verbs: &["get", "list", "watch", "create", "delete"],
        why: "One pod is made for each node and run; those that must not run are deleted.",
    },
    Rule {
        group: "",
        resources: &["nodes"],
        verbs: &["list", "watch"],
        why: "Nodes decide where pods are made.",
    },
];
