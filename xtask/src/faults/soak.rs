//! `cargo xtask faults --soak SECONDS --real`: kills managers and parts of a real control plane under load.
//!
//! Each round creates objects, changes some, and kills a random process. At the end, every object must match its spec, and the
//! audit log and the printed lines must show no duplicate work.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use quintet_kinds::KINDS;
use quintet_localcluster::audit::{AuditLog, Author, Request};
use quintet_localcluster::chance::Chance;
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::cluster::{Cluster, UpOptions};
use quintet_localcluster::kube::is_true;
use quintet_localcluster::manager::{self, Manager, ManagerOptions};
use quintet_localcluster::progress::Step;
use quintet_localcluster::run::{self, print};
use quintet_localcluster::temporary::Temporary;
use quintet_localcluster::{chart, interrupt, paths};
use serde_json::{Value, json};

use crate::test::Failed;

/// The number of simulated nodes.
const NODES: usize = 5;
/// The namespace of the objects.
const NAMESPACE: &str = "soak";
/// The timeout for all objects at the end.
const PATIENCE: Duration = Duration::from_mins(5);
/// The managers must not write for this long after that.
const QUIET: Duration = Duration::from_secs(20);

/// The process that a round kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Leader,
    Standby,
    Server,
    Store,
    NoProcess,
}

impl Victim {
    const ALL: [Self; 5] = [Self::Leader, Self::Standby, Self::Server, Self::Store, Self::NoProcess];

    fn name(self) -> &'static str {
        match self {
            Self::Leader => "the leader",
            Self::Standby => "the standby",
            Self::Server => "kube-apiserver",
            Self::Store => "etcd",
            Self::NoProcess => "no process",
        }
    }
}

/// The state of a soak. Rust drops the fields in order: the managers before their cluster.
struct Soak {
    /// The running managers by process name.
    managers: Vec<(String, Manager)>,
    /// The number of managers started so far.
    started: usize,
    /// The output of killed managers.
    said: String,
    audit: AuditLog,
    writes: Vec<Request>,
    cluster: Cluster,
    options: UpOptions,
    /// The desired objects, by kind and name.
    wanted: BTreeMap<(&'static str, String), Value>,
    /// The desired objects that the API server has not accepted yet.
    pending: Vec<(&'static str, String)>,
    chance: Chance,
    _temporary: Temporary,
}

/// Runs rounds for this duration, and prints the violations.
pub fn run(duration: Duration, seed: u64) -> Result<()> {
    let mut soak = Soak::up(seed)?;
    let began = Instant::now();
    let mut kills = BTreeMap::<&str, u32>::new();
    let mut rounds = 0;
    while began.elapsed() < duration {
        rounds += 1;
        let victim = soak.round(rounds)?;
        *kills.entry(victim.name()).or_default() += 1;
        eprintln!("round {rounds}, {} s: killed {}", began.elapsed().as_secs(), victim.name());
    }
    let violations = soak.end()?;
    for violation in &violations {
        eprintln!("{violation}");
    }
    let killed: Vec<String> = kills.iter().map(|(who, times)| format!("{who} {times} times")).collect();
    print(format!(
        "killed: {}\n{rounds} rounds, {} objects, {} violations\n",
        killed.join(", "),
        soak.wanted.len(),
        violations.len()
    ))?;
    if violations.is_empty() { Ok(()) } else { Err(Failed.into()) }
}

impl Soak {
    fn up(seed: u64) -> Result<Self> {
        let program = manager::build()?;
        let temporary = Temporary::new("soak");
        let options = UpOptions { name: temporary.name(), nodes: Some(NODES), ..UpOptions::default() };
        let (cluster, _) = Cluster::up(&options)?;
        chart::install(cluster.kube())?;
        run::stdout(cluster.kubectl().args(["create", "namespace", NAMESPACE]))?;
        let audit = AuditLog::now(cluster.audit_log())?;
        let mut soak = Self {
            managers: Vec::new(),
            started: 0,
            said: String::new(),
            audit,
            writes: Vec::new(),
            cluster,
            options,
            wanted: BTreeMap::new(),
            pending: Vec::new(),
            chance: Chance::new(seed),
            _temporary: temporary,
        };
        let copy = soak.cluster.dir().bin().join("quintet");
        std::fs::copy(program, copy)?;
        soak.man()?;
        Ok(soak)
    }

    /// Starts managers until there are two.
    fn man(&mut self) -> Result<()> {
        while self.managers.len() < 2 {
            self.started += 1;
            let name = format!("soak-{}", self.started);
            let options = ManagerOptions {
                name: name.clone(),
                program: Some(self.cluster.dir().bin().join("quintet")),
                ..ManagerOptions::default()
            };
            self.managers.push((name, Manager::start(self.cluster.kube(), &options)?));
        }
        Ok(())
    }

    fn round(&mut self, number: u64) -> Result<Victim> {
        interrupt::check()?;
        self.make(number)?;
        self.change(number);
        let victim = Victim::ALL[usize::try_from(self.chance.below(5)).unwrap_or_default()];
        self.kill(victim)?;
        // Change objects also while a process is missing.
        self.change(number);
        interrupt::pause(Duration::from_millis(500 + self.chance.below(4_000)))?;
        Cluster::up(&self.options)?;
        self.man()?;
        self.writes.extend(self.audit.writes()?);
        self.apply();
        Ok(victim)
    }

    /// Creates one object of each kind. The kinds without a special spec get the spec of their sample.
    fn make(&mut self, number: u64) -> Result<()> {
        let pod = json!({ "spec": { "restartPolicy": "OnFailure", "containers": [{ "name": "c", "image": "busybox" }] } });
        let mut want = |kind, api: &str, of: &str, spec: Value| {
            let name = format!("{kind}-{number}");
            let object = json!({ "apiVersion": api, "kind": of, "metadata": { "name": name, "namespace": NAMESPACE },
                "spec": spec });
            self.wanted.insert((kind, name.clone()), object);
            self.pending.push((kind, name));
        };
        want("daemonjob", "dj.dysproz.io/v1", "DaemonJob", json!({ "template": pod }));
        want("podset", "batch.tutorial.kubebuilder.io/v1", "PodSet", json!({ "replicas": 1 + number % 7 }));
        want("greeting", "example.com/v1", "Greeting", json!({ "message": format!("soak {number}") }));
        let special = ["daemonjob", "podset", "greeting"];
        for kind in KINDS.iter().filter(|kind| !special.contains(&kind.controller)) {
            let file = paths::workspace().join("samples").join(kind.controller).join(kind.sample);
            let sample: Value = serde_saphyr::from_str(&std::fs::read_to_string(file)?)?;
            let resource = (kind.resource)();
            want(kind.controller, &resource.api_version(), resource.kind, sample["spec"].clone());
        }
        self.apply();
        Ok(())
    }

    /// Scales a PodSet of an earlier round.
    fn change(&mut self, number: u64) {
        let name = format!("podset-{}", 1 + self.chance.below(number));
        let replicas = self.chance.below(9);
        if let Some(podset) = self.wanted.get_mut(&("podset", name.clone())) {
            podset["spec"]["replicas"] = json!(replicas);
            self.pending.push(("podset", name));
        }
        self.apply();
    }

    /// Applies the pending objects. Objects that the API server does not accept stay pending.
    fn apply(&mut self) {
        let cluster = &self.cluster;
        let wanted = &self.wanted;
        self.pending.retain(|place| {
            let Some(object) = wanted.get(place) else { return false };
            let apply = ["--request-timeout=5s", "apply", "--server-side", "--force-conflicts", "-f", "-"];
            run::stdout_with_input(cluster.kubectl().args(apply), Some(&object.to_string())).is_err()
        });
    }

    fn kill(&mut self, victim: Victim) -> Result<()> {
        let component = match victim {
            Victim::NoProcess => return Ok(()),
            Victim::Leader | Victim::Standby => {
                let leads = victim == Victim::Leader;
                let Some(at) = self.managers.iter().position(|(_, manager)| manager.leads() == leads) else {
                    return Ok(());
                };
                let (name, manager) = self.managers.remove(at);
                manager.kill()?;
                let printed = self.cluster.kube().log(&format!("{name}.out"));
                self.said.push_str(&std::fs::read_to_string(printed).unwrap_or_default());
                return Ok(());
            }
            Victim::Server => Component::Apiserver,
            Victim::Store => Component::Etcd,
        };
        match self.cluster.process(component)? {
            Some(process) => process.kill(),
            None => bail!("{} is not running", component.name()),
        }
        Ok(())
    }

    /// Waits until every object matches its spec, and returns the mismatches and the duplicate work.
    fn end(&mut self) -> Result<Vec<String>> {
        let step = Step::start("waiting until all objects match their specs");
        let began = Instant::now();
        let mut wrong = vec!["no object was checked".to_owned()];
        while !wrong.is_empty() && began.elapsed() < PATIENCE {
            self.apply();
            interrupt::pause(Duration::from_secs(2))?;
            wrong = self.unfinished()?;
        }
        step.done();
        self.writes.extend(self.audit.writes()?);
        let before = self.writes.len();
        interrupt::pause(QUIET)?;
        self.writes.extend(self.audit.writes()?);
        let restless: Vec<&Request> = self.writes[before..].iter().filter(|write| is_ours(write)).collect();
        if let Some(write) = restless.first() {
            wrong.push(format!(
                "{} writes after all objects matched; the first: {} {} {}",
                restless.len(),
                write.verb,
                write.resource,
                write.name
            ));
        }
        wrong.extend(self.twice());
        Ok(wrong)
    }

    /// The objects that do not match their specs.
    fn unfinished(&self) -> Result<Vec<String>> {
        let mut wrong: Vec<String> = self
            .pending
            .iter()
            .map(|(kind, name)| format!("the API server has not accepted {kind} {name}"))
            .collect();
        let list = |kind: &str| -> Result<Vec<Value>> {
            let said =
                run::stdout(self.cluster.kubectl().args(["get", kind, "-n", NAMESPACE, "-o", "json"]))?;
            let mut list: Value = serde_json::from_str(&said)?;
            Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
        };
        let pods = list("pods")?;
        for kind in KINDS.map(|kind| kind.controller) {
            let objects = list(kind)?;
            for ((_, name), wanted) in self.wanted.iter().filter(|((of, _), _)| *of == kind) {
                let Some(object) = objects.iter().find(|object| object["metadata"]["name"] == **name) else {
                    wrong.push(format!("{kind} {name} does not exist"));
                    continue;
                };
                let status = &object["status"];
                let holds = match kind {
                    "daemonjob" => is_true(object, "Complete") && status["succeeded"] == NODES,
                    "podset" => {
                        let uid = &object["metadata"]["uid"];
                        let own = pods.iter().filter(|pod| {
                            pod["metadata"]["ownerReferences"][0]["uid"] == *uid
                                && pod["metadata"]["deletionTimestamp"].is_null()
                        });
                        let replicas = &wanted["spec"]["replicas"];
                        json!(own.count()) == *replicas
                            && status["readyReplicas"].as_u64().unwrap_or_default()
                                == replicas.as_u64().unwrap_or_default()
                    }
                    "pulsarconsumer" => is_true(object, "Available"),
                    _ => is_true(object, "Ready"),
                };
                if !holds {
                    wrong.push(format!("{kind} {name} does not match its spec: {status}"));
                }
            }
        }
        Ok(wrong)
    }

    /// Duplicate pods and lines.
    fn twice(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut created = BTreeMap::<&str, u32>::new();
        for write in
            self.writes.iter().filter(|write| write.is_creation_of_pod() && write.namespace == NAMESPACE)
        {
            if write.name.starts_with("daemonjob-") {
                *created.entry(write.name.as_str()).or_default() += 1;
            }
        }
        // All of these pods succeed, so that no node needs a second pod.
        for ((kind, name), _) in self.wanted.iter().filter(|((kind, _), _)| *kind == "daemonjob") {
            let prefix = format!("{name}-");
            let made: u32 =
                created.iter().filter(|(pod, _)| pod.starts_with(&prefix)).map(|(_, times)| times).sum();
            if usize::try_from(made).unwrap_or(usize::MAX) > NODES {
                wrong.push(format!("{kind} {name} created {made} pods for {NODES} nodes"));
            }
        }
        let mut said = self.said.clone();
        for (_, manager) in &self.managers {
            said.push_str(&manager.printed());
        }
        let mut lines = BTreeMap::<&str, u32>::new();
        for line in said.lines().filter(|line| !line.starts_with("Timer: ")) {
            *lines.entry(line).or_default() += 1;
        }
        wrong.extend(
            lines
                .iter()
                .filter(|(_, times)| **times > 1)
                .map(|(line, times)| format!("{line:?} was printed {times} times")),
        );
        wrong
    }
}

/// Whether a manager sent the write. Events may come at any time.
fn is_ours(write: &Request) -> bool {
    write.namespace == NAMESPACE && write.author == Author::Quintet && !write.resource.starts_with("events")
}
