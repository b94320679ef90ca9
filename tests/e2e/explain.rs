//! The commands `quintet explain`, also as a kubectl plugin, and `quintet uninstall`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use quintet_e2e::{TestEnv, condition, program};
use serde_json::{Value, json};

use crate::daemonjob::daemonjob;
use crate::daemonjob_ledger::{held, running};

const FINALIZER: &str = "dj.dysproz.io/ledger";

/// The exit code and the output of a command.
#[derive(Debug)]
struct Answer {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the program prints UTF-8");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Answer {
    /// The printed JSON document.
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The words of a node's line in the table.
    fn line(&self, node: &str) -> Vec<&str> {
        let line = self.stdout.lines().find(|line| line.split_whitespace().next() == Some(node));
        line.unwrap_or_else(|| panic!("no line for {node}: {self:?}")).split_whitespace().collect()
    }

    /// The error message. Asserts that standard output is empty.
    fn refusal(&self) -> &str {
        assert_eq!(self.stdout, "");
        self.stderr.trim_end()
    }
}

fn command(env: &TestEnv, args: &[&str], input: Option<&str>) -> Answer {
    with_kubeconfig(&env.cluster().kubeconfig(), env, args, input)
}

fn with_kubeconfig(kubeconfig: &Path, env: &TestEnv, args: &[&str], input: Option<&str>) -> Answer {
    let mut command = Command::new(program());
    command.args(args).args(["-n", env.namespace()]).env("KUBECONFIG", kubeconfig);
    run(&mut command, input)
}

fn run(command: &mut Command, input: Option<&str>) -> Answer {
    let mut child = command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(input.as_bytes()).expect("the program reads its standard input");
    }
    child.wait_with_output().expect("the program exits").into()
}

fn explain_file(env: &TestEnv, job: &Value) -> Answer {
    command(env, &["explain", "-f", "-"], Some(&job.to_string()))
}

fn complete(env: &TestEnv, name: &str) {
    env.wait_for("daemonjob", name, "it is complete", |job| condition(job, "Complete").0 == "True");
}

/// A folder for this test, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn folder(env: &TestEnv) -> Self {
        let path = std::env::temp_dir().join(format!("{}-scratch", env.namespace()));
        std::fs::create_dir_all(&path).expect("the folder can be created");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A kubeconfig of a new ServiceAccount with only these rights, each as (`verbs`, `resources`).
fn account_with(env: &TestEnv, folder: &Scratch, name: &str, may: &[(&str, &str)]) -> PathBuf {
    let role = format!("{}-{name}", env.namespace());
    env.kubectl(&["create", "serviceaccount", name]).unwrap();
    let rules: Vec<Value> = may
        .iter()
        .map(|(verbs, resources)| {
            let words = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
            json!({ "apiGroups": ["", "dj.dysproz.io"], "verbs": words(verbs), "resources": words(resources) })
        })
        .collect();
    let account = json!({ "kind": "ServiceAccount", "name": name, "namespace": env.namespace() });
    for object in [
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": { "name": role }, "rules": rules }),
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": role }, "subjects": [account],
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role } }),
    ] {
        env.apply(&object).unwrap();
    }
    let kubeconfig = folder.0.join(name);
    let config = env.kube().kubeconfig_of_service_account(env.namespace(), name).unwrap();
    std::fs::write(&kubeconfig, config).unwrap();
    // The API server's authorizer has its own watch of roles.
    let first = may[0].1.split(',').next().unwrap();
    let verb = may[0].0.split(',').next().unwrap();
    env.wait("the role takes effect", || {
        let account = format!("--as=system:serviceaccount:{}:{name}", env.namespace());
        env.kubectl(&["auth", "can-i", verb, first, &account]).is_ok_and(|answer| answer.trim() == "yes")
    });
    kubeconfig
}

fn remove_role(env: &TestEnv, name: &str) {
    let role = format!("{}-{name}", env.namespace());
    let _ = env.kubectl(&["delete", "clusterrole,clusterrolebinding", &role]);
}

#[test]
fn explains_a_file_before_it_is_applied() {
    let env = TestEnv::new("ex-file");
    let nodes = env.nodes(["a", "b"]);
    let job = daemonjob(&env, "new", &json!({}));
    let answer = explain_file(&env, &job);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    for node in &nodes {
        assert_eq!(answer.line(node)[1..3], ["WouldRun", "FirstRun"], "{answer:?}");
    }
    let summary =
        "2 nodes selected: 0 done, 2 would run now, 0 running, 0 starting, 0 waiting, 0 skipped, 0 failed.";
    assert!(answer.stdout.contains(summary), "{answer:?}");
    assert!(answer.stdout.contains("applying the file creates it"), "{answer:?}");
    let last = answer.stdout.lines().last().unwrap();
    assert!(last.contains("not selected: -o wide shows"), "the cluster has other nodes: {last}");

    // A taint keeps one node away, and another node waits for its turn.
    let third = env.node("c");
    env.kubectl(&["taint", "node", &nodes[0], "special=yes:NoSchedule"]).unwrap();
    let mut slow = job.clone();
    slow["spec"]["parallelism"] = json!(1);
    let answer = explain_file(&env, &slow);
    assert_eq!(answer.code, Some(1), "{answer:?}");
    assert_eq!(answer.line(&nodes[0])[1..3], ["Skipped", "Tainted"]);
    assert!(answer.line(&nodes[0]).contains(&"special=yes:NoSchedule"), "{answer:?}");
    assert_eq!(answer.line(&nodes[1])[1], "WouldRun");
    assert_eq!(answer.line(&third)[1..3], ["Waiting", "WaitingForTurn"]);
    // With a toleration, the tainted node waits too, which does not change the exit code.
    slow["spec"]["template"]["spec"]["tolerations"] = json!([{ "key": "special", "operator": "Exists" }]);
    assert_eq!(explain_file(&env, &slow).code, Some(0));

    // A spec that the API server rejects gives one message with the field's name.
    for (field, bad) in [
        ("spec.template is required", json!({ "spec": {} })),
        ("spec.parallelism", json!({ "spec": { "template": job["spec"]["template"], "parallelism": "0%" } })),
        ("spec.paralellism", json!({ "spec": { "template": job["spec"]["template"], "paralellism": 1 } })),
        (
            "spec.template.spec.containers",
            json!({ "spec": { "template": { "spec": { "containers": {} } } } }),
        ),
    ] {
        let mut rejected = job.clone();
        rejected["spec"] = bad["spec"].clone();
        let answer = explain_file(&env, &rejected);
        assert_eq!(answer.code, Some(2), "{answer:?}");
        assert!(answer.refusal().contains(field), "{answer:?}");
        assert_eq!(answer.stderr.lines().count(), 1, "{answer:?}");
        assert!(env.apply(&rejected).is_err(), "the API server rejects it too: {rejected}");
    }
    assert_eq!(env.list("daemonjobs", "").len(), 0);
    assert_eq!(env.writes(), Vec::<String>::new(), "explain writes nothing");
}

#[test]
fn explain_follows_a_run() {
    let env = TestEnv::new("ex-run");
    let nodes = env.nodes(["a", "b"]);
    let manager = env.manager("daemonjob");
    let mut job = daemonjob(&env, "follow", &json!({ "parallelism": 1 }));
    env.apply(&job).unwrap();
    let explain = |output| command(&env, &["explain", "daemonjob/follow", "-o", output], None);
    // At any time, both nodes are selected and neither has failed.
    env.wait("explain reports all nodes as done", || {
        let answer = explain("json");
        assert_eq!(answer.code, Some(0), "{answer:?}");
        let report = answer.json();
        assert_eq!(report["counts"]["selected"], 2, "{report:#}");
        report["counts"]["done"] == 2
    });
    let answer = explain("wide");
    for node in &nodes {
        let line = answer.line(node);
        assert_eq!(line[1..4], ["Done", "1", "Succeeded"], "{answer:?}");
        assert!(line[5].starts_with("follow-"), "the pod: {answer:?}");
    }
    assert!(answer.stdout.lines().any(|line| line.contains("NotSelected") && line.contains("NodeSelector")));
    complete(&env, "follow");

    // The same file changes nothing. A changed template would run on every node again, with pod number 2.
    let same = explain_file(&env, &job);
    assert_eq!(
        (same.code, same.stdout.contains("already has the spec of the file")),
        (Some(0), true),
        "{same:?}"
    );
    assert_eq!(same.line(&nodes[0])[1], "Done");
    job["spec"]["template"]["metadata"]["annotations"]["version"] = json!("2");
    job["spec"]["parallelism"] = json!(2);
    let answer = command(&env, &["explain", "-f", "-", "-o", "json"], Some(&job.to_string()));
    assert_eq!(answer.code, Some(0), "{answer:?}");
    let report = answer.json();
    assert_eq!((&report["source"], &report["newRun"]), (&json!("ChangedInFile"), &json!(true)), "{report:#}");
    for node in report["nodes"].as_array().unwrap().iter().filter(|node| node["state"] != "NotSelected") {
        assert_eq!((&node["state"], &node["podNumber"]), (&json!("WouldRun"), &json!(2)), "{node:#}");
        assert_eq!(
            (&node["reason"], &node["last"]["podNumber"]),
            (&json!("TemplateChanged"), &json!(1)),
            "{node:#}"
        );
    }
    // The manager then does what explain predicted.
    env.apply(&job).unwrap();
    env.wait("both nodes have run again", || {
        let report = explain("json").json();
        report["counts"]["done"] == 2
            && report["nodes"].as_array().unwrap().iter().filter(|node| node["podNumber"] == 2).count() == 2
    });

    // Without pods, the outcome comes from the ledger.
    env.kubectl(&["delete", "pods", "-l", "daemonjob=follow", "--timeout=60s"]).unwrap();
    let answer = explain("wide");
    assert_eq!(answer.line(&nodes[0])[1..4], ["Done", "2", "Succeeded"], "{answer:?}");
    assert_eq!(answer.line(&nodes[0])[5], "-", "no pod: {answer:?}");
    manager.stop().unwrap();
    // Without a manager, explain still predicts.
    env.kubectl(&["patch", "daemonjob", "follow", "--type=merge", "-p", r#"{"spec":{"suspend":true}}"#])
        .unwrap();
    let late = env.node("late");
    let answer = explain("table");
    assert_eq!((answer.code, answer.line(&late)[1..3].to_vec()), (Some(1), vec!["Waiting", "Suspended"]));
    assert!(answer.stdout.contains("The manager has not reconciled the last change"), "{answer:?}");
}

#[test]
fn explain_reports_each_error_in_one_line() {
    let env = TestEnv::new("ex-no");
    env.node("a");
    let folder = Scratch::folder(&env);
    let refusal = |args: &[&str]| {
        let answer = command(&env, args, None);
        assert_eq!(answer.code, Some(2), "{answer:?}");
        answer.refusal().to_owned()
    };
    let text = refusal(&["explain", "dj/absent"]);
    assert!(
        text.contains("DaemonJob absent does not exist in namespace") && text.lines().count() == 1,
        "{text}"
    );
    assert!(refusal(&["explain", "podset/a"]).contains("explain supports only DaemonJobs"));
    assert!(refusal(&["explain"]).contains("--filename"));
    assert!(refusal(&["explain", "-f", "/does/not/exist"]).contains("/does/not/exist"));
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "web" } });
    let answer = explain_file(&env, &service);
    assert_eq!(answer.code, Some(2), "{answer:?}");
    assert!(answer.refusal().contains("Service \"web\""), "{answer:?}");

    // An unreachable cluster.
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{unused}") } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }] });
    let away = folder.0.join("away");
    std::fs::write(&away, config.to_string()).unwrap();
    let answer = with_kubeconfig(&away, &env, &["explain", "dj/a"], None);
    assert_eq!(answer.code, Some(2), "{answer:?}");
    assert!(answer.refusal().contains(&format!("cannot reach http://{unused}")), "{answer:?}");
    assert_eq!(answer.stderr.lines().count(), 1, "{answer:?}");

    // Missing rights.
    env.apply(&daemonjob(&env, "there", &json!({}))).unwrap();
    let explain = |kubeconfig: &Path| {
        let answer = with_kubeconfig(kubeconfig, &env, &["explain", "dj/there"], None);
        assert_eq!(answer.code, Some(2), "{answer:?}");
        assert_eq!(answer.stderr.lines().count(), 1, "{answer:?}");
        answer.stderr
    };
    let blind = account_with(&env, &folder, "blind", &[("get", "daemonjobs")]);
    let error = explain(&blind);
    assert!(error.contains("cannot list nodes: permission denied") && error.contains(":blind"), "{error}");
    let may = [("list", "nodes"), ("get", "daemonjobs")];
    let half = account_with(&env, &folder, "half", &may);
    let error = explain(&half);
    assert!(error.contains("cannot list pods"), "{error}");
    let may = [("list", "nodes,pods"), ("get", "daemonjobs")];
    let most = account_with(&env, &folder, "most", &may);
    let error = explain(&most);
    assert!(error.contains("cannot read the ConfigMaps"), "{error}");
    let may = [("list", "nodes,pods"), ("get", "daemonjobs,configmaps")];
    let all = account_with(&env, &folder, "all", &may);
    let answer = with_kubeconfig(&all, &env, &["explain", "dj/there"], None);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    for name in ["blind", "half", "most", "all"] {
        remove_role(&env, name);
    }
}

#[test]
fn explain_runs_as_a_kubectl_plugin() {
    let env = TestEnv::new("ex-plugin");
    let node = env.node("a");
    let folder = Scratch::folder(&env);
    std::os::unix::fs::symlink(program(), folder.0.join("kubectl-quintet")).unwrap();
    let kubectl = env.kube().kubectl().get_program().to_owned();
    let path = std::env::join_paths(
        [folder.0.clone()]
            .into_iter()
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    )
    .unwrap();
    let plugin = |args: &[&str], input: Option<&str>| {
        let mut command = Command::new(&kubectl);
        command.arg("quintet").args(args).env("PATH", &path);
        run(command.env("KUBECONFIG", env.cluster().kubeconfig()), input)
    };
    let answer = plugin(&[], None);
    assert_eq!(answer.code, Some(0), "it exits and starts no manager: {answer:?}");
    assert!(answer.stdout.contains("Usage: kubectl quintet [COMMAND]"), "{answer:?}");
    let answer = plugin(&["explain", "--help"], None);
    assert!(answer.stdout.contains("Usage: kubectl quintet explain"), "{answer:?}");
    let job = daemonjob(&env, "new", &json!({})).to_string();
    let answer = plugin(&["explain", "-f", "-", "-n", env.namespace()], Some(&job));
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert_eq!(answer.line(&node)[1], "WouldRun");
    let answer = plugin(&["explain", "daemonjob", "new", "-n", env.namespace()], None);
    assert_eq!(answer.code, Some(2), "{answer:?}");
    assert!(answer.stderr.contains("DaemonJob new does not exist"), "{answer:?}");
}

#[test]
fn uninstall_releases_objects_of_an_absent_manager() {
    let env = TestEnv::new("ex-uninstall");
    let nodes = env.nodes(["a", "b", "c"]);
    let manager = env.manager("daemonjob,greeting");
    // Pods without a recorded outcome: the manager has not released them.
    env.apply(&held(&env, "left", &json!({}))).unwrap();
    env.apply_sample("greeting/hello-world.yaml").unwrap();
    for node in &nodes {
        running(&env, "left", node, 1);
    }
    env.wait_for("greeting", "hello-world", "the Greeting has its finalizer", |greeting| {
        greeting["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
    });
    manager.stop().unwrap();

    let are_held = || {
        let pods = env.list("pods", "daemonjob=left");
        pods.iter().filter(|pod| pod["metadata"]["finalizers"].to_string().contains(FINALIZER)).count()
    };
    assert_eq!(are_held(), 3);
    env.kubectl(&["delete", "greeting", "hello-world", "--wait=false"]).unwrap();
    env.kubectl(&["delete", "pods", "-l", "daemonjob=left", "--wait=false"]).unwrap();
    env.wait("the pods are being deleted", || {
        let pods = env.list("pods", "daemonjob=left");
        pods.len() == 3 && pods.iter().all(|pod| pod["metadata"]["deletionTimestamp"].is_string())
    });

    // Uninstall needs a confirmation and rights.
    let answer = command(&env, &["uninstall"], None);
    assert_eq!(answer.code, Some(1), "{answer:?}");
    assert!(answer.refusal().contains("--yes"), "{answer:?}");
    let folder = Scratch::folder(&env);
    let reader = account_with(&env, &folder, "reader", &[("list", "pods")]);
    let answer = with_kubeconfig(&reader, &env, &["uninstall", "--yes"], None);
    assert_eq!(answer.code, Some(1), "{answer:?}");
    assert_eq!(answer.stderr.matches("kubectl patch pods -n").count(), 3, "{answer:?}");
    assert!(answer.stderr.contains("cannot list Greetings"), "it continues with Greetings: {answer:?}");
    assert_eq!(are_held(), 3);
    remove_role(&env, "reader");

    // The printed kubectl command removes a finalizer too.
    let patch = answer.stderr.lines().find(|line| line.trim_start().starts_with("kubectl patch")).unwrap();
    let kubectl = env.kube().kubectl();
    let patch = patch.trim_start().strip_prefix("kubectl").unwrap();
    let patch = format!("{}{patch}", Path::new(kubectl.get_program()).display());
    let mut shell = Command::new("sh");
    let answer = run(shell.args(["-c", &patch]).env("KUBECONFIG", env.cluster().kubeconfig()), None);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    env.wait("one pod is gone", || env.list("pods", "daemonjob=left").len() == 2);

    let answer = command(&env, &["uninstall", "--yes"], None);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(answer.stdout.contains("Removed dj.dysproz.io/ledger from 2 Pods in namespace"), "{answer:?}");
    assert!(answer.stdout.contains("Removed example.com/farewell from 1 Greeting "), "{answer:?}");
    assert!(answer.stdout.contains("1 daemonjobs.dj.dysproz.io"), "remaining objects: {answer:?}");
    env.wait("the pods are gone", || env.list("pods", "daemonjob=left").is_empty());
    env.wait("the Greeting is gone", || env.get("greeting", "hello-world").is_none());
    assert!(env.get("daemonjob", "left").is_some(), "the DaemonJob stays");

    let answer = command(&env, &["uninstall", "--yes"], None);
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(answer.stdout.contains("from 0 Pods"), "{answer:?}");
}

/// Waits for a manager without leader election, which could still write. Does not wait for one that elects.
#[test]
fn uninstall_waits_only_for_a_manager_that_does_not_elect() {
    let env = TestEnv::new("ex-alone");
    env.node("a");
    let uninstall = |name: &str, elects: &str, stop_seconds: &str| {
        let labels = json!({ "app": name });
        let pod = json!({ "nodeSelector": { "env": env.namespace() },
            "containers": [{ "name": "manager", "image": "quintet", "args": [elects] }] });
        let metadata =
            json!({ "labels": labels, "annotations": { "kwok.quintet.dev/stop-seconds": stop_seconds } });
        let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
            "spec": { "selector": { "matchLabels": labels }, "template": { "metadata": metadata, "spec": pod } } });
        env.apply(&deployment).unwrap();
        let phases = || -> Vec<Value> {
            let pods = env.list("pods", &format!("app={name}"));
            pods.iter().map(|pod| pod["status"]["phase"].clone()).collect()
        };
        env.wait("the pod runs", || phases() == ["Running"]);
        let manager = format!("--manager={}/{name}", env.namespace());
        let answer = command(&env, &["uninstall", "--yes", &manager], None);
        assert_eq!(answer.code, Some(0), "{answer:?}");
        assert!(answer.stdout.contains("quintet-manager. No manager writes now."), "{answer:?}");
        (answer.stdout.contains("can write without Lease"), phases())
    };
    let (waited, left) = uninstall("alone", "--leader-elect=false", "6");
    assert!(waited && left.iter().all(|phase| phase == "Failed"), "the pod has ended: {left:?}");
    let (waited, left) = uninstall("electing", "--leader-elect", "60");
    assert!(!waited && left == ["Running"], "the pod still runs: {left:?}");
    env.kubectl(&["delete", "pods", "-l", "app=electing", "--force"]).unwrap();
}
