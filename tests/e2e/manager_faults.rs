//! Faults around a manager: an API server that is gone or silent, a replaced token, and outputs that fail.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quintet_e2e::{MANAGER_ROLE, TestEnv, condition, program};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::cluster::ports;
use quintet_localcluster::manager::{Manager, ManagerOptions};
use quintet_localcluster::proxy::Proxy;
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::book::book;

/// The port of the API server.
fn api_port(env: &TestEnv) -> u16 {
    env.cluster().process(Component::Apiserver).unwrap().unwrap().port
}

fn through(env: &TestEnv, proxy: &Proxy, more: &[&str]) -> ManagerOptions {
    let mut args = vec![format!("--watch-namespace={}", env.namespace())];
    args.extend(more.iter().map(|&arg| arg.to_owned()));
    ManagerOptions {
        name: format!("{}-manager", env.namespace()),
        lease_namespace: Some(env.namespace().to_owned()),
        through: Some(proxy.port()),
        args,
        program: Some(program()),
        ..ManagerOptions::default()
    }
}

fn manager_through(env: &TestEnv, proxy: &Proxy, more: &[&str]) -> Manager {
    Manager::start(env.kube(), &through(env, proxy, more)).unwrap()
}

/// An API server that is absent for a minute restarts no manager. The manager then catches up.
#[test]
fn survives_an_api_server_that_is_gone_for_a_minute() {
    let env = TestEnv::new("mf-gone");
    env.allow_leases();
    let proxy = Proxy::to(api_port(&env)).unwrap();
    let manager = manager_through(&env, &proxy, &["--controllers=book,greeting"]);
    env.apply(&book("before")).unwrap();
    env.wait_for("book", "before", "it is Ready", |book| condition(book, "Ready").0 == "True");
    let pid = manager.pid();
    proxy.cut();
    for number in 0..20 {
        env.apply(&book(&format!("meanwhile-{number}"))).unwrap();
    }
    std::thread::sleep(Duration::from_mins(1));
    let (status, body) = quintet_localcluster::http::get(manager.health_port(), "/healthz").unwrap();
    assert_eq!((status, manager.is_alive()), (200, true), "{body}");
    assert!(manager.metrics().is_ok() && !manager.leads(), "the renew deadline has passed");
    let lines = manager.logged().lines().count();

    let connected = proxy.accepted();
    let back = Instant::now();
    proxy.restore();
    env.wait("all Books are Ready", || {
        let books = env.list("book", "");
        books.len() == 21 && books.iter().all(|book| condition(book, "Ready").0 == "True")
    });
    println!("converged {:.1} s after the API server was back", back.elapsed().as_secs_f64());
    assert_eq!((manager.pid(), manager.is_alive()), (pid, true));
    let connections = proxy.accepted() - connected;
    assert!(connections < 50, "{connections} connections are too many");
    assert_eq!(env.writes_when(21).len(), 21, "one status write for each Book");
    assert!(lines < 2_000, "{lines} lines in a minute without an API server");
    assert_eq!(manager.stop().unwrap(), Some(0));
}

/// A silent connection looks like a cluster without changes. A renewal without an answer reveals the
/// difference.
#[test]
fn reopens_silent_watches_when_a_renewal_fails() {
    let env = TestEnv::new("mf-silent");
    env.allow_leases();
    let proxy = Proxy::to(api_port(&env)).unwrap();
    let manager = manager_through(&env, &proxy, &["--controllers=book"]);
    env.apply(&book("before")).unwrap();
    env.wait_for("book", "before", "it is Ready", |book| condition(book, "Ready").0 == "True");
    proxy.silence();
    env.apply(&book("unheard")).unwrap();
    env.wait_for("book", "unheard", "it is Ready", |book| condition(book, "Ready").0 == "True");
    assert!(!manager.logged().contains("silent for"), "{}", manager.logged());
    assert!(manager.logged().contains("cannot read or renew"), "{}", manager.logged());
    // The manager does not use the equally silent idle connection for its next request either.
    assert!(!manager.logged().contains("did not answer within"), "{}", manager.logged());
}

/// A shutdown waits up to 3 s for the release of the Lease. A second signal ends the wait.
#[test]
fn exits_at_once_after_a_second_signal() {
    let env = TestEnv::new("mf-signals");
    env.allow_leases();
    let proxy = Proxy::to(api_port(&env)).unwrap();
    let manager = manager_through(&env, &proxy, &["--controllers=book"]);
    env.wait("the manager leads", || manager.leads());
    proxy.silence();
    let pid = manager.pid().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    std::thread::sleep(Duration::from_millis(500));
    // `stop` sends the second signal.
    assert_eq!(manager.stop().unwrap(), Some(0));
    let log = env.kube().log(&format!("{}-manager.log", env.namespace()));
    let logged = std::fs::read_to_string(&log).unwrap();
    assert!(logged.contains("received a signal during the shutdown"), "{logged}");
}

/// An unplugged machine acknowledges nothing. Without Lease renewals, TCP gives up the connection.
#[test]
fn tcp_gives_up_connections_to_an_unplugged_server() {
    let env = TestEnv::new("mf-unplugged");
    let proxy = Proxy::to(api_port(&env)).unwrap();
    let options = ManagerOptions { leader_elect: false, ..through(&env, &proxy, &["--controllers=book"]) };
    let manager = Manager::start(env.kube(), &options).unwrap();
    env.apply(&book("before")).unwrap();
    env.wait_for("book", "before", "it is Ready", |book| condition(book, "Ready").0 == "True");
    proxy.unplug().unwrap();
    let unplugged = Instant::now();
    env.apply(&book("unheard")).unwrap();
    env.wait_for("book", "unheard", "it is Ready", |book| condition(book, "Ready").0 == "True");
    println!("noticed {:.1} s after the other end was gone", unplugged.elapsed().as_secs_f64());
    assert!(!manager.logged().contains("silent for"), "{}", manager.logged());
    assert!(manager.logged().contains("timed out (os error 110)"), "{}", manager.logged());
}

#[test]
fn reads_a_replaced_token_file_again() {
    let env = TestEnv::new("mf-token");
    let kube = env.kube();
    // A token is valid as long as the Secret that it is bound to exists.
    let token = |secret: &str| {
        env.kubectl(&["create", "secret", "generic", secret]).unwrap();
        env.kubectl(&[
            "create",
            "token",
            "bound",
            "--bound-object-kind=Secret",
            &format!("--bound-object-name={secret}"),
        ])
        .unwrap()
    };
    env.kubectl(&["create", "serviceaccount", "bound"]).unwrap();
    let account = format!("--serviceaccount={}:bound", env.namespace());
    env.kubectl(&["create", "rolebinding", "bound", MANAGER_ROLE, &account]).unwrap();
    let file = kube.dir().join(format!("{}.token", env.namespace()));
    std::fs::write(&file, token("first").trim()).unwrap();
    let config = kube.kubeconfig_of_service_account(env.namespace(), "bound").unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["users"][0]["user"] = json!({ "tokenFile": file });
    let kubeconfig = kube.dir().join(format!("{}-token.kubeconfig", env.namespace()));
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let log = kube.log(&format!("{}-token.log", env.namespace()));
    let mut manager = Command::new(program())
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .arg(format!("--watch-namespace={}", env.namespace()))
        .args(["--controllers=book", "--metrics-bind-address=0", "--health-probe-bind-address=0"])
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    env.apply(&book("first")).unwrap();
    env.wait_for("book", "first", "it is Ready", |book| condition(book, "Ready").0 == "True");
    std::fs::write(&file, token("second").trim()).unwrap();
    env.kubectl(&["delete", "secret", "first"]).unwrap();
    // The API server caches an accepted token for 10 s.
    std::thread::sleep(Duration::from_secs(12));
    env.apply(&book("second")).unwrap();
    env.wait_for("book", "second", "it is Ready", |book| condition(book, "Ready").0 == "True");
    let alive = manager.try_wait().unwrap().is_none();
    manager.kill().unwrap();
    manager.wait().unwrap();
    let logged = std::fs::read_to_string(&log).unwrap();
    assert!(alive, "{logged}");
    assert!(!logged.contains(std::fs::read_to_string(&file).unwrap().trim()), "no token is logged");
}

/// A full disk takes no line, so the manager claims no Greeting. Other kinds continue.
#[test]
fn full_disk_stops_only_greetings() {
    let env = TestEnv::new("mf-full");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut manager = env.bare_manager_printing("greeting,book", full);
    let greeting = |name: &str| {
        json!({ "apiVersion": "example.com/v1", "kind": "Greeting", "metadata": { "name": name },
            "spec": { "message": name } })
    };
    env.apply(&greeting("first")).unwrap();
    let log = env.kube().log(&format!("{}-manager.log", env.namespace()));
    env.wait("the manager logs the error", || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("cannot write to standard output"))
    });
    env.apply(&greeting("second")).unwrap();
    env.apply(&book("book")).unwrap();
    env.wait_for("book", "book", "it is Ready", |book| condition(book, "Ready").0 == "True");
    assert!(env.get("greeting", "second").unwrap()["status"]["claim"].is_null());
    assert!(manager.try_wait().unwrap().is_none(), "the manager runs");
    manager.kill().unwrap();
    manager.wait().unwrap();
}

/// A hanging log collector must not block the manager. A pipe holds 64 KiB, which trace logs fill quickly.
#[test]
fn unread_logs_do_not_block_the_manager() {
    let env = TestEnv::new("mf-log");
    let mut command = env.bare_command("book");
    let mut manager = command.arg("--log-level=trace").stderr(Stdio::piped()).spawn().unwrap();
    let books: Vec<Value> = (0..200).map(|number| book(&format!("book-{number}"))).collect();
    env.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": books })).unwrap();
    env.wait("all Books are Ready", || {
        let books = env.list("book", "");
        books.len() == 200 && books.iter().all(|book| condition(book, "Ready").0 == "True")
    });
    // When the reader continues, it gets the kept lines and a note about dropped ones.
    let stderr = manager.stderr.take().unwrap();
    let mut lines = BufReader::new(stderr).lines().map(Result::unwrap_or_default);
    assert!(lines.any(|line| line.contains("dropped log lines")));
    assert!(manager.try_wait().unwrap().is_none(), "the manager runs");
    manager.kill().unwrap();
    manager.wait().unwrap();
}

/// The manager's ServiceAccount has rights in its two namespaces only.
#[test]
fn serves_several_namespaces_with_rights_in_only_them() {
    let env = TestEnv::new("mf-several");
    let (one, two, three) = (
        env.namespace().to_owned(),
        format!("{}-two", env.namespace()),
        format!("{}-three", env.namespace()),
    );
    let kubectl = |args: &[&str]| run::stdout(env.kube().kubectl().args(args)).unwrap();
    for namespace in [&two, &three] {
        kubectl(&["create", "namespace", namespace]);
    }
    env.kubectl(&["create", "serviceaccount", "narrow"]).unwrap();
    for namespace in [&one, &two] {
        // A RoleBinding limits the chart's ClusterRole to this namespace.
        let account = format!("--serviceaccount={one}:narrow");
        kubectl(&["-n", namespace, "create", "rolebinding", "narrow", MANAGER_ROLE, &account]);
    }
    let port = ports::one().unwrap();
    let options = ManagerOptions {
        name: format!("{one}-manager"),
        namespace: one.clone(),
        service_account: "narrow".to_owned(),
        leader_elect: false,
        args: vec![
            "--controllers=-daemonjob".to_owned(),
            format!("--watch-namespace={one},{two}"),
            format!("--debug-bind-address=127.0.0.1:{port}"),
            "--log-format=json".to_owned(),
        ],
        program: Some(program()),
        ..ManagerOptions::default()
    };
    let manager = Manager::start(env.kube(), &options).unwrap();
    let set = json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
        "metadata": { "name": "set" }, "spec": { "replicas": 2 } });
    for namespace in [&one, &two, &three] {
        for object in [&set, &book("book")] {
            let apply = ["-n", namespace, "apply", "-f", "-"];
            run::stdout_with_input(env.kube().kubectl().args(apply), Some(&object.to_string())).unwrap();
        }
    }
    let count = |namespace: &str| {
        let pods = kubectl(&["-n", namespace, "get", "pods", "-o", "name"]);
        pods.lines().count()
    };
    let get = |namespace: &str| env.kube().get(namespace, "book", "book").unwrap().unwrap_or_default();
    for namespace in [&one, &two] {
        env.wait("the namespace is served", || {
            count(namespace) == 2 && condition(&get(namespace), "Ready").0 == "True"
        });
    }
    std::thread::sleep(Duration::from_secs(2));
    let unserved = json!({ "observedGeneration": -1 });
    assert_eq!((count(&three), &get(&three)["status"]), (0, &unserved), "the third is not served");
    let (_, caches) = quintet_localcluster::http::get(port, "/debug/caches").unwrap();
    for scope in [format!("{one}/pods.: 2 objects"), format!("{two}/pods.: 2 objects")] {
        assert!(caches.contains(&scope), "{caches}");
    }
    assert!(!caches.contains("-three/"), "{caches}");
    let metrics = manager.metrics().unwrap();
    assert!(metrics.contains("quintet_informer_objects{resource=\"pods\"} 4"), "{metrics}");
    // In each namespace, the manager reads its own writes, so it creates no pod twice.
    kubectl(&["-n", &two, "scale", "podset/set", "--replicas=5"]);
    env.wait("the second PodSet is scaled", || count(&two) == 5);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((count(&one), count(&two)), (2, 5));
    assert_eq!(manager.stop().unwrap(), Some(0));
    kubectl(&["delete", "namespace", &two, &three, "--wait=false"]);
}
