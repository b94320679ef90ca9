//! The program: its flags, its prerequisites, and which of two managers writes.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use quintet_e2e::{PATIENCE, TestEnv, condition, program, workspace};
use quintet_localcluster::manager::{Manager, ManagerOptions};
use quintet_localcluster::run;
use quintet_localcluster::temporary::TemporaryCluster;
use serde_json::{Value, json};

fn quintet(args: &[&str]) -> Output {
    Command::new(program()).args(args).env_remove("KUBECONFIG").output().expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn names_unknown_flags_and_kinds() {
    let output = quintet(&["--controllers=cronjob"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("'cronjob'") && stderr(&output).contains("daemonjob"),
        "{}",
        stderr(&output)
    );
    let output = quintet(&["--nonsense"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--nonsense"), "{}", stderr(&output));
    let output = quintet(&["--log-level=l0ud=="]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let output = quintet(&["--kubeconfig=/does/not/exist"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/does/not/exist"), "{}", stderr(&output));
    let output = quintet(&["--metrics-cert-dir=/does/not/exist"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let output = Command::new(program()).env("QUINTET_CONTROLLERS", "cronjob").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("'cronjob'"), "{}", stderr(&output));
    let help = quintet(&["--help"]);
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for flag in [
        "--controllers",
        "--watch-namespace",
        "--leader-elect",
        "--metrics-bind-address",
        "--log-format",
        "Leader election:",
    ] {
        assert!(help.contains(flag), "{help}");
    }
}

/// One error line without the file's content, and no fallback to the in-cluster configuration.
#[test]
fn names_an_unusable_kubeconfig_without_quoting_it() {
    let home = std::env::temp_dir().join(format!("quintet-broken-{}", std::process::id()));
    let file = home.join(".kube/config");
    let named = file.to_str().unwrap();
    let none = "no cluster is configured";
    let ask = || {
        let mut variable = Command::new(program());
        let mut found = Command::new(program());
        variable.env("KUBECONFIG", &file);
        found.env("HOME", &home).env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST");
        let flag = quintet(&["--kubeconfig", named]);
        [flag, variable.output().unwrap(), found.output().unwrap()].map(|output| {
            let (code, why) = (output.status.code(), stderr(&output));
            assert_eq!((code, why.lines().count()), (Some(1), 1), "{why}");
            why
        })
    };
    let [flag, variable, found] = ask();
    for why in [flag, variable] {
        assert!(why.contains(named) && !why.contains(none), "{why}");
    }
    assert!(found.contains(none), "{found}");
    std::fs::create_dir_all(home.join(".kube")).unwrap();
    let user = "users:\n- name: a\n  user:\n    token: s3cret\n";
    let cluster = "current-context: c\ncontexts:\n- {name: c, context: {cluster: c}}\nclusters:\n\
        - {name: c, cluster: {server: 'https://one', proxy-url: 'http://u:s3cret@two:1'}}\n";
    for (text, expected) in [
        (format!("{user}    tokenFile: [s3cret, {{\n"), "not a kubeconfig in YAML"),
        (format!("{user}    username: [s3cret]\n"), "not a kubeconfig in YAML"),
        (format!("{user}current-context: c\n"), "context: c"),
        (format!("{user}{cluster}"), "has a proxy-url"),
    ] {
        std::fs::write(&file, text).unwrap();
        for why in ask() {
            assert!(why.contains(expected) && !why.contains("s3cret") && !why.contains(none), "{why}");
        }
    }
    std::fs::remove_dir_all(home).unwrap();
}

#[test]
fn names_an_unreadable_certificate() {
    let env = TestEnv::new("mg-cert");
    let output = Command::new(program())
        .arg("--kubeconfig")
        .arg(env.cluster().kubeconfig())
        .args(["--metrics-secure", "--metrics-cert-dir=/does/not/exist"])
        .args(["--metrics-bind-address=127.0.0.1:0", "--health-probe-bind-address=0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/does/not/exist/tls.crt"), "{}", stderr(&output));
}

#[test]
fn names_the_address_of_a_taken_port() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let env = TestEnv::new("mg-port");
    let kubeconfig = env.cluster().kubeconfig();
    let output = Command::new(program())
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args([&format!("--metrics-bind-address={address}"), "--health-probe-bind-address=0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains(&address), "{}", stderr(&output));
}

/// Without an API server the manager retries, logs it, and is alive but not ready.
#[test]
fn waits_for_an_unreachable_cluster() {
    let env = TestEnv::new("mg-away");
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let health = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let kubeconfig = std::env::temp_dir().join(format!("{}.kubeconfig", env.namespace()));
    let config = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{unused}") } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }] });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    let mut child = Command::new(program())
        .arg("--kubeconfig")
        .arg(&kubeconfig)
        .args(["--metrics-bind-address=0", &format!("--health-probe-bind-address={health}")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let line = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find(|line| line.contains("interrupted"))
        .expect("the manager logs that it cannot reach the cluster");
    let probe = |path| quintet_localcluster::http::get(health.port(), path);
    let (healthy, ready) = (probe("/healthz"), probe("/readyz"));
    let alive = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    let _ = std::fs::remove_file(kubeconfig);
    assert!(line.contains("error"), "{line}");
    assert!(line.contains("refused"), "the line has the cause: {line}");
    assert!(alive);
    assert_eq!(healthy.map(|(code, _)| code), Some(200));
    let (code, body) = ready.expect("/readyz answers");
    assert_eq!(code, 503);
    assert!(body.contains("not complete"), "{body}");
}

/// In a cluster without Quintet's definitions, the manager waits for them. A bad object affects no other.
#[test]
fn waits_for_definitions_and_skips_undecodable_objects() {
    let cluster = TemporaryCluster::up("bare", 0).unwrap();
    let kubectl = |args: &[&str], input: Option<&str>| {
        run::stdout_with_input(cluster.kubectl().args(args), input).map_err(|error| format!("{error:#}"))
    };
    let free = [(), ()].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let [health, metrics] = free.map(|port| port.local_addr().unwrap());
    let log = cluster.kube().log("bare.log");
    let mut child = Command::new(program())
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig())
        .args(["--controllers=greeting,book,podset", "--log-format=json"])
        .arg(format!("--health-probe-bind-address={health}"))
        .arg(format!("--metrics-bind-address={metrics}"))
        .stderr(std::fs::File::create(&log).unwrap())
        .stdout(std::fs::File::create(cluster.kube().log("bare.out")).unwrap())
        .spawn()
        .unwrap();
    let ready = || quintet_localcluster::http::get(health.port(), "/readyz").unwrap_or_default();
    let wait = |what: &str, holds: &dyn Fn() -> bool| {
        run::poll(what, PATIENCE, Duration::from_millis(100), || Ok(holds().then_some(())))
            .unwrap_or_else(|error| panic!("{error}\n{}", std::fs::read_to_string(&log).unwrap_or_default()));
    };
    wait("the manager reports both missing definitions", &|| {
        let (code, body) = ready();
        code == 503
            && body.contains("greetings.example.com")
            && body.contains("books.christianb93.github.com")
    });
    let greeting = |name: &str| cluster.kube().get("default", "greeting", name).unwrap().unwrap_or_default();
    let object = |name: &str, message: Value| {
        json!({ "apiVersion": "example.com/v1", "kind": "Greeting",
            "metadata": { "name": name, "namespace": "default" }, "spec": { "message": message } })
        .to_string()
    };
    // The tutorial's Greeting definition requires no field and has no status, so claims are impossible.
    let posts = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "greetings.example.com" },
        "spec": { "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "greetings", "singular": "greeting", "kind": "Greeting" },
            "versions": [{ "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": { "spec": {
                    "type": "object", "properties": { "message": { "type": "string" } } } } } } }] } });
    kubectl(&["apply", "-f", "-"], Some(&posts.to_string())).unwrap();
    let bare = json!({ "apiVersion": "example.com/v1", "kind": "Greeting",
        "metadata": { "name": "bare", "namespace": "default" } });
    for object in [object("early", json!("Hi")), object("corrected", Value::Null), bare.to_string()] {
        wait("the Greeting is stored", &|| kubectl(&["apply", "-f", "-"], Some(&object)).is_ok());
    }
    // A Greeting that cannot be printed can still be deleted.
    kubectl(&["apply", "-f", "-"], Some(&object("passing", json!("Hi")))).unwrap();
    wait("the Greeting has its finalizer", &|| greeting("passing")["metadata"]["finalizers"].is_array());
    kubectl(&["delete", "greeting", "passing", "--timeout=30s"], None).unwrap();
    // A definition without a schema.
    let loose = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "greetings.example.com" },
        "spec": { "group": "example.com", "scope": "Namespaced",
            "names": { "plural": "greetings", "singular": "greeting", "kind": "Greeting" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }] } });
    kubectl(&["apply", "-f", "-"], Some(&loose.to_string())).unwrap();
    wait("the manager reports only Book as missing", &|| {
        let (code, body) = ready();
        code == 503 && !body.contains("greetings") && body.contains("books")
    });
    for (name, message) in [("number", json!(5)), ("good", json!("Hi")), ("silent", Value::Null)] {
        // For a moment, the API server still uses the previous definition.
        let object = object(name, message);
        wait("the Greeting is stored", &|| kubectl(&["apply", "-f", "-"], Some(&object)).is_ok());
    }
    let podsets = loose.to_string().replace("greetings.example.com", "podsets.batch.tutorial.kubebuilder.io");
    let podsets = podsets.replace("\"example.com\"", "\"batch.tutorial.kubebuilder.io\"");
    let podsets = podsets.replace("greeting", "podset").replace("Greeting", "PodSet");
    kubectl(&["apply", "-f", "-"], Some(&podsets)).unwrap();
    let many = json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
        "metadata": { "name": "many", "namespace": "default" }, "spec": { "replicas": "many" } });
    wait("the PodSet is stored", &|| kubectl(&["apply", "-f", "-"], Some(&many.to_string())).is_ok());
    for name in ["good", "early"] {
        wait("a Greeting with a message is Ready", &|| condition(&greeting(name), "Ready").0 == "True");
    }
    for name in ["silent", "number", "corrected", "bare"] {
        wait("without a message it is not Ready", &|| condition(&greeting(name), "Ready").1 == "NoMessage");
    }
    wait("the undecodable PodSet has an Event", &|| {
        kubectl(&["get", "events.events.k8s.io", "-o", "json"], None)
            .is_ok_and(|events| events.contains("Undecodable") && events.contains("\"many\""))
    });
    let unread = |count: u8| {
        let line = format!("quintet_informer_undecodable_objects{{resource=\"podsets\"}} {count}\n");
        quintet_localcluster::http::get(metrics.port(), "/metrics")
            .is_some_and(|(_, text)| text.contains(&line))
    };
    wait("the metric counts the undecodable PodSet", &|| unread(1));
    kubectl(&["delete", "podset", "many", "--timeout=30s"], None).unwrap();
    wait("the metric is 0 again", &|| unread(0));
    // Under Quintet's definition, stored objects can be corrected and deleted.
    let definition = workspace().join("config/crd/greetings.example.com.yaml");
    kubectl(&["replace", "-f", &definition.display().to_string()], None).unwrap();
    for name in ["corrected", "number"] {
        let message = format!(r#"{{"spec":{{"message":"{name} at last"}}}}"#);
        kubectl(&["patch", "greeting", name, "--type=merge", "-p", &message], None).unwrap();
        wait("the corrected Greeting is printed", &|| {
            std::fs::read_to_string(cluster.kube().log("bare.out"))
                .is_ok_and(|printed| printed.contains(&format!("Create: {name} at last")))
        });
    }
    kubectl(&["delete", "greeting", "--all", "--timeout=30s"], None).unwrap();

    // A Book stored before the schema, with a wrong type, gets a condition and can be corrected.
    let books = loose.to_string().replace("greetings.example.com", "books.christianb93.github.com");
    let books = books
        .replace("example.com", "christianb93.github.com")
        .replace("greeting", "book")
        .replace("Greeting", "Book");
    kubectl(&["apply", "-f", "-"], Some(&books)).unwrap();
    let book = json!({ "apiVersion": "christianb93.github.com/v1", "kind": "Book",
        "metadata": { "name": "old", "namespace": "default" }, "spec": { "author": 5, "foo": "bar" } });
    wait("the Book is stored", &|| kubectl(&["apply", "-f", "-"], Some(&book.to_string())).is_ok());
    let definition = workspace().join("config/crd/books.christianb93.github.com.yaml");
    kubectl(&["replace", "-f", &definition.display().to_string()], None).unwrap();
    let old_book = || cluster.kube().get("default", "book", "old").unwrap().unwrap_or_default();
    wait("the old Book has the condition", &|| {
        condition(&old_book(), "Ready") == ("False".into(), "Invalid".into())
    });
    let corrected = r#"{"spec":{"author":"Dickens","title":"Hard Times"}}"#;
    kubectl(&["patch", "book", "old", "--type=merge", "-p", corrected], None).unwrap();
    wait("the corrected Book is Ready", &|| condition(&old_book(), "Ready").0 == "True");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Two managers compete for one Lease. When the leader exits, the other leads.
#[test]
fn second_manager_takes_over_when_the_leader_exits() {
    let env = TestEnv::new("mg-lease");
    let start = |name: &str| {
        let options = ManagerOptions {
            name: format!("{}-{name}", env.namespace()),
            args: vec![
                "--controllers=book".to_owned(),
                format!("--watch-namespace={}", env.namespace()),
                "--log-level=info,quintet_runtime=debug".to_owned(),
            ],
            program: Some(program()),
            ..ManagerOptions::default()
        };
        Manager::start(env.kube(), &options).unwrap()
    };
    let lists = |manager: &Manager| manager.logged().lines().filter(|line| line.contains(" listed ")).count();
    let first = start("first");
    env.wait("the first manager leads", || first.leads());
    let second = start("second");
    std::thread::sleep(Duration::from_secs(3));
    assert!(first.leads() && !second.leads());
    let lease = env.kube().get("quintet-system", "lease", "quintet-manager").unwrap().unwrap();
    let holder = lease["spec"]["holderIdentity"].as_str().unwrap().to_owned();
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15);
    env.apply_sample("book/david-copperfield.yaml").unwrap();
    env.wait_for("book", "david-copperfield", "it is Ready", |book| condition(book, "Ready").0 == "True");
    assert_eq!(env.writes_when(1).len(), 1, "only the leader writes");
    let listed = lists(&second);
    assert_eq!(lists(&first), listed, "each manager has listed once: {}", first.logged());

    assert_eq!(first.stop().unwrap(), Some(0));
    let lease = env.kube().get("quintet-system", "lease", "quintet-manager").unwrap().unwrap();
    assert_ne!(lease["spec"]["holderIdentity"], holder, "the Lease is released or taken");
    env.wait("the second manager leads", || second.leads());
    env.patch("book", "david-copperfield", &json!({ "spec": { "title": "D. C." } }));
    env.wait_for("book", "david-copperfield", "the second manager updates the status", |book| {
        book["status"]["observedGeneration"] == 2
    });
    assert_eq!(env.writes_when(2).len(), 2);
    // The leader handed its position over, and the successor had already seen it, so it does not list again.
    assert!(second.logged().contains("handed_over=true"), "{}", second.logged());
    assert_eq!(lists(&second), listed);
    assert_eq!(second.stop().unwrap(), Some(0));
    let lease = env.kube().get("quintet-system", "lease", "quintet-manager").unwrap().unwrap();
    let seen = lease["metadata"]["annotations"]["quintet.dev/written"].as_str().unwrap();
    assert!(seen.contains("books.christianb93.github.com"), "{seen}");
}

/// A policy engine, for example, adds a condition to the status of each kind.
#[test]
fn conditions_of_other_writers_stay() {
    let env = TestEnv::new("conditions");
    let _manager = env.manager_of_all();
    let consumer = json!({ "serverAddress": "pulsar://broker", "topic": "t", "subscriptionName": "s" });
    let kinds = [
        ("book", "david-copperfield", "book/david-copperfield.yaml", json!({ "title": "D. C." })),
        ("greeting", "hello-world", "greeting/hello-world.yaml", json!({ "message": "Hi" })),
        ("podset", "podset-sample", "podset/podset-sample.yaml", json!({ "replicas": 1 })),
        ("daemonjob", "daemonjob-sample", "daemonjob/daemonjob-sample.yaml", json!({ "suspend": true })),
        (
            "pulsarconsumer",
            "pulsarconsumer-sample-1",
            "pulsarconsumer/pulsarconsumer-sample-1.yaml",
            consumer,
        ),
    ];
    let audited = json!([{ "op": "add", "path": "/status/conditions/-", "value": { "type": "Audited",
        "status": "True", "reason": "Seen", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" } }]);
    let has = |object: &Value, type_| !condition(object, type_).0.is_empty();
    for (kind, name, sample, _) in &kinds {
        env.apply_sample(sample).unwrap();
        let first =
            |object: &Value| object["status"]["conditions"].as_array().is_some_and(|all| !all.is_empty());
        env.wait_for(kind, name, "it has a condition", first);
        let patch = audited.to_string();
        env.kubectl(&["patch", kind, name, "--subresource=status", "--type=json", "--patch", &patch])
            .unwrap();
    }
    // The condition causes no write.
    let before = env.writes_at_rest();
    env.wait("nothing is written", || env.writes_at_rest() == before);
    for (kind, name, _, change) in &kinds {
        env.patch(kind, name, &json!({ "spec": change }));
        let object = env.wait_for(kind, name, "the status observes the change", |object| {
            object["status"]["observedGeneration"] == object["metadata"]["generation"]
        });
        assert!(has(&object, "Audited"), "{kind}: {object}");
    }
}
