//! The progress of a rollout on standard output: a bar for each step on a terminal, otherwise a line for each change.

use std::io::Write as _;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use quintet_runtime::model::rollout::{RolloutStatus, Step};
use quintet_runtime::model::table::one_line;

/// The progress on standard output. Bars disappear when it is dropped, except after [`Screen::end`].
pub struct Screen {
    /// None without a terminal.
    terminal: Option<MultiProgress>,
    bars: Vec<ProgressBar>,
    /// The last line, below the bars.
    line: Option<ProgressBar>,
    text: String,
}

impl Screen {
    /// A screen without content.
    pub fn new() -> Self {
        let terminal = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        let terminal = Some(terminal).filter(|terminal| !terminal.is_hidden());
        Self { terminal, bars: Vec::new(), line: None, text: String::new() }
    }

    /// The text that was shown last.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Shows the progress. Returns whether standard output is open.
    pub fn show(&mut self, status: &RolloutStatus) -> bool {
        self.draw(&status.steps);
        self.print(&status.message)
    }

    /// Shows a text. Returns whether standard output is open.
    pub fn print(&mut self, text: &str) -> bool {
        let text = one_line(text);
        if let Some(line) = &self.line {
            line.set_message(text.clone());
            line.force_draw();
        } else if text != self.text && !tell(&text) {
            return false;
        }
        self.text = text;
        true
    }

    /// Shows the last state of the bars, and leaves them on the terminal.
    pub fn end(&mut self, status: &RolloutStatus) {
        self.draw(&status.steps);
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
        }
        for bar in self.bars.drain(..) {
            bar.abandon();
        }
    }

    fn draw(&mut self, steps: &[Step]) {
        let Some(terminal) = self.terminal.as_ref().filter(|_| !steps.is_empty()) else { return };
        if steps.len() != self.bars.len() {
            self.line = None;
            self.bars.clear();
            let bar = |_| terminal.add(ProgressBar::no_length().with_style(style(BAR)));
            self.bars = steps.iter().map(bar).collect();
            self.line = Some(terminal.add(ProgressBar::no_length().with_style(style("{wide_msg}"))));
        }
        for (bar, step) in self.bars.iter().zip(steps) {
            bar.set_length(step.size);
            bar.set_prefix(step.name.clone());
            bar.set_message(step.note.clone());
            bar.set_position(step.done);
            bar.force_draw();
        }
    }
}

/// The template of a bar. The names of steps have about the same width.
const BAR: &str = "{prefix:8} [{bar:30}] {pos:>5}/{len:<5} {wide_msg}";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("##-")
}

/// Prints a line on standard output. Returns whether it is open.
pub fn tell(text: &str) -> bool {
    writeln!(std::io::stdout(), "{text}").is_ok()
}
