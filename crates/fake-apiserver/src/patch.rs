//! JSON merge patch (RFC 7386) and JSON patch (RFC 6902).

use serde_json::Value;

/// The reason why a JSON patch does not apply.
#[derive(Debug, PartialEq, Eq)]
pub enum Error {
    /// The patch is not a JSON patch.
    Malformed(String),
    /// A `test` failed, or a path does not exist.
    Unfit,
}

/// Merges `patch` into `value`.
pub fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(serde_json::Map::new());
    }
    for (name, change) in changes {
        if change.is_null() {
            if let Some(fields) = value.as_object_mut() {
                fields.remove(name);
            }
        } else {
            merge(&mut value[name], change);
        }
    }
}

/// Executes all operations of a JSON patch or none.
pub fn json(value: &mut Value, operations: &Value) -> Result<(), Error> {
    let operations =
        operations.as_array().ok_or_else(|| Error::Malformed("a JSON patch is a list".to_owned()))?;
    let mut patched = value.clone();
    for operation in operations {
        let path = operation["path"].as_str().unwrap_or_default();
        let new = || operation.get("value").cloned().unwrap_or_default();
        match operation["op"].as_str().unwrap_or_default() {
            "test" => {
                if patched.pointer(path).unwrap_or(&Value::Null) != &new() {
                    return Err(Error::Unfit);
                }
            }
            "add" => add(&mut patched, path, new())?,
            "replace" => *patched.pointer_mut(path).ok_or(Error::Unfit)? = new(),
            "remove" => remove(&mut patched, path)?,
            other => return Err(Error::Malformed(format!("Unexpected kind: {other}"))),
        }
    }
    *value = patched;
    Ok(())
}

fn parent<'a, 'p>(value: &'a mut Value, path: &'p str) -> Result<(&'a mut Value, &'p str), Error> {
    let (parent, name) = path.rsplit_once('/').ok_or(Error::Unfit)?;
    Ok((value.pointer_mut(parent).ok_or(Error::Unfit)?, name))
}

fn unescape(name: &str) -> String {
    name.replace("~1", "/").replace("~0", "~")
}

fn add(value: &mut Value, path: &str, new: Value) -> Result<(), Error> {
    let (parent, name) = parent(value, path)?;
    match parent {
        Value::Object(fields) => {
            fields.insert(unescape(name), new);
        }
        Value::Array(items) if name == "-" => items.push(new),
        Value::Array(items) => {
            let index = name.parse::<usize>().map_err(|_| Error::Unfit)?;
            if index > items.len() {
                return Err(Error::Unfit);
            }
            items.insert(index, new);
        }
        _ => return Err(Error::Unfit),
    }
    Ok(())
}

fn remove(value: &mut Value, path: &str) -> Result<(), Error> {
    let (parent, name) = parent(value, path)?;
    match parent {
        Value::Object(fields) => fields.remove(&unescape(name)).map(drop).ok_or(Error::Unfit),
        Value::Array(items) => {
            let index = name.parse::<usize>().ok().filter(|index| *index < items.len());
            items.remove(index.ok_or(Error::Unfit)?);
            Ok(())
        }
        _ => Err(Error::Unfit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_merge_patch_removes_null_fields() {
        let mut value = json!({ "a": { "b": 1, "c": 2 }, "d": [1] });
        merge(&mut value, &json!({ "a": { "b": null, "e": 3 }, "d": [2] }));
        assert_eq!(value, json!({ "a": { "c": 2, "e": 3 }, "d": [2] }));
    }

    #[test]
    fn a_json_patch_applies_wholly_or_not_at_all() {
        let mut value = json!({ "list": ["a", "b"], "x/y": 1 });
        let patch = json!([
            { "op": "test", "path": "/list/0", "value": "a" },
            { "op": "remove", "path": "/list/0" },
            { "op": "add", "path": "/list/-", "value": "c" },
            { "op": "replace", "path": "/x~1y", "value": 2 },
        ]);
        json(&mut value, &patch).unwrap();
        assert_eq!(value, json!({ "list": ["b", "c"], "x/y": 2 }));
        let unfit =
            json!([{ "op": "remove", "path": "/list/0" }, { "op": "test", "path": "/x~1y", "value": 1 }]);
        assert_eq!(json(&mut value, &unfit), Err(Error::Unfit));
        assert_eq!(value["list"], json!(["b", "c"]));
    }
}
