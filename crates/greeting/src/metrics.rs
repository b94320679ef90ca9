//! Metrics: printed lines, and whether standard output is stuck. None has a label for each Greeting.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

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
        for cause in [Cause::Create, Cause::Update, Cause::Delete, Cause::Timer] {
            said.with_label_values(&[cause.name()]);
        }
        let help = "Bytes reserved by lines that wait for the reader of standard output.";
        let gauge = IntGauge::new("quintet_greeting_output_waiting_bytes", help)?;
        registry.register(Box::new(Waiting { gauge, printer }))?;
        Ok(Self { said })
    }

    /// Counts lines that are printed together.
    pub fn count(&self, say: &Say) {
        let lines = u64::try_from(say.lines.len()).unwrap_or(u64::MAX);
        // The timer's first tick is printed together with a creation.
        let first = u64::from(say.cause == Cause::Create && say.tick.is_some());
        let count = |cause: Cause, lines| self.said.with_label_values(&[cause.name()]).inc_by(lines);
        count(say.cause, lines.saturating_sub(first));
        if first > 0 {
            count(Cause::Timer, first);
        }
    }
}

/// Reads the printer at each scrape.
struct Waiting {
    gauge: IntGauge,
    printer: Printer,
}

impl Collector for Waiting {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set(i64::try_from(self.printer.waiting()).unwrap_or(i64::MAX));
        self.gauge.collect()
    }
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
            room: Room::unbounded(),
        };
        said.count(&say(Cause::Create, 3, Some(jiff::Timestamp::UNIX_EPOCH)));
        said.count(&say(Cause::Timer, 1, Some(jiff::Timestamp::UNIX_EPOCH)));
        said.count(&say(Cause::Delete, 1, None));
        let of = |cause: Cause| said.said.with_label_values(&[cause.name()]).get();
        assert_eq!([Cause::Create, Cause::Update, Cause::Timer, Cause::Delete].map(of), [2, 0, 2, 1]);
        assert!(
            registry.gather().iter().any(|family| family.name() == "quintet_greeting_output_waiting_bytes")
        );
    }
}
