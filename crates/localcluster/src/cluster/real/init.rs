//! The first process of a node, in the node's namespaces. It sets up files and network, runs containerd,
//! kubelet and kube-proxy, and restarts them. Its exit ends everything on the node.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{WaitOptions, wait};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::cgroups::{self, Hierarchies};
use super::{config, name_of, network, node_files, registry, server_is_ready};
use crate::cluster::state::{self, Dir};
use crate::run;

/// The arguments of a node, which only this program starts.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The node's number
    #[arg(long)]
    number: u8,
}

/// The sysctls that a kubelet sets. Files of the node replace them, so that the machine's stay unchanged.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// The file whose content changes with every start of the node.
const BOOT_ID: &str = "boot_id";

fn identity(files: &Path) -> PathBuf {
    files.join("identity")
}

/// The ID of the node's last start; `None` before the first.
pub(super) fn boot_id(files: &Path) -> Option<String> {
    fs::read_to_string(identity(files).join(BOOT_ID)).ok().map(|id| id.trim().to_owned())
}

/// Removes the ID of the node's last start.
pub(super) fn forget_boot(files: &Path) {
    let _ = fs::remove_file(identity(files).join(BOOT_ID));
}

fn taint_file(files: &Path) -> PathBuf {
    files.join("register-with-taint")
}

/// The taint with which the node registers, as text for the kubelet's flag; `None` for no taint.
pub(super) fn registered_taint(files: &Path) -> Option<String> {
    fs::read_to_string(taint_file(files)).ok()
}

/// Sets the taint with which the node registers.
pub(super) fn register_with_taint(files: &Path, taint: &str) -> Result<()> {
    make(files)?;
    state::write(&taint_file(files), taint.as_bytes())
}

/// The pause before an exited program is restarted.
const PAUSE: Duration = Duration::from_secs(1);

/// Joins the node's control groups and becomes the node's first process. Returns only an error.
pub fn boot(cluster: &str, args: &Args) -> Result<()> {
    let dir = Dir::of(cluster)?;
    for file in super::hierarchies(&dir)?.join(cluster, &name_of(args.number))? {
        fs::write(&file, "0").with_context(|| format!("cannot join {}", file.display()))?;
    }
    let error = Command::new("unshare")
        .args([
            "--mount",
            "--net",
            "--pid",
            "--uts",
            "--ipc",
            "--cgroup",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ])
        .arg("--")
        .arg(super::this_program()?)
        .args(["cluster", "--name", cluster, "node-init", "--number", &args.number.to_string()])
        .exec();
    Err(error).context("cannot run unshare")
}

/// Sets the node up and supervises its programs. Returns only an error.
pub fn run(cluster: &str, args: &Args) -> Result<()> {
    let dir = Dir::of(cluster)?;
    let node =
        Node { number: args.number, name: name_of(args.number), files: node_files(&dir, args.number), dir };
    node.mount(&super::hierarchies(&node.dir)?)?;
    node.identify(cluster)?;
    node.connect()?;
    node.configure()?;
    node.supervise()
}

struct Node {
    number: u8,
    name: String,
    files: PathBuf,
    dir: Dir,
}

fn mount(args: &[&str], from: &Path, to: &Path) -> Result<()> {
    run::stdout(Command::new("mount").args(args).arg(from).arg(to)).map(|_| ())
}

fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

impl Node {
    /// Mounts `/sys` with the node's network and control groups, `/run`, `/var/lib` and `/var/log`.
    fn mount(&self, hierarchies: &Hierarchies) -> Result<()> {
        run::stdout(Command::new("mount").args(["--make-rprivate", "/"]))?;
        let sys = Path::new("/sys");
        if run::stdout(Command::new("umount").args(["-R", "/sys"])).is_err() {
            run::stdout(Command::new("umount").args(["-l", "-R", "/sys"]))?;
        }
        mount(&["-t", "sysfs"], Path::new("sysfs"), sys)?;
        if let Some(unified) = hierarchies.unified() {
            mount(&["-t", "cgroup2"], Path::new("cgroup2"), unified)?;
            // A group with processes cannot enable controllers for its children.
            let own = unified.join("init");
            make(&own)?;
            fs::write(own.join("cgroup.procs"), "0").context("cannot move into the init group")?;
            cgroups::give_on(unified)?;
        } else {
            mount(&["-t", "tmpfs", "-o", "mode=755"], Path::new("cgroup"), Path::new("/sys/fs/cgroup"))?;
            for hierarchy in hierarchies.iter() {
                make(&hierarchy.mount)?;
                let options = hierarchy.options.as_deref().unwrap_or_default();
                mount(&["-t", "cgroup", "-o", options], Path::new("cgroup"), &hierarchy.mount)?;
            }
        }
        mount(&["-t", "tmpfs", "-o", "mode=755"], Path::new("tmpfs"), Path::new("/run"))?;
        for (own, place) in [("lib", "/var/lib"), ("log", "/var/log")] {
            let own = self.files.join(own);
            make(&own)?;
            mount(&["--bind"], &own, Path::new(place))?;
        }
        run::stdout(Command::new("mount").args(["--make-rshared", "/"])).map(|_| ())
    }

    /// Gives the node a name, settings and IDs of a separate machine that has just started.
    fn identify(&self, cluster: &str) -> Result<()> {
        fs::write("/proc/sys/kernel/hostname", &self.name).context("cannot name the node")?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/uuid").context("cannot make a boot ID")?;
        let machine = run::hex(&Sha256::digest(format!("{cluster}/{}", self.name)));
        let mut own: Vec<(String, PathBuf)> = SYSCTLS
            .iter()
            .map(|(name, value)| (format!("{value}\n"), Path::new("/proc/sys").join(name)))
            .collect();
        own.push((boot, PathBuf::from("/proc/sys/kernel/random").join(BOOT_ID)));
        own.push((format!("{}\n", &machine[..32]), PathBuf::from("/etc/machine-id")));
        let folder = identity(&self.files);
        make(&folder)?;
        for (text, place) in own.into_iter().filter(|(_, place)| place.exists()) {
            let file = folder.join(place.file_name().unwrap_or_default());
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
            mount(&["--bind"], &file, &place)?;
        }
        Ok(())
    }

    /// Waits for the node's cable and sets its address and routes.
    fn connect(&self) -> Result<()> {
        let plugged = || Path::new("/sys/class/net/eth0").exists();
        run::poll("the node's cable", Duration::from_secs(30), Duration::from_millis(10), || {
            Ok(plugged().then_some(()))
        })?;
        let lines = network::at_node(self.number).join("\n");
        run::stdout_with_input(Command::new("ip").args(["-batch", "-"]), Some(&lines))?;
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").context("cannot enable forwarding")
    }

    fn configure(&self) -> Result<()> {
        let cni = self.files.join("cni");
        let certificates = self.files.join("certs.d");
        for folder in [&cni, &certificates.join("_default")] {
            make(folder)?;
        }
        let json = |file: &str, value: &Value| {
            state::write(&self.files.join(file), format!("{value:#}\n").as_bytes())
        };
        let hosts = config::hosts(registry::PORT);
        state::write(&certificates.join("_default/hosts.toml"), hosts.as_bytes())?;
        let containerd = config::containerd(&self.dir.bin(), &certificates, &cni);
        state::write(&self.files.join("containerd.toml"), containerd.as_bytes())?;
        json("cni/10-quintet.conflist", &config::cni(self.number))?;
        json("kubelet.json", &config::kubelet(self.number, &self.name, &self.dir.pki()))
    }

    /// The command of a program, with its log.
    fn command(&self, program: &str) -> Result<Command> {
        let log = self.dir.logs().join(format!("{}.{program}.log", self.name));
        let log = OpenOptions::new().create(true).append(true).open(&log)?;
        let mut command = Command::new(self.dir.bin().join(program));
        let file = |name: &str| self.files.join(name);
        match program {
            "containerd" => command.arg("--config").arg(file("containerd.toml")),
            "kubelet" => command
                .arg("--config")
                .arg(file("kubelet.json"))
                .arg("--kubeconfig")
                .arg(self.dir.kubeconfig(&self.name))
                // The sample of the DaemonJob tutorial selects its nodes by this label.
                .args([
                    format!("--hostname-override={}", self.name),
                    format!("--node-ip={}", network::node(self.number)),
                    "--node-labels=app=v1".to_owned(),
                ])
                .args(registered_taint(&self.files).map(|taint| format!("--register-with-taints={taint}"))),
            _ => command
                .arg("--kubeconfig")
                .arg(self.dir.kubeconfig("kube-proxy"))
                .args(config::kube_proxy(self.number, &self.name)),
        };
        // containerd finds its shim, and the kubelet finds mount, on the PATH.
        let mut path = vec![self.dir.bin()];
        path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
        command.env("PATH", std::env::join_paths(path)?).current_dir("/");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command)
    }

    /// Runs the programs and restarts each that exits. Returns only an error.
    fn supervise(&self) -> Result<()> {
        let start = |program: &'static str| -> Result<(u32, &'static str)> {
            let child = self.command(program)?.spawn().with_context(|| format!("cannot run {program}"))?;
            Ok((child.id(), program))
        };
        let mut running = vec![start("containerd")?];
        run::poll("containerd is listening", Duration::from_mins(2), Duration::from_millis(50), || {
            Ok(UnixStream::connect(config::SOCKET).is_ok().then_some(()))
        })?;
        // A kubelet that starts too early backs off for longer and longer.
        run::poll("the API server is ready", Duration::from_mins(5), Duration::from_millis(50), || {
            Ok(server_is_ready(&self.dir).exists().then_some(()))
        })?;
        running.extend([start("kubelet")?, start("kube-proxy")?]);
        loop {
            // Orphaned processes are children of this process.
            let ended = match wait(WaitOptions::empty()) {
                Ok(ended) => ended,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => bail!("cannot wait for the node's programs: {error}"),
            };
            let Some((pid, status)) = ended else { continue };
            let ours =
                running.iter().position(|(id, _)| i32::try_from(*id) == Ok(pid.as_raw_nonzero().get()));
            if let Some(at) = ours {
                let (_, program) = running.remove(at);
                eprintln!("{program} exited ({status:?}); restarting it");
                thread::sleep(PAUSE);
                running.push(start(program)?);
            }
        }
    }
}
