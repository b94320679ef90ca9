//! Metrics: printed lines, whether standard output is stuck, and the problems of each Greeting.

use jiff::Timestamp;
use prometheus::{IntCounter, IntCounterVec, Opts, PullingGauge, Registry};

use quintet_runtime::model::problem::{Problem, or_stalled};

use crate::api::Greeting;
use crate::handlers::Cause;
use crate::observe::Say;
use crate::printer::Printer;

/// Counts the printed lines of this process.
#[derive(Clone, Debug)]
pub struct Said {
    said: IntCounterVec,
}

impl Said {
    /// Registers the metrics of this kind.
    pub fn register(registry: &Registry, printer: Printer) -> Result<Self, prometheus::Error> {
        let help = "Printed lines by cause: create, update, delete, timer.";
        let said = IntCounterVec::new(Opts::new("quintet_greeting_said_total", help), &["cause"])?;
        registry.register(Box::new(said.clone()))?;
        let said = Self { said };
        for cause in [Cause::Create, Cause::Update, Cause::Delete, Cause::Timer] {
            said.of(cause);
        }
        let help = "Bytes reserved by lines that wait for the reader of standard output.";
        let waiting = Box::new(move || f64::from(printer.waiting()));
        let gauge = PullingGauge::new("quintet_greeting_output_waiting_bytes", help, waiting)?;
        registry.register(Box::new(gauge))?;
        Ok(said)
    }

    fn of(&self, cause: Cause) -> IntCounter {
        self.said.with_label_values(&[cause.word().to_lowercase()])
    }

    /// Counts lines that are printed together.
    pub fn count(&self, say: &Say) {
        let lines = u64::try_from(say.lines.len()).unwrap_or(u64::MAX);
        // The timer's first tick is printed together with a creation.
        let first = u64::from(say.cause == Cause::Create && say.tick.is_some());
        self.of(say.cause).inc_by(lines.saturating_sub(first));
        self.of(Cause::Timer).inc_by(first);
    }
}

/// The problems that the status shows: only a user can have the message printed.
pub fn problems(greeting: &Greeting, _now: Timestamp) -> Vec<Problem> {
    greeting.status.as_ref().map_or_else(Vec::new, |status| or_stalled(Vec::new(), &status.conditions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::printer::Room;

    #[test]
    fn the_first_tick_counts_as_one() {
        let registry = Registry::new();
        let said = Said::register(&registry, Printer::start(std::io::sink()).unwrap()).unwrap();
        let say = |cause, lines: usize, tick| Say {
            cause,
            lines: vec!["x".into(); lines],
            tick,
            room: Room::default(),
        };
        said.count(&say(Cause::Create, 3, Some(jiff::Timestamp::UNIX_EPOCH)));
        said.count(&say(Cause::Timer, 1, Some(jiff::Timestamp::UNIX_EPOCH)));
        said.count(&say(Cause::Delete, 1, None));
        let of = |cause: Cause| said.of(cause).get();
        assert_eq!([Cause::Create, Cause::Update, Cause::Timer, Cause::Delete].map(of), [2, 0, 2, 1]);
        assert!(
            registry.gather().iter().any(|family| family.name() == "quintet_greeting_output_waiting_bytes")
        );
    }
}
