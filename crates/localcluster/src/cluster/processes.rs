//! Processes that outlive the command that started them. A record on disk has the pid and the start time, so
//! that another process with a reused pid is never signalled.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::state;

/// How long a process has to exit after SIGTERM; a manager may take 20 seconds.
const PATIENCE: Duration = Duration::from_secs(25);

/// The record of a started process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// A component of the control plane, or a manager.
    pub name: String,
    /// The process ID.
    pub pid: i32,
    /// The start time in the system's format. With the pid it identifies a process.
    pub started: String,
    /// The port of the health check.
    pub port: u16,
    /// Changes with everything that the process is started with.
    pub fingerprint: String,
}

/// A process to start.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The name in records and messages.
    pub name: &'a str,
    /// Program, arguments and environment.
    pub command: Command,
    /// The port of the health check.
    pub port: u16,
    /// Changes with everything that the process is started with.
    pub fingerprint: String,
    /// The file to which stdout is appended.
    pub stdout: PathBuf,
    /// The file to which stderr is appended.
    pub stderr: PathBuf,
}

/// Starts a process and records it below `records`. The process has its own process group, so that neither
/// Ctrl-C nor closing the terminal reaches it. Callers need not wait for the child.
pub fn start(records: &Path, mut launch: Launch<'_>) -> Result<(Process, Child)> {
    let open = |file: &Path| {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .with_context(|| format!("cannot write {}", file.display()))
    };
    let child = launch
        .command
        .stdin(Stdio::null())
        .stdout(open(&launch.stdout)?)
        .stderr(open(&launch.stderr)?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot start {}", launch.name))?;
    let pid = i32::try_from(child.id()).context("the system returned an invalid pid")?;
    let process = Process {
        name: launch.name.to_owned(),
        pid,
        // This does not race: an exited child exists until it is waited for.
        started: start_time(pid).unwrap_or_default(),
        port: launch.port,
        fingerprint: launch.fingerprint,
    };
    if let Err(error) = state::write_json(&record(records, launch.name), &process) {
        stop(&[&process]);
        return Err(error);
    }
    Ok((process, child))
}

/// Records this process under a name.
pub(crate) fn claim(records: &Path, name: &str) -> Result<()> {
    let pid = i32::try_from(std::process::id()).context("the system returned an invalid pid")?;
    let process = Process {
        name: name.to_owned(),
        pid,
        started: start_time(pid).unwrap_or_default(),
        port: 0,
        fingerprint: String::new(),
    };
    state::write_json(&record(records, name), &process)
}

/// The recorded process with that name, alive or not.
pub fn find(records: &Path, name: &str) -> Result<Option<Process>> {
    state::read_json(&record(records, name))
}

/// All recorded processes, alive or not, by name.
pub fn all(records: &Path) -> Result<Vec<Process>> {
    let Ok(entries) = fs::read_dir(records) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            found.extend(state::read_json::<Process>(&path)?);
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Removes the record of a process.
pub fn forget(records: &Path, name: &str) {
    let _ = fs::remove_file(record(records, name));
}

fn record(records: &Path, name: &str) -> PathBuf {
    records.join(format!("{name}.json"))
}

impl Process {
    /// Whether this process is still running.
    pub fn is_alive(&self) -> bool {
        !self.started.is_empty() && start_time(self.pid).as_deref() == Some(&self.started)
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Sends SIGKILL, like a crash, and waits for the exit.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        let started = Instant::now();
        while self.is_alive() && started.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Ends processes: SIGTERM to all, and SIGKILL to those that are still alive after 25 seconds.
pub fn stop(processes: &[&Process]) {
    for process in processes {
        process.signal(Signal::TERM);
    }
    let started = Instant::now();
    while processes.iter().any(|process| process.is_alive()) && started.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
    for process in processes {
        process.kill();
    }
}

/// The start time of a live process, in the system's format. `None` for an exited one, waited for or not.
fn start_time(pid: i32) -> Option<String> {
    if Path::new("/proc/self/stat").exists() {
        return parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    }
    let ps = Command::new("ps").args(["-o", "stat=,lstart=", "-p", &pid.to_string()]).output().ok()?;
    let line = String::from_utf8_lossy(&ps.stdout);
    let (state, started) = line.trim().split_once(char::is_whitespace)?;
    (!state.starts_with('Z')).then(|| started.trim().to_owned())
}

/// The start time from `/proc/PID/stat` (proc(5)); `None` for a zombie. The program's name is in parentheses
/// and may itself contain parentheses and spaces.
fn parse_stat(stat: &str) -> Option<String> {
    let mut fields = stat.rsplit_once(") ")?.1.split_ascii_whitespace();
    let state = fields.next()?;
    // The state is field 3; the start time, in clock ticks since boot, is field 22.
    let started = fields.nth(18)?;
    (!matches!(state, "Z" | "X")).then(|| started.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_field_22_for_any_program_name() {
        let fields = "S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 200";
        assert_eq!(parse_stat(&format!("42 (etcd) {fields}")).as_deref(), Some("987654"));
        assert_eq!(parse_stat(&format!("42 (a) b (c) {fields}")).as_deref(), Some("987654"));
    }

    #[test]
    fn a_zombie_is_not_alive() {
        assert_eq!(parse_stat("42 (etcd) Z 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 0 0"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn a_recycled_pid_is_another_process() {
        let me = i32::try_from(std::process::id()).unwrap();
        let this = |started: String| Process {
            name: "x".to_owned(),
            pid: me,
            started,
            port: 0,
            fingerprint: String::new(),
        };
        assert!(this(start_time(me).unwrap()).is_alive());
        assert!(!this("0".to_owned()).is_alive());
        assert!(!this(String::new()).is_alive());
    }
}
