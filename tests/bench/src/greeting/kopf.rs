//! kopf, installed from PyPI as in the tutorial, into a virtual environment in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use quintet_localcluster::cluster::state;
use quintet_localcluster::paths;
use quintet_localcluster::progress::Step;
use quintet_localcluster::run::{self, Log};

use crate::peer::{self, Running, rule};
use crate::rig::Rig;

/// The only place with kopf's version.
const REQUIREMENTS: &str = include_str!("requirements.txt");
const HANDLERS: &str = include_str!("handlers.py");
const NAME: &str = "kopf";

#[derive(Debug)]
pub struct Kopf {
    python: PathBuf,
    /// `kopf 1.45.2 on Python 3.11.7`.
    pub version: String,
}

impl Kopf {
    pub fn installed() -> Result<Self> {
        let kept = REQUIREMENTS.trim().replace("==", "-");
        let folder = paths::cache()?.join(kept);
        let (python, complete) = (folder.join("bin/python"), folder.join(".complete"));
        if !complete.is_file() {
            install(&folder, &python)?;
            fs::write(&complete, "").with_context(|| format!("cannot write {}", complete.display()))?;
        }
        let asked = "import platform; print(platform.python_version())";
        let on = run::stdout(Command::new(&python).args(["-c", asked]))?;
        Ok(Self {
            python,
            version: format!("{} on Python {}", REQUIREMENTS.trim().replace("==", " "), on.trim()),
        })
    }

    /// Runs kopf for one namespace. `interval` is that of its timer, in seconds.
    pub fn start(&self, rig: &Rig, namespace: &str, interval: u32) -> Result<Running> {
        let kube = rig.cluster().kube();
        let (script, config) = (kube.dir().join("handlers.py"), kube.dir().join("kopf.kubeconfig"));
        state::write(&script, HANDLERS.as_bytes())?;
        if !config.is_file() {
            allow(rig)?;
            let text = kube.kubeconfig_of_service_account("default", NAME)?;
            state::write(&config, text.as_bytes())?;
        }
        let mut command = Command::new(&self.python);
        command.args(["-m", "kopf", "run", "--standalone", "--namespace", namespace]).arg(&script);
        command.env("KUBECONFIG", &config).env("INTERVAL", interval.to_string());
        // kopf serves neither health nor metrics.
        Running::start(rig, NAME, command, 0, 0)
    }
}

fn install(folder: &Path, python: &Path) -> Result<()> {
    let Some(python3) = paths::find_program("python3") else {
        bail!("kopf needs python3, which is not on the PATH. Install it, or set --without-peers")
    };
    let log = Log::fresh(paths::cache()?.join("kopf-install.log"))?;
    let mut step = Step::start_long(format!("installing {} from PyPI", REQUIREMENTS.trim()));
    // Remove an interrupted installation.
    let _ = fs::remove_dir_all(folder);
    let mut run = |command: &mut Command| -> Result<()> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(log.open()?)
            .stderr(log.open()?)
            .spawn()
            .context("cannot run python3")?;
        if !run::wait(&mut child, || step.tick())?.success() {
            bail!("cannot install kopf (skip it with --without-peers); {}", log.tail(20));
        }
        Ok(())
    };
    run(Command::new(python3).args(["-m", "venv"]).arg(folder))?;
    let requirements = folder.join("requirements.txt");
    fs::write(&requirements, REQUIREMENTS)
        .with_context(|| format!("cannot write {}", requirements.display()))?;
    run(Command::new(python).args(["-m", "pip", "install", "--requirement"]).arg(requirements))?;
    step.done();
    Ok(())
}

/// Gives kopf a ServiceAccount with the rights of its documentation.
fn allow(rig: &Rig) -> Result<()> {
    let rules = [
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["get", "list", "watch"]),
        rule("", &["namespaces"], &["get", "list", "watch"]),
        rule("", &["events"], &["create"]),
        rule("example.com", &["greetings"], &["get", "list", "watch", "patch"]),
        rule("example.com", &["greetings/status"], &["patch"]),
    ];
    peer::allow(rig, "default", NAME, &rules)
}
