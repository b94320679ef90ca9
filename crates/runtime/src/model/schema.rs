//! Schema helpers that several custom resources share.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::core::Rule;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema, SchemaGenerator};

/// The schema of a pod template without its descriptions and defaults.
///
/// With descriptions, the CRD exceeds the 262,144 bytes that `kubectl apply` can store in its annotation. The schema
/// must never have defaults: the template's hash covers the API server's answer, so a new default would change the
/// hash.
pub fn pod_template(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = PodTemplateSpec::json_schema(generator);
    RecursiveTransform(|schema: &mut Schema| {
        schema.remove("description");
        schema.remove("default");
    })
    .transform(&mut schema);
    schema
}

/// The validation rule for a field that is an integer from 0 to `most` or a percentage.
pub fn number_or_percentage(field: &str, most: u32) -> Rule {
    Rule::new(format!(
        "type(self) == int ? self >= 0 && self <= {most} : self.matches('^([0-9]|[1-9][0-9]|100)%$')"
    ))
    .message(format!("{field} must be a whole number or a percentage from 0% to 100%").as_str())
}

/// The validation rule that limits a name to `most` characters, because the name `serves` as something with that
/// limit. Objects that were stored before may still be scaled and get a status, because a name cannot be changed.
pub fn short_name(most: usize, serves: &str) -> Rule {
    Rule::new(format!("oldSelf.hasValue() || self.metadata.name.size() <= {most}"))
        .optional_old_self(true)
        .message(format!("{serves}: use at most {most} characters").as_str())
}
