//! DaemonJob beside a GitOps tool that applies its manifest every 10 s.
//!
//! All nodes are simulated. The requests are those of Argo CD (server-side apply) and of Flux's
//! kustomize-controller.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use quintet_e2e::{TestEnv, answered, condition};
use quintet_localcluster::kube::Kube;
use quintet_localcluster::run;
use serde_json::{Value, json};

use crate::daemonjob::{daemonjob, is_complete};
use crate::daemonjob_rollout::check;

/// The pause between two applies.
const PERIOD: Duration = Duration::from_secs(10);

const APPROVED: &str = "dj.dysproz.io/approved";
const PAUSED: &str = "dj.dysproz.io/paused";
/// An annotation that a user sets with kubectl.
const BY_KUBECTL: &str = "example.com/by-kubectl";
/// An annotation that a user sets with kubectl and another field manager.
const BY_OTHER: &str = "example.com/by-other";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    ArgoCd,
    Flux,
}

impl Tool {
    /// The name of the DaemonJob whose manifest the tool applies.
    fn job(self) -> &'static str {
        match self {
            Self::ArgoCd => "argo-cd",
            Self::Flux => "flux",
        }
    }

    fn field_manager(self) -> &'static str {
        match self {
            Self::ArgoCd => "argocd-controller",
            Self::Flux => "kustomize-controller",
        }
    }
}

/// The manifest in Git, and the tool that applies it.
struct Source {
    kube: Kube,
    namespace: String,
    tool: Tool,
    manifest: Mutex<Value>,
    /// The numbers of applies that have begun and ended.
    begun: AtomicUsize,
    ended: AtomicUsize,
}

impl Source {
    fn kubectl(&self, args: &[&str], input: Option<&str>) -> Result<String, String> {
        let mut kubectl = self.kube.kubectl();
        kubectl.args(["-n", &self.namespace]).args(args);
        run::stdout_with_input(&mut kubectl, input).map_err(|error| format!("{error:#}"))
    }

    /// Applies the manifest once. A read and a write by another client in between fail, so all is repeated.
    fn apply(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let manifest = self.manifest.lock().unwrap().to_string();
        let field_manager = format!("--field-manager={}", self.tool.field_manager());
        answered(|| {
            if self.tool == Tool::Flux {
                self.take_over()?;
            }
            let args = ["apply", "--server-side", "--force-conflicts", &field_manager, "-f", "-"];
            self.kubectl(&args, Some(&manifest))
        });
        self.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Flux becomes the owner of all fields that kubectl has set. Its next apply removes the fields that the
    /// manifest lacks.
    fn take_over(&self) -> Result<(), String> {
        let job = self.tool.job();
        let get = ["get", "daemonjob", job, "-o", "json", "--show-managed-fields", "--ignore-not-found"];
        let text = self.kubectl(&get, None)?;
        if text.trim().is_empty() {
            return Ok(());
        }
        let object: Value = serde_json::from_str(&text).unwrap();
        let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let of_kubectl = |entry: &Value| {
            entry["subresource"].is_null()
                && entry["manager"].as_str().is_some_and(|manager| manager.starts_with("kubectl"))
        };
        let (taken, mut kept): (Vec<Value>, Vec<Value>) = entries.into_iter().partition(of_kubectl);
        if taken.is_empty() {
            return Ok(());
        }
        let name = self.tool.field_manager();
        let own = kept.iter_mut().find(|entry| entry["manager"] == name && entry["operation"] == "Apply");
        let own = own.expect("the tool has created the object");
        for entry in &taken {
            merge(&mut own["fieldsV1"], &entry["fieldsV1"]);
        }
        let patch = json!([
            { "op": "test", "path": "/metadata/resourceVersion", "value": object["metadata"]["resourceVersion"] },
            { "op": "replace", "path": "/metadata/managedFields", "value": kept },
        ]);
        let (patch, field_manager) = (patch.to_string(), format!("--field-manager={name}"));
        self.kubectl(&["patch", "daemonjob", job, "--type=json", &field_manager, "-p", &patch], None)
            .map(|_| ())
    }
}

/// Adds the fields of a set to another one.
fn merge(into: &mut Value, from: &Value) {
    let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) else { return };
    for (key, value) in from {
        merge(into.entry(key.clone()).or_insert_with(|| json!({})), value);
    }
}

/// A tool that applies its manifest again and again, until it is dropped.
struct GitOps {
    source: Arc<Source>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl GitOps {
    /// Applies the manifest at once, and then every 10 s.
    fn start(env: &TestEnv, tool: Tool, manifest: Value) -> Self {
        let source = Arc::new(Source {
            kube: env.kube().clone(),
            namespace: env.namespace().to_owned(),
            tool,
            manifest: Mutex::new(manifest),
            begun: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        });
        let (stop, stopped) = channel();
        let applies = source.clone();
        let thread = thread::spawn(move || {
            loop {
                applies.apply();
                if stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        });
        Self { source, stop: Some(stop), thread: Some(thread) }
    }

    fn job(&self) -> &'static str {
        self.source.tool.job()
    }

    /// Waits until this number of further applies have begun and ended.
    fn wait_for_applies(&self, env: &TestEnv, count: usize) {
        let until = self.source.begun.load(Ordering::SeqCst) + count;
        env.wait(&format!("{} has applied its manifest {count} times", self.job()), || {
            self.source.ended.load(Ordering::SeqCst) >= until
        });
    }
}

impl Drop for GitOps {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The number of pods that managers created for each DaemonJob.
fn created(env: &TestEnv) -> BTreeMap<String, usize> {
    let mut created = BTreeMap::new();
    for (pod, times) in env.created_pods() {
        // The name ends in the node's part and the pod number.
        let job = pod.rsplitn(3, '-').nth(2).unwrap();
        *created.entry(job.to_owned()).or_default() += times;
    }
    created
}

/// Asserts the number of created pods of each DaemonJob.
fn created_each(env: &TestEnv, tools: &[GitOps], count: usize) {
    let expected: BTreeMap<String, usize> = tools.iter().map(|tool| (tool.job().to_owned(), count)).collect();
    env.wait("the audit log has the pods", || created(env).values().sum::<usize>() >= count * tools.len());
    assert_eq!(created(env), expected);
}

fn waits_for_approval(job: &Value, rollout: u64) -> bool {
    condition(job, "Paused") == ("True".into(), "WaitsForApproval".into())
        && job["status"]["rollout"]["number"] == rollout
}

/// A manifest reverts neither a pause nor an approval, and approves no wave of the next template.
#[test]
fn gitops_reverts_no_pause_and_no_approval() {
    let env = TestEnv::new("dg-applies");
    let nodes = env.nodes(["a", "b", "c", "d", "e"]).len();
    let _manager = env.manager("daemonjob");
    let spec = json!({ "failurePolicy": { "type": "Pause" },
        "rollout": { "waveSizes": [1, 3], "approval": "FirstWave" } });
    let tools =
        [Tool::ArgoCd, Tool::Flux].map(|tool| GitOps::start(&env, tool, daemonjob(&env, tool.job(), &spec)));
    for tool in &tools {
        env.wait_for("daemonjob", tool.job(), "the first wave waits for its approval", |job| {
            waits_for_approval(job, 1)
        });
    }
    created_each(&env, &tools, 1);

    for tool in &tools {
        let name = format!("daemonjob/{}", tool.job());
        check(&env, &format!("pause {name} --reason=incident-7"), 0, &["paused"]);
        check(&env, &format!("approve {name} --ahead"), 0, &["wave 1 of rollout 1 is approved"]);
        env.kubectl(&["annotate", &name, &format!("{BY_KUBECTL}=yes")]).unwrap();
        env.kubectl(&["annotate", &name, &format!("{BY_OTHER}=yes"), "--field-manager=incident"]).unwrap();
    }
    for tool in &tools {
        tool.wait_for_applies(&env, 2);
        let job = env.wait_for("daemonjob", tool.job(), "it is paused", |job| {
            condition(job, "Paused") == ("True".into(), "PausedByAnnotation".into())
        });
        let annotations = &job["metadata"]["annotations"];
        assert_eq!((&annotations[PAUSED], &annotations[APPROVED]), (&json!("incident-7"), &json!("1/1")));
        // The documents recommend another field manager for this reason.
        let is_flux = tool.source.tool == Tool::Flux;
        assert_eq!(annotations[BY_KUBECTL].is_null(), is_flux, "{annotations:#}");
        assert_eq!(annotations[BY_OTHER], "yes", "{annotations:#}");
    }
    created_each(&env, &tools, 1);

    for tool in &tools {
        check(&env, &format!("resume daemonjob/{}", tool.job()), 0, &["resumed"]);
    }
    for tool in &tools {
        env.wait_for("daemonjob", tool.job(), "it is complete", |job| {
            is_complete(job) && job["status"]["succeeded"] == nodes
        });
    }
    created_each(&env, &tools, nodes);

    for tool in &tools {
        let mut manifest = tool.source.manifest.lock().unwrap();
        manifest["spec"]["template"]["metadata"]["annotations"]["version"] = json!("2");
    }
    for tool in &tools {
        env.wait_for("daemonjob", tool.job(), "the first wave waits for another approval", |job| {
            waits_for_approval(job, 2)
        });
    }
    for tool in &tools {
        tool.wait_for_applies(&env, 1);
        let job = env.get("daemonjob", tool.job()).unwrap();
        assert_eq!(job["metadata"]["annotations"][APPROVED], "1/1");
        assert!(waits_for_approval(&job, 2) && job["status"]["succeeded"] == 1, "{:#}", job["status"]);
    }
    created_each(&env, &tools, nodes + 1);
}
