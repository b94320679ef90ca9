//! Which pod leads, whether the managers' pods are ready, and the versions.

use std::time::Duration;

use quintet_runtime::model::core_types::Deployment;
use serde_json::Value;

use super::finding::{Fact, Finding};
use super::installation::Installation;
use crate::check::{holder, pods};
use crate::kubeconfig::pod_of;
use crate::uninstall::{Manager, lasts};

/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The oldest minor version of Kubernetes 1 that the chart accepts.
const OLDEST_MINOR: u32 = 33;

/// The manager's Lease over several reads.
#[derive(Clone, Debug)]
pub struct LeaseFacts {
    /// The pod that leads, or the problem; see [`crate::check::Renewals`].
    pub outcome: Result<String, String>,
    /// The Lease, when its holder was read first.
    pub lease: Option<Value>,
    /// The time between the first and the last read.
    pub watched: Duration,
    /// Whether the holder's pod exists in the manager's namespace.
    pub pod_exists: Fact<bool>,
}

impl LeaseFacts {
    /// The pod of the holder; None if the Lease has no holder.
    pub fn pod(&self) -> Option<&str> {
        let holder = self.lease.as_ref().map(holder).filter(|holder| !holder.is_empty());
        holder.map(pod_of)
    }
}

/// Whether a pod leads and renews the Lease.
pub fn leader(installation: &Installation, facts: &Fact<LeaseFacts>) -> Vec<Finding> {
    let (replicas, home) = (installation.replicas, &installation.manager.namespace);
    if !installation.flags.elects && replicas > 1 {
        let why =
            format!("The managers elect no leader, but the Deployment has {replicas} replicas: all write.");
        let scale = format!("kubectl scale deployment {} --replicas=1", installation.manager.deployment);
        return vec![Finding::problem(why, format!("{scale} --namespace {home}"))];
    }
    if !installation.flags.elects {
        return vec![Finding::well("The managers elect no leader: the Deployment's only pod leads.")];
    }
    let lease = &installation.lease;
    let show = format!("kubectl get lease {} --namespace {} -o yaml", lease.name, lease.namespace);
    let facts = match facts {
        Ok(facts) => facts,
        Err(why) => return vec![Finding::unknown(why).then(show)],
    };
    let gone = facts.pod().filter(|_| facts.pod_exists == Ok(false));
    let mut findings = vec![match (&facts.outcome, gone) {
        (Ok(leads), Some(pod)) if replicas > 0 => {
            let why =
                format!("{leads}, but namespace {home} has no pod {pod}: another manager uses the Lease.");
            Finding::problem(why, show)
        }
        (Ok(leads), _) => Finding::well(format!("{leads}.")),
        (Err(why), gone) => {
            let lasts = facts.lease.as_ref().and_then(lasts).filter(|_| facts.pod().is_some());
            if lasts.is_some_and(|lasts| facts.watched < lasts) {
                let why = format!("{why}, which took {} s. Run this command again.", facts.watched.as_secs());
                return vec![Finding::unknown(why)];
            }
            let gone = gone.map(|pod| format!(" Pod {pod} does not exist.")).unwrap_or_default();
            Finding::problem(format!("{why}.{gone}"), installation.logs())
        }
    }];
    // If the manager runs elsewhere, it has no pod.
    findings.extend(facts.pod_exists.as_ref().err().filter(|_| replicas > 0).map(Finding::unknown));
    findings
}

/// Whether the Deployment exists, its pods are ready, and its flags are known.
pub fn managers(installation: &Installation, deployment: &Fact<Option<Value>>) -> Vec<Finding> {
    let Manager { namespace, deployment: name } = &installation.manager;
    let found = match deployment {
        Ok(Some(found)) => found,
        Ok(None) => {
            let why = format!(
                "Deployment {namespace}/{name} does not exist. Pass the manager's Deployment to --manager."
            );
            let list = "kubectl get deployments --all-namespaces --selector app.kubernetes.io/name=quintet";
            return vec![Finding::problem(why, list)];
        }
        Err(why) => return vec![Finding::unknown(format!("{why}. Assuming the chart's default flags."))],
    };
    let describe = format!("kubectl describe pods --namespace {namespace}");
    let mut findings = vec![match serde_json::from_value::<Deployment>(found.clone()) {
        Ok(deployment) => match pods(&deployment, installation.flags.elects) {
            Ok(ready) => Finding::well(format!("{ready}.")),
            Err(why) => Finding::problem(format!("{why}."), describe),
        },
        Err(error) => Finding::unknown(format!("cannot decode Deployment {namespace}/{name}: {error}")),
    }];
    if let Some(why) = &installation.assumed {
        let why = format!("cannot parse the manager's flags ({why}). Assuming the chart's default flags.");
        findings.push(Finding::unknown(why).then(installation.in_pod(&format!("deployment/{name}"))));
    }
    findings
}

/// Whether the cluster is supported, and the manager has the version of this program. `manager` is the manager's version, if
/// it is known.
pub fn versions(installation: &Installation, server: &Fact<String>, manager: Option<&str>) -> Vec<Finding> {
    let mut findings = vec![match server {
        Err(why) => Finding::unknown(why),
        Ok(version) => match minor(version) {
            None => Finding::unknown(format!("The API server has the unknown version {version:?}.")),
            Some(minor) if minor < OLDEST_MINOR => Finding::problem(
                format!("Kubernetes {version} is older than 1.{OLDEST_MINOR}, the oldest supported version."),
                "kubectl version",
            ),
            Some(_) => Finding::well(format!("Kubernetes {version}, quintet {VERSION}.")),
        },
    }];
    let in_pod = installation.in_pod(&format!("deployment/{}", installation.manager.deployment));
    match manager {
        None => findings.push(Finding::unknown("The version of the manager is unknown.").then(in_pod)),
        Some(VERSION) => {}
        Some(other) => {
            let why = format!(
                "The manager has version {other}. The checks of CustomResourceDefinitions and permissions compare with {VERSION}."
            );
            findings.push(Finding::problem(why, in_pod));
        }
    }
    findings
}

/// The minor version in `v1.33.2` or `v1.33.2-gke.1`; None for another major version.
fn minor(version: &str) -> Option<u32> {
    version.strip_prefix("v1.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::installation::usual;
    use super::*;
    use serde_json::json;

    #[expect(clippy::unnecessary_wraps, reason = "the checks take facts that may be missing")]
    fn facts(outcome: Result<&str, &str>, watched: u64, pod_exists: bool) -> Fact<LeaseFacts> {
        Ok(LeaseFacts {
            outcome: outcome.map(str::to_owned).map_err(str::to_owned),
            lease: Some(json!({ "spec": { "holderIdentity": "pod-1_uuid", "leaseDurationSeconds": 15 } })),
            watched: Duration::from_secs(watched),
            pod_exists: Ok(pod_exists),
        })
    }

    fn only(findings: Vec<Finding>) -> (Verdict, String) {
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.into_iter().map(|one| (one.verdict, one.sentence)).next().unwrap()
    }

    #[test]
    fn a_leader_renews_and_has_a_pod() {
        let mut installation = usual();
        let check = |installation: &Installation, facts| only(leader(installation, &facts));
        let (verdict, text) = check(&installation, facts(Ok("pod-1 leads"), 5, true));
        assert_eq!((verdict, &*text), (Verdict::Well, "pod-1 leads."));
        let (verdict, text) = check(&installation, facts(Ok("pod-1 leads"), 5, false));
        assert_eq!(verdict, Verdict::Problem);
        assert!(text.contains("namespace ns has no pod pod-1"), "{text}");
        let unread = LeaseFacts { pod_exists: Err("denied".to_owned()), ..facts(Ok("x"), 5, true).unwrap() };
        let findings = leader(&installation, &Ok(unread.clone()));
        assert_eq!(findings, [Finding::well("x."), Finding::unknown("denied")]);
        installation.replicas = 0;
        assert_eq!(check(&installation, facts(Ok("x"), 5, false)).0, Verdict::Well, "it runs elsewhere");
        assert_eq!(check(&installation, Ok(unread)).0, Verdict::Well, "the pod is not needed");
    }

    #[test]
    fn without_election_only_one_pod_may_write() {
        let mut installation = usual();
        installation.flags.elects = false;
        let check = |installation: &Installation| only(leader(installation, &Err("denied".to_owned())));
        assert_eq!(check(&installation).0, Verdict::Well);
        installation.replicas = 2;
        let (verdict, text) = check(&installation);
        assert_eq!(verdict, Verdict::Problem);
        assert!(text.ends_with("has 2 replicas: all write."), "{text}");
    }

    #[test]
    fn a_silent_holder_is_a_problem_after_the_lease_duration() {
        let check = |facts| only(leader(&usual(), &facts));
        let (verdict, text) = check(facts(Err("not renewed"), 15, false));
        assert_eq!((verdict, &*text), (Verdict::Problem, "not renewed. Pod pod-1 does not exist."));
        assert_eq!(check(facts(Err("not renewed"), 14, false)).0, Verdict::Unknown);
        let free = LeaseFacts { lease: None, ..facts(Err("No pod leads"), 0, false).unwrap() };
        assert_eq!(check(Ok(free)), (Verdict::Problem, "No pod leads.".to_owned()));
        assert_eq!(check(Err("denied".to_owned())), (Verdict::Unknown, "denied".to_owned()));
    }

    #[test]
    fn reports_a_missing_or_unready_deployment() {
        let check = |deployment| managers(&usual(), &deployment);
        let ready = json!({ "metadata": { "generation": 1 }, "spec": { "replicas": 1 },
            "status": { "observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1 } });
        let mut unready = ready.clone();
        unready["status"]["readyReplicas"] = json!(0);
        let (verdict, text) = only(check(Ok(Some(ready.clone()))));
        assert_eq!((verdict, &*text), (Verdict::Well, "1 of 1 managers are ready."));
        assert_eq!(only(check(Ok(Some(unready)))).0, Verdict::Problem);
        assert_eq!(only(check(Ok(None))).0, Verdict::Problem);
        assert_eq!(only(check(Err("denied".to_owned()))).0, Verdict::Unknown);
        let installation = Installation { assumed: Some("bad flag".to_owned()), ..usual() };
        let findings = managers(&installation, &Ok(Some(ready)));
        assert_eq!(findings[1].verdict, Verdict::Unknown);
        assert!(findings[1].sentence.contains("bad flag"), "{findings:?}");
    }

    #[test]
    fn compares_versions() {
        let check = |server: &str, manager: Option<&str>| -> Vec<Verdict> {
            let findings = versions(&usual(), &Ok(server.to_owned()), manager);
            findings.iter().map(|finding| finding.verdict).collect()
        };
        assert_eq!(check("v1.33.0", Some(VERSION)), [Verdict::Well]);
        assert_eq!(check("v1.32.9-eks-1", Some(VERSION)), [Verdict::Problem]);
        assert_eq!(check("v2.0.0", Some(VERSION)), [Verdict::Unknown]);
        assert_eq!(check("", Some(VERSION)), [Verdict::Unknown]);
        assert_eq!(check("v1.33.0", None), [Verdict::Well, Verdict::Unknown]);
        assert_eq!(check("v1.37.1", Some("9.9.9")), [Verdict::Well, Verdict::Problem]);
        assert_eq!(versions(&usual(), &Err("away".to_owned()), None)[0].verdict, Verdict::Unknown);
    }
}
