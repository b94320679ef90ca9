//! Running other programs: their output is captured and shown only where it explains a failure, and a Ctrl-C ends
//! the wait.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::{interrupt, paths};

const POLL: Duration = Duration::from_millis(20);

/// Waits for a child and kills it when the user interrupts. `tick` is called while waiting.
pub fn wait(child: &mut Child, mut tick: impl FnMut()) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            // A Ctrl-C at a terminal reaches the child too: then it is the cause of the child's end.
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

/// cargo, in the checkout. What an outer `cargo run` says of the crate that it runs is left out: build scripts look at it, and
/// would be run anew whenever that changes.
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

/// Runs a command to its end with `input` on its stdin and returns what it printed, whatever its exit status.
pub fn output(command: &mut Command, input: Option<&str>) -> Result<Output> {
    let program = program_name(command);
    let mut child = command
        .stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let stdout = scope.spawn(|| read_all(stdout));
        let stderr = scope.spawn(|| read_all(stderr));
        if let (Some(mut stdin), Some(input)) = (stdin, input) {
            // A program that does not want its input says so by its exit status.
            scope.spawn(move || stdin.write_all(input.as_bytes()));
        }
        let status = wait(&mut child, || ())?;
        let collected = |bytes: thread::ScopedJoinHandle<'_, Vec<u8>>| bytes.join().unwrap_or_default();
        Ok(Output { status, stdout: collected(stdout), stderr: collected(stderr) })
    })
}

/// Runs a command that must succeed and returns its stdout; the error carries what it printed on stderr.
pub fn stdout(command: &mut Command) -> Result<String> {
    stdout_with_input(command, None)
}

/// This program's file.
pub fn this_program() -> Result<PathBuf> {
    let program = env::current_exe().context("cannot find this program")?;
    // So Linux names a program that cargo has built anew since it was started: the new one is as good.
    let replaced = program.to_str().and_then(|name| name.strip_suffix(" (deleted)")).map(PathBuf::from);
    Ok(replaced.unwrap_or(program))
}

/// The folder with the files of a Go module that the module in `source` requires. It is fetched where it is not there.
pub fn go_module(source: &Path, module: &str) -> Result<PathBuf> {
    let said = stdout(Command::new("go").args(["mod", "download", "-json", module]).current_dir(source))?;
    let said: Value = serde_json::from_str(&said).context("go mod download printed no JSON")?;
    said["Dir"].as_str().map(PathBuf::from).context("go mod download names no folder")
}

/// As [`stdout`], with `input` on its stdin.
pub fn stdout_with_input(command: &mut Command, input: Option<&str>) -> Result<String> {
    let output = output(command, input)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = if said.trim().is_empty() { String::from_utf8_lossy(&output.stdout) } else { said };
    Err(anyhow!("{} failed: {}", describe(command), said.trim()))
}

/// Polls until `ready` answers with a value. Fails after `limit`, naming what was waited for.
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

/// Prints on stdout. A reader that has seen enough (`head`) ends the program, and is no error.
pub fn print(bytes: impl AsRef<[u8]>) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("cannot print"),
    }
}

/// The first bytes of a digest, in hexadecimal.
pub fn short_hex(digest: &[u8]) -> String {
    hex(&digest[..digest.len().min(8)])
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// The log of a process, from the moment on that is of interest.
#[derive(Clone, Debug)]
pub struct Log {
    /// The file.
    pub path: PathBuf,
    from: usize,
}

impl Log {
    /// What is added to a log from now on.
    pub fn now(path: PathBuf) -> Self {
        let from =
            fs::metadata(&path).ok().and_then(|file| usize::try_from(file.len()).ok()).unwrap_or_default();
        Self { path, from }
    }

    /// All of a log.
    pub fn whole(path: PathBuf) -> Self {
        Self { path, from: 0 }
    }

    /// An empty log, in place of one that may be there.
    pub fn fresh(path: PathBuf) -> Result<Self> {
        let parent = path.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, ""))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, from: 0 })
    }

    /// The file, to be appended to.
    pub fn open(&self) -> Result<File> {
        let file = OpenOptions::new().create(true).append(true).open(&self.path);
        file.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Its last lines, introduced as such, to end an error message with.
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

/// Quotes a word for a POSIX shell. A word that needs no quotes stays as it is.
pub fn shell_quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A command as a person would type it.
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
        // What was read until an error is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell_only_where_needed() {
        assert_eq!(shell_quote("/home/u/.cache"), "/home/u/.cache");
        assert_eq!(shell_quote("a b"), "'a b'");
        assert_eq!(shell_quote("$HOME"), "'$HOME'");
        assert_eq!(shell_quote("it's"), r"'it'\''s'");
        assert_eq!(shell_quote(""), "''");
    }

    #[test]
    fn a_failing_command_is_described_as_it_was_typed() {
        let error = stdout(Command::new("sh").args(["-c", "echo no >&2; exit 3"])).unwrap_err();
        assert_eq!(error.to_string(), "sh -c 'echo no >&2; exit 3' failed: no");
    }

    #[test]
    fn input_reaches_the_command() {
        assert_eq!(stdout_with_input(&mut Command::new("cat"), Some("hello")).unwrap(), "hello");
    }
}
