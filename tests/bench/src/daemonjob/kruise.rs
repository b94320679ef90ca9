//! OpenKruise's BroadcastJob, the kind most like DaemonJob: its unchanged controller in a manager
//! (`tests/bench/kruise`).

use std::process::Command;

use anyhow::Result;
use quintet_localcluster::cluster::ports;
use quintet_localcluster::go::Program;
use quintet_localcluster::manager::NAMESPACE;
use quintet_localcluster::run;

use crate::peer::{self, Running, rule};
use crate::rig::{Rig, Setting};

/// The Go module of the controller.
pub const KRUISE: &str = "github.com/openkruise/kruise";

/// The types that its manager indexes, whatever controllers it has. Without the second it does not start;
/// without the third it starts 15 s later.
const TYPES: [&str; 3] = ["broadcastjobs", "imagepulljobs", "sidecarsets"];

const ACCOUNT: &str = "kruise";

pub struct Kruise {
    program: Program,
}

impl Kruise {
    /// Builds the manager, installs its definitions and grants its rights.
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
                // It indexes its types, and so watches all that exist.
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

/// The manager's flags; as shipped it has its defaults.
pub fn flags(setting: Setting) -> &'static [&'static str] {
    match setting {
        Setting::Shipped => &[],
        Setting::Tuned => {
            &["--rest-config-qps=1000", "--rest-config-burst=2000", "--broadcastjob-workers=20"]
        }
    }
}
