//! The environment of a bench: a separate cluster with simulated nodes and the chart, clients for it, and the
//! manager. Dropping the [`Rig`] removes all of it, even after Ctrl-C.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use kube::config::Kubeconfig;
use quintet_localcluster::audit::{AuditLog, Author, Request, Tally};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::cluster::processes::Process;
use quintet_localcluster::cluster::{Cluster, UpOptions, nodes};
use quintet_localcluster::kube::is_true;
use quintet_localcluster::manager::{self, Manager, ManagerOptions};
use quintet_localcluster::progress::Step;
use quintet_localcluster::temporary::Temporary;
use quintet_localcluster::{chart, interrupt, run};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::canary::{self, Canary};
use super::client::{Api, Created, Patch};
use super::host::Share;
use super::process;
use super::table;

/// The polling interval of a bench, and the error of a polled time.
pub const LOOK: Duration = Duration::from_millis(50);
/// The polling interval of a list, which costs the API server more.
const LOOK_AT_ALL: Duration = Duration::from_secs(2);

/// The delay of late writes, such as the status, which is written once a second.
const TRAIL: Duration = Duration::from_secs(2);

/// The settings of kube-controller-manager and kube-scheduler.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    clap::ValueEnum,
    strum::Display,
)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// default request limits
    #[strum(to_string = "as shipped")]
    Shipped,
    /// request limits that are never reached, and more workers in kube-controller-manager
    #[strum(to_string = "tuned")]
    Tuned,
}

impl Setting {
    pub fn chosen(only: Option<Self>, quick: bool) -> Vec<Self> {
        match only {
            _ if quick => vec![Self::Shipped],
            Some(only) => vec![only],
            None => vec![Self::Shipped, Self::Tuned],
        }
    }

    /// A local cluster sets other limits, so the defaults of Kubernetes are flags too.
    fn flags(self, component: Component) -> &'static [&'static str] {
        match (self, component) {
            (Self::Shipped, Component::ControllerManager) => &["--kube-api-qps=20", "--kube-api-burst=30"],
            (Self::Shipped, Component::Scheduler) => &["--kube-api-qps=50", "--kube-api-burst=100"],
            (Self::Tuned, Component::ControllerManager) => &[
                "--kube-api-qps=1000",
                "--kube-api-burst=2000",
                "--concurrent-job-syncs=20",
                "--concurrent-daemonset-syncs=20",
                "--concurrent-replicaset-syncs=20",
                "--concurrent-gc-syncs=40",
            ],
            (Self::Tuned, Component::Scheduler) => &["--kube-api-qps=1000", "--kube-api-burst=2000"],
            _ => &[],
        }
    }

    pub fn description(self) -> String {
        let of = |component: Component| format!("{} {}", component.name(), self.flags(component).join(" "));
        format!("{}; {}", of(Component::ControllerManager), of(Component::Scheduler))
    }
}

/// Fields are dropped in order: clients before their cluster.
pub struct Rig {
    admin: Api,
    peer: Api,
    canary: Api,
    audit: RefCell<AuditLog>,
    namespaces: Cell<usize>,
    runtime: Runtime,
    program: PathBuf,
    cluster: Cluster,
    nodes: usize,
    pods: usize,
    /// The current progress step.
    step: RefCell<Option<Step>>,
    _temporary: Temporary,
}

impl Rig {
    /// Starts a cluster with the chart and `nodes` simulated nodes. `program` is the manager, and contenders
    /// create up to `pods` pods.
    pub fn up(nodes: usize, pods: usize, program: &Path) -> Result<Self> {
        let temporary = Temporary::new("bench");
        // `make_nodes` creates the nodes, many at a time.
        let (cluster, _) =
            Cluster::up(&UpOptions { name: temporary.name(), nodes: Some(0), ..UpOptions::default() })?;
        chart::install(cluster.kube())?;
        // One thread is enough for the requests. It serves connections while this thread waits.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start the thread for requests")?;
        let admin =
            Kubeconfig::read_from(cluster.kubeconfig()).context("the cluster's kubeconfig is damaged")?;
        // An account with the manager's priority. The manager's own account may not create pods without an owner.
        let peer = account(&cluster, manager::NAMESPACE, "bench-creator", "create", "pods")?;
        let canary = account(&cluster, canary::NAMESPACE, "bench-canary", "get", "namespaces")?;
        let (admin, peer, canary) = runtime.block_on(async {
            anyhow::Ok((Api::new(admin).await?, Api::new(peer).await?, Api::new(canary).await?))
        })?;
        let audit = RefCell::new(AuditLog::now(cluster.audit_log())?);
        // A build during the bench must not change the program.
        let copy = cluster.dir().bin().join("quintet");
        std::fs::copy(program, &copy).with_context(|| format!("cannot copy {}", program.display()))?;
        let rig = Self {
            admin,
            peer,
            canary,
            audit,
            namespaces: Cell::new(0),
            runtime,
            program: copy,
            cluster,
            nodes,
            pods,
            step: RefCell::default(),
            _temporary: temporary,
        };
        rig.make_nodes()?;
        Ok(rig)
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn nodes(&self) -> usize {
        self.nodes
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub fn pods(&self) -> usize {
        self.pods
    }

    /// The time limit of work that the slowest peer does once for each node or pod, one after another.
    pub fn patience(&self) -> Duration {
        let things = self.nodes.max(self.pods);
        Duration::from_mins(5) + Duration::from_millis(300) * u32::try_from(things).unwrap_or(u32::MAX)
    }

    /// Restarts kube-controller-manager and kube-scheduler with this setting.
    pub fn set(&self, setting: Setting) -> Result<()> {
        for component in [Component::ControllerManager, Component::Scheduler] {
            self.cluster.restart(component, setting.flags(component))?;
        }
        Ok(())
    }

    pub fn pid(&self, component: Component) -> Result<i32> {
        Ok(self.process(component)?.pid)
    }

    pub fn api_port(&self) -> Result<u16> {
        Ok(self.process(Component::Apiserver)?.port)
    }

    fn process(&self, component: Component) -> Result<Process> {
        self.cluster.process(component)?.with_context(|| format!("{} does not run", component.name()))
    }

    /// The processor time of the bench, its cluster and `processes`, beside that of the machine.
    pub fn share(&self, processes: impl IntoIterator<Item = i32>) -> Result<Share> {
        let me = i32::try_from(std::process::id()).context("the pid of this process is out of range")?;
        let mut pids: BTreeSet<i32> = processes.into_iter().chain([me]).collect();
        for component in Component::ALL {
            pids.insert(self.pid(component)?);
        }
        let seconds = pids.into_iter().map(process::cpu_seconds).sum::<Result<f64>>()?;
        Ok(Share::at(seconds))
    }

    /// Starts a manager and waits until it is ready.
    pub fn manager(&self) -> Result<Manager> {
        self.manager_of(&self.program)
    }

    /// Starts another build of the manager and waits until it is ready.
    pub fn manager_of(&self, program: &Path) -> Result<Manager> {
        let options = ManagerOptions { program: Some(program.to_owned()), ..ManagerOptions::default() };
        Manager::start(self.cluster.kube(), &options)
    }

    /// Creates a namespace, and waits until pods can be created in it.
    pub fn namespace(&self) -> Result<String> {
        self.namespaces.set(self.namespaces.get() + 1);
        let name = format!("bench-{}", self.namespaces.get());
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.create("/api/v1/namespaces", &object)?;
        let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        self.wait_until("the namespace's service account", || Ok(self.get(&account)?.is_some()))?;
        Ok(name)
    }

    pub fn get(&self, path: &str) -> Result<Option<Value>> {
        self.wait_for(self.admin.get(path))
    }

    pub fn list(&self, path: &str) -> Result<Vec<Value>> {
        self.wait_for(self.admin.list(path, ""))
    }

    /// Whether a collection has an object that `query` selects.
    pub fn has_any(&self, path: &str, query: &str) -> Result<bool> {
        self.wait_for(self.admin.has_any(path, query))
    }

    pub fn create(&self, path: &str, object: &Value) -> Result<Value> {
        self.wait_for(self.admin.create(path, object))
    }

    pub fn patch(&self, path: &str, kind: Patch, patch: &Value) -> Result<Value> {
        self.wait_for(self.admin.patch(path, kind, patch))
    }

    /// Deletes an object. The garbage collector deletes its dependents.
    pub fn delete(&self, path: &str) -> Result<()> {
        self.wait_for(self.admin.delete(path))
    }

    pub fn create_all(&self, path: &str, bodies: Vec<Vec<u8>>) -> Result<Created> {
        self.wait_for(self.peer.create_all(path, bodies))
    }

    /// The writes in a namespace since the last call. Waits for late writes.
    pub fn writes(&self, namespace: &str) -> Result<Vec<Request>> {
        let mut writes = Vec::new();
        self.poll("the audit log is quiet", TRAIL, || {
            let more = self.writes_so_far(namespace)?;
            let quiet = more.is_empty();
            writes.extend(more);
            Ok(quiet.then_some(()))
        })?;
        Ok(writes)
    }

    /// The writes of an author in a namespace since the last call. Waits for late writes.
    pub fn tally(&self, namespace: &str, author: Author) -> Result<Tally> {
        Ok(Tally::of(&self.writes(namespace)?, author, namespace))
    }

    /// The writes in a namespace since the last call that the log has already.
    pub fn writes_so_far(&self, namespace: &str) -> Result<Vec<Request>> {
        let mut writes = self.audit.borrow_mut().writes()?;
        writes.retain(|write| write.namespace == namespace);
        Ok(writes)
    }

    /// All requests since the last call that the log has already.
    pub fn requests_so_far(&self) -> Result<Vec<Request>> {
        self.audit.borrow_mut().requests()
    }

    /// Skips all requests until now.
    pub fn forget_requests(&self) -> Result<()> {
        self.audit.borrow_mut().requests().map(|_| ())
    }

    /// The number of nodes with pods of a namespace.
    pub fn nodes_covered(&self, namespace: &str) -> Result<usize> {
        let pods = self.list(&pods(namespace))?;
        let nodes: BTreeSet<&str> = pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
        Ok(nodes.len())
    }

    /// Deletes the pods of a namespace and waits until they are gone. Their owner must be gone already.
    pub fn remove_pods(&self, namespace: &str) -> Result<()> {
        let path = pods(namespace);
        // The deletion of a large collection can time out after it has deleted a part.
        let mut failure = None;
        let gone = self.poll("the pods are gone", Duration::from_millis(200), || {
            if !self.has_any(&path, "")? {
                return Ok(Some(()));
            }
            match self.wait_for(self.admin.delete(&format!("{path}?gracePeriodSeconds=0"))) {
                Err(error) if error.is::<interrupt::Interrupted>() => return Err(error),
                other => failure = other.err(),
            }
            Ok(None)
        });
        match (gone, failure) {
            (Err(error), Some(failure)) => Err(error.context(failure)),
            (gone, _) => gone,
        }
    }

    /// A client of the cluster's administrator.
    pub fn api(&self) -> Api {
        self.admin.clone()
    }

    /// Starts a canary.
    pub fn canary(&self) -> Canary {
        Canary::start(&self.runtime, &self.canary)
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(future)
    }

    fn make_nodes(&self) -> Result<()> {
        self.step(format!("creating {} simulated nodes", table::count(self.nodes)), || {
            let bodies = (1..=self.nodes)
                .map(|number| serde_json::to_vec(&nodes::node(&node_name(number))))
                .collect::<Result<Vec<_>, _>>()?;
            self.wait_for(self.admin.create_all("/api/v1/nodes", bodies))?;
            let pause = Duration::from_millis(500);
            self.poll("the simulated nodes are Ready", pause, || {
                Ok(self.list("/api/v1/nodes")?.iter().all(is_ready).then_some(()))
            })
        })
    }

    /// Does `work` and shows its label on stderr.
    pub fn step<T>(&self, label: impl Into<String>, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.step.replace(Some(Step::start_long(label)));
        let done = work();
        let step = self.step.replace(before);
        if done.is_ok() {
            step.into_iter().for_each(Step::done);
        }
        done
    }

    /// Shows on stderr that the step is still running.
    pub fn tick(&self) {
        if let Some(step) = &mut *self.step.borrow_mut() {
            step.tick();
        }
    }

    /// Calls `read` until it returns a value.
    pub fn poll<T>(
        &self,
        what: &str,
        pause: Duration,
        mut read: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        run::poll(what, self.patience(), pause, || {
            self.tick();
            read()
        })
    }

    pub fn wait_until(&self, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        self.poll(what, LOOK, || Ok(is_so()?.then_some(())))
    }

    pub fn wait_until_empty(&self, collection: &str) -> Result<()> {
        self.wait_until(&format!("{collection} is empty"), || Ok(!self.has_any(collection, "")?))
    }

    /// Waits until no pod of a namespace has a finalizer. A manager removes it some time after the last pod has ended.
    pub fn wait_until_released(&self, namespace: &str) -> Result<()> {
        self.poll("the pods have no finalizers", LOOK_AT_ALL, || {
            let is_held = |pod: &Value| pod["metadata"]["finalizers"].is_array();
            Ok((!self.list(&pods(namespace))?.iter().any(is_held)).then_some(()))
        })
    }

    /// Waits for requests, or for Ctrl-C.
    pub fn wait_for<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(async {
            tokio::select! {
                done = future => done,
                interrupted = interrupted() => Err(interrupted),
            }
        })
    }
}

/// The kubeconfig of a new ServiceAccount, which may do one thing.
fn account(cluster: &Cluster, namespace: &str, name: &str, verb: &str, resource: &str) -> Result<Kubeconfig> {
    let account = format!("--serviceaccount={namespace}:{name}");
    let role = format!("--clusterrole={name}");
    let (verb, resource) = (format!("--verb={verb}"), format!("--resource={resource}"));
    for created in [
        &["serviceaccount", name, "--namespace", namespace][..],
        &["clusterrole", name, &verb, &resource],
        &["clusterrolebinding", name, &role, &account],
    ] {
        run::stdout(cluster.kubectl().arg("create").args(created))?;
    }
    let text = cluster.kube().kubeconfig_of_service_account(namespace, name)?;
    Kubeconfig::from_yaml(&text).context("the ServiceAccount's kubeconfig is damaged")
}

/// The name of a simulated node, by its number from 1.
pub fn node_name(number: usize) -> String {
    format!("node-{number:05}")
}

pub fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

async fn interrupted() -> anyhow::Error {
    loop {
        if let Err(interrupted) = interrupt::check() {
            return interrupted;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A new node has a taint until it accepts pods.
fn is_ready(node: &Value) -> bool {
    is_true(node, "Ready") && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
}

/// Waits until a value does not change for `quiet`, and returns it.
pub fn settled<T: PartialEq>(
    what: &str,
    quiet: Duration,
    limit: Duration,
    mut read: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut last = read()?;
    let mut since = std::time::Instant::now();
    run::poll(what, limit, LOOK, || {
        let now = read()?;
        if now != last {
            since = std::time::Instant::now();
            last = now;
        }
        Ok((since.elapsed() >= quiet).then_some(()))
    })?;
    Ok(last)
}
