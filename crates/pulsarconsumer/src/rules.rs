//! The expressions of a PulsarConsumer's validation rules, in CEL, and the schema of its pod template.

use quintet_runtime::model::schema::pod_template;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Value, json};

/// The schema of a pod template that need not have containers. Most items with equal keys are rejected here,
/// not later by the Deployment. The limits bound the cost of the rules.
pub fn partial_template(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = pod_template(generator);
    let mut set_list = |list: &str, key: &str, most: usize| {
        if let Some(list) = schema.pointer_mut(&format!("/properties/spec/properties/{list}")) {
            list["x-kubernetes-list-type"] = json!("map");
            list["x-kubernetes-list-map-keys"] = json!([key]);
            list["maxItems"] = json!(most);
        }
    };
    set_list("volumes", "name", 100);
    for containers in ["initContainers", "containers"] {
        set_list(containers, "name", 16);
        set_list(&format!("{containers}/items/properties/env"), "name", 200);
        set_list(&format!("{containers}/items/properties/volumeMounts"), "mountPath", 100);
    }
    for list in ["envFrom", "ports"] {
        let list = format!("/properties/spec/properties/containers/items/properties/{list}");
        if let Some(list) = schema.pointer_mut(&list) {
            list["maxItems"] = json!(50);
        }
    }
    let spec = schema.pointer_mut("/properties/spec").and_then(Value::as_object_mut);
    spec.map(|spec| spec.remove("required"));
    schema
}

/// A rule for the template's container of the consumer, and one for each other container.
pub fn of_our_container(ours: &str, others: &str) -> String {
    format!(
        "!has(self.template) || !has(self.template.spec) || !has(self.template.spec.containers) \
         || self.template.spec.containers.all(one, one.name == 'pulsarconsumer' ? {ours} : {others})"
    )
}

/// Whether a container leaves the settings of Quintet's image as they are.
pub const KEEPS_SETTINGS: &str = "!has(one.command) && !has(one.args) \
     && (!has(one.env) || one.env.all(variable, !variable.name.startsWith('PULSAR_'))) \
     && (!has(one.envFrom) || one.envFrom.all(source, \
         has(source.prefix) && source.prefix != '' && !source.prefix.startsWith('PULSAR_')))";

/// Whether our container leaves the subscription type to the spec.
pub const KEEPS_TYPE: &str =
    "!has(one.env) || one.env.all(variable, variable.name != 'PULSAR_SUBSCRIPTION_TYPE')";

/// Whether each topic is persistent, as an expression.
pub const ARE_PERSISTENT: &str = "!(has(self.topic) && self.topic.startsWith('non-persistent://')) \
     && (!has(self.topics) || !self.topics.exists(one, one.startsWith('non-persistent://')))";

/// The rule that a topic of deadLetterPolicy is none of the consumed ones.
pub fn not_consumed(field: &str) -> String {
    let letters = format!("self.deadLetterPolicy.{field}");
    format!(
        "!has(self.deadLetterPolicy) || !has({letters}) || (!has(self.topic) || !({})) \
         && (!has(self.topics) || !self.topics.exists(one, {}))",
        is_same("self.topic", &letters),
        is_same("one", &letters)
    )
}

/// Whether two names are those of one topic, as an expression. It compares all three forms of both names.
pub fn is_same(one: &str, other: &str) -> String {
    let longer = |name: &str| {
        ["persistent://", "public/default/", "persistent://public/default/"]
            .map(|beginning| format!("'{beginning}' + {name}"))
            .join(", ")
    };
    format!("{one} in [{other}, {}] || {other} in [{}]", longer(other), longer(one))
}

/// A host with or without a port, as a regular expression. The client that connects checks the IPv6 address and
/// the port.
pub const HOST: &str =
    r"(\[[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*\]|[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9.])?)(:[1-9][0-9]{0,4})?";

/// The rule that a field is a scheme, a host, and a match of `rest`.
pub fn is_address(scheme: &str, rest: &str) -> String {
    format!("self.matches(r'^{scheme}://{HOST}{rest}$')")
}

/// The rule that a field is the name of a subscription.
pub const IS_SUBSCRIPTION: &str = r"self.matches(r'^[^\s/]([^\n\r/]*[^\s/])?$')";

/// The last part of a topic's name, as a regular expression.
pub const NAME: &str = r"[^/\s\pZ\p{Cc}]+";
/// A tenant or a namespace, as a regular expression.
pub const PART: &str = "[A-Za-z0-9_=:.-]+";

/// The rule that a value is a topic in one of its forms.
pub fn is_topic(value: &str) -> String {
    format!("{value}.matches(r'^((persistent|non-persistent)://)?({PART}/{PART}/{NAME})$|^{NAME}$')")
}

/// The rule that a value is a positive duration.
pub fn is_duration(value: &str) -> String {
    const PARTS: &str = "([0-9]{1,5}h)?([0-9]{1,7}m)?([0-9]{1,9}s)?([0-9]{1,12}ms)?";
    format!("{value}.matches('^{PARTS}$') && {value}.matches('[1-9]')")
}

/// The rule that a field is the name of a Secret.
pub const IS_SECRET: &str = r"self.matches(r'^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')";
