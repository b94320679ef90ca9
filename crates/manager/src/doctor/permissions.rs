//! Whether the manager's ServiceAccount has the permissions of its kinds, from the rules that also generate the roles.

use std::collections::BTreeMap;

use quintet_daemonjob::NODE_MARK_RULES;
use quintet_kinds::KINDS;
use quintet_runtime::model::rule::{LEADER_ELECTION_RULES, MANAGER_RULES, Rule};
use serde_json::{Value, json};

use super::finding::{Fact, Finding, LISTED};
use super::installation::Installation;

/// The group of the objects that the manager accesses only with its flag for autoscaling.
const KEDA: &str = "keda.sh";

/// The beginning of an error of a review.
pub const UNREVIEWED: &str = "cannot review the permissions of the manager's ServiceAccount";

/// A permission that the manager needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The namespace; empty for all namespaces and for cluster-scoped resources.
    namespace: String,
    group: &'static str,
    /// The resource, such as `pods` or `pods/status`.
    resource: &'static str,
    verb: &'static str,
    /// The name of the only object; empty for all objects.
    name: String,
    /// The reason of the rule.
    why: &'static str,
}

/// The permissions that the manager needs with its flags.
pub fn needed(installation: &Installation) -> Vec<Permission> {
    let flags = &installation.flags;
    let of_kinds = KINDS.iter().flat_map(|kind| {
        let of_controller = if flags.kinds.contains(&kind.controller) { kind.rules } else { &[] };
        let of_sweeper = if flags.sweeps { kind.sweep_rules } else { &[] };
        of_controller.iter().chain(of_sweeper)
    });
    let of_kinds = of_kinds.filter(|rule| flags.has_keda || rule.group != KEDA);
    let marks = if flags.has_node_marks { NODE_MARK_RULES } else { &[] };
    let mut needed = Vec::new();
    for rule in MANAGER_RULES.iter().chain(of_kinds).chain(marks) {
        if rule.is_cluster_scoped() || flags.namespaces.is_empty() {
            add(&mut needed, rule, "", "");
        } else {
            for namespace in &flags.namespaces {
                add(&mut needed, rule, namespace, "");
            }
        }
    }
    if flags.elects {
        for rule in LEADER_ELECTION_RULES {
            // A rule for create cannot name the object.
            let name: &str = if rule.verbs.contains(&"create") { "" } else { &installation.lease.name };
            add(&mut needed, rule, &installation.lease.namespace, name);
        }
    }
    needed
}

/// Adds the permissions of a rule that are not in the list yet.
fn add(needed: &mut Vec<Permission>, rule: &Rule, namespace: &str, name: &str) {
    for &resource in rule.resources {
        for &verb in rule.verbs {
            let is_same = |one: &Permission| {
                (one.group, one.resource, one.verb, &*one.namespace)
                    == (rule.group, resource, verb, namespace)
            };
            if !needed.iter().any(is_same) {
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                needed.push(Permission { namespace, group: rule.group, resource, verb, name, why: rule.why });
            }
        }
    }
}

impl Permission {
    /// The path and the body of the review. Without `account`, it is about the user who sends it.
    pub fn review(&self, account: Option<&str>) -> (&'static str, Value) {
        let (resource, subresource) = self.resource.split_once('/').unwrap_or((self.resource, ""));
        let mut spec = json!({ "resourceAttributes": {
            "namespace": self.namespace, "verb": self.verb, "group": self.group,
            "resource": resource, "subresource": subresource, "name": self.name } });
        let (path, kind) = match account {
            None => ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "SelfSubjectAccessReview"),
            Some(user) => {
                spec["user"] = json!(user);
                spec["groups"] = json!(groups(user));
                ("/apis/authorization.k8s.io/v1/subjectaccessreviews", "SubjectAccessReview")
            }
        };
        (path, json!({ "apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec }))
    }

    /// The resource with its group, as for kubectl.
    fn resource_name(&self) -> String {
        match (self.group, self.resource.split_once('/')) {
            ("", _) => self.resource.to_owned(),
            (group, None) => format!("{}.{group}", self.resource),
            (group, Some((resource, subresource))) => format!("{resource}.{group}/{subresource}"),
        }
    }
}

/// The groups of a ServiceAccount with this user name.
fn groups(user: &str) -> Vec<String> {
    let namespace = user.split(':').nth(2).unwrap_or_default();
    let all = ["system:serviceaccounts", "system:authenticated"].map(str::to_owned);
    all.into_iter().chain([format!("system:serviceaccounts:{namespace}")]).collect()
}

/// The authorizer's answer in the status of a review. After an error, a denial may be wrong.
pub fn is_allowed(status: &Value) -> Fact<bool> {
    match status["evaluationError"].as_str() {
        Some(error) if status["allowed"] != true && !error.is_empty() => {
            Err(format!("{UNREVIEWED}: {error}"))
        }
        _ => Ok(status["allowed"] == true),
    }
}

/// Whether the manager's ServiceAccount has the permissions. A fact is the answer of the authorizer.
pub fn permissions(
    installation: &Installation,
    answers: &Fact<Vec<(Permission, Fact<bool>)>>,
) -> Vec<Finding> {
    let account = &installation.account;
    let by_manager = installation.in_pod(&format!("deployment/{}", installation.manager.deployment));
    let answers = match answers {
        Ok(answers) => answers,
        Err(why) => return vec![Finding::unknown(why).then(by_manager)],
    };
    // The denied verbs of each resource in each namespace.
    let mut denied: BTreeMap<(&str, String), (Vec<&str>, &str)> = BTreeMap::new();
    for (permission, answer) in answers {
        if *answer == Ok(false) {
            let of_resource = denied.entry((permission.namespace.as_str(), permission.resource_name()));
            of_resource.or_insert_with(|| (Vec::new(), permission.why)).0.push(permission.verb);
        }
    }
    let more = denied.len().saturating_sub(LISTED);
    let mut findings: Vec<Finding> = denied
        .into_iter()
        .take(LISTED)
        .map(|((namespace, resource), (verbs, why))| {
            let place =
                if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") };
            let verbs = verbs.join(", ");
            let sentence = format!("{account} lacks permission to {verbs} {resource}{place}. {why}");
            Finding::problem(sentence, &installation.upgrade)
        })
        .collect();
    if more > 0 {
        let sentence = format!("{account} lacks permissions for {more} more resources.");
        findings.push(Finding::problem(sentence, &installation.upgrade));
    }
    if let Some(why) = answers.iter().find_map(|(_, answer)| answer.as_ref().err()) {
        findings.push(Finding::unknown(why));
    }
    if findings.is_empty() {
        findings.push(Finding::well(format!("{account} has the {} needed permissions.", answers.len())));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::installation::usual;
    use super::*;

    fn has(needed: &[Permission], verb: &str, resource: &str, namespace: &str) -> bool {
        needed.iter().any(|one| {
            (one.verb, one.resource_name().as_str(), one.namespace.as_str()) == (verb, resource, namespace)
        })
    }

    #[test]
    fn needs_the_rules_of_the_enabled_kinds() {
        let mut installation = usual();
        let all = needed(&installation);
        for (verb, resource) in [
            ("create", "events.events.k8s.io"),
            ("create", "pods"),
            ("list", "nodes"),
            ("patch", "daemonjobs.dj.dysproz.io/status"),
            ("list", "books.christianb93.github.com"),
            // The sweeper of a disabled kind.
            ("patch", "greetings.example.com"),
        ] {
            assert!(has(&all, verb, resource, ""), "{verb} {resource}");
        }
        assert!(!has(&all, "list", "podsets.batch.tutorial.kubebuilder.io", ""), "the kind is disabled");
        assert!(!has(&all, "patch", "nodes", ""));
        let lease = all.iter().filter(|one| one.resource == "leases");
        let lease: Vec<_> = lease.map(|one| (one.verb, &*one.name, &*one.namespace)).collect();
        let only = ["get", "update", "watch"].map(|verb| (verb, "quintet-manager", "ns"));
        assert_eq!(lease, [&[("create", "", "ns")][..], &only].concat());

        installation.flags.has_node_marks = true;
        installation.flags.elects = false;
        installation.flags.namespaces = vec!["a".to_owned(), "b".to_owned()];
        let some = needed(&installation);
        assert!(has(&some, "create", "pods", "a") && has(&some, "create", "pods", "b"));
        assert!(!has(&some, "create", "pods", "") && !some.iter().any(|one| one.resource == "leases"));
        assert!(has(&some, "list", "nodes", "") && has(&some, "patch", "nodes", ""), "cluster-scoped");
    }

    #[test]
    fn needs_no_rules_of_features_that_are_off() {
        let mut installation = usual();
        installation.flags.kinds = vec!["pulsarconsumer"];
        let (keda, swept) = ("scaledobjects.keda.sh", "greetings.example.com");
        let all = needed(&installation);
        assert!(has(&all, "create", keda, "") && has(&all, "patch", swept, ""));
        installation.flags.has_keda = false;
        let some = needed(&installation);
        assert!(!has(&some, "create", keda, "") && has(&some, "patch", swept, ""));
        installation.flags.sweeps = false;
        let some = needed(&installation);
        assert!(!has(&some, "patch", swept, ""));
        assert!(
            has(&some, "patch", "pulsarconsumers.pulsar.pulsarconsumer.krvarma.com", ""),
            "it is enabled"
        );
    }

    #[test]
    fn no_permission_is_reviewed_twice() {
        let all = needed(&usual());
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{one:?}");
        }
        assert_eq!(all.iter().filter(|one| one.resource == "pods" && one.verb == "patch").count(), 1);
    }

    #[test]
    fn reviews_another_account_with_its_groups() {
        let permission = Permission {
            namespace: "a".to_owned(),
            group: "apps",
            resource: "deployments/scale",
            verb: "patch",
            name: String::new(),
            why: "",
        };
        let (path, own) = permission.review(None);
        assert!(path.ends_with("/selfsubjectaccessreviews"));
        assert_eq!(own["spec"]["resourceAttributes"]["subresource"], "scale");
        assert_eq!(own["spec"]["user"], Value::Null);
        let (path, other) = permission.review(Some("system:serviceaccount:ns:quintet"));
        assert!(path.ends_with("/subjectaccessreviews"));
        assert_eq!(other["spec"]["user"], "system:serviceaccount:ns:quintet");
        assert!(other["spec"]["groups"].as_array().unwrap().contains(&json!("system:serviceaccounts:ns")));
        assert_eq!(permission.resource_name(), "deployments.apps/scale");
    }

    #[test]
    fn a_denial_with_an_error_is_unknown() {
        assert_eq!(is_allowed(&json!({ "allowed": true, "evaluationError": "no role x" })), Ok(true));
        assert_eq!(is_allowed(&json!({ "allowed": false })), Ok(false));
        let failed = is_allowed(&json!({ "allowed": false, "evaluationError": "no role x" }));
        assert!(failed.unwrap_err().ends_with("ServiceAccount: no role x"));
    }

    #[test]
    fn names_the_denied_verbs() {
        let mut answers: Vec<(Permission, Fact<bool>)> =
            needed(&usual()).into_iter().map(|one| (one, Ok(true))).collect();
        let check = |answers: &[(Permission, Fact<bool>)]| permissions(&usual(), &Ok(answers.to_vec()));
        let findings = check(&answers);
        assert_eq!((findings.len(), findings[0].verdict), (1, Verdict::Well), "{findings:?}");
        for (permission, answer) in &mut answers {
            if permission.resource == "pods" && ["create", "delete"].contains(&permission.verb) {
                *answer = Ok(false);
            }
        }
        let findings = check(&answers);
        assert_eq!(findings.len(), 1, "{findings:?}");
        let text = "system:serviceaccount:ns:quintet lacks permission to create, delete pods. The controller creates";
        assert!(findings[0].sentence.starts_with(text), "{findings:?}");
        answers[0].1 = Err("denied".to_owned());
        let findings = check(&answers);
        assert_eq!(findings.last(), Some(&Finding::unknown("denied")), "the problem stays: {findings:?}");
        assert_eq!(findings.len(), 2);
        let unread = permissions(&usual(), &Err("denied".to_owned()));
        assert_eq!(unread[0].verdict, Verdict::Unknown);
    }

    #[test]
    fn lists_at_most_twenty_resources() {
        let mut installation = usual();
        installation.flags.namespaces = (0..9).map(|at| format!("n{at}")).collect();
        let answers = needed(&installation).into_iter().map(|one| (one, Ok(false))).collect();
        let findings = permissions(&installation, &Ok(answers));
        assert_eq!(findings.len(), LISTED + 1);
        assert!(findings[LISTED].sentence.contains("more resources"), "{findings:?}");
    }
}
