//! Shared by all end-to-end tests: a namespace, simulated nodes, and a manager with the rights of the chart.
//!
//! `cargo xtask test` brings the cluster up, installs the chart, and names the cluster by a variable.

pub mod audit;
pub mod health;
pub mod objects;
pub mod shell;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use quintet_kinds::KINDS;
use quintet_localcluster::audit::Request;
use quintet_localcluster::chart;
use quintet_localcluster::cluster::{Cluster, UpOptions};
use quintet_localcluster::kube::Kube;
use quintet_localcluster::manager::{Manager, ManagerOptions};
use quintet_localcluster::run;
use quintet_localcluster::temporary::Temporary;
use quintet_localcluster::variables;
use serde_json::{Value, json};

use crate::audit::Audit;
use crate::objects::{Objects, Watch};

/// How long a test waits for a state. Generous, because the machines are small and busy.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// kubectl's flag for the ClusterRole of the release's manager.
pub const MANAGER_ROLE: &str = "--clusterrole=quintet.quintet-system";

/// The pause between two reads.
const PAUSE: Duration = Duration::from_millis(100);

/// The namespace and the nodes of one test, deleted on drop. After a failure, drop prints the manager's log.
/// Otherwise, drop panics if the chart's guard rails denied a request of a manager.
pub struct TestEnv {
    cluster: Cluster,
    objects: Objects,
    audit: Audit,
    namespace: String,
    managers: RefCell<Vec<String>>,
    /// Whether the guard rails may deny requests of the managers.
    expects_denials: Cell<bool>,
    /// Takes down the cluster that belongs to this test alone.
    own: Option<Temporary>,
}

impl TestEnv {
    /// Creates a namespace whose name contains the test's.
    pub fn new(test: &str) -> Self {
        Self::within(cluster(), test, None)
    }

    /// Brings up a cluster for this test alone, without nodes: for a test that disturbs the cluster.
    pub fn alone(test: &str) -> Self {
        let own = Temporary::new(test);
        let (cluster, _) =
            Cluster::up(&UpOptions { name: own.name(), nodes: Some(0), ..UpOptions::default() })
                .expect("the cluster comes up");
        let env = Self::within(cluster, test, Some(own));
        chart::install(env.kube()).expect("the chart is installed");
        env
    }

    fn within(cluster: Cluster, test: &str, own: Option<Temporary>) -> Self {
        static SERIAL: AtomicUsize = AtomicUsize::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("e2e-{test}-{}-{serial}", std::process::id());
        run::stdout(cluster.kubectl().args(["create", "namespace", &namespace]))
            .expect("kubectl creates the namespace");
        Self {
            objects: Objects::new(cluster.kubeconfig()),
            audit: Audit::of(&cluster),
            cluster,
            namespace,
            managers: RefCell::default(),
            expects_denials: Cell::default(),
            own,
        }
    }

    /// The namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The client of the cluster.
    pub fn kube(&self) -> &Kube {
        self.cluster.kube()
    }

    /// Starts a manager that serves only this namespace and these kinds.
    pub fn manager(&self, controllers: &str) -> Manager {
        self.manager_with("manager", controllers, &[])
    }

    /// Starts the manager with all kinds, and with [`TestEnv::node_marks`].
    pub fn manager_of_all(&self) -> Manager {
        let kinds = KINDS.map(|kind| kind.controller).join(",");
        self.manager_with("manager", &kinds, &[&self.node_marks()])
    }

    /// The manager's flag that lets DaemonJobs of this namespace change labels and taints of `example.com`.
    pub fn node_marks(&self) -> String {
        format!("--daemon-job-node-marks={}=example.com/", self.namespace)
    }

    /// Starts a manager with another name and further flags.
    pub fn manager_with(&self, name: &str, controllers: &str, more: &[&str]) -> Manager {
        let name = format!("{}-{name}", self.namespace);
        if !self.managers.borrow().contains(&name) {
            self.managers.borrow_mut().push(name.clone());
        }
        let mut args = vec![
            format!("--watch-namespace={}", self.namespace),
            format!("--controllers={controllers}"),
            "--log-level=debug,hyper_util=info,tower=info,h2=info,rustls=info".to_owned(),
        ];
        args.extend(more.iter().map(|&arg| arg.to_owned()));
        let options = ManagerOptions {
            name,
            leader_elect: false,
            args,
            program: Some(program()),
            ..ManagerOptions::default()
        };
        Manager::start(self.kube(), &options).expect("the manager starts")
    }

    /// Starts the program for this namespace and these kinds without waiting until it is ready, so that a
    /// test can kill it during its start. It has the rights of a manager that was started before.
    pub fn bare_manager(&self, controllers: &str) -> Child {
        self.bare_manager_printing(controllers, Stdio::null())
    }

    /// Like [`TestEnv::bare_manager`], with the given standard output.
    pub fn bare_manager_printing(&self, controllers: &str, stdout: impl Into<Stdio>) -> Child {
        self.bare_command(controllers).stdout(stdout).spawn().expect("the manager's program runs")
    }

    /// The command of [`TestEnv::bare_manager`].
    pub fn bare_command(&self, controllers: &str) -> Command {
        let name = format!("{}-manager", self.namespace);
        let kubeconfig = self.kube().dir().join(format!("{name}.kubeconfig"));
        if !kubeconfig.exists() {
            drop(self.manager(controllers));
        }
        let log = self.kube().log(&format!("{name}.log"));
        let log = File::options().append(true).open(log).expect("the manager's log can be written");
        let mut command = Command::new(program());
        command
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg(format!("--watch-namespace={}", self.namespace))
            .arg(format!("--controllers={controllers}"))
            .args(["--metrics-bind-address=0", "--health-probe-bind-address=0"])
            .stdout(Stdio::null())
            .stderr(log);
        command
    }

    /// Lets the chart's ServiceAccount use Leases in this namespace, for managers that elect a leader here.
    pub fn allow_leases(&self) {
        let verbs = "--verb=create,get,update,watch";
        self.kubectl(&["create", "role", "leases", verbs, "--resource=leases.coordination.k8s.io"])
            .expect("kubectl creates the Role");
        let account = "--serviceaccount=quintet-system:quintet";
        self.kubectl(&["create", "rolebinding", "leases", "--role=leases", account])
            .expect("kubectl binds it");
    }

    /// Runs kubectl in this namespace and returns its standard output, or its error.
    pub fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        run::stdout(self.kube().kubectl().args(["-n", &self.namespace]).args(args))
            .map_err(|error| format!("{error:#}"))
    }

    /// Applies one object, in this namespace unless it is cluster-scoped.
    pub fn apply(&self, object: &Value) -> Result<String, String> {
        run::stdout_with_input(
            self.kube().kubectl().args(["-n", &self.namespace, "apply", "-f", "-"]),
            Some(&object.to_string()),
        )
        .map_err(|error| format!("{error:#}"))
    }

    /// Applies a file of `samples` in this namespace.
    pub fn apply_sample(&self, path: &str) -> Result<String, String> {
        let file = workspace().join("samples").join(path);
        run::stdout(self.kube().kubectl().args(["-n", &self.namespace, "apply", "-f"]).arg(file))
            .map_err(|error| format!("{error:#}"))
    }

    /// Returns the object, or `None` if it does not exist.
    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        answered(|| self.objects.get(&self.namespace, kind, name))
    }

    /// The objects of a kind that match the selector.
    pub fn list(&self, kind: &str, selector: &str) -> Vec<Value> {
        answered(|| self.objects.list(&self.namespace, kind, selector))
    }

    /// Waits until `ready` is true for an object. A failure prints the object as it was last.
    pub fn wait_for(&self, kind: &str, name: &str, what: &str, ready: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let waited = run::poll(what, PATIENCE, PAUSE, || {
            last = self.get(kind, name).unwrap_or_default();
            Ok(ready(&last).then(|| last.clone()))
        });
        waited.unwrap_or_else(|error| panic!("{error}\n{kind} {name} is {last:#}"))
    }

    /// Waits until `ready` is true. `what` completes the sentence "waiting until …".
    pub fn wait(&self, what: &str, ready: impl Fn() -> bool) {
        run::poll(what, PATIENCE, PAUSE, || Ok(ready().then_some(())))
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// Rejects requests in this namespace by a policy, until [`Self::allow`]. The policy takes effect a moment later.
    pub fn forbid(&self, operation: &str, (group, resource): (&str, &str)) {
        let name = self.namespace();
        let spec = json!({
            "matchConstraints": {
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } },
                "resourceRules": [{ "apiGroups": [group], "apiVersions": ["*"], "operations": [operation],
                    "resources": [resource] }],
            },
            "validations": [{ "expression": "false", "message": "a policy of the test" }],
        });
        let binding = json!({ "policyName": name, "validationActions": ["Deny"] });
        for (kind, spec) in
            [("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", binding)]
        {
            let object = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
                "metadata": { "name": name }, "spec": spec });
            self.apply(&object).expect("kubectl applies");
        }
    }

    /// Ends [`Self::forbid`].
    pub fn allow(&self) {
        for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
            self.kubectl(&["delete", kind, self.namespace()]).expect("kubectl deletes");
        }
    }

    /// Lets the chart's guard rails deny requests of this test's managers.
    pub fn expect_denials(&self) {
        self.expects_denials.set(true);
    }

    /// Whether a request concerns this test: its namespace, a namespace or Node whose name begins so, or its own cluster.
    fn concerns(&self, request: &Request) -> bool {
        let is_ours = |name: &str| {
            name.strip_prefix(&self.namespace).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        };
        let Request { namespace, name, .. } = request;
        self.own.is_some() || is_ours(namespace) || namespace.is_empty() && is_ours(name)
    }

    /// Applies a JSON merge patch. A subresource may follow a slash, as in `pod/status`.
    pub fn patch(&self, kind: &str, name: &str, patch: &Value) {
        let (kind, subresource) = kind.split_once('/').unwrap_or((kind, ""));
        let subresource = format!("--subresource={subresource}");
        let mut args = vec!["patch", kind, name, "--type=merge"];
        if subresource != "--subresource=" {
            args.push(&subresource);
        }
        let patch = patch.to_string();
        args.extend(["-p", &patch]);
        self.kubectl(&args).expect("kubectl patches");
    }

    /// Creates a simulated Node with the label `env=<namespace>`, waits until it is Ready; returns its name.
    pub fn node(&self, name: &str) -> String {
        self.nodes([name]).remove(0)
    }

    /// Creates several Nodes at once, as [`TestEnv::node`] does.
    pub fn nodes<N: std::fmt::Display>(&self, names: impl IntoIterator<Item = N>) -> Vec<String> {
        let names: Vec<String> = names.into_iter().map(|name| format!("{}-{name}", self.namespace)).collect();
        let nodes: Vec<Value> = names
            .iter()
            .map(|name| {
                json!({
                    "apiVersion": "v1", "kind": "Node",
                    "metadata": { "name": name, "labels": { "env": self.namespace, "kubernetes.io/hostname": name } },
                    "status": {
                        "allocatable": { "cpu": "32", "memory": "256Gi", "pods": "110" },
                        "capacity": { "cpu": "32", "memory": "256Gi", "pods": "110" },
                    },
                })
            })
            .collect();
        self.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": nodes }))
            .expect("kubectl creates the Nodes");
        self.wait("the Nodes are Ready", || {
            // The not-ready taint disappears a moment after the Node becomes Ready.
            let ready = |node: &Value| {
                condition(node, "Ready").0 == "True"
                    && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
                    && node["metadata"]["name"]
                        .as_str()
                        .is_some_and(|name| names.iter().any(|one| one == name))
            };
            let nodes = self.list("nodes", &format!("env={}", self.namespace));
            nodes.iter().filter(|node| ready(node)).count() == names.len()
        });
        names
    }

    /// Watches objects of the test's namespace; see [`Objects::watch`].
    pub fn watch(&self, kind: &str, selector: &str) -> Watch {
        self.objects.watch(&self.namespace, kind, selector)
    }

    /// How many dry runs of creations the API server has answered.
    pub fn dry_runs(&self) -> usize {
        self.audit.requests(|one| one.namespace == self.namespace && one.is_dry_run()).len()
    }

    /// The codes of the answers to managers' writes to a Node of [`TestEnv::node`], from the audit log.
    pub fn node_writes(&self, node: &str) -> Vec<u16> {
        let writes =
            self.audit.requests(|one| one.resource.split('/').next() == Some("nodes") && one.name == node);
        writes.iter().map(|one| one.code).collect()
    }

    /// The managers' writes in this namespace, from the API server's audit log, without Events and Leases. Each is a
    /// line `verb resource[/subresource] code`.
    pub fn writes(&self) -> Vec<String> {
        let writes = self.audit.writes(&self.namespace);
        writes
            .iter()
            .map(|Request { verb, resource, code, .. }| format!("{verb} {resource} {code}"))
            .collect()
    }

    /// Waits for `count` writes, then returns all. The audit log shows a request a moment after its answer.
    pub fn writes_when(&self, count: usize) -> Vec<String> {
        self.wait(&format!("{count} writes are in the audit log"), || self.writes().len() >= count);
        self.writes()
    }

    /// Waits until two seconds pass without a write, then returns all writes.
    pub fn writes_at_rest(&self) -> Vec<String> {
        let mut before = None;
        run::poll("no manager has written for 2 s", PATIENCE, Duration::from_secs(2), || {
            let now = self.writes();
            let is_at_rest = before.as_ref() == Some(&now);
            before = Some(now.clone());
            Ok(is_at_rest.then_some(now))
        })
        .unwrap_or_else(|error| panic!("{error}: {before:?}"))
    }

    /// The number of times that managers created a pod of each name in this namespace, from the audit log.
    pub fn created_pods(&self) -> BTreeMap<String, usize> {
        self.audit.created_pods(&self.namespace)
    }
}

/// A small random number generator. It prints its seed, so that a failure can be repeated.
pub struct Dice(u64);

impl Dice {
    /// Seeds the generator with the time of day.
    #[allow(clippy::new_without_default, reason = "two generators differ")]
    pub fn new() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let seed = now.as_nanos().try_into().unwrap_or(u64::MAX) | 1;
        println!("the dice's seed is {seed}");
        Self(seed)
    }

    /// The next number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in self.managers.borrow().iter() {
                let log = fs::read_to_string(self.kube().log(&format!("{name}.log"))).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines.len().saturating_sub(80);
                eprintln!("--- {name}.log, last lines ---\n{}\n---", lines[tail..].join("\n"));
            }
        }
        if self.own.is_none() {
            let delete = |what: &[&str]| {
                let _ = run::stdout(self.cluster.kubectl().args(["delete", "--wait=false"]).args(what));
            };
            delete(&["namespace", &self.namespace]);
            delete(&["nodes", "-l", &format!("env={}", self.namespace)]);
        }
        if !std::thread::panicking() && !self.expects_denials.get() {
            // The policy of the test has the name of the namespace; see `forbid`.
            let own = format!("ValidatingAdmissionPolicy '{}' ", self.namespace);
            self.audit.assert_no_denials(|one| self.concerns(one) && !one.message.contains(&own));
        }
    }
}

/// Whether a manager has finished a reconcile of this controller successfully.
pub fn has_made_a_pass(manager: &Manager, controller: &str) -> bool {
    let passes =
        format!("controller_runtime_reconcile_total{{controller=\"{controller}\",result=\"success\"}} ");
    let metrics = manager.metrics().unwrap_or_default();
    metrics.lines().any(|line| line.starts_with(&passes) && !line.ends_with(" 0"))
}

/// Status and reason of a condition; both are empty if the object does not have it.
pub fn condition(object: &Value, type_: &str) -> (String, String) {
    let part = |condition: &Value, member: &str| condition[member].as_str().unwrap_or_default().to_owned();
    object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == type_)
        .map(|condition| (part(condition, "status"), part(condition, "reason")))
        .unwrap_or_default()
}

/// Repeats `ask` until it succeeds, because a busy API server may not answer a request in time.
pub fn answered<T, E: Display>(ask: impl Fn() -> Result<T, E>) -> T {
    let mut last = String::new();
    let answer = run::poll("the API server answers", PATIENCE, PAUSE, || {
        Ok(match ask() {
            Ok(answer) => Some(answer),
            Err(error) => {
                last = format!("{error:#}");
                None
            }
        })
    });
    answer.unwrap_or_else(|error| panic!("{error}: {last}"))
}

/// The cluster that `cargo xtask test` brought up.
pub fn cluster() -> Cluster {
    let name = std::env::var(variables::CLUSTER).unwrap_or_else(|_| {
        panic!("{} names no cluster: run end-to-end tests with `cargo xtask test`", variables::CLUSTER)
    });
    Cluster::open(&name).expect("the cluster is up")
}

/// The path of the manager's program.
pub fn program() -> PathBuf {
    std::env::var_os(variables::PROGRAM).map_or_else(
        || panic!("{} names no program: run end-to-end tests with `cargo xtask test`", variables::PROGRAM),
        PathBuf::from,
    )
}

/// The path of the checkout.
pub fn workspace() -> PathBuf {
    quintet_localcluster::paths::workspace().to_owned()
}
