//! The chart's README: what a value is for is said once, in the comments of values.yaml, and is a table here.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result, bail};
use quintet_localcluster::paths;
use serde_json::Value;

/// Above the table.
const INTRODUCTION: &str = "\
# quintet

One operator for five kinds: DaemonJob, PodSet, PulsarConsumer, Greeting and Book.

Kubernetes 1.33 or newer; helm 3 or 4. From a checkout:

```sh
helm install quintet charts/quintet --namespace quintet-system --create-namespace
```

[docs/operations.md](../../docs/operations.md) says how it is installed, upgraded, watched and removed,
[docs/security.md](../../docs/security.md) what it may do and why. This file is written by `cargo xtask generate` from
`values.yaml`.

## Values

| value | default | what it is |
|---|---|---|
";

/// One row: the path of a value, what it is where nobody says anything, and its comment.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub path: String,
    /// As JSON; none for a group of values.
    pub default: Option<String>,
    pub comment: String,
}

/// The README as it should be.
pub(super) fn readme() -> Result<String> {
    let file = paths::workspace().join("charts/quintet/values.yaml");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut readme = INTRODUCTION.to_owned();
    for Row { path, default, comment } in rows(&text).with_context(|| file.display().to_string())? {
        let default = default.map(|default| format!("`{default}`")).unwrap_or_default();
        let _ = writeln!(readme, "| `{path}` | {default} | {} |", comment.replace('|', "\\|"));
    }
    Ok(readme)
}

/// The rows of a values file. A comment belongs to the key below it. A key whose children have comments is a group; one
/// whose children have none is a value, with them as its default.
pub(super) fn rows(text: &str) -> Result<Vec<Row>> {
    let values: Value = serde_saphyr::from_str(text).context("it is no YAML")?;
    // The keys on the way to the current line, with their indentation.
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
                bail!("line {}: the comment above it belongs to no key", number + 1);
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
        let default = default.with_context(|| format!("{path} is not where its comment is"))?;
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
        let told = |path: &str| {
            // What is below a value with a comment and without children that have one is part of its default.
            rows.iter().any(|row| {
                row.path == path || (row.default.is_some() && path.starts_with(&format!("{}.", row.path)))
            })
        };
        let untold: Vec<&String> = all.iter().filter(|path| !told(path)).collect();
        assert!(untold.is_empty(), "{untold:?}");
    }

    /// The properties of an object's schema, those of its children included; and that it refuses others.
    fn properties(schema: &Value, above: &str, found: &mut BTreeSet<String>) {
        let Some(listed) = schema["properties"].as_object() else { return };
        // `global` is shared with the other charts of a parent.
        let is_closed = schema["additionalProperties"] == Value::Bool(false);
        assert_eq!(is_closed, above != "global", "{above}: unknown keys are refused");
        for (key, schema) in listed {
            let path = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
            properties(schema, &path, found);
            found.insert(path);
        }
    }

    #[test]
    fn the_schema_knows_every_value_and_no_other() {
        let mut known = BTreeSet::new();
        let schema = schema();
        let resolved = resolve(&schema, &schema["definitions"]);
        properties(&resolved, "", &mut known);
        let rows: BTreeSet<String> = rows(&values()).unwrap().into_iter().map(|row| row.path).collect();
        let unknown: Vec<_> = rows.difference(&known).collect();
        assert!(unknown.is_empty(), "values without a schema: {unknown:?}");
        // Below a value that is a map the schema may say more.
        let is_below = |path: &&String| {
            rows.iter().any(|row| {
                path.starts_with(&format!("{row}."))
                    && !rows.iter().any(|other| other.starts_with(&format!("{row}.")))
            })
        };
        let extra: Vec<_> = known.difference(&rows).filter(|path| !is_below(path)).collect();
        assert!(extra.is_empty(), "the schema knows what values.yaml does not: {extra:?}");
    }

    /// References to definitions replaced by what they refer to.
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
