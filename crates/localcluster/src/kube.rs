//! A cluster as its user sees it: `kubectl` and `helm` with the right flags, and a folder for the files of
//! the cluster. The cluster is a local one or any context of the user's kubeconfig.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::cluster::binaries;
use crate::{paths, run};

/// How to reach a cluster.
#[derive(Clone, Debug)]
pub struct Kube {
    kubectl: PathBuf,
    helm: PathBuf,
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    dir: PathBuf,
}

impl Kube {
    /// A local cluster, by its admin kubeconfig.
    pub(crate) fn with_kubeconfig(bin: &Path, kubeconfig: PathBuf, dir: PathBuf) -> Self {
        Self {
            kubectl: bin.join("kubectl"),
            helm: bin.join("helm"),
            kubeconfig: Some(kubeconfig),
            context: None,
            dir,
        }
    }

    /// A context of the user's kubeconfig. Uses the user's kubectl and helm, and builds missing ones.
    pub fn with_context(context: &str) -> Result<Self> {
        let tool = |name: &str| match paths::find_program(name) {
            Some(file) => Ok(file),
            None => binaries::ensure(&[name]).and_then(|built| built.path(name)),
        };
        let folder: String =
            context.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
        let dir = paths::cache()?.join("contexts").join(folder);
        fs::create_dir_all(dir.join("logs")).with_context(|| format!("cannot create {}", dir.display()))?;
        let kube = Self {
            kubectl: tool("kubectl")?,
            helm: tool("helm")?,
            kubeconfig: None,
            context: Some(context.to_owned()),
            dir,
        };
        run::stdout(kube.kubectl().args(["get", "--raw", "/version", "--request-timeout=15s"]))
            .with_context(|| format!("the cluster of context {context:?} does not answer"))?;
        Ok(kube)
    }

    /// `kubectl` for this cluster.
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        if let Some(kubeconfig) = &self.kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
            // The user's cache is keyed by host and port, and another cluster may have had the port before.
            command.env("KUBECACHEDIR", self.cache());
        }
        if let Some(context) = &self.context {
            command.arg("--context").arg(context);
        }
        command
    }

    /// `helm` for this cluster.
    pub fn helm(&self) -> Command {
        let mut command = Command::new(&self.helm);
        if let Some(kubeconfig) = &self.kubeconfig {
            command.arg("--kubeconfig").arg(kubeconfig);
            // As in `kubectl`.
            command.env("KUBECACHEDIR", self.cache());
        }
        if let Some(context) = &self.context {
            command.arg("--kube-context").arg(context);
        }
        command
    }

    /// The context of the user's kubeconfig; `None` for a local cluster.
    pub fn context(&self) -> Option<&str> {
        self.context.as_deref()
    }

    /// The folder of this cluster: logs, tokens, records of processes.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder in which kubectl and helm cache what the cluster serves.
    pub fn cache(&self) -> PathBuf {
        self.dir.join("kube-cache")
    }

    /// The path of the log of a process.
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.join("logs").join(name)
    }

    /// An object, or `None` if it does not exist.
    pub fn get(&self, namespace: &str, kind: &str, name: &str) -> Result<Option<Value>> {
        let text = run::stdout(self.kubectl().args([
            "get",
            kind,
            name,
            "-n",
            namespace,
            "-o",
            "json",
            "--ignore-not-found",
        ]))?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        Ok(Some(
            serde_json::from_str(&text)
                .with_context(|| format!("kubectl get {kind} {name} printed no JSON"))?,
        ))
    }

    /// The value of a key of a Secret, as text; empty if the Secret does not have the key.
    pub fn secret_value(&self, namespace: &str, secret: &str, key: &str) -> Result<String> {
        let template =
            format!("go-template={{{{with index .data \"{key}\"}}}}{{{{. | base64decode}}}}{{{{end}}}}");
        run::stdout(self.kubectl().args(["get", "secret", secret, "-n", namespace, "-o", &template]))
    }

    /// A kubeconfig for this cluster that authenticates as a ServiceAccount; its token is valid for a day.
    pub fn kubeconfig_of_service_account(&self, namespace: &str, name: &str) -> Result<String> {
        let token = run::stdout(self.kubectl().args([
            "create",
            "token",
            name,
            "-n",
            namespace,
            "--duration",
            "24h",
        ]))?;
        let view = ["config", "view", "--raw", "--minify", "--flatten", "-o", "json"];
        let config: Value = serde_json::from_str(&run::stdout(self.kubectl().args(view))?)
            .context("kubectl config view printed no JSON")?;
        let Some(cluster) = config["clusters"].get(0) else { bail!("the kubeconfig names no cluster") };
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "users": [{"name": name, "user": {"token": token.trim()}}],
            "contexts": [{"name": name, "context": {"cluster": cluster["name"], "user": name, "namespace": "default"}}],
            "current-context": name,
        });
        Ok(format!("{config:#}"))
    }
}

/// Whether a condition of an object is True.
pub fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == condition && one["status"] == "True"))
}
