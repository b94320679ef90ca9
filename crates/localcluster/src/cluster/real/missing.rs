//! Whether this machine can have real nodes, and otherwise the first missing requirement and its remedy.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use rustix::process::geteuid;

use super::cgroups::Hierarchies;
use super::seccomp;
use crate::build::Arch;
use crate::{paths, run};

/// The required programs, and the packages that contain them.
const PROGRAMS: [(&str, &str); 8] = [
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount, of util-linux"),
    ("umount", "mount, of util-linux"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("cc", "gcc"),
    ("pkg-config", "pkg-config"),
];

/// Folders that nodes replace by their own; the machine's files below them are not visible on a node.
const HIDDEN: [&str; 4] = ["/run", "/sys", "/var/lib", "/var/log"];

#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a separate fact")]
struct Facts {
    is_linux: bool,
    links_static_programs: bool,
    is_root: bool,
    programs: Vec<&'static str>,
    has_overlay: bool,
    has_seccomp: bool,
    /// The error of the control groups.
    control_groups: Option<String>,
    folders: Vec<PathBuf>,
    /// The errors of attempts to create namespaces, a bridge, a cable and an nftables table.
    tries: Vec<(&'static str, Option<String>)>,
}

/// The requirement that this machine does not meet; `None` if it can have real nodes.
pub fn missing() -> Option<String> {
    let is_linux = cfg!(target_os = "linux");
    let is_root = geteuid().is_root();
    let mut facts = Facts {
        is_linux,
        links_static_programs: Arch::HOST.is_some(),
        is_root,
        programs: PROGRAMS
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| paths::find_program(name).is_some())
            .collect(),
        has_overlay: has_overlay(),
        has_seccomp: seccomp::is_there(),
        control_groups: Hierarchies::of_machine().err().map(|error| format!("{error:#}")),
        folders: vec![paths::cache().unwrap_or_default(), paths::workspace().to_owned(), paths::target()],
        tries: Vec::new(),
    };
    // Only root with these programs can attempt the rest.
    first(&facts).or_else(|| {
        facts.tries = tries();
        first(&facts)
    })
}

fn has_overlay() -> bool {
    let known = || {
        fs::read_to_string("/proc/filesystems")
            .is_ok_and(|all| all.lines().any(|line| line.ends_with("\toverlay")))
    };
    // It may be a module that is not loaded yet.
    known() || (Command::new("modprobe").arg("overlay").output().is_ok() && known())
}

fn tries() -> Vec<(&'static str, Option<String>)> {
    let tried = |what: &'static str, script: &str| {
        let namespaces =
            ["--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--mount-proc"];
        let result: Result<String> =
            run::stdout(Command::new("unshare").args(namespaces).args(["sh", "-c", script]));
        let error = result.err().map(|error| {
            let text = format!("{error:#}");
            text.lines().next_back().unwrap_or_default().trim().to_owned()
        });
        (what, error)
    };
    vec![
        tried("namespaces", "true"),
        tried(
            "bridges and virtual Ethernet devices",
            "ip link add quintet0 type bridge && ip link add quintet1 type veth peer name quintet2",
        ),
        tried("nftables", "nft 'add table ip q; add chain ip q c { type nat hook prerouting priority 0 ; }'"),
    ]
}

/// The first missing requirement, as a sentence.
fn first(facts: &Facts) -> Option<String> {
    if !facts.is_linux {
        return Some("real nodes need Linux".to_owned());
    }
    if !facts.links_static_programs {
        return Some(
            "the images of real nodes need static programs: Linux with glibc, on x86_64 or aarch64"
                .to_owned(),
        );
    }
    if !facts.is_root {
        return Some("real nodes need root, which makes their namespaces and control groups".to_owned());
    }
    if let Some((name, package)) = PROGRAMS.iter().find(|(name, _)| !facts.programs.contains(name)) {
        return Some(format!("real nodes need the program {name}: install the package {package}"));
    }
    if !facts.has_overlay {
        return Some("real nodes need the file system overlay, which this kernel does not have".to_owned());
    }
    if !facts.has_seccomp {
        return Some(seccomp::MISSING.to_owned());
    }
    if let Some(wrong) = &facts.control_groups {
        return Some(format!("real nodes need control groups: {wrong}"));
    }
    let hides = |folder: &Path| HIDDEN.into_iter().find(|hidden| folder.starts_with(hidden));
    if let Some((folder, hidden)) = facts.folders.iter().find_map(|folder| Some((folder, hides(folder)?))) {
        return Some(format!(
            "real nodes replace {hidden} and would not see {}: move the checkout, or set XDG_CACHE_HOME or CARGO_TARGET_DIR",
            folder.display()
        ));
    }
    let failed = facts.tries.iter().find_map(|(what, error)| Some((what, error.as_ref()?)));
    failed.map(|(what, error)| {
        format!("real nodes need {what}, which root cannot create on this machine: {error}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Facts {
        Facts {
            is_linux: true,
            links_static_programs: true,
            is_root: true,
            programs: PROGRAMS.iter().map(|(name, _)| *name).collect(),
            has_overlay: true,
            has_seccomp: true,
            control_groups: None,
            folders: vec![PathBuf::from("/root/.cache/quintet"), PathBuf::from("/runner/quintet")],
            tries: vec![("namespaces", None), ("nftables", None)],
        }
    }

    #[test]
    fn reports_a_missing_requirement_as_a_sentence() {
        assert_eq!(first(&all()), None);
        let missing = |change: fn(&mut Facts)| {
            let mut facts = all();
            change(&mut facts);
            first(&facts).unwrap()
        };
        assert_eq!(missing(|facts| facts.is_linux = false), "real nodes need Linux");
        assert!(missing(|facts| facts.is_root = false).starts_with("real nodes need root,"));
        let no_nft = missing(|facts| facts.programs.retain(|name| *name != "nft"));
        assert_eq!(no_nft, "real nodes need the program nft: install the package nftables");
        assert!(missing(|facts| facts.has_overlay = false).contains("overlay"));
        assert!(missing(|facts| facts.has_seccomp = false).contains("libseccomp-dev"));
        assert!(missing(|facts| facts.control_groups = Some("no cpu".to_owned())).ends_with(": no cpu"));
        assert!(
            missing(|facts| facts.folders.push("/var/lib/x/y".into())).contains("would not see /var/lib/x/y")
        );
        let denied =
            missing(|facts| facts.tries[0].1 = Some("unshare failed: Operation not permitted".to_owned()));
        assert!(denied.contains("namespaces") && denied.ends_with("not permitted"), "{denied}");
    }

    #[test]
    fn reports_root_before_programs_that_only_root_uses() {
        let mut facts = all();
        facts.is_root = false;
        facts.programs.clear();
        assert!(first(&facts).unwrap().contains("root"));
    }
}
