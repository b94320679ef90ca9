//! The published rules of OpenShift's SecurityContextConstraints `restricted-v2`, which apply to pods by default.
//!
//! No test meets OpenShift. The rules leave out defaults that OpenShift fills in, such as the user.

use std::ops::Range;

use anyhow::{Result, ensure};
use quintet_localcluster::{paths, run};
use serde_json::Value;

use super::manifests::Manifests;
use super::{Tools, pods};

/// An API of OpenShift, by which the chart detects OpenShift.
const API: &str = "security.openshift.io/v1";

/// The users of one namespace. Each namespace has other ones.
const USERS: Range<i64> = 1_000_700_000..1_000_710_000;

/// The types of volumes that the constraints allow.
const VOLUMES: [&str; 8] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// The pods of the chart and of config/default follow the rules. A pod with the image's user does not.
pub(super) fn restricted(tools: &Tools) -> Result<()> {
    let folder = paths::workspace().join("config/default");
    let kustomized = run::stdout(tools.program("kubectl")?.arg("kustomize").arg(folder))?;
    for manifests in [kustomized, tools.template(&[])?, tools.template(&["--api-versions", API])?] {
        let found = violations(&manifests)?;
        ensure!(found.is_empty(), "{}", found.join("\n"));
    }
    let found = violations(&tools.template(&["--set", "podSecurityContext.runAsUser=65532"])?)?;
    ensure!(found.iter().any(|one| one.contains("runAsUser is 65532")), "{found:?}");
    Ok(())
}

/// The violated rules of the pods in rendered manifests.
fn violations(manifests: &str) -> Result<Vec<String>> {
    let manifests = Manifests::of(manifests)?;
    ensure!(pods(&manifests).next().is_some(), "the manifests have no pods");
    Ok(pods(&manifests).flat_map(|(kind, pod)| of_pod(&pod["spec"], kind)).collect())
}

/// The violated rules.
fn of_pod(spec: &Value, place: &str) -> Vec<String> {
    let mut found = Vec::new();
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec[field] == true {
            found.push(format!("{place}: {field} is true"));
        }
    }
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        let types = volume.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
        let forbidden = types.filter(|name| *name != "name" && !VOLUMES.contains(name));
        found.extend(forbidden.map(|name| format!("{place}: a volume is a {name}")));
    }
    found.extend(of_context(&spec["securityContext"], place));
    for list in ["initContainers", "containers"] {
        for container in spec[list].as_array().into_iter().flatten() {
            found.extend(of_context(&container["securityContext"], place));
            for port in container["ports"].as_array().into_iter().flatten() {
                if !port["hostPort"].is_null() {
                    found.push(format!("{place}: hostPort is {}", port["hostPort"]));
                }
            }
        }
    }
    found
}

/// The violated rules of a pod's or a container's security context.
fn of_context(context: &Value, place: &str) -> Vec<String> {
    let mut found = Vec::new();
    for field in ["runAsUser", "fsGroup"] {
        if context[field].as_i64().is_some_and(|id| !USERS.contains(&id)) {
            found.push(format!("{place}: {field} is {}", context[field]));
        }
    }
    for field in ["privileged", "allowPrivilegeEscalation"] {
        if context[field] == true {
            found.push(format!("{place}: {field} is true"));
        }
    }
    if !context["seLinuxOptions"].is_null() {
        found.push(format!("{place}: seLinuxOptions are {}", context["seLinuxOptions"]));
    }
    let profile = &context["seccompProfile"]["type"];
    if !profile.is_null() && *profile != "RuntimeDefault" {
        found.push(format!("{place}: seccompProfile is {profile}"));
    }
    let added = context["capabilities"]["add"].as_array().into_iter().flatten();
    let forbidden = added.filter(|name| **name != "NET_BIND_SERVICE");
    found.extend(forbidden.map(|name| format!("{place}: capability {name} is added")));
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_each_violated_rule() {
        let spec = json!({
            "hostNetwork": true,
            "volumes": [{ "name": "a", "secret": {} }, { "name": "b", "hostPath": {} }],
            "securityContext": { "runAsUser": 65532, "seccompProfile": { "type": "Unconfined" } },
            "containers": [{ "ports": [{ "hostPort": 80 }],
                "securityContext": { "privileged": true, "capabilities": { "add": ["SYS_ADMIN"] } } }],
        });
        let expected = [
            "P: hostNetwork is true",
            "P: a volume is a hostPath",
            "P: runAsUser is 65532",
            "P: seccompProfile is \"Unconfined\"",
            "P: privileged is true",
            "P: capability \"SYS_ADMIN\" is added",
            "P: hostPort is 80",
        ];
        assert_eq!(of_pod(&spec, "P"), expected);
        let sound = json!({ "securityContext": { "runAsNonRoot": true, "runAsUser": 1_000_700_000 },
            "containers": [{ "securityContext": { "allowPrivilegeEscalation": false } }] });
        assert_eq!(of_pod(&sound, "P"), [""; 0]);
    }
}
