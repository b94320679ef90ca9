//! The guard rails of the chart, on requests with the manager's own token. Every other end-to-end test shows that the
//! managers do their work under the guard rails.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;

use quintet_e2e::audit::Audit;
use quintet_e2e::{TestEnv, answered, condition};
use quintet_localcluster::kube::Kube;
use quintet_localcluster::{manager, run};
use serde_json::{Value, json};

use crate::chart::daemonjob;

/// The message of a policy that denies a request.
pub(crate) const DENIED: &str = "denied request: ";
/// The finalizer of a DaemonJob's pods.
pub(crate) const LEDGER: &str = "dj.dysproz.io/ledger";
/// The expectation that a request is allowed.
pub(crate) const ALLOWED: Option<&str> = None;

/// A pod that no node fits.
pub(crate) fn pod(name: &str, metadata: &Value) -> Value {
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": { "nodeSelector": { "e2e": "none" }, "containers": [{ "name": "c", "image": "busybox" }] } });
    pod["metadata"]["name"] = json!(name);
    pod
}

/// A Deployment without pods.
pub(crate) fn deployment(name: &str, owners: &Value) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name, "ownerReferences": owners },
        "spec": { "replicas": 0, "selector": { "matchLabels": { "of": name } }, "template": {
            "metadata": { "labels": { "of": name } }, "spec": pod("", &json!({}))["spec"] } } })
}

pub(crate) fn revision(name: &str, owners: &Value) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1, "data": {},
        "metadata": { "name": name, "ownerReferences": owners } })
}

/// A namespace with an object of each kind, and objects that belong to them or to others. No manager serves it.
pub(crate) struct Scene {
    pub env: TestEnv,
    /// A controller reference to the DaemonJob.
    pub job: Value,
    /// A controller reference to the PodSet.
    pub set: Value,
    /// A controller reference to the PulsarConsumer.
    pub consumer: Value,
}

impl Scene {
    pub fn new(test: &str) -> Self {
        let env = TestEnv::new(test);
        let mut job = daemonjob("job");
        job["metadata"] = json!({ "name": "job" });
        job["spec"]["suspend"] = json!(true);
        let set = json!({ "apiVersion": "batch.tutorial.kubebuilder.io/v1", "kind": "PodSet",
            "metadata": { "name": "set" }, "spec": { "replicas": 0 } });
        let consumer = json!({ "apiVersion": "pulsar.pulsarconsumer.krvarma.com/v1", "kind": "PulsarConsumer",
            "metadata": { "name": "consumer" },
            "spec": { "serverAddress": "pulsar://broker:6650", "topic": "t", "subscriptionName": "s", "replicas": 0 } });
        let owner = |object: &Value| {
            env.apply(object).unwrap();
            let (kind, name) =
                (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
            let uid = env.get(&kind.to_lowercase(), name).unwrap()["metadata"]["uid"].clone();
            json!({ "apiVersion": object["apiVersion"], "kind": kind, "name": name, "uid": uid, "controller": true })
        };
        let (job, set, consumer) = (owner(&job), owner(&set), owner(&consumer));
        Self { env, job, set, consumer }
    }

    /// The metadata of a pod of the DaemonJob, with labels, annotations and a finalizer of others.
    pub fn pod_of_job(&self) -> Value {
        json!({
            "labels": { "quintet.dev/kind": "DaemonJob", "daemonjob": "job", "dj.dysproz.io/daemonjob-uid": self.job["uid"],
                "dj.dysproz.io/pod-number": "1", "team": "a" },
            "annotations": { "dj.dysproz.io/run": "1", "note": "a" },
            "finalizers": ["example.com/other", LEDGER],
            "ownerReferences": [self.job],
        })
    }

    /// The metadata of a pod of the PodSet, with an annotation of OpenShift.
    pub fn pod_of_set(&self) -> Value {
        let labels = json!({ "quintet.dev/kind": "PodSet", "batch.tutorial.kubebuilder.io/podset-uid": self.set["uid"], "app": "set" });
        json!({ "labels": labels, "annotations": { "openshift.io/scc": "restricted-v2" }, "ownerReferences": [self.set] })
    }

    /// A ledger of the DaemonJob.
    pub fn ledger(&self, name: &str) -> Value {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": {},
            "metadata": { "name": name, "labels": { LEDGER: "v2" }, "ownerReferences": [self.job] } })
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // No manager removes the finalizers, and the namespace would remain.
        let patch = r#"{"metadata":{"finalizers":null}}"#;
        for name in ["of-job", "orphan"] {
            let _ = self.env.kubectl(&["patch", "pod", name, "--type=merge", "-p", patch]);
        }
    }
}

/// Requests of a ServiceAccount in a namespace, as dry runs: the API server admits or denies them, and changes nothing.
pub(crate) struct Requests {
    kube: Kube,
    kubeconfig: PathBuf,
    namespace: String,
    failures: RefCell<Vec<String>>,
}

impl Requests {
    /// With a token of the ServiceAccount, which may be in another namespace.
    pub fn of(env: &TestEnv, (of, account): (&str, &str), namespace: &str) -> Self {
        let kube = env.kube().clone();
        let config = kube.kubeconfig_of_service_account(of, account).unwrap();
        let kubeconfig = kube.dir().join(format!("{}-{namespace}-{account}.kubeconfig", env.namespace()));
        std::fs::write(&kubeconfig, config).unwrap();
        Self { kube, kubeconfig, namespace: namespace.to_owned(), failures: RefCell::default() }
    }

    fn kubectl(&self, args: &[&str], input: Option<&Value>) -> Result<String, String> {
        let mut kubectl = Command::new(self.kube.kubectl().get_program());
        kubectl.arg("--kubeconfig").arg(&self.kubeconfig).env("KUBECACHEDIR", self.kube.cache());
        kubectl.args(["-n", &self.namespace]).args(args).arg("--dry-run=server");
        let input = input.map(Value::to_string);
        run::stdout_with_input(&mut kubectl, input.as_deref()).map_err(|error| format!("{error:#}"))
    }

    /// Compares an answer with the words of the policy that denies the request. None: the request is allowed.
    fn expect(&self, what: &str, answer: &Result<String, String>, denied: Option<&str>) {
        let is_expected = match (answer, denied) {
            (Ok(_), None) => true,
            (Err(error), Some(words)) => error.contains(DENIED) && error.contains(words),
            _ => false,
        };
        if !is_expected {
            self.failures.borrow_mut().push(format!("{what}: expected {denied:?}, got {answer:?}"));
        }
    }

    /// A JSON patch if the patch is a list, otherwise a merge patch.
    pub fn patch(&self, (kind, name): (&str, &str), patch: &Value, denied: Option<&str>) {
        let form = if patch.is_array() { "--type=json" } else { "--type=merge" };
        let text = patch.to_string();
        let answer = self.kubectl(&["patch", kind, name, form, "-p", &text], None);
        self.expect(&format!("patch {kind} {name} {text}"), &answer, denied);
    }

    pub fn create(&self, object: &Value, denied: Option<&str>) {
        let answer = self.kubectl(&["create", "-f", "-"], Some(object));
        self.expect(&format!("create {object}"), &answer, denied);
    }

    /// Replaces an object, as a manager renews its Lease.
    pub fn replace(&self, object: &Value) -> Result<String, String> {
        self.kubectl(&["replace", "-f", "-"], Some(object))
    }

    pub fn delete(&self, (kind, name): (&str, &str), denied: Option<&str>) {
        let answer = self.kubectl(&["delete", kind, name, "--wait=false"], None);
        self.expect(&format!("delete {kind} {name}"), &answer, denied);
    }

    /// Waits until the policies of a release are in effect, by a creation that they deny.
    pub fn wait_until_denied(&self, object: &Value) {
        let denied = || match self.kubectl(&["create", "-f", "-"], Some(object)) {
            Err(error) if error.contains(DENIED) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        answered(denied);
    }

    /// Fails if an answer was not the expected one.
    pub fn check(self) {
        let failures = self.failures.into_inner();
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

fn remove(path: &str) -> Value {
    json!({ "op": "remove", "path": path })
}

#[test]
fn the_manager_changes_only_its_metadata_of_pods() {
    let scene = Scene::new("gr-pods");
    let (env, set) = (&scene.env, &scene.set);
    let replicas = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": { "name": "foreign" },
        "spec": { "replicas": 1, "selector": { "matchLabels": { "of": "foreign" } }, "template": {
            "metadata": { "labels": { "of": "foreign" } }, "spec": pod("", &json!({}))["spec"] } } });
    for object in [
        pod("of-job", &scene.pod_of_job()),
        pod("of-set", &scene.pod_of_set()),
        pod("bare", &json!({ "labels": { "app": "bare" } })),
        pod("orphan", &json!({ "labels": { "quintet.dev/kind": "DaemonJob" }, "finalizers": [LEDGER] })),
        replicas,
    ] {
        env.apply(&object).unwrap();
    }
    env.wait("the ReplicaSet has a pod", || env.list("pods", "of=foreign").len() == 1);
    let foreign = env.list("pods", "of=foreign")[0]["metadata"]["name"].as_str().unwrap().to_owned();

    let manager = Requests::of(env, (manager::NAMESPACE, "quintet"), env.namespace());
    manager.wait_until_denied(&pod("new", &json!({})));
    let (own, strangers) = ("may create only pods", "may change and delete only pods");
    let spec = "only the metadata of a pod";
    let image = json!([{ "op": "replace", "path": "/spec/containers/0/image", "value": "evil" }]);
    let label = |key: &str, value: Value| json!({ "metadata": { "labels": { key: value } } });
    let annotation = |key: &str, value: Value| json!({ "metadata": { "annotations": { key: value } } });

    manager.create(&pod("new", &scene.pod_of_job()), ALLOWED);
    manager.create(&pod("new", &scene.pod_of_set()), ALLOWED);
    for owner in [
        json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "foreign", "uid": "u", "controller": true }),
        json!({ "apiVersion": "dj.dysproz.io.example/v1", "kind": "DaemonJob", "name": "job", "uid": "u", "controller": true }),
        json!({ "apiVersion": "dj.dysproz.io/v1", "kind": "DaemonJob", "name": "job", "uid": "u", "controller": false }),
    ] {
        manager.create(&pod("new", &json!({ "ownerReferences": [owner] })), Some(own));
    }

    // Another image, on each pod.
    manager.patch(("pod", "of-job"), &image, Some(spec));
    manager.patch(("pod", "of-set"), &image, Some(spec));
    manager.patch(("pod", "bare"), &image, Some(strangers));
    manager.patch(("pod", &foreign), &image, Some(strangers));

    // Labels and annotations.
    manager.patch(("pod", "of-job"), &label("dj.dysproz.io/pod-number", json!("2")), ALLOWED);
    manager.patch(("pod", "of-job"), &label("quintet.dev/kind", Value::Null), ALLOWED);
    manager.patch(("pod", "of-job"), &label("team", json!("b")), Some("Quintet's labels"));
    manager.patch(("pod", "of-job"), &label("team", Value::Null), Some("Quintet's labels"));
    manager.patch(("pod", "of-set"), &label("app", json!("other")), Some("Quintet's labels"));
    manager.patch(("pod", "of-job"), &annotation("dj.dysproz.io/deleted-for", json!("Suspend")), ALLOWED);
    manager.patch(("pod", "of-job"), &annotation("note", json!("b")), Some("Quintet's annotations"));
    manager.patch(("pod", "of-set"), &annotation("note", json!("b")), Some("Quintet's annotations"));
    // OpenShift adds or changes annotations of its own in a request of the manager.
    let mut admitted = annotation("dj.dysproz.io/deleted-for", json!("Suspend"));
    admitted["metadata"]["annotations"]["openshift.io/scc"] = json!("restricted-v2");
    admitted["metadata"]["annotations"]["security.openshift.io/validated-scc-subject-type"] = json!("user");
    manager.patch(("pod", "of-job"), &admitted, ALLOWED);
    manager.patch(("pod", "of-set"), &annotation("openshift.io/scc", json!("nonroot-v2")), ALLOWED);
    manager.patch(
        ("pod", "of-set"),
        &annotation("myopenshift.io/scc", json!("x")),
        Some("Quintet's annotations"),
    );
    manager.patch(("pod", "of-set"), &label("openshift.io/scc", json!("x")), Some("Quintet's labels"));
    for stranger in ["bare", "orphan", &*foreign] {
        manager.patch(("pod", stranger), &annotation("openshift.io/scc", json!("x")), Some(strangers));
        manager.patch(("pod", stranger), &label("quintet.dev/kind", json!("PodSet")), Some(strangers));
        manager.patch(("pod", stranger), &annotation("dj.dysproz.io/run", json!("1")), Some(strangers));
        manager.delete(("pod", stranger), Some(strangers));
    }

    // Finalizers.
    manager.patch(("pod", "of-job"), &json!([remove("/metadata/finalizers/1")]), ALLOWED);
    manager.patch(("pod", "orphan"), &json!([remove("/metadata/finalizers/0")]), ALLOWED);
    manager.patch(("pod", "of-job"), &json!([remove("/metadata/finalizers/0")]), Some("no finalizer"));
    manager.patch(
        ("pod", "of-set"),
        &json!({ "metadata": { "finalizers": [LEDGER] } }),
        Some("no finalizer"),
    );

    // A mutating webhook may add labels and annotations to the request that removes the finalizer.
    let put = |path: &str| json!({ "op": "add", "path": path, "value": "x" });
    let released = |at: usize, change: Value| json!([remove(&format!("/metadata/finalizers/{at}")), change]);
    manager.patch(("pod", "of-job"), &released(1, put("/metadata/labels/added")), ALLOWED);
    manager.patch(("pod", "of-job"), &released(1, put("/metadata/annotations/added")), ALLOWED);
    manager.patch(("pod", "orphan"), &released(0, put("/metadata/labels/added")), ALLOWED);
    for (field, key) in [("labels", "team"), ("annotations", "note")] {
        let (path, denied) = (format!("/metadata/{field}/{key}"), format!("Quintet's {field}"));
        manager.patch(("pod", "of-job"), &released(1, put(&path)), Some(&denied));
        manager.patch(("pod", "of-job"), &released(1, remove(&path)), Some(&denied));
    }
    manager.patch(("pod", "of-job"), &released(0, put("/metadata/labels/added")), Some("Quintet's labels"));
    manager.patch(("pod", "of-job"), &label("added", json!("x")), Some("Quintet's labels"));
    manager.patch(("pod", "of-job"), &annotation("added", json!("x")), Some("Quintet's annotations"));
    manager.patch(("pod", "orphan"), &label("added", json!("x")), Some(strangers));
    for key in ["quintet.dev~1kind", "dj.dysproz.io~1pod-number"] {
        let change = put(&format!("/metadata/labels/{key}"));
        manager.patch(("pod", "orphan"), &released(0, change), Some(strangers));
    }

    // Owner references: a PodSet adopts and releases pods, and a DaemonJob does not.
    let adoption =
        json!({ "metadata": { "labels": { "quintet.dev/kind": "PodSet" }, "ownerReferences": [set] } });
    manager.patch(("pod", "bare"), &adoption, ALLOWED);
    manager.patch(
        ("pod", "bare"),
        &json!({ "metadata": { "ownerReferences": [scene.job] } }),
        Some(strangers),
    );
    let relabelled = json!({ "metadata": { "labels": { "app": "set" }, "ownerReferences": [set] } });
    manager.patch(("pod", "bare"), &relabelled, Some("Quintet's labels"));
    manager.patch(("pod", &foreign), &adoption, Some(strangers));
    manager.patch(("pod", "of-set"), &json!([remove("/metadata/ownerReferences/0")]), ALLOWED);
    manager.patch(
        ("pod", "of-job"),
        &json!([remove("/metadata/ownerReferences/0")]),
        Some("references of PodSets"),
    );

    manager.delete(("pod", "of-job"), ALLOWED);
    manager.delete(("pod", "of-set"), ALLOWED);
    manager.check();
}

#[test]
fn the_manager_writes_only_objects_of_its_kinds() {
    let scene = Scene::new("gr-objects");
    let env = &scene.env;
    let map =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "foreign" }, "data": {} });
    for object in [
        scene.ledger("own"),
        map,
        deployment("own", &json!([scene.consumer])),
        deployment("foreign", &json!([])),
        revision("own", &json!([scene.set])),
        revision("foreign", &json!([scene.job])),
        revision("lost", &json!([])),
    ] {
        env.apply(&object).unwrap();
    }
    let manager = Requests::of(env, (manager::NAMESPACE, "quintet"), env.namespace());
    manager.wait_until_denied(&deployment("new", &json!([])));
    let (write, change) = ("may write only objects", "may change and delete only objects");
    let data = json!({ "data": { "a": "b" } });
    let seizure = json!({ "metadata": { "labels": { LEDGER: "v2" }, "ownerReferences": [scene.job] } });

    manager.create(&scene.ledger("new"), ALLOWED);
    let mut unlabelled = scene.ledger("new");
    unlabelled["metadata"]["labels"] = json!({});
    manager.create(&unlabelled, Some("only ConfigMaps with the label dj.dysproz.io/ledger"));
    let mut unowned = scene.ledger("new");
    unowned["metadata"]["ownerReferences"] = json!([scene.set]);
    manager.create(&unowned, Some(write));
    manager.patch(("configmap", "own"), &data, ALLOWED);
    manager.patch(("configmap", "own"), &json!([remove("/metadata/ownerReferences/0")]), Some(write));
    manager.patch(("configmap", "foreign"), &data, Some(write));
    manager.patch(("configmap", "foreign"), &seizure, Some(change));

    let replicas = json!({ "spec": { "replicas": 1 } });
    manager.create(&deployment("new", &json!([scene.consumer])), ALLOWED);
    manager.create(&deployment("new", &json!([scene.set])), Some(write));
    manager.patch(("deployment", "own"), &replicas, ALLOWED);
    manager.patch(("deployment", "foreign"), &replicas, Some(write));
    let seizure = json!({ "metadata": { "ownerReferences": [scene.consumer] } });
    manager.patch(("deployment", "foreign"), &seizure, Some(change));

    let number = json!({ "revision": 2 });
    manager.create(&revision("new", &json!([scene.set])), ALLOWED);
    manager.create(&revision("new", &json!([])), Some(write));
    manager.patch(("controllerrevision", "own"), &number, ALLOWED);
    manager.patch(("controllerrevision", "foreign"), &number, Some(write));
    // A PodSet takes back a revision that lost its owner.
    let owned = json!({ "metadata": { "ownerReferences": [scene.set] } });
    manager.patch(("controllerrevision", "lost"), &owned, ALLOWED);
    manager.patch(("controllerrevision", "foreign"), &owned, Some(change));
    manager.delete(("controllerrevision", "own"), ALLOWED);
    manager.delete(("controllerrevision", "foreign"), Some(change));
    manager.delete(("controllerrevision", "lost"), Some(change));
    manager.check();
}

#[test]
fn the_manager_marks_nodes_with_allowed_keys_only() {
    let env = TestEnv::new("gr-nodes");
    let node = env.node("a");
    for key in ["example.com/raw", "other.example/raw"] {
        env.kubectl(&["taint", "node", &node, &format!("{key}=:NoSchedule")]).unwrap();
    }
    let object = env.get("node", &node).unwrap();
    let at = |key: &str| {
        let taints = object["spec"]["taints"].as_array().unwrap();
        format!("/spec/taints/{}", taints.iter().position(|taint| taint["key"] == key).unwrap())
    };
    let manager = Requests::of(&env, (manager::NAMESPACE, "quintet"), env.namespace());
    let metadata = |field: &str, key: &str| json!({ "metadata": { field: { key: "x" } } });
    let on = ("node", &*node);
    // The chart of the tests allows example.com/.
    manager.patch(on, &metadata("labels", "example.com/ready"), ALLOWED);
    manager.patch(
        on,
        &metadata("labels", "node-role.kubernetes.io/control-plane"),
        Some("only labels of Nodes"),
    );
    manager.patch(on, &json!({ "metadata": { "labels": { "env": null } } }), Some("only labels of Nodes"));
    manager.patch(on, &metadata("annotations", "dj.dysproz.io/marked-u"), ALLOWED);
    manager.patch(on, &metadata("annotations", "note"), Some("only annotations of Nodes"));
    manager.patch(on, &json!([remove(&at("example.com/raw"))]), ALLOWED);
    manager.patch(on, &json!([remove(&at("other.example/raw"))]), Some("only taints of Nodes"));
    let taint = json!({ "key": "example.com/new", "effect": "NoExecute" });
    let add = json!([{ "op": "add", "path": "/spec/taints/-", "value": taint }]);
    manager.patch(on, &add, Some("only taints of Nodes"));
    let rest = "only labels, annotations and taints of Nodes";
    manager.patch(on, &json!({ "spec": { "unschedulable": true } }), Some(rest));
    manager.patch(on, &json!({ "metadata": { "finalizers": ["example.com/other"] } }), Some(rest));
    manager.check();
}

/// The manager's flag allows more than the chart's value.
#[test]
fn a_denied_change_names_the_policy() {
    let env = TestEnv::new("gr-denied");
    env.expect_denials();
    let audit = Audit::of(env.cluster());
    let node = env.node("a");
    let flag = format!("--daemon-job-node-marks={}=other.example/", env.namespace());
    let _manager = env.manager_with("manager", "daemonjob", &[&flag]);
    let marks = json!({ "onSuccess": { "labels": { "other.example/ready": "yes" } } });
    env.apply(&crate::daemonjob::daemonjob(&env, "marks", &marks)).unwrap();
    let job = env.wait_for("daemonjob", "marks", "it reports the denial", |job| {
        condition(job, "MarkRefused") == ("True".into(), "FailedWrite".into())
    });
    let policy = "ValidatingAdmissionPolicy 'quintet-nodes.quintet-system'";
    let is_named = |text: &str| text.contains(policy) && text.contains(DENIED);
    assert!(is_named(&job["status"]["conditions"].to_string()), "{job:#}");
    // The runbook of QuintetForbidden finds the Event.
    env.wait("an Event names the policy", || {
        is_named(&env.kubectl(&["get", "events", "-o", "custom-columns=MESSAGE:.message"]).unwrap())
    });
    // Another test fails when it is dropped.
    let denials = audit.denials(|one| one.name == node);
    assert!(denials.iter().any(|denial| denial.contains(policy)), "{denials:?}");
}

/// Fails unless the expressions of each policy of a release fit the types of the objects. `policies` are the ends of their names.
pub(crate) fn assert_types_fit(env: &TestEnv, (release, namespace): (&str, &str), policies: &[&str]) {
    let of_release = |policy: &Value| {
        let name = policy["metadata"]["name"].as_str()?.strip_suffix(&format!(".{namespace}"))?;
        Some(name.strip_prefix(&format!("{release}-"))?.to_owned())
    };
    let mut found: Vec<_> =
        env.list("validatingadmissionpolicies", "").iter().filter_map(of_release).collect();
    found.sort();
    assert_eq!(found, policies, "the policies of {release}");
    for policy in policies {
        types_fit(env, &format!("{release}-{policy}.{namespace}"));
    }
}

/// kube-controller-manager checks no types of a rule for all versions. So this function names the version in a copy without a
/// binding, and adds a wrong expression, whose warning lists each type that was checked.
fn types_fit(env: &TestEnv, policy: &str) {
    assert!(env.get("validatingadmissionpolicybinding", policy).is_some(), "{policy} has a binding");
    let mut spec = env.get("validatingadmissionpolicy", policy).unwrap()["spec"].clone();
    let mut types = Vec::new();
    for rule in spec["matchConstraints"]["resourceRules"].as_array_mut().unwrap() {
        rule["apiVersions"] = json!(["v1"]);
        // The cluster does not serve KEDA's types.
        if rule["apiGroups"] != json!(["keda.sh"]) {
            let resources = rule["resources"].as_array().unwrap().iter().filter_map(Value::as_str);
            let objects = resources.filter(|resource| !resource.contains('/'));
            types.extend(objects.map(|resource| format!("kind={}:", resource.trim_end_matches('s'))));
        }
    }
    let validations = spec["validations"].as_array_mut().unwrap();
    let wrong = format!("spec.validations[{}].expression", validations.len());
    validations.push(json!({ "expression": "object.mistake == 'x'" }));
    let copy = format!("{}-{policy}", env.namespace());
    env.apply(&json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": copy }, "spec": spec }))
        .unwrap();
    let checked = env.wait_for("validatingadmissionpolicy", &copy, "its types are checked", |policy| {
        policy["metadata"]["generation"].is_i64()
            && policy["status"]["observedGeneration"] == policy["metadata"]["generation"]
    });
    env.kubectl(&["delete", "validatingadmissionpolicy", &copy]).unwrap();
    let warnings = &checked["status"]["typeChecking"]["expressionWarnings"];
    let fields: Vec<_> =
        warnings.as_array().into_iter().flatten().map(|warning| &warning["fieldRef"]).collect();
    assert_eq!(fields, [&json!(wrong)], "{policy}: {warnings:#}");
    let text = warnings[0]["warning"].as_str().unwrap().to_lowercase();
    assert!(!types.is_empty(), "{policy}");
    for one in types {
        assert!(text.contains(&one), "{policy} is not checked with {one} {text}");
    }
}

#[test]
fn the_expressions_fit_the_types() {
    let env = TestEnv::new("gr-types");
    assert_types_fit(&env, ("quintet", manager::NAMESPACE), &["daemonjobs", "nodes", "objects", "pods"]);
}
