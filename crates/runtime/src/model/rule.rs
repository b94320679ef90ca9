//! The permissions of the manager and its kinds: the only source of every generated ClusterRole.
//!
//! Each kind's crate declares its [`Rule`]s as a constant; `cargo xtask generate` writes the RBAC of the chart and of
//! kustomize from them.

type Names = &'static [&'static str];

/// Cluster-scoped resources, which a Role cannot allow.
const CLUSTER_SCOPED: [&str; 1] = ["nodes"];

/// One RBAC rule, with the reason why it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural resources, subresources written as `pods/status`.
    pub resources: Names,
    /// Verbs, in the order of the output.
    pub verbs: Names,
    /// Why the rule is needed: the generated RBAC shows it as a comment.
    pub why: &'static str,
}

impl Rule {
    /// A rule that allows these verbs. [`Self::because`] adds the reason.
    pub const fn allow(group: &'static str, resources: Names, verbs: Names) -> Self {
        Self { group, resources, verbs, why: "" }
    }

    /// Whether the rule is for a cluster-scoped resource, which only a ClusterRole can allow.
    pub fn is_cluster_scoped(&self) -> bool {
        self.resources.iter().any(|resource| CLUSTER_SCOPED.contains(resource))
    }

    /// The rule with the reason why it is needed.
    #[must_use]
    pub const fn because(self, why: &'static str) -> Self {
        Self { why, ..self }
    }
}

/// The manager's permissions in every watched namespace, whichever kinds are enabled.
pub const MANAGER_RULES: &[Rule] = &[Rule::allow("events.k8s.io", &["events"], &["create", "patch"])
    .because("Events report writes, and writes that the API server rejected.")];

/// The manager's permissions in its own namespace only (a Role, not a ClusterRole). All verbs except `create` are
/// limited to the one Lease.
pub const LEADER_ELECTION_RULES: &[Rule] = &[
    Rule::allow("coordination.k8s.io", &["leases"], &["create"])
        .because("One Lease decides which manager may write."),
    Rule::allow("coordination.k8s.io", &["leases"], &["get", "update", "watch"])
        .because("The leader renews it, and standbys watch it."),
];

/// The permissions of `uninstall --manager` in the manager's namespace. All verbs except `list` are limited to the one
/// Deployment and the one Job.
pub const UNINSTALL_MANAGER_RULES: &[Rule] = &[
    Rule::allow("apps", &["deployments/scale"], &["patch"]).because("Uninstall stops the managers."),
    Rule::allow("apps", &["deployments"], &["get"])
        .because("Uninstall reads whether they elect a leader, and whether their rollout is complete."),
    Rule::allow("batch", &["jobs"], &["get"]).because("Uninstall reads which tool created its Job."),
    Rule::allow("", &["pods"], &["list"])
        .because("Without election, uninstall waits until their pods are gone."),
];

/// The permissions of `uninstall --manager` in the Lease's namespace. All verbs except `create` are limited to the one
/// Lease.
pub const UNINSTALL_LEASE_RULES: &[Rule] = &[
    Rule::allow("coordination.k8s.io", &["leases"], &["create"])
        .because("Uninstall acquires the Lease, so that no manager writes meanwhile."),
    Rule::allow("coordination.k8s.io", &["leases"], &["get", "update", "watch", "delete"])
        .because("Uninstall deletes the Lease at the end."),
];
