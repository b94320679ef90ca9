//! The chart's README, with a table of the values. The comments of values.yaml are its source.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, bail};
use quintet_kinds::KINDS;
use quintet_localcluster::paths;
use serde_json::Value;

/// Above the table.
const INTRODUCTION: &str = "\
# quintet

One operator for the kinds KINDS.

Kubernetes 1.33 or newer; helm 3 or 4. From a checkout:

```sh
helm install quintet charts/quintet --namespace quintet-system --create-namespace
```

[docs/operations.md](../../docs/operations.md) describes installation, upgrades, monitoring and removal.
[docs/security.md](../../docs/security.md) lists the permissions and the reasons for them. `cargo xtask generate` writes
this file from `values.yaml`.

## Values

| value | default | description |
|---|---|---|
";

/// One row: the path, default and comment of a value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub path: String,
    /// As JSON; none for a group of values.
    pub default: Option<String>,
    pub comment: String,
}

/// The text of the README.
pub(super) fn readme() -> Result<String> {
    let file = paths::workspace().join("charts/quintet/values.yaml");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let kinds = KINDS.map(|kind| (kind.resource)().kind).join(", ");
    let mut readme = INTRODUCTION.replace("KINDS", &kinds);
    for Row { path, default, comment } in rows(&text).with_context(|| file.display().to_string())? {
        let default = default.map(|default| format!("`{default}`")).unwrap_or_default();
        let _ = writeln!(readme, "| `{path}` | {default} | {} |", comment.replace('|', "\\|"));
    }
    Ok(readme)
}

/// The rows of a values file. A comment belongs to the key below it. A key is a group if its children have comments;
/// otherwise it is a value, and its children are the default.
pub(super) fn rows(text: &str) -> Result<Vec<Row>> {
    let values: Value = serde_saphyr::from_str(text).context("not YAML")?;
    // The parents of the current line, with their indentation.
    let mut above: Vec<(usize, String)> = Vec::new();
    let mut found: Vec<(String, String)> = Vec::new();
    let mut comment = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        if let Some(said) = bare.strip_prefix('#') {
            comment.push(said.trim());
            continue;
        }
        let key =
            bare.split_once(':').map(|(key, _)| key).filter(|key| !key.is_empty() && !key.starts_with('-'));
        let Some(key) = key else {
            if !comment.is_empty() {
                bail!("line {}: the comment above belongs to no key", number + 1);
            }
            continue;
        };
        above.retain(|(column, _)| *column < indent);
        above.push((indent, key.to_owned()));
        if !comment.is_empty() {
            let path = above.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>().join(".");
            found.push((path, comment.join(" ")));
            comment.clear();
        }
    }
    let is_group = |path: &str| found.iter().any(|(other, _)| other.starts_with(&format!("{path}.")));
    let mut rows = Vec::new();
    for (path, comment) in &found {
        let default = path.split('.').try_fold(&values, |value, key| value.get(key));
        let default = default.with_context(|| format!("{path} is not in the values"))?;
        rows.push(Row {
            path: path.clone(),
            default: (!is_group(path)).then(|| default.to_string()),
            comment: comment.clone(),
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn values() -> String {
        fs::read_to_string(paths::workspace().join("charts/quintet/values.yaml")).unwrap()
    }

    fn schema() -> Value {
        let file = paths::workspace().join("charts/quintet/values.schema.json");
        serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
    }

    #[test]
    fn comments_become_rows() {
        let text = "# A group.\na:\n  # One.\n  # Two.\n  b: \"\"\n\n# A map | or two.\nc:\n  d: 1\n  e: [x]\n# None.\nf: null\n";
        let row = |path: &str, default: Option<&str>, comment: &str| Row {
            path: path.into(),
            default: default.map(Into::into),
            comment: comment.into(),
        };
        let expected = [
            row("a", None, "A group."),
            row("a.b", Some("\"\""), "One. Two."),
            row("c", Some(r#"{"d":1,"e":["x"]}"#), "A map | or two."),
            row("f", Some("null"), "None."),
        ];
        assert_eq!(rows(text).unwrap(), expected);
        assert!(rows("a: 1\n# Lost.\n- b\n").is_err());
    }

    /// Every path of a map, those of its children included.
    fn paths_of(value: &Value, above: &str, paths: &mut BTreeSet<String>) {
        for (key, value) in value.as_object().into_iter().flatten() {
            let path = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
            paths_of(value, &path, paths);
            paths.insert(path);
        }
    }

    #[test]
    fn every_value_has_a_comment() {
        let text = values();
        let rows = rows(&text).unwrap();
        let mut all = BTreeSet::new();
        paths_of(&serde_saphyr::from_str(&text).unwrap(), "", &mut all);
        let is_documented = |path: &str| {
            // The children of a documented value are part of its default.
            rows.iter().any(|row| {
                row.path == path || (row.default.is_some() && path.starts_with(&format!("{}.", row.path)))
            })
        };
        let undocumented: Vec<&String> = all.iter().filter(|path| !is_documented(path)).collect();
        assert!(undocumented.is_empty(), "{undocumented:?}");
    }

    /// Collects the properties of a schema and of its children, and asserts that it rejects others.
    fn properties(schema: &Value, above: &str, found: &mut BTreeSet<String>) {
        let Some(listed) = schema["properties"].as_object() else { return };
        // `global` is shared with the other charts of a parent.
        let is_closed = schema["additionalProperties"] == Value::Bool(false);
        assert_eq!(is_closed, above != "global", "{above}: rejects unknown keys");
        for (key, schema) in listed {
            let path = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
            properties(schema, &path, found);
            found.insert(path);
        }
    }

    #[test]
    fn the_schema_covers_exactly_the_values() {
        let mut known = BTreeSet::new();
        let schema = schema();
        let resolved = resolve(&schema, &schema["definitions"]);
        properties(&resolved, "", &mut known);
        let rows: BTreeSet<String> = rows(&values()).unwrap().into_iter().map(|row| row.path).collect();
        let unknown: Vec<_> = rows.difference(&known).collect();
        assert!(unknown.is_empty(), "values without a schema: {unknown:?}");
        // The schema may describe the inside of a value.
        let is_below = |path: &&String| {
            rows.iter().any(|row| {
                path.starts_with(&format!("{row}."))
                    && !rows.iter().any(|other| other.starts_with(&format!("{row}.")))
            })
        };
        let extra: Vec<_> = known.difference(&rows).filter(|path| !is_below(path)).collect();
        assert!(extra.is_empty(), "schemas without a value: {extra:?}");
    }

    /// Replaces references by the definitions.
    fn resolve(schema: &Value, definitions: &Value) -> Value {
        match schema {
            Value::Object(fields) => {
                if let Some(name) = fields.get("$ref").and_then(Value::as_str) {
                    let name = name.strip_prefix("#/definitions/").unwrap();
                    return resolve(&definitions[name], definitions);
                }
                fields
                    .iter()
                    .filter(|(key, _)| *key != "definitions")
                    .map(|(key, value)| (key.clone(), resolve(value, definitions)))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            }
            other => other.clone(),
        }
    }
}
