//! Compares a DaemonJob's choice of simulated nodes with the decisions of the real kube-scheduler.

use std::collections::BTreeMap;

use quintet_daemonjob::eligibility::{Eligibility, Placement, pinned};
use quintet_e2e::{TestEnv, condition};
use quintet_localcluster::run;
use serde_json::{Map, Value, json};

use crate::daemonjob::daemonjob;

/// Name suffix, labels and spec of each node, and its conditions that are True.
fn nodes() -> Vec<(&'static str, Value, Value, &'static [&'static str])> {
    let taints = |taints: Value| json!({ "taints": taints });
    let (bare, free) = (|| json!({}), || json!({}));
    vec![
        ("plain", bare(), free(), &[]),
        ("zone-a", json!({ "zone": "a", "cores": "4" }), free(), &[]),
        ("zone-b", json!({ "zone": "b", "cores": "16" }), free(), &[]),
        ("padded", json!({ "zone": "a", "cores": "008" }), free(), &[]),
        ("wordy", json!({ "zone": "", "cores": "many" }), free(), &[]),
        ("soft", bare(), taints(json!([{ "key": "k", "value": "v", "effect": "PreferNoSchedule" }])), &[]),
        ("tainted", bare(), taints(json!([{ "key": "k", "value": "v", "effect": "NoSchedule" }])), &[]),
        (
            "evicting",
            json!({ "zone": "a" }),
            taints(json!([{ "key": "k", "value": "v", "effect": "NoExecute" }])),
            &[],
        ),
        ("valued", bare(), taints(json!([{ "key": "k", "value": "w", "effect": "NoSchedule" }])), &[]),
        (
            "doubly",
            json!({ "zone": "b" }),
            taints(json!([{ "key": "k", "effect": "NoSchedule" }, { "key": "l", "effect": "NoExecute" }])),
            &[],
        ),
        ("cordoned", json!({ "zone": "a", "cores": "9" }), json!({ "unschedulable": true }), &[]),
        ("pressed", bare(), free(), &["MemoryPressure", "DiskPressure", "PIDPressure"]),
        ("offline", bare(), free(), &["NetworkUnavailable"]),
    ]
}

/// The parts of pod templates that choose nodes. `name` returns the full name of a node.
fn templates(name: impl Fn(&str) -> String) -> Vec<Value> {
    let required = |terms: Value| {
        json!({ "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } } })
    };
    let label = |key: &str, operator: &str, values: &[&str]| json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] });
    let named = |operator: &str, node: &str| json!({ "matchFields": [{ "key": "metadata.name", "operator": operator, "values": [name(node)] }] });
    let tolerating = |tolerations: Value| json!({ "tolerations": tolerations });
    vec![
        json!({}),
        json!({ "nodeSelector": { "zone": "a" } }),
        json!({ "nodeSelector": { "zone": "" } }),
        required(json!([label("zone", "In", &["a", "b"])])),
        required(json!([label("zone", "NotIn", &["a"])])),
        required(json!([label("zone", "Exists", &[])])),
        required(json!([label("zone", "DoesNotExist", &[])])),
        required(json!([label("cores", "Gt", &["7"])])),
        required(json!([label("cores", "Lt", &["9"])])),
        required(json!([label("cores", "Gt", &["few"])])),
        required(json!([named("In", "zone-a")])),
        required(json!([named("NotIn", "zone-a")])),
        required(json!([{}])),
        required(json!([{}, label("zone", "In", &["b"])])),
        required(json!([
            named("In", "plain"),
            label("cores", "Gt", &["few"]),
            label("cores", "Gt", &["15"])
        ])),
        required(json!([{
            "matchExpressions": [
                { "key": "zone", "operator": "Exists" }, { "key": "zone", "operator": "DoesNotExist" },
            ],
        }])),
        tolerating(json!([{ "key": "k", "operator": "Exists" }])),
        tolerating(json!([{ "key": "k", "value": "v", "effect": "NoSchedule" }])),
        tolerating(json!([{ "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3600 }])),
        tolerating(json!([{ "operator": "Exists" }])),
        json!({ "hostNetwork": true }),
    ]
}

fn bare_pod(name: &str, spec: &Map<String, Value>, node: &str) -> Value {
    let mut spec = pinned(spec, node);
    spec["containers"] = json!([{ "name": "c", "image": "i" }]);
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
}

fn named(objects: Vec<Value>) -> BTreeMap<String, Value> {
    objects
        .into_iter()
        .map(|object| (object["metadata"]["name"].as_str().unwrap().to_owned(), object))
        .collect()
}

/// Creates the nodes and waits for the taints that the node controllers add.
fn settled_nodes(env: &TestEnv) -> BTreeMap<String, Value> {
    let mut items = Vec::new();
    let mut taints = 0;
    for (name, labels, spec, conditions) in nodes() {
        let mut node = json!({ "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": format!("{}-{name}", env.namespace()), "labels": labels }, "spec": spec });
        node["metadata"]["labels"]["env"] = json!(env.namespace());
        taints += spec["taints"].as_array().map_or(0, Vec::len) + conditions.len();
        taints += usize::from(spec["unschedulable"] == true);
        items.push(node);
    }
    let count = items.len();
    env.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items })).unwrap();
    let selector = format!("env={}", env.namespace());
    let current = || named(env.list("nodes", &selector));
    env.wait("the Nodes are Ready", || {
        current().values().filter(|node| condition(node, "Ready").0 == "True").count() == count
    });
    for (name, _, _, expected) in nodes() {
        let name = format!("{}-{name}", env.namespace());
        let mut conditions = current()[&name]["status"]["conditions"].clone();
        for one in conditions.as_array_mut().unwrap() {
            if expected.contains(&one["type"].as_str().unwrap()) {
                one["status"] = json!("True");
            }
        }
        if !expected.is_empty() {
            env.patch("node/status", &name, &json!({ "status": { "conditions": conditions } }));
        }
    }
    env.wait("the node controllers have added the taints", || {
        let found = current();
        let found = found.values().flat_map(|node| node["spec"]["taints"].as_array().into_iter().flatten());
        // A new node has a not-ready taint for a moment.
        found.clone().count() == taints
            && found.into_iter().all(|taint| taint["key"] != "node.kubernetes.io/not-ready")
    });
    current()
}

#[test]
fn agrees_with_the_scheduler_on_every_node() {
    let env = TestEnv::new("dj-placement");
    let nodes = settled_nodes(&env);
    let templates = templates(|name| format!("{}-{name}", env.namespace()));

    let mut verdicts = BTreeMap::new();
    let mut pods = Vec::new();
    for (number, template) in templates.iter().enumerate() {
        let template = template.as_object().unwrap();
        let placement = Placement::of(template);
        for (node, object) in &nodes {
            let name =
                format!("t{number}-{}", node.strip_prefix(env.namespace()).unwrap().trim_start_matches('-'));
            pods.push(bare_pod(&name, template, node));
            verdicts.insert(
                name,
                (node, placement.eligibility(&serde_json::from_value(object.clone()).unwrap())),
            );
        }
    }
    let all = |kind: fn(&Eligibility) -> bool| {
        verdicts.values().filter(|(_, eligibility)| kind(eligibility)).count()
    };
    let counts = [
        all(|eligibility| *eligibility == Eligibility::Run),
        all(|eligibility| *eligibility == Eligibility::NotSelected),
        all(|eligibility| matches!(eligibility, Eligibility::Continue(_))),
        all(|eligibility| matches!(eligibility, Eligibility::Refuse(_))),
    ];
    assert!(counts.iter().all(|count| *count >= 10), "each eligibility occurs: {counts:?}");

    env.wait("the namespace has its ServiceAccount", || env.get("serviceaccount", "default").is_some());
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": pods }).to_string();
    let mut create = env.kube().kubectl();
    create.args(["-n", env.namespace(), "create", "-f", "-"]);
    run::stdout_with_input(&mut create, Some(&list)).unwrap();

    // The scheduler may decide before its cache shows the whole node, but it never unbinds a pod.
    let mut differences = vec![String::new()];
    let agreed =
        run::poll("the scheduler agrees", quintet_e2e::PATIENCE, std::time::Duration::from_secs(1), || {
            let pods = named(env.list("pods", ""));
            assert_eq!(pods.len(), verdicts.len());
            differences.clear();
            for (name, (node, eligibility)) in &verdicts {
                let pod = &pods[name];
                let bound = pod["spec"]["nodeName"].as_str();
                let (status, reason) = condition(pod, "PodScheduled");
                let refused = (status, reason) == ("False".to_owned(), "Unschedulable".to_owned());
                let words = if refused { pod["status"]["conditions"].to_string() } else { String::new() };
                let is_right = match eligibility {
                    Eligibility::Run => bound == Some(node.as_str()),
                    Eligibility::NotSelected => refused,
                    Eligibility::Continue(_) | Eligibility::Refuse(_) => refused && words.contains("taint"),
                };
                if !is_right {
                    differences
                        .push(format!("{name}: {eligibility:?}, but the scheduler: {bound:?} {words}"));
                }
                assert!(
                    bound.is_none() || *eligibility == Eligibility::Run,
                    "{name}: {eligibility:?}, but it is bound"
                );
            }
            Ok(differences.is_empty().then_some(()))
        });
    assert!(agreed.is_ok(), "{}", differences.join("\n"));
}

/// The status reports a selector or affinity that the API server rejects, whichever nodes it matches.
#[test]
fn reports_a_rejected_selector_as_an_invalid_template() {
    let env = TestEnv::new("dj-refused-terms");
    env.node("a");
    let _manager = env.manager("daemonjob");
    let requirement = |part: &str, key: &str, operator: &str, values: Value| {
        let mut term = json!({});
        term[part] = json!([{ "key": key, "operator": operator, "values": values }]);
        json!({ "nodeSelectorTerms": [term] })
    };
    let label = |operator: &str, values: Value| requirement("matchExpressions", "zone", operator, values);
    let field = |operator: &str, values: Value| requirement("matchFields", "metadata.name", operator, values);
    let required = [
        label("Near", json!(["a"])),
        label("in", json!(["a"])),
        label("In", json!([])),
        label("NotIn", json!([])),
        label("Exists", json!(["a"])),
        label("DoesNotExist", json!(["a"])),
        label("Gt", json!([])),
        label("Gt", json!(["1", "2"])),
        label("Lt", json!(["-1"])),
        label("In", json!(["-a-"])),
        requirement("matchExpressions", "the/zone/", "Exists", json!([])),
        requirement("matchExpressions", "Example.com/zone", "Exists", json!([])),
        field("Exists", json!([])),
        field("In", json!(["m", "o"])),
        field("In", json!([])),
        field("In", json!(["M"])),
        requirement("matchFields", "spec.unschedulable", "In", json!(["true"])),
        json!({ "nodeSelectorTerms": [] }),
    ];
    let mut specs: Vec<Value> = required
        .into_iter()
        .map(|required| {
            json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } } })
        })
        .collect();
    specs.extend([
        json!({ "nodeSelector": { "the zone": "a" } }),
        json!({ "nodeSelector": { "zone": "a b" } }),
    ]);

    let name = |number: usize| format!("refused-{number}");
    let jobs = specs.iter().enumerate().map(|(number, spec)| {
        let mut job = daemonjob(&env, &name(number), &json!({}));
        job["spec"]["template"]["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        job
    });
    let jobs: Vec<Value> = jobs.collect();
    env.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": jobs })).unwrap();
    for (number, spec) in specs.iter().enumerate() {
        let job = env.wait_for("daemonjob", &name(number), "the status reports the rejection", |job| {
            condition(job, "PodsRefused").0 == "True"
        });
        assert_eq!(condition(&job, "PodsRefused").1, "TemplateInvalid", "{spec}");
        assert_eq!(condition(&job, "Complete"), ("False".into(), "TemplateInvalid".into()), "{spec}");
    }
    assert!(env.created_pods().is_empty());
}

#[test]
fn keeps_preferences_and_pod_affinity_in_the_pod() {
    let env = TestEnv::new("dj-affinity");
    env.node("a");
    let _manager = env.manager("daemonjob");
    let mut job = daemonjob(&env, "choosy", &json!({}));
    let affinity = json!({
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                { "weight": 7, "preference": {
                    "matchExpressions": [{ "key": "disk", "operator": "In", "values": ["ssd"] }] } },
            ],
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
                { "matchExpressions": [{ "key": "env", "operator": "Exists" }] },
                { "matchFields": [{ "key": "metadata.name", "operator": "NotIn", "values": ["another"] }] },
            ] },
        },
        "podAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 3, "podAffinityTerm": {
                "labelSelector": { "matchLabels": { "app": "cache" } }, "topologyKey": "kubernetes.io/hostname" } },
        ] },
        "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
            { "labelSelector": { "matchExpressions": [{ "key": "app", "operator": "In", "values": ["loner"] }] },
              "topologyKey": "kubernetes.io/hostname" },
        ] },
    });
    job["spec"]["template"]["spec"]["affinity"] = affinity.clone();
    env.apply(&job).unwrap();
    env.kubectl(&["wait", "--for=condition=Complete", "daemonjob/choosy", "--timeout=90s"]).unwrap();
    let pods = env.list("pods", "daemonjob=choosy");
    assert_eq!(pods.len(), 1);
    let pin = json!({ "key": "metadata.name", "operator": "In", "values": [pods[0]["spec"]["nodeName"]] });
    let mut expected = affinity;
    let terms =
        &mut expected["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    terms[0]["matchFields"] = json!([pin]);
    terms[1]["matchFields"].as_array_mut().unwrap().push(pin);
    assert_eq!(pods[0]["spec"]["affinity"], expected);
}
