//! Label and field selectors.

use serde_json::Value;

/// The label and field selectors of a request.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    labels: Vec<Requirement>,
    fields: Vec<(String, String, bool)>,
}

#[derive(Clone, Debug)]
enum Requirement {
    Is(String, Vec<String>),
    IsNot(String, Vec<String>),
    Exists(String),
    Lacks(String),
}

impl Selection {
    /// Parses both selectors. The error contains the invalid part.
    pub fn parse(labels: &str, fields: &str) -> Result<Self, String> {
        let mut selection = Self::default();
        for part in split(labels) {
            selection.labels.push(requirement(part.trim())?);
        }
        for part in fields.split(',').filter(|part| !part.is_empty()) {
            let (field, value, is_equal) = if let Some((field, value)) = part.split_once("!=") {
                (field, value, false)
            } else {
                let (field, value) = part
                    .split_once("==")
                    .or_else(|| part.split_once('='))
                    .ok_or_else(|| format!("invalid selector: '{part}'; can't understand it"))?;
                (field, value, true)
            };
            selection.fields.push((field.to_owned(), value.to_owned(), is_equal));
        }
        Ok(selection)
    }

    /// Whether an object is selected.
    pub fn selects(&self, object: &Value) -> bool {
        let label = |key: &str| object["metadata"]["labels"][key].as_str();
        let labels = self.labels.iter().all(|requirement| match requirement {
            Requirement::Is(key, values) => {
                label(key).is_some_and(|value| values.iter().any(|one| one == value))
            }
            Requirement::IsNot(key, values) => {
                label(key).is_none_or(|value| values.iter().all(|one| one != value))
            }
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Lacks(key) => label(key).is_none(),
        });
        labels
            && self.fields.iter().all(|(field, expected, is)| {
                let value = field.split('.').fold(object, |value, name| &value[name]);
                (value.as_str().unwrap_or_default() == expected) == *is
            })
    }
}

/// Splits at commas that are not in parentheses.
fn split(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn requirement(part: &str) -> Result<Requirement, String> {
    let values = |text: &str| {
        let inner = text.trim().trim_start_matches('(').trim_end_matches(')');
        inner.split(',').map(|value| value.trim().to_owned()).collect::<Vec<_>>()
    };
    let key = |text: &str| text.trim().to_owned();
    Ok(if let Some(lacking) = part.strip_prefix('!') {
        Requirement::Lacks(key(lacking))
    } else if let Some((name, text)) = part.split_once(" notin ") {
        Requirement::IsNot(key(name), values(text))
    } else if let Some((name, text)) = part.split_once(" in ") {
        Requirement::Is(key(name), values(text))
    } else if let Some((name, value)) = part.split_once("!=") {
        Requirement::IsNot(key(name), vec![key(value)])
    } else if let Some((name, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        Requirement::Is(key(name), vec![key(value)])
    } else if part.contains(char::is_whitespace) {
        return Err(format!("unable to parse requirement: {part}"));
    } else {
        Requirement::Exists(key(part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn selects_by_labels_and_fields() {
        let object = json!({ "metadata": { "name": "a", "labels": { "x/y": "1", "z": "2" } }, "status": { "phase": "On" } });
        let selects = |labels: &str, fields: &str| Selection::parse(labels, fields).unwrap().selects(&object);
        for (labels, fields) in [
            ("", ""),
            ("x/y", ""),
            ("x/y=1,z==2", ""),
            ("z in (1, 2),!w", ""),
            ("z notin (1,3)", ""),
            ("w!=1", ""),
            ("", "metadata.name=a,status.phase!=Off"),
        ] {
            assert!(selects(labels, fields), "{labels} {fields}");
        }
        for (labels, fields) in
            [("w", ""), ("z=1", ""), ("!z", ""), ("z in (1)", ""), ("", "metadata.name=b")]
        {
            assert!(!selects(labels, fields), "{labels} {fields}");
        }
        assert!(Selection::parse("a b", "").is_err());
    }
}
