//! The network of a cluster with real nodes. The control plane has a network namespace with a bridge, and
//! each node has one with a cable to the bridge. The machine sees none of it, so clusters can have the same
//! addresses.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::cluster::processes::{self, Launch, Process};
use crate::cluster::state::Dir;
use crate::run;

/// The record of the process that keeps the namespace.
pub(super) const KEEPER: &str = "network";

/// The address of the control plane.
pub const CONTROL_PLANE: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);

/// The addresses of Services.
pub(in crate::cluster) const SERVICES: &str = "10.96.0.0/16";

/// The address of the API server's Service.
pub(in crate::cluster) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);

/// The addresses of all pods.
pub(super) const PODS: &str = "10.89.0.0/16";

const BRIDGE: &str = "quintet0";

/// The maximum number of nodes. Each has a certificate from the start.
pub const MAX_NODES: u8 = 8;

/// The name of a node.
pub fn name_of(number: u8) -> String {
    format!("node-{number}")
}

pub(in crate::cluster) fn node(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, 0, 10 + number)
}

pub(super) fn pods(number: u8) -> String {
    format!("10.89.{number}.0/24")
}

/// The namespace, as a file of its keeper.
pub(in crate::cluster) fn namespace(keeper: &Process) -> PathBuf {
    PathBuf::from(format!("/proc/{}/ns/net", keeper.pid))
}

/// The process that keeps the namespace, if it is running.
pub(crate) fn keeper(dir: &Dir) -> Result<Option<Process>> {
    Ok(processes::find(&dir.processes(), KEEPER)?.filter(Process::is_alive))
}

/// A program in the namespace; its process ID is that of the command.
pub(in crate::cluster) fn within(keeper: &Process, program: &std::path::Path) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", namespace(keeper).display())).arg("--").arg(program);
    command
}

/// A command, moved into the namespace.
pub(crate) fn enter(keeper: &Process, command: &Command) -> Command {
    let mut entered = within(keeper, command.get_program().as_ref());
    entered.args(command.get_args());
    if let Some(dir) = command.get_current_dir() {
        entered.current_dir(dir);
    }
    entered
}

/// Creates the namespace, its bridge and its routes. The second value is whether it was created now.
pub(super) fn ensure(dir: &Dir) -> Result<(Process, bool)> {
    if let Some(process) = keeper(dir)? {
        return Ok((process, false));
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sleep", "infinity"]).current_dir("/");
    let log = dir.logs().join(format!("{KEEPER}.log"));
    let launch = Launch {
        name: KEEPER,
        command,
        port: 0,
        fingerprint: String::new(),
        stdout: log.clone(),
        stderr: log,
    };
    let (process, _) = processes::start(&dir.processes(), launch)?;
    let made = await_own(process.pid, &process).and_then(|()| {
        let lines = bridge().join("\n");
        run::stdout_with_input(within(&process, "ip".as_ref()).args(["-batch", "-"]), Some(&lines))
    });
    if let Err(error) = made {
        processes::stop(&[&process]);
        processes::forget(&dir.processes(), KEEPER);
        return Err(error);
    }
    Ok((process, true))
}

/// Waits until a process has its own network namespace; earlier commands would change the machine's.
pub(super) fn await_own(pid: i32, process: &Process) -> Result<()> {
    let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net"));
    let ours = of("self").context("cannot read this process's network namespace")?;
    run::poll("a network namespace", Duration::from_secs(20), Duration::from_millis(5), || {
        if !process.is_alive() {
            bail!("{} exited while starting", process.name);
        }
        Ok(of(&pid.to_string()).is_ok_and(|its| its != ours).then_some(()))
    })
}

/// The `ip -batch` commands for the control plane's namespace.
fn bridge() -> Vec<String> {
    let mut lines = vec![
        "link set lo up".to_owned(),
        format!("link add {BRIDGE} type bridge"),
        format!("addr add {CONTROL_PLANE}/24 dev {BRIDGE}"),
        format!("link set {BRIDGE} up"),
    ];
    lines.extend((1..=MAX_NODES).map(|other| format!("route add {} via {}", pods(other), node(other))));
    lines
}

/// The bridge's end of a node's cable.
pub(super) fn port(number: u8) -> String {
    format!("n{number}")
}

/// The `ip -batch` commands in the control plane's namespace for a node with the first process `pid`.
pub(super) fn cable(number: u8, pid: i32) -> Vec<String> {
    vec![
        format!(
            "link add {} type veth peer name eth0 address 02:00:0a:58:00:{:02x} netns {pid}",
            port(number),
            10 + number
        ),
        format!("link set {} master {BRIDGE} up", port(number)),
    ]
}

/// The arguments of `ip` that remove a node's cable from the bridge, or add it again. The node notices only
/// that its packets are lost and that none arrive.
pub(super) fn plug(number: u8, is_in: bool) -> Vec<String> {
    let port = ["link".to_owned(), "set".to_owned(), port(number)];
    let bridge: &[&str] = if is_in { &["master", BRIDGE] } else { &["nomaster"] };
    port.into_iter().chain(bridge.iter().map(|word| (*word).to_owned())).collect()
}

/// The `ip -batch` commands for a node's namespace.
pub(super) fn at_node(number: u8) -> Vec<String> {
    let mut lines = vec![
        "link set lo up".to_owned(),
        format!("addr add {}/24 dev eth0", node(number)),
        "link set eth0 up".to_owned(),
        format!("route add default via {CONTROL_PLANE}"),
    ];
    let others = (1..=MAX_NODES).filter(|other| *other != number);
    lines.extend(others.map(|other| format!("route add {} via {}", pods(other), node(other))));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_their_pods_have_separate_addresses() {
        assert_eq!(node(1), Ipv4Addr::new(10, 88, 0, 11));
        assert_eq!(pods(3), "10.89.3.0/24");
        let all: std::collections::BTreeSet<_> = (1..=MAX_NODES).map(node).collect();
        assert_eq!(all.len(), usize::from(MAX_NODES));
        assert!(!all.contains(&CONTROL_PLANE));
    }

    #[test]
    fn a_cable_is_pulled_and_plugged_in_again() {
        assert_eq!(plug(2, false).join(" "), "link set n2 nomaster");
        assert_eq!(plug(2, true).join(" "), "link set n2 master quintet0");
    }

    #[test]
    fn a_node_reaches_only_pods_of_other_nodes_by_cable() {
        let lines = at_node(2);
        assert!(lines.contains(&"route add 10.89.1.0/24 via 10.88.0.11".to_owned()));
        assert!(!lines.iter().any(|line| line.contains("10.89.2.")));
        assert_eq!(
            bridge().iter().filter(|line| line.starts_with("route add")).count(),
            usize::from(MAX_NODES)
        );
        assert_eq!(
            cable(2, 77)[0],
            "link add n2 type veth peer name eth0 address 02:00:0a:58:00:0c netns 77"
        );
    }
}
