//! The types of the Kubernetes API and their paths.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// A type of object: its group, version, kind and plural.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// The plural, as in paths.
    pub plural: &'static str,
    /// Whether the type is namespaced.
    pub namespaced: bool,
    /// Whether a CustomResourceDefinition defines the type, which may be absent. A 404 for any other type is a fault
    /// on the way to the API server.
    pub custom: bool,
}

/// Pods.
pub const PODS: Resource = Resource::builtin("", "v1", "Pod", "pods");
/// Nodes.
pub const NODES: Resource = Resource { namespaced: false, ..Resource::builtin("", "v1", "Node", "nodes") };
/// ConfigMaps.
pub const CONFIG_MAPS: Resource = Resource::builtin("", "v1", "ConfigMap", "configmaps");
/// Deployments.
pub const DEPLOYMENTS: Resource = Resource::builtin("apps", "v1", "Deployment", "deployments");
/// Leases.
pub const LEASES: Resource = Resource::builtin("coordination.k8s.io", "v1", "Lease", "leases");
/// Events.
pub const EVENTS: Resource = Resource::builtin("events.k8s.io", "v1", "Event", "events");

impl Resource {
    /// A namespaced type that is part of Kubernetes.
    pub const fn builtin(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        Self { group, version, kind, plural, namespaced: true, custom: false }
    }

    /// A namespaced type that a CustomResourceDefinition defines.
    pub const fn custom(
        group: &'static str,
        version: &'static str,
        kind: &'static str,
        plural: &'static str,
    ) -> Self {
        Self { group, version, kind, plural, namespaced: true, custom: true }
    }

    /// The resource of a custom resource's Rust type.
    pub fn of<K: kube::Resource<DynamicType = ()>>() -> Self {
        Self::custom(fixed(K::group(&())), fixed(K::version(&())), fixed(K::kind(&())), fixed(K::plural(&())))
    }

    /// `group/version`, or the version alone for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The path of the collection in one namespace, or in all namespaces if `namespace` is empty.
    pub fn path(&self, namespace: &str) -> String {
        let mut path = if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        };
        if self.namespaced && !namespace.is_empty() {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(self.plural);
        path
    }

    /// `plural.group`, the name of the CustomResourceDefinition.
    pub fn crd_name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }
}

/// The names from the derive macro are literals. An owned name, which does not occur, is leaked once per type.
fn fixed(name: Cow<'static, str>) -> &'static str {
    match name {
        Cow::Borrowed(name) => name,
        Cow::Owned(name) => name.leak(),
    }
}

/// The characters that [`escape`] encodes.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a query value.
pub fn escape(value: &str) -> String {
    utf8_percent_encode(value, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_paths_of_core_and_named_groups() {
        assert_eq!(PODS.path("default"), "/api/v1/namespaces/default/pods");
        assert_eq!(PODS.path(""), "/api/v1/pods");
        assert_eq!(NODES.path("ignored"), "/api/v1/nodes");
        assert_eq!(DEPLOYMENTS.path("a"), "/apis/apps/v1/namespaces/a/deployments");
        assert_eq!(DEPLOYMENTS.api_version(), "apps/v1");
        assert_eq!(PODS.api_version(), "v1");
    }

    #[test]
    fn encodes_query_values() {
        assert_eq!(escape("a/b=c,d"), "a%2Fb%3Dc%2Cd");
    }
}
