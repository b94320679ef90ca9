//! The chart's roles are sufficient and minimal: for managers that serve some namespaces only, and for
//! readers of secure metrics.

use std::process::Command;
use std::thread;

use quintet_e2e::{TestEnv, answered, condition, program, workspace};
use quintet_localcluster::kube::Kube;
use quintet_localcluster::manager::{Manager, ManagerOptions};
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::chart::{NAMESPACE, Site, chart, held, play, play_the_hook, wait};
use crate::manager_metrics::{UNAUTHORIZED, get};

/// The manager's flags in the release's Deployment that tests need.
fn flags(kube: &Kube, namespace: &str, deployment: &str) -> Vec<String> {
    let deployment = kube.get(namespace, "deployment", deployment).unwrap().unwrap();
    let args = deployment["spec"]["template"]["spec"]["containers"][0]["args"].as_array().unwrap().clone();
    let args = args.iter().filter_map(Value::as_str);
    let ours = [
        "--controllers=",
        "--watch-namespace=",
        "--leader-election-id=",
        "--metrics-secure",
        "--sweep=",
        "--pulsar-consumer-autoscaling=",
    ];
    args.filter(|arg| ours.iter().any(|flag| arg.starts_with(flag))).map(str::to_owned).collect()
}

/// The options of a manager without leader election, for a release whose names and namespace are `name`.
pub(crate) fn options(kube: &Kube, name: &str) -> ManagerOptions {
    ManagerOptions {
        name: format!("{name}-manager"),
        namespace: name.to_owned(),
        service_account: name.to_owned(),
        leader_elect: false,
        args: flags(kube, name, name),
        program: Some(program()),
        ..ManagerOptions::default()
    }
}

#[test]
fn serves_some_namespaces_with_rights_in_only_these() {
    let site = Site::new("ch-some", 2);
    for name in ["team-a", "team-b", "team-c"] {
        site.kubectl(&["create", "namespace", name], None).unwrap();
    }
    let install = |namespaces: &str| {
        // No node matches the selector of the hook's pod; this test plays its kubelet.
        let set = format!(
            "replicas=0,nodeSelector.kubelet=played,rbac.clusterRoles=false,controllers.daemonjob=false,watchNamespaces={namespaces}"
        );
        site.helm(&["upgrade", "--install", "quintet", &chart(), "--create-namespace", "--set", &set])
    };
    let text = install("{team-a,team-x}").unwrap_err();
    assert!(text.contains(r#"namespaces "team-x" not found"#), "{text}");
    install("{team-a,team-b}").unwrap();
    for kind in ["clusterroles", "clusterrolebindings"] {
        let ours = site.uids(&[kind]).into_keys().filter(|name| name.contains("quintet"));
        assert_eq!(ours.collect::<Vec<_>>(), [""; 0], "{kind}");
    }

    let flags = flags(site.cluster().kube(), NAMESPACE, "quintet");
    assert!(flags.contains(&"--watch-namespace=team-a,team-b".to_owned()), "{flags:?}");
    let options = ManagerOptions { program: Some(program()), args: flags, ..ManagerOptions::default() };
    let manager = Manager::start(site.cluster().kube(), &options).unwrap();
    for namespace in ["team-a", "team-b", "team-c"] {
        for sample in [
            "podset/podset-sample.yaml",
            "greeting/hello-world.yaml",
            "book/david-copperfield.yaml",
            "pulsarconsumer/pulsarconsumer-sample-1.yaml",
        ] {
            let file = workspace().join("samples").join(sample).display().to_string();
            site.kubectl(&["apply", "-n", namespace, "-f", &file], None).unwrap();
        }
    }
    let is_served = |namespace: &str| {
        let podset = site.get(namespace, "podset", "podset-sample");
        condition(&site.get(namespace, "book", "david-copperfield"), "Ready").0 == "True"
            && condition(&site.get(namespace, "greeting", "hello-world"), "Ready").0 == "True"
            && podset["status"]["readyReplicas"].is_i64()
            && podset["status"]["readyReplicas"] == podset["spec"]["replicas"]
            && site.list("deployments").iter().any(|one| one["metadata"]["namespace"] == namespace)
    };
    for namespace in ["team-a", "team-b"] {
        wait(&format!("{namespace} is served"), || is_served(namespace));
    }
    for (kind, name) in
        [("podset", "podset-sample"), ("greeting", "hello-world"), ("book", "david-copperfield")]
    {
        let object = site.get("team-c", kind, name);
        assert!(object["metadata"]["uid"].is_string(), "{object:#}");
        assert_eq!(object["status"]["conditions"], Value::Null, "{kind}: team-c is not served");
    }
    site.kubectl(&["delete", "greeting", "hello-world", "-n", "team-a", "--timeout=60s"], None).unwrap();

    // helm test reports whether a manager leads.
    let test = |more: &[&str]| {
        thread::scope(|scope| {
            let test = scope.spawn(|| site.helm(&["test", "quintet", "--timeout", "4m"]));
            let played = play(&site, "quintet-test", more, || ());
            (played, test.join().unwrap())
        })
    };
    let ((code, text), helm) = test(&[]);
    assert_eq!(code, Some(0), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with(" leads: it renews Lease quintet-system/quintet-manager."), "{text}");
    assert_eq!(lines[1..], ["The Deployment has 0 replicas."], "{text}");
    helm.unwrap();
    assert_eq!(manager.stop().unwrap(), Some(0));
    let ((code, text), helm) = test(&["--within=2s"]);
    assert_eq!(code, Some(1), "{text}");
    let expected = "quintet: No pod leads: Lease quintet-system/quintet-manager has no holder.";
    assert_eq!(text.lines().next(), Some(expected), "{text}");
    helm.unwrap_err();

    // The hook has rights in these namespaces only, and they are sufficient.
    assert_eq!(held(&site, "greetings", "farewell"), 1);
    thread::scope(|scope| {
        let uninstall = scope.spawn(|| site.helm(&["uninstall", "quintet", "--timeout", "4m"]));
        let (code, text) = play_the_hook(&site, || ());
        assert_eq!(code, Some(0), "{text}");
        for line in [
            "Removed example.com/farewell from 0 Greetings in namespace team-a.",
            "Removed example.com/farewell from 1 Greeting in namespace team-b.",
            "Remaining in namespace team-b: 1 podsets.batch.tutorial.kubebuilder.io",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        uninstall.join().unwrap().unwrap();
    });
    assert_eq!(held(&site, "greetings", "farewell"), 0);
    assert_eq!(site.remains(), [""; 0]);
}

#[test]
fn secure_metrics_allow_only_the_readers_in_the_values() {
    let env = TestEnv::new("ch-secure");
    let (kube, name) = (env.kube(), env.namespace());
    let token = |account: &str| {
        env.kubectl(&["create", "serviceaccount", account]).unwrap();
        env.kubectl(&["create", "token", account]).unwrap().trim().to_owned()
    };
    let (reader, other) = (token("prometheus"), token("other"));
    // ClusterRoles are cluster-scoped, so each test needs its own name.
    let set = format!(
        "fullnameOverride={name},watchNamespaces={{{name}}},controllers.daemonjob=false,metrics.secure=true,crds.enabled=false,\
         replicas=0,rbac.userRoles.create=false,uninstallHook.enabled=false"
    );
    let readers = json!([{ "kind": "ServiceAccount", "name": "prometheus", "namespace": name }]).to_string();
    let helm = |args: &[&str]| run::stdout(kube.helm().args(args).args(["--namespace", name]));
    let chart = chart();
    helm(&["install", "secure", &chart, "--set", &set, "--set-json", &format!("metrics.readers={readers}")])
        .unwrap();

    let options = ManagerOptions { leader_elect: true, ..options(kube, name) };
    assert!(options.args.contains(&"--metrics-secure".to_owned()), "{:?}", options.args);
    let manager = Manager::start(kube, &options).unwrap();
    let ask = |token: Option<&str>| get(&env, manager.metrics_port(), "/metrics", token, None);
    // Rights take effect a moment after they are granted.
    let metrics = answered(|| ask(Some(&reader)));
    assert!(metrics.contains("quintet_build_info{"), "{metrics}");
    let text = ask(None).unwrap_err();
    assert!(text.contains(UNAUTHORIZED), "{text}");
    let text = ask(Some(&other)).unwrap_err();
    assert!(text.contains("nonResourceURLs [/metrics] and verbs [get]"), "{text}");
    assert_eq!(manager.stop().unwrap(), Some(0));
    helm(&["uninstall", "secure"]).unwrap();
}

/// `quintet check` of a release whose simulated pod is ready, with its first line in place of the leader.
#[test]
fn check_reports_that_leader_election_is_off() {
    let env = TestEnv::new("ch-alone");
    let (kube, name) = (env.kube(), env.namespace());
    env.node("a");
    let set = format!(
        "fullnameOverride={name},watchNamespaces={{{name}}},leaderElection.enabled=false,replicas=1,nodeSelector.env={name},\
         controllers.daemonjob=false,crds.enabled=false,rbac.userRoles.create=false,uninstallHook.enabled=false"
    );
    let helm = |args: &[&str]| run::stdout(kube.helm().args(args).args(["--namespace", name]));
    helm(&["install", "alone", &chart(), "--set", &set]).unwrap();
    let mut check = Command::new(program());
    check.args(["check", &format!("--manager={name}/{name}"), "--leader-elect=false"]);
    let printed = run::stdout(check.env("KUBECONFIG", env.cluster().kubeconfig())).unwrap();
    assert_eq!(printed, "Leader election is off: no Lease names a leader.\n1 of 1 managers are ready.\n");
    helm(&["uninstall", "alone"]).unwrap();
}

#[test]
fn runs_without_rights_for_sweepers_and_keda() {
    let env = TestEnv::new("ch-few");
    let (kube, name) = (env.kube(), env.namespace());
    let off = ["daemonjob", "podset", "greeting"].map(|kind| format!(",controllers.{kind}=false")).concat();
    let set = format!(
        "fullnameOverride={name},watchNamespaces={{{name}}},rbac.sweep=false,pulsarConsumer.autoscaling=false,\
         crds.enabled=false,replicas=0,rbac.userRoles.create=false,uninstallHook.enabled=false{off}"
    );
    let helm = |args: &[&str]| run::stdout(kube.helm().args(args).args(["--namespace", name]));
    helm(&["install", "few", &chart(), "--set", &set]).unwrap();
    let account = format!("--as=system:serviceaccount:{name}:{name}");
    answered(|| env.kubectl(&["auth", "can-i", "list", "pods", &account]));
    env.kubectl(&["auth", "can-i", "patch", "pods", &account]).unwrap_err();

    let manager = Manager::start(kube, &options(kube, name)).unwrap();
    env.apply_sample("book/david-copperfield.yaml").unwrap();
    env.wait_for("book", "david-copperfield", "it is Ready", |book| condition(book, "Ready").0 == "True");
    let scaled = json!({ "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": { "name": "scaled" }, "spec": { "serverAddress": "pulsar://broker:6650", "topic": "t",
            "subscriptionName": "s", "adminURL": "http://broker:8080", "autoscaling": { "maxReplicas": 2 } } });
    env.apply(&scaled).unwrap();
    // With a forbidden watch, it would not know whether KEDA is missing.
    env.wait_for("pulsarconsumer", "scaled", "it uses no KEDA", |consumer| {
        condition(consumer, "AutoscalingReady").1 == "KedaMissing"
    });
    let log = manager.logged();
    assert!(!log.contains("forbidden"), "{log}");
    assert_eq!(manager.stop().unwrap(), Some(0));
    helm(&["uninstall", "few"]).unwrap();
}
