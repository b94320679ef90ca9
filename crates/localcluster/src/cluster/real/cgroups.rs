//! Control groups for the processes of nodes: one group for the cluster, and one below it for each node. Uses
//! version 1 if the memory controller is there, else version 2.
//!
//! Sources: cgroups(7), cgroup_namespaces(7), the kernel's documentation of cgroup v2.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// The controllers that a kubelet requires.
const NEEDED: [&str; 3] = ["cpu", "memory", "pids"];

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hierarchy {
    /// The mount point.
    pub mount: PathBuf,
    /// The options for `mount -o`: controllers, or `none,name=…`. `None` in version 2.
    pub options: Option<String>,
    /// The group that contains the cluster's group.
    pub parent: PathBuf,
}

/// All hierarchies, of one version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hierarchies(Vec<Hierarchy>);

impl Hierarchies {
    /// The hierarchies of this machine.
    pub fn of_machine() -> Result<Self> {
        let read = |file: &str| fs::read_to_string(file).with_context(|| format!("cannot read {file}"));
        let found = Self::parse(&read("/proc/mounts")?, &read("/proc/self/cgroup")?)?;
        if let Some(unified) = found.unified() {
            let file = unified.join("cgroup.controllers");
            let controllers = read(&file.to_string_lossy())?;
            for needed in NEEDED {
                ensure!(
                    controllers.split_ascii_whitespace().any(|one| one == needed),
                    "the control groups in {} have no controller {needed}",
                    unified.display()
                );
            }
        }
        Ok(found)
    }

    fn parse(mounts: &str, own: &str) -> Result<Self> {
        let mounts: Vec<[&str; 3]> = mounts
            .lines()
            .filter_map(|line| {
                let mut words = line.split_ascii_whitespace().skip(1);
                Some([words.next()?, words.next()?, words.next()?])
            })
            .collect();
        let has = |options: &str, searched: &str| {
            searched.split(',').all(|one| options.split(',').any(|option| option == one))
        };
        let version_1 = mounts.iter().any(|[_, kind, options]| *kind == "cgroup" && has(options, "memory"));
        if !version_1 {
            let unified = mounts.iter().find(|[_, kind, _]| *kind == "cgroup2");
            let Some([mount, ..]) = unified else {
                bail!("no control groups are mounted below /sys/fs/cgroup")
            };
            // A group with processes cannot enable controllers for its children; only the root can.
            let mount = PathBuf::from(mount);
            return Ok(Self(vec![Hierarchy { parent: mount.clone(), mount, options: None }]));
        }
        let mut found = Vec::new();
        for line in own.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
            let mount = mounts.iter().find(|[_, kind, options]| {
                !controllers.is_empty() && *kind == "cgroup" && has(options, controllers)
            });
            if let Some([mount, ..]) = mount {
                let named = controllers.starts_with("name=");
                found.push(Hierarchy {
                    mount: PathBuf::from(mount),
                    options: Some(if named { format!("none,{controllers}") } else { controllers.to_owned() }),
                    // This process's group, so that its limits apply to the nodes too.
                    parent: Path::new(mount).join(path.trim_start_matches('/')),
                });
            }
        }
        for needed in NEEDED {
            let has =
                found.iter().any(|one| one.options.as_deref().is_some_and(|options| has(options, needed)));
            ensure!(has, "the control groups have no controller {needed}");
        }
        Ok(Self(found))
    }

    /// The mount point of the hierarchy of version 2, if that is used.
    pub fn unified(&self) -> Option<&Path> {
        self.0.iter().find(|one| one.options.is_none()).map(|one| one.mount.as_path())
    }

    /// All hierarchies.
    pub fn iter(&self) -> impl Iterator<Item = &Hierarchy> {
        self.0.iter()
    }

    fn groups(&self, cluster: &str) -> impl Iterator<Item = PathBuf> {
        let name = format!("quintet-{cluster}");
        self.0.iter().map(move |hierarchy| hierarchy.parent.join(&name))
    }

    /// The files through which a process joins a node's group. Creates missing groups.
    pub fn join(&self, cluster: &str, node: &str) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for (hierarchy, group) in self.0.iter().zip(self.groups(cluster)) {
            let leaf = group.join(node);
            fs::create_dir_all(&leaf)
                .with_context(|| format!("cannot make the control group {}", leaf.display()))?;
            if hierarchy.options.is_none() {
                give_on(&hierarchy.parent)?;
                give_on(&group)?;
            } else {
                // A group without processors and memory nodes accepts no process.
                for (above, group) in [(&hierarchy.parent, &group), (&group, &leaf)] {
                    for file in ["cpuset.cpus", "cpuset.mems"] {
                        if let Ok(value) = fs::read_to_string(above.join(file)) {
                            fs::write(group.join(file), value)
                                .with_context(|| format!("cannot write {}", group.join(file).display()))?;
                        }
                    }
                }
            }
            files.push(leaf.join("cgroup.procs"));
        }
        Ok(files)
    }

    /// Kills all processes in a node's group.
    pub fn clear(&self, cluster: &str, node: &str) -> Result<()> {
        let groups: Vec<PathBuf> = self.groups(cluster).map(|group| group.join(node)).collect();
        remove(&groups)
    }

    /// Kills all processes in the cluster's groups and removes the groups.
    pub fn remove(&self, cluster: &str) -> Result<()> {
        remove(&self.groups(cluster).collect::<Vec<_>>())
    }
}

/// Enables the group's controllers for its children.
pub(super) fn give_on(group: &Path) -> Result<()> {
    let file = group.join("cgroup.controllers");
    let controllers = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let control = group.join("cgroup.subtree_control");
    for controller in controllers.split_ascii_whitespace() {
        let given = fs::write(&control, format!("+{controller}"));
        if NEEDED.contains(&controller) {
            given.with_context(|| format!("cannot enable {controller} below {}", group.display()))?;
        }
    }
    Ok(())
}

fn remove(groups: &[PathBuf]) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(20);
    let begin = Instant::now();
    loop {
        let mut left = groups.iter().filter(|group| group.is_dir()).peekable();
        let Some(first) = left.peek().map(|group| group.display().to_string()) else { return Ok(()) };
        ensure!(
            begin.elapsed() < LIMIT,
            "cannot remove the control group {first}: its processes do not exit"
        );
        for group in left {
            for group in deepest_first(group) {
                // Only nodes start processes in here.
                for pid in fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default().lines() {
                    if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                        let _ = kill_process(pid, Signal::KILL);
                    }
                }
                let _ = fs::remove_dir(&group);
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn deepest_first(group: &Path) -> Vec<PathBuf> {
    let below = fs::read_dir(group).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut all: Vec<PathBuf> =
        below.filter(|path| path.is_dir()).flat_map(|path| deepest_first(&path)).collect();
    all.push(group.to_owned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
        cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
        cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
        cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0\n\
        cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";

    #[test]
    fn uses_version_1_if_memory_is_in_version_1() {
        let own = "5:cpu,cpuacct:/\n4:memory:/a/b\n3:pids:/\n2:name=systemd:/\n0::/\n";
        let found = Hierarchies::parse(HYBRID, own).unwrap();
        assert_eq!(found.unified(), None);
        let as_text: Vec<_> = found
            .iter()
            .map(|one| format!("{} {}", one.options.as_deref().unwrap(), one.parent.display()))
            .collect();
        assert_eq!(
            as_text,
            [
                "cpu,cpuacct /sys/fs/cgroup/cpu,cpuacct/",
                "memory /sys/fs/cgroup/memory/a/b",
                "pids /sys/fs/cgroup/pids/",
                "none,name=systemd /sys/fs/cgroup/systemd/",
            ]
        );
        let error = Hierarchies::parse(HYBRID, "4:memory:/\n3:pids:/\n").unwrap_err().to_string();
        assert_eq!(error, "the control groups have no controller cpu");
    }

    #[test]
    fn uses_version_2_from_its_root_otherwise() {
        let mounts = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";
        let found = Hierarchies::parse(mounts, "0::/user.slice/x\n").unwrap();
        assert_eq!(found.unified(), Some(Path::new("/sys/fs/cgroup")));
        assert_eq!(found.iter().next().unwrap().parent, Path::new("/sys/fs/cgroup"));
        assert!(Hierarchies::parse("proc /proc proc rw 0 0\n", "").is_err());
    }
}
