//! A registry in the cluster's network that replaces others, such as ghcr.io: the nodes pull the images of the other
//! registries from it, by their unchanged names.

use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::{config, gateway, network, node_files, numbers};
use crate::cluster::Cluster;
use crate::cluster::processes::{self, Launch};
use crate::cluster::state;
use crate::distribution::{self, Access, START_LIMIT};
use crate::run::{self, Log};

/// The record of the process.
pub(super) const MIRROR: &str = "mirror";

/// The port, at the control plane's address.
const PORT: u16 = 5001;

impl Cluster {
    /// Serves the content of a registry, which is in the folder `storage`, to the present nodes in place of the registries
    /// `hosts`, such as `ghcr.io`. Returns the log, with one line for each request. The registry ends with the cluster.
    pub fn mirror(&self, hosts: &[&str], storage: &Path) -> Result<PathBuf> {
        ensure!(self.settings.real, "the nodes of cluster {} are simulated: they pull no image", self.name);
        let keeper = network::keeper(&self.dir)?.context("the cluster's network is gone")?;
        let address = format!("{}:{PORT}", network::CONTROL_PLANE);
        let command = distribution::command(&address, storage, Access::Read)?;
        let mut command_within = network::enter(&keeper, &command);
        command_within.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let log = Log::now(self.dir.logs().join(format!("{MIRROR}.log")));
        let launch = Launch {
            name: MIRROR,
            command: command_within,
            port: 0,
            fingerprint: address,
            stdout: log.path.clone(),
            stderr: log.path.clone(),
        };
        let (process, _) = processes::start(&self.dir.processes(), launch)?;
        let namespace =
            File::open(network::namespace(&keeper)).context("cannot open the cluster's network")?;
        run::poll("the registry of the nodes listens", START_LIMIT, Duration::from_millis(50), || {
            if !process.is_alive() {
                bail!("the registry of the nodes exited; {}", log.tail(10));
            }
            let connect = || Ok(TcpStream::connect((network::CONTROL_PLANE, PORT)).ok().map(|_| ()));
            gateway::within(&namespace, connect)
        })?;
        for number in numbers(self.settings.nodes) {
            for host in hosts {
                // containerd reads this file for each pull.
                let folder = node_files(&self.dir, number).join("certs.d").join(host);
                std::fs::create_dir_all(&folder)
                    .with_context(|| format!("cannot create {}", folder.display()))?;
                state::write(&folder.join("hosts.toml"), config::hosts(PORT).as_bytes())?;
            }
        }
        Ok(log.path)
    }
}
