//! Progress for the user: a spinner with the elapsed time on a terminal, plain lines in a log. All of it goes
//! to stderr; stdout is for results.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// How often a long step prints a line to a log.
const SIGN_OF_LIFE: Duration = Duration::from_secs(30);

/// A task that takes a while. If dropped without [`Step::done`], it only removes its spinner.
#[derive(Debug)]
pub struct Step {
    label: String,
    started: Instant,
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
        Self { label, started: Instant::now(), spinner, spoke: Instant::now() }
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
