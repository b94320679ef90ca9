//! The guard rails of the chart, on requests of users: who may change what the manager reads of a DaemonJob's pods and
//! ledgers.

use quintet_e2e::TestEnv;
use quintet_localcluster::{manager, run};
use serde_json::{Value, json};

use crate::guard_rails::{ALLOWED, LEDGER, Requests, Scene, pod};

/// Waits until a granted permission is in effect: the attributes of a SubjectAccessReview, without the namespace.
pub(crate) fn wait_until_granted(
    env: &TestEnv,
    (of, account): (&str, &str),
    namespace: &str,
    attributes: &Value,
) {
    let user = format!("system:serviceaccount:{of}:{account}");
    let mut review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": { "user": user, "resourceAttributes": attributes } });
    review["spec"]["resourceAttributes"]["namespace"] = json!(namespace);
    env.wait(&format!("{user} has the permission {attributes}"), || {
        let mut kubectl = env.kube().kubectl();
        kubectl.args(["create", "-f", "-", "-o", "jsonpath={.status.allowed}"]);
        let allowed = run::stdout_with_input(&mut kubectl, Some(&review.to_string()));
        allowed.is_ok_and(|allowed| allowed.trim() == "true")
    });
}

/// Lets a new account edit the namespace, as the cluster's role `edit` does.
pub(crate) fn editor(scene: &Scene, account: &str) {
    let env = &scene.env;
    let subject = format!("--serviceaccount={}:{account}", env.namespace());
    env.kubectl(&["create", "serviceaccount", account]).unwrap();
    env.kubectl(&["create", "rolebinding", account, "--clusterrole=edit", &subject]).unwrap();
}

/// Grants an account a rule in the namespace.
pub(crate) fn grant(scene: &Scene, account: &str, rule: &Value) {
    let name = format!("{account}-{}", rule["resources"][0].as_str().unwrap().replace('/', "-"));
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": name }, "rules": [rule] });
    let subject = json!({ "kind": "ServiceAccount", "name": account });
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": name }, "subjects": [subject],
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name } });
    scene.env.apply(&role).unwrap();
    scene.env.apply(&binding).unwrap();
}

#[test]
fn only_privileged_users_change_what_managers_read() {
    let scene = Scene::new("gr-users");
    let env = &scene.env;
    for object in
        [pod("of-job", &scene.pod_of_job()), pod("of-set", &scene.pod_of_set()), scene.ledger("own")]
    {
        env.apply(&object).unwrap();
    }
    for account in ["editor", "operator"] {
        editor(&scene, account);
    }
    let finalizers = json!({ "apiGroups": ["dj.dysproz.io"], "resources": ["daemonjobs/finalizers"], "verbs": ["update"] });
    grant(&scene, "operator", &finalizers);
    let update = json!({ "verb": "update", "group": "dj.dysproz.io", "resource": "daemonjobs", "subresource": "finalizers" });
    wait_until_granted(env, (env.namespace(), "operator"), env.namespace(), &update);

    for (account, is_privileged) in [("editor", false), ("operator", true)] {
        let user = Requests::of(env, (env.namespace(), account), env.namespace());
        if !is_privileged {
            user.wait_until_denied(&pod("new", &json!({ "ownerReferences": [scene.job] })));
        }
        let denied = |words: &'static str| Some(words).filter(|_| !is_privileged);
        let change = |field: &str, key: &str, value: Value| json!({ "metadata": { field: { key: value } } });
        let (labels, annotations) = ("Quintet's labels", "Quintet's annotations");

        for (key, value) in [
            ("dj.dysproz.io/pod-number", json!("2")),
            ("dj.dysproz.io/new", json!("x")),
            ("quintet.dev/kind", Value::Null),
            ("daemonjob", json!("other")),
        ] {
            user.patch(("pod", "of-job"), &change("labels", key, value), denied(labels));
        }
        user.patch(
            ("pod", "of-job"),
            &change("annotations", "dj.dysproz.io/run", json!("2")),
            denied(annotations),
        );
        user.patch(
            ("pod", "of-job"),
            &change("annotations", "dj.dysproz.io/run", Value::Null),
            denied(annotations),
        );
        let unowned = json!({ "metadata": { "ownerReferences": null } });
        user.patch(("pod", "of-job"), &unowned, denied("the controller of"));
        // A manager would restore the labels of a forged pod.
        let forged = json!({ "ownerReferences": [scene.job] });
        user.create(&pod("new", &forged), denied("the controller of"));
        user.create(&pod("new", &scene.pod_of_job()), denied(labels));

        user.patch(("configmap", "own"), &change("labels", LEDGER, Value::Null), denied(labels));
        user.patch(
            ("configmap", "own"),
            &change("annotations", "dj.dysproz.io/x", json!("y")),
            denied(annotations),
        );
        user.patch(("configmap", "own"), &unowned, denied("the controller of"));
        user.create(&scene.ledger("new"), denied(labels));

        // Everything else is the user's, as RBAC allows it.
        user.patch(("pod", "of-job"), &change("labels", "team", json!("b")), ALLOWED);
        user.patch(("pod", "of-job"), &change("annotations", "note", Value::Null), ALLOWED);
        user.patch(("pod", "of-job"), &json!({ "metadata": { "finalizers": null } }), ALLOWED);
        let image = json!([{ "op": "replace", "path": "/spec/containers/0/image", "value": "other" }]);
        user.patch(("pod", "of-job"), &image, ALLOWED);
        user.patch(("configmap", "own"), &json!({ "data": { "a": "b" } }), ALLOWED);
        user.patch(("configmap", "own"), &change("labels", "team", json!("b")), ALLOWED);
        user.delete(("pod", "of-job"), ALLOWED);
        user.delete(("configmap", "own"), ALLOWED);
        // A user takes a pod out of a PodSet by its label.
        user.patch(
            ("pod", "of-set"),
            &change("labels", "batch.tutorial.kubebuilder.io/podset-uid", Value::Null),
            ALLOWED,
        );
        user.patch(("pod", "of-set"), &change("labels", "quintet.dev/kind", Value::Null), ALLOWED);
        user.patch(("pod", "of-set"), &unowned, ALLOWED);
        user.check();
    }
}

/// The value `guardRails.managers` lists the account of another release.
#[test]
fn listed_managers_change_what_managers_read() {
    let scene = Scene::new("gr-listed");
    let env = &scene.env;
    env.apply(&pod("of-job", &scene.pod_of_job())).unwrap();
    let number = json!({ "metadata": { "labels": { "dj.dysproz.io/pod-number": "2" } } });
    let rule = json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"] });
    for (account, denied) in [("other-release", ALLOWED), ("unlisted", Some("Quintet's labels"))] {
        // The account lives in the namespace of the chart, and has no right but this one.
        let _ = env.kubectl(&["create", "serviceaccount", account, "-n", manager::NAMESPACE]);
        let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": { "name": account }, "rules": [rule] });
        env.apply(&role).unwrap();
        let subject = format!("--serviceaccount={}:{account}", manager::NAMESPACE);
        let role = format!("--role={account}");
        env.kubectl(&["create", "rolebinding", account, &role, &subject]).unwrap();
        let patch = json!({ "verb": "patch", "resource": "pods" });
        wait_until_granted(env, (manager::NAMESPACE, account), env.namespace(), &patch);
        let user = Requests::of(env, (manager::NAMESPACE, account), env.namespace());
        user.patch(("pod", "of-job"), &number, denied);
        user.check();
    }
}
