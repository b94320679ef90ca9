//! DaemonJobs from a file, validated against their CustomResourceDefinition.
//!
//! A dry run on the API server would need write permission. The schema is the same, so that the result differs only by
//! admission policies and webhooks. [`RULES`] repeats the CEL rules in Rust, and a test finds missing ones.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, bail};
use quintet_daemonjob::api::DaemonJob;
use quintet_daemonjob::mark_prefixes::{is_key, is_label_value, is_reserved};
use quintet_runtime::model::resource::Resource;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::api_client::is_name;

/// The largest file. The API server accepts no object of this size.
const LARGEST: u64 = 16 << 20;

/// The DaemonJobs of a file; `-` is standard input. An error is one sentence.
pub fn read(file: &Path) -> Result<Vec<DaemonJob>> {
    if file == Path::new("-") {
        return parse(&text(std::io::stdin().lock(), "standard input")?).context("standard input");
    }
    let name = file.display().to_string();
    let opened = std::fs::File::open(file).with_context(|| format!("cannot read {name}"))?;
    parse(&text(opened, &name)?).with_context(|| name)
}

fn text(from: impl std::io::Read, name: &str) -> Result<String> {
    let mut text = String::new();
    let length =
        from.take(LARGEST).read_to_string(&mut text).with_context(|| format!("cannot read {name}"))?;
    if length as u64 == LARGEST {
        bail!("{name} has {} MiB or more: pass a smaller file", LARGEST >> 20);
    }
    Ok(text)
}

/// Parses YAML or JSON: one or more documents, or lists of objects.
fn parse(text: &str) -> Result<Vec<DaemonJob>> {
    let mut documents = Vec::new();
    for document in documents_of(text)? {
        flatten(document, &mut documents);
    }
    if documents.is_empty() {
        bail!("it contains no DaemonJob");
    }
    documents.into_iter().map(daemonjob).collect()
}

fn documents_of(text: &str) -> Result<Vec<Value>> {
    if text.trim_start().starts_with('{') {
        // Like kubectl: text that starts with a brace is JSON, and may contain several documents.
        let documents = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        if let Ok(documents) = documents.collect() {
            return Ok(documents);
        }
    }
    // Like kubectl, YAML 1.1: 0644 is octal and `yes` is true.
    let options = serde_saphyr::options! { legacy_octal_numbers: true, with_snippet: false };
    let documents = serde_saphyr::from_multiple_with_options::<Value>(text, options);
    documents.map_err(|error| {
        let text = error.to_string();
        anyhow::anyhow!("it is neither YAML nor JSON: {}", text.lines().next().unwrap_or_default())
    })
}

/// Expands lists, and drops nulls like the API server.
fn flatten(document: Value, into: &mut Vec<Value>) {
    let is_list = document["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
    match document {
        Value::Null => {}
        Value::Object(mut list) if is_list && list.get("items").is_some_and(Value::is_array) => {
            if let Some(Value::Array(items)) = list.remove("items") {
                for item in items {
                    flatten(item, into);
                }
            }
        }
        other => into.push(without_nulls(other)),
    }
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(_, field)| !field.is_null());
            Value::Object(kept.map(|(name, field)| (name, without_nulls(field))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

fn daemonjob(document: Value) -> Result<DaemonJob> {
    let resource = Resource::of::<DaemonJob>();
    let word = |member: &str| document[member].as_str().unwrap_or_default();
    let (kind, version) = (word("kind"), word("apiVersion"));
    let name = document["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if !document.is_object() || kind.is_empty() {
        bail!("it contains a document without a kind: explain supports only DaemonJobs");
    }
    if kind != resource.kind || version != resource.api_version() {
        bail!(
            "it contains {kind} {name:?} of {version:?}: explain supports only DaemonJobs of {}",
            resource.api_version()
        );
    }
    if name.is_empty() {
        bail!("it contains a DaemonJob without metadata.name: set the name");
    }
    if !is_name(&name) {
        bail!("DaemonJob {name:?}: metadata.name is not valid: use lower case letters, digits, '-' and '.'");
    }
    if let Some(problem) = problem(&document) {
        bail!("DaemonJob {name:?}: {problem}");
    }
    // The API server ignores a status in an apply.
    let mut document = document;
    if let Some(document) = document.as_object_mut() {
        document.remove("status");
    }
    DaemonJob::deserialize(&document).with_context(|| format!("DaemonJob {name:?}"))
}

/// The schema, as `cargo xtask generate` writes it. The code that generates it would add a twentieth to the program's size.
static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("daemonjob-schema.json")).unwrap_or_default());

/// The first violation of the schema, as a sentence that names the field.
fn problem(document: &Value) -> Option<String> {
    check(document, &SCHEMA, &mut String::new())
}

/// A CEL rule, as a function of the value that it validates.
type Rule = fn(&Value) -> bool;

/// The CEL rules of the spec.
const SPEC_RULES: &[Rule] = &[
    is_never_restarted,
    names_containers,
    waves_can_fail,
    |spec| !has(spec, "schedule") || !has(spec, "rerunOn"),
    |spec| !has(spec, "schedule") || needs_no_approval(&spec["rollout"]),
    |spec| has(spec, "schedule") || !has(spec, "timeZone") && !has(spec, "startingDeadlineSeconds"),
];

/// The CEL rules by path, in the definition's order. The messages come from the definition.
const RULES: &[(&str, &[Rule])] = &[
    ("", &[|job| job["metadata"]["name"].as_str().is_some_and(|name| name.len() <= 63)]),
    ("spec", SPEC_RULES),
    (
        "spec.template",
        &[|template| {
            template["spec"]["containers"].as_array().is_some_and(|containers| !containers.is_empty())
        }],
    ),
    ("spec.parallelism", &[|value| is_count(value, 1)]),
    ("spec.failurePolicy.maxFailedNodes", &[|value| is_count(value, 0)]),
    (
        "spec.onSuccess.labels",
        &[
            |labels| keys(labels).all(is_key),
            |labels| labels.as_object().is_none_or(|labels| labels.values().all(is_text_of_a_label)),
            |labels| !keys(labels).any(is_reserved),
        ],
    ),
    ("spec.onSuccess.removeTaints[].key", &[|key| key.as_str().is_some_and(is_key), is_free]),
    (
        "spec.unhealthyNodes",
        &[|rule| {
            rule.get("skipAfterSeconds").is_none()
                || rule.get("policy").is_none_or(|policy| *policy == "SkipAfter")
        }],
    ),
    ("spec.rollout", &[|rollout| needs_no_approval(rollout) || has(rollout, "waveSizes")]),
    ("spec.rollout.waveSizes", &[|sizes| items(sizes).all(|size| is_count(size, 1)), grows]),
    (
        "spec.podFailurePolicy.rules[]",
        &[|rule| {
            let by_condition =
                rule["onPodConditions"].as_array().is_some_and(|conditions| !conditions.is_empty());
            rule.get("onExitCodes").is_some() != by_condition
        }],
    ),
    (
        "spec.podFailurePolicy.rules[].onExitCodes",
        &[|codes| codes["operator"] != "In" || !items(&codes["values"]).any(|value| *value == 0)],
    ),
];

fn has(object: &Value, field: &str) -> bool {
    object.get(field).is_some()
}

fn needs_no_approval(rollout: &Value) -> bool {
    rollout.get("approval").is_none_or(|approval| *approval == "None")
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn keys(map: &Value) -> impl Iterator<Item = &str> {
    map.as_object().into_iter().flatten().map(|(key, _)| &**key)
}

fn is_text_of_a_label(value: &Value) -> bool {
    value.as_str().is_some_and(is_label_value)
}

/// Whether a key does not belong to Kubernetes.
fn is_free(key: &Value) -> bool {
    key.as_str().is_some_and(|key| !is_reserved(key))
}

fn is_never_restarted(spec: &Value) -> bool {
    spec.get("podFailurePolicy").is_none() || spec["template"]["spec"]["restartPolicy"] == "Never"
}

fn names_containers(spec: &Value) -> bool {
    let pod = &spec["template"]["spec"];
    let containers = || items(&pod["containers"]).chain(items(&pod["initContainers"]));
    items(&spec["podFailurePolicy"]["rules"])
        .filter_map(|rule| rule["onExitCodes"]["containerName"].as_str())
        .all(|wanted| containers().any(|container| container["name"] == *wanted))
}

fn waves_can_fail(spec: &Value) -> bool {
    let policy = spec["failurePolicy"]["type"].as_str();
    spec["rollout"].get("waveSizes").is_none() || matches!(policy, Some("FailFast" | "Pause"))
}

/// Whether the numbers in a list grow. Percentages are compared with nothing.
fn grows(sizes: &Value) -> bool {
    items(sizes).filter_map(Value::as_i64).is_sorted_by(|one, next| one < next)
}

/// Whether a value is a count from `least` up to a million, or a percentage from `least` on.
fn is_count(value: &Value, least: u8) -> bool {
    match value {
        Value::String(text) => text.strip_suffix('%').is_some_and(|percent| {
            percent
                .parse::<u8>()
                .is_ok_and(|number| (least..=100).contains(&number) && number.to_string() == percent)
        }),
        number => number.as_u64().is_some_and(|number| (u64::from(least)..=1_000_000).contains(&number)),
    }
}

/// Validates the value at `path` against a structural schema.
fn check(value: &Value, schema: &Value, path: &mut String) -> Option<String> {
    let is_whole = value.is_i64() || value.is_u64();
    let (wanted, is_right) = if schema["x-kubernetes-int-or-string"] == true {
        ("an integer or a string", is_whole || value.is_string())
    } else {
        match schema["type"].as_str() {
            Some("object") => ("an object", value.is_object()),
            Some("array") => ("a list", value.is_array()),
            Some("string") => ("a string", value.is_string()),
            Some("boolean") => ("true or false", value.is_boolean()),
            Some("number") => ("a number", value.is_number()),
            Some("integer") => ("an integer", is_whole),
            _ => ("", true),
        }
    };
    if !is_right {
        return Some(format!("{path} must be {wanted}, got {}", shown(value)));
    }
    limits(value, schema, path).or_else(|| {
        let fields = match value {
            Value::Object(object) => fields(object, schema, path),
            Value::Array(items) => {
                let each = &schema["items"];
                items.iter().enumerate().find_map(|(at, item)| within(path, &format!("[{at}]"), item, each))
            }
            _ => None,
        };
        // Rules run last, because they rely on the types of their fields.
        fields.or_else(|| broken_rule(value, schema, path))
    })
}

fn within(path: &mut String, step: &str, value: &Value, schema: &Value) -> Option<String> {
    let length = path.len();
    path.push_str(step);
    let problem = check(value, schema, path);
    path.truncate(length);
    problem
}

fn fields(object: &Map<String, Value>, schema: &Value, path: &mut String) -> Option<String> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let dot = if path.is_empty() { "" } else { "." };
    for name in required {
        if !object.contains_key(name) {
            return Some(format!("{path}{dot}{name} is required"));
        }
    }
    let properties = schema["properties"].as_object();
    let takes_all = schema["x-kubernetes-preserve-unknown-fields"] == true || properties.is_none();
    for (name, field) in object {
        let step = format!("{dot}{name}");
        let known = properties.and_then(|properties| properties.get(name));
        let problem = match known {
            Some(known) => within(path, &step, field, known),
            // The schema omits the fields that every object has.
            None if path.is_empty() && matches!(&**name, "apiVersion" | "kind" | "metadata") => None,
            None if takes_all => within(path, &step, field, &schema["additionalProperties"]),
            None => Some(format!("{path}{step} is an unknown field")),
        };
        if problem.is_some() {
            return problem;
        }
    }
    None
}

fn limits(value: &Value, schema: &Value, path: &str) -> Option<String> {
    let allowed = schema["enum"].as_array();
    if let Some(allowed) = allowed.filter(|allowed| !allowed.contains(value)) {
        let words: Vec<&str> = allowed.iter().filter_map(Value::as_str).collect();
        return Some(format!("{path} must be one of {}, got {}", words.join(", "), shown(value)));
    }
    let size = match value {
        Value::Number(number) => number.as_f64().map(|number| (number, "minimum", "maximum", "")),
        Value::String(text) => {
            Some((count(text.chars().count()), "minLength", "maxLength", "the length of "))
        }
        Value::Array(items) => {
            Some((count(items.len()), "minItems", "maxItems", "the number of entries of "))
        }
        Value::Object(fields) => {
            Some((count(fields.len()), "minProperties", "maxProperties", "the number of entries of "))
        }
        _ => None,
    };
    if let Some((size, least, most, what)) = size {
        if let Some(least) = schema[least].as_f64().filter(|least| size < *least) {
            return Some(format!("{what}{path} must be at least {least}, got {size}"));
        }
        if let Some(most) = schema[most].as_f64().filter(|most| size > *most) {
            return Some(format!("{what}{path} must be at most {most}, got {size}"));
        }
    }
    if schema["x-kubernetes-list-type"] == "set"
        && let Value::Array(items) = value
    {
        let mut seen = HashSet::new();
        if let Some(twice) = items.iter().find(|item| !seen.insert(item.to_string())) {
            return Some(format!("{path} contains {} twice", shown(twice)));
        }
    }
    None
}

#[allow(clippy::cast_precision_loss, reason = "sizes in memory are far below 2^52")]
fn count(size: usize) -> f64 {
    size as f64
}

fn broken_rule(value: &Value, schema: &Value, path: &str) -> Option<String> {
    let stated = schema["x-kubernetes-validations"].as_array()?;
    let (_, rules) = RULES.iter().find(|(about, _)| *about == without_indexes(path))?;
    let (broken, _) = stated.iter().zip(*rules).find(|(_, holds)| !holds(value))?;
    let message = broken["message"].as_str().unwrap_or("a validation rule is not met");
    let about = if path.is_empty() { "metadata.name" } else { path };
    Some(format!("{about}: {message}"))
}

/// `a[3].b` as `a[].b`.
fn without_indexes(path: &str) -> String {
    let mut parts = path.split('[');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let _ = write!(plain, "[]{}", part.split_once(']').map_or("", |(_, rest)| rest));
    }
    plain
}

/// A value, shortened for a sentence.
fn shown(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => quintet_runtime::model::conditions::shorten(other.to_string(), 64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn refusal(text: &str) -> String {
        let refusal = format!("{:#}", parse(text).unwrap_err());
        assert!(!refusal.contains('\n'), "one sentence: {refusal}");
        refusal
    }

    fn with(spec: &Value) -> String {
        let mut job = json!({"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "metadata": {"name": "a"},
            "spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}});
        for (field, value) in spec.as_object().unwrap().clone() {
            job["spec"][field] = value;
        }
        job.to_string()
    }

    const SAMPLE: &str = include_str!("../../../../samples/daemonjob/daemonjob-sample.yaml");

    #[test]
    fn hashes_the_sample_like_the_stored_object() {
        let jobs = parse(SAMPLE).unwrap();
        assert_eq!(jobs.len(), 1);
        let stored: DaemonJob =
            serde_json::from_value(json!({"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
            "metadata": {"name": "daemonjob-sample"}, "spec": {"template": {"spec": {
                "containers": [{"name": "test-job", "image": "busybox", "command": ["sleep", "20"]}],
                "nodeSelector": {"app": "v1"}, "restartPolicy": "OnFailure"}}}}))
            .unwrap();
        assert_eq!(jobs[0].spec, stored.spec);
        assert_eq!(jobs[0].spec.template.hash(), stored.spec.template.hash());
    }

    #[test]
    fn reads_documents_lists_and_json() {
        let names = |text: &str| -> Vec<String> {
            parse(text).unwrap().into_iter().filter_map(|job| job.metadata.name).collect()
        };
        let other = SAMPLE.replace("daemonjob-sample", "other");
        assert_eq!(names(&format!("---\n{SAMPLE}\n---\n---\n{other}")), ["daemonjob-sample", "other"]);
        let (one, two) = (with(&json!({})), with(&json!({"paused": true})).replace("\"a\"", "\"b\""));
        assert_eq!(names(&format!("{one}\n{two}")), ["a", "b"]);
        assert_eq!(
            names(&format!(r#"{{"kind":"List","apiVersion":"v1","items":[{one},{two}]}}"#)),
            ["a", "b"]
        );
        assert_eq!(
            names(
                "{apiVersion: dj.dysproz.io/v1, kind: DaemonJob, metadata: {name: flow}, spec: {template: {spec: {containers: [{name: c}]}}}}"
            ),
            ["flow"]
        );
    }

    #[test]
    fn reads_yaml_like_kubectl() {
        let text = "apiVersion: dj.dysproz.io/v1\nkind: DaemonJob\nmetadata: {name: a, creationTimestamp: null}\nspec:\n  \
            paused: yes\n  template:\n    metadata: {creationTimestamp: null}\n    spec:\n      \
            containers: [{name: c, image: i}]\n      \
            volumes: [{name: v, configMap: {name: x, defaultMode: 0644}}]\n";
        let job = &parse(text).unwrap()[0];
        assert_eq!(job.spec.paused, Some(true));
        let template = &job.spec.template.0;
        assert_eq!(template["spec"]["volumes"][0]["configMap"]["defaultMode"], 0o644);
        assert_eq!(template["metadata"], json!({}));
    }

    #[test]
    fn rejects_other_kinds_and_texts_in_a_sentence() {
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}";
        for text in [service.to_owned(), format!("{SAMPLE}\n---\n{service}")] {
            let refusal = refusal(&text);
            assert!(refusal.contains("Service \"web\"") && refusal.contains("only DaemonJobs"), "{refusal}");
        }
        assert!(refusal(&SAMPLE.replace("/v1", "/v2")).contains("dj.dysproz.io/v2"));
        assert!(refusal("").contains("contains no DaemonJob"));
        assert!(refusal("# nothing\n---\n").contains("contains no DaemonJob"));
        assert!(refusal("hello").contains("without a kind"));
        assert!(refusal("a: [b").contains("neither YAML nor JSON"));
        assert!(refusal("{\"a\":").contains("neither YAML nor JSON"));
        assert!(
            refusal(&SAMPLE.replace("name: daemonjob-sample", "generateName: x-")).contains("metadata.name")
        );
        assert!(refusal(&SAMPLE.replace("daemonjob-sample", "Big")).contains("\"Big\""));
        assert!(
            read(Path::new("/does/not/exist"))
                .is_err_and(|error| error.to_string().contains("/does/not/exist"))
        );
    }

    #[rstest]
    #[case("spec is required", json!({"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "metadata": {"name": "a"}}).to_string())]
    #[case("spec.template is required", json!({"apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "metadata": {"name": "a"}, "spec": {}}).to_string())]
    #[case("spec.template: template.spec.containers", with(&json!({"template": {"spec": {"containers": []}}})))]
    #[case("spec.template: template.spec.containers", with(&json!({"template": {}})))]
    #[case("spec.template.spec.containers must be a list, got an object", with(&json!({"template": {"spec": {"containers": {}}}})))]
    #[case("spec.template.spec.containers[0].name is required", with(&json!({"template": {"spec": {"containers": [{"image": "i"}]}}})))]
    #[case("spec.template.spec.nodeSelector.a must be a string, got 1", with(&json!({"template": {"spec": {"containers": [{"name": "c"}], "nodeSelector": {"a": 1}}}})))]
    #[case("spec.paralelism is an unknown field", with(&json!({"paralelism": 1})))]
    #[case("spec.parallelism: parallelism must be", with(&json!({"parallelism": 0})))]
    #[case("spec.parallelism: parallelism must be", with(&json!({"parallelism": "0%"})))]
    #[case("spec.parallelism: parallelism must be", with(&json!({"parallelism": "007%"})))]
    #[case("spec.parallelism must be an integer or a string, got true", with(&json!({"parallelism": true})))]
    #[case("spec.backoffLimit must be at least 0, got -1", with(&json!({"backoffLimit": -1})))]
    #[case("spec.backoffLimit must be at most 1000, got 1001", with(&json!({"backoffLimit": 1001})))]
    #[case("spec.backoffLimit must be an integer, got \"6\"", with(&json!({"backoffLimit": "6"})))]
    #[case("spec.lateNodes must be one of Run, Ignore, got \"Sometimes\"", with(&json!({"lateNodes": "Sometimes"})))]
    #[case("spec.rerunOn contains \"NodeReboot\" twice", with(&json!({"rerunOn": ["NodeReboot", "NodeReboot"]})))]
    #[case("spec.failurePolicy.maxFailedNodes: maxFailedNodes must be", with(&json!({"failurePolicy": {"maxFailedNodes": "101%"}})))]
    #[case("spec.unhealthyNodes: skipAfterSeconds needs policy SkipAfter", with(&json!({"unhealthyNodes": {"policy": "Wait", "skipAfterSeconds": 5}})))]
    #[case("spec: podFailurePolicy needs template.spec.restartPolicy Never", with(&json!({"podFailurePolicy": {"rules": []}})))]
    #[case("spec: onExitCodes.containerName must be the name of", with(&json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}], "initContainers": [{"name": "i"}]}}, "podFailurePolicy": {"rules": [
        {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1], "containerName": "i"}}, {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [1], "containerName": "x"}}]}})))]
    #[case("spec: schedule and rerunOn exclude each other", with(&json!({"schedule": "@daily", "rerunOn": ["NodeReboot"]})))]
    #[case("spec: schedule and rollout.approval exclude each other", with(&json!({"schedule": "@daily", "failurePolicy": {"type": "Pause"},
        "rollout": {"waveSizes": [1], "approval": "FirstWave"}})))]
    #[case("spec: timeZone and startingDeadlineSeconds need schedule", with(&json!({"timeZone": "UTC"})))]
    #[case("spec: timeZone and startingDeadlineSeconds need schedule", with(&json!({"startingDeadlineSeconds": 60})))]
    #[case("spec.podFailurePolicy.rules[0]: a rule of podFailurePolicy needs one of", with(&json!({"podFailurePolicy": {"rules": [{"action": "Ignore"}]}})))]
    #[case("spec.podFailurePolicy.rules[0].onExitCodes: onExitCodes with operator In", with(&json!({"podFailurePolicy": {"rules": [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [0]}}]}})))]
    #[case("the number of entries of spec.podFailurePolicy.rules[0].onExitCodes.values must be at least 1, got 0", with(&json!({"podFailurePolicy": {"rules": [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": []}}]}})))]
    #[case("the number of entries of spec.onSuccess.labels must be at most 8, got 9", with(&json!({"onSuccess": {"labels":
        (0..9).map(|at| (format!("example.com/{at}"), json!(""))).collect::<Map<_, _>>()}})))]
    #[case("spec.onSuccess.labels: each key of onSuccess.labels must be", with(&json!({"onSuccess": {"labels": {"ready": "yes"}}})))]
    #[case("spec.onSuccess.labels: each value of onSuccess.labels must be", with(&json!({"onSuccess": {"labels": {"example.com/ready": "a b"}}})))]
    #[case("spec.onSuccess.labels: onSuccess.labels cannot set labels of kubernetes.io", with(&json!({"onSuccess": {"labels": {"node.kubernetes.io/x": ""}}})))]
    #[case("spec.onSuccess.removeTaints[0].key: each key of onSuccess.removeTaints must be", with(&json!({"onSuccess": {"removeTaints": [{"key": "", "effect": "NoSchedule"}]}})))]
    #[case("spec.onSuccess.removeTaints[0].key: onSuccess.removeTaints cannot remove taints of kubernetes.io", with(&json!({"onSuccess": {"removeTaints": [{"key": "k8s.io/x", "effect": "NoSchedule"}]}})))]
    #[case("spec.onSuccess.removeTaints[0].effect must be one of NoSchedule, PreferNoSchedule, NoExecute", with(&json!({"onSuccess": {"removeTaints": [{"key": "example.com/x", "effect": "no"}]}})))]
    #[case("metadata.name: the name is also a label", with(&json!({})).replace("\"a\"", &format!("\"{}\"", "a".repeat(64))))]
    fn names_the_rejected_field(#[case] expected: &str, #[case] text: String) {
        let refusal = refusal(&text);
        assert!(refusal.contains(expected), "{refusal}");
    }

    #[test]
    fn accepts_valid_specs() {
        for spec in [
            json!({"parallelism": "10%"}),
            json!({"parallelism": 1}),
            json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c"}]}},
                "podFailurePolicy": {"rules": [{"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [42]}},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}}),
            json!({"failurePolicy": {"type": "Pause", "maxFailedNodes": "0%"}}),
            json!({"schedule": "@daily", "timeZone": "Europe/Berlin", "startingDeadlineSeconds": 60,
                "rollout": {"approval": "None"}}),
            json!({"onSuccess": {"labels": {"example.com/ready": "", "a-b.example.org/C_d": "1.0"},
                "removeTaints": [{"key": "notk8s.io/x", "effect": "NoExecute"}]}}),
            json!({"template": {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}},
                "ports": [{"containerPort": 80}], "livenessProbe": {"httpGet": {"port": "web"}}}]}}}),
        ] {
            parse(&with(&spec)).unwrap();
        }
    }

    /// Every rule of the definition has its counterpart here.
    #[test]
    fn repeats_every_rule_of_the_definition() {
        fn walk(schema: &Value, path: &str, found: &mut Vec<String>) {
            for _ in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
                found.push(path.to_owned());
            }
            let dot = if path.is_empty() { "" } else { "." };
            for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                walk(field, &format!("{path}{dot}{name}"), found);
            }
            if schema["items"].is_object() {
                walk(&schema["items"], &format!("{path}[]"), found);
            }
        }
        let mut found = Vec::new();
        walk(&SCHEMA, "", &mut found);
        found.retain(|path| path != "status" && !path.starts_with("status."));
        let mut known: Vec<&str> =
            RULES.iter().flat_map(|(path, rules)| rules.iter().map(|_| *path)).collect();
        found.sort_unstable();
        known.sort_unstable();
        assert_eq!(found, known, "explain/file.rs must check what the definition checks");
    }
}
