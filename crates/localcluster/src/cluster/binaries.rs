//! The programs of the control plane, built from Go modules once and kept in the user's cache, which all
//! checkouts share. `tests/controlplane/**/go.mod` alone states the versions. The cache keeps the programs of all
//! [`versions`] side by side.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::installed::{Tool, Tools};
use super::kwok;
use super::lock;
use super::real::seccomp;
use super::versions::{self, Versions};
use crate::paths;
use crate::progress::Step;
use crate::run::{self, Log};

/// The name of a program and its source.
struct Recipe {
    name: &'static str,
    /// The folder of the Go module, below `tests/controlplane`.
    folder: &'static str,
    /// The Go module whose version is the program's version.
    module: &'static str,
    /// The package, as a path in `module`.
    package: &'static str,
}

const fn kubernetes(name: &'static str, package: &'static str) -> Recipe {
    Recipe { name, folder: "", module: KUBERNETES, package }
}

const fn containerd(name: &'static str, package: &'static str) -> Recipe {
    Recipe { name, folder: "containerd", module: "github.com/containerd/containerd/v2", package }
}

const fn cni(name: &'static str, package: &'static str) -> Recipe {
    Recipe { name, folder: "cni", module: "github.com/containernetworking/plugins", package }
}

const fn keda(name: &'static str, package: &'static str) -> Recipe {
    Recipe { name, folder: KEDA_FOLDER, module: KEDA_MODULE, package }
}

const fn oldest(name: &'static str, package: &'static str) -> Recipe {
    Recipe { name, folder: "oldest", module: KUBERNETES, package }
}

static RECIPES: [Recipe; 26] = [
    kubernetes("kube-apiserver", "cmd/kube-apiserver"),
    kubernetes("kube-controller-manager", "cmd/kube-controller-manager"),
    kubernetes("kube-scheduler", "cmd/kube-scheduler"),
    kubernetes("kubectl", "cmd/kubectl"),
    kubernetes("kubelet", "cmd/kubelet"),
    kubernetes("kube-proxy", "cmd/kube-proxy"),
    containerd("containerd", "cmd/containerd"),
    containerd("containerd-shim-runc-v2", "cmd/containerd-shim-runc-v2"),
    Recipe { name: RUNC, folder: "runc", module: "github.com/opencontainers/runc", package: "" },
    cni("ptp", "plugins/main/ptp"),
    cni("loopback", "plugins/main/loopback"),
    cni("host-local", "plugins/ipam/host-local"),
    Recipe { name: "etcd", folder: "", module: "go.etcd.io/etcd/server/v3", package: "" },
    Recipe { name: ETCDUTL, folder: "", module: "go.etcd.io/etcd/etcdutl/v3", package: "" },
    Recipe { name: KWOK, folder: KWOK, module: "sigs.k8s.io/kwok", package: "cmd/kwok" },
    Recipe { name: "helm", folder: "helm", module: HELM_4, package: "cmd/helm" },
    Recipe {
        name: "helm-unittest",
        folder: "unittest",
        module: "github.com/helm-unittest/helm-unittest",
        package: "cmd/helm-unittest",
    },
    Recipe {
        name: "promtool",
        folder: "promtool",
        module: "github.com/prometheus/prometheus",
        package: "cmd/promtool",
    },
    Recipe { name: HYDRA, folder: HYDRA, module: "github.com/ory/hydra/v2", package: "" },
    keda(KEDA_OPERATOR, "cmd/operator"),
    keda(KEDA_ADAPTER, "cmd/adapter"),
    Recipe { name: VALE, folder: "vale", module: "github.com/vale-cli/vale/v3", package: "cmd/vale" },
    Recipe {
        name: "cosign",
        folder: "cosign",
        module: "github.com/sigstore/cosign/v3",
        package: "cmd/cosign",
    },
    Recipe {
        name: "crane",
        folder: "cosign",
        module: "github.com/google/go-containerregistry",
        package: "cmd/crane",
    },
    Recipe {
        name: REGISTRY,
        folder: "distribution",
        module: "github.com/distribution/distribution/v3",
        package: "cmd/registry",
    },
    Recipe { name: "krew", folder: "krew", module: "sigs.k8s.io/krew", package: "cmd/krew" },
];

/// The programs that differ in [`Versions::Oldest`]. etcd and kwok do not depend on the API server's version, and real nodes
/// have only the newest one.
static OLDEST: [Recipe; 5] = [
    oldest("kube-apiserver", "cmd/kube-apiserver"),
    oldest("kube-controller-manager", "cmd/kube-controller-manager"),
    oldest("kube-scheduler", "cmd/kube-scheduler"),
    oldest("kubectl", "cmd/kubectl"),
    Recipe { name: "helm", folder: "helm3", module: HELM_3, package: "cmd/helm" },
];

const KUBERNETES: &str = "k8s.io/kubernetes";
const HELM_3: &str = "helm.sh/helm/v3";
const HELM_4: &str = "helm.sh/helm/v4";

/// The recipes of all programs in these versions.
fn recipes(versions: Versions) -> impl Iterator<Item = &'static Recipe> {
    RECIPES.iter().map(move |newest| match versions {
        Versions::Newest => newest,
        Versions::Oldest => OLDEST.iter().find(|oldest| oldest.name == newest.name).unwrap_or(newest),
    })
}

impl Recipe {
    /// The program's version by the go.mod of its folder.
    fn pinned(&self) -> Result<String> {
        let file = paths::controlplane().join(self.folder).join("go.mod");
        let go_mod = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(self.flags(&go_mod)?.0)
    }

    /// The program's version and linker flags by the go.mod of its folder.
    fn flags(&self, go_mod: &str) -> Result<(String, String)> {
        let version = required_version(go_mod, self.module)
            .with_context(|| format!("tests/controlplane: no go.mod requires {}", self.module))?;
        Ok((version.to_owned(), ldflags(self.module, version, go_mod)))
    }
}

/// The programs that the directory `KUBEBUILDER_ASSETS` must have; others in it are used too.
const ASSETS: [&str; 3] = ["etcd", "kube-apiserver", "kubectl"];

/// The alternatives to an installed Go, for messages.
const WITHOUT_GO: &str = "or set KUBEBUILDER_ASSETS to a directory with etcd, kube-apiserver, \
    kube-controller-manager, kube-scheduler, kubectl, kwok and helm, or use an existing cluster: \
    `cargo xtask demo --context NAME`";

/// The programs of a cluster.
pub const ALL: [&str; 7] =
    ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwok", "helm"];

/// The programs of a cluster with real nodes.
pub const REAL: [&str; 14] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "helm",
    "kubelet",
    "kube-proxy",
    "containerd",
    "containerd-shim-runc-v2",
    RUNC,
    "ptp",
    "loopback",
    "host-local",
];

/// Built with [corrections](kwok).
const KWOK: &str = "kwok";

/// Needs a C compiler: it sets up seccomp.
const RUNC: &str = "runc";

/// Checks the project's texts. Needs a C compiler: it contains parsers of programming languages.
const VALE: &str = "vale";

/// The OAuth2 issuer of brokers. Needs a C compiler: it contains SQLite.
pub const HYDRA: &str = "hydra";

/// The program of the OAuth2 issuer.
pub const ISSUER: [&str; 1] = [HYDRA];

/// KEDA's operator, its metrics adapter, and their Go module.
pub const KEDA_OPERATOR: &str = "keda-operator";
/// See [`KEDA_OPERATOR`].
pub const KEDA_ADAPTER: &str = "keda-metrics-apiserver";
const KEDA_FOLDER: &str = "keda";
const KEDA_MODULE: &str = "github.com/kedacore/keda/v2";

/// The programs of KEDA.
pub const KEDA: [&str; 2] = [KEDA_OPERATOR, KEDA_ADAPTER];

/// The programs that test the chart, besides helm and kubectl.
pub const CHART: [&str; 2] = ["helm-unittest", "promtool"];

/// The program that restores a backup of etcd, for tests.
pub const RESTORE: [&str; 1] = [ETCDUTL];
const ETCDUTL: &str = "etcdutl";

/// The programs that rehearse a release, besides helm and kubectl.
pub const RELEASE: [&str; 4] = ["cosign", "crane", REGISTRY, "krew"];

/// The OCI registry of CNCF Distribution.
pub(crate) const REGISTRY: &str = "registry";

/// The program that checks the project's texts.
pub const PROSE: [&str; 1] = [VALE];

/// Programs that are ready to run.
#[derive(Clone, Debug)]
pub struct Binaries(BTreeMap<String, PathBuf>);

impl Binaries {
    /// The path of a program.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        self.0.get(name).cloned().with_context(|| format!("{name} was not built"))
    }

    /// The programs with their paths, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.0.iter().map(|(name, path)| (name.as_str(), path.as_path()))
    }
}

/// Returns the paths of programs and builds missing ones. The first build takes minutes.
pub fn ensure(names: &[&str]) -> Result<Binaries> {
    ensure_with(names, Tools::Pinned)
}

/// As [`ensure`], with the source of helm and kubectl.
pub fn ensure_with(names: &[&str], tools: Tools) -> Result<Binaries> {
    let mut found = BTreeMap::new();
    let versions = versions::current();
    let assets = env::var_os("KUBEBUILDER_ASSETS").filter(|dir| !dir.is_empty());
    // Their version is unknown.
    if let Some(dir) = assets.filter(|_| versions == Versions::Newest) {
        for &name in names {
            let file = Path::new(&dir).join(name);
            if file.is_file() {
                found.insert(name.to_owned(), file);
            } else if ASSETS.contains(&name) {
                bail!("KUBEBUILDER_ASSETS is {}, but has no {name}", Path::new(&dir).display());
            }
        }
    }
    if tools == Tools::Installed {
        for tool in Tool::ALL {
            let name = tool.name();
            let recipe = recipes(versions).find(|recipe| recipe.name == name && names.contains(&name));
            if let Some(recipe) = recipe.filter(|_| !found.contains_key(name))
                && let Some(file) = tool.find(&recipe.pinned()?)?
            {
                found.insert(name.to_owned(), file);
            }
        }
    }
    let cache = paths::cache()?.join("bin");
    let desired: Vec<&Recipe> =
        recipes(versions).filter(|r| names.contains(&r.name) && !found.contains_key(r.name)).collect();
    let mut homes = BTreeMap::new();
    let mut missing = Vec::new();
    for recipe in &desired {
        if !homes.contains_key(recipe.folder) {
            homes.insert(recipe.folder, Home::of(&cache, recipe.folder, &desired)?);
        }
        let home = &homes[recipe.folder];
        if !home.dir.join(recipe.name).is_file() {
            missing.push(*recipe);
        }
        found.insert(recipe.name.to_owned(), home.dir.join(recipe.name));
    }
    if !missing.is_empty() {
        let _lock = lock::take(&cache.join("lock"), "another build of the control plane")?;
        let begin = Instant::now();
        let mut cpu = Vec::new();
        for (i, recipe) in missing.iter().enumerate() {
            cpu.extend(build(recipe, &homes[recipe.folder], i + 1, missing.len())?);
        }
        if cpu.len() > 1 {
            let (count, wall) = (cpu.len(), begin.elapsed().as_secs_f64());
            eprintln!("built {count} programs ({wall:.1} s, {:.0} s of CPU time)", cpu.iter().sum::<f64>());
        }
    }
    Ok(Binaries(found))
}

/// Whether a program was built before, so that [`ensure`] returns immediately.
pub fn is_built(name: &str) -> bool {
    let Some(recipe) = recipes(versions::current()).find(|recipe| recipe.name == name) else { return false };
    let home = paths::cache().and_then(|cache| Home::of(&cache.join("bin"), recipe.folder, &[recipe]));
    home.is_ok_and(|home| home.dir.join(name).is_file())
}

/// The folder of the programs of one Go module.
struct Home {
    source: PathBuf,
    go_mod: String,
    dir: PathBuf,
}

impl Home {
    fn of(cache: &Path, folder: &str, desired: &[&Recipe]) -> Result<Self> {
        let source = paths::controlplane().join(folder);
        let read = |name: &str| {
            let file = source.join(name);
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))
        };
        let go_mod = read("go.mod")?;
        let key = key(folder, &go_mod, &read("go.sum")?)?;
        let label = if folder.is_empty() { "kubernetes" } else { folder };
        let stem = format!("{label}-{key}");
        let dir = match go_version(&source, &go_mod) {
            Ok(go) => cache.join(format!("{stem}-{go}")),
            // Without Go, programs built earlier still run.
            Err(error) => match built_before(cache, &stem, folder, desired) {
                Some(dir) => dir,
                None => return Err(error),
            },
        };
        Ok(Self { source, go_mod, dir })
    }
}

/// Changes with everything that a folder's programs are built from, except Go.
fn key(folder: &str, go_mod: &str, go_sum: &str) -> Result<String> {
    let mut digest = Sha256::new().chain_update(go_mod).chain_update(go_sum);
    for recipe in RECIPES.iter().chain(&OLDEST).filter(|recipe| recipe.folder == folder) {
        digest.update(recipe.flags(go_mod)?.1);
    }
    if folder == KWOK {
        for (.., correction) in kwok::CORRECTIONS {
            digest.update(correction);
        }
    }
    Ok(run::short_hex(&digest.finalize()))
}

fn built_before(cache: &Path, stem: &str, folder: &str, desired: &[&Recipe]) -> Option<PathBuf> {
    let complete =
        |dir: &Path| desired.iter().filter(|r| r.folder == folder).all(|r| dir.join(r.name).is_file());
    let dirs = fs::read_dir(cache).ok()?.flatten();
    dirs.filter(|entry| entry.file_name().to_string_lossy().starts_with(stem))
        .map(|entry| entry.path())
        .find(|dir| complete(dir))
}

/// The version of Go that builds a module. The `go` command may download it.
pub(crate) fn go_version(source: &Path, go_mod: &str) -> Result<String> {
    let needed = go_directive(go_mod).context("tests/controlplane: a go.mod without a go line")?;
    if paths::find_program("go").is_none() {
        bail!(
            "building the control plane needs Go {needed} or newer, but there is no `go` on the PATH: install it from \
             https://go.dev/dl, {WITHOUT_GO}"
        );
    }
    let output = run::output(Command::new("go").args(["env", "GOVERSION"]).current_dir(source), None)?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if !output.status.success() || !is_at_least(&version, needed) {
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let has = if version.is_empty() { error } else { format!("`go` is {version}") };
        bail!("building the control plane needs Go {needed} or newer, but {has}: update it, {WITHOUT_GO}");
    }
    Ok(version)
}

/// Builds a program and returns the CPU seconds, if the system reports them.
fn build(recipe: &Recipe, home: &Home, number: usize, of: usize) -> Result<Option<f64>> {
    let target = home.dir.join(recipe.name);
    if target.is_file() {
        // Another process built it while this one waited for the lock.
        return Ok(None);
    }
    let (version, ldflags) = recipe.flags(&home.go_mod)?;
    let package = [recipe.module, recipe.package].join("/");
    let label = format!(
        "building {} {version} from source, once ({number} of {of}; the first ones take minutes)",
        recipe.name
    );
    let package = package.trim_end_matches('/');
    let source = if recipe.module == KEDA_MODULE { &keda_source()? } else { &home.source };
    let corrected = (recipe.name == KWOK).then(|| home.dir.join("corrected"));
    let go_mod =
        corrected.as_deref().map(|folder| kwok::corrected(source, folder, recipe.module)).transpose()?;
    let flags = Flags { ldflags, go_mod, ..Flags::of(recipe.name, &home.dir)? };
    let built = go_build_with(label, source, package, &flags, &target);
    if let Some(folder) = corrected {
        let _ = fs::remove_dir_all(folder);
    }
    built
}

/// The folder with the files of KEDA's Go module. KEDA is built here, because the replacements and exclusions in its
/// go.mod have no effect in another module.
pub fn keda_source() -> Result<PathBuf> {
    run::go_module(&paths::controlplane().join(KEDA_FOLDER), KEDA_MODULE)
}

struct Flags {
    ldflags: String,
    /// Instead of the go.mod in the source.
    go_mod: Option<PathBuf>,
    tags: &'static str,
    variables: Vec<(&'static str, OsString)>,
}

impl Flags {
    /// The options for a program. Downloads that it needs go below `dir`.
    fn of(name: &str, dir: &Path) -> Result<Self> {
        let mut variables = vec![("CGO_ENABLED", "0".into())];
        let tags = match name {
            RUNC => {
                variables = vec![("CGO_ENABLED", "1".into())];
                variables.extend(seccomp::find(dir)?.map(|folder| ("PKG_CONFIG_PATH", folder.into())));
                "seccomp netgo osusergo"
            }
            VALE | HYDRA => {
                variables = vec![("CGO_ENABLED", "1".into())];
                if name == HYDRA { "sqlite" } else { "" }
            }
            // File systems that the nodes do not have, and that need C libraries.
            "containerd" => "no_btrfs no_devmapper no_zfs",
            _ => "",
        };
        Ok(Self { ldflags: String::new(), go_mod: None, tags, variables })
    }
}

/// The linker would remove it anyway. Saves a tenth of the processor time.
const WITHOUT_DEBUG_INFORMATION: &str = "-gcflags=all=-dwarf=false";

/// Builds a package of a Go module into the file `target`. The user sees `label` meanwhile.
pub(crate) fn go_build(
    label: String,
    source: &Path,
    package: &str,
    ldflags: &str,
    target: &Path,
) -> Result<()> {
    let variables = vec![("CGO_ENABLED", "0".into())];
    let flags = Flags { ldflags: ldflags.to_owned(), go_mod: None, tags: "", variables };
    go_build_with(label, source, package, &flags, target).map(drop)
}

fn go_build_with(
    label: String,
    source: &Path,
    package: &str,
    flags: &Flags,
    target: &Path,
) -> Result<Option<f64>> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    // Next to its target, for an atomic rename: an interrupted build leaves no incomplete program.
    let half_made = target.with_file_name(format!(".{name}.building"));
    let log = Log::fresh(target.with_file_name(format!("{name}.build.log")))?;
    let mut step = Step::start_long(label);
    let mut child = Command::new("go")
        .args(["build", "-trimpath", WITHOUT_DEBUG_INFORMATION, "-tags", flags.tags])
        .args(["-ldflags", &flags.ldflags])
        .args(flags.go_mod.iter().flat_map(|file| ["-modfile".as_ref(), file.as_os_str()]))
        .arg("-o")
        .arg(&half_made)
        .arg(package)
        .current_dir(source)
        .envs(flags.variables.iter().map(|(name, value)| (name, value)))
        .env("GOWORK", "off")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log.open()?)
        .spawn()
        .context("cannot run go")?;
    let status = run::wait(&mut child, || step.tick());
    let built = status.and_then(|status| {
        if !status.success() {
            bail!("building {name} failed; {}", log.tail(15));
        }
        fs::rename(&half_made, target).with_context(|| format!("cannot write {}", target.display()))
    });
    if let Err(error) = built {
        let _ = fs::remove_file(&half_made);
        return Err(error);
    }
    let _ = fs::remove_file(&log.path);
    Ok(step.built())
}

/// Linker flags with the version, in the variables that Kubernetes' own build sets. Programs built from a
/// module proxy do not know their version, and some clients reject a server without one.
fn ldflags(module: &str, version: &str, go_mod: &str) -> String {
    let mut flags = vec!["-s -w".to_owned()];
    let mut set = |package: &str, values: &[(&str, &str)]| {
        flags.extend(values.iter().map(|(name, value)| format!("-X {package}.{name}={value}")));
    };
    match module {
        KUBERNETES => {
            let (major, minor) = (number(version, 0), number(version, 1));
            let values = [
                ("gitVersion", version),
                ("gitMajor", major),
                ("gitMinor", minor),
                ("gitTreeState", "clean"),
                ("buildDate", "2026-01-01T00:00:00Z"),
            ];
            for package in ["k8s.io/client-go/pkg/version", "k8s.io/component-base/version"] {
                set(package, &values);
            }
        }
        HELM_4 => set("helm.sh/helm/v4/internal/version", &[("version", version)]),
        HELM_3 => {
            set("helm.sh/helm/v3/internal/version", &[("version", version)]);
            // The version of Kubernetes that `helm template` and `helm lint` assume. Version 0.37 of client-go is that of 1.37.
            let client = required_version(go_mod, "k8s.io/client-go").unwrap_or_default();
            let assumed = [("k8sVersionMajor", "1"), ("k8sVersionMinor", number(client, 1))];
            for package in ["helm.sh/helm/v3/pkg/chartutil", "helm.sh/helm/v3/pkg/lint/rules"] {
                set(package, &assumed);
            }
        }
        KEDA_MODULE => {
            set("github.com/kedacore/keda/v2/version", &[("Version", version.trim_start_matches('v'))]);
        }
        "github.com/vale-cli/vale/v3" => set("main", &[("version", version)]),
        "github.com/containerd/containerd/v2" => {
            set("github.com/containerd/containerd/v2/version", &[("Version", version)]);
        }
        "github.com/opencontainers/runc" => {
            set("main", &[("version", version.trim_start_matches('v'))]);
            // A static runc does not depend on the libraries of the machine that runs it.
            flags.push("-extldflags -static".to_owned());
        }
        _ => {}
    }
    flags.join(" ")
}

/// A number of a version such as `v1.37.1`.
fn number(version: &str, at: usize) -> &str {
    version.trim_start_matches('v').split('.').nth(at).unwrap_or_default()
}

/// Fills a folder for a `PATH` with links to the programs.
pub fn link(binaries: &Binaries, dir: &Path) -> Result<()> {
    for (name, target) in binaries.iter() {
        let link = dir.join(name);
        if fs::read_link(&link).is_ok_and(|old| old == target) {
            continue;
        }
        let mut temporary = OsString::from(&link);
        temporary.push(".new");
        let _ = fs::remove_file(&temporary);
        std::os::unix::fs::symlink(target, &temporary)
            .and_then(|()| fs::rename(&temporary, &link))
            .with_context(|| format!("cannot link {}", link.display()))?;
    }
    Ok(())
}

/// The version in which a go.mod requires a module.
pub fn required_version<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.trim().trim_start_matches("require ").split_ascii_whitespace();
        (words.next() == Some(module))
            .then(|| words.next())
            .flatten()
            .filter(|version| version.starts_with('v'))
    })
}

/// The Go version that a go.mod requires.
fn go_directive(go_mod: &str) -> Option<&str> {
    go_mod.lines().find_map(|line| line.strip_prefix("go ")).map(str::trim)
}

/// Whether `go1.26.8` is at least `1.26.0`. A suffix (`rc1`, ` X:...`) does not count.
fn is_at_least(version: &str, needed: &str) -> bool {
    let numbers = |text: &str| -> Vec<u32> {
        let text = text.trim_start_matches("go");
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        text[..end].split('.').map_while(|number| number.parse().ok()).collect()
    };
    let version = numbers(version);
    !version.is_empty() && version >= numbers(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compares_go_versions_by_their_numbers() {
        assert!(is_at_least("go1.26.8", "1.26.0"));
        assert!(is_at_least("go1.30", "1.26.0"));
        assert!(is_at_least("go1.26.0", "1.26.0"));
        assert!(is_at_least("go1.27rc1", "1.26.0"));
        assert!(!is_at_least("go1.25.9", "1.26.0"));
        assert!(!is_at_least("go1.9", "1.26.0"));
        assert!(!is_at_least("", "1.26.0"));
        assert!(!is_at_least("devel", "1.26.0"));
    }

    #[test]
    fn reads_versions_from_go_mod() {
        let go_mod = "module x\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/kubernetes v1.37.1 // indirect\n)\nrequire a.b/c v0.1.0\n";
        assert_eq!(go_directive(go_mod), Some("1.26.0"));
        assert_eq!(required_version(go_mod, "k8s.io/kubernetes"), Some("v1.37.1"));
        assert_eq!(required_version(go_mod, "a.b/c"), Some("v0.1.0"));
        assert_eq!(required_version(go_mod, "k8s.io/kube"), None);
        assert_eq!(required_version("tool (\n\ta.b/c\n)\n", "a.b/c"), None);
    }

    #[test]
    fn the_go_modules_of_this_checkout_state_every_version() {
        for recipe in RECIPES.iter().chain(&OLDEST) {
            let file = paths::controlplane().join(recipe.folder).join("go.mod");
            let go_mod = fs::read_to_string(file).unwrap();
            assert!(recipe.flags(&go_mod).is_ok(), "{}", recipe.name);
            assert!(go_directive(&go_mod).is_some(), "{}", recipe.name);
            let known = [&ALL[..], &REAL, &CHART, &ISSUER, &KEDA, &RESTORE, &RELEASE, &PROSE].concat();
            assert!(known.contains(&recipe.name), "{}", recipe.name);
        }
    }

    #[test]
    fn the_oldest_versions_replace_programs_by_name() {
        let folders = |versions| recipes(versions).map(|recipe| (recipe.name, recipe.folder));
        let differing: BTreeMap<_, _> = folders(Versions::Oldest)
            .zip(folders(Versions::Newest))
            .filter(|(oldest, newest)| oldest != newest)
            .map(|((name, folder), _)| (name, folder))
            .collect();
        let expected: BTreeMap<_, _> = OLDEST.iter().map(|recipe| (recipe.name, recipe.folder)).collect();
        assert_eq!(differing, expected);
        assert!(OLDEST.iter().all(|recipe| ALL.contains(&recipe.name)), "only programs of clusters differ");
    }

    #[test]
    fn the_oldest_kubernetes_is_the_floor_of_the_chart() {
        let file = |path: &str| fs::read_to_string(paths::workspace().join(path)).unwrap();
        let go_mod = file("tests/controlplane/oldest/go.mod");
        let version = required_version(&go_mod, KUBERNETES).unwrap();
        let floor = format!("kubeVersion: \">={}.{}.0-0\"", number(version, 0), number(version, 1));
        assert!(file("charts/quintet/Chart.yaml").contains(&floor), "{floor}");
        // A staging module of another version would build another Kubernetes.
        let staging = version.replacen("v1", "v0", 1);
        let replaced: Vec<&str> = go_mod.lines().filter(|line| line.contains(" => ")).collect();
        assert!(replaced.len() > 20, "{replaced:?}");
        assert!(replaced.iter().all(|line| line.ends_with(&staging)), "{replaced:?}");
    }

    #[test]
    fn kwok_shares_packages_with_kubernetes() {
        let read =
            |folder: &str| fs::read_to_string(paths::controlplane().join(folder).join("go.mod")).unwrap();
        let staging = required_version(&read(""), KUBERNETES).unwrap().replacen("v1", "v0", 1);
        for module in ["api", "apimachinery", "apiserver", "client-go", "component-base"] {
            assert_eq!(
                required_version(&read(KWOK), &format!("k8s.io/{module}")),
                Some(&*staging),
                "{module}"
            );
        }
    }

    #[test]
    fn helm_3_assumes_the_kubernetes_of_its_client() {
        let go_mod = "require (\n\thelm.sh/helm/v3 v3.22.0\n\tk8s.io/client-go v0.37.0 // indirect\n)\n";
        let flags = ldflags(HELM_3, "v3.22.0", go_mod);
        assert!(flags.contains("-X helm.sh/helm/v3/internal/version.version=v3.22.0"), "{flags}");
        assert!(flags.contains("-X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37"), "{flags}");
    }

    #[test]
    fn a_program_with_other_linker_flags_is_another_program() {
        let go_mod = "require helm.sh/helm/v3 v3.22.0\n";
        let without_programs = key("none", go_mod, "").unwrap();
        assert_ne!(key("helm3", go_mod, "").unwrap(), without_programs);
        assert!(key("helm3", "", "").unwrap_err().to_string().contains(HELM_3));
    }

    #[test]
    fn the_linker_sets_the_version_of_kubernetes() {
        let flags = ldflags(KUBERNETES, "v1.37.1", "");
        assert!(flags.contains("-X k8s.io/component-base/version.gitVersion=v1.37.1"));
        assert!(flags.contains("-X k8s.io/client-go/pkg/version.gitMinor=37"));
    }
}
