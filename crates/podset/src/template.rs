//! The built-in template, and the hashes of templates.

use std::borrow::Cow;
use std::sync::LazyLock;

use quintet_runtime::model::pod_template::RawTemplate;
use serde_json::json;

use crate::api::PodSet;

/// The tutorial's pod.
pub static DEFAULT_TEMPLATE: LazyLock<RawTemplate> = LazyLock::new(|| {
    RawTemplate(json!({"spec": {"containers": [
        {"name": "busybox", "image": "busybox", "command": ["sleep", "3600"]}]}}))
});

/// The hash of the built-in template. It stays the same, so that a new built-in template replaces no pod.
pub const BUILT_IN_HASH: &str = "v1-default";

/// The hash of the spec's template.
pub fn template_hash(podset: &PodSet) -> Cow<'static, str> {
    hash_of(podset.spec.template.as_ref())
}

/// The hash of a template; None is the built-in one.
pub fn hash_of(template: Option<&RawTemplate>) -> Cow<'static, str> {
    template.map_or(Cow::Borrowed(BUILT_IN_HASH), |template| template.hash().into())
}
