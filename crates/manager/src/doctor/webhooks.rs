//! Admission webhooks that reject writes, because no pod serves them.

use quintet_kinds::KINDS;
use quintet_runtime::model::rule::MANAGER_RULES;
use serde_json::Value;

use super::finding::{Fact, Finding};

/// An object of a type that a client creates, changes or deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    group: &'static str,
    /// The resource, such as `pods` or `pods/status`.
    resource: &'static str,
    operation: &'static str,
}

/// A webhook that rejects writes of the manager, or of its users, while its Service has no ready endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// The resource of the configuration, for kubectl.
    configuration: &'static str,
    /// The name of the configuration.
    name: String,
    /// The name of the webhook.
    webhook: String,
    /// The namespace of the webhook's Service.
    pub namespace: String,
    /// The webhook's Service.
    pub service: String,
    /// The writes, such as `CREATE pods`.
    matched: Vec<String>,
    /// Whether a selector or match condition may exclude objects.
    is_selective: bool,
}

/// The writes of the manager by its rules, and those of users to its kinds.
fn writes() -> Vec<Written> {
    let rules = MANAGER_RULES.iter().chain(KINDS.iter().flat_map(|kind| kind.rules));
    let mut all = Vec::new();
    let mut add = |group, resource, operation| {
        let written = Written { group, resource, operation };
        if !all.contains(&written) {
            all.push(written);
        }
    };
    for rule in rules {
        for &resource in rule.resources {
            for &verb in rule.verbs {
                match verb {
                    "create" => add(rule.group, resource, "CREATE"),
                    "update" | "patch" => add(rule.group, resource, "UPDATE"),
                    "delete" => add(rule.group, resource, "DELETE"),
                    _ => {}
                }
            }
        }
    }
    for resource in KINDS.map(|kind| (kind.resource)()) {
        for operation in ["CREATE", "UPDATE", "DELETE"] {
            add(resource.group, resource.plural, operation);
        }
    }
    all
}

/// The webhooks of these configurations that match a write and reject it on a failure. `configuration` is their resource.
/// Also returns the number of such webhooks with a URL: whether a URL is served is unknown.
pub fn suspects(configuration: &'static str, configurations: &[Value]) -> (Vec<Suspect>, usize) {
    let writes = writes();
    let (mut found, mut unchecked) = (Vec::new(), 0);
    for one in configurations {
        for webhook in one["webhooks"].as_array().into_iter().flatten() {
            let matched: Vec<String> =
                writes.iter().filter(|written| matches(webhook, written)).map(Written::text).collect();
            if webhook["failurePolicy"] == "Ignore" || matched.is_empty() {
                continue;
            }
            let service = &webhook["clientConfig"]["service"];
            let (Some(namespace), Some(name)) = (service["namespace"].as_str(), service["name"].as_str())
            else {
                unchecked += 1;
                continue;
            };
            let is_set = |selector: &str| webhook[selector].as_object().is_some_and(|one| !one.is_empty());
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            found.push(Suspect {
                configuration,
                name: text(&one["metadata"]["name"]),
                webhook: text(&webhook["name"]),
                namespace: namespace.to_owned(),
                service: name.to_owned(),
                matched,
                is_selective: is_set("namespaceSelector")
                    || is_set("objectSelector")
                    || webhook["matchConditions"].as_array().is_some_and(|one| !one.is_empty()),
            });
        }
    }
    (found, unchecked)
}

/// The webhooks that reject writes on a failure.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The webhooks with a Service, and whether the Service has a ready endpoint.
    pub suspects: Vec<(Suspect, Fact<bool>)>,
    /// The number of webhooks with a URL.
    pub unchecked: usize,
}

impl Written {
    fn text(&self) -> String {
        format!("{} {}", self.operation, self.resource)
    }
}

/// Whether a rule of the webhook matches the write.
fn matches(webhook: &Value, written: &Written) -> bool {
    let (resource, subresource) = written.resource.split_once('/').unwrap_or((written.resource, ""));
    let is_resource = |pattern: &str| match pattern.split_once('/') {
        None => subresource.is_empty() && (pattern == "*" || pattern == resource),
        Some((name, sub)) => {
            // `*/*` also matches resources without a subresource.
            let is_sub = sub == "*" && (name == "*" || !subresource.is_empty()) || sub == subresource;
            (name == "*" || name == resource) && is_sub
        }
    };
    let has = |list: &Value, is_match: &dyn Fn(&str) -> bool| {
        list.as_array().into_iter().flatten().filter_map(Value::as_str).any(is_match)
    };
    let or_all = |list: &Value, value: &str| has(list, &|one| one == "*" || one == value);
    webhook["rules"].as_array().into_iter().flatten().any(|rule| {
        or_all(&rule["operations"], written.operation)
            && or_all(&rule["apiGroups"], written.group)
            && has(&rule["resources"], &is_resource)
    })
}

/// Whether an EndpointSlice has a ready endpoint.
pub fn is_ready(slice: &Value) -> bool {
    let mut endpoints = slice["endpoints"].as_array().into_iter().flatten();
    // A missing condition means ready.
    endpoints.any(|endpoint| endpoint["conditions"]["ready"] != false)
}

/// Whether webhooks reject writes.
pub fn webhooks(found: &Fact<Found>) -> Vec<Finding> {
    let Found { suspects, unchecked } = match found {
        Ok(found) => found,
        Err(why) => {
            let list = "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations";
            return vec![Finding::unknown(why).then(list)];
        }
    };
    let mut findings = Vec::new();
    for (suspect, is_ready) in suspects {
        match is_ready {
            Ok(true) => {}
            Ok(false) => findings.push(suspect.problem()),
            Err(why) => findings.push(Finding::unknown(why)),
        }
    }
    if findings.is_empty() {
        let rest = if *unchecked == 0 {
            String::new()
        } else {
            format!(" Not checked: {unchecked} webhooks with a URL.")
        };
        findings.push(Finding::well(format!(
            "The Services of {} webhooks for writes of Quintet have ready endpoints.{rest}",
            suspects.len()
        )));
    }
    findings
}

impl Suspect {
    /// The finding if the webhook's Service has no ready endpoint.
    fn problem(&self) -> Finding {
        let Self { configuration, name, webhook, namespace, service, matched, is_selective } = self;
        let most = if *is_selective { ", unless its selectors exclude the object" } else { "" };
        let why = format!(
            "Webhook {webhook} of {name} rejects {}{most}: Service {namespace}/{service} has no ready endpoint.",
            matched.join(", ")
        );
        Finding::problem(why, format!("kubectl describe {configuration} {name}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::finding::Verdict;
    use super::*;

    fn webhook(rule: &Value) -> Value {
        json!({ "name": "w.example.com", "failurePolicy": "Fail", "rules": [rule],
            "clientConfig": { "service": { "namespace": "s", "name": "hook" } } })
    }

    fn rule(operations: &[&str], group: &str, resources: &[&str]) -> Value {
        json!({ "operations": operations, "apiGroups": [group], "apiVersions": ["*"], "resources": resources })
    }

    fn found(webhook: &Value) -> Vec<Suspect> {
        suspects(
            "mutatingwebhookconfigurations",
            &[json!({ "metadata": { "name": "c" }, "webhooks": [webhook] })],
        )
        .0
    }

    #[test]
    fn suspects_webhooks_that_match_a_write_of_quintet() {
        let matched = |rule: &Value| -> Vec<String> {
            found(&webhook(rule)).into_iter().flat_map(|one| one.matched).collect()
        };
        assert_eq!(matched(&rule(&["CREATE"], "", &["pods"])), ["CREATE pods"]);
        assert_eq!(matched(&rule(&["CREATE", "CONNECT"], "*", &["books"])), ["CREATE books"], "of users");
        assert_eq!(matched(&rule(&["*"], "", &["pods"])), ["CREATE pods", "DELETE pods", "UPDATE pods"]);
        assert_eq!(
            matched(&rule(&["UPDATE"], "christianb93.github.com", &["*/*"])),
            ["UPDATE books/status", "UPDATE books"]
        );
        assert_eq!(matched(&rule(&["UPDATE"], "christianb93.github.com", &["*"])), ["UPDATE books"]);
        assert_eq!(
            matched(&rule(&["UPDATE"], "christianb93.github.com", &["books/*"])),
            ["UPDATE books/status"]
        );
        for other in [
            rule(&["DELETE"], "", &["configmaps"]),
            rule(&["CREATE"], "apps", &["pods"]),
            rule(&["CREATE"], "", &["secrets"]),
            rule(&["CONNECT"], "*", &["*"]),
        ] {
            assert!(matched(&other).is_empty(), "{other}");
        }
    }

    #[test]
    fn ignores_webhooks_that_cannot_reject_or_have_no_service() {
        let pods = webhook(&rule(&["CREATE"], "", &["pods"]));
        assert_eq!(found(&pods).len(), 1);
        let mut ignoring = pods.clone();
        ignoring["failurePolicy"] = json!("Ignore");
        let mut elsewhere = pods.clone();
        elsewhere["clientConfig"] = json!({ "url": "https://example.com" });
        assert!(found(&ignoring).is_empty());
        let configuration = json!({ "metadata": { "name": "c" }, "webhooks": [elsewhere] });
        let (suspects, unchecked) = suspects("mutatingwebhookconfigurations", &[configuration]);
        assert_eq!((suspects, unchecked), (Vec::new(), 1));
        let finding = webhooks(&Ok(Found { unchecked, ..Found::default() })).remove(0);
        assert!(finding.sentence.ends_with(" Not checked: 1 webhooks with a URL."), "{finding:?}");
        let mut default = pods;
        default["failurePolicy"] = Value::Null;
        assert_eq!(found(&default).len(), 1, "the default is Fail");
    }

    #[test]
    fn a_service_without_a_ready_endpoint_is_a_problem() {
        let mut pods = webhook(&rule(&["CREATE"], "", &["pods"]));
        let check = |webhook: &Value, is_ready: Fact<bool>| {
            let suspects = vec![(found(webhook).remove(0), is_ready)];
            webhooks(&Ok(Found { suspects, unchecked: 0 }))
        };
        let finding = check(&pods, Ok(false)).remove(0);
        let expected =
            "Webhook w.example.com of c rejects CREATE pods: Service s/hook has no ready endpoint.";
        assert_eq!((finding.verdict, &*finding.sentence), (Verdict::Problem, expected));
        assert_eq!(finding.remedy.as_deref(), Some("kubectl describe mutatingwebhookconfigurations c"));
        pods["namespaceSelector"] = json!({ "matchLabels": { "a": "b" } });
        assert!(check(&pods, Ok(false))[0].sentence.contains("unless its selectors exclude the object"));
        assert_eq!(check(&pods, Ok(true))[0].verdict, Verdict::Well);
        assert_eq!(check(&pods, Err("denied".to_owned())), [Finding::unknown("denied")]);
        assert_eq!(webhooks(&Ok(Found::default()))[0].verdict, Verdict::Well);
        assert_eq!(webhooks(&Err("denied".to_owned()))[0].verdict, Verdict::Unknown);
    }

    #[test]
    fn an_endpoint_is_ready_unless_its_condition_is_false() {
        let slice = |conditions: Value| json!({ "endpoints": [{ "conditions": conditions }] });
        assert!(is_ready(&slice(json!({ "ready": true }))) && is_ready(&slice(json!({}))));
        assert!(!is_ready(&slice(json!({ "ready": false }))));
        assert!(!is_ready(&json!({ "endpoints": null })) && !is_ready(&json!({})));
    }
}
