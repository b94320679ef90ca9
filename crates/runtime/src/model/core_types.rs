//! The core types that plans read, decoded into only the fields that plans read.
//!
//! serde skips all other fields while it parses, so a Pod of 5 KB of JSON takes a few hundred bytes in memory. Small
//! parts, such as the state of a container, have the types of k8s-openapi until the object is stored. To add a field,
//! add it here: to the wire form, to the stored form, and to its table in [`crate::model::protobuf`].

mod deployment;
mod node;
mod pod;

pub use deployment::Deployment;
pub use node::{Node, Taint};
pub use pod::{Exit, Phase, Pod};

use jiff::Timestamp;
use serde::Deserialize;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WireCondition {
    #[serde(rename = "type")]
    type_: Box<str>,
    status: Box<str>,
    reason: Option<Box<str>>,
    message: Option<Box<str>>,
    last_transition_time: Option<Timestamp>,
}

/// Whether a plan reads this annotation.
fn is_read(annotation: &str) -> bool {
    ["controller.kubernetes.io/", "dj.dysproz.io/", "batch.tutorial.kubebuilder.io/", "quintet.dev/"]
        .iter()
        .any(|prefix| annotation.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::pod::REJECTION;
    use super::*;
    use crate::model::object::Object as _;
    use serde_json::{Value, json};

    #[test]
    fn decodes_the_fields_of_a_pod_that_plans_read() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "u", "resourceVersion": "7",
                "annotations": {"dj.dysproz.io/boot-id": "b", "other": "x"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
            "status": {"phase": "Running",
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
                "containerStatuses": [
                    {"restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
                    {"restartCount": 1, "state": {"terminated": {"exitCode": 3, "finishedAt": "2026-01-01T00:00:05Z"}}}]}
        }))
        .unwrap();
        assert_eq!(
            (pod.restarts, pod.exits[0].code, pod.waiting.as_deref()),
            (3, 3, Some("CrashLoopBackOff"))
        );
        assert!(pod.ready_since.is_some() && pod.is_counted());
        assert_eq!(pod.meta.annotations.get("dj.dysproz.io/boot-id"), Some("b"));
        assert_eq!(pod.meta.annotations.get("other"), None);
    }

    #[test]
    fn accepts_nulls_and_unknown_phases() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "labels": null, "ownerReferences": null},
            "status": {"phase": "Dreaming"}
        }))
        .unwrap();
        assert_eq!(pod.phase, Phase::Unknown);
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": null}})).unwrap();
        assert!(!node.ready && node.taints.is_empty());
    }

    #[test]
    fn reads_the_manager_that_scales_a_deployment() {
        let read = |subresource: &str, fields: &Value| -> Option<Box<str>> {
            let entry = json!({"manager": "hpa", "operation": "Update", "subresource": subresource, "fieldsV1": fields});
            let raw = json!({"metadata": {"name": "d", "generation": 3, "managedFields": [{"manager": "x"}, entry]}});
            let deployment: Deployment = serde_json::from_value(raw).unwrap();
            assert_eq!((&*deployment.meta.name, deployment.meta.generation), ("d", 3));
            deployment.scaled_by
        };
        let replicas = json!({"f:spec": {"f:replicas": {}}});
        assert_eq!(read("scale", &replicas).as_deref(), Some("hpa"));
        assert_eq!(read("", &replicas), None);
        assert_eq!(read("scale", &json!({"f:spec": {}})), None);
    }

    #[test]
    fn a_heartbeat_changes_no_field_that_plans_read() {
        let node = |version: &str, beat: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": "n", "resourceVersion": version},
                "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": beat}]}
            }))
            .unwrap()
        };
        assert!(node("1", "2026-01-01T00:00:00Z").same(&node("2", "2026-01-01T00:05:00Z")));
    }

    #[test]
    fn keeps_the_annotations_of_a_node_that_plans_read() {
        let node = |annotations: Value| -> Node {
            serde_json::from_value(json!({"metadata": {"name": "n", "annotations": annotations}})).unwrap()
        };
        let marked = node(json!({"dj.dysproz.io/marked-u": "1/2", "other": "x"}));
        assert_eq!(marked.meta.annotations.get("dj.dysproz.io/marked-u"), Some("1/2"));
        assert_eq!(marked.meta.annotations.get("other"), None);
        let other = node(json!({"other": "x"}));
        assert_eq!((other.meta.annotations.iter().count(), other.has_annotations), (0, true));
        assert!(!node(json!(null)).has_annotations);
        assert!(!marked.same(&other) && other.same(&node(json!({"another": "y"}))));
    }

    #[test]
    fn detects_another_machine_or_boot() {
        let node = |machine: &str, boot: &str| -> Node {
            let info = json!({"machineID": machine, "bootID": boot});
            serde_json::from_value(json!({"metadata": {"name": "n"}, "status": {"nodeInfo": info}})).unwrap()
        };
        assert_eq!((&*node("m", "b").machine_id, &*node("m", "b").boot_id), ("m", "b"));
        for (machine, boot, same) in [("m", "b", true), ("other", "b", false), ("m", "other", false)] {
            assert_eq!(node("m", "b").same(&node(machine, boot)), same, "{machine} {boot}");
        }
    }

    /// A pod with this spec and this status.
    fn pod(spec: &Value, status: &Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec, "status": status})).unwrap()
    }

    /// The status of a terminated container.
    fn ended(name: &str, code: i32) -> Value {
        json!({"name": name, "state": {"terminated": {"exitCode": code}}})
    }

    #[test]
    fn restarts_and_running_of_sidecars_do_not_count() {
        let of = |name: &str, restarts: u32, state: &str| {
            let state = json!({state: {}});
            json!({"name": name, "restartCount": restarts, "state": state})
        };
        let spec = json!({
            "initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "init", "restartPolicy": "OnFailure"},
                {"name": "plain"}],
            // The policy Always does not make a main container a sidecar.
            "containers": [{"name": "main", "restartPolicy": "Always"}]});
        let (r, w) = ("running", "waiting");
        for (side, init, plain, main, restarts, running) in [
            ((5, r), (1, w), (2, w), (4, w), 7, false),
            ((5, w), (0, r), (0, w), (0, w), 0, true),
            ((5, w), (0, w), (u32::MAX, w), (1, r), u32::MAX, true),
        ] {
            let status = json!({
                "initContainerStatuses": [of("side", side.0, side.1), of("init", init.0, init.1), of("plain", plain.0, plain.1)],
                "containerStatuses": [of("main", main.0, main.1)]});
            let pod = pod(&spec, &status);
            assert_eq!((pod.restarts, pod.has_running_container), (restarts, running), "{status}");
        }
    }

    #[test]
    fn a_container_restarts_by_its_policy_or_its_rules() {
        let rule = |action: &str, operator: &str, values: &[i32]| {
            let codes = json!({"operator": operator, "values": values});
            json!({"action": action, "exitCodes": codes})
        };
        let restart = |operator: &str, values: &[i32]| json!([rule("Restart", operator, values)]);
        let all = |values: &[i32]| json!([rule("RestartAllContainers", "In", values)]);
        let first = |one: &str, two: &str| json!([rule(one, "In", &[3]), rule(two, "In", &[3])]);
        let none = || json!([]);
        // The pod's policy, the container's policy, its rules, its exit code; restartable, restarts_containers.
        for (of_pod, own, rules, code, restartable, restarts) in [
            (None, None, none(), 3, true, true),
            (Some("Always"), None, none(), 3, true, true),
            (Some("OnFailure"), None, none(), 3, true, true),
            (Some("Never"), None, none(), 3, false, false),
            (Some("Strange"), None, none(), 3, true, true),
            (Some("Always"), Some("Never"), none(), 3, false, false),
            (Some("Never"), Some("OnFailure"), none(), 3, true, true),
            (Some("Never"), Some("Always"), none(), 3, true, true),
            (Some("Never"), Some("Strange"), none(), 3, false, false),
            (Some("Always"), Some("Never"), restart("In", &[1, 3]), 3, true, true),
            (Some("Always"), Some("Never"), restart("In", &[1, 2]), 3, false, true),
            (Some("Always"), Some("Never"), restart("NotIn", &[1, 2]), 3, true, true),
            (Some("Always"), Some("Never"), restart("NotIn", &[3]), 3, false, true),
            (Some("Always"), Some("Never"), restart("Strange", &[3]), 3, false, false),
            (Some("Always"), Some("Never"), restart("In", &[0]), 3, false, false),
            (Some("Always"), Some("Never"), json!([{"action": "Restart"}]), 3, false, false),
            (Some("Always"), Some("Never"), all(&[3]), 3, true, true),
            (Some("Always"), Some("Never"), all(&[4]), 3, false, true),
            (Some("Always"), Some("OnFailure"), restart("In", &[4]), 3, true, true),
            // The first matching rule decides.
            (Some("Always"), Some("Never"), first("Restart", "Strange"), 3, true, true),
            (Some("Always"), Some("Never"), first("Strange", "Restart"), 3, false, true),
            // The exit code is 0, so the result depends on whether the policy and the rules may restart.
            (Some("Never"), None, none(), 0, false, false),
            (Some("Always"), Some("Never"), none(), 0, false, false),
            (Some("Never"), Some("Never"), restart("In", &[3]), 0, true, true),
            (Some("OnFailure"), None, none(), 0, true, true),
        ] {
            let container = json!({"name": "c", "restartPolicy": own, "restartPolicyRules": rules});
            // An init container with the policy Always is a sidecar.
            let kinds = [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")];
            for (specs, statuses) in kinds.into_iter().take(if own == Some("Always") { 1 } else { 2 }) {
                let mut spec = json!({"restartPolicy": of_pod,
                    "containers": [{"name": "other", "restartPolicy": "Never"}]});
                spec[specs] = json!([container, {"name": "other", "restartPolicy": "Never"}]);
                let pod = pod(&spec, &json!({statuses: [ended("c", code)]}));
                let case = format!("{spec} {code}");
                assert_eq!((pod.restartable, pod.restarts_containers), (restartable, restarts), "{case}");
            }
        }
    }

    #[test]
    fn a_failed_container_that_waits_for_its_restart_has_crashed() {
        let ended = |code: i32| json!({"terminated": {"exitCode": code, "reason": "Error"}});
        let (waiting, running) = (json!({"waiting": {"reason": "CrashLoopBackOff"}}), json!({"running": {}}));
        let deleted = json!({"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let alive = json!({"name": "p"});
        for (meta, policy, phase, state, last, crashed) in [
            (&alive, "OnFailure", "Running", &ended(3), json!({}), Some(3)),
            (&alive, "OnFailure", "Running", &ended(3), ended(4), Some(3)),
            (&alive, "Always", "Running", &ended(3), json!({}), Some(3)),
            (&alive, "OnFailure", "Running", &waiting, ended(3), Some(3)),
            (&alive, "OnFailure", "Pending", &ended(3), json!({}), Some(3)),
            // The container runs, exited with 0, or never ran.
            (&alive, "OnFailure", "Running", &running, ended(3), None),
            (&alive, "Always", "Running", &ended(0), ended(3), None),
            (&alive, "OnFailure", "Running", &waiting, json!({}), None),
            // The container is not restarted.
            (&alive, "Never", "Running", &ended(3), json!({}), None),
            (&alive, "OnFailure", "Failed", &ended(3), json!({}), None),
            (&deleted, "OnFailure", "Running", &ended(3), json!({}), None),
        ] {
            for (specs, statuses) in
                [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")]
            {
                let status =
                    json!({"phase": phase, statuses: [{"name": "c", "state": state, "lastState": last}]});
                let spec = json!({"restartPolicy": policy, specs: [{"name": "c"}]});
                let pod: Pod =
                    serde_json::from_value(json!({"metadata": meta, "spec": spec, "status": status}))
                        .unwrap();
                assert_eq!(pod.crashed.map(|exit| exit.code), crashed, "{meta} {spec} {status}");
            }
        }
    }

    #[test]
    fn a_pod_is_restartable_if_all_failed_containers_are() {
        let rule = |action: &str| json!([{"action": action, "exitCodes": {"operator": "In", "values": [3]}}]);
        let spec = |action: &str| {
            json!({"restartPolicy": "Never",
                "initContainers": [{"name": "side", "restartPolicy": "Always"}],
                "containers": [{"name": "yes", "restartPolicy": "OnFailure"}, {"name": "no"},
                    {"name": "rule", "restartPolicy": "Never", "restartPolicyRules": rule(action)}]})
        };
        let running = |name: &str| json!({"name": name, "state": {"running": {}}, "lastState": ended(name, 1)["state"]});
        let swept = |name: &str| {
            let end = json!({"exitCode": 137, "reason": "RestartingAllContainers"});
            json!({"name": name, "state": {"terminated": end}})
        };
        let one = "Restart";
        let all = "RestartAllContainers";
        for (action, containers, restartable) in [
            (one, vec![], true),
            (one, vec![ended("yes", 1)], true),
            (one, vec![ended("yes", 1), ended("no", 0)], true),
            (one, vec![ended("yes", 1), running("no")], true),
            (one, vec![ended("yes", 1), ended("no", 1)], false),
            (one, vec![ended("yes", 1), ended("rule", 3)], true),
            (one, vec![ended("yes", 1), ended("rule", 4)], false),
            (one, vec![ended("no", 1), ended("rule", 3)], false),
            // The rule also restarts the other containers.
            (all, vec![ended("no", 1), ended("rule", 3)], true),
            (all, vec![ended("no", 1), ended("rule", 4)], false),
            (all, vec![running("rule"), swept("no")], true),
            // A container that is not in the spec has the policy of the pod.
            (one, vec![ended("unknown", 1)], false),
        ] {
            let status = json!({"containerStatuses": containers});
            assert_eq!(pod(&spec(action), &status).restartable, restartable, "{action} {status}");
        }
        // The exit of a sidecar does not matter.
        let status =
            json!({"initContainerStatuses": [ended("side", 143)], "containerStatuses": [ended("no", 1)]});
        assert!(!pod(&spec(one), &status).restartable);
    }

    #[test]
    fn only_policies_of_sidecars_restart_no_container() {
        let side =
            |rules: Value| json!([{"name": "side", "restartPolicy": "Always", "restartPolicyRules": rules}]);
        let rule =
            |action: &str| json!([{"action": action, "exitCodes": {"operator": "NotIn", "values": [0]}}]);
        for (rules, restarts) in [
            (json!([]), false),
            (rule("Restart"), false),
            // This rule of a sidecar restarts the main container too.
            (rule("RestartAllContainers"), true),
        ] {
            let spec = json!({"restartPolicy": "Never", "initContainers": side(rules), "containers": [{"name": "c"}]});
            let pod = pod(&spec, &json!({"initContainerStatuses": [ended("side", 0)]}));
            assert_eq!((pod.restartable, pod.restarts_containers), (restarts, restarts), "{spec}");
        }
        for (policy, restarts) in [("Never", false), ("OnFailure", true)] {
            let pod = pod(&json!({"restartPolicy": policy}), &json!({}));
            assert_eq!((pod.restartable, pod.restarts_containers), (restarts, restarts), "{policy}");
        }
    }

    #[test]
    fn a_pod_without_ends_finished_when_it_became_not_ready() {
        let (container, condition) = ("2026-01-01T00:00:05Z", "2026-01-01T00:00:09Z");
        let ready = |status: &str, at: Option<&str>| json!({"type": "Ready", "status": status, "lastTransitionTime": at});
        let scheduled = json!({"type": "PodScheduled", "status": "False", "lastTransitionTime": condition});
        for (phase, ready, end, finished) in [
            ("Failed", ready("False", Some(condition)), None, Some(condition)),
            ("Succeeded", ready("False", Some(condition)), None, Some(condition)),
            ("Failed", ready("False", Some(condition)), Some(container), Some(container)),
            ("Running", ready("False", Some(condition)), None, None),
            ("Pending", ready("False", Some(condition)), None, None),
            ("Unknown", ready("False", Some(condition)), None, None),
            ("Running", ready("False", Some(condition)), Some(container), Some(container)),
            ("Failed", ready("True", Some(condition)), None, None),
            ("Failed", ready("Unknown", Some(condition)), None, None),
            ("Failed", ready("False", None), None, None),
            ("Failed", scheduled, None, None),
        ] {
            let status = json!({"phase": phase, "conditions": [ready], "containerStatuses": [
                {"name": "c", "state": {"terminated": {"exitCode": 1, "finishedAt": end}}},
                {"name": "d", "state": {"waiting": {}}}]});
            let finished = finished.map(|at| at.parse::<Timestamp>().unwrap());
            assert_eq!(pod(&json!({}), &status).finished, finished, "{status}");
        }
    }

    #[test]
    fn a_pod_that_the_kubelet_did_not_admit_is_rejected() {
        let container =
            |state: &Value, last: &Value| json!([{"name": "c", "state": state, "lastState": last}]);
        let (waiting, running) = (json!({"waiting": {}}), json!({"running": {}}));
        let (ended, none) = (json!({"terminated": {"exitCode": 0}}), json!({}));
        let idle = || container(&waiting, &none);
        let (cpu, short) = (Some("OutOfcpu"), Some("Pod was rejected"));
        let whole = Some("OutOfcpu: Pod was rejected");
        for (phase, reason, message, containers, expected) in [
            ("Failed", cpu, short, json!([]), whole),
            ("Failed", cpu, short, idle(), whole),
            ("Failed", cpu, short, container(&none, &none), whole),
            ("Failed", cpu, None, idle(), cpu),
            ("Failed", cpu, Some(""), idle(), cpu),
            ("Failed", None, short, idle(), None),
            ("Failed", Some(""), short, idle(), None),
            ("Failed", Some("Evicted"), short, idle(), None),
            ("Failed", Some("DeadlineExceeded"), short, idle(), None),
            ("Pending", cpu, short, idle(), None),
            ("Succeeded", cpu, short, idle(), None),
            ("Failed", cpu, short, container(&running, &none), None),
            ("Failed", cpu, short, container(&ended, &none), None),
            ("Failed", cpu, short, container(&waiting, &ended), None),
        ] {
            for statuses in ["containerStatuses", "initContainerStatuses"] {
                let status =
                    json!({"phase": phase, "reason": reason, "message": message, statuses: containers});
                assert_eq!(pod(&json!({}), &status).rejection.as_deref(), expected, "{status}");
            }
        }
    }

    #[test]
    fn the_message_of_a_rejection_is_shortened() {
        let message = "ä".repeat(REJECTION);
        let status = json!({"phase": "Failed", "reason": "OutOfcpu", "message": message});
        let rejection = pod(&json!({}), &status).rejection.unwrap();
        let kept = rejection.strip_prefix("OutOfcpu: ää").unwrap();
        assert!(kept.ends_with("ä…") && kept.len() <= REJECTION - "ää".len(), "{rejection}");
    }

    #[test]
    fn each_field_of_restarts_and_rejection_is_compared() {
        let changes: [fn(&mut Pod); 5] = [
            |pod| pod.restartable = true,
            |pod| pod.restarts_containers = true,
            |pod| pod.has_running_container = true,
            |pod| pod.rejection = Some("OutOfcpu".into()),
            |pod| pod.finished = Some(Timestamp::UNIX_EPOCH),
        ];
        for change in changes {
            let mut pod = Pod::default();
            change(&mut pod);
            assert!(!pod.same(&Pod::default()) && pod.same(&pod.clone()), "{pod:?}");
        }
    }
}
