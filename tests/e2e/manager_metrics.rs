//! The metrics address, plain and secure, the debug pages, and the log level.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use quintet_e2e::{MANAGER_ROLE, TestEnv, condition, has_made_a_pass, program};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::cluster::{binaries, ports};
use quintet_localcluster::http::{self, Request};
use quintet_localcluster::manager::{Manager, ManagerOptions};
use quintet_localcluster::run;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::book::book;

/// kubectl's message for a 401.
pub(crate) const UNAUTHORIZED: &str = "You must be logged in to the server";

/// GETs a path of a secure address with kubectl, which speaks TLS and sends tokens.
pub(crate) fn get(
    env: &TestEnv,
    port: u16,
    path: &str,
    token: Option<&str>,
    authority: Option<&Path>,
) -> Result<String, String> {
    let mut kubectl = env.kube().kubectl();
    kubectl
        .args(["--kubeconfig=/dev/null", "--request-timeout=10s"])
        .arg(format!("--server=https://127.0.0.1:{port}"));
    match authority {
        Some(file) => kubectl
            .arg(format!("--certificate-authority={}", file.display()))
            .arg("--tls-server-name=metrics.test"),
        None => kubectl.arg("--insecure-skip-tls-verify"),
    };
    match token {
        Some(token) => kubectl.arg(format!("--token={token}")),
        // Without credentials kubectl would prompt for them.
        None => kubectl.args(["--username=unknown", "--password=none"]),
    };
    run::stdout(kubectl.args(["get", "--raw", path])).map_err(|error| format!("{error:#}"))
}

/// A manager of Books whose ServiceAccount may also create TokenReviews and SubjectAccessReviews.
fn secured(env: &TestEnv, more: &[&str]) -> Manager {
    env.kubectl(&["create", "serviceaccount", "secured"]).unwrap();
    let account = format!("--serviceaccount={}:secured", env.namespace());
    env.kubectl(&["create", "rolebinding", "secured", MANAGER_ROLE, &account]).unwrap();
    let binding = format!("{}-secured", env.namespace());
    env.kubectl(&["create", "clusterrolebinding", &binding, "--clusterrole=system:auth-delegator", &account])
        .unwrap();
    let mut args = vec![
        "--controllers=book".to_owned(),
        format!("--watch-namespace={}", env.namespace()),
        "--metrics-secure".to_owned(),
    ];
    args.extend(more.iter().map(|&arg| arg.to_owned()));
    let options = ManagerOptions {
        name: format!("{}-secured", env.namespace()),
        namespace: env.namespace().to_owned(),
        service_account: "secured".to_owned(),
        leader_elect: false,
        args,
        program: Some(program()),
        ..ManagerOptions::default()
    };
    Manager::start(env.kube(), &options).unwrap()
}

/// Waits until the manager's right to create TokenReviews takes effect: then an unknown token gets a 401.
fn may_ask(env: &TestEnv, port: u16, authority: Option<&Path>) {
    env.wait("the manager may review tokens", || {
        let answer = get(env, port, "/metrics", Some("unknown"), authority);
        answer.is_err_and(|error| error.contains(UNAUTHORIZED))
    });
}

#[test]
fn secure_metrics_require_the_right_to_get_them() {
    let env = TestEnv::new("mm-secure");
    let manager = secured(&env, &[]);
    let port = manager.metrics_port();
    env.kubectl(&["create", "serviceaccount", "scraper"]).unwrap();
    let token = env.kubectl(&["create", "token", "scraper"]).unwrap();
    let token = token.trim();
    let refused = |answer: Result<String, String>, why: &str| {
        let error = answer.unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    refused(get(&env, port, "/metrics", None, None), UNAUTHORIZED);
    may_ask(&env, port, None);
    refused(get(&env, port, "/metrics", Some(token), None), "nonResourceURLs [/metrics] and verbs [get]");
    let (role, account) =
        (format!("{}-scraper", env.namespace()), format!("--serviceaccount={}:scraper", env.namespace()));
    env.kubectl(&["create", "clusterrole", &role, "--verb=get", "--non-resource-url=/metrics"]).unwrap();
    env.kubectl(&["create", "clusterrolebinding", &role, &format!("--clusterrole={role}"), &account])
        .unwrap();
    // The manager caches a denial for some seconds.
    env.wait("the scraper may read", || {
        get(&env, port, "/metrics", Some(token), None).is_ok_and(|text| text.contains("quintet_build_info{"))
    });
    refused(get(&env, port, "/debug/controllers", Some(token), None), "nonResourceURLs [/debug/controllers]");
    // A client with the right to the page may read the page.
    let page = r#"[{"op":"add","path":"/rules/-","value":{"nonResourceURLs":["/debug/controllers"],"verbs":["get"]}}]"#;
    env.kubectl(&["patch", "clusterrole", &role, "--type=json", "--patch", page]).unwrap();
    env.wait("the scraper may read the debug page", || {
        get(&env, port, "/debug/controllers", Some(token), None).is_ok_and(|text| text.contains("book"))
    });
    for kind in ["clusterrolebinding", "clusterrole"] {
        env.kubectl(&["delete", kind, &role]).unwrap();
    }
    // A manager without its own right names the missing role.
    env.kubectl(&["delete", "clusterrolebinding", &format!("{}-secured", env.namespace())]).unwrap();
    env.wait("the manager logs the missing role", || {
        let _ = get(&env, port, "/debug/caches", Some(token), None);
        manager.logged().contains("system:auth-delegator")
    });
    assert!(!manager.logged().contains(token), "no token is logged");
}

/// Issues a certificate for `metrics.test` in the files of a mounted Secret, by the returned authority.
fn issue(dir: &Path, name: &str) -> std::path::PathBuf {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let file = dir.join(format!("{name}.crt"));
    std::fs::write(&file, authority.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(["metrics.test".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    std::fs::write(dir.join("tls.crt"), certificate.pem()).unwrap();
    std::fs::write(dir.join("tls.key"), key.serialize_pem()).unwrap();
    file
}

#[test]
fn serves_a_replaced_certificate_without_a_restart() {
    let env = TestEnv::new("mm-cert");
    let dir = env.kube().dir().join(format!("{}-certs", env.namespace()));
    std::fs::create_dir_all(&dir).unwrap();
    let first = issue(&dir, "first");
    let manager = secured(&env, &[&format!("--metrics-cert-dir={}", dir.display())]);
    let port = manager.metrics_port();
    // If kubectl trusts the certificate, it gets an answer: a 401.
    let is_shown = |authority: &Path| {
        let answer = get(&env, port, "/metrics", Some("unknown"), Some(authority));
        answer.is_err_and(|error| error.contains(UNAUTHORIZED))
    };
    may_ask(&env, port, Some(&first));
    assert!(is_shown(&first));
    let second = issue(&dir, "second");
    env.wait("the second certificate is served", || is_shown(&second));
    assert!(!is_shown(&first));
    // An unusable key is logged, and the last good certificate stays.
    std::fs::write(dir.join("tls.key"), "no key").unwrap();
    env.wait("the manager logs the error", || manager.logged().contains("keeping the old one"));
    assert!(is_shown(&second));
    env.kubectl(&["delete", "clusterrolebinding", &format!("{}-secured", env.namespace())]).unwrap();
}

#[test]
fn debug_pages_show_state_and_change_the_log_level() {
    let env = TestEnv::new("mm-debug");
    let port = ports::one().unwrap();
    let options = ManagerOptions {
        name: format!("{}-manager", env.namespace()),
        leader_elect: false,
        args: vec![
            "--controllers=podset,book".to_owned(),
            format!("--watch-namespace={}", env.namespace()),
            format!("--debug-bind-address=127.0.0.1:{port}"),
            "--log-format=json".to_owned(),
        ],
        program: Some(program()),
        ..ManagerOptions::default()
    };
    let manager = Manager::start(env.kube(), &options).unwrap();
    let page = |path: &str| http::get(port, path).unwrap();
    for path in ["/debug/", "/debug/controllers", "/debug/caches", "/debug/log-level"] {
        let (status, text) = page(path);
        assert_eq!(status, 200, "{path}");
        let first = text.lines().next().unwrap();
        assert!(
            first.starts_with("Leader: ") && first.ends_with(", without leader election."),
            "{path}: {first}"
        );
    }
    assert!(page("/metrics").1.contains("quintet_build_info"), "quintet doctor reads it there");
    assert_eq!(http::get(manager.metrics_port(), "/debug/").unwrap().0, 404, "not on the metrics address");
    env.apply_sample("book/david-copperfield.yaml").unwrap();
    env.wait_for("book", "david-copperfield", "it is Ready", |book| condition(book, "Ready").0 == "True");
    // A reconcile that writes only a status has a line of JSON too.
    let log_line = || {
        let log = manager.logged();
        // The last line may be incomplete.
        let whole = &log[..log.rfind('\n').unwrap_or_default()];
        let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
        lines.into_iter().find(|line| line["controller"] == "book" && line["message"] == "reconciled")
    };
    env.wait("the reconcile has a log line", || log_line().is_some());
    let line = log_line().unwrap();
    assert_eq!(
        (&line["level"], &line["outcome"], &line["writes"], &line["object"]),
        (
            &json!("INFO"),
            &json!("success"),
            &json!(1),
            &json!(format!("{}/david-copperfield", env.namespace()))
        )
    );
    assert!(line["duration_ms"].is_u64() && line["timestamp"].is_string(), "{line}");
    let (_, caches) = page("/debug/caches");
    assert!(caches.contains("/books.christianb93.github.com: 1 objects"), "{caches}");
    env.wait("all queues are empty", || {
        page("/debug/controllers").1.contains("book: 0 waiting, 0 waiting for caches, 0 running, 0 failing")
    });

    let put = |level: &str| {
        let limit = Duration::from_secs(5);
        http::send(&Request {
            method: "PUT",
            port,
            path: "/debug/log-level",
            headers: &[],
            body: level,
            limit,
        })
        .unwrap()
    };
    let level = || page("/debug/log-level").1.lines().nth(1).unwrap_or_default().to_owned();
    assert_eq!(level(), "info");
    let (status, why) = put("loud");
    assert_eq!((status, why.contains("is not a log level")), (400, true), "{why}");
    assert!(!manager.logged().contains("DEBUG"));
    assert_eq!(put("debug"), (200, "debug\n".to_owned()));
    let retitle =
        ["patch", "book", "david-copperfield", "--type=merge", "-p", r#"{"spec":{"title":"D. C."}}"#];
    env.kubectl(&retitle).unwrap();
    env.wait("debug lines are logged", || manager.logged().contains("DEBUG"));
    assert_eq!(put("warn"), (200, "warn\n".to_owned()));
    assert_eq!(level(), "warn");
    assert_eq!(manager.stop().unwrap(), Some(0));
}

/// Every metric name in the dashboards of controller-runtime.
#[test]
fn has_the_metrics_of_controller_runtime_dashboards() {
    let env = TestEnv::new("mm-names");
    let manager = env.manager("podset,book");
    let bad = json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
        "metadata": { "name": "set" }, "spec": { "replicas": 1 } });
    env.apply(&bad).unwrap();
    env.wait("a reconcile has finished", || {
        let objects = "quintet_informer_objects{resource=\"pods\"} 1";
        has_made_a_pass(&manager, "podset")
            && manager.metrics().is_ok_and(|metrics| metrics.contains(objects))
    });
    let metrics = manager.metrics().unwrap();
    // The host includes its port, as in client-go.
    let host = format!("127.0.0.1:{}", env.cluster().process(Component::Apiserver).unwrap().unwrap().port);
    for name in [
        &format!("rest_client_requests_total{{code=\"201\",host=\"{host}\",method=\"POST\"}}"),
        &format!("rest_client_request_duration_seconds_bucket{{host=\"{host}\",verb=\"POST\",le="),
        "controller_runtime_active_workers{controller=\"podset\"}",
        "controller_runtime_max_concurrent_reconciles{controller=\"podset\"}",
        "controller_runtime_reconcile_total{controller=\"podset\",result=",
        "controller_runtime_reconcile_time_seconds_bucket{controller=\"podset\",le=\"0.005\"}",
        "controller_runtime_reconcile_errors_total{controller=\"book\"} 0",
        "controller_runtime_reconcile_panics_total{controller=\"book\"} 0",
        "workqueue_retries_total{controller=\"book\",name=\"book\"} 0",
        "workqueue_depth{controller=\"podset\",name=\"podset\",priority=\"0\"}",
        "workqueue_depth{controller=\"podset\",name=\"podset\",priority=\"-100\"}",
        "workqueue_adds_total{controller=\"podset\",name=\"podset\"}",
        "workqueue_queue_duration_seconds_bucket{controller=\"podset\",name=\"podset\",le=",
        "workqueue_work_duration_seconds_bucket{controller=\"podset\",name=\"podset\",le=",
        "workqueue_unfinished_work_seconds{controller=\"podset\",name=\"podset\"}",
        "workqueue_longest_running_processor_seconds{controller=\"podset\",name=\"podset\"}",
        "quintet_informer_silence_seconds{cache=",
        "quintet_informer_objects{resource=\"pods\"} 1",
        "quintet_build_info{",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "process_start_time_seconds",
        "process_open_fds",
    ] {
        assert!(metrics.contains(name), "{name} is not in {metrics}");
    }
}

/// promtool checks the metrics of a manager with all kinds and reports nothing.
#[test]
fn promtool_accepts_the_metrics() {
    let env = TestEnv::new("mm-promtool");
    let manager = env.manager_of_all();
    env.apply(&book("counted")).unwrap();
    env.wait_for("book", "counted", "it is Ready", |book| condition(book, "Ready").0 == "True");
    let promtool = binaries::ensure(&binaries::CHART).unwrap().path("promtool").unwrap();
    let metrics = manager.metrics().unwrap();
    assert!(metrics.contains("quintet_build_info"), "{metrics}");
    let checked = run::output(Command::new(promtool).args(["check", "metrics"]), Some(&metrics)).unwrap();
    let report = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(checked.status.success() && report.trim().is_empty(), "{report}");
}

/// A scrape names each object that fails, waits, or is paused or held, until its problem ends.
#[test]
fn a_metric_names_objects_with_problems() {
    let env = TestEnv::new("mm-problems");
    let manager = env.manager("podset,daemonjob");
    // This test has no node.
    let template = json!({ "spec": { "containers": [{ "name": "c", "image": "busybox" }],
        "nodeSelector": { "env": env.namespace() } } });
    let set = json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
        "metadata": { "name": "set" }, "spec": { "replicas": 1, "template": template } });
    env.apply(&set).unwrap();
    env.apply_sample("daemonjob/suspend.yaml").unwrap();
    let problem = |kind: &str, name: &str, reason: &str, state: &str| {
        let namespace = env.namespace();
        format!(
            "quintet_object_problem_seconds{{kind=\"{kind}\",name=\"{name}\",namespace=\"{namespace}\",\
             reason=\"{reason}\",state=\"{state}\"}} "
        )
    };
    let is_listed = |problem: &str| manager.metrics().is_ok_and(|metrics| metrics.contains(problem));
    let missing = problem("PodSet", "set", "PodsMissing", "failing");
    env.wait("the metric names the PodSet", || is_listed(&missing));
    let suspended = problem("DaemonJob", "daemonjob-suspend", "Suspended", "held");
    env.wait("the metric names the DaemonJob", || is_listed(&suspended));
    let metrics = manager.metrics().unwrap();
    let listed: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("quintet_object_problem_seconds{")).collect();
    assert_eq!(listed.len(), 2, "a suspended DaemonJob has no other problem: {listed:?}");
    let leads = format!("quintet_namespace_leader{{watched=\"{}\"}} 1\n", env.namespace());
    assert!(metrics.contains(&leads), "{metrics}");

    env.patch("podset", "set", &json!({ "spec": { "replicas": 0 } }));
    env.wait("the PodSet has no problem", || !is_listed(&missing));
    env.kubectl(&["delete", "daemonjob", "daemonjob-suspend"]).unwrap();
    env.wait("the metric drops the DaemonJob", || !is_listed(&suspended));
}
