//! etcd is restored, under load, from a backup that is 1,000 revisions old. The leader, its standby and a manager without leader
//! election must then show what the API server lists.
//!
//! These tests belong to the long tier, because each takes minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

use quintet_e2e::{PATIENCE, TestEnv, answered, condition, program, workspace};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::cluster::{binaries, processes};
use quintet_localcluster::manager::{Manager, ManagerOptions};
use quintet_localcluster::{documents, run};
use serde_json::{Value, json};

use crate::book::book;
use crate::daemonjob::daemonjob;
use crate::podset::podset;
use crate::podset_rollout::{on_own_nodes, rolled_out};

/// How long a manager may show lost objects after the API server lists the restored ones.
const SOON: Duration = Duration::from_secs(30);
/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(500);
/// The number of lost revisions, at least.
const LOST: usize = 1_000;
/// The metric of noticed restores.
const RESTORES: &str = "quintet_store_restored_total";

/// How etcd is restored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The API server restarts, and the versions count from the backup.
    Restarted,
    /// The API server restarts, and the revision is raised.
    RestartedBumped,
    /// The revision is raised, and the API server keeps running.
    Bumped,
    /// The versions count from the backup, and the API server keeps running. Its watch cache is wrong until it restarts.
    Neither,
}

impl Way {
    fn restarts(self) -> bool {
        matches!(self, Self::Restarted | Self::RestartedBumped)
    }

    fn bumps(self) -> bool {
        matches!(self, Self::RestartedBumped | Self::Bumped)
    }
}

/// The arguments of the documented command that restores a backup. Its last flags raise the revision.
fn documented_restore(backup: &Path, restored: &Path, way: Way) -> Vec<String> {
    let command = documents::command(&workspace().join("docs/operations.md"), "etcdutl ", "--bump-revision");
    let fill = |word: &str| match word {
        "BACKUP" => backup.display().to_string(),
        "DIR" => restored.display().to_string(),
        word => word.to_owned(),
    };
    let kept = |word: &&str| way.bumps() || *word != "--bump-revision";
    command.split(' ').skip(1).take_while(kept).map(fill).collect()
}

/// Three managers in a cluster of their own. Rust drops the fields in order: the managers before their cluster.
struct Stage {
    leader: Manager,
    standby: Manager,
    /// A manager without leader election.
    free: Manager,
    /// The namespace of the first two managers, and that of the third.
    namespaces: [String; 2],
    env: TestEnv,
}

impl Stage {
    fn start(test: &str) -> Self {
        let env = TestEnv::alone(test);
        env.allow_leases();
        let namespaces = [env.namespace().to_owned(), format!("{}-free", env.namespace())];
        run::stdout(env.kube().kubectl().args(["create", "namespace", &namespaces[1]])).unwrap();
        let manager = |name: &str, namespace: &str, leader_elect: bool| {
            let options = ManagerOptions {
                name: format!("{}-{name}", env.namespace()),
                lease_namespace: Some(env.namespace().to_owned()),
                leader_elect,
                args: vec![
                    format!("--watch-namespace={namespace}"),
                    "--controllers=podset,book,daemonjob".to_owned(),
                ],
                program: Some(program()),
                ..ManagerOptions::default()
            };
            Manager::start(env.kube(), &options).unwrap()
        };
        let leader = manager("leader", &namespaces[0], true);
        env.wait("the first manager leads", || leader.leads());
        let standby = manager("standby", &namespaces[0], true);
        let free = manager("free", &namespaces[1], false);
        Self { leader, standby, free, namespaces, env }
    }

    /// Runs kubectl, again if the API server does not answer.
    fn kubectl(&self, namespace: &str, args: &[&str]) -> String {
        let kube = self.env.kube();
        answered(|| {
            run::stdout(kube.kubectl().args(["-n", namespace]).args(args))
                .map_err(|error| format!("{error:#}"))
        })
    }

    /// Applies an object in a namespace.
    fn apply(&self, namespace: &str, object: &Value) {
        let apply = ["-n", namespace, "apply", "-f", "-"];
        run::stdout_with_input(self.env.kube().kubectl().args(apply), Some(&object.to_string())).unwrap();
    }

    /// The names of the objects that the API server lists.
    fn listed(&self, namespace: &str, kind: &str) -> BTreeSet<String> {
        let selector = if kind == "pods" { "quintet.dev/kind" } else { "" };
        let names = self.kubectl(namespace, &["get", kind, "-l", selector, "-o", "name"]);
        names.lines().filter_map(|line| Some(line.split_once('/')?.1.to_owned())).collect()
    }

    /// Names and UIDs of the pods of the PodSets that only the test scales, by namespace.
    fn pods(&self) -> BTreeSet<[String; 3]> {
        let mut pods = BTreeSet::new();
        for namespace in &self.namespaces {
            let list =
                self.kubectl(namespace, &["get", "pods", "-l", "quintet.dev/kind=PodSet", "-o", "json"]);
            let list: Value = serde_json::from_str(&list).unwrap();
            for pod in list["items"].as_array().unwrap() {
                let meta = &pod["metadata"];
                if meta["ownerReferences"][0]["name"] != "load" {
                    let part = |field: &str| meta[field].as_str().unwrap().to_owned();
                    pods.insert([part("namespace"), part("name"), part("uid")]);
                }
            }
        }
        pods
    }

    /// Waits until both PodSets have this number of pods in both namespaces, and the DaemonJob is done on this number of nodes.
    fn settle(&self, shrunk: i64, grown: i64, nodes: i64) {
        let get = |namespace: &str, kind: &str, name: &str| -> Value {
            let found = self.env.kube().get(namespace, kind, name);
            found.ok().flatten().unwrap_or_default()
        };
        let is_settled = || {
            let job = get(&self.namespaces[0], "daemonjob", "job");
            let status = &job["status"];
            self.namespaces.iter().all(|namespace| {
                rolled_out(shrunk)(&get(namespace, "podset", "shrunk"))
                    && rolled_out(grown)(&get(namespace, "podset", "grown"))
            }) && (&status["succeeded"], &status["desired"]) == (&json!(nodes), &json!(nodes))
        };
        let what = format!("{shrunk} and {grown} pods are ready, and {nodes} nodes are done");
        run::poll(&what, 2 * PATIENCE, PAUSE, || Ok(is_settled().then_some(()))).unwrap();
    }

    /// Copies etcd's database while etcd is stopped for a moment, as if the machine had failed then.
    fn back_up(&self) -> PathBuf {
        let etcd = self.env.cluster().process(Component::Etcd).unwrap().unwrap().pid.to_string();
        let signal =
            |name: &str| assert!(Command::new("kill").args([name, &etcd]).status().unwrap().success());
        let dir = self.env.cluster().dir();
        let backup = dir.path().join("backup.db");
        signal("-STOP");
        let copied = fs::copy(dir.data().join("member/snap/db"), &backup);
        signal("-CONT");
        copied.unwrap();
        backup
    }

    fn restore(&self, backup: &Path, way: Way) {
        let cluster = self.env.cluster();
        let (data, restored) = (cluster.dir().data(), cluster.dir().path().join("restored"));
        let ports = cluster.dir().settings().unwrap().unwrap().ports;
        let peer = format!("http://127.0.0.1:{}", ports.etcd_peer);
        let etcdutl = binaries::ensure(&binaries::RESTORE).unwrap().path("etcdutl").unwrap();
        let mut command = Command::new(etcdutl);
        command.args(documented_restore(backup, &restored, way));
        // The copy has no checksum.
        command.args(["--skip-hash-check", "--name=default"]);
        command.arg(format!("--initial-cluster=default={peer}"));
        command.arg(format!("--initial-advertise-peer-urls={peer}"));
        run::stdout(&mut command).unwrap();
        let stop = |component| processes::stop(&[&cluster.process(component).unwrap().unwrap()]);
        if way.restarts() {
            stop(Component::Apiserver);
        }
        stop(Component::Etcd);
        fs::remove_dir_all(&data).unwrap();
        fs::rename(&restored, &data).unwrap();
        cluster.restart(Component::Etcd, &[]).unwrap();
        if way.restarts() {
            cluster.restart(Component::Apiserver, &[]).unwrap();
        }
    }

    /// Waits until the API server lists the restored Books, and then until every manager shows what the API server lists.
    fn converge(&self) {
        let restored = BTreeSet::from(["deleted", "kept"].map(str::to_owned));
        self.env.wait("the API server lists the restored Books", || {
            self.namespaces.iter().all(|namespace| self.listed(namespace, "books") == restored)
        });
        let began = Instant::now();
        let kinds = ["podsets", "books", "pods"];
        let shows_truth = |(manager, namespace): (&Manager, &String)| {
            kinds.iter().all(|kind| {
                let shown = metric(manager, &format!("quintet_informer_objects{{resource=\"{kind}\"}}"));
                usize::try_from(shown).unwrap() == self.listed(namespace, kind).len()
            })
        };
        let [two, one] = &self.namespaces;
        let managers = [(&self.leader, two), (&self.standby, two), (&self.free, one)];
        let what = "every manager shows what the API server lists";
        run::poll(what, SOON, PAUSE, || Ok(managers.into_iter().all(shows_truth).then_some(()))).unwrap();
        println!("converged {:.1} s after the API server", began.elapsed().as_secs_f64());
        // A silent watch would not show it.
        for namespace in &self.namespaces {
            self.apply(namespace, &book("new"));
        }
        let is_ready = |namespace: &String| {
            let book = self.env.kube().get(namespace, "book", "new").ok().flatten().unwrap_or_default();
            condition(&book, "Ready").0 == "True"
        };
        run::poll("the new Books are Ready", SOON, PAUSE, || {
            Ok(self.namespaces.iter().all(is_ready).then_some(()))
        })
        .unwrap();
    }
}

/// The value of a metric; 0 if it has none.
fn metric(manager: &Manager, name: &str) -> u64 {
    let metrics = manager.metrics().unwrap_or_default();
    metrics.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or_default()
}

/// Scales a PodSet until it is dropped.
struct Load {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Load {
    fn on(env: &TestEnv) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let (kube, namespace, ends) = (env.kube().clone(), env.namespace().to_owned(), is_over.clone());
        let thread = thread::spawn(move || {
            for round in 0.. {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let replicas = format!("--replicas={}", if round % 2 == 0 { 20 } else { 2 });
                let scale = ["scale", "podset", "load", &replicas, "--request-timeout=2s"];
                // Without the API server, it fails.
                let _ = run::output(kube.kubectl().args(["-n", &namespace]).args(scale), None);
                sleep(Duration::from_secs(1));
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Changes that the restore takes back.
fn change(stage: &Stage, late: &str) {
    let Stage { env, namespaces, .. } = stage;
    for namespace in namespaces {
        stage.kubectl(namespace, &["scale", "podset", "shrunk", "--replicas=1"]);
        stage.kubectl(namespace, &["scale", "podset", "grown", "--replicas=3"]);
        for object in [podset("extra", &json!({ "replicas": 0 })), book("lost"), book("lost-too")] {
            stage.apply(namespace, &object);
        }
        stage.kubectl(namespace, &["delete", "book", "deleted"]);
    }
    env.kubectl(&["label", "node", late, "run=yes"]).unwrap();
    let maps = (0..LOST).map(|number| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("lost-{number}") } })
    });
    let maps = json!({ "apiVersion": "v1", "kind": "List", "items": maps.collect::<Vec<Value>>() });
    let create = ["-n", env.namespace(), "create", "-f", "-"];
    run::stdout_with_input(env.kube().kubectl().args(create), Some(&maps.to_string())).unwrap();
    stage.settle(1, 3, 2);
}

/// Waits until the leader and its standby report that the API server lists lost objects.
fn is_reported(stage: &Stage, before: [u64; 2]) {
    let Stage { env, leader, standby, .. } = stage;
    assert!(env.get("book", "lost").is_none(), "etcd has lost it");
    assert!(stage.listed(env.namespace(), "books").contains("lost"), "the watch cache still has it");
    let restores = || [leader, standby].map(|manager| metric(manager, RESTORES));
    let reported = run::poll("both candidates report it", PATIENCE, PAUSE, || {
        let now = restores();
        Ok((now[0] > before[0] && now[1] > before[1]).then_some(()))
    });
    if let Err(error) = reported {
        let logs = [leader, standby].map(Manager::logged);
        panic!("{error:#}: {before:?} before, {:?} now\n{}", restores(), logs.join("\n"));
    }
}

/// How many pods of the DaemonJob were created since `before`.
fn runs_since(env: &TestEnv, before: &BTreeMap<String, usize>) -> usize {
    let runs = |created: &BTreeMap<String, usize>| -> usize {
        created.iter().filter(|(name, _)| name.starts_with("job-")).map(|(_, times)| times).sum()
    };
    runs(&env.created_pods()) - runs(before)
}

fn restored(test: &str, way: Way) {
    let stage = Stage::start(test);
    let Stage { env, namespaces, leader, standby, free } = &stage;
    let nodes = env.nodes(["a", "b"]);
    env.kubectl(&["label", "node", &nodes[0], "run=yes"]).unwrap();
    let set = |name: &str, replicas: i64| {
        podset(name, &json!({ "replicas": replicas, "template": on_own_nodes(env) }))
    };
    for namespace in namespaces {
        for object in [set("shrunk", 4), set("grown", 1), book("kept"), book("deleted")] {
            stage.apply(namespace, &object);
        }
    }
    env.apply(&set("load", 2)).unwrap();
    let mut job = daemonjob(env, "job", &json!({}));
    job["spec"]["template"]["spec"]["nodeSelector"]["run"] = json!("yes");
    env.apply(&job).unwrap();
    stage.settle(4, 1, 1);
    let load = Load::on(env);
    // etcd commits its writes every 100 ms, and the audit log has a request a moment after its answer.
    sleep(Duration::from_secs(2));
    let (pods, created) = (stage.pods(), env.created_pods());
    let backup = stage.back_up();
    change(&stage, &nodes[1]);
    let before = [leader, standby].map(|manager| metric(manager, RESTORES));

    // Only a quiet store stays behind the watch cache.
    let load = Some(load).filter(|_| way != Way::Neither);
    stage.restore(&backup, way);
    // The managers report how many pods they show, which must not change while it is compared.
    drop(load);
    if way == Way::Neither {
        is_reported(&stage, before);
        env.cluster().restart(Component::Apiserver, &[]).unwrap();
    }
    stage.converge();
    assert!([leader, standby, free].into_iter().all(|manager| metric(manager, RESTORES) > 0));
    // Their watches may be silent.
    for component in [Component::ControllerManager, Component::Scheduler, Component::Kwok] {
        env.cluster().restart(component, &[]).unwrap();
    }
    stage.settle(4, 1, 1);
    assert_eq!(stage.pods(), pods, "no pod of the restored store is made again");
    let again = env.created_pods();
    for [namespace, name, _] in pods.iter().filter(|[namespace, ..]| namespace == env.namespace()) {
        assert_eq!(again.get(name), created.get(name), "{namespace}/{name}");
    }
    assert_eq!(runs_since(env, &created), 1, "the second node ran before the restore");

    env.kubectl(&["label", "node", &nodes[1], "run=yes"]).unwrap();
    stage.settle(4, 1, 2);
    if way == Way::Neither {
        // The API server still listed the pod of the second node, so the manager may have written the record again.
        assert!(runs_since(env, &created) <= 2);
    } else {
        // The record of the second node is lost, so it runs again.
        env.wait("the audit log has the second run", || runs_since(env, &created) == 2);
    }
    // The standby knows the restored store, too.
    let pid = leader.pid().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    env.wait("the standby leads", || standby.leads());
    env.apply(&book("last")).unwrap();
    env.wait_for("book", "last", "it is Ready", |book| condition(book, "Ready").0 == "True");
    assert_eq!(stage.pods(), pods);
}

#[test]
fn every_manager_lists_a_restored_store() {
    restored("mr-restarted", Way::Restarted);
}

/// Such an API server continues to list lost objects until it restarts.
#[test]
fn reports_an_api_server_that_lists_lost_objects() {
    restored("mr-neither", Way::Neither);
}

#[test]
fn bumped_with_a_restarted_api_server() {
    restored("mr-both", Way::RestartedBumped);
}

#[test]
fn bumped_with_a_running_api_server() {
    restored("mr-bumped", Way::Bumped);
}
