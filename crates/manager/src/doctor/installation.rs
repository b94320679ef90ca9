//! The installation: the manager's Deployment, and its flags.

use std::net::SocketAddr;

use serde_json::Value;

use super::finding::Fact;
use crate::uninstall::{CONTAINER, Lease, LeaseArgs, Manager};

/// The flags that a check reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the manager")]
pub struct Flags {
    /// The names of the enabled controllers.
    pub kinds: Vec<&'static str>,
    /// The watched namespaces; empty for all.
    pub namespaces: Vec<String>,
    /// Whether DaemonJobs may change Nodes.
    pub has_node_marks: bool,
    /// Whether PulsarConsumers may have objects of KEDA.
    pub has_keda: bool,
    /// Whether the manager removes finalizers of disabled kinds.
    pub sweeps: bool,
    /// Whether the managers elect a leader.
    pub elects: bool,
    /// The namespace of the Lease, if not the manager's.
    pub lease_namespace: Option<String>,
    /// The name of the Lease.
    pub lease_name: String,
    /// The address of the debug pages.
    pub debug: Option<SocketAddr>,
    /// The port of the metrics.
    pub metrics_port: Option<u16>,
}

/// Parses a manager's command line. An error is one line.
pub type Parser = fn(&[String]) -> Result<Flags, String>;

/// The flags of a manager whose Deployment cannot be read, as in the chart.
const USUAL: [&str; 3] = ["quintet", "--leader-elect", "--debug-bind-address=127.0.0.1:8082"];
/// The beginning of the environment variables that set flags.
const VARIABLE: &str = "QUINTET_";

/// The installation, as far as it is known.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The Deployment.
    pub manager: Manager,
    /// The Lease.
    pub lease: Lease,
    /// The manager's flags.
    pub flags: Flags,
    /// Why the flags are those of the chart.
    pub assumed: Option<String>,
    /// The user name of the manager's ServiceAccount.
    pub account: String,
    /// The version label of the Deployment.
    pub version: Option<String>,
    /// How many pods the Deployment wants; 0 if it cannot be read. Without pods, the manager runs elsewhere.
    pub replicas: i64,
    /// The labels of its pods.
    pub selector: String,
    /// The command that installs the CustomResourceDefinitions and roles of a version.
    pub upgrade: String,
}

impl Installation {
    /// The installation of this Deployment. `lease` has the user's flags.
    pub fn of(
        manager: Manager,
        lease: &LeaseArgs,
        deployment: &Fact<Option<Value>>,
        parse: Parser,
    ) -> Result<Self, String> {
        let Manager { namespace, deployment: name } = &manager;
        let found = deployment.as_ref().ok().and_then(Option::as_ref);
        let parsed = found.map(|found| parse(&line(&found["spec"]["template"]["spec"], namespace)));
        let (flags, assumed) = match parsed {
            Some(Ok(flags)) => (flags, None),
            Some(Err(why)) => (parse(&USUAL.map(str::to_owned))?, Some(why)),
            None => (parse(&USUAL.map(str::to_owned))?, None),
        };
        let spec = |pointer: &str| found.and_then(|found| found["spec"].pointer(pointer));
        let account = spec("/template/spec/serviceAccountName").and_then(Value::as_str);
        // The chart names the ServiceAccount like the Deployment.
        let account = account.unwrap_or(if found.is_some() { "default" } else { name });
        let labels = spec("/selector/matchLabels").and_then(Value::as_object).into_iter().flatten();
        let labels = labels.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
        let label = |key: &str| {
            let of_app = format!("app.kubernetes.io/{key}");
            found.and_then(|found| found["metadata"]["labels"][of_app].as_str())
        };
        let of_lease = Lease {
            namespace: flags.lease_namespace.clone().unwrap_or_else(|| namespace.clone()),
            name: flags.lease_name.clone(),
        };
        Ok(Self {
            lease: lease.or(of_lease),
            flags,
            assumed,
            account: format!("system:serviceaccount:{namespace}:{account}"),
            version: label("version").map(str::to_owned),
            replicas: found.map_or(0, |found| found["spec"]["replicas"].as_i64().unwrap_or(1)),
            selector: labels.collect::<Vec<_>>().join(","),
            upgrade: if found.is_some() && label("managed-by") != Some("Helm") {
                "kubectl apply -k config/default".to_owned()
            } else {
                let release = label("instance").unwrap_or("quintet");
                format!(
                    "helm upgrade {release} charts/quintet --namespace {namespace} --reset-then-reuse-values"
                )
            },
            manager,
        })
    }

    /// The command that prints the last log lines of all managers.
    pub fn logs(&self) -> String {
        let Manager { namespace, deployment } = &self.manager;
        format!("kubectl logs --namespace {namespace} deployment/{deployment} --all-pods --tail=20")
    }

    /// The command that runs this program in a pod.
    pub fn in_pod(&self, pod: &str) -> String {
        format!("kubectl exec --namespace {} {pod} -- /quintet doctor", self.manager.namespace)
    }
}

/// The Deployment of the manager's pod with this name: the name without the hashes of the ReplicaSet and the pod.
pub fn manager_of_pod(namespace: &str, pod: &str) -> Option<Manager> {
    let mut parts = pod.rsplitn(3, '-');
    let (_, _, deployment) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Manager { namespace: namespace.to_owned(), deployment: deployment.to_owned() })
}

/// The command line of the manager in a pod spec. A flag wins over the environment variable of the same name.
fn line(spec: &Value, namespace: &str) -> Vec<String> {
    let mut containers = spec["containers"].as_array().into_iter().flatten();
    let mut line = vec!["quintet".to_owned()];
    let Some(container) = containers.find(|container| container["name"] == CONTAINER) else {
        return line;
    };
    let list = |field: &str| container[field].as_array().into_iter().flatten();
    let args: Vec<String> = list("args")
        .filter_map(Value::as_str)
        .map(|arg| arg.replace("$(POD_NAMESPACE)", namespace))
        .collect();
    for variable in list("env") {
        let (Some(name), Some(value)) = (variable["name"].as_str(), variable["value"].as_str()) else {
            continue;
        };
        let Some(name) = name.strip_prefix(VARIABLE) else { continue };
        let flag = format!("--{}", name.to_lowercase().replace('_', "-"));
        if !args.iter().any(|arg| arg.split('=').next() == Some(flag.as_str())) {
            line.push(format!("{flag}={value}"));
        }
    }
    line.extend(args);
    line
}

/// The installation of a Deployment of the chart, for tests of the checks.
#[cfg(test)]
pub fn usual() -> Installation {
    let flags = Flags {
        kinds: vec!["daemonjob", "book"],
        namespaces: Vec::new(),
        has_node_marks: false,
        has_keda: true,
        sweeps: true,
        elects: true,
        lease_namespace: None,
        lease_name: "quintet-manager".to_owned(),
        debug: None,
        metrics_port: Some(8080),
    };
    Installation {
        manager: Manager { namespace: "ns".to_owned(), deployment: "quintet".to_owned() },
        lease: Lease { namespace: "ns".to_owned(), name: flags.lease_name.clone() },
        flags,
        assumed: None,
        account: "system:serviceaccount:ns:quintet".to_owned(),
        version: None,
        replicas: 1,
        selector: "app=quintet".to_owned(),
        upgrade: "helm upgrade".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Accepts a line whose last word is a Lease.
    fn parse(line: &[String]) -> Result<Flags, String> {
        match line.last().map(String::as_str) {
            Some("--bad") => Err("unexpected argument --bad".to_owned()),
            Some(last) => Ok(Flags { lease_name: last.to_owned(), ..usual().flags }),
            None => Err("no line".to_owned()),
        }
    }

    fn of(deployment: &Fact<Option<Value>>) -> Installation {
        let manager = Manager { namespace: "ns".to_owned(), deployment: "q".to_owned() };
        Installation::of(manager, &LeaseArgs::default(), deployment, parse).unwrap()
    }

    #[test]
    fn reads_the_deployment() {
        let found = of(&Ok(Some(json!({
            "metadata": { "labels": { "app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/instance": "mine",
                "app.kubernetes.io/version": "9.9.9" } },
            "spec": { "replicas": 0, "selector": { "matchLabels": { "a": "b", "c": "d" } },
                "template": { "spec": { "serviceAccountName": "sa",
                    "containers": [{ "name": "sidecar" }, { "name": "manager", "args": ["lease"] }] } } } }))));
        assert_eq!(found.lease.name, "lease");
        assert_eq!(found.account, "system:serviceaccount:ns:sa");
        assert_eq!((found.version.as_deref(), found.replicas), (Some("9.9.9"), 0));
        assert_eq!(found.selector, "a=b,c=d");
        assert!(found.upgrade.starts_with("helm upgrade mine "), "{}", found.upgrade);
        assert_eq!(found.assumed, None);
    }

    #[test]
    fn assumes_the_flags_of_the_chart() {
        let other = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "manager", "args": ["--bad"] }] } } } });
        let found = of(&Ok(Some(other)));
        assert_eq!(found.assumed.as_deref(), Some("unexpected argument --bad"));
        assert_eq!((found.replicas, &*found.upgrade), (1, "kubectl apply -k config/default"));
        for unread in [Ok(None), Err("denied".to_owned())] {
            let found = of(&unread);
            assert_eq!(found.lease.name, USUAL[2], "the usual line");
            assert_eq!(found.account, "system:serviceaccount:ns:q");
            assert!(found.replicas == 0 && found.assumed.is_none());
        }
    }

    #[test]
    fn a_flag_wins_over_a_variable() {
        let spec = json!({ "containers": [{ "name": "manager",
            "args": ["--leader-elect", "--leader-election-namespace=$(POD_NAMESPACE)"],
            "env": [{ "name": "QUINTET_LEADER_ELECT", "value": "false" }, { "name": "POD_NAME", "value": "x" },
                { "name": "QUINTET_CONTROLLERS", "value": "book" }, { "name": "QUINTET_LOG_LEVEL", "valueFrom": {} }] }] });
        let expected =
            ["quintet", "--controllers=book", "--leader-elect", "--leader-election-namespace=home"];
        assert_eq!(line(&spec, "home"), expected);
    }

    #[test]
    fn finds_the_deployment_of_a_pod() {
        let manager = manager_of_pod("ns", "my-quintet-7c9f6b-x2x8q").unwrap();
        assert_eq!(manager, Manager { namespace: "ns".to_owned(), deployment: "my-quintet".to_owned() });
        assert_eq!(manager_of_pod("ns", "laptop"), None);
    }
}
