//! The machine and the versions of a run, and how busy the machine was.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use procfs_core::{CpuInfo, FromRead as _, Meminfo};
use quintet_localcluster::cluster::components::Component;
use quintet_localcluster::{http, paths, run};
use serde::{Deserialize, Serialize};

use super::rig::Rig;
use super::stats::{float, ratio};

/// The machine at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// In UTC.
    pub date: String,
    /// `linux x86_64`.
    pub system: String,
    #[serde(default)]
    pub kernel: String,
    #[serde(default)]
    pub processor: String,
    /// Processors that this program can use.
    pub cores: usize,
    pub memory_mib: u64,
    /// The load average of a minute before the cluster was started. It includes a build for this bench.
    pub load: String,
    /// How idle the processors were for [`MOMENT`] before the cluster was started, in percent.
    pub idle_percent: Option<u64>,
}

const MOMENT: Duration = Duration::from_secs(2);

impl Machine {
    /// Sleeps for [`MOMENT`] to measure the idle time.
    pub fn now() -> Self {
        let before = ticks();
        thread::sleep(MOMENT);
        let idle_percent = before.zip(ticks()).and_then(|(before, after)| idle_percent(before, after));
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let memory = Meminfo::from_file("/proc/meminfo").map_or(0, |found| found.mem_total);
        let processors = CpuInfo::from_file("/proc/cpuinfo").ok();
        let model = processors.as_ref().and_then(|found| found.model_name(0)).unwrap_or_default();
        Self {
            date: Timestamp::now().strftime("%Y-%m-%d").to_string(),
            system: format!("{} {}", env::consts::OS, env::consts::ARCH),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: model.split_ascii_whitespace().collect::<Vec<_>>().join(" "),
            cores: thread::available_parallelism().map_or(1, usize::from),
            memory_mib: memory / 1_048_576,
            load: read("/proc/loadavg").split_ascii_whitespace().next().unwrap_or("unknown").to_owned(),
            idle_percent,
        }
    }

    pub fn describe(&self) -> String {
        let Self { date, system, kernel, processor, cores, memory_mib, load, idle_percent } = self;
        let kernel = if kernel.is_empty() { String::new() } else { format!(" {kernel}") };
        let processor = if processor.is_empty() { String::new() } else { format!(" ({processor})") };
        let idle = idle_percent.map(|idle| format!(", processors {idle} % idle")).unwrap_or_default();
        format!(
            "{date}, {system}{kernel}, {cores} cores{processor}, {memory_mib} MiB of memory; before the start load {load}{idle}."
        )
    }
}

/// The ticks of all processors since the system started.
#[derive(Clone, Copy, Debug)]
struct Ticks {
    all: u64,
    idle: u64,
}

fn ticks() -> Option<Ticks> {
    parse_ticks(&fs::read_to_string("/proc/stat").ok()?)
}

/// The first line of `/proc/stat` (see proc(5)): user, nice, system, idle, iowait, irq, softirq, steal. The
/// later fields are included in the first two.
fn parse_ticks(stat: &str) -> Option<Ticks> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let fields: Vec<u64> = fields.take(8).flat_map(str::parse).collect();
    Some(Ticks { all: fields.iter().sum(), idle: fields.get(3)? + fields.get(4)? })
}

fn idle_percent(before: Ticks, after: Ticks) -> Option<u64> {
    (100 * after.idle.checked_sub(before.idle)?).checked_div(after.all.checked_sub(before.all)?)
}

/// Processor time at one moment: of the machine, and of the bench and its cluster.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    machine: Option<Ticks>,
    ours: f64,
}

impl Share {
    /// `ours` is the processor time of the bench and its cluster so far, in seconds.
    pub fn at(ours: f64) -> Self {
        Self { machine: ticks(), ours }
    }

    /// The processor time of all other processes between two moments, in percent.
    pub fn others_percent(self, now: Self) -> Option<f64> {
        let (before, after) = self.machine.zip(now.machine)?;
        let seconds = |ticks: u64| float(ticks) / float(rustix::param::clock_ticks_per_second());
        let all = seconds(after.all.checked_sub(before.all)?);
        let busy = all - seconds(after.idle.checked_sub(before.idle)?);
        // Ticks are coarse, so that the difference can be slightly negative.
        ratio(100.0 * (busy - (now.ours - self.ours)), all).map(|percent| percent.max(0.0))
    }
}

/// The versions of the programs of a run. Empty if a program did not run or its version is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    pub quintet: String,
    /// The commit, and whether the checkout has changes.
    pub checkout: String,
    pub kubernetes: String,
    pub etcd: String,
    pub kwok: String,
    #[serde(default)]
    pub pulsar: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rustc: String,
    /// The settings of the profile that the programs were built with.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub profile: String,
}

impl Versions {
    /// Reads the versions of the programs of a cluster.
    pub fn of(rig: &Rig, program: &Path) -> Result<Self> {
        let text = |value: Option<&str>| value.unwrap_or("unknown").to_owned();
        let server = rig.get("/version")?.unwrap_or_default();
        let etcd = rig.cluster().dir().settings()?.and_then(|settings| {
            let (_, body) = http::get(Component::Etcd.port(&settings), "/version")?;
            let version: serde_json::Value = serde_json::from_str(&body).ok()?;
            version["etcdserver"].as_str().map(str::to_owned)
        });
        let node = rig.get("/api/v1/nodes/node-00001")?.unwrap_or_default();
        let kubelet = node["status"]["nodeInfo"]["kubeletVersion"].as_str();
        Ok(Self {
            kubernetes: text(server["gitVersion"].as_str()),
            etcd: text(etcd.as_deref()),
            kwok: text(kubelet.map(|version| version.trim_start_matches("kwok-"))),
            ..Self::of_pulsar(program, "")?
        })
    }

    /// Reads the versions for a run without a cluster.
    pub fn of_pulsar(program: &Path, pulsar: &str) -> Result<Self> {
        Ok(Self {
            quintet: second_word(Command::new(program).arg("--version"))?,
            pulsar: pulsar.to_owned(),
            ..Self::of_checkout()
        })
    }

    /// The versions for a run that measures code of the bench itself.
    pub fn of_checkout() -> Self {
        Self { quintet: env!("CARGO_PKG_VERSION").to_owned(), checkout: checkout(), ..Self::default() }
    }

    /// Adds the compiler and the profile, if the programs were built here.
    pub fn built(self, is_built: bool) -> Result<Self> {
        if !is_built {
            return Ok(self);
        }
        let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        let manifest = paths::workspace().join("Cargo.toml");
        let manifest =
            fs::read_to_string(&manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
        Ok(Self {
            rustc: second_word(rustc.arg("--version").current_dir(paths::workspace()))?,
            profile: profile(&manifest),
            ..self
        })
    }

    pub fn describe(&self) -> String {
        let others = [
            ("Kubernetes", &self.kubernetes),
            ("etcd", &self.etcd),
            ("kwok", &self.kwok),
            ("Apache Pulsar", &self.pulsar),
        ];
        let others = others.into_iter().filter(|(_, version)| !version.is_empty());
        let mut parts = vec![format!("quintet {} ({})", self.quintet, self.checkout)];
        parts.extend(others.map(|(name, version)| format!("{name} {version}")));
        match (&self.rustc[..], &self.profile[..]) {
            ("", "") => {}
            ("", profile) => parts.push(profile.to_owned()),
            (rustc, profile) => parts.push(format!("rustc {rustc} ({profile})")),
        }
        format!("{}.", parts.join(", "))
    }
}

/// The release profile in a manifest: `opt-level=z lto=fat`, and the number of crates with other settings.
fn profile(manifest: &str) -> String {
    let lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[profile.release]").skip(1);
    let settings = lines.take_while(|line| !line.is_empty() && !line.starts_with('['));
    let mut words: Vec<String> = settings.map(|line| line.replace([' ', '"'], "")).collect();
    match manifest.lines().filter(|line| line.starts_with("[profile.release.package.")).count() {
        0 => {}
        crates => words.push(format!("and {crates} crates with other settings")),
    }
    words.join(" ")
}

/// The version in the output of a program, such as `rustc 1.95.0 (…)`.
fn second_word(command: &mut Command) -> Result<String> {
    Ok(run::stdout(command)?.split_ascii_whitespace().nth(1).unwrap_or("unknown").to_owned())
}

fn checkout() -> String {
    let git =
        |args: &[&str]| run::stdout(Command::new("git").args(args).current_dir(paths::workspace())).ok();
    match (
        git(&["rev-parse", "--short", "HEAD"]),
        git(&["status", "--porcelain", "--", ".", ":!docs/bench", ":!tests/bench/results"]),
    ) {
        (Some(commit), Some(changed)) => {
            let changed = if changed.trim().is_empty() { "" } else { ", with changes" };
            format!("commit {}{changed}", commit.trim())
        }
        _ => "commit unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_release_profile() {
        let manifest =
            "[profile.dev]\ndebug = 1\n\n[profile.release]\nopt-level = \"z\"\nlto = \"fat\"\n\n[a]\nb = 1\n";
        assert_eq!(profile(manifest), "opt-level=z lto=fat");
        assert_eq!(profile("[a]\nb = 1\n"), "");
        let own = "[profile.release]\nlto = true\n\n[profile.release.package.a]\nopt-level = \"s\"\n";
        assert_eq!(profile(own), "lto=true and 1 crates with other settings");
    }

    #[test]
    fn other_processes_used_the_rest() {
        let ticks_per_second = rustix::param::clock_ticks_per_second();
        let at = |seconds: u64, idle: u64, ours: f64| Share {
            machine: Some(Ticks { all: seconds * ticks_per_second, idle: idle * ticks_per_second }),
            ours,
        };
        let others = at(100, 50, 7.0).others_percent(at(120, 55, 19.0)).unwrap();
        assert!((others - 15.0).abs() < 1e-9, "{others}");
        assert_eq!(at(100, 50, 7.0).others_percent(at(100, 50, 7.0)), None);
    }

    #[test]
    fn idle_time_is_fields_4_and_5() {
        let at = |stat: &str| parse_ticks(stat).unwrap();
        let before = at("cpu  10 0 10 70 10 0 0 0 5 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n");
        let after = at("cpu  20 0 20 90 20 10 0 0 5 0\n");
        assert_eq!(idle_percent(before, after), Some(50));
        assert_eq!(idle_percent(after, after), None);
        assert!(parse_ticks("cpu  1 2 3").is_none());
    }
}
