//! KEDA on a local cluster, with KEDA's own manifests. Its operator and its metrics adapter are processes, with the
//! arguments, the Secret and the permissions of the pods that they replace.
//!
//! The programs listen on all addresses, and an EndpointSlice may not contain a loopback address. So KEDA, the cluster and
//! its clients run in a network namespace of their own ([`in_namespace`]).

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::cluster::binaries::{self, Binaries, KEDA_ADAPTER, KEDA_OPERATOR};
use crate::cluster::processes::{self, Launch};
use crate::cluster::state;
use crate::kube::Kube;
use crate::progress::Step;
use crate::run::{self, Log};

/// The namespace in KEDA's manifests.
const NAMESPACE: &str = "keda";

/// The address of KEDA's programs: one for documentation (RFC 5737), which no real network has.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The port at which the metrics adapter asks the operator.
const OPERATOR_PORT: u16 = 9666;

/// The port of the metrics adapter in KEDA's manifests.
const ADAPTER_PORT: u16 = 6443;

/// The API that the metrics adapter serves.
const API_SERVICE: &str = "v1beta1.external.metrics.k8s.io";

/// The files of the Secret that KEDA's pods mount.
const CERTIFICATES: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// The time limit of each step of the start, on a busy machine.
const START_LIMIT: Duration = Duration::from_mins(2);

/// A command in a new network namespace with only loopback and [`ADDRESS`]. Needs root on Linux.
pub fn in_namespace(command: &Command) -> Command {
    let script = format!("ip link set lo up && ip address add {ADDRESS}/32 dev lo && exec \"$@\"");
    let mut inside = Command::new("unshare");
    inside.args(["--net", "--", "sh", "-c", &script, "sh"]);
    inside.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => inside.env(name, value),
            None => inside.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        inside.current_dir(dir);
    }
    inside
}

/// Installs KEDA, and waits until the API server serves external metrics. The cluster must not have nodes yet. KEDA's
/// processes stop with the cluster.
pub fn start(kube: &Kube) -> Result<()> {
    if TcpListener::bind((ADDRESS, 0)).is_err() {
        bail!(
            "KEDA listens on all addresses, so it needs a network namespace with the address {ADDRESS}: run \
             `cargo xtask test --keda`"
        );
    }
    let binaries = binaries::ensure(&binaries::KEDA)?;
    let step = Step::start("starting KEDA");
    let manifests = binaries::keda_source()?.join("config/minimal");
    run::stdout(kube.kubectl().args(["apply", "--server-side", "--kustomize"]).arg(manifests))?;
    // The processes are its pods.
    let scale = ["scale", "deployment", "--all", "--replicas=0", "--namespace", NAMESPACE];
    run::stdout(kube.kubectl().args(scale))?;
    run::stdout_with_input(kube.kubectl().args(["apply", "-f", "-"]), Some(&endpoints().to_string()))?;
    let pods = Pods::new(kube, &binaries)?;

    // The operator exits once it has written its certificates, so that the kubelet restarts it with them.
    let certificates = format!("--cert-dir={}", pods.certificates.display());
    let (mut first, log) = pods.run(KEDA_OPERATOR, &[&certificates])?;
    let exited = || first.try_wait().context("cannot wait for KEDA's operator");
    let status = run::poll("KEDA's operator writes its certificates", START_LIMIT, PAUSE, exited)
        .with_context(|| log.tail(15))?;
    if !status.success() {
        bail!("KEDA's operator failed; {}", log.tail(15));
    }
    pods.mount(kube)?;
    let (_, operator) = pods.run(KEDA_OPERATOR, &[&certificates])?;

    let kubeconfig = pods.kubeconfig.display();
    let arguments = [
        format!("--metrics-service-address={ADDRESS}:{OPERATOR_PORT}"),
        // The name in the operator's certificate.
        format!("--metrics-service-grpc-authority={KEDA_OPERATOR}.{NAMESPACE}.svc"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--lister-kubeconfig={kubeconfig}"),
        // The operator has the default port.
        "--port=0".to_owned(),
    ];
    let (_, adapter) = pods.run(KEDA_ADAPTER, &arguments.each_ref().map(String::as_str))?;
    let available = format!("apiservice/{API_SERVICE}");
    let timeout = format!("--timeout={}s", START_LIMIT.as_secs());
    run::stdout(kube.kubectl().args(["wait", "--for=condition=Available", &available, &timeout]))
        .with_context(|| {
            format!("KEDA's operator: {}\nits metrics adapter: {}", operator.tail(15), adapter.tail(15))
        })?;
    step.done();
    Ok(())
}

const PAUSE: Duration = Duration::from_millis(100);

/// The endpoint of the metrics adapter's Service, which has no pods.
fn endpoints() -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": KEDA_ADAPTER, "namespace": NAMESPACE,
            "labels": { "kubernetes.io/service-name": KEDA_ADAPTER } },
        "endpoints": [{ "addresses": [ADDRESS] }],
        "ports": [{ "name": "https", "port": ADAPTER_PORT, "protocol": "TCP" }],
    })
}

/// Starts the processes in place of the pods of KEDA's Deployments.
struct Pods<'a> {
    kube: &'a Kube,
    binaries: &'a Binaries,
    kubeconfig: PathBuf,
    certificates: PathBuf,
}

impl<'a> Pods<'a> {
    fn new(kube: &'a Kube, binaries: &'a Binaries) -> Result<Self> {
        let dir = kube.dir().join(NAMESPACE);
        let certificates = dir.join("certificates");
        state::create_private(&[&dir, &certificates])?;
        let kubeconfig = dir.join("kubeconfig");
        let config = kube.kubeconfig_of_service_account(NAMESPACE, KEDA_OPERATOR)?;
        state::write(&kubeconfig, config.as_bytes())?;
        Ok(Self { kube, binaries, kubeconfig, certificates })
    }

    /// Writes the files of the Secret, as a kubelet does for a new pod.
    fn mount(&self, kube: &Kube) -> Result<()> {
        for file in CERTIFICATES {
            let value = kube.secret_value(NAMESPACE, "kedaorg-certs", file)?;
            state::write(&self.certificates.join(file), value.as_bytes())?;
        }
        Ok(())
    }

    /// Starts the container of a Deployment with `more` arguments; the last of two equal flags wins.
    fn run(&self, name: &str, more: &[&str]) -> Result<(Child, Log)> {
        let deployment = self.kube.get(NAMESPACE, "deployment", name)?;
        let deployment = deployment.with_context(|| format!("KEDA's manifests have no Deployment {name}"))?;
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let mut command = Command::new(self.binaries.path(name)?);
        command.args(arguments(container, &self.certificates)).args(more);
        command.envs(variables(container)).env("KUBECONFIG", &self.kubeconfig).current_dir(self.kube.dir());
        // In a pod, KEDA reads its namespace from a file of the ServiceAccount.
        command.env("KEDA_CLUSTER_OBJECT_NAMESPACE", NAMESPACE);
        let log = Log::now(self.kube.log(&format!("{name}.log")));
        let launch = Launch {
            name,
            command,
            port: 0,
            fingerprint: String::new(),
            stdout: log.path.clone(),
            stderr: log.path.clone(),
        };
        let (_, child) = processes::start(&self.kube.dir().join("processes"), launch)?;
        Ok((child, log))
    }
}

/// The arguments of a container whose folder of certificates is at `certificates`.
fn arguments(container: &Value, certificates: &Path) -> Vec<String> {
    let lists = ["command", "args"].map(|list| container[list].as_array().into_iter().flatten());
    let words = lists.into_iter().flatten().filter_map(Value::as_str).skip(1);
    words.map(|word| word.replace("/certs", &certificates.display().to_string())).collect()
}

/// The environment of a container. All references are to the namespace.
fn variables(container: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let variable = |one: &Value| {
        let value = if one["valueFrom"].is_null() { text(&one["value"]) } else { NAMESPACE.to_owned() };
        (text(&one["name"]), value)
    };
    container["env"].as_array().into_iter().flatten().map(variable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_becomes_a_process() {
        let container = json!({
            "command": ["/keda-adapter"], "args": ["--secure-port=6443", "--cert-dir=/certs"],
            "env": [{ "name": "WATCH_NAMESPACE", "value": "" },
                { "name": "POD_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } }],
        });
        assert_eq!(arguments(&container, Path::new("/c")), ["--secure-port=6443", "--cert-dir=/c"]);
        let expected = [("WATCH_NAMESPACE", ""), ("POD_NAMESPACE", "keda")];
        assert_eq!(variables(&container), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn keeps_the_environment_inside_the_namespace() {
        let mut command = Command::new("cargo");
        command.arg("test").env("A", "b").env_remove("C").current_dir("/d");
        let inside = in_namespace(&command);
        let envs: Vec<_> = inside.get_envs().collect();
        assert_eq!(envs, [("A".as_ref(), Some("b".as_ref())), ("C".as_ref(), None)]);
        assert_eq!(inside.get_current_dir(), Some(Path::new("/d")));
        assert_eq!(inside.get_args().skip(5).collect::<Vec<_>>(), ["sh", "cargo", "test"]);
    }
}
