//! `cargo xtask consumers`: plays the kubelets of PulsarConsumers' pods on simulated nodes.
//!
//! kwok only reports that containers run. This module really runs them: a container is a `pulsar-consumer`
//! process on this machine with the pod's environment and Secrets. It probes the process's `/readyz` and
//! writes the results where a kubelet does, into the pod's status and Events.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::cluster::{Cluster, DEFAULT_NAME, ports};
use crate::kube::Kube;
use crate::{build, http, interrupt, protoc, run};

/// The pods that are run.
const SELECTOR: &str = "quintet.dev/kind=PulsarConsumer";
/// The pause between two checks of all pods.
const TICK: Duration = Duration::from_millis(250);
/// The pause between two probes of a container.
const PROBE: Duration = Duration::from_secs(1);
/// How long an exited container waits for its restart.
const BACKOFF: Duration = Duration::from_secs(10);
/// How long a container has to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(30);

/// Makes the API server annotate the pods of PulsarConsumers, so that kwok does not start them.
const POLICY: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata:
  name: consumers-are-run
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
      - {apiGroups: [""], apiVersions: [v1], resources: [pods], operations: [CREATE]}
    objectSelector:
      matchLabels: {quintet.dev/kind: PulsarConsumer}
  mutations:
    - patchType: ApplyConfiguration
      applyConfiguration:
        expression: 'Object{metadata: Object.metadata{annotations: {"kwok.quintet.dev/start": "never"}}}'
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata:
  name: consumers-are-run
spec:
  policyName: consumers-are-run
"#;

/// How long a policy may take to have effect.
const HEEDED: Duration = Duration::from_mins(1);

/// `cargo xtask consumers`.
#[derive(Debug, clap::Args)]
#[command(
    about = "Run the containers of PulsarConsumers on a local cluster, as processes of this machine",
    long_about = "Run the containers of PulsarConsumers on a local cluster, as processes of this machine.\n\n\
    The simulated nodes of a local cluster run no containers. For the pods of PulsarConsumers, this command \
    does the work of the kubelets. The command runs each container as a pulsar-consumer process with the pod's \
    environment and Secrets, and probes the process. The command runs until you interrupt it."
)]
pub struct Args {
    /// Name of the local cluster
    #[arg(long, default_value = DEFAULT_NAME)]
    name: String,
    /// The pulsar-consumer program to run (default: the command builds the program)
    #[arg(long)]
    program: Option<PathBuf>,
}

/// Runs the consumers of the pods that the manager creates, until the command is interrupted.
pub fn run(args: &Args) -> Result<()> {
    let cluster = Cluster::open(&args.name)?;
    let program = match &args.program {
        Some(program) => program.clone(),
        None => build::pulsar_programs()?.context(protoc::MISSING)?.swap_remove(0),
    };
    let kubelet = Kubelet::new(cluster.kube(), &program)?;
    eprintln!("running the pods of PulsarConsumers on cluster {}", cluster.name());
    kubelet.run(interrupt::check)
}

/// Makes the API server leave new pods of PulsarConsumers to [`Kubelet`]. Existing pods do not change.
pub fn take_over(kube: &Kube) -> Result<()> {
    run::stdout_with_input(kube.kubectl().args(["apply", "-f", "-"]), Some(POLICY))?;
    // A stored policy has effect only after a while.
    let probe = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "consumers-are-run", "namespace": "default", "labels": { "quintet.dev/kind": "PulsarConsumer" } },
        "spec": { "containers": [{ "name": "c", "image": "none" }] } });
    run::poll("the API server marks the pods of PulsarConsumers", HEEDED, Duration::from_millis(200), || {
        let create = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
        // Before the policy can be used, the API server may reject everything.
        let made = run::stdout_with_input(kube.kubectl().args(create), Some(&probe.to_string()));
        Ok(made.is_ok_and(|made| made.contains("kwok.quintet.dev/start")).then_some(()))
    })
}

type Pods = Arc<Mutex<BTreeMap<String, Value>>>;

/// Runs the pods of PulsarConsumers.
pub struct Kubelet {
    kube: Kube,
    program: PathBuf,
    pods: Pods,
    watch: Child,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.watch.kill();
        let _ = self.watch.wait();
    }
}

impl Kubelet {
    /// Begins to watch the pods. `program` is `pulsar-consumer`.
    pub fn new(kube: &Kube, program: &Path) -> Result<Self> {
        take_over(kube)?;
        let mut watch = kube
            .kubectl()
            .args(["get", "pods", "-A", "-l", SELECTOR, "-o", "json", "--watch", "--output-watch-events"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run kubectl")?;
        let pods = Pods::default();
        let (seen, stdout) = (pods.clone(), watch.stdout.take().context("kubectl has no stdout")?);
        thread::spawn(move || {
            let events = serde_json::Deserializer::from_reader(BufReader::new(stdout)).into_iter::<Value>();
            for mut event in events.map_while(Result::ok) {
                let pod = event["object"].take();
                let uid = text(&pod, "/metadata/uid").to_owned();
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if event["type"] == "DELETED" {
                    seen.remove(&uid)
                } else {
                    seen.insert(uid, pod)
                };
            }
        });
        Ok(Self { kube: kube.clone(), program: program.to_owned(), pods, watch })
    }

    /// Runs until `go_on` fails, then stops all containers.
    pub fn run(mut self, go_on: impl Fn() -> Result<()>) -> Result<()> {
        let mut containers = BTreeMap::new();
        let ended = loop {
            if let Err(error) = go_on() {
                break error;
            }
            if self.watch.try_wait()?.is_some() {
                break anyhow::anyhow!("kubectl stopped watching: is the cluster up?");
            }
            self.check_all(&mut containers);
            thread::sleep(TICK);
        };
        stop(containers.into_values().collect());
        Err(ended)
    }

    fn check_all(&self, containers: &mut BTreeMap<String, Container>) {
        let pods = self.pods.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_gone =
            |uid: &String| pods.get(uid).is_none_or(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
        let gone: Vec<String> = containers.keys().filter(|uid| is_gone(uid)).cloned().collect();
        stop(gone.iter().filter_map(|uid| containers.remove(uid)).collect());
        for (uid, pod) in pods.iter().filter(|(uid, _)| !is_gone(uid)) {
            let is_ours = pod["metadata"]["annotations"]["kwok.quintet.dev/start"] == "never";
            if !is_ours || !pod["spec"]["nodeName"].is_string() {
                continue;
            }
            if !containers.contains_key(uid) {
                containers.insert(uid.clone(), Container::new(&self.kube, pod));
            }
            let Some(container) = containers.get_mut(uid) else { continue };
            // Errors about a pod that was deleted meanwhile are expected.
            if let Err(error) = container.advance(&self.kube, &self.program)
                && self.pods.lock().unwrap_or_else(PoisonError::into_inner).contains_key(uid)
            {
                eprintln!("{}: {error:#}", container.name);
            }
        }
    }
}

/// Ends containers as kubelets do: SIGTERM, and SIGKILL after [`GRACE`].
fn stop(mut containers: Vec<Container>) {
    for container in &containers {
        container.signal(Signal::TERM);
    }
    let began = Instant::now();
    while containers.iter_mut().any(Container::runs) && began.elapsed() < GRACE {
        thread::sleep(Duration::from_millis(20));
    }
}

/// The one container of a pod.
struct Container {
    pod: Value,
    namespace: String,
    name: String,
    dir: PathBuf,
    log: PathBuf,
    child: Option<Child>,
    port: u16,
    /// The time of the last start.
    started: String,
    /// The status code of the last probe.
    code: Option<u16>,
    restarts: u32,
    not_before: Instant,
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Container {
    fn new(kube: &Kube, pod: &Value) -> Self {
        let (namespace, name) =
            (text(pod, "/metadata/namespace").to_owned(), text(pod, "/metadata/name").to_owned());
        Self {
            dir: kube.dir().join("consumers").join(text(pod, "/metadata/uid")),
            log: kube.log(&format!("{name}.log")),
            pod: pod.clone(),
            namespace,
            name,
            child: None,
            port: 0,
            started: String::new(),
            code: None,
            restarts: 0,
            not_before: Instant::now(),
        }
    }

    fn runs(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?));
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// Starts or probes the container, or reports its exit.
    fn advance(&mut self, kube: &Kube, program: &Path) -> Result<()> {
        if Instant::now() < self.not_before {
            return Ok(());
        }
        let Some(child) = &mut self.child else { return self.start(kube, program) };
        if let Some(status) = child.try_wait()? {
            self.child = None;
            self.code = None;
            self.restarts += 1;
            self.not_before = Instant::now() + BACKOFF;
            let last = json!({ "terminated": {
                "exitCode": status.code().unwrap_or(137), "reason": "Error",
                "message": self.last_words(),
            } });
            let state = json!({ "waiting": { "reason": "CrashLoopBackOff" } });
            return self.write_status(kube, "Running", &state, &last, false);
        }
        self.not_before = Instant::now() + PROBE;
        let code = http::get(self.port, "/readyz").map_or(0, |(code, _)| code);
        if self.code == Some(code) {
            return Ok(());
        }
        if code != 200 {
            let message = match code {
                0 => "Readiness probe failed: connect: connection refused".to_owned(),
                code => format!("Readiness probe failed: HTTP probe failed with statuscode: {code}"),
            };
            self.event(kube, "Unhealthy", &message)?;
        }
        self.write_status(kube, "Running", &self.running(), &json!({}), code == 200)?;
        self.code = Some(code);
        Ok(())
    }

    /// The end of its log, the termination message of `FallbackToLogsOnError`.
    fn last_words(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(2048)..]).into_owned()
    }

    fn start(&mut self, kube: &Kube, program: &Path) -> Result<()> {
        let container = self.pod["spec"]["containers"][0].clone();
        if let Err(missing) = self.mount(kube, &container) {
            self.not_before = Instant::now() + PROBE * 2;
            self.event(kube, "FailedMount", &format!("{missing:#}"))?;
            let state = json!({ "waiting": { "reason": "ContainerCreating" } });
            return self.write_status(kube, "Pending", &state, &json!({}), false);
        }
        self.port = ports::one()?;
        let mut command = Command::new(program);
        command.env_clear();
        for variable in container["env"].as_array().into_iter().flatten() {
            let name = text(variable, "/name");
            let value = match (name, variable.pointer("/valueFrom/fieldRef/fieldPath")) {
                // A pod has an address; processes share this machine's.
                ("PULSAR_HTTP_BIND_ADDRESS", _) => format!("127.0.0.1:{}", self.port),
                (_, Some(path)) if path == "metadata.name" => self.name.clone(),
                (_, Some(path)) => bail!("{name} is {path}, which is not supported here"),
                (_, None) => self.here(&container, text(variable, "/value")),
            };
            command.env(name, value);
        }
        let log = File::options().create(true).append(true).open(&self.log)?;
        let child = command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn();
        self.child = Some(child.with_context(|| format!("cannot run {}", program.display()))?);
        self.started = now();
        self.write_status(kube, "Running", &self.running(), &json!({}), false)
    }

    fn running(&self) -> Value {
        json!({ "running": { "startedAt": self.started } })
    }

    /// Translates a path in the container to one on this machine. Other values stay unchanged.
    fn here(&self, container: &Value, value: &str) -> String {
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            if let Some(rest) = value.strip_prefix(text(mount, "/mountPath")) {
                return format!("{}{rest}", self.dir.join(text(mount, "/name")).display());
            }
        }
        value.to_owned()
    }

    /// Writes the Secrets that the container mounts. Errors have the kubelet's words.
    fn mount(&self, kube: &Kube, container: &Value) -> Result<()> {
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            let name = text(mount, "/name");
            let volumes = self.pod["spec"]["volumes"].as_array();
            let volume = volumes.and_then(|all| all.iter().find(|one| one["name"] == *name));
            let Some(secret) = volume.map(|volume| &volume["secret"]).filter(|secret| secret.is_object())
            else {
                continue;
            };
            let failed = format!("MountVolume.SetUp failed for volume \"{name}\" :");
            let source = text(secret, "/secretName");
            let found = kube.get(&self.namespace, "secret", source)?;
            let Some(found) = found else { bail!("{failed} secret \"{source}\" not found") };
            let dir = self.dir.join(name);
            fs::create_dir_all(&dir)?;
            for item in secret["items"].as_array().into_iter().flatten() {
                let key = text(item, "/key");
                if found["data"][key].is_null() {
                    bail!("{failed} references non-existent secret key: {key}");
                }
                let value = kube.secret_value(&self.namespace, source, key)?;
                fs::write(dir.join(text(item, "/path")), value)?;
            }
        }
        Ok(())
    }

    fn write_status(&self, kube: &Kube, phase: &str, state: &Value, last: &Value, ready: bool) -> Result<()> {
        let now = now();
        let truth = |is: bool| if is { "True" } else { "False" };
        let condition =
            |type_: &str, is: bool| json!({ "type": type_, "status": truth(is), "lastTransitionTime": now });
        let container = &self.pod["spec"]["containers"][0];
        let status = json!({ "status": {
            "phase": phase,
            "conditions": [
                condition("PodScheduled", true), condition("Initialized", true),
                condition("ContainersReady", ready), condition("Ready", ready),
            ],
            "containerStatuses": [{
                "name": container["name"], "image": container["image"], "imageID": "", "ready": ready,
                "started": phase == "Running", "restartCount": self.restarts, "state": state, "lastState": last,
            }],
        } });
        let patch =
            ["patch", "pod", &self.name, "--subresource=status", "--type=merge", "-p", &status.to_string()];
        run::stdout(kube.kubectl().args(["-n", &self.namespace]).args(patch))?;
        Ok(())
    }

    /// Records an Event, one for each reason; a later message replaces an earlier one.
    fn event(&self, kube: &Kube, reason: &str, message: &str) -> Result<()> {
        let now = now();
        let event = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": { "name": format!("{}.{}", self.name, reason.to_lowercase()), "namespace": self.namespace },
            "involvedObject": { "apiVersion": "v1", "kind": "Pod", "name": self.name, "namespace": self.namespace,
                "uid": self.pod["metadata"]["uid"] },
            "reason": reason, "message": message, "type": "Warning", "count": 1,
            "firstTimestamp": now, "lastTimestamp": now, "source": { "component": "kubelet" },
        });
        run::stdout_with_input(kube.kubectl().args(["apply", "-f", "-"]), Some(&event.to_string()))?;
        Ok(())
    }
}

/// The time, in the format of the API.
fn now() -> String {
    jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default().to_string()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
