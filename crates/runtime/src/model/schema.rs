//! Schema helpers that several kinds' custom resources share.

use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::core::Rule;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema, SchemaGenerator};

/// The schema of a pod template without its descriptions.
///
/// With them a CRD exceeds the 262,144 bytes that `kubectl apply` can keep in its annotation. It states no
/// defaults, ever: the template's hash is taken over what the server returns, and a default that a later version
/// added would change it.
pub fn pod_template(generator: &mut SchemaGenerator) -> Schema {
    without_descriptions::<PodTemplateSpec>(generator)
}

/// The schema of a type of Kubernetes' own without its descriptions and defaults.
pub fn without_descriptions<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = T::json_schema(generator);
    RecursiveTransform(|schema: &mut Schema| {
        schema.remove("description");
        schema.remove("default");
    })
    .transform(&mut schema);
    schema
}

/// The rule for a field of this name that is a whole number, `most` at most, or a percentage.
pub fn number_or_percentage(field: &str, most: u32) -> Rule {
    Rule::new(format!(
        "type(self) == int ? self >= 0 && self <= {most} : self.matches('^([0-9]|[1-9][0-9]|100)%$')"
    ))
    .message(format!("{field} must be a whole number or a percentage from 0% to 100%").as_str())
}

/// The rule for a kind's root that a name has `most` characters at most, since it `serves` as something that allows no more. Whatever
/// was stored before is not kept from getting a status, or from being scaled, by a name that nobody can change.
pub fn short_name(most: usize, serves: &str) -> Rule {
    Rule::new(format!("oldSelf.hasValue() || self.metadata.name.size() <= {most}"))
        .optional_old_self(true)
        .message(format!("{serves}: use at most {most} characters").as_str())
}
