//! Leader election: a leader that is suspended and wakes, and Leases of other holders.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use quintet_e2e::{TestEnv, answered, condition, program};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::manager::{Manager, ManagerOptions};
use serde_json::json;

use crate::book::book;
use crate::podset::podset;

/// Short durations, but longer than the stall of some seconds of a busy machine.
const QUICK: [&str; 4] = [
    "--leader-elect-lease-duration=12s",
    "--leader-elect-renew-deadline=10s",
    "--leader-elect-retry-period=500ms",
    "--leader-elect-renew-period=1s",
];

/// Longer than the lease duration.
const LONGER: Duration = Duration::from_secs(14);

fn candidate(env: &TestEnv, name: &str) -> Manager {
    candidate_for(env, name, "book")
}

fn candidate_for(env: &TestEnv, name: &str, controllers: &str) -> Manager {
    let mut args = vec![
        format!("--controllers={controllers}"),
        format!("--watch-namespace={}", env.namespace()),
        "--log-level=info,quintet_runtime=debug".to_owned(),
    ];
    args.extend(QUICK.map(str::to_owned));
    let options = ManagerOptions {
        name: format!("{}-{name}", env.namespace()),
        lease_namespace: Some(env.namespace().to_owned()),
        args,
        program: Some(program()),
        ..ManagerOptions::default()
    };
    Manager::start(env.kube(), &options).unwrap()
}

/// The number of a manager's requests with one of these methods, answered or not.
fn requests(manager: &Manager, methods: &[&str]) -> u64 {
    let metrics = answered(|| manager.metrics());
    let requests = metrics.lines().filter(|line| line.starts_with("rest_client_requests_total"));
    let is_one = |line: &&str| methods.iter().any(|method| line.contains(&format!("method=\"{method}\"")));
    requests.filter(is_one).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

/// The number of a manager's writes, Events included, except renewals of the Lease, the only PUTs.
fn changes(manager: &Manager) -> u64 {
    requests(manager, &["POST", "PATCH", "DELETE"])
}

fn signal(manager: &Manager, signal: &str) {
    let pid = manager.pid().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

fn holder(env: &TestEnv) -> String {
    let lease = env.get("lease", "quintet-manager").unwrap_or_default();
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// A leader that is suspended for longer than its lease writes nothing when it wakes with pending events.
#[test]
fn suspended_leader_writes_nothing_when_it_wakes() {
    let env = TestEnv::new("me-stopped");
    env.allow_leases();
    let first = candidate(&env, "first");
    env.wait("the first manager leads", || first.leads());
    let second = candidate(&env, "second");
    env.apply(&book("before")).unwrap();
    env.wait_for("book", "before", "it is Ready", |book| condition(book, "Ready").0 == "True");
    // The metric counts the request after its effect is visible.
    env.wait("the metric counts the write", || requests(&first, &["PATCH"]) == 1);
    // An Event may follow.
    std::thread::sleep(Duration::from_secs(1));
    let written = changes(&first);

    signal(&first, "-STOP");
    // Changes that the suspended leader would act on when it wakes.
    for number in 0..10 {
        env.apply(&book(&format!("meanwhile-{number}"))).unwrap();
    }
    env.wait("the second manager leads", || second.leads());
    env.wait("the second manager has served the changes", || {
        let books = env.list("book", "");
        books.len() == 11 && books.iter().all(|book| condition(book, "Ready").0 == "True")
    });
    let served = env.writes_when(11).len();
    env.kubectl(&["patch", "book", "before", "--type=merge", "-p", r#"{"spec":{"title":"After"}}"#]).unwrap();
    env.wait_for("book", "before", "it is seen", |book| book["status"]["observedGeneration"] == 2);
    signal(&first, "-CONT");
    env.wait("the first manager logs the other holder", || {
        first.logged().contains("another process holds the lease") && !first.leads()
    });
    env.apply(&book("after")).unwrap();
    env.wait_for("book", "after", "it is Ready", |book| condition(book, "Ready").0 == "True");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(changes(&first), written, "{}", first.logged());
    assert_eq!(env.writes_when(served + 2).len(), served + 2);
    assert!(first.is_alive(), "the first manager is a standby");
    assert!(second.leads());

    // The first manager can lead again.
    assert_eq!(second.stop().unwrap(), Some(0));
    env.wait("the first manager leads again", || first.leads());
    assert_eq!(first.stop().unwrap(), Some(0));
}

/// A leader that gets SIGTERM during many creations finishes them and holds the Lease until then.
#[test]
fn releases_the_lease_after_the_last_write() {
    let env = TestEnv::new("me-drain");
    env.allow_leases();
    let leader = candidate_for(&env, "leader", "podset");
    env.wait("the manager leads", || leader.leads());
    env.apply(&podset("many", &json!({ "replicas": 600 }))).unwrap();
    env.wait("the manager has created pods", || {
        let metrics = leader.metrics().unwrap_or_default();
        let made = |line: &&str| line.starts_with("rest_client_requests_total{code=\"201\"");
        let counts =
            metrics.lines().filter(made).filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
        counts.sum::<u64>() > 10
    });
    assert_eq!(leader.stop().unwrap(), Some(0));
    let log = env.kube().log(&format!("{}-leader.log", env.namespace()));
    let log = std::fs::read_to_string(log).unwrap();
    let at = |what: &str| log.find(what).unwrap_or_else(|| panic!("{what:?} is not in the log: {log}"));
    assert!(at("shutting down") < at("reconciled"), "the shutdown began before the end: {log}");
    assert!(at("reconciled") < at("released the lease"), "{log}");
    assert_eq!(holder(&env), "");
    env.wait("all pods are created", || env.created_pods().len() == 600);
    env.kubectl(&["delete", "podset", "many", "--wait=false"]).unwrap();
}

/// Another program with client-go's leader election: kube-scheduler with a scheduler name that no pod uses.
struct ClientGo(Child);

impl ClientGo {
    fn start(env: &TestEnv) -> Self {
        let dir = env.cluster().dir();
        let config = json!({ "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "clientConnection": { "kubeconfig": dir.kubeconfig(Component::Scheduler.name()) },
            "profiles": [{ "schedulerName": format!("unused-{}", env.namespace()) }],
            "leaderElection": { "leaderElect": true, "resourceLock": "leases", "resourceName": "quintet-manager",
                "resourceNamespace": env.namespace(),
                "leaseDuration": "12s", "renewDeadline": "10s", "retryPeriod": "500ms" } });
        let file = env.kube().dir().join(format!("{}-scheduler.json", env.namespace()));
        std::fs::write(&file, config.to_string()).unwrap();
        let log = env.kube().log(&format!("{}-scheduler.log", env.namespace()));
        let log = File::options().create(true).append(true).open(log).unwrap();
        let program = dir.bin().join(Component::Scheduler.name());
        let child = Command::new(program)
            .arg(format!("--config={}", file.display()))
            .args(["--secure-port=0", "--bind-address=127.0.0.1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self(child)
    }

    fn terminate(&self) {
        assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
    }
}

impl Drop for ClientGo {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Neither client-go nor Quintet takes the other's renewed Lease, and each takes a released one.
#[test]
fn respects_leases_of_client_go_and_vice_versa() {
    let env = TestEnv::new("me-client-go");
    env.allow_leases();
    // kube-scheduler's Role allows only its own Lease.
    env
        .apply(&json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": "scheduler" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "leases" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-scheduler" }] }))
        .unwrap();
    let theirs = ClientGo::start(&env);
    env.wait("client-go holds the Lease", || !holder(&env).is_empty());
    let holder_then = holder(&env);
    let ours = candidate(&env, "ours");
    env.wait("our manager is a standby", || ours.logged().contains("standing by"));
    std::thread::sleep(LONGER);
    assert!(!ours.leads(), "our manager does not take a renewed Lease");
    assert_eq!(holder(&env), holder_then);
    assert!(ours.logged().contains(&holder_then));

    theirs.terminate();
    env.wait("our manager leads after client-go exits", || ours.leads());
    drop(theirs);
    env.apply(&book("ours")).unwrap();
    env.wait_for("book", "ours", "it is Ready", |book| condition(book, "Ready").0 == "True");

    let mine = holder(&env);
    let theirs = ClientGo::start(&env);
    std::thread::sleep(LONGER);
    assert_eq!((&holder(&env), ours.leads()), (&mine, true), "client-go does not take a renewed Lease");
    assert_eq!(ours.stop().unwrap(), Some(0));
    env.wait("client-go takes the released Lease", || {
        let holder = holder(&env);
        !holder.is_empty() && holder != holder_then && holder != mine
    });
    drop(theirs);
}

/// Without the right to use Leases, a manager can never write. It names the missing rule and exits.
#[test]
fn exits_without_the_right_to_use_leases() {
    let env = TestEnv::new("me-forbidden");
    let manager = candidate(&env, "manager");
    env.apply(&book("unserved")).unwrap();
    env.wait("the manager has exited", || !manager.is_alive());
    let logged = manager.logged();
    assert!(
        logged.contains("needs the rule: apiGroups [coordination.k8s.io], resources [leases]"),
        "{logged}"
    );
    assert_eq!(env.get("book", "unserved").unwrap()["status"], json!({ "observedGeneration": -1 }));
    assert_eq!(manager.stop().unwrap(), Some(1));
}

/// A manager waits for a nonsensical Lease as long as for its own lease duration.
#[test]
fn takes_over_a_nonsensical_lease() {
    let env = TestEnv::new("me-nonsense");
    env.allow_leases();
    env.apply(&json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": "quintet-manager", "annotations": { "quintet.dev/written": "nonsense" } },
            "spec": { "holderIdentity": "other", "leaseDurationSeconds": 2_147_483_647,
                "leaseTransitions": 2_147_483_647,
                "renewTime": "2099-01-01T00:00:00.000000Z" } }))
        .unwrap();
    let manager = candidate(&env, "manager");
    env.wait("the manager leads", || manager.leads());
    assert!(manager.logged().contains("holder=\"other\""), "{}", manager.logged());
    assert_eq!(manager.stop().unwrap(), Some(0));
}
