//! The metrics address: plain and secured, the debug pages, and the log level.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use quintet_e2e::{Arena, condition, has_made_a_pass, program};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::cluster::{binaries, ports};
use quintet_localcluster::http::{self, Request};
use quintet_localcluster::manager::{Manager, ManagerOptions};
use quintet_localcluster::run;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::book::book;

/// How kubectl tells a 401.
pub(crate) const UNAUTHORIZED: &str = "You must be logged in to the server";

/// What a path of a secured address answers, or why not. kubectl is the client: it speaks TLS and sends tokens.
pub(crate) fn get(
    arena: &Arena,
    port: u16,
    path: &str,
    token: Option<&str>,
    authority: Option<&Path>,
) -> Result<String, String> {
    let mut kubectl = arena.kube().kubectl();
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
        // Without any credentials it asks a person for them.
        None => kubectl.args(["--username=nobody", "--password=none"]),
    };
    run::stdout(kubectl.args(["get", "--raw", path])).map_err(|error| format!("{error:#}"))
}

/// A manager of Books with a ServiceAccount that may also ask who somebody is and what they may.
fn secured(arena: &Arena, more: &[&str]) -> Manager {
    arena.kubectl(&["create", "serviceaccount", "secured"]).unwrap();
    let account = format!("--serviceaccount={}:secured", arena.namespace());
    arena.kubectl(&["create", "rolebinding", "secured", "--clusterrole=quintet", &account]).unwrap();
    let binding = format!("{}-secured", arena.namespace());
    arena
        .kubectl(&["create", "clusterrolebinding", &binding, "--clusterrole=system:auth-delegator", &account])
        .unwrap();
    let mut args = vec![
        "--controllers=book".to_owned(),
        format!("--watch-namespace={}", arena.namespace()),
        "--metrics-secure".to_owned(),
    ];
    args.extend(more.iter().map(|&arg| arg.to_owned()));
    let options = ManagerOptions {
        name: format!("{}-secured", arena.namespace()),
        namespace: arena.namespace().to_owned(),
        service_account: "secured".to_owned(),
        leader_elect: false,
        args,
        program: Some(program()),
        ..ManagerOptions::default()
    };
    Manager::start(arena.kube(), &options).unwrap()
}

/// The manager's right to ask who somebody is comes into force a moment after it was given: then a stranger is known for one.
fn may_ask(arena: &Arena, port: u16, authority: Option<&Path>) {
    arena.wait("the manager may ask who reads", || {
        let answer = get(arena, port, "/metrics", Some("stranger"), authority);
        answer.is_err_and(|error| error.contains(UNAUTHORIZED))
    });
}

#[test]
fn secured_metrics_are_for_whom_the_cluster_allows_them() {
    let arena = Arena::new("mm-secure");
    let manager = secured(&arena, &[]);
    let port = manager.metrics_port();
    arena.kubectl(&["create", "serviceaccount", "scraper"]).unwrap();
    let token = arena.kubectl(&["create", "token", "scraper"]).unwrap();
    let token = token.trim();
    let refused = |answer: Result<String, String>, why: &str| {
        let error = answer.unwrap_err();
        assert!(error.contains(why), "{error}");
    };
    refused(get(&arena, port, "/metrics", None, None), UNAUTHORIZED);
    may_ask(&arena, port, None);
    refused(get(&arena, port, "/metrics", Some(token), None), "nonResourceURLs [/metrics] and verbs [get]");
    let (role, account) =
        (format!("{}-scraper", arena.namespace()), format!("--serviceaccount={}:scraper", arena.namespace()));
    arena.kubectl(&["create", "clusterrole", &role, "--verb=get", "--non-resource-url=/metrics"]).unwrap();
    arena
        .kubectl(&["create", "clusterrolebinding", &role, &format!("--clusterrole={role}"), &account])
        .unwrap();
    // A refusal is remembered for some seconds.
    arena.wait("the scraper may read", || {
        get(&arena, port, "/metrics", Some(token), None)
            .is_ok_and(|text| text.contains("quintet_build_info{"))
    });
    refused(
        get(&arena, port, "/debug/controllers", Some(token), None),
        "nonResourceURLs [/debug/controllers]",
    );
    // Who is allowed that page reads it.
    let page = r#"[{"op":"add","path":"/rules/-","value":{"nonResourceURLs":["/debug/controllers"],"verbs":["get"]}}]"#;
    arena.kubectl(&["patch", "clusterrole", &role, "--type=json", "--patch", page]).unwrap();
    arena.wait("the scraper may read the debug page", || {
        get(&arena, port, "/debug/controllers", Some(token), None).is_ok_and(|text| text.contains("book"))
    });
    for kind in ["clusterrolebinding", "clusterrole"] {
        arena.kubectl(&["delete", kind, &role]).unwrap();
    }
    // A manager that may not ask says what it needs.
    arena.kubectl(&["delete", "clusterrolebinding", &format!("{}-secured", arena.namespace())]).unwrap();
    arena.wait("the missing right is said", || {
        let _ = get(&arena, port, "/debug/caches", Some(token), None);
        manager.logged().contains("system:auth-delegator")
    });
    assert!(!manager.logged().contains(token), "no token is logged");
}

/// A certificate for `metrics.test` by an authority of its own, in the files that a mounted Secret has.
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
fn a_certificate_that_is_replaced_is_served_without_a_restart() {
    let arena = Arena::new("mm-cert");
    let dir = arena.kube().dir().join(format!("{}-certs", arena.namespace()));
    std::fs::create_dir_all(&dir).unwrap();
    let first = issue(&dir, "first");
    let manager = secured(&arena, &[&format!("--metrics-cert-dir={}", dir.display())]);
    let port = manager.metrics_port();
    // Whoever is known by it gets an answer, if only a refusal.
    let is_shown = |authority: &Path| {
        let answer = get(&arena, port, "/metrics", Some("stranger"), Some(authority));
        answer.is_err_and(|error| error.contains(UNAUTHORIZED))
    };
    may_ask(&arena, port, Some(&first));
    assert!(is_shown(&first));
    let second = issue(&dir, "second");
    arena.wait("the second one is served", || is_shown(&second));
    assert!(!is_shown(&first));
    // What cannot be used is said, and the last good one stays.
    std::fs::write(dir.join("tls.key"), "no key").unwrap();
    arena.wait("it is said", || manager.logged().contains("keeping the old one"));
    assert!(is_shown(&second));
    arena.kubectl(&["delete", "clusterrolebinding", &format!("{}-secured", arena.namespace())]).unwrap();
}

#[test]
fn debug_pages_tell_what_goes_on_and_the_level_is_changed() {
    let arena = Arena::new("mm-debug");
    let port = ports::one().unwrap();
    let options = ManagerOptions {
        name: format!("{}-manager", arena.namespace()),
        leader_elect: false,
        args: vec![
            "--controllers=podset,book".to_owned(),
            format!("--watch-namespace={}", arena.namespace()),
            format!("--debug-bind-address=127.0.0.1:{port}"),
            "--log-format=json".to_owned(),
        ],
        program: Some(program()),
        ..ManagerOptions::default()
    };
    let manager = Manager::start(arena.kube(), &options).unwrap();
    let page = |path: &str| http::get(port, path).unwrap();
    assert_eq!(page("/debug/").0, 200);
    assert_eq!(http::get(manager.metrics_port(), "/debug/").unwrap().0, 404, "not where everybody may read");
    arena.apply_sample("book/david-copperfield.yaml").unwrap();
    arena.wait_for("book", "david-copperfield", "it is Ready", |book| condition(book, "Ready").0 == "True");
    // A pass has a line of JSON, also where it wrote a status alone.
    let said = || {
        let log = manager.logged();
        // The last line may be half written.
        let whole = &log[..log.rfind('\n').unwrap_or_default()];
        let lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
        lines.into_iter().find(|line| line["controller"] == "book" && line["message"] == "carried out")
    };
    arena.wait("a pass has its line", || said().is_some());
    let line = said().unwrap();
    assert_eq!(
        (&line["level"], &line["outcome"], &line["writes"], &line["object"]),
        (
            &json!("INFO"),
            &json!("success"),
            &json!(1),
            &json!(format!("{}/david-copperfield", arena.namespace()))
        )
    );
    assert!(line["duration_ms"].is_u64() && line["timestamp"].is_string(), "{line}");
    let (_, caches) = page("/debug/caches");
    assert!(caches.contains("/books.christianb93.github.com: 1 objects"), "{caches}");
    arena.wait("nothing is left to do", || {
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
    assert_eq!(page("/debug/log-level"), (200, "info\n".to_owned()));
    let (status, why) = put("loud");
    assert_eq!((status, why.contains("is not a log level")), (400, true), "{why}");
    assert!(!manager.logged().contains("DEBUG"));
    assert_eq!(put("debug"), (200, "debug\n".to_owned()));
    let retitle =
        ["patch", "book", "david-copperfield", "--type=merge", "-p", r#"{"spec":{"title":"D. C."}}"#];
    arena.kubectl(&retitle).unwrap();
    arena.wait("more is logged", || manager.logged().contains("DEBUG"));
    assert_eq!(put("warn"), (200, "warn\n".to_owned()));
    assert_eq!(page("/debug/log-level").1, "warn\n");
    assert_eq!(manager.stop().unwrap(), Some(0));
}

/// Every name that the dashboards of controller-runtime ask for.
#[test]
fn dashboards_of_controller_runtime_find_their_metrics() {
    let arena = Arena::new("mm-names");
    let manager = arena.manager("podset,book");
    let bad = json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
        "metadata": { "name": "set" }, "spec": { "replicas": 1 } });
    arena.apply(&bad).unwrap();
    arena.wait("a pass has ended", || {
        let objects = "quintet_informer_objects{resource=\"pods\"} 1";
        has_made_a_pass(&manager, "podset")
            && manager.metrics().is_ok_and(|metrics| metrics.contains(objects))
    });
    let metrics = manager.metrics().unwrap();
    // With its port, as client-go has it.
    let host = format!("127.0.0.1:{}", arena.cluster().process(Component::Apiserver).unwrap().unwrap().port);
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

/// Prometheus' own tool reads what a manager of all kinds says, and finds nothing to complain about.
#[test]
fn promtool_takes_the_metrics() {
    let arena = Arena::new("mm-promtool");
    let manager = arena.manager_of_all();
    arena.apply(&book("counted")).unwrap();
    arena.wait_for("book", "counted", "it is Ready", |book| condition(book, "Ready").0 == "True");
    let promtool = binaries::ensure(&binaries::CHART).unwrap().path("promtool").unwrap();
    let metrics = manager.metrics().unwrap();
    assert!(metrics.contains("quintet_build_info"), "{metrics}");
    let checked = run::output(Command::new(promtool).args(["check", "metrics"]), Some(&metrics)).unwrap();
    let said = String::from_utf8_lossy(&[checked.stdout, checked.stderr].concat()).into_owned();
    assert!(checked.status.success() && said.trim().is_empty(), "{said}");
}
