//! The CustomResourceDefinitions: as YAML for users, and as one line of JSON for the chart.

use std::collections::BTreeMap;

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use quintet_runtime::model::fingerprint::Schema;
use serde::ser::{Serialize, Serializer};
use serde_json::{Map, Number, Value};
use serde_saphyr::{FlowMap, FlowSeq};

use super::{Files, Kind, NAME, NAME_LABEL, header};

/// The most characters of a schema without a description on one line. Only Kubernetes' own types have such schemas of
/// more than a few words; their fields are in the reference of the Kubernetes API.
const LONGEST_ON_A_LINE: usize = 2_000;

/// Adds the definitions of `config/crd` and of the chart, the schema for `quintet explain --filename`, and the fingerprints for
/// `quintet doctor`.
pub(super) fn insert(kinds: &[Kind], files: &mut Files) -> anyhow::Result<()> {
    let mut fingerprints = BTreeMap::new();
    for kind in kinds {
        let definition = definition(&kind.crd)?;
        let name = kind.crd.metadata.name.as_deref().context("a definition without a name")?;
        let compared: Schema = serde_json::from_value(open_api_schema(&mut definition.clone()))?;
        fingerprints.insert(name, compared.fingerprint());
        files.insert(format!("config/crd/{name}.yaml"), yaml(kind.row.controller, &definition)?);
        files.insert(format!("charts/quintet/files/crds/{name}.json"), definition.to_string() + "\n");
        if kind.row.controller == quintet_daemonjob::CONTROLLER {
            files.insert("crates/manager/src/explain/daemonjob-schema.json".to_owned(), schema(definition));
        }
    }
    let fingerprints = serde_json::to_string_pretty(&fingerprints)? + "\n";
    files.insert("crates/manager/src/doctor/fingerprints.json".to_owned(), fingerprints);
    Ok(())
}

/// Takes the schema out of a definition.
fn open_api_schema(definition: &mut Value) -> Value {
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
}

fn yaml(controller: &str, definition: &Value) -> anyhow::Result<String> {
    // No folding: folded descriptions have trailing blanks.
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let yaml = serde_saphyr::to_string_with_options(&Compact(definition), options)
        .with_context(|| format!("cannot write the definition of {controller}"))?;
    let mut text = header(&format!("crates/{controller}/src/api.rs"));
    for line in yaml.trim_end().lines() {
        // The writer indents the empty lines of text blocks, which YAML ignores.
        text.push_str(if line.trim().is_empty() { "" } else { line });
        text.push('\n');
    }
    Ok(text)
}

/// A value that writes short schemas and lists on one line, such as `{format: int32, type: integer}`.
struct Compact<'a>(&'a Value);

impl Compact<'_> {
    /// Whether the value is a list of words, or a schema without a description, and fits on a line.
    fn is_short(&self) -> bool {
        fn has_description(value: &Value) -> bool {
            match value {
                Value::Object(fields) => {
                    fields.get("description").is_some_and(Value::is_string)
                        || fields.values().any(has_description)
                }
                Value::Array(items) => items.iter().any(has_description),
                _ => false,
            }
        }
        let is_simple = match self.0 {
            Value::Object(fields) => {
                fields.get("type").is_some_and(Value::is_string) && !has_description(self.0)
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

/// The definition with the operator's label, sorted keys and plain numbers.
pub(super) fn definition(crd: &CustomResourceDefinition) -> anyhow::Result<Value> {
    // kube's derive would also put the label on every object of the kind.
    let mut crd = crd.clone();
    crd.metadata.labels.get_or_insert_default().insert(NAME_LABEL.to_owned(), NAME.to_owned());
    Ok(tidy(serde_json::to_value(crd)?))
}

/// The schema of a definition in one line of JSON, without descriptions.
fn schema(mut definition: Value) -> String {
    fn only_rules(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                // A field named "description" is an object, and stays.
                if fields.get("description").is_some_and(Value::is_string) {
                    fields.remove("description");
                }
                fields.values_mut().for_each(only_rules);
            }
            Value::Array(items) => items.iter_mut().for_each(only_rules),
            _ => {}
        }
    }
    let mut schema = open_api_schema(&mut definition);
    only_rules(&mut schema);
    schema.to_string() + "\n"
}

/// Sorts keys (their order depends on serde_json's features), writes whole numbers without a fraction, and removes trailing
/// blanks in descriptions.
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

/// The number as an integer, if it is a whole float.
fn whole(number: &Number) -> Option<Number> {
    let float = number.as_f64().filter(|_| number.is_f64())?;
    // Rust formats a whole float without fraction and exponent. Other floats do not parse.
    float.to_string().parse::<i64>().ok().map(Number::from)
}

#[cfg(test)]
mod tests {
    use super::super::kinds;
    use super::*;

    /// `kubectl apply` stores the object as JSON in an annotation. The limit for all annotations is 262,144 bytes.
    const APPLY_LIMIT: usize = 250_000;

    #[test]
    fn definitions_fit_into_kubectls_annotation() {
        for kind in kinds() {
            let size = serde_json::to_string(&definition(&kind.crd).unwrap()).unwrap().len();
            assert!(size < APPLY_LIMIT, "{}: {size} bytes", kind.row.controller);
        }
    }

    #[test]
    fn yaml_and_json_definitions_are_equal() {
        for kind in kinds() {
            let definition = definition(&kind.crd).unwrap();
            let text = yaml(kind.row.controller, &definition).unwrap();
            assert_eq!(serde_saphyr::from_str::<Value>(&text).unwrap(), definition);
        }
    }

    #[test]
    fn only_whole_numbers_lose_their_fraction() {
        let value = serde_json::json!({ "minimum": 0.0, "maximum": 100_000.0, "half": 0.5, "minus": -3.0, "big": 1e300 });
        let expected =
            serde_json::json!({ "minimum": 0, "maximum": 100_000, "half": 0.5, "minus": -3, "big": 1e300 });
        assert_eq!(tidy(value), expected);
    }
}
