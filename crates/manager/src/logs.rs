//! Logging: text or JSON on standard error, with a level that can be changed while the process runs.

mod lines;

use clap::{Args as ClapArgs, ValueEnum};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt, reload};

use self::lines::Lines;

/// How to log. Logs go to standard error, because Greetings use standard output.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Logs")]
pub struct Log {
    /// Format of the log lines.
    #[arg(long = "log-format", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Log level: error, warn, info, debug or trace, or a filter such as `info,quintet_runtime=debug`.
    #[arg(long = "log-level", value_name = "LEVEL", default_value = "info", value_parser = parse_level)]
    pub level: String,
}

/// Format of the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}

/// The current log level. Clones share it.
#[derive(Clone)]
pub struct LogHandle {
    handle: reload::Handle<Targets, Registry>,
    lines: Lines,
}

impl LogHandle {
    /// The current level or filter.
    pub fn current(&self) -> String {
        self.handle.with_current(ToString::to_string).unwrap_or_else(|error| error.to_string())
    }

    /// Waits up to a second until all lines are written.
    pub fn flush(&self) {
        self.lines.drain();
    }

    /// Changes the level or filter. The error is one sentence.
    pub fn set(&self, level: &str) -> Result<(), String> {
        let filter = filter(level)?;
        self.handle.reload(filter).map_err(|error| error.to_string())?;
        tracing::info!(level, "changed the log level");
        Ok(())
    }
}

fn filter(level: &str) -> Result<Targets, String> {
    const HOW: &str = "error, warn, info, debug or trace, or a filter such as `info,quintet_runtime=debug`";
    // The parser would read an empty filter as "errors only", and a mistyped level as the name of a module.
    if level.is_empty() {
        return Err(format!("the log level is empty: use {HOW}"));
    }
    for word in level.split(',').filter(|part| !part.contains('=')) {
        word.parse::<LevelFilter>().map_err(|_| format!("{word:?} is not a log level: use {HOW}"))?;
    }
    level.parse().map_err(|error| format!("{level:?} is not a log filter ({error}): use {HOW}"))
}

fn parse_level(level: &str) -> Result<String, String> {
    filter(level).map(|_| level.to_owned())
}

impl Log {
    /// Starts logging.
    pub fn start(&self) -> std::io::Result<LogHandle> {
        let (filter, handle) = reload::Layer::new(filter(&self.level).unwrap_or_default());
        let written = Lines::to(std::io::stderr())?;
        // The default reports a failed write on standard error, and panics if that fails.
        let lines = fmt::layer().with_writer(written.clone()).log_internal_errors(false);
        let logs = tracing_subscriber::registry().with(filter);
        match self.format {
            Format::Text => logs.with(lines.with_target(false).with_ansi(false)).init(),
            Format::Json => logs.with(lines.json().flatten_event(true)).init(),
        }
        // The default hook prints several lines, and not in the log's format.
        std::panic::set_hook(Box::new(|panic| {
            let message = panic.payload_as_str().unwrap_or_default();
            let location = panic.location().map(ToString::to_string).unwrap_or_default();
            tracing::error!(panic = message, location, "a thread panicked");
        }));
        Ok(LogHandle { handle, lines: written })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_levels_and_filters_and_rejects_others() {
        for good in ["debug", "info,quintet_runtime=debug", "off"] {
            assert_eq!(parse_level(good), Ok(good.to_owned()));
        }
        assert!(parse_level("l0ud==").unwrap_err().contains("is not a log filter"));
        assert!(parse_level("quintet_runtime=loud").unwrap_err().contains("is not a log filter"));
        assert!(parse_level("inof").unwrap_err().starts_with("\"inof\" is not a log level: use error"));
        assert!(parse_level("").unwrap_err().contains("the log level is empty"));
    }

    #[test]
    fn changes_the_level() {
        let (_filter, handle) = reload::Layer::<Targets, Registry>::new(filter("info").unwrap());
        let log = LogHandle { handle, lines: Lines::to(std::io::sink()).unwrap() };
        assert_eq!(log.current(), "info");
        log.set("debug").unwrap();
        assert_eq!(log.current(), "debug");
        assert!(log.set("l0ud==").is_err());
        assert_eq!(log.current(), "debug");
    }
}
