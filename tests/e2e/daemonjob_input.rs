//! Errors in a DaemonJob's spec: rejected at `kubectl apply` with one message, or reported by a condition.

use quintet_e2e::{TestEnv, condition};
use serde_json::{Value, json};

use crate::daemonjob::{daemonjob, is_complete, pods_by_node};
use crate::daemonjob_ledger::{end, held, running};

/// Invalid specs and the expected message of each.
fn mistakes() -> Vec<(Value, &'static str)> {
    let template = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let with = |field: &str, value: Value| json!({ "template": template, field: value });
    let never = json!({ "spec": {
        "restartPolicy": "Never",
        "containers": [{ "name": "c", "image": "i" }], "initContainers": [{ "name": "first", "image": "i" }],
    } });
    let policy = |rule: Value| json!({ "template": never, "podFailurePolicy": { "rules": [rule] } });
    let max_failed = |max: Value| with("failurePolicy", json!({ "type": "Pause", "maxFailedNodes": max }));

    let containers = "template.spec.containers must list at least one container";
    let parallelism = "parallelism must be a whole number from 1 to 1,000,000 or a percentage from 1% to 100%; set paused to create no pods";
    let max = "maxFailedNodes must be a whole number or a percentage from 0% to 100%";
    let needs_never = "podFailurePolicy needs template.spec.restartPolicy Never";
    let one_of = "a rule of podFailurePolicy needs one of onExitCodes and onPodConditions, and not both";
    let condition = json!([{ "type": "DisruptionTarget" }]);
    vec![
        (json!({}), "spec.template: Required value"),
        (json!({ "template": {} }), containers),
        (json!({ "template": { "spec": {} } }), "spec.template.spec.containers: Required value"),
        (json!({ "template": { "spec": { "containers": [] } } }), containers),
        (with("parallelism", json!(-1)), parallelism),
        (with("parallelism", json!(0)), parallelism),
        (with("parallelism", json!("0%")), parallelism),
        (with("parallelism", json!("101%")), parallelism),
        (with("parallelism", json!("abc")), parallelism),
        (with("parallelism", json!("5")), parallelism),
        (max_failed(json!(-1)), max),
        (max_failed(json!("101%")), max),
        (max_failed(json!("few")), max),
        (
            with("failurePolicy", json!({ "type": "Stop" })),
            r#"supported values: "Continue", "FailFast", "Pause""#,
        ),
        (with("podFailurePolicy", json!({ "rules": [] })), needs_never),
        (policy(json!({ "action": "Ignore" })), one_of),
        (policy(json!({ "action": "Ignore", "onPodConditions": [] })), one_of),
        (
            policy(json!({ "action": "Ignore", "onPodConditions": condition,
                "onExitCodes": { "operator": "In", "values": [1] } })),
            one_of,
        ),
        (
            policy(json!({ "action": "Count", "onExitCodes": { "operator": "In", "values": [1, 0] } })),
            "onExitCodes with operator In cannot list 0",
        ),
        (
            policy(json!({ "action": "Count",
                "onExitCodes": { "containerName": "second", "operator": "In", "values": [1] } })),
            "onExitCodes.containerName must be the name of a container or init container of the template",
        ),
        (
            policy(json!({ "action": "Explode", "onPodConditions": condition })),
            r#"supported values: "FailJob", "FailIndex", "Ignore", "Count""#,
        ),
        (
            with("pendingDeadlineSeconds", json!(0)),
            "pendingDeadlineSeconds in body should be greater than or equal to 1",
        ),
        (
            with("activeDeadlineSeconds", json!(0)),
            "activeDeadlineSeconds in body should be greater than or equal to 1",
        ),
        (with("backoffLimit", json!(-1)), "backoffLimit in body should be greater than or equal to 0"),
        (with("lateNodes", json!("Skip")), r#"supported values: "Run", "Ignore""#),
        (with("rerunOn", json!(["Monday"])), r#"supported values: "TemplateChange", "NodeReboot""#),
        (with("rerunOn", json!(["NodeReboot", "NodeReboot"])), r#"Duplicate value: "NodeReboot""#),
    ]
}

/// The same for the rules of a rollout.
fn rollout_mistakes() -> Vec<(Value, &'static str)> {
    let template = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let with = |field: &str, value: Value| json!({ "template": template, field: value });
    let waves = |sizes: Value| {
        let policy = json!({ "type": "Pause" });
        json!({ "template": template, "failurePolicy": policy, "rollout": { "waveSizes": sizes } })
    };
    let size = "each of waveSizes must be a whole number from 1 to 1,000,000 or a percentage from 1% to 100%";
    let growing = "the numbers in waveSizes must grow";
    let needs_policy = "rollout.waveSizes needs failurePolicy.type Pause or FailFast";
    let first_wave = json!({ "approval": "FirstWave" });
    vec![
        (waves(json!([])), "waveSizes in body should have at least 1 items"),
        (waves(json!([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])), "must have at most 10 items"),
        (waves(json!([0])), size),
        (waves(json!([1, "0%"])), size),
        (waves(json!(["05%"])), size),
        (waves(json!(["101%"])), size),
        (waves(json!(["5"])), size),
        (waves(json!(["%"])), size),
        (waves(json!(["half"])), size),
        (waves(json!([5, 5])), growing),
        (waves(json!([10, "50%", 5])), growing),
        (with("rollout", json!({ "waveSizes": [1] })), needs_policy),
        (
            json!({ "template": template, "failurePolicy": { "maxFailedNodes": 1 },
                "rollout": { "waveSizes": [1] } }),
            needs_policy,
        ),
        (with("rollout", first_wave), "approval FirstWave or EveryWave needs waveSizes"),
        (
            with("rollout", json!({ "approval": "Always" })),
            r#"supported values: "None", "FirstWave", "EveryWave""#,
        ),
        (
            with("rollout", json!({ "settleSeconds": -1 })),
            "settleSeconds in body should be greater than or equal to 0",
        ),
    ]
}

/// The same for the changes to a Node.
fn on_success_mistakes() -> Vec<(Value, &'static str)> {
    let template = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let with = |on_success: Value| json!({ "template": template, "onSuccess": on_success });
    let label = |key: &str, value: &str| with(json!({ "labels": { key: value } }));
    let taint = |key: &str, effect: &str| with(json!({ "removeTaints": [{ "key": key, "effect": effect }] }));
    let label_key = "each key of onSuccess.labels must be the key of a label with a domain";
    let label_value = "each value of onSuccess.labels must be the value of a label";
    let label_domain = "onSuccess.labels cannot set labels of kubernetes.io or k8s.io: use another domain";
    let taint_key = "each key of onSuccess.removeTaints must be the key of a taint with a domain";
    let taint_domain =
        "onSuccess.removeTaints cannot remove taints of kubernetes.io or k8s.io: use another domain";
    let many_labels: serde_json::Map<_, _> =
        (0..9).map(|at| (format!("example.com/{at}"), json!(""))).collect();
    let many_taints: Vec<Value> =
        (0..9).map(|at| json!({ "key": format!("example.com/{at}"), "effect": "NoSchedule" })).collect();
    vec![
        (label("", "yes"), label_key),
        (label("ready", "yes"), label_key),
        (label("example.com/", "yes"), label_key),
        (label("example.com/a/b", "yes"), label_key),
        (label("Example.com/ready", "yes"), label_key),
        (label("example.com/ready", "a b"), label_value),
        (label("example.com/ready", "-"), label_value),
        (label("example.com/ready", &"a".repeat(64)), "Too long"),
        (label("kubernetes.io/hostname", "x"), label_domain),
        (label("node-role.kubernetes.io/worker", ""), label_domain),
        (label("x.k8s.io/ready", "yes"), label_domain),
        (with(json!({ "labels": many_labels })), "must have at most 8 items"),
        (taint("", "NoSchedule"), taint_key),
        (taint("unprepared", "NoSchedule"), taint_key),
        (taint("node.kubernetes.io/not-ready", "NoExecute"), taint_domain),
        (taint("k8s.io/x", "NoSchedule"), taint_domain),
        (
            taint("example.com/x", "Never"),
            r#"supported values: "NoSchedule", "PreferNoSchedule", "NoExecute""#,
        ),
        (
            with(json!({ "removeTaints": [{ "key": "example.com/x" }] })),
            "spec.onSuccess.removeTaints[0].effect: Required value",
        ),
        (with(json!({ "removeTaints": many_taints })), "must have at most 8 items"),
    ]
}

/// The same for a schedule.
fn schedule_mistakes() -> Vec<(Value, &'static str)> {
    let template = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let with = |field: &str, value: Value| json!({ "template": template, field: value });
    let nightly = |field: &str, value: Value| {
        let mut spec = with(field, value);
        spec["schedule"] = json!("0 3 * * *");
        spec
    };
    let needs_schedule = "timeZone and startingDeadlineSeconds need schedule";
    vec![
        (with("schedule", json!("")), "schedule in body should be at least 1 chars long"),
        (with("schedule", json!("0 ".repeat(200))), "Too long: may not be more than 256"),
        (with("timeZone", json!("Europe/Berlin")), needs_schedule),
        (with("startingDeadlineSeconds", json!(60)), needs_schedule),
        (
            nightly("startingDeadlineSeconds", json!(0)),
            "startingDeadlineSeconds in body should be greater than or equal to 1",
        ),
        (nightly("rerunOn", json!(["NodeReboot"])), "schedule and rerunOn exclude each other"),
        (nightly("rerunOn", json!([])), "schedule and rerunOn exclude each other"),
        (
            json!({ "template": template, "schedule": "0 3 * * *", "failurePolicy": { "type": "Pause" },
                "rollout": { "waveSizes": [1], "approval": "FirstWave" } }),
            "schedule and rollout.approval exclude each other",
        ),
    ]
}

fn apply(env: &TestEnv, name: &str, spec: &Value) -> Result<String, String> {
    env.apply(&json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob",
        "metadata": { "name": name }, "spec": spec }))
}

#[test]
fn rejects_each_mistake_with_one_message() {
    let env = TestEnv::new("dj-mistakes");
    let more = [rollout_mistakes(), on_success_mistakes(), schedule_mistakes()].into_iter().flatten();
    for (spec, words) in mistakes().into_iter().chain(more) {
        let text = apply(&env, "bad", &spec).expect_err(&spec.to_string());
        assert!(text.contains(words), "{spec}\n{text}");
        // After a wrong type, the API server reports that it did not check the rest.
        let faults =
            text.lines().filter(|line| line.starts_with("* ") && !line.contains("were not checked")).count();
        assert!(faults <= 1, "one error per mistake: {text}");
    }
    let template = json!({ "spec": { "containers": [{ "name": "c", "image": "i" }] } });
    let text = apply(&env, &"x".repeat(64), &json!({ "template": template })).unwrap_err();
    assert!(text.contains("the name is also a label of the pods: use at most 63 characters"), "{text}");
}

#[test]
fn accepts_valid_specs_and_null() {
    let env = TestEnv::new("dj-right");
    let spec = json!({ "restartPolicy": "Never", "nodeSelector": { "nowhere": "yes" },
        "containers": [{ "name": "c", "image": "i" }], "initContainers": [{ "name": "first", "image": "i" }] });
    let rule = |name: Value| {
        json!({ "action": "FailJob", "onPodConditions": null,
            "onExitCodes": { "containerName": name, "operator": "NotIn", "values": [0, 3] } })
    };
    let full = json!({
        "template": { "spec": spec },
        "parallelism": "100%",
        "failurePolicy": { "type": "FailFast", "maxFailedNodes": "0%" },
        "podFailurePolicy": { "rules": [rule(json!("c")), rule(json!("first")), rule(json!(null))] },
        "pendingDeadlineSeconds": 1, "backoffLimit": 0, "ttlSecondsAfterFinished": 0,
        "lateNodes": "Ignore", "rerunOn": ["NodeReboot", "TemplateChange"],
        "rollout": { "waveSizes": [1, "1%", "99%", 5, "100%"], "approval": "EveryWave", "settleSeconds": 0 },
        "onSuccess": {
            "labels": { "example.com/ready": "", "notk8s.io/x": "a.b_c-d" },
            "removeTaints": [{ "key": "example.com/raw", "effect": "NoExecute" }],
        },
    });
    apply(&env, &"x".repeat(63), &full).unwrap();
    // A chart whose value is empty writes null.
    let mut empty = json!({ "template": { "spec": spec } });
    for field in [
        "parallelism",
        "suspend",
        "paused",
        "failurePolicy",
        "podFailurePolicy",
        "backoffLimit",
        "activeDeadlineSeconds",
        "pendingDeadlineSeconds",
        "lateNodes",
        "rerunOn",
        "schedule",
        "timeZone",
        "startingDeadlineSeconds",
        "rollout",
        "onSuccess",
        "ttlSecondsAfterFinished",
        "selector",
        "manualSelector",
    ] {
        empty[field] = Value::Null;
    }
    apply(&env, "empty", &empty).unwrap();
    let mut nightly = json!({ "template": { "spec": spec }, "schedule": "0 3 * * *", "timeZone": "Europe/Berlin",
        "startingDeadlineSeconds": 1 });
    nightly["failurePolicy"] = json!({ "type": "Pause" });
    nightly["rollout"] = json!({ "waveSizes": [1], "approval": "None", "settleSeconds": 1 });
    apply(&env, "nightly", &nightly).unwrap();
    empty["rollout"] = json!({ "waveSizes": null, "approval": null, "settleSeconds": null });
    empty["onSuccess"] = json!({ "labels": null, "removeTaints": null });
    apply(&env, "empty-rollout", &empty).unwrap();
    apply(&env, "least", &json!({ "template": { "spec": spec }, "parallelism": 1, "rerunOn": [] })).unwrap();
}

#[test]
fn is_complete_without_an_eligible_node() {
    let env = TestEnv::new("dj-nowhere");
    env.node("a");
    let _manager = env.manager("daemonjob");
    let template = |part: Value| {
        let mut job = daemonjob(&env, "x", &json!({}));
        for (key, value) in part.as_object().unwrap() {
            job["spec"]["template"]["spec"][key] = value.clone();
        }
        job
    };
    let contradiction = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "env", "operator": "Exists" }, { "key": "env", "operator": "DoesNotExist" },
        ] }],
    } } });
    let jobs = [
        ("selector", template(json!({ "nodeSelector": { "nowhere": "yes" } }))),
        ("named", template(json!({ "nodeName": "no-such-node" }))),
        ("contradiction", template(json!({ "affinity": contradiction }))),
    ];
    for (name, mut job) in jobs {
        job["metadata"]["name"] = json!(name);
        env.apply(&job).unwrap();
        let job = env.wait_for("daemonjob", name, "it is complete", is_complete);
        assert_eq!(condition(&job, "Complete").1, "NoEligibleNodes", "{job:#}");
        assert_eq!(condition(&job, "Failed").0, "False", "{job:#}");
        assert_eq!(job["status"]["desired"], 0, "{job:#}");
    }
    assert!(env.list("pods", "").is_empty());
}

#[test]
fn runs_only_on_the_node_of_the_template() {
    let env = TestEnv::new("dj-named");
    let nodes = env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    let mut job = daemonjob(&env, "named", &json!({}));
    job["spec"]["template"]["spec"]["nodeName"] = json!(nodes[1]);
    env.apply(&job).unwrap();
    let job = env.wait_for("daemonjob", "named", "it is complete", is_complete);
    assert_eq!((&job["status"]["desired"], &job["status"]["succeeded"]), (&json!(1), &json!(1)));
    assert_eq!(pods_by_node(&env, "named").into_keys().collect::<Vec<_>>(), nodes[1..]);
}

#[test]
fn reports_an_invalid_affinity() {
    let env = TestEnv::new("dj-typo");
    env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    let mut job = daemonjob(&env, "typo", &json!({}));
    // The template's schema accepts any operator.
    job["spec"]["template"]["spec"]["affinity"] = json!({ "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "env", "operator": "exists" } ] }] } } });
    env.apply(&job).unwrap();
    let refused = env.wait_for("daemonjob", "typo", "the status reports the rejection", |job| {
        condition(job, "PodsRefused").0 == "True"
    });
    assert_eq!(condition(&refused, "PodsRefused").1, "TemplateInvalid");
    assert_eq!(condition(&refused, "Complete").0, "False", "{refused:#}");
    assert!(refused["status"].to_string().contains("not a valid selector operator"), "{refused:#}");
    // The corrected template runs.
    job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        ["nodeSelectorTerms"][0]["matchExpressions"][0]["operator"] = json!("Exists");
    env.apply(&job).unwrap();
    let job = env.wait_for("daemonjob", "typo", "the corrected job is complete", is_complete);
    assert_eq!(job["status"]["succeeded"], 2);
    assert_eq!(condition(&job, "PodsRefused"), (String::new(), String::new()), "{job:#}");
}

/// Even without nodes, after a restart, and when a node joins. Pods of the previous template continue.
#[test]
fn invalid_selector_is_never_complete() {
    let env = TestEnv::new("dj-typo-selector");
    let manager = env.manager("daemonjob");
    let mut job = held(&env, "typo", &json!({}));
    job["spec"]["template"]["spec"]["nodeSelector"]["the zone"] = json!("a");
    env.apply(&job).unwrap();
    let is_refused = |job: &Value| {
        condition(job, "PodsRefused") == ("True".into(), "TemplateInvalid".into())
            && condition(job, "Complete") == ("False".into(), "TemplateInvalid".into())
            && job["status"]["observedGeneration"] == job["metadata"]["generation"]
    };
    env.wait_for("daemonjob", "typo", "the status reports the rejection", is_refused);
    manager.stop().unwrap();
    let node = env.node("a");
    let _manager = env.manager("daemonjob");
    // The corrected template runs.
    let mut corrected = job.clone();
    corrected["spec"]["template"]["spec"]["nodeSelector"].as_object_mut().unwrap().remove("the zone");
    env.apply(&corrected).unwrap();
    let pod = running(&env, "typo", &node, 1);
    env.apply(&job).unwrap();
    env.wait_for("daemonjob", "typo", "the status reports the rejection again", |job| {
        is_refused(job) && job["status"]["active"] == 1
    });
    let watch = env.watch("daemonjobs.dj.dysproz.io", "");
    env.node("b");
    end(&env, &[&pod], 0);
    watch.wait_for("the pod has ended", |job| is_refused(job) && job["status"]["active"] == 0);
    assert!(watch.events().iter().all(|(_, job)| condition(job, "Complete").0 == "False"));
    assert_eq!(env.created_pods().len(), 1);
}

#[test]
fn two_jobs_on_the_same_nodes_do_not_interfere() {
    let env = TestEnv::new("dj-two");
    let nodes = env.nodes(["a", "b"]);
    let _manager = env.manager("daemonjob");
    // Pod names truncate both job names to the same text.
    let names = [format!("{}-1", "x".repeat(45)), format!("{}-2", "x".repeat(45))];
    let jobs: Vec<Value> = names.iter().map(|name| daemonjob(&env, name, &json!({}))).collect();
    env.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": jobs })).unwrap();
    for name in &names {
        let job = env.wait_for("daemonjob", name, "it is complete", is_complete);
        assert_eq!(job["status"]["succeeded"], 2);
        assert_eq!(pods_by_node(&env, name), nodes.iter().map(|node| (node.clone(), 1)).collect());
    }
    assert_eq!(env.writes().iter().filter(|write| *write == "create pods 201").count(), 4);
}

#[test]
fn reports_a_quota_and_continues_when_it_is_raised() {
    let env = TestEnv::new("dj-quota");
    env.nodes(["a", "b", "c"]);
    let quota = |pods: &str| {
        let quota = json!({ "apiVersion": "v1", "kind": "ResourceQuota",
            "metadata": { "name": "few" }, "spec": { "hard": { "pods": pods } } });
        env.apply(&quota).unwrap();
        env.wait_for("resourcequota", "few", "the quota takes effect", |quota| {
            quota["status"]["hard"]["pods"] == pods
        });
    };
    quota("1");
    let _manager = env.manager("daemonjob");
    env.apply(&held(&env, "many", &json!({}))).unwrap();
    let refused = env.wait_for("daemonjob", "many", "the status reports the rejection", |job| {
        condition(job, "PodsRefused").0 == "True" && job["status"]["active"] == 1
    });
    assert_eq!(condition(&refused, "PodsRefused").1, "FailedCreate");
    assert!(refused["status"].to_string().contains("exceeded quota"), "{refused:#}");
    assert_eq!(refused["status"]["desired"], 3);
    quota("10");
    let job = env.wait_for("daemonjob", "many", "every node has a pod", |job| {
        job["status"]["active"] == 3 && condition(job, "PodsRefused").0 != "True"
    });
    assert_eq!(condition(&job, "Complete").0, "False", "{job:#}");
    assert_eq!(env.created_pods().len(), 3);
}
