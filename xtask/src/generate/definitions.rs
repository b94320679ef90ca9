//! The CustomResourceDefinitions: as YAML for people, as one line of JSON for the chart.

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Number, Value};
use serde_saphyr::{FlowMap, FlowSeq};

use super::{Files, Kind, NAME, NAME_LABEL, header};

/// The most characters of a schema or a list that is written on one line.
const LONGEST_ON_A_LINE: usize = 80;

/// Adds the definitions of `config/crd` and of the chart, and the schema that `quintet explain --file` checks against.
pub(super) fn insert(kinds: &[Kind], files: &mut Files) -> anyhow::Result<()> {
    for kind in kinds {
        let definition = definition(&kind.crd)?;
        let name = kind.crd.metadata.name.as_deref().context("a definition without a name")?;
        files.insert(format!("config/crd/{name}.yaml"), yaml(kind.row.controller, &definition)?);
        files.insert(format!("charts/quintet/files/crds/{name}.json"), definition.to_string() + "\n");
        if kind.row.controller == quintet_daemonjob::CONTROLLER {
            files.insert("crates/manager/src/explain/daemonjob-schema.json".to_owned(), schema(definition));
        }
    }
    Ok(())
}

fn yaml(controller: &str, definition: &Value) -> anyhow::Result<String> {
    // Without a limit long descriptions stay on one line: folded ones end many of their lines in a blank.
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let yaml = serde_saphyr::to_string_with_options(&Compact(definition), options)
        .with_context(|| format!("writing the definition of {controller}"))?;
    let mut text = header(&format!("crates/{controller}/src/api.rs"));
    for line in yaml.trim_end().lines() {
        // The writer indents the empty lines of a block of text, which means nothing in YAML.
        text.push_str(if line.trim().is_empty() { "" } else { line });
        text.push('\n');
    }
    Ok(text)
}

/// A value whose short schemas and lists stand on one line each, such as `{format: int32, type: integer}`.
struct Compact<'a>(&'a Value);

impl Compact<'_> {
    /// Whether the value is a schema, or a list, that fits on a line.
    fn is_short(&self) -> bool {
        let is_simple = |value: &Value| match value {
            Value::Object(_) => Compact(value).is_short(),
            Value::Array(_) => false,
            _ => true,
        };
        let is_simple = match self.0 {
            Value::Object(fields) => {
                fields.get("type").is_some_and(Value::is_string) && fields.values().all(is_simple)
            }
            Value::Array(items) => items.iter().all(|item| !item.is_object() && !item.is_array()),
            _ => false,
        };
        is_simple && self.0.to_string().len() <= LONGEST_ON_A_LINE
    }
}

impl Serialize for Compact<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(fields) if self.is_short() => FlowMap(fields).serialize(serializer),
            Value::Array(items) if self.is_short() => FlowSeq(items).serialize(serializer),
            Value::Object(fields) => {
                serializer.collect_map(fields.iter().map(|(key, field)| (key, Compact(field))))
            }
            Value::Array(items) => serializer.collect_seq(items.iter().map(Compact)),
            other => other.serialize(serializer),
        }
    }
}

/// The definition as it is written: with the operator's label, keys in order, numbers as a person would write them.
pub(super) fn definition(crd: &CustomResourceDefinition) -> anyhow::Result<Value> {
    // The label is given here: kube's derive would put it on every object of the kind as well.
    let mut crd = crd.clone();
    crd.metadata.labels.get_or_insert_default().insert(NAME_LABEL.to_owned(), NAME.to_owned());
    Ok(tidy(serde_json::to_value(crd)?))
}

/// The schema of a definition in one line of JSON, without descriptions.
fn schema(mut definition: Value) -> String {
    fn only_rules(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                // A field of this name is an object, and stays.
                if fields.get("description").is_some_and(Value::is_string) {
                    fields.remove("description");
                }
                fields.values_mut().for_each(only_rules);
            }
            Value::Array(items) => items.iter_mut().for_each(only_rules),
            _ => {}
        }
    }
    let mut schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take();
    only_rules(&mut schema);
    schema.to_string() + "\n"
}

/// Sorts keys (their order would otherwise depend on serde_json's features), writes whole numbers without a fraction
/// and removes blanks at the ends of a description's lines.
fn tidy(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let sorted: BTreeMap<String, Value> = fields.into_iter().collect();
            let mut tidied = Map::new();
            for (key, field) in sorted {
                let field = match field {
                    Value::String(text) if key == "description" => Value::String(trim_lines(&text)),
                    other => tidy(other),
                };
                tidied.insert(key, field);
            }
            Value::Object(tidied)
        }
        Value::Array(items) => Value::Array(items.into_iter().map(tidy).collect()),
        Value::Number(number) => Value::Number(whole(&number).unwrap_or(number)),
        other => other,
    }
}

fn trim_lines(text: &str) -> String {
    text.trim().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// The number as an integer, where it was kept as a float and is whole.
fn whole(number: &Number) -> Option<Number> {
    let float = number.as_f64().filter(|_| number.is_f64())?;
    // Rust writes a whole float without fraction and exponent, and anything else does not parse.
    float.to_string().parse::<i64>().ok().map(Number::from)
}

#[cfg(test)]
mod tests {
    use super::super::kinds;
    use super::*;

    /// `kubectl apply` keeps the object as JSON in an annotation; annotations may have 262,144 bytes in all.
    const APPLY_LIMIT: usize = 250_000;

    #[test]
    fn definitions_fit_into_the_annotation_of_kubectl_apply() {
        for kind in kinds() {
            let size = serde_json::to_string(&definition(&kind.crd).unwrap()).unwrap().len();
            assert!(size < APPLY_LIMIT, "{}: {size} bytes", kind.row.controller);
        }
    }

    #[test]
    fn definitions_say_in_yaml_what_they_say_in_json() {
        for kind in kinds() {
            let definition = definition(&kind.crd).unwrap();
            let text = yaml(kind.row.controller, &definition).unwrap();
            assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), definition);
        }
    }

    #[test]
    fn whole_numbers_lose_their_fraction_and_no_other() {
        let value = serde_json::json!({ "minimum": 0.0, "maximum": 100_000.0, "half": 0.5, "minus": -3.0, "big": 1e300 });
        let expected =
            serde_json::json!({ "minimum": 0, "maximum": 100_000, "half": 0.5, "minus": -3, "big": 1e300 });
        assert_eq!(tidy(value), expected);
    }
}
