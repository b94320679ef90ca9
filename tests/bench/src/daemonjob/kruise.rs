//! OpenKruise's BroadcastJob, the nearest relative of a DaemonJob: its controller as it is, in a manager of its own
//! (`tests/bench/kruise`).

use std::process::Command;

use anyhow::Result;
use quintet_localcluster::cluster::ports;
use quintet_localcluster::go::Program;
use quintet_localcluster::manager::NAMESPACE;
use quintet_localcluster::run;

use crate::peer::{self, Running, rule};
use crate::rig::{Rig, Setting};

/// The Go module that the controller is in.
pub const KRUISE: &str = "github.com/openkruise/kruise";

/// The types that its manager wants, whatever controllers it has: it keeps indexes of them, and starts without the second not at
/// all, without the third a quarter of a minute later.
const TYPES: [&str; 3] = ["broadcastjobs", "imagepulljobs", "sidecarsets"];

const ACCOUNT: &str = "kruise";

pub struct Kruise {
    program: Program,
}

impl Kruise {
    /// Builds the manager, defines its types and gives it its rights.
    pub fn install(rig: &Rig) -> Result<Self> {
        let program = Program::built("tests/bench/kruise", KRUISE)?;
        let definitions = program.module_folder()?.join("config/crd/bases");
        let kubectl = || rig.cluster().kube().kubectl();
        for name in TYPES {
            let definition = definitions.join(format!("apps.kruise.io_{name}.yaml"));
            run::stdout(kubectl().args(["apply", "--server-side", "-f"]).arg(definition))?;
            let crd = format!("crd/{name}.apps.kruise.io");
            run::stdout(kubectl().args(["wait", "--for=condition=Established", "--timeout=60s", &crd]))?;
        }
        let all = ["get", "list", "watch", "create", "update", "patch", "delete"];
        peer::allow(
            rig,
            NAMESPACE,
            ACCOUNT,
            &[
                rule("", &["pods", "events"], &all),
                rule("", &["nodes"], &all[..3]),
                rule(
                    "apps.kruise.io",
                    &["broadcastjobs", "broadcastjobs/status", "broadcastjobs/finalizers"],
                    &all,
                ),
                // It has an index for each of its types, and so watches those that are there.
                rule("*", &["*"], &all[..3]),
            ],
        )?;
        peer::write_kubeconfig(rig, ACCOUNT, None)?;
        Ok(Self { program })
    }

    pub fn version(&self) -> &str {
        &self.program.version
    }

    pub fn start(&self, rig: &Rig, setting: Setting) -> Result<Running> {
        let (metrics_port, health_port) = (ports::one()?, ports::one()?);
        let mut command = Command::new(&self.program.file);
        command
            .arg(format!("--kubeconfig={}", peer::kubeconfig(rig, ACCOUNT).display()))
            .arg(format!("--metrics-addr=127.0.0.1:{metrics_port}"))
            .arg(format!("--health-probe-addr=127.0.0.1:{health_port}"));
        command.args(flags(setting));
        Running::start(rig, ACCOUNT, command, health_port, metrics_port)?.once_ready()
    }
}

/// Its own settings: as shipped it has its defaults.
pub fn flags(setting: Setting) -> &'static [&'static str] {
    match setting {
        Setting::Shipped => &[],
        Setting::Tuned => {
            &["--rest-config-qps=1000", "--rest-config-burst=2000", "--broadcastjob-workers=20"]
        }
    }
}
