//! PodSet: keep a number of pods.
//!
//! Pods are made directly. Their names are functions of the PodSet's UID and the smallest number that is free, so
//! that a repeated creation meets AlreadyExists. A pod belongs to its PodSet by controller reference and UID alone:
//! strangers with the same labels are neither counted nor deleted. Which pods go when there are too many is the
//! judgement of ReplicaSet, in [`ranking`]; how pods of an older template are replaced is in [`rollout`].

pub mod api;
pub mod controller;
pub mod metrics;
pub mod observe;
pub mod plan;
pub mod ranking;
pub mod rollout;
pub mod status;

use quintet_runtime::model::rule::Rule;

pub use controller::register;

/// The controller's name, as in `--controllers`.
pub const CONTROLLER: &str = "podset";

/// What this kind may do.
pub const RULES: &[Rule] = &[
    Rule {
        group: "batch.tutorial.kubebuilder.io",
        resources: &["podsets"],
        verbs: &["get", "list", "watch"],
        why: "The controller reconciles PodSets.",
    },
    Rule {
        group: "batch.tutorial.kubebuilder.io",
        resources: &["podsets/status"],
        verbs: &["patch"],
        why: "The controller applies their status.",
    },
    Rule {
        group: "batch.tutorial.kubebuilder.io",
        resources: &["podsets/finalizers"],
        verbs: &["update"],
        why: "The owner reference of pods has blockOwnerDeletion, which some clusters protect with this permission.",
    },
    Rule {
        group: "",
        resources: &["pods"],
        verbs: &["get", "list", "watch", "create", "delete", "patch"],
        why: "The controller creates and deletes pods, and releases those that lost a label.",
    },
];

/// What `quintet uninstall` may do for this kind.
pub const UNINSTALL_RULES: &[Rule] = &[Rule {
    group: "batch.tutorial.kubebuilder.io",
    resources: &["podsets"],
    verbs: &["list"],
    why: "Uninstall reports the PodSets that remain.",
}];
