//! The guard rails of a second release, which serves one namespace beside the release of all namespaces. They limit the
//! release in other namespaces, its uninstall Job, and the authors of templates and URLs.

use quintet_e2e::{MANAGER_ROLE, condition};
use quintet_localcluster::manager::{Manager, ManagerOptions};
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::chart::{chart, daemonjob};
use crate::chart_rights::options;
use crate::guard_rails::{ALLOWED, Requests, Scene, assert_types_fit, deployment, pod, revision};
use crate::guard_rails_users::{editor, grant, wait_until_granted};

/// The message for a write outside the served namespaces.
const ONLY_SERVED: Option<&str> = Some("may write only in the namespaces of watchNamespaces");

/// A release in the scene's namespace, which serves one namespace only. Its account has the name of the scene's namespace.
struct Release<'s> {
    scene: &'s Scene,
    /// The namespaces besides the scene's.
    namespaces: Vec<String>,
    /// A namespace that the release does not serve.
    elsewhere: String,
}

impl<'s> Release<'s> {
    /// A release that serves the scene's namespace.
    fn install(scene: &'s Scene, values: &str) -> Self {
        Self::serving(scene, scene.env.namespace(), values)
    }

    fn serving(scene: &'s Scene, served: &str, values: &str) -> Self {
        let name = scene.env.namespace();
        let elsewhere = format!("{name}-else");
        let namespaces = [served, &elsewhere].into_iter().filter(|one| *one != name).map(str::to_owned);
        let release = Self { scene, namespaces: namespaces.collect(), elsewhere };
        for namespace in &release.namespaces {
            scene.env.kubectl(&["create", "namespace", namespace]).unwrap();
        }
        // ClusterRoles are cluster-scoped, so each test needs its own name.
        let set = format!(
            "fullnameOverride={name},watchNamespaces={{{served}}},crds.enabled=false,replicas=0,rbac.userRoles.create=false{values}"
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
        for namespace in &self.namespaces {
            let _ = env.kubectl(&["delete", "namespace", namespace, "--wait=false"]);
        }
    }
}

/// An object of each type that managers create, besides Leases and Events.
fn created(scene: &Scene) -> [Value; 4] {
    [
        pod("new", &scene.pod_of_job()),
        scene.ledger("new"),
        deployment("new", &json!([scene.consumer])),
        revision("new", &json!([scene.set])),
    ]
}

/// An Event about a pod of the namespace.
fn event(namespace: &str) -> Value {
    json!({ "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "new" },
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "quintet", "reportingInstance": "quintet",
        "action": "Test", "reason": "Test", "type": "Normal",
        "regarding": { "kind": "Pod", "namespace": namespace, "name": "p" } })
}

fn lease(name: &str) -> Value {
    json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name } })
}

/// The attributes of a permission that the controller of DaemonJobs needs in each namespace.
fn finalizers_of_daemonjobs() -> Value {
    json!({ "verb": "update", "group": "dj.dysproz.io", "resource": "daemonjobs", "subresource": "finalizers" })
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
    let update = finalizers_of_daemonjobs();
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
    outside.wait_until_denied(&scene.ledger("new"));
    for object in created(&scene) {
        outside.create(&object, ONLY_SERVED);
    }
    outside.create(&event(&release.elsewhere), ONLY_SERVED);
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

/// The namespace of the release is not in watchNamespaces. The manager has its Lease there.
#[test]
fn a_release_leads_outside_the_namespace_that_it_serves() {
    let scene = Scene::new("gr-outside");
    let (env, name) = (&scene.env, scene.env.namespace());
    let served = format!("{name}-served");
    let release = Release::serving(&scene, &served, "");
    // RBAC allows more than the chart grants, so that only the policies deny.
    let subject = format!("--serviceaccount={name}:{name}");
    let wide = [(name, MANAGER_ROLE), (&*release.elsewhere, "--clusterrole=cluster-admin")];
    for (namespace, role) in wide {
        env.kubectl(&["create", "rolebinding", "wide", role, &subject, "-n", namespace]).unwrap();
    }
    for namespace in [name, &served, &release.elsewhere] {
        wait_until_granted(env, (name, name), namespace, &finalizers_of_daemonjobs());
    }

    let inside = release.requests(name, &served);
    inside.wait_until_denied(&pod("new", &json!({})));
    for object in created(&scene) {
        inside.create(&object, ALLOWED);
    }
    inside.create(&event(&served), ALLOWED);
    inside.check();
    for (namespace, own) in [(name, ALLOWED), (&*release.elsewhere, ONLY_SERVED)] {
        let outside = release.requests(name, namespace);
        outside.wait_until_denied(&pod("new", &scene.pod_of_job()));
        for object in created(&scene) {
            outside.create(&object, ONLY_SERVED);
        }
        outside.create(&event(namespace), own);
        outside.create(&lease("new"), own);
        outside.check();
    }

    // A manager gets the Lease, serves the other namespace, and releases the Lease.
    let own = format!("{name}-manager");
    let holder = || {
        let lease = env.get("lease", &own).unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    };
    let elects = ManagerOptions { leader_elect: true, ..options(env.kube(), name) };
    let manager = Manager::start(env.kube(), &elects).unwrap();
    env.wait("the manager holds the Lease", || !holder().is_empty());
    let mut set = podset("served", &json!({}));
    (set["metadata"]["namespace"], set["spec"]["replicas"]) = (json!(served), json!(1));
    let mut apply = env.kube().kubectl();
    run::stdout_with_input(apply.args(["apply", "-f", "-"]), Some(&set.to_string())).unwrap();
    env.wait("the PodSet has its pod", || {
        let found = env.kube().get(&served, "podset", "served").ok().flatten().unwrap_or_default();
        found["status"]["replicas"] == 1
    });
    env.kubectl(&["delete", "podset", "served", "-n", &served, "--timeout=60s"]).unwrap();
    assert_eq!(manager.stop().unwrap(), Some(0));
    assert_eq!(holder(), "");

    // RBAC allows updates of this Lease only.
    env.apply(&lease("other")).unwrap();
    let account = release.requests(name, name);
    account.replace(&env.get("lease", &own).unwrap()).unwrap();
    let error = account.replace(&env.get("lease", "other").unwrap()).unwrap_err();
    assert!(error.contains("is forbidden: User "), "{error}");
}

#[test]
fn the_expressions_of_a_release_fit_the_types() {
    let scene = Scene::new("gr-fit");
    let _release = Release::install(&scene, &tenant_rules());
    let name = scene.env.namespace();
    let policies = ["daemonjobs", "namespaces", "nodes", "objects", "pods", "templates", "urls"];
    assert_types_fit(&scene.env, (name, name), &policies);
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
    let update = finalizers_of_daemonjobs();
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

/// The values of all rules for tenants.
fn tenant_rules() -> String {
    let tenants = "guardRails.tenants";
    format!(
        ",{tenants}.serviceAccounts=true,{tenants}.hostAccess=true,{tenants}.urlHosts={{broker.pulsar.svc,*.pulsar.svc}}"
    )
}

#[test]
fn tenants_name_only_what_they_may_use() {
    let scene = Scene::new("gr-tenants");
    let (env, name) = (&scene.env, scene.env.namespace());
    let with_account = podset("old", &json!({ "serviceAccountName": "builder" }));
    env.apply(&with_account).unwrap();
    env.apply(&consumer("old", &json!({ "adminURL": "http://elsewhere:8080" }))).unwrap();
    let release = Release::install(&scene, &tenant_rules());
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
