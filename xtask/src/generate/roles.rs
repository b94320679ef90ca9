//! The roles of the manager, of `quintet uninstall` and of users, for kustomize and for the chart.

use std::fmt::Write as _;

use quintet_kinds::KINDS;
use quintet_runtime::LEASE_NAME;
use quintet_runtime::model::rule::{
    LEADER_ELECTION_RULES, MANAGER_RULES, Rule, UNINSTALL_LEASE_RULES, UNINSTALL_MANAGER_RULES,
};
use serde_json::Value;

use super::{Files, Kind, NAME, NAME_LABEL, comment, header, kustomization};

/// The namespace that `config/default` installs into.
const NAMESPACE: &str = "quintet-system";

/// Files of `config/rbac` that are maintained by hand.
const BY_HAND: [&str; 4] = [
    "service_account.yaml",
    "role_binding.yaml",
    "nodes_role_binding.yaml",
    "leader_election_role_binding.yaml",
];

/// The rules that a value of the chart adds to the manager's role.
struct Optional {
    /// The name of the rules.
    name: &'static str,
    controller: &'static str,
    rules: &'static [Rule],
}

const OPTIONAL: [Optional; 2] = [
    Optional {
        name: "pulsarconsumer-secrets",
        controller: quintet_pulsarconsumer::CONTROLLER,
        rules: quintet_pulsarconsumer::SECRET_RULES,
    },
    Optional {
        name: "daemonjob-node-marks",
        controller: quintet_daemonjob::CONTROLLER,
        rules: quintet_daemonjob::NODE_MARK_RULES,
    },
];

impl Optional {
    /// The file for kustomize. The kustomization omits it.
    fn path(&self) -> String {
        format!("config/rbac/{}_role.yaml", self.name.replace('-', "_"))
    }

    fn source(&self) -> String {
        format!("crates/{}", self.controller)
    }
}

/// Adds the roles of `config/rbac` and the rules of the chart.
pub(super) fn insert(kinds: &[Kind], files: &mut Files) {
    insert_people(kinds, files);
    insert_chart_rules(kinds, files);
    insert_manager_roles(kinds, files);
    let is_optional = |path: &&String| OPTIONAL.iter().any(|optional| optional.path() == **path);
    let names =
        files.keys().filter(|path| !is_optional(path)).filter_map(|path| path.strip_prefix("config/rbac/"));
    let roles: Vec<&str> = BY_HAND.into_iter().chain(names).collect();
    let about = "*_editor_role.yaml and *_viewer_role.yaml are for users, not for the manager. They aggregate to the cluster's default roles view, edit and admin.";
    let kustomization = kustomization(about, &roles);
    files.insert("config/rbac/kustomization.yaml".to_owned(), kustomization);
}

fn insert_people(kinds: &[Kind], files: &mut Files) {
    for kind in kinds {
        let controller = kind.row.controller;
        for people in [&EDITOR, &VIEWER] {
            let role = people.role;
            files.insert(format!("config/rbac/{controller}_{role}_role.yaml"), people_role(kind, people));
            files.insert(
                format!("charts/quintet/files/rbac/{controller}-{role}.yaml"),
                header(&format!("crates/{controller}/src/api.rs")) + &people_rules(kind, people, 0),
            );
        }
    }
}

/// The rules of all kinds for cluster-scoped resources.
fn node_rules() -> Vec<Rule> {
    KINDS.iter().flat_map(|kind| kind.rules).filter(|rule| rule.is_cluster_scoped()).copied().collect()
}

/// The rules of a kind for namespaced resources.
fn namespaced_rules(kind: &quintet_kinds::Kind) -> Vec<Rule> {
    kind.rules.iter().filter(|rule| !rule.is_cluster_scoped()).copied().collect()
}

fn insert_chart_rules(kinds: &[Kind], files: &mut Files) {
    let source = "crates/runtime/src/model/rule.rs";
    let uninstall: Vec<Rule> = KINDS.iter().flat_map(|kind| kind.uninstall_rules).copied().collect();
    let mut lists = vec![
        ("manager", source.to_owned(), MANAGER_RULES.to_vec()),
        ("leader-election", source.to_owned(), LEADER_ELECTION_RULES.to_vec()),
        ("uninstall", "every kind".to_owned(), uninstall),
        ("uninstall-manager", source.to_owned(), UNINSTALL_MANAGER_RULES.to_vec()),
        ("uninstall-lease", source.to_owned(), UNINSTALL_LEASE_RULES.to_vec()),
        ("nodes", "every kind".to_owned(), node_rules()),
    ];
    lists.extend(OPTIONAL.iter().map(|optional| (optional.name, optional.source(), optional.rules.to_vec())));
    lists.extend(kinds.iter().map(|kind| {
        let controller = kind.row.controller;
        (controller, format!("crates/{controller}"), namespaced_rules(kind.row))
    }));
    let mut insert = |name: &str, source: &str, rules: &[Rule]| {
        let text = header(source) + &rule_list(rules, 0);
        files.insert(format!("charts/quintet/files/rbac/{name}.yaml"), text);
    };
    for (name, source, rules) in lists {
        insert(name, &source, &rules);
    }
    for row in kinds.iter().map(|kind| kind.row).filter(|row| !row.sweep_rules.is_empty()) {
        insert(&format!("{}-sweep", row.controller), &format!("crates/{}", row.controller), row.sweep_rules);
    }
}

fn insert_manager_roles(kinds: &[Kind], files: &mut Files) {
    let mut role =
        role_without_rules("the rules of crates/runtime and of every kind", "", "ClusterRole", NAME, None);
    let of_kinds = kinds.iter().map(|kind| (kind.row.controller, namespaced_rules(kind.row)));
    for (whose, rules) in [("the manager itself", MANAGER_RULES.to_vec())].into_iter().chain(of_kinds) {
        role.push_str(&comment(&format!("For {whose}."), 2));
        role.push_str(&rule_list(&rules, 2));
    }
    files.insert("config/rbac/role.yaml".to_owned(), role);

    let nodes = format!("{NAME}-nodes");
    let nodes = role_without_rules("the rules of every kind", "", "ClusterRole", &nodes, None)
        + &rule_list(&node_rules(), 2);
    files.insert("config/rbac/nodes_role.yaml".to_owned(), nodes);

    for optional in &OPTIONAL {
        let name = format!("{NAME}-{}", optional.name);
        let about = format!("Bind this role only if you need it: see docs/{}.md.", optional.controller);
        let role = role_without_rules(&optional.source(), &about, "ClusterRole", &name, None);
        files.insert(optional.path(), role + &rule_list(optional.rules, 2));
    }

    let name = format!("{NAME}-leader-election");
    let mut election =
        role_without_rules("crates/runtime/src/model/rule.rs", "", "Role", &name, Some(NAMESPACE));
    for each in LEADER_ELECTION_RULES {
        election.push_str(&rule_list(&[*each], 2));
        // A rule for `create` cannot name the object.
        if !each.verbs.contains(&"create") {
            let _ = writeln!(election, "    resourceNames: [{LEASE_NAME}]");
        }
    }
    files.insert("config/rbac/leader_election_role.yaml".to_owned(), election);
}

/// A role from `source`, up to its rules.
fn role_without_rules(source: &str, about: &str, kind: &str, name: &str, namespace: Option<&str>) -> String {
    let about = if about.is_empty() { String::new() } else { comment(about, 0) };
    header(source) + &about + &role_head(kind, name, namespace) + "rules:\n"
}

/// A role for users: verbs on the objects and on their scale subresource.
struct People {
    role: &'static str,
    purpose: &'static str,
    /// The cluster's default roles that it aggregates to.
    aggregate: &'static [&'static str],
    objects: &'static [&'static str],
    scale: &'static [&'static str],
}

const EDITOR: People = People {
    role: "editor",
    purpose: "create, change and delete",
    aggregate: &["admin", "edit"],
    objects: &["create", "delete", "get", "list", "patch", "update", "watch"],
    scale: &["get", "patch", "update"],
};

const VIEWER: People = People {
    role: "viewer",
    purpose: "read",
    aggregate: &["admin", "edit", "view"],
    objects: &["get", "list", "watch"],
    scale: &["get"],
};

/// A ClusterRole for users. The manager does not use it.
fn people_role(kind: &Kind, people: &People) -> String {
    let plural = &kind.crd.spec.names.plural;
    let mut text = header(&format!("crates/{}/src/api.rs", kind.row.controller));
    text.push_str(&comment(&format!("For users who {} {plural}.", people.purpose), 0));
    text.push_str(&role_head(
        "ClusterRole",
        &format!("{NAME}-{}-{}", kind.row.controller, people.role),
        None,
    ));
    for role in people.aggregate {
        let _ = writeln!(text, "    rbac.authorization.k8s.io/aggregate-to-{role}: \"true\"");
    }
    text.push_str("rules:\n");
    text + &people_rules(kind, people, 2)
}

fn people_rules(kind: &Kind, people: &People, indent: usize) -> String {
    let spec = &kind.crd.spec;
    let plural = &spec.names.plural;
    let mut text = rule(&spec.group, &[plural], people.objects, indent);
    let subresources = || spec.versions.iter().filter_map(|version| version.subresources.as_ref());
    if subresources().any(|sub| sub.status.is_some()) {
        text.push_str(&rule(&spec.group, &[&format!("{plural}/status")], &["get"], indent));
    }
    if subresources().any(|sub| sub.scale.is_some()) {
        text.push_str(&rule(&spec.group, &[&format!("{plural}/scale")], people.scale, indent));
    }
    let revisions = ["controllerrevisions"];
    if kind.row.rules.iter().any(|rule| rule.resources == revisions) {
        // For `quintet rollout`.
        text.push_str(&rule("apps", &revisions, VIEWER.objects, indent));
    }
    text
}

/// The metadata of a role.
fn role_head(kind: &str, name: &str, namespace: Option<&str>) -> String {
    let namespace = namespace.map(|namespace| format!("  namespace: {namespace}\n")).unwrap_or_default();
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name}\n{namespace}  labels:\n    \
         {NAME_LABEL}: {NAME}\n"
    )
}

/// The rules as a YAML list, with the reason above each rule.
fn rule_list(rules: &[Rule], indent: usize) -> String {
    if rules.is_empty() {
        return comment("No rules.", indent);
    }
    rules
        .iter()
        .map(|each| comment(each.why, indent) + &rule(each.group, each.resources, each.verbs, indent))
        .collect()
}

fn rule(group: &str, resources: &[&str], verbs: &[&str], indent: usize) -> String {
    let pad = " ".repeat(indent);
    format!(
        "{pad}- apiGroups: [{}]\n{pad}  resources: [{}]\n{pad}  verbs: [{}]\n",
        scalar(group),
        list(resources),
        list(verbs)
    )
}

/// The items of a YAML flow list.
pub(super) fn list(items: &[&str]) -> String {
    items.iter().map(|item| scalar(item)).collect::<Vec<_>>().join(", ")
}

/// A string for a YAML flow list: plain if it is unambiguous, else quoted.
pub(super) fn scalar(text: &str) -> String {
    let plain = text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "./-".contains(c));
    if plain { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;

    use quintet_localcluster::paths;

    use super::super::{files, kinds};
    use super::*;

    fn yaml(text: &str) -> Value {
        serde_saphyr::from_str(text).unwrap()
    }

    /// The allowed verbs, by the account and the resource.
    type Permissions = BTreeMap<(String, String), BTreeSet<String>>;

    /// Adds a rule. Names a resource as `kubectl auth can-i --list` does, such as `deployments.apps/scale`.
    fn allow(found: &mut Permissions, account: &str, group: &str, resources: &[&str], verbs: &[&str]) {
        for &resource in resources {
            let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            let mut name = plural.to_owned();
            for (separator, part) in [('.', group), ('/', subresource)] {
                if !part.is_empty() {
                    name.push(separator);
                    name.push_str(part);
                }
            }
            let verbs = verbs.iter().map(|verb| (*verb).to_owned());
            found.entry((account.to_owned(), name)).or_default().extend(verbs);
        }
    }

    /// The permissions in the code, by the accounts and conditions of the document.
    fn in_code() -> Permissions {
        let mut found = Permissions::new();
        let mut add = |account: &str, rules: &[Rule]| {
            for rule in rules {
                allow(&mut found, account, rule.group, rule.resources, rule.verbs);
            }
        };
        add("manager", MANAGER_RULES);
        add("manager, for its Lease", LEADER_ELECTION_RULES);
        add("uninstall Job, in the manager's namespace", UNINSTALL_MANAGER_RULES);
        add("uninstall Job, for the Lease", UNINSTALL_LEASE_RULES);
        for kind in kinds() {
            let name = &kind.crd.spec.names.kind;
            let (of_keda, others): (Vec<Rule>, Vec<Rule>) =
                kind.row.rules.iter().copied().partition(|rule| rule.group == "keda.sh");
            add(name, &others);
            add(&format!("{name}, with `pulsarConsumer.autoscaling`"), &of_keda);
            add(&format!("{name}, if off, with `rbac.sweep`"), kind.row.sweep_rules);
            add("uninstall Job", kind.row.uninstall_rules);
        }
        for optional in &OPTIONAL {
            let account = match optional.name {
                "pulsarconsumer-secrets" => "PulsarConsumer, with `pulsarConsumer.readSecrets`",
                "daemonjob-node-marks" => "DaemonJob, with `daemonJob.nodeMarks`",
                other => other,
            };
            add(account, optional.rules);
        }
        found
    }

    /// Adds the rules that a template of the chart contains itself, as `apiGroups: [a]` or as `"apiGroups" (list "a")`.
    fn add_rules_of_template(found: &mut Permissions, account: &str, template: &str) {
        let file = paths::workspace().join("charts/quintet/templates").join(template);
        let text = fs::read_to_string(file).unwrap();
        for part in text.split("apiGroups") {
            if !(part.starts_with(": [") || part.starts_with("\" (list ")) {
                continue;
            }
            let words = |key: &str| {
                let list = part.split_once(key).unwrap().1.split(['[', '(']).nth(1).unwrap();
                let list = list.split([']', ')']).next().unwrap().trim_start_matches("list ");
                list.split(", ").map(|word| word.trim_matches('"')).collect::<Vec<_>>()
            };
            for group in words("") {
                allow(found, account, group, &words("resources"), &words("verbs"));
            }
        }
    }

    /// The permissions in the table of a document, in cells such as `pods`: get, list; `nodes`: get.
    fn in_table(document: &str) -> Permissions {
        let sections: Vec<_> = document.split("\n## ").collect();
        let section = sections.iter().find(|section| section.starts_with("Permissions\n")).unwrap();
        let mut found = Permissions::new();
        for row in section.lines().filter(|line| line.starts_with('|')).skip(2) {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            for part in cells[2].split("; ") {
                let (resources, verbs) = part.split_once(": ").unwrap();
                for resource in resources.split(", ") {
                    let key = (cells[1].to_owned(), resource.trim_matches('`').to_owned());
                    found.entry(key).or_default().extend(verbs.split(", ").map(str::to_owned));
                }
            }
        }
        found
    }

    #[test]
    fn security_md_lists_every_permission() {
        let mut granted = in_code();
        add_rules_of_template(&mut granted, "manager, with `metrics.secure`", "rbac.yaml");
        add_rules_of_template(&mut granted, "`helm test`", "tests/rbac.yaml");
        let listed = in_table(&fs::read_to_string(paths::workspace().join("docs/security.md")).unwrap());
        let only_in = |one: &Permissions, other: &Permissions| -> Vec<String> {
            let different = one.iter().filter(|(key, verbs)| other.get(*key) != Some(*verbs));
            different.map(|((account, resource), verbs)| format!("{account}: {resource} {verbs:?}")).collect()
        };
        assert_eq!(only_in(&granted, &listed), [""; 0], "the table lacks these permissions");
        assert_eq!(only_in(&listed, &granted), [""; 0], "no account has these permissions");
    }

    #[test]
    fn names_resources_as_kubectl_does() {
        let mut found = Permissions::new();
        allow(&mut found, "a", "apps", &["deployments", "deployments/scale"], &["get"]);
        allow(&mut found, "a", "", &["pods/status"], &["get"]);
        let names: Vec<_> = found.into_keys().map(|(_, name)| name).collect();
        assert_eq!(names, ["deployments.apps", "deployments.apps/scale", "pods/status"]);
    }

    #[test]
    fn rules_survive_a_round_trip_through_yaml() {
        let rules = [
            Rule {
                group: "",
                resources: &["pods", "pods/status"],
                verbs: &["get"],
                why: "One: \"two\" # three",
            },
            Rule { group: "apps", resources: &["*"], verbs: &["list", "watch"], why: "" },
        ];
        let expected = serde_json::json!([
            { "apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get"] },
            { "apiGroups": ["apps"], "resources": ["*"], "verbs": ["list", "watch"] },
        ]);
        assert_eq!(yaml(&rule_list(&rules, 0)), expected);
        assert_eq!(yaml(&format!("rules:\n{}", rule_list(&rules, 2)))["rules"], expected);
    }

    #[test]
    fn the_managers_role_has_the_rules_of_every_kind() {
        let files = files(&kinds()).unwrap();
        let count = MANAGER_RULES.len() + kinds().iter().map(|kind| kind.row.rules.len()).sum::<usize>();
        let rules = |path: &str| yaml(&files[path])["rules"].as_array().unwrap().len();
        let nodes = rules("config/rbac/nodes_role.yaml");
        assert_eq!((rules("config/rbac/role.yaml") + nodes, nodes), (count, 1));
        for kind in kinds() {
            assert!(files.contains_key(&format!("charts/quintet/files/rbac/{}.yaml", kind.row.controller)));
        }
    }
}
