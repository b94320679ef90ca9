//! The chart applied by tools that ignore Helm hooks. They create the uninstall Job beside the manager.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use quintet_e2e::shell::Shell;
use quintet_e2e::workspace;
use quintet_localcluster::{documents, gitops, run};
use serde_json::{Value, json};

use crate::chart::{NAMESPACE, Site, chart, forced, held, play_the_hook, wait};

/// The manager is a local process: no node matches the pods of the Deployment, and the test plays the kubelet of the Job.
const VALUES: &str =
    "replicas=1,nodeSelector.kubelet=played,tests.enabled=false,uninstallHook.backoffLimit=0";

/// Runs the Job that a tool has just created, and asserts that it changes nothing and names the reason. Deletes the Job.
fn spares_the_manager(site: &Site, reason: &str) {
    let deployment = || site.get(NAMESPACE, "deployment", "quintet");
    let generation = deployment()["metadata"]["generation"].clone();
    let (code, text) = play_the_hook(site, || ());
    assert_eq!(code, Some(1), "{text}");
    let because = format!("nothing was changed, because {reason}");
    for part in [
        because.as_str(),
        "Set the chart's value uninstallHook.enabled to false",
        "quintet uninstall --manager quintet-system/quintet --lease-namespace quintet-system --lease-name quintet-manager",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let now = deployment();
    assert_eq!((&now["spec"]["replicas"], &now["metadata"]["generation"]), (&json!(1), &generation));
    assert_eq!(held(site, "greetings", "farewell"), 1);
    let lease = site.get(NAMESPACE, "lease", "quintet-manager");
    assert!(lease["spec"]["holderIdentity"].as_str().is_some_and(|holder| !holder.is_empty()), "{lease:#}");
    delete_job(site);
}

fn delete_job(site: &Site) {
    site.kubectl(&["delete", "job", "quintet-uninstall", "-n", NAMESPACE, "--timeout=60s"], None).unwrap();
    wait("the Job's pods are gone", || {
        let pods = site.list("pods");
        pods.iter().all(|pod| pod["metadata"]["labels"]["app.kubernetes.io/name"] != "quintet-uninstall")
    });
}

/// The chart as `helmCharts` of a kustomization renders it.
fn kustomized(site: &Site) -> String {
    let folder = site.cluster().kube().dir().join("kustomized");
    fs::create_dir_all(folder.join("charts")).unwrap();
    // kustomize reads no files outside its folder.
    run::stdout(Command::new("cp").args(["-r", &chart()]).arg(folder.join("charts"))).unwrap();
    let values = json!({ "replicas": 1, "nodeSelector": { "kubelet": "played" }, "tests": { "enabled": false },
        "uninstallHook": { "backoffLimit": 0 } });
    // JSON is YAML.
    let kustomization = json!({ "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "helmCharts": [{ "name": "quintet", "releaseName": "quintet", "namespace": NAMESPACE, "valuesInline": values }] });
    fs::write(folder.join("kustomization.yaml"), kustomization.to_string()).unwrap();
    let helm = site.cluster().helm().get_program().to_string_lossy().into_owned();
    let folder = folder.display().to_string();
    site.kubectl(&["kustomize", "--enable-helm", "--helm-command", &helm, &folder], None).unwrap()
}

/// Creates a Greeting, and waits until a manager has set its finalizer.
fn apply_held_greeting(site: &Site) {
    let greeting = json!({ "apiVersion": "example.com/v1", "kind": "Greeting",
        "metadata": { "name": "hello", "namespace": "default" }, "spec": { "message": "Hi" } });
    wait("the Greeting's type is served", || {
        site.kubectl(&["apply", "-f", "-"], Some(&greeting.to_string())).is_ok()
    });
    wait("the Greeting has its finalizer", || held(site, "greetings", "farewell") == 1);
}

#[test]
fn the_uninstall_job_spares_a_running_manager() {
    let site = Site::new("ch-applied", 1);
    site.kubectl(&["create", "namespace", NAMESPACE], None).unwrap();
    let template = || site.helm(&["template", "quintet", &chart(), "--set", VALUES]).unwrap();
    assert!(template().contains("helm.sh/hook: pre-delete"));
    site.kubectl(&["apply", "-f", "-"], Some(&template())).unwrap();
    let manager = site.manager();
    apply_held_greeting(&site);
    spares_the_manager(&site, "Deployment quintet is not part of a Helm release");

    // kustomize renders the hook too. The Deployment is older than the Job by now.
    let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    site.kubectl(&apply, Some(&kustomized(&site))).unwrap();
    spares_the_manager(&site, "Deployment quintet is not part of a Helm release");

    // A release that kubectl has taken over keeps the marks of Helm.
    let install = ["install", "quintet", &chart(), "--take-ownership", "--set", VALUES];
    site.helm(&[&install[..], forced()].concat()).unwrap();
    site.kubectl(&["apply", "-f", "-"], Some(&template())).unwrap();
    spares_the_manager(&site, "`kubectl apply` created the Job");
    site.kubectl(&apply, Some(&template())).unwrap();
    spares_the_manager(&site, "kubectl created the Job, but did not install the release");

    // A tool can create the Job without a change of the Deployment.
    let documents = template();
    let job = documents.split("\n---\n").find(|document| document.contains("\nkind: Job\n")).unwrap();
    site.kubectl(&["create", "-f", "-"], Some(job)).unwrap();
    spares_the_manager(&site, "kubectl-create created the Job, but did not install the release");

    // Helm itself still uninstalls the release.
    thread::scope(|scope| {
        let uninstall = scope.spawn(|| site.helm(&["uninstall", "quintet", "--timeout", "4m"]));
        let (code, text) = play_the_hook(&site, || assert_eq!(manager.stop().unwrap(), Some(0)));
        assert_eq!(code, Some(0), "{text}");
        uninstall.join().unwrap().unwrap();
    });
    assert_eq!(held(&site, "greetings", "farewell"), 0);
    assert_eq!(site.remains(), [""; 0]);
}

/// The Application of the sample, or null.
fn application(site: &Site) -> Value {
    let get = ["get", "application", "quintet", "-n", "argocd", "-o", "json", "--ignore-not-found"];
    serde_json::from_str(&site.kubectl(&get, None).unwrap()).unwrap_or_default()
}

/// The test plays Argo CD, which applies the chart with the values of the sample, and removes its finalizer.
#[test]
fn deletes_an_application_of_argo_cd() {
    let site = Site::new("ch-argo-cd", 1);
    gitops::install_definitions(site.cluster().kube()).unwrap();
    for namespace in [NAMESPACE, "argocd"] {
        site.kubectl(&["create", "namespace", namespace], None).unwrap();
    }
    let sample = workspace().join("samples/gitops/argo-cd.yaml").display().to_string();
    site.kubectl(&["apply", "-n", "argocd", "-f", &sample], None).unwrap();
    assert!(application(&site)["spec"]["syncPolicy"]["automated"].is_object());
    let values = application(&site)["spec"]["source"]["helm"]["valuesObject"].clone();
    let file = site.cluster().kube().dir().join("argo-cd.json");
    fs::write(&file, values.to_string()).unwrap();
    let file = file.display().to_string();
    let set = ["--set", "replicas=1,nodeSelector.kubelet=played"];
    let template = ["template", "quintet", &chart(), "--values", &file];
    let rendered = site.helm(&[&template[..], &set[..]].concat()).unwrap();
    site.kubectl(&["apply", "-f", "-"], Some(&rendered)).unwrap();
    let manager = site.manager();
    apply_held_greeting(&site);

    let page = workspace().join("docs/gitops.md");
    let steps = documents::commands_of_section(&page, "### Delete the Application");
    let [stop_sync, uninstall, delete] = &steps[..] else { panic!("{steps:?}") };
    let shell = Shell::new(site.cluster(), "default");
    shell.stdout(stop_sync);
    assert!(application(&site)["spec"]["syncPolicy"]["automated"].is_null());
    thread::scope(|scope| {
        let uninstall = scope.spawn(|| shell.stdout(&format!("{uninstall} --yes")));
        // Scaling the Deployment stops its managers. The test stops its own once the command waits.
        thread::sleep(Duration::from_secs(1));
        assert_eq!(manager.stop().unwrap(), Some(0));
        uninstall.join().unwrap();
    });
    assert_eq!(held(&site, "greetings", "farewell"), 0);
    assert_eq!(site.get(NAMESPACE, "deployment", "quintet")["spec"]["replicas"], 0);
    thread::scope(|scope| {
        let delete = scope.spawn(|| shell.stdout(delete));
        wait("the Application is being deleted", || {
            application(&site)["metadata"]["deletionTimestamp"].is_string()
        });
        let released = r#"{"metadata":{"finalizers":null}}"#;
        let patch = ["patch", "application", "quintet", "-n", "argocd", "--type=merge", "-p", released];
        site.kubectl(&patch, None).unwrap();
        delete.join().unwrap();
    });
    assert_eq!(application(&site), Value::Null);
}
