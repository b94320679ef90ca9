//! The permissions of the manager and its kinds: the only source of every generated ClusterRole.
//!
//! Each kind's crate declares its [`Rule`]s as a constant; `cargo xtask generate` writes the RBAC of the chart and of
//! kustomize from them.

/// One RBAC rule, with the reason why it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural resources, subresources written as `pods/status`.
    pub resources: &'static [&'static str],
    /// Verbs, in the order of the output.
    pub verbs: &'static [&'static str],
    /// Why the rule is needed: the generated RBAC shows it as a comment.
    pub why: &'static str,
}

/// The manager's permissions in every watched namespace, whichever kinds are enabled.
pub const MANAGER_RULES: &[Rule] = &[Rule {
    group: "events.k8s.io",
    resources: &["events"],
    verbs: &["create", "patch"],
    why: "Events report writes, and writes that the API server rejected.",
}];

/// The manager's permissions in its own namespace only (a Role, not a ClusterRole). All verbs except `create` are
/// limited to the one Lease.
pub const LEADER_ELECTION_RULES: &[Rule] = &[
    Rule {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["create"],
        why: "One Lease decides which manager may write.",
    },
    Rule {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "update", "watch"],
        why: "The leader renews it, and standbys watch it.",
    },
];

/// The permissions of `uninstall --manager` in the manager's namespace. All verbs except `list` are limited to the one
/// Deployment.
pub const UNINSTALL_MANAGER_RULES: &[Rule] = &[
    Rule {
        group: "apps",
        resources: &["deployments/scale"],
        verbs: &["patch"],
        why: "Uninstall stops the managers.",
    },
    Rule {
        group: "apps",
        resources: &["deployments"],
        verbs: &["get"],
        why: "Uninstall reads whether they elect a leader, and whether their rollout is complete.",
    },
    Rule {
        group: "",
        resources: &["pods"],
        verbs: &["list"],
        why: "Without election, uninstall waits until their pods are gone.",
    },
];

/// The permissions of `uninstall --manager` in the Lease's namespace. All verbs except `create` are limited to the one
/// Lease.
pub const UNINSTALL_LEASE_RULES: &[Rule] = &[
    Rule {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["create"],
        why: "Uninstall acquires the Lease, so that no manager writes meanwhile.",
    },
    Rule {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "update", "watch", "delete"],
        why: "Uninstall deletes the Lease at the end.",
    },
];
