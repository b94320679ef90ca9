//! Installs, upgrades, rolls back and uninstalls the chart with helm on separate clusters, and tests the
//! obstacles of an installation. `cargo xtask chart test` checks the rendered manifests.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use quintet_e2e::audit::Audit;
use quintet_e2e::objects::Objects;
use quintet_e2e::{PATIENCE, condition, program, workspace};
use quintet_localcluster::cluster::Cluster;
use quintet_localcluster::cluster::versions::{self, Versions};
use quintet_localcluster::documents;
use quintet_localcluster::manager::{Manager, ManagerOptions};
use quintet_localcluster::run;
use quintet_localcluster::temporary::TemporaryCluster;
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "quintet-system";

/// A cluster for one test, taken down on drop. Drop panics if the guard rails denied a request of a manager.
pub(crate) struct Site {
    cluster: TemporaryCluster,
    objects: Objects,
    audit: Audit,
}

impl Site {
    pub(crate) fn new(purpose: &str, nodes: usize) -> Self {
        let cluster = TemporaryCluster::up(purpose, nodes).unwrap();
        Self { objects: Objects::new(cluster.kubeconfig()), audit: Audit::of(&cluster), cluster }
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Runs helm in the release's namespace and returns its standard output, or its error.
    pub(crate) fn helm(&self, args: &[&str]) -> Result<String, String> {
        let mut helm = self.cluster().helm();
        run::stdout(helm.args(args).args(["--namespace", NAMESPACE])).map_err(|error| format!("{error:#}"))
    }

    /// Runs a helm command of a document.
    fn follow(&self, command: &str) {
        let mut helm = self.cluster().helm();
        helm.args(command.split_whitespace().skip(1)).current_dir(workspace());
        run::stdout(&mut helm).unwrap_or_else(|error| panic!("{command}: {error:#}"));
    }

    pub(crate) fn kubectl(&self, args: &[&str], input: Option<&str>) -> Result<String, String> {
        run::stdout_with_input(self.cluster().kubectl().args(args), input)
            .map_err(|error| format!("{error:#}"))
    }

    pub(crate) fn list(&self, kind: &str) -> Vec<Value> {
        self.objects.list("", kind, "").unwrap()
    }

    pub(crate) fn get(&self, namespace: &str, kind: &str, name: &str) -> Value {
        self.objects.get(namespace, kind, name).unwrap().unwrap_or_default()
    }

    /// The number of times that managers created a pod of each name in the namespace `default`.
    pub(crate) fn created_pods(&self) -> BTreeMap<String, usize> {
        self.audit.created_pods("default")
    }

    /// Starts a manager with the rights of the release. It elects a leader with the release's Lease.
    pub(crate) fn manager(&self) -> Manager {
        let options = ManagerOptions { program: Some(program()), ..ManagerOptions::default() };
        Manager::start(self.cluster().kube(), &options).unwrap()
    }

    /// The objects of the release quintet that still exist, except definitions.
    pub(crate) fn remains(&self) -> Vec<String> {
        let uids = self.uids(&PARTS);
        uids.into_keys()
            .filter(|name| name.rsplit('/').next().is_some_and(|name| name.contains("quintet")))
            .collect()
    }

    /// The UIDs of all objects of these kinds, by kind and name.
    pub(crate) fn uids(&self, kinds: &[&str]) -> BTreeMap<String, String> {
        let mut uids = BTreeMap::new();
        for kind in kinds {
            for object in self.list(kind) {
                let part = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
                uids.insert(format!("{kind} {}/{}", part("namespace"), part("name")), part("uid"));
            }
        }
        uids
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.audit.assert_no_denials(|_| true);
        }
    }
}

/// The kinds of a release's objects, except definitions.
const PARTS: [&str; 15] = [
    "deployments",
    "services",
    "configmaps",
    "poddisruptionbudgets",
    "networkpolicies",
    "roles",
    "rolebindings",
    "clusterroles",
    "clusterrolebindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "serviceaccounts",
    "jobs",
    "leases",
    "secrets",
];

pub(crate) fn chart() -> String {
    workspace().join("charts/quintet").display().to_string()
}

/// Lets Helm 4 change fields that another client owns. Helm 3 always changes them.
pub(crate) fn forced() -> &'static [&'static str] {
    match versions::current() {
        Versions::Newest => &["--force-conflicts"],
        Versions::Oldest => &[],
    }
}

/// The packaged chart of the previous version.
fn previous() -> String {
    let folder = workspace().join("tests/chart/previous");
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path());
    let packages: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|end| end == "tgz")).collect();
    assert_eq!(packages.len(), 1, "one previous chart: {packages:?}");
    packages[0].display().to_string()
}

/// The command of docs/operations.md that begins and continues like this.
fn documented(begin: &str, part: &str) -> String {
    documents::command(&workspace().join("docs/operations.md"), begin, part)
}

pub(crate) fn daemonjob(name: &str) -> Value {
    json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "metadata": { "name": name, "namespace": "default" },
        "spec": { "template": { "spec": { "restartPolicy": "Never",
            "containers": [{ "name": "c", "image": "busybox", "command": ["true"] }] } } } })
}

pub(crate) fn wait(what: &str, holds: impl Fn() -> bool) {
    run::poll(what, PATIENCE, Duration::from_millis(200), || Ok(holds().then_some(())))
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Upgrades a release of the previous chart as documented. The release's values stay, and values that only the new
/// chart knows get their defaults. A null that helm keeps does no harm.
fn keeps_values_and_drops_nulls(site: &Site) {
    let upgrade = documented("helm upgrade quintet ", "metrics.dashboards.enabled=true");
    site.follow(&upgrade);
    let spec = || site.get(NAMESPACE, "deployment", "quintet")["spec"].clone();
    assert_eq!(spec()["replicas"], 0, "the value of the old release");
    assert_eq!(spec()["revisionHistoryLimit"], 3, "the default of the new chart");
    // The chart has no default for this key, so helm keeps the null at each later upgrade.
    let null = ["--reset-then-reuse-values", "--set", "resources.limits.cpu=null"];
    site.helm(&[&["upgrade", "quintet", &chart()], &null[..]].concat()).unwrap();
    site.follow(&upgrade);
    let container = spec()["template"]["spec"]["containers"][0].clone();
    assert_eq!(container["resources"]["limits"], json!({ "memory": "64Mi" }));
}

#[test]
fn upgrade_and_rollback_keep_objects_and_pods() {
    let site = Site::new("ch-upgrade", 2);
    // The Deployment has no replicas; the manager is a local process.
    site.helm(&["install", "quintet", &previous(), "--create-namespace", "--set", "replicas=0"]).unwrap();
    let manager = site.manager();
    for sample in ["podset/podset-sample.yaml", "greeting/hello-world.yaml", "book/david-copperfield.yaml"] {
        let file = workspace().join("samples").join(sample).display().to_string();
        site.kubectl(&["apply", "-f", &file], None).unwrap();
    }
    site.kubectl(&["apply", "-f", "-"], Some(&daemonjob("done").to_string())).unwrap();
    wait("all kinds have reached their desired state", || {
        let podset = site.get("default", "podset", "podset-sample");
        condition(&site.get("default", "daemonjob", "done"), "Complete").0 == "True"
            && condition(&site.get("default", "book", "david-copperfield"), "Ready").0 == "True"
            && condition(&site.get("default", "greeting", "hello-world"), "Ready").0 == "True"
            && podset["status"]["readyReplicas"].is_i64()
            && podset["status"]["readyReplicas"] == podset["spec"]["replicas"]
    });
    let all = ["pods", "daemonjobs", "podsets", "greetings", "books", "configmaps", "crds"];
    let before = site.uids(&all);
    assert!(before.keys().filter(|name| name.starts_with("pods ")).count() >= 3, "{before:?}");
    let kept = |what: &str| {
        let after = site.uids(&all);
        for (name, uid) in &before {
            assert_eq!(after.get(name), Some(uid), "{name} after the {what}");
        }
    };

    keeps_values_and_drops_nulls(&site);
    kept("upgrade");
    // helm creates the binding with the new name before it deletes the old one.
    let bindings = site.uids(&["clusterrolebindings"]);
    let is_bound = |name: &str| bindings.contains_key(&format!("clusterrolebindings /{name}"));
    assert!(is_bound("quintet.quintet-system") && !is_bound("quintet"), "{bindings:?}");
    assert_eq!(manager.stop().unwrap(), Some(0));
    // The new release's rights are sufficient for all kinds.
    let manager = site.manager();
    site.kubectl(
        &["patch", "podset", "podset-sample", "--type=merge", "-p", r#"{"spec":{"replicas":4}}"#],
        None,
    )
    .unwrap();
    site.kubectl(&["apply", "-f", "-"], Some(&daemonjob("later").to_string())).unwrap();
    wait("the manager serves changes after the upgrade", || {
        site.get("default", "podset", "podset-sample")["status"]["readyReplicas"] == 4
            && condition(&site.get("default", "daemonjob", "later"), "Complete").0 == "True"
    });

    site.helm(&["rollback", "quintet", "1"]).unwrap();
    let _ = site.kubectl(&["get", "greetings"], None).unwrap();
    // The PodSet now has four replicas, so all earlier pods still exist.
    kept("rollback");
    assert!(
        site.list("configmaps").iter().all(|map| !map["metadata"]["name"].to_string().contains("dashboard"))
    );
    assert_eq!(manager.stop().unwrap(), Some(0));
    let manager = site.manager();
    assert_eq!(manager.stop().unwrap(), Some(0));
    let history = site.helm(&["history", "quintet"]).unwrap();
    assert!(history.contains("Rollback to 1"), "{history}");
}

/// Plays the kubelet for the pod of the uninstall hook; see [`play`].
pub(crate) fn play_the_hook(site: &Site, after_start: impl FnOnce()) -> (Option<i32>, String) {
    play(site, "quintet-uninstall", &[], after_start)
}

/// Plays the kubelet for a hook's pod, found by its app.kubernetes.io/name: runs the pod's command with its
/// ServiceAccount and the additional arguments. Returns the exit code and the output.
pub(crate) fn play(
    site: &Site,
    name: &str,
    more: &[&str],
    after_start: impl FnOnce(),
) -> (Option<i32>, String) {
    let pods = || -> Vec<Value> {
        let pods = site.list("pods");
        pods.into_iter().filter(|pod| pod["metadata"]["labels"]["app.kubernetes.io/name"] == name).collect()
    };
    wait("the hook's pod exists", || !pods().is_empty());
    let pod = pods().remove(0);
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap();
    let config = site.cluster().kube().kubeconfig_of_service_account(NAMESPACE, account).unwrap();
    let file = site.cluster().kube().dir().join(format!("{name}.kubeconfig"));
    std::fs::write(&file, config).unwrap();
    let args = pod["spec"]["containers"][0]["args"].as_array().unwrap().clone();
    let child = Command::new(program())
        .args(args.iter().map(|arg| arg.as_str().unwrap()))
        .args(more)
        .arg("--kubeconfig")
        .arg(&file)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    after_start();
    let output = child.wait_with_output().unwrap();
    let phase = if output.status.success() { "Succeeded" } else { "Failed" };
    let name = pod["metadata"]["name"].as_str().unwrap();
    let status = json!({ "status": { "phase": phase } }).to_string();
    site.kubectl(
        &["patch", "pod", name, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", &status],
        None,
    )
    .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

pub(crate) fn held(site: &Site, kind: &str, finalizer: &str) -> usize {
    site.list(kind)
        .iter()
        .filter(|object| object["metadata"]["finalizers"].to_string().contains(finalizer))
        .count()
}

/// Helm deletes the account and the roles of a failed Job, and keeps only the Job.
fn permissions_of_the_hook_are_gone(site: &Site) {
    let permissions = ["serviceaccounts", "clusterroles", "clusterrolebindings", "roles", "rolebindings"];
    let left = site.uids(&permissions).into_keys().find(|name| name.contains("quintet-uninstall"));
    assert_eq!(left, None);
}

#[test]
fn uninstalls_while_objects_exist() {
    let site = Site::new("ch-uninstall", 2);
    // No node matches the selector of the hook's pod; this test plays its kubelet.
    let set = ["--set", "replicas=0,nodeSelector.kubelet=played,uninstallHook.backoffLimit=0"];
    site.helm(&[&["install", "quintet", &chart(), "--create-namespace"], &set[..]].concat()).unwrap();
    let manager = site.manager();
    let greetings: Vec<Value> = (0..200)
        .map(|number| {
            json!({ "apiVersion": "example.com/v1", "kind": "Greeting",
                "metadata": { "name": format!("g{number}"), "namespace": "default" }, "spec": { "message": "Hi" } })
        })
        .collect();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": greetings }).to_string();
    site.kubectl(&["apply", "--server-side", "-f", "-"], Some(&list)).unwrap();
    let mut running = daemonjob("running");
    running["spec"]["template"]["metadata"]["annotations"]["kwok.quintet.dev/hold"] = json!("true");
    site.kubectl(&["apply", "-f", "-"], Some(&running.to_string())).unwrap();
    wait("the objects have finalizers", || {
        held(&site, "greetings", "farewell") == 200 && held(&site, "pods", "ledger") == 2
    });
    let pods = site.uids(&["pods"]);

    let command = format!("{} --timeout 4m", documented("helm uninstall ", ""));
    thread::scope(|scope| {
        let uninstall = scope.spawn(|| site.follow(&command));
        // Scaling the Deployment stops its managers. The test stops its own once the hook waits.
        let (code, text) = play_the_hook(&site, || {
            thread::sleep(Duration::from_secs(1));
            assert_eq!(manager.stop().unwrap(), Some(0));
        });
        assert_eq!(code, Some(0), "{text}");
        for line in [
            "Scaled Deployment quintet-system/quintet to 0.",
            "Acquired Lease quintet-system/quintet-manager. No manager writes now.",
            "Removed dj.dysproz.io/ledger from 2 Pods",
            "Removed example.com/farewell from 200 Greetings",
            "1 daemonjobs.dj.dysproz.io",
            "Deleted Lease quintet-system/quintet-manager.",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        uninstall.join().unwrap();
    });
    assert_eq!((held(&site, "greetings", "farewell"), held(&site, "pods", "ledger")), (0, 0));
    wait("the hook's pods are gone", || site.uids(&["pods"]).len() <= pods.len());
    assert_eq!(site.uids(&["pods"]), pods, "no pod disappears");
    assert_eq!((site.list("greetings").len(), site.list("crds").len()), (200, 5));
    // Only the definitions of the release remain.
    assert_eq!(site.remains(), [""; 0]);

    // A new installation serves the remaining objects.
    site.helm(&[&["install", "quintet", &chart(), "--set", "crds.keep=false"], &set[..]].concat()).unwrap();
    let manager = site.manager();
    wait("the Greetings have their finalizers again", || held(&site, "greetings", "farewell") == 200);
    site.kubectl(&["delete", "greeting", "g0", "--timeout=60s"], None).unwrap();
    assert_eq!(manager.stop().unwrap(), Some(0));

    // A failed hook is reported, and the release stays.
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": { "name": "quintet-manager", "namespace": NAMESPACE },
        "spec": { "holderIdentity": "other", "leaseDurationSeconds": 3600 } });
    site.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], Some(&lease.to_string()))
        .unwrap();
    thread::scope(|scope| {
        let uninstall = scope.spawn(|| site.helm(&["uninstall", "quintet", "--timeout", "90s"]));
        let (code, text) = play_the_hook(&site, || ());
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains("cannot acquire Lease quintet-system/quintet-manager: its holder is \"other\""),
            "{text}"
        );
        assert!(uninstall.join().unwrap().is_err());
    });
    let delete = ["delete", "job", "quintet-uninstall", "-n", NAMESPACE, "--cascade=foreground"];
    site.kubectl(&delete, None).unwrap();
    assert!(site.helm(&["status", "quintet"]).is_ok(), "the release stays");
    permissions_of_the_hook_are_gone(&site);
    // helm has marked the release as uninstalling.
    let upgrade = site.helm(&["upgrade", "quintet", &chart()]).unwrap_err();
    assert!(upgrade.contains("has no deployed releases"), "{upgrade}");
    site.helm(&[&["rollback", "quintet", "1"], forced()].concat()).unwrap();
    site.helm(&[&["upgrade", "quintet", &chart(), "--set", "crds.keep=false"], &set[..]].concat()).unwrap();
    site.kubectl(&["delete", "lease", "quintet-manager", "-n", NAMESPACE], None).unwrap();

    // With crds.keep=false, everything is deleted.
    thread::scope(|scope| {
        let uninstall = scope.spawn(|| site.helm(&["uninstall", "quintet", "--timeout", "4m"]));
        let (code, text) = play_the_hook(&site, || ());
        assert_eq!(code, Some(0), "{text}");
        uninstall.join().unwrap().unwrap();
    });
    wait("the definitions and all objects are gone", || site.list("crds").is_empty());
}

/// An object that the new schema rejects stays, is reported, and is served once it is corrected. Others are
/// served beside it.
fn older_objects_harm_no_other(site: &Site) {
    let manager = site.manager();
    let file = workspace().join("samples/podset/podset-sample.yaml").display().to_string();
    site.kubectl(&["apply", "-n", "default", "-f", &file], None).unwrap();
    let has_pods = |name: &str| {
        let podset = site.get("default", "podset", name);
        podset["status"]["replicas"].is_i64() && podset["status"]["replicas"] == podset["spec"]["replicas"]
    };
    wait("the old Book has a condition and the new PodSet has its pods", || {
        condition(&site.get("default", "book", "old"), "Ready") == ("False".to_owned(), "Invalid".to_owned())
            && has_pods("podset-sample")
    });
    wait("the old PodSet has an Event", || {
        let events = site.list("events.events.k8s.io");
        events.iter().any(|event| event["reason"] == "Undecodable" && event["regarding"]["name"] == "old")
    });
    assert_eq!(site.get("default", "podset", "old")["spec"]["replicas"], "many", "the stored object stays");
    for (kind, mended) in [
        ("podset", r#"{"spec":{"replicas":1}}"#),
        ("book", r#"{"spec":{"author":"Charles Dickens","title":"David Copperfield"}}"#),
    ] {
        site.kubectl(&["patch", kind, "old", "-n", "default", "--type=merge", "-p", mended], None).unwrap();
    }
    wait("the corrected objects are served", || {
        condition(&site.get("default", "book", "old"), "Ready").0 == "True" && has_pods("old")
    });
    site.kubectl(&["delete", "podsets", "--all", "-n", "default", "--timeout=60s"], None).unwrap();
    assert_eq!(manager.stop().unwrap(), Some(0));
}

#[test]
fn reports_the_obstacles_of_an_installation() {
    let site = Site::new("ch-refused", 0);
    let install = |more: &[&str]| {
        let args = [
            "install",
            "quintet",
            &chart(),
            "--create-namespace",
            "--set",
            "replicas=0,uninstallHook.enabled=false",
        ];
        site.helm(&[&args[..], more].concat())
    };
    // Older definitions, applied manually, with objects that the new schemas reject.
    for (group, kind) in [("christianb93.github.com", "Book"), ("batch.tutorial.kubebuilder.io", "PodSet")] {
        let singular = kind.to_lowercase();
        let plural = format!("{singular}s");
        let lax = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let posts = json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": { "group": group, "scope": "Namespaced",
                "names": { "plural": plural, "singular": singular, "kind": kind },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": lax } }] } });
        site.kubectl(&["apply", "-f", "-"], Some(&posts.to_string())).unwrap();
    }
    for older in [
        json!({ "apiVersion": "christianb93.github.com/v1", "kind": "Book",
            "metadata": { "name": "old", "namespace": "default" }, "spec": { "author": 5 } }),
        json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
            "metadata": { "name": "old", "namespace": "default" }, "spec": { "replicas": "many" } }),
    ] {
        wait("it is stored", || site.kubectl(&["apply", "-f", "-"], Some(&older.to_string())).is_ok());
    }
    let text = install(&[]).unwrap_err();
    assert!(
        text.contains("invalid ownership metadata") && text.contains("books.christianb93.github.com"),
        "{text}"
    );
    install(&[&["--take-ownership"], forced()].concat()).unwrap();
    assert_eq!(site.get("default", "book", "old")["spec"]["author"], 5, "the stored object stays");
    wait("the new definition is served", || site.kubectl(&["explain", "book.spec.title"], None).is_ok());
    older_objects_harm_no_other(&site);

    // The definitions belong to another release. Everything else may have the same name in another namespace.
    let mut helm = site.cluster().helm();
    let second = helm.args(["install", "quintet", &chart(), "--namespace", "second", "--create-namespace"]);
    let text = format!("{:#}", run::stdout(second.args(["--set", "replicas=0"])).unwrap_err());
    assert!(text.contains("invalid ownership metadata") && text.contains("quintet-system"), "{text}");
    let mut helm = site.cluster().helm();
    let second = helm.args(["install", "quintet", &chart(), "--namespace", "second", "--create-namespace"]);
    run::stdout(second.args(["--set", "replicas=0,crds.enabled=false,watchNamespaces={second}"])).unwrap();

    // Unknown values and wrong types are errors before helm sends anything.
    let text = install(&["--set", "replica=2"]).unwrap_err();
    assert!(text.contains("replica"), "{text}");
    let text = install(&["--set", "metrics.port=http"]).unwrap_err();
    assert!(text.contains("port"), "{text}");
    let text = site.helm(&["template", "third", &chart(), "--set", "metrics.port=8081"]).unwrap_err();
    assert!(text.contains("debug.port must differ"), "{text}");

    // A ServiceAccount that is admin of one namespace only.
    for args in [
        &["create", "namespace", "team-a"][..],
        &["create", "serviceaccount", "installer", "-n", "team-a"],
        &[
            "create",
            "rolebinding",
            "admin",
            "-n",
            "team-a",
            "--clusterrole=admin",
            "--serviceaccount=team-a:installer",
        ],
        // Lets it create a Role with permissions that it does not have itself.
        &["create", "role", "roles", "-n", "team-a", "--verb=escalate,bind", "--resource=roles"],
        &[
            "create",
            "rolebinding",
            "roles",
            "-n",
            "team-a",
            "--role=roles",
            "--serviceaccount=team-a:installer",
        ],
    ] {
        site.kubectl(args, None).unwrap();
    }
    let config = site.cluster().kube().kubeconfig_of_service_account("team-a", "installer").unwrap();
    let file = site.cluster().kube().dir().join("installer.kubeconfig");
    std::fs::write(&file, config).unwrap();
    let as_installer = |set: &str| {
        let mut helm = Command::new(site.cluster().helm().get_program());
        helm.arg("--kubeconfig").arg(&file).env("KUBECACHEDIR", site.cluster().kube().cache());
        helm.args(["install", "mine", &chart(), "--namespace", "team-a", "--set", set]);
        run::stdout(&mut helm).map_err(|error| format!("{error:#}"))
    };
    let text = as_installer("crds.enabled=false").unwrap_err();
    assert!(text.contains("clusterroles") && text.contains("forbidden"), "{text}");
    let narrow = "crds.enabled=false,watchNamespaces={team-a},rbac.clusterRoles=false";
    let text = as_installer(narrow).unwrap_err();
    assert!(text.contains("DaemonJob reads Nodes") && text.contains("controllers.daemonjob"), "{text}");
    as_installer(&format!("{narrow},controllers.daemonjob=false,replicas=0")).unwrap();

    // The Role is sufficient for a manager of that namespace.
    let options = ManagerOptions {
        program: Some(program()),
        namespace: "team-a".to_owned(),
        service_account: "mine-quintet".to_owned(),
        args: [
            "--watch-namespace=team-a",
            "--controllers=-daemonjob",
            // The Role allows only this Lease.
            "--leader-election-id=mine-quintet-manager",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..ManagerOptions::default()
    };
    let manager = Manager::start(site.cluster().kube(), &options).unwrap();
    let file = workspace().join("samples/book/david-copperfield.yaml").display().to_string();
    site.kubectl(&["apply", "-n", "team-a", "-f", &file], None).unwrap();
    wait("the Book is Ready", || {
        condition(&site.get("team-a", "book", "david-copperfield"), "Ready").0 == "True"
    });
    assert_eq!(manager.stop().unwrap(), Some(0));
}
