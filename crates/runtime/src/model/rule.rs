//! What a kind may do: the one source of truth for every generated ClusterRole.
//!
//! Each kind's crate declares its [`Rule`]s as a constant; `cargo xtask generate` turns them into the
//! chart's and kustomize's RBAC. A rule that no code needs is removed here, nowhere else.

/// One RBAC rule, with the reason why it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural resources, subresources written as `pods/status`.
    pub resources: &'static [&'static str],
    /// Verbs, in the order in which they are written out.
    pub verbs: &'static [&'static str],
    /// What breaks without it: printed as a comment beside the generated rule.
    pub why: &'static str,
}

/// What the manager itself needs in every namespace it watches, whatever kinds are enabled.
pub const MANAGER_RULES: &[Rule] = &[Rule {
    group: "events.k8s.io",
    resources: &["events"],
    verbs: &["create", "patch"],
    why: "Events tell users what was done and what was refused.",
}];

/// What the manager needs in its own namespace only (a Role, not a ClusterRole).
/// All but `create` are given for the one Lease.
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
        why: "It is renewed, and those that stand by watch it.",
    },
];

/// What `quintet uninstall --manager` needs in the manager's own namespace. All but `list` are given for the one Deployment.
pub const UNINSTALL_MANAGER_RULES: &[Rule] = &[
    Rule {
        group: "apps",
        resources: &["deployments/scale"],
        verbs: &["patch"],
        why: "The managers are stopped.",
    },
    Rule {
        group: "apps",
        resources: &["deployments"],
        verbs: &["get"],
        why: "It is asked whether they elect a leader, and whether no more of them are made;",
    },
    Rule {
        group: "",
        resources: &["pods"],
        verbs: &["list"],
        why: "those that do not elect are waited for.",
    },
];

/// What `quintet uninstall --manager` needs in the namespace of the Lease. All but `create` are given for the one Lease.
pub const UNINSTALL_LEASE_RULES: &[Rule] = &[
    Rule {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["create"],
        why: "The Lease is taken, so that no manager writes meanwhile,",
    },
    Rule {
        group: "coordination.k8s.io",
        resources: &["leases"],
        verbs: &["get", "update", "watch", "delete"],
        why: "and is deleted at the end.",
    },
];
