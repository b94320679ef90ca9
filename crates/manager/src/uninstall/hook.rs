//! Whether the Job of `quintet uninstall` runs because a tool deletes the manager.
//!
//! The chart contains the Job as a hook that Helm runs before it deletes a release. A tool that ignores hooks creates the
//! Job together with the manager. The age of the Job proves nothing: a user may delete a release seconds after its
//! installation, and such a tool may create a deleted Job again after months. Neither does the Secret of the release,
//! which may be in another namespace or in another store. So the rules read the marks that tools leave on objects.

use anyhow::{Result, anyhow, bail};
use quintet_runtime::model::resource::{DEPLOYMENTS, Resource};
use serde_json::Value;

use super::writer::{Lease, Manager};
use crate::api_client::Cluster;

/// The type of the Job.
const JOBS: Resource = Resource::builtin("batch", "v1", "Job", "jobs");

/// Helm sets this annotation on the objects of a release. `helm template` does not set it.
const RELEASE: &str = "meta.helm.sh/release-name";

/// Argo CD sets this annotation on the objects of an Application. Argo CD creates this Job only when it deletes the
/// Application, and older versions never create it.
const TRACKING: &str = "argocd.argoproj.io/tracking-id";

/// `kubectl apply` sets this annotation. Helm does not.
const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Returns an error if a tool created the Job without deleting the manager.
pub async fn check(cluster: &Cluster, manager: &Manager, lease: &Lease, job: &str) -> Result<()> {
    let Manager { namespace: home, deployment } = manager;
    let read = async |resource: &Resource, name: &str| -> Result<Option<Value>> {
        let found = cluster.reads.read::<Value>(resource, home, name).await;
        found.map_err(|error| cluster.sorry(&format!("cannot read {} {home}/{name}", resource.kind), &error))
    };
    let created = read(&JOBS, job).await?;
    let created = created.ok_or_else(|| {
        anyhow!("Job {home}/{job} does not exist: pass the Job that runs this command to --helm-hook")
    })?;
    // Without a Deployment, no manager runs that the Job could stop: an earlier attempt has deleted it.
    let Some(running) = read(&DEPLOYMENTS, deployment).await? else { return Ok(()) };
    if let Some(why) = obstacle(&running, &created) {
        bail!(
            "nothing was changed, because {why}. A tool that ignores Helm hooks created Job {home}/{job} beside the manager.\n\
             Set the chart's value uninstallHook.enabled to false, and delete the Job.\n\
             To uninstall the manager, run\n  quintet uninstall --manager {home}/{deployment} --lease-namespace {} --lease-name {}\n\
             If `helm uninstall` runs the Job, run `helm uninstall --no-hooks` after this command.",
            lease.namespace,
            lease.name
        );
    }
    Ok(())
}

/// The evidence that no tool is deleting the Deployment; None if Helm or Argo CD created the Job.
fn obstacle(deployment: &Value, job: &Value) -> Option<String> {
    let has = |object: &Value, annotation: &str| object["metadata"]["annotations"][annotation].is_string();
    if has(job, TRACKING) {
        return None;
    }
    let place = format!("Deployment {}", deployment["metadata"]["name"].as_str().unwrap_or_default());
    if !has(deployment, RELEASE) {
        return Some(format!("{place} is not part of a Helm release"));
    }
    if has(job, APPLIED) {
        return Some("`kubectl apply` created the Job".to_owned());
    }
    // Another tool may have replaced Helm, and then Helm's annotation remains. A tool with another name that installs
    // releases with Helm's library is the owner of the annotation.
    let installs =
        |entry: &Value| !entry["fieldsV1"]["f:metadata"]["f:annotations"][format!("f:{RELEASE}")].is_null();
    let creates = |entry: &Value| !entry["fieldsV1"]["f:spec"].is_null();
    let installers: Vec<&str> = writers(deployment, installs).collect();
    let creators: Vec<&str> = writers(job, creates).collect();
    if creators.iter().any(|name| name.to_ascii_lowercase().contains("helm") || installers.contains(name)) {
        return None;
    }
    let creators = if creators.is_empty() { "an unknown tool".to_owned() } else { creators.join(" and ") };
    Some(format!("{creators} created the Job, but did not install the release"))
}

/// The field managers of an object whose entries match, without those that wrote only a subresource such as the status.
fn writers(object: &Value, matches: impl Fn(&Value) -> bool) -> impl Iterator<Item = &str> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let whole = entries.filter(|entry| entry["subresource"].as_str().is_none_or(str::is_empty));
    whole.filter(move |entry| matches(entry)).filter_map(|entry| entry["manager"].as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// An object that these field managers have written, each with its fields.
    fn object(annotations: &Value, writers: &[(&str, Value)]) -> Value {
        let entry = |(name, fields): &(&str, Value)| json!({ "manager": name, "fieldsV1": fields });
        let mut entries: Vec<Value> = writers.iter().map(entry).collect();
        entries.push(json!({ "manager": "kube-controller-manager", "subresource": "status", "fieldsV1": { "f:status": {} } }));
        json!({ "metadata": { "name": "quintet", "annotations": annotations, "managedFields": entries } })
    }

    fn spec() -> Value {
        json!({ "f:spec": { "f:template": {} } })
    }

    /// The Deployment of a release that `installer` installed, and that `others` have changed.
    fn released(installer: &str, others: &[&str]) -> Value {
        let annotated =
            json!({ "f:metadata": { "f:annotations": { "f:meta.helm.sh/release-name": {} } }, "f:spec": {} });
        let mut writers = vec![(installer, annotated)];
        writers.extend(others.iter().map(|other| (*other, spec())));
        object(&json!({ "meta.helm.sh/release-name": "quintet" }), &writers)
    }

    fn job(creator: &str) -> Value {
        object(&json!({ "helm.sh/hook": "pre-delete" }), &[(creator, spec())])
    }

    #[test]
    fn runs_if_helm_deletes_the_release() {
        for (deployment, creator) in [
            (released("helm", &[]), "helm"),
            (released("helm-controller", &[]), "helm-controller"),
            // Users edit Deployments, and uninstall with another client than the one that installed.
            (released("helm", &["kubectl-edit"]), "helm"),
            (released("helm-controller", &["kubectl"]), "helm"),
            (released("terraform-provider-helm_v3.0.2", &["Helm.exe"]), "Helm.exe"),
            // A tool with Helm's library.
            (released("fleetagent", &[]), "fleetagent"),
        ] {
            assert_eq!(obstacle(&deployment, &job(creator)), None, "{creator}");
        }
    }

    #[test]
    fn changes_nothing_beside_a_manager_without_a_release() {
        for applier in ["kubectl-client-side-apply", "kubectl", "kustomize-controller", "helm"] {
            let deployment =
                object(&json!({ "deployment.kubernetes.io/revision": "1" }), &[(applier, spec())]);
            let why = obstacle(&deployment, &job(applier)).unwrap();
            assert_eq!(why, "Deployment quintet is not part of a Helm release", "{applier}");
        }
    }

    #[test]
    fn changes_nothing_if_another_tool_created_the_job() {
        // The tool replaced Helm, or left the Deployment as Helm had written it.
        for others in [&["kustomize-controller"][..], &[]] {
            let why = obstacle(&released("helm", others), &job("kustomize-controller")).unwrap();
            assert_eq!(why, "kustomize-controller created the Job, but did not install the release");
        }
        let mut created = job("kubectl");
        let apply = json!({ "manager": "argocd-controller", "fieldsV1": spec() });
        created["metadata"]["managedFields"].as_array_mut().unwrap().push(apply);
        let why = obstacle(&released("helm", &[]), &created).unwrap();
        assert_eq!(why, "kubectl and argocd-controller created the Job, but did not install the release");
    }

    #[test]
    fn changes_nothing_without_field_managers() {
        let unknown = json!({ "metadata": { "name": "quintet-uninstall" } });
        let why = obstacle(&released("helm", &[]), &unknown).unwrap();
        assert_eq!(why, "an unknown tool created the Job, but did not install the release");
    }

    #[test]
    fn changes_nothing_if_kubectl_applied_the_job() {
        let applied =
            object(&json!({ "kubectl.kubernetes.io/last-applied-configuration": "{}" }), &[("helm", spec())]);
        let why = obstacle(&released("helm", &[]), &applied).unwrap();
        assert_eq!(why, "`kubectl apply` created the Job");
    }

    #[test]
    fn runs_if_argo_cd_deletes_the_application() {
        let tracked =
            json!({ "argocd.argoproj.io/tracking-id": "quintet:batch/Job:quintet-system/quintet-uninstall" });
        let created = object(&tracked, &[("argocd-controller", spec())]);
        for deployment in
            [object(&tracked, &[("argocd-controller", spec())]), released("helm", &["argocd-controller"])]
        {
            assert_eq!(obstacle(&deployment, &created), None);
        }
    }

    #[test]
    fn ignores_writers_of_the_status_alone() {
        let mut created = job("operator");
        let status = json!({ "manager": "helm", "subresource": "status", "fieldsV1": { "f:spec": {} } });
        created["metadata"]["managedFields"].as_array_mut().unwrap().push(status);
        assert!(obstacle(&released("helm", &[]), &created).is_some());
    }
}
