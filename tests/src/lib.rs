//! What every end-to-end test needs: a namespace of its own on a real API server, simulated nodes of its own, and a
//! manager that runs with the rights that the chart gives it.
//!
//! `cargo xtask test` brings the cluster up, installs the chart and says by environment which cluster it is.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use xtask::cluster::Cluster;
use xtask::kube::Kube;
use xtask::manager::{Manager, ManagerOptions};
use xtask::run;
use xtask::test::{CLUSTER_VARIABLE, PROGRAM_VARIABLE};

/// How long a test waits for what must come; generous, since the machines are small and busy.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// The user agent of every request of a manager.
pub const USER_AGENT: &str = "quintet/";

/// A test's own part of the cluster. What it made goes with it; on failure its manager's log is printed.
pub struct Arena {
    cluster: Cluster,
    namespace: String,
    managers: RefCell<Vec<String>>,
    nodes: RefCell<Vec<String>>,
}

impl Arena {
    /// A namespace named after the test.
    pub fn new(test: &str) -> Self {
        static SERIAL: AtomicUsize = AtomicUsize::new(0);
        let cluster = cluster();
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("e2e-{test}-{}-{serial}", std::process::id());
        run::stdout(cluster.kubectl().args(["create", "namespace", &namespace]))
            .expect("the namespace is made");
        Self { cluster, namespace, managers: RefCell::default(), nodes: RefCell::default() }
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// How to reach the cluster.
    pub fn kube(&self) -> &Kube {
        self.cluster.kube()
    }

    /// A manager that acts in this namespace alone, for these kinds.
    pub fn manager(&self, controllers: &str) -> Manager {
        self.manager_with("manager", controllers, &[])
    }

    /// A manager of another name, with further flags.
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

    /// kubectl in this namespace; what it prints, or what it says when it fails.
    pub fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        run::stdout(self.kube().kubectl().args(["-n", &self.namespace]).args(args))
            .map_err(|error| format!("{error:#}"))
    }

    /// `kubectl apply` of one object, in this namespace unless it is cluster-scoped.
    pub fn apply(&self, object: &Value) -> Result<String, String> {
        run::stdout_with_input(
            self.kube().kubectl().args(["-n", &self.namespace, "apply", "-f", "-"]),
            Some(&object.to_string()),
        )
        .map_err(|error| format!("{error:#}"))
    }

    /// Applies a sample of the project into this namespace.
    pub fn apply_sample(&self, path: &str) -> Result<String, String> {
        let file = workspace().join("samples").join(path);
        run::stdout(self.kube().kubectl().args(["-n", &self.namespace, "apply", "-f"]).arg(file))
            .map_err(|error| format!("{error:#}"))
    }

    /// An object, or nothing.
    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.kube().get(&self.namespace, kind, name).expect("kubectl get answers")
    }

    /// All objects of a kind, perhaps of a label.
    pub fn list(&self, kind: &str, selector: &str) -> Vec<Value> {
        let text = self.kubectl(&["get", kind, "-o", "json", "-l", selector]).expect("kubectl get answers");
        let list: Value = serde_json::from_str(&text).expect("kubectl prints JSON");
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until `ready` holds of an object; fails with the object as it was last.
    pub fn wait_for(&self, kind: &str, name: &str, what: &str, ready: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let waited = run::poll(what, PATIENCE, Duration::from_millis(100), || {
            last = self.get(kind, name).unwrap_or_default();
            Ok(ready(&last).then(|| last.clone()))
        });
        waited.unwrap_or_else(|error| panic!("{error}\n{kind} {name} is {last:#}"))
    }

    /// Waits until something holds.
    pub fn wait(&self, what: &str, ready: impl Fn() -> bool) {
        run::poll(what, PATIENCE, Duration::from_millis(100), || Ok(ready().then_some(())))
            .unwrap_or_else(|error| panic!("{error}"));
    }

    /// A simulated node of this test, with a label of this test: `arena=<namespace>`.
    pub fn node(&self, name: &str) -> String {
        let name = format!("{}-{name}", self.namespace);
        let node = json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": name, "labels": { "arena": self.namespace, "kubernetes.io/hostname": name } },
            "status": {
                "allocatable": { "cpu": "32", "memory": "256Gi", "pods": "110" },
                "capacity": { "cpu": "32", "memory": "256Gi", "pods": "110" },
            },
        });
        self.apply(&node).expect("the node is made");
        self.nodes.borrow_mut().push(name.clone());
        self.wait(&format!("{name} is Ready"), || {
            self.get("node", &name).is_some_and(|node| condition(&node, "Ready").0 == "True")
        });
        name
    }

    /// Requests of managers that wrote something in this namespace since the cluster came up, as the API server's
    /// audit log has them: one line `verb resource[/subresource] code` each, Events and Leases left out.
    pub fn writes(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.cluster.audit_log()).expect("there is an audit log");
        log.lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|entry| entry["userAgent"].as_str().is_some_and(|agent| agent.starts_with(USER_AGENT)))
            .filter(|entry| entry["objectRef"]["namespace"] == *self.namespace)
            .filter(|entry| entry["stage"] == "ResponseComplete")
            .filter(|entry| {
                !matches!(entry["objectRef"]["resource"].as_str(), Some("events" | "leases") | None)
            })
            .map(|entry| {
                let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let subresource = part(&entry["objectRef"]["subresource"]);
                format!(
                    "{} {}{}{subresource} {}",
                    part(&entry["verb"]),
                    part(&entry["objectRef"]["resource"]),
                    if subresource.is_empty() { "" } else { "/" },
                    entry["responseStatus"]["code"]
                )
            })
            .collect()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for name in self.managers.borrow().iter() {
                let log =
                    std::fs::read_to_string(self.kube().log(&format!("{name}.log"))).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines.len().saturating_sub(80);
                eprintln!("--- {name}.log, last lines ---\n{}\n---", lines[tail..].join("\n"));
            }
        }
        let _ = run::stdout(self.cluster.kubectl().args([
            "delete",
            "namespace",
            &self.namespace,
            "--wait=false",
        ]));
        for node in self.nodes.borrow().iter() {
            let _ = run::stdout(self.cluster.kubectl().args(["delete", "node", node, "--wait=false"]));
        }
    }
}

/// Status and reason of a condition of an object; empty where it has none.
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

/// The cluster that `cargo xtask test` brought up.
pub fn cluster() -> Cluster {
    let name = std::env::var(CLUSTER_VARIABLE).unwrap_or_else(|_| {
        panic!("{CLUSTER_VARIABLE} names no cluster: end-to-end tests are run by `cargo xtask test`")
    });
    Cluster::open(&name).expect("the cluster is up")
}

/// The manager's program.
pub fn program() -> PathBuf {
    std::env::var_os(PROGRAM_VARIABLE).map_or_else(
        || panic!("{PROGRAM_VARIABLE} names no program: end-to-end tests are run by `cargo xtask test`"),
        PathBuf::from,
    )
}

/// The checkout.
pub fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}
