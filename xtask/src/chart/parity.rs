//! Compares config/default with the chart's defaults, object by object, without Helm's labels, annotations, hooks and tests.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use quintet_localcluster::{paths, run};
use serde_json::{Map, Value};

use super::Tools;
use super::manifests::Manifests;

/// Prefixes of Helm's labels and annotations.
const HELMS: [&str; 4] =
    ["app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/"];

/// Fails with the path of each difference.
pub(super) fn holds(tools: &Tools) -> Result<()> {
    // A cluster has config/default once, so that the names of its ClusterRoles need no namespace.
    let chart = by_name(&tools.template(&[])?.replace(&format!(".{}", super::RELEASE[1]), ""))?;
    let folder = paths::workspace().join("config/default");
    let kustomized = run::stdout(tools.program("kubectl")?.arg("kustomize").arg(folder))?;
    let mut kustomized = by_name(&kustomized)?;
    // Helm creates the namespace with --create-namespace.
    if kustomized.remove("Namespace quintet-system").is_none() {
        bail!("config/default has no Namespace quintet-system");
    }
    let mut differences = Vec::new();
    for name in chart.keys().filter(|name| !kustomized.contains_key(*name)) {
        differences.push(format!("{name} is only in the chart"));
    }
    for (name, object) in &kustomized {
        match chart.get(name) {
            None => differences.push(format!("{name} is only in config/default")),
            Some(other) => compare(name, other, object, &mut differences),
        }
    }
    if differences.is_empty() { Ok(()) } else { bail!("{}", differences.join("\n")) }
}

/// The objects by kind and name, without Helm's parts.
fn by_name(text: &str) -> Result<BTreeMap<String, Value>> {
    let mut objects = BTreeMap::new();
    for object in Manifests::of(text)?.all() {
        let metadata = &object["metadata"];
        if !metadata["annotations"]["helm.sh/hook"].is_null() {
            continue;
        }
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = metadata["name"].as_str().unwrap_or_default();
        objects.insert(format!("{kind} {name}"), without_helms(object));
    }
    Ok(objects)
}

/// Removes Helm's keys at any depth, and maps that become empty.
fn without_helms(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut kept = Map::new();
            for (key, field) in fields {
                if HELMS.iter().any(|helms| key.starts_with(helms)) {
                    continue;
                }
                let field_kept = without_helms(field);
                let emptied = field_kept.as_object().is_some_and(Map::is_empty) && *field != field_kept;
                if !emptied {
                    kept.insert(key.clone(), field_kept);
                }
            }
            Value::Object(kept)
        }
        Value::Array(items) => Value::Array(items.iter().map(without_helms).collect()),
        other => other.clone(),
    }
}

/// Adds the path of each difference.
fn compare(place: &str, chart: &Value, other: &Value, differences: &mut Vec<String>) {
    match (chart, other) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let of = |fields: &Map<String, Value>| fields.get(key).cloned().unwrap_or_default();
                compare(&format!("{place}.{key}"), &of(a), &of(b), differences);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(&format!("{place}[{index}]"), a, b, differences);
            }
        }
        _ if chart == other => {}
        _ => differences.push(format!("{place}: {chart} in the chart, {other} in config/default")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn removes_only_helms_keys() {
        let object = json!({ "metadata": { "labels": { "helm.sh/chart": "a", "x": "y" },
            "annotations": { "helm.sh/resource-policy": "keep" } }, "empty": {} });
        let expected = json!({ "metadata": { "labels": { "x": "y" } }, "empty": {} });
        assert_eq!(without_helms(&object), expected);
    }

    #[test]
    fn names_each_difference() {
        let mut differences = Vec::new();
        let (a, b) = (json!({ "a": [1, 2], "b": 1 }), json!({ "a": [1, 3], "c": 1 }));
        compare("X", &a, &b, &mut differences);
        assert_eq!(
            differences,
            [
                "X.a[1]: 2 in the chart, 3 in config/default",
                "X.b: 1 in the chart, null in config/default",
                "X.c: null in the chart, 1 in config/default"
            ]
        );
    }
}
