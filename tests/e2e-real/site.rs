//! A cluster with real nodes, the chart on it, and helpers to read both.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use quintet_e2e::audit::Audit;
use quintet_e2e::objects::{Objects, Watch};
use quintet_e2e::shell::Shell;
use quintet_e2e::{answered, condition, workspace};
use quintet_localcluster::cluster::{Cluster, UpOptions};
use quintet_localcluster::manager::NAMESPACE;
use quintet_localcluster::run;
use quintet_localcluster::temporary::Temporary;
use quintet_localcluster::variables;
use serde_json::Value;

/// How long a test waits for a state: containers start, end and are retried.
pub const PATIENCE: Duration = Duration::from_mins(3);

const PAUSE: Duration = Duration::from_millis(200);

/// A cluster for one test, taken down on drop. Drop panics if the guard rails denied a request of a manager.
pub struct Site {
    cluster: Cluster,
    objects: Objects,
    audit: Audit,
    name: Temporary,
}

impl Site {
    /// Starts this number of nodes and loads the project's images.
    pub fn new(purpose: &str, nodes: usize) -> Self {
        let begin = Instant::now();
        let name = Temporary::new(purpose);
        let options = UpOptions { name: name.name(), nodes: Some(nodes), ..UpOptions::default() };
        let (cluster, _) = Cluster::up_real(&options).unwrap_or_else(|error| panic!("{error:#}"));
        println!("{purpose}: {nodes} real nodes are up after {:.1} s", begin.elapsed().as_secs_f64());
        cluster.load_images(&images()).unwrap();
        Self { objects: Objects::new(cluster.kubeconfig()), audit: Audit::of(&cluster), cluster, name }
    }

    /// Starts a cluster and installs the chart with default values: two managers in pods.
    pub fn with_chart(purpose: &str, nodes: usize) -> Self {
        let site = Self::new(purpose, nodes);
        let begin = Instant::now();
        site.install(&[]);
        println!("{purpose}: helm install --wait took {:.1} s", begin.elapsed().as_secs_f64());
        site
    }

    pub fn install(&self, more: &[&str]) {
        let chart = workspace().join("charts/quintet").display().to_string();
        let args = ["install", "quintet", &chart, "--create-namespace", "--wait", "--timeout", "3m"];
        self.helm(&[&args[..], more].concat()).unwrap_or_else(|error| self.give_up(&error));
    }

    pub fn cluster(&mut self) -> &mut Cluster {
        &mut self.cluster
    }

    /// The name of the cluster and of its temporary files.
    pub fn name(&self) -> String {
        self.name.name()
    }

    /// Runs helm in the release's namespace and returns its standard output, or its error.
    pub fn helm(&self, args: &[&str]) -> Result<String, String> {
        let mut helm = self.cluster.helm();
        run::stdout(helm.args(args).args(["--namespace", NAMESPACE])).map_err(|error| format!("{error:#}"))
    }

    /// Watches objects of the namespace default.
    pub fn watch(&self, kind: &str, selector: &str) -> Watch {
        self.objects.watch("default", kind, selector)
    }

    pub fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        self.kubectl_with(args, None)
    }

    pub fn kubectl_with(&self, args: &[&str], input: Option<&str>) -> Result<String, String> {
        let mut kubectl: Command = self.cluster.kubectl();
        run::stdout_with_input(kubectl.args(args), input).map_err(|error| format!("{error:#}"))
    }

    /// A user's shell in the namespace `default`.
    pub fn shell(&self) -> Shell<'_> {
        Shell::new(&self.cluster, "default")
    }

    /// A command from a document, for a cluster of one node.
    pub fn command(&self, line: &str) -> Command {
        let line = line.replace("NODE", "node-1").replace("NAMESPACE", "default");
        let (program, args) = line.split_once(' ').unwrap();
        let mut command = match program {
            "kubectl" => self.cluster.kubectl(),
            "helm" => self.cluster.helm(),
            "quintet" => Command::new(quintet_e2e::program()),
            other => panic!("{other} is not a program of the tests"),
        };
        command.args(args.split(' ')).env("KUBECONFIG", self.cluster.kubeconfig()).current_dir(workspace());
        command
    }

    pub fn apply(&self, object: &Value) {
        self.kubectl_with(&["apply", "--server-side", "-f", "-"], Some(&object.to_string()))
            .unwrap_or_else(|error| panic!("{error}"));
    }

    pub fn list(&self, kind: &str, selector: &str) -> Vec<Value> {
        answered(|| self.objects.list("", kind, selector))
    }

    /// An object of the namespace `default`, or null if it does not exist.
    pub fn get(&self, kind: &str, name: &str) -> Value {
        let get = || self.objects.get("default", kind, name);
        answered(get).unwrap_or_default()
    }

    /// Waits until `holds` is true. Returns the duration.
    pub fn wait(&self, what: &str, holds: impl Fn() -> bool) -> Duration {
        let begin = Instant::now();
        run::poll(what, PATIENCE, PAUSE, || Ok(holds().then_some(())))
            .unwrap_or_else(|error| self.give_up(&error.to_string()));
        begin.elapsed()
    }

    /// Waits until the condition is True with this reason.
    pub fn wait_for(&self, kind: &str, name: &str, type_: &str, reason: &str) -> Duration {
        self.wait(&format!("{kind} {name} is {type_} ({reason})"), || {
            let object = self.get(kind, name);
            object["status"]["observedGeneration"] == object["metadata"]["generation"]
                && condition(&object, type_) == ("True".to_owned(), reason.to_owned())
        })
    }

    /// The managers' logs, both streams.
    pub fn logs_of_managers(&self) -> String {
        let select = ["-l", "app.kubernetes.io/name=quintet", "--tail=-1", "--prefix=false"];
        self.kubectl(&[&["logs", "-n", NAMESPACE], &select[..]].concat()).unwrap_or_default()
    }

    /// UIDs of a DaemonJob's pods, by node and name.
    pub fn pods_of(&self, daemonjob: &str) -> BTreeMap<String, String> {
        let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let pods = self.list("pods", &format!("daemonjob={daemonjob}"));
        let named = pods.iter().map(|pod| {
            let key = format!("{} {}", part(&pod["spec"]["nodeName"]), part(&pod["metadata"]["name"]));
            (key, part(&pod["metadata"]["uid"]))
        });
        named.collect()
    }

    /// The number of times that managers created a pod of each name in the namespace `default`.
    pub fn created_pods(&self) -> BTreeMap<String, usize> {
        self.audit.created_pods("default")
    }

    /// Panics with the state of the cluster.
    fn give_up(&self, why: &str) -> ! {
        let get = |args: &[&str]| self.kubectl(args).unwrap_or_else(|error| error);
        panic!(
            "{why}\n{}\n{}\n{}\n--- managers ---\n{}",
            get(&["get", "nodes"]),
            get(&["get", "quintet,pods", "-A", "-o", "wide"]),
            get(&["get", "events", "-A", "--sort-by=.lastTimestamp"])
                .lines()
                .rev()
                .take(40)
                .collect::<Vec<_>>()
                .join("\n"),
            self.logs_of_managers().lines().rev().take(40).collect::<Vec<_>>().join("\n"),
        )
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.audit.assert_no_denials(|_| true);
        }
    }
}

/// The archives of the project's images.
fn images() -> Vec<PathBuf> {
    let folder = std::env::var_os(variables::IMAGES).unwrap_or_else(|| {
        panic!("{} names no folder: run these tests with `cargo xtask test --nodes real`", variables::IMAGES)
    });
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "tar")).collect()
}
