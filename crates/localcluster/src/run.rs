//! Runs other programs. Their output is shown only if it explains a failure. Ctrl-C ends the wait.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::Value;

use crate::{interrupt, paths};

const POLL: Duration = Duration::from_millis(20);

/// Waits for a child and kills it when the user interrupts or the time limit passes. Calls `tick` while it waits.
pub fn wait(child: &mut Child, mut tick: impl FnMut()) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            // Ctrl-C at a terminal reaches the child too, and is then the cause of its exit.
            interrupt::check()?;
            return Ok(status);
        }
        if let Err(interrupted) = interrupt::check() {
            let _ = child.kill();
            let _ = child.wait();
            return Err(interrupted);
        }
        tick();
        thread::sleep(POLL);
    }
}

/// How long an interrupted group has to stop what it started, such as clusters.
const GRACE: Duration = Duration::from_mins(1);

/// A child in its own process group. An interruption ends the child and everything that it runs.
#[derive(Debug)]
pub struct Group(Child);

impl Group {
    /// Starts a command as the leader of a new group. Ctrl-C at a terminal does not reach the group.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let child = command.process_group(0).spawn();
        child.map(Self).with_context(|| format!("cannot run {}", program_name(command)))
    }

    /// Its stdout, if it is a pipe. Only the first call returns it.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Waits for the child. When the user interrupts or the time limit passes, interrupts the group, kills the rest after
    /// a minute, and fails. Calls `tick` while it waits.
    pub fn wait(self, tick: impl FnMut()) -> Result<ExitStatus> {
        self.wait_or_end(GRACE, tick)
    }

    fn wait_or_end(mut self, grace: Duration, mut tick: impl FnMut()) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            if let Err(interrupted) = interrupt::check() {
                self.end(grace);
                return Err(interrupted);
            }
            tick();
            thread::sleep(POLL);
        }
    }

    fn end(&mut self, grace: Duration) {
        let group = Pid::from_child(&self.0);
        let _ = kill_process_group(group, Signal::INT);
        let began = Instant::now();
        while began.elapsed() < grace {
            // An exited child is in the group until it is waited for.
            let _ = self.0.try_wait();
            if test_kill_process_group(group).is_err() {
                return;
            }
            thread::sleep(POLL);
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.0.wait();
    }
}

/// The CPU seconds of all children that this process has waited for, and of their children. `None` if the system does not
/// have Linux's /proc.
pub(crate) fn cpu_of_children() -> Option<f64> {
    let ticks = ticks_of_children(&fs::read_to_string("/proc/self/stat").ok()?)?;
    Some(f64::from(ticks) / f64::from(u32::try_from(rustix::param::clock_ticks_per_second()).ok()?))
}

/// The sum of cutime and cstime, which are fields 16 and 17 of `/proc/PID/stat` (proc(5)). The program's name is in
/// parentheses and may itself contain parentheses and spaces; the field after it is field 3.
fn ticks_of_children(stat: &str) -> Option<u32> {
    let mut fields = stat.rsplit_once(") ")?.1.split_ascii_whitespace().skip(13);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    ticks()?.checked_add(ticks()?)
}

/// cargo, in the checkout. Removes the variables in which an outer `cargo run` describes its crate. Build
/// scripts depend on them, and a change would run the scripts again.
pub fn cargo() -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let is_of_a_crate =
            |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if name.to_str().is_some_and(is_of_a_crate) {
            cargo.env_remove(&name);
        }
    }
    cargo.current_dir(paths::workspace());
    cargo
}

/// Runs a command with `input` on its stdin and returns its output, whatever its exit status.
pub fn output(command: &mut Command, input: Option<&str>) -> Result<Output> {
    let program = program_name(command);
    let mut child = command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let stdout = thread::spawn(move || read_all(stdout));
    let stderr = thread::spawn(move || read_all(stderr));
    if let (Some(mut stdin), Some(input)) = (stdin, input) {
        let input = input.to_owned();
        // A program that does not read its input reports that in its exit status.
        thread::spawn(move || stdin.write_all(input.as_bytes()));
    }
    // After an interruption, the threads are left alone: a process that the child started may keep the pipes open.
    let status = wait(&mut child, || ())?;
    let collected = |bytes: thread::JoinHandle<Vec<u8>>| bytes.join().unwrap_or_default();
    Ok(Output { status, stdout: collected(stdout), stderr: collected(stderr) })
}

/// Runs a command that must succeed and returns its stdout. The error contains its stderr.
pub fn stdout(command: &mut Command) -> Result<String> {
    stdout_with_input(command, None)
}

/// The path of this program.
pub fn this_program() -> Result<PathBuf> {
    let program = env::current_exe().context("cannot find this program")?;
    // Linux's name of a program that cargo has rebuilt since it was started. The new one will do.
    let replaced = program.to_str().and_then(|name| name.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(replaced.unwrap_or(program))
}

/// The folder with the files of a Go module that the module in `source` requires. Downloads it if necessary.
pub fn go_module(source: &Path, module: &str) -> Result<PathBuf> {
    let printed = stdout(Command::new("go").args(["mod", "download", "-json", module]).current_dir(source))?;
    let printed: Value = serde_json::from_str(&printed).context("go mod download printed no JSON")?;
    printed["Dir"].as_str().map(PathBuf::from).context("go mod download names no folder")
}

/// As [`stdout`], with `input` on its stdin.
pub fn stdout_with_input(command: &mut Command, input: Option<&str>) -> Result<String> {
    let output = output(command, input)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let printed = String::from_utf8_lossy(&output.stderr);
    let printed = if printed.trim().is_empty() { String::from_utf8_lossy(&output.stdout) } else { printed };
    Err(anyhow!("{} failed: {}", describe(command), printed.trim()))
}

/// Polls until `ready` returns a value. Fails after `limit` with an error that begins with `what`.
pub fn poll<T>(
    what: &str,
    limit: Duration,
    pause: Duration,
    mut ready: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        interrupt::check()?;
        if let Some(value) = ready()? {
            return Ok(value);
        }
        if started.elapsed() >= limit {
            bail!("{what}: not within {} s", limit.as_secs());
        }
        thread::sleep(pause);
    }
}

/// Prints on stdout. A closed pipe (`head`) ends the program with success.
pub fn print(bytes: impl AsRef<[u8]>) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("cannot print"),
    }
}

/// The first 8 bytes of a digest, in hexadecimal.
pub fn short_hex(digest: &[u8]) -> String {
    hex(&digest[..digest.len().min(8)])
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The log of a process, from the moment that is of interest.
#[derive(Clone, Debug)]
pub struct Log {
    /// The file.
    pub path: PathBuf,
    from: usize,
}

impl Log {
    /// The part of a log that is written from now on.
    pub fn now(path: PathBuf) -> Self {
        let from =
            fs::metadata(&path).ok().and_then(|file| usize::try_from(file.len()).ok()).unwrap_or_default();
        Self { path, from }
    }

    /// A log from its beginning.
    pub fn whole(path: PathBuf) -> Self {
        Self { path, from: 0 }
    }

    /// An empty log; an existing file is overwritten.
    pub fn fresh(path: PathBuf) -> Result<Self> {
        let parent = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, ""))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, from: 0 })
    }

    /// The file, opened for appending.
    pub fn open(&self) -> Result<File> {
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        file.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// The last lines of the log with an introduction, for the end of an error message.
    pub fn tail(&self, lines: usize) -> String {
        let bytes = fs::read(&self.path).unwrap_or_default();
        let text = String::from_utf8_lossy(bytes.get(self.from..).unwrap_or_default()).into_owned();
        let all: Vec<&str> = text.lines().collect();
        if all.is_empty() {
            return format!("its log is empty ({})", self.path.display());
        }
        let last = &all[all.len().saturating_sub(lines)..];
        format!("the last lines of its log ({}):\n{}", self.path.display(), last.join("\n"))
    }
}

/// Quotes a word for a POSIX shell, if it needs quotes.
pub fn shell_quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A command as a user would type it.
fn describe(command: &Command) -> String {
    let words = command.get_args().map(|word| shell_quote(&word.to_string_lossy()));
    let mut line = program_name(command);
    for word in words {
        line.push(' ');
        line.push_str(&word);
    }
    line
}

fn program_name(command: &Command) -> String {
    Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn read_all(pipe: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // The bytes read before an error are still useful.
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead as _;

    #[test]
    fn quotes_words_for_a_shell_only_where_needed() {
        assert_eq!(shell_quote("/home/u/.cache"), "/home/u/.cache");
        assert_eq!(shell_quote("a b"), "'a b'");
        assert_eq!(shell_quote("$HOME"), "'$HOME'");
        assert_eq!(shell_quote("it's"), r"'it'\''s'");
        assert_eq!(shell_quote(""), "''");
    }

    #[test]
    fn the_cpu_time_of_children_is_in_fields_16_and_17() {
        let fields = "S 1 42 42 0 -1 4194560 1 2 3 4 5 6 70 8 20 0 1 0 987654 1000 200";
        assert_eq!(ticks_of_children(&format!("42 (a) b (c) {fields}")), Some(78));
        assert_eq!(ticks_of_children("42 (etcd) S 1 42"), None);
        assert_eq!(ticks_of_children(""), None);
    }

    #[test]
    fn describes_a_failing_command_as_it_was_typed() {
        let error = stdout(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "sh -c 'echo no >&2; exit 3' failed: no");
    }

    #[test]
    fn interrupts_a_late_group_and_then_kills_the_rest() {
        // A shell starts its background commands with SIGINT ignored.
        let script = "trap 'echo interrupted; exit 1' INT; sleep 600 & echo ready; wait";
        let mut group = Group::spawn(Command::new("sh").args(["-c", script]).stdout(Stdio::piped())).unwrap();
        let mut lines = io::BufReader::new(group.take_stdout().unwrap()).lines().map(Result::unwrap);
        assert_eq!(lines.next().as_deref(), Some("ready"));
        let late = interrupt::within(Duration::ZERO, || group.wait_or_end(Duration::from_secs(1), || ()));
        assert!(late.unwrap_err().is::<interrupt::Interrupted>());
        // The output ends only when no process of the group holds the pipe.
        assert_eq!(lines.collect::<Vec<_>>(), ["interrupted"]);
    }

    #[test]
    fn waits_for_a_group_that_ends_in_time() {
        let group = Group::spawn(Command::new("sh").args(["-c", "exit 3"])).unwrap();
        let status = interrupt::within(GRACE, || group.wait(|| ())).unwrap();
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn input_reaches_the_command() {
        assert_eq!(stdout_with_input(&mut Command::new("cat"), Some("hello")).unwrap(), "hello");
    }
}
