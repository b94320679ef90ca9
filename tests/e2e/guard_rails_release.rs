//! The guard rails of a second release, which serves one namespace beside the release of all namespaces. They limit the
//! release in other namespaces, its uninstall Job, and the authors of templates and URLs.

use quintet_e2e::{MANAGER_ROLE, condition};
use quintet_localcluster::manager::Manager;
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::chart::{chart, daemonjob};
use crate::chart_rights::options;
use crate::guard_rails::{ALLOWED, Requests, Scene, pod};
use crate::guard_rails_users::{editor, grant, wait_until_granted};

/// A release in the scene's namespace, which serves this namespace only. Its account has the name of the namespace.
struct Release<'s> {
    scene: &'s Scene,
    /// A namespace that the release does not serve.
    elsewhere: String,
}

impl<'s> Release<'s> {
    fn install(scene: &'s Scene, values: &str) -> Self {
        let release = Self { scene, elsewhere: format!("{}-else", scene.env.namespace()) };
        scene.env.kubectl(&["create", "namespace", &release.elsewhere]).unwrap();
        let name = scene.env.namespace();
        // ClusterRoles are cluster-scoped, so each test needs its own name.
        let set = format!(
            "fullnameOverride={name},watchNamespaces={{{name}}},crds.enabled=false,replicas=0,rbac.userRoles.create=false{values}"
        );
        release.helm(&["install", "second", &chart(), "--set", &set]);
        release
    }

    fn helm(&self, args: &[&str]) {
        let env = &self.scene.env;
        run::stdout(env.kube().helm().args(args).args(["--namespace", env.namespace()])).unwrap();
    }

    /// Requests of an account of the scene's namespace, in this namespace or another one.
    fn requests(&self, account: &str, namespace: &str) -> Requests {
        Requests::of(&self.scene.env, (self.scene.env.namespace(), account), namespace)
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        let env = &self.scene.env;
        let uninstall = ["uninstall", "second", "--no-hooks", "--namespace", env.namespace()];
        let _ = run::stdout(env.kube().helm().args(uninstall));
        let _ = env.kubectl(&["delete", "namespace", &self.elsewhere, "--wait=false"]);
    }
}

#[test]
fn two_releases_serve_their_namespaces() {
    let scene = Scene::new("gr-release");
    let (env, name) = (&scene.env, scene.env.namespace());
    let release = Release::install(&scene, "");
    // Rights in another namespace, as an administrator may grant them by mistake.
    let subject = format!("--serviceaccount={name}:{name}");
    let wide = ["create", "rolebinding", "wide", MANAGER_ROLE, &subject, "-n", &release.elsewhere];
    env.kubectl(&wide).unwrap();
    let update = json!({ "verb": "update", "group": "dj.dysproz.io", "resource": "daemonjobs", "subresource": "finalizers" });
    for namespace in [name, &release.elsewhere] {
        wait_until_granted(env, (name, name), namespace, &update);
    }

    let inside = release.requests(name, name);
    inside.wait_until_denied(&pod("new", &json!({})));
    inside.create(&scene.ledger("new"), ALLOWED);
    inside.create(&pod("new", &scene.pod_of_job()), ALLOWED);
    inside.create(&pod("new", &json!({})), Some("may create only pods"));
    inside.check();
    let outside = release.requests(name, &release.elsewhere);
    let only = Some("may write only in the namespaces of watchNamespaces");
    let note = json!({ "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "new" },
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "quintet", "reportingInstance": "quintet",
        "action": "Test", "reason": "Test", "type": "Normal",
        "regarding": { "kind": "Pod", "namespace": release.elsewhere, "name": "p" } });
    outside.wait_until_denied(&scene.ledger("new"));
    outside.create(&scene.ledger("new"), only);
    outside.create(&pod("new", &scene.pod_of_job()), only);
    outside.create(&note, only);
    outside.check();

    // The manager of this release does its work under the guard rails of both releases.
    let node = env.node("a");
    let mut job = daemonjob("second");
    job["metadata"] = json!({ "name": "second" });
    job["spec"]["template"]["spec"]["nodeSelector"] = json!({ "env": name });
    let manager = Manager::start(env.kube(), &options(env.kube(), name)).unwrap();
    env.apply(&job).unwrap();
    let done =
        env.wait_for("daemonjob", "second", "it is complete", |job| condition(job, "Complete").0 == "True");
    assert_eq!(done["status"]["succeeded"], 1, "{node}: {done:#}");
    env.kubectl(&["delete", "daemonjob", "second", "--timeout=60s"]).unwrap();
    assert_eq!(manager.stop().unwrap(), Some(0));
}

#[test]
fn the_uninstall_job_only_removes_finalizers_from_pods() {
    let scene = Scene::new("gr-uninstall");
    let (env, name) = (&scene.env, scene.env.namespace());
    let release = Release::install(&scene, "");
    env.apply(&pod("of-job", &scene.pod_of_job())).unwrap();
    // Helm creates the Job's account during an uninstall. Here it may do everything that editors and managers may.
    let account = format!("{name}-uninstall");
    editor(&scene, &account);
    let finalizers = json!({ "apiGroups": ["dj.dysproz.io"], "resources": ["daemonjobs/finalizers"], "verbs": ["update"] });
    grant(&scene, &account, &finalizers);
    let update = json!({ "verb": "update", "group": "dj.dysproz.io", "resource": "daemonjobs", "subresource": "finalizers" });
    wait_until_granted(env, (name, &account), name, &update);
    let job = release.requests(&account, name);
    job.wait_until_denied(&pod("new", &json!({})));
    let only = Some("may only remove the finalizer");
    let removed = json!({ "op": "remove", "path": "/metadata/finalizers/1" });
    let added = json!({ "op": "add", "path": "/metadata/labels/added", "value": "x" });
    job.patch(("pod", "of-job"), &json!([removed]), ALLOWED);
    // A mutating webhook may add labels.
    job.patch(("pod", "of-job"), &json!([removed, added]), ALLOWED);
    job.patch(("pod", "of-job"), &json!([added]), Some("Quintet's labels"));
    job.patch(("pod", "of-job"), &json!({ "metadata": { "labels": { "quintet.dev/kind": null } } }), only);
    job.create(&pod("new", &scene.pod_of_job()), only);
    job.delete(("pod", "of-job"), only);
    let foreign = json!([{ "op": "remove", "path": "/metadata/finalizers/0" }]);
    job.patch(("pod", "of-job"), &foreign, Some("no finalizer"));
    job.check();
}

/// A PodSet whose pods have this spec, besides a container.
fn podset(name: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    if spec["containers"].is_null() {
        spec["containers"] = json!([{ "name": "c", "image": "busybox" }]);
    }
    json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet", "metadata": { "name": name },
        "spec": { "replicas": 0, "template": { "spec": spec } } })
}

fn consumer(name: &str, fields: &Value) -> Value {
    let mut spec = json!({ "serverAddress": "pulsar://broker:6650", "topic": "t", "subscriptionName": "s" });
    spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    json!({ "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
        "metadata": { "name": name }, "spec": spec })
}

#[test]
fn tenants_name_only_what_they_may_use() {
    let scene = Scene::new("gr-tenants");
    let (env, name) = (&scene.env, scene.env.namespace());
    let tenants = "guardRails.tenants";
    let values = format!(
        ",{tenants}.serviceAccounts=true,{tenants}.hostAccess=true,{tenants}.urlHosts={{broker.pulsar.svc,*.pulsar.svc}}"
    );
    let with_account = podset("old", &json!({ "serviceAccountName": "builder" }));
    env.apply(&with_account).unwrap();
    env.apply(&consumer("old", &json!({ "adminURL": "http://elsewhere:8080" }))).unwrap();
    let release = Release::install(&scene, &values);
    let create = json!({ "verb": "create", "group": "batch.tutorial.kubebuilder.io", "resource": "podsets" });
    for account in ["editor", "trusted"] {
        editor(&scene, account);
        wait_until_granted(env, (name, account), name, &create);
    }
    let accounts = json!({ "apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["builder"], "verbs": ["use"] });
    grant(&scene, "trusted", &accounts);
    let host = json!({ "apiGroups": ["quintet.dev"], "resources": ["hostaccess"], "verbs": ["use"] });
    grant(&scene, "trusted", &host);
    for attributes in [
        json!({ "verb": "use", "resource": "serviceaccounts", "name": "builder" }),
        json!({ "verb": "use", "group": "quintet.dev", "resource": "hostaccess" }),
    ] {
        wait_until_granted(env, (name, "trusted"), name, &attributes);
    }

    let host_accesses = [
        json!({ "volumes": [{ "name": "root", "hostPath": { "path": "/" } }] }),
        json!({ "containers": [{ "name": "c", "image": "busybox", "securityContext": { "privileged": true } }] }),
        json!({ "initContainers": [{ "name": "i", "image": "busybox", "securityContext": { "privileged": true } }] }),
        json!({ "hostNetwork": true }),
        json!({ "hostPID": true }),
        json!({ "hostIPC": true }),
    ];
    for (account, is_trusted) in [("editor", false), ("trusted", true)] {
        let user = release.requests(account, name);
        if !is_trusted {
            user.wait_until_denied(&podset("new", &host_accesses[0]));
        }
        let denied = |words: &'static str| Some(words).filter(|_| !is_trusted);
        user.create(&podset("new", &json!({})), ALLOWED);
        user.create(&podset("new", &json!({ "serviceAccountName": "default" })), ALLOWED);
        for field in ["serviceAccountName", "serviceAccount"] {
            user.create(&podset("new", &json!({ field: "builder" })), denied("names ServiceAccount builder"));
            user.create(&podset("new", &json!({ field: "admin" })), Some("names ServiceAccount admin"));
        }
        for spec in &host_accesses {
            user.create(&podset("new", spec), denied("has a hostPath volume, a privileged container"));
        }
        let mut job = daemonjob("new");
        job["metadata"] = json!({ "name": "new" });
        job["spec"]["template"]["spec"]["hostPID"] = json!(true);
        user.create(&job, denied("has a hostPath volume"));
        let template = json!({ "template": { "spec": { "serviceAccountName": "builder" } } });
        user.create(&consumer("new", &template), denied("names ServiceAccount builder"));

        // Objects from before the rules stay usable.
        user.patch(("podset", "old"), &json!({ "spec": { "replicas": 1 } }), ALLOWED);
        let other = json!({ "spec": { "template": { "metadata": { "labels": { "a": "b" } } } } });
        user.patch(("podset", "old"), &other, denied("names ServiceAccount builder"));

        let hosts = Some("may name only these hosts: broker.pulsar.svc, *.pulsar.svc");
        for (url, answer) in [
            ("http://broker.pulsar.svc:8080", ALLOWED),
            ("https://Broker-0.Pulsar.svc/path", ALLOWED),
            ("http://pulsar.svc", hosts),
            ("http://broker.pulsar.svc.evil.example", hosts),
            ("http://evilpulsar.svc", hosts),
            ("http://169.254.169.254", hosts),
            ("http://[::1]:8080", hosts),
        ] {
            user.create(&consumer("new", &json!({ "adminURL": url })), answer);
        }
        let auth = json!({ "auth": { "oauth2": { "tokenURL": "https://evil.example/token", "clientID": "c",
            "clientSecret": { "name": "s" } } } });
        user.create(&consumer("new", &auth), hosts);
        user.patch(("pulsarconsumer", "old"), &json!({ "spec": { "replicas": 2 } }), ALLOWED);
        user.patch(("pulsarconsumer", "old"), &json!({ "spec": { "adminURL": "http://other:8080" } }), hosts);
        user.check();
    }
    // The rules of this release end at its namespaces.
    let subject = format!("--serviceaccount={name}:editor");
    let edit = ["create", "rolebinding", "editor", "--clusterrole=edit", &subject, "-n", &release.elsewhere];
    env.kubectl(&edit).unwrap();
    wait_until_granted(env, (name, "editor"), &release.elsewhere, &create);
    let user = release.requests("editor", &release.elsewhere);
    user.create(&with_account, ALLOWED);
    user.create(&podset("new", &host_accesses[0]), ALLOWED);
    user.check();
}
