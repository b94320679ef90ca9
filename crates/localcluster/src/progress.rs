//! Progress for the user: a spinner with the elapsed time on a terminal, plain lines in a log. All of it goes
//! to stderr; stdout is for results.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::run;

/// How often a long step prints a line to a log.
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);

/// A task that takes a while. If dropped without [`Step::done`], it only removes its spinner.
#[derive(Debug)]
pub struct Step {
    label: String,
    started: Instant,
    cpu: Option<f64>,
    spinner: Option<ProgressBar>,
    spoke: Instant,
}

impl Step {
    /// Begins a step, with a label such as "starting etcd".
    pub fn start(label: impl Into<String>) -> Self {
        let label = label.into();
        let spinner = stderr().is_terminal().then(|| {
            let spinner = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                spinner.set_style(style);
            }
            spinner.set_message(label.clone());
            spinner.enable_steady_tick(Duration::from_millis(120));
            spinner
        });
        let cpu = run::cpu_of_children();
        Self { label, started: Instant::now(), cpu, spinner, spoke: Instant::now() }
    }

    /// Begins a step that may take minutes, and prints its label to a log at once.
    pub fn start_long(label: impl Into<String>) -> Self {
        let step = Self::start(label);
        if step.spinner.is_none() {
            eprintln!("{} ...", step.label);
        }
        step
    }

    /// To be called while waiting, so that a log shows that the step continues.
    pub fn tick(&mut self) {
        if self.spinner.is_none() && self.spoke.elapsed() >= SIGN_OF_LIFE {
            self.spoke = Instant::now();
            eprintln!("  still {} ({:.0} s)", self.label, self.started.elapsed().as_secs_f64());
        }
    }

    /// Ends the step and prints how long it took.
    pub fn done(mut self) {
        let line = format!("{} ({:.1} s)", self.label, self.started.elapsed().as_secs_f64());
        self.clear();
        eprintln!("{line}");
    }

    /// As [`Step::done`], for a build. Also prints the CPU time of the children that exited during the step, if it was at
    /// least a second, and returns it in seconds, if the system reports it.
    pub fn built(mut self) -> Option<f64> {
        let cpu = self.cpu.and_then(|before| Some(run::cpu_of_children()? - before));
        let spent = cpu.filter(|cpu| *cpu >= 1.0).map(|cpu| format!(", {cpu:.0} s of CPU time"));
        let spent = spent.unwrap_or_default();
        let line = format!("{} ({:.1} s{spent})", self.label, self.started.elapsed().as_secs_f64());
        self.clear();
        eprintln!("{line}");
        cpu
    }

    fn clear(&mut self) {
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.clear();
    }
}
