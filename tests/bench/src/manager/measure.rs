//! What can be measured: with what, how often, and how it is shown.

use serde::{Deserialize, Serialize};
use strum::VariantArray as _;

use super::contender::Contender;
use super::sizes::Sizes;
use crate::contest::order;
use crate::table::count;

/// What can be measured alone, in the order in which it is measured. The number is what a kept run is known by, and its
/// place in the page: a new measure has the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize, strum::VariantArray)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// the size of the program, as it is and compressed
    Size = 0,
    /// memory and threads while nothing happens
    Idle = 1,
    /// requests while nothing happens, for minutes
    Requests = 11,
    /// memory for pods of others
    Foreign = 2,
    /// memory for pods of its own, the peak at the start, and the time until the first write with them
    Own = 3,
    /// from the start of the program until its first write, without objects
    Start = 4,
    /// from an event until the write that it causes, at 100 events a second and at 25
    Latency = 5,
    /// processor time and writes for pods that run to completion, and a canary's waits meanwhile
    Drive = 6,
    /// graceful hand-over of leadership
    HandOver = 7,
    /// the same with many pods
    HandOverMany = 8,
    /// fail-over after a crash
    Crash = 9,
    /// what leaders write that were stopped for longer than their Lease, in many tries
    Paused = 14,
    /// from the return of an API server that was gone for a minute until all is made up for
    Outage = 12,
    /// from the moment in which all connections went silent until somebody has noticed and all is made up for
    Silence = 13,
    /// requests of a manager that is started anew when everything is as it should be
    Restart = 10,
}

/// What is shown of the values of a pair.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    P50,
    P99,
    Worst,
}

/// A row of a table: the figure's name in samples, its label, what is shown of it, the decimals, and the goal.
pub type Row = (&'static str, &'static str, Part, usize, &'static str);

impl Measure {
    pub fn title(self, sizes: &Sizes) -> String {
        let many = count(sizes.many);
        match self {
            Self::Size => "Size of the program".to_owned(),
            Self::Idle => "Idle".to_owned(),
            Self::Requests => format!("Requests while nothing happens, in {} s", sizes.long.as_secs()),
            Self::Foreign => format!("{many} pods of others"),
            Self::Own => format!("{many} pods of its own"),
            Self::Restart => format!("Restart with {many} objects"),
            Self::Start => "Start".to_owned(),
            Self::Latency => {
                format!("{} events at 100 a second, {} at 25 a second", sizes.events, sizes.calm_events)
            }
            Self::Drive => format!("{} pods to completion", sizes.jobs * sizes.nodes),
            Self::HandOver => "Graceful hand-over".to_owned(),
            Self::HandOverMany => format!("Graceful hand-over with {many} pods"),
            Self::Crash => "Fail-over after a crash".to_owned(),
            Self::Paused => "Leaders that were stopped for longer than their Lease".to_owned(),
            Self::Outage => format!("An API server that was gone for {} s", sizes.outage.as_secs()),
            Self::Silence => "Connections that went silent".to_owned(),
        }
    }

    pub fn rows(self) -> &'static [Row] {
        use Part::{P50, P99, Worst};
        match self {
            Self::Size => &[
                ("bytes", "program MiB", P50, 1, ""),
                ("compressed", "compressed MB", P50, 1, "10, aimed at 5"),
            ],
            Self::Idle => &[
                ("rss", "RSS MiB", P50, 1, "12, aimed at 8"),
                ("pss", "PSS MiB", P50, 1, ""),
                ("threads", "threads", P50, 0, ""),
            ],
            Self::Requests => &[
                ("requests", "requests a second", P50, 3, "0.25"),
                ("reads", "of them get and list", P50, 3, "0"),
                ("besides", "all but renewals of the Lease", P50, 3, ""),
            ],
            Self::Foreign => &[("bytes", "RSS for each pod, bytes", P50, 0, "±10")],
            Self::Own => &[
                ("bytes", "RSS for each pod, bytes", P50, 0, "2048, aimed at 1024"),
                ("rss", "RSS MiB", P50, 1, ""),
                ("rss-half", "with half of them", P50, 1, ""),
                ("rss-tenth", "with a tenth of them", P50, 1, ""),
                ("rss-none", "without", P50, 1, ""),
                ("peak", "peak at the start / settled", P50, 2, "1.3"),
                ("first", "start to first write ms", P50, 0, "0.5 of the controller-runtime manager's"),
            ],
            Self::Restart => &[
                ("writes", "writes", P50, 0, "0"),
                ("reads", "get and list", P50, 0, ""),
                ("steady", "get and list, later on", P50, 0, "0"),
            ],
            Self::Start => {
                &[("first", "start to first write ms", P50, 0, "0.5 of the controller-runtime manager's")]
            }
            Self::Latency => &[
                ("delay", "event to write p50 ms", P50, 1, "0.8 of the controller-runtime manager's"),
                ("delay", "p99", P99, 1, "0.7 of the controller-runtime manager's"),
                ("delay-calm", "at 25 a second, p50 ms", P50, 1, ""),
                ("delay-calm", "p99", P99, 1, ""),
            ],
            Self::Drive => &[
                ("cpu", "CPU s for 1,000 pods", P50, 2, "0.5 of the tuned controller-runtime manager's"),
                ("writes", "writes for each pod", P50, 2, ""),
                ("refused", "refused for each pod", P50, 2, ""),
                ("seconds", "until all have succeeded s", P50, 1, ""),
                ("canary", "canary p50 ms", P50, 1, ""),
                ("canary", "canary p99 ms", P99, 1, "1000"),
                ("canary-429", "canary asked to come later", P50, 0, "0"),
                ("others", "strangers' CPU %", P50, 0, ""),
            ],
            Self::HandOver | Self::HandOverMany => &[
                ("released", "signal to Lease released, p50 ms", P50, 0, ""),
                ("taken", "signal to Lease taken, p50 ms", P50, 0, ""),
                ("taken", "p99", P99, 0, ""),
                ("taken", "worst", Worst, 0, ""),
                ("wrote", "signal to first write, p50 ms", P50, 0, ""),
                ("wrote", "p99", P99, 0, "200"),
                ("wrote", "worst", Worst, 0, ""),
            ],
            Self::Crash => &[
                ("taken", "signal to Lease taken ms", P50, 0, ""),
                ("wrote", "signal to first write ms", P50, 0, ""),
            ],
            Self::Paused => &[
                ("tries", "tries", P50, 0, ""),
                ("writes", "writes after they woke", P50, 0, "0"),
                ("unclean", "tries with such a write", P50, 0, ""),
            ],
            Self::Outage => &[
                ("back", "from its return until made up for s", P50, 1, "5, aimed at 2"),
                ("restarts", "restarts of the process", P50, 0, "0"),
            ],
            Self::Silence => &[
                ("back", "from the silence until made up for s", P50, 1, "45, aimed at 15"),
                ("restarts", "restarts of the process", P50, 0, "0"),
            ],
        }
    }

    /// How far from nothing Quintet may come at most, where that is a count or as steady as one: figures of its rows. A small run
    /// says little about them, unless there must be none.
    pub fn limits(self, quick: bool) -> Vec<(&'static str, f64)> {
        let limits: &[(&str, f64)] = match self {
            Self::Idle => &[("rss", 12.0)],
            Self::Requests => &[("requests", 0.25), ("reads", 0.0)],
            Self::Restart => &[("writes", 0.0), ("steady", 0.0)],
            Self::Outage | Self::Silence => &[("restarts", 0.0)],
            Self::Drive => &[("canary-429", 0.0)],
            Self::Paused => &[("writes", 0.0)],
            Self::Foreign => &[("bytes", 10.0)],
            Self::Own => &[("bytes", 2_048.0), ("peak", 1.3)],
            Self::Size => &[("compressed", 10.0)],
            _ => &[],
        };
        limits.iter().copied().filter(|(_, most)| !quick || *most <= 0.0).collect()
    }

    /// How many simulated nodes the measure needs.
    pub fn nodes(self, sizes: &Sizes) -> usize {
        if self == Self::Drive { sizes.nodes } else { 1 }
    }

    /// Who is compared.
    pub fn contenders(self) -> &'static [Contender] {
        match self {
            Self::Latency => Contender::VARIANTS,
            // Both twins have one Lease, and both managers here are left alone at the same time.
            Self::Requests => &[Contender::Quintet, Contender::Twin],
            Self::Paused => &[Contender::Quintet, Contender::TwinTuned],
            Self::Outage | Self::Silence => {
                &[Contender::Quintet, Contender::TwinTuned, Contender::KubeRuntime]
            }
            _ => Contender::MANAGERS,
        }
    }

    /// Who is measured on one cluster, for each cluster of a pair. Where the API server's time is most of what is measured, it
    /// makes a difference who comes first on a cluster, so there each contender has one of its own.
    pub fn clusters(self, pair: usize) -> Vec<Vec<Contender>> {
        let mut contenders = order(self.contenders(), pair);
        if self == Self::Silence && pair > 1 {
            // Only the end of its watch tells it, and that takes as long every time.
            contenders.retain(|contender| *contender != Contender::KubeRuntime);
        }
        let of_one =
            if matches!(self, Self::Latency | Self::Drive | Self::Own) { 1 } else { contenders.len() };
        contenders.chunks(of_one).map(<[_]>::to_vec).collect()
    }

    /// How often it is measured.
    pub fn pairs(self, sizes: &Sizes) -> usize {
        // Two of them do not vary, and the third has tries enough in one.
        if matches!(self, Self::Size | Self::Requests | Self::Paused) { 1 } else { sizes.pairs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_runs_check_that_nothing_is_done() {
        assert_eq!(Measure::Requests.limits(true), [("reads", 0.0)]);
        assert_eq!(Measure::Own.limits(true), []);
        assert_eq!(Measure::Own.limits(false).len(), 2);
    }

    #[test]
    fn each_contender_has_a_cluster_where_milliseconds_count() {
        assert_eq!(Measure::Idle.clusters(1), [Contender::MANAGERS]);
        let all = Contender::VARIANTS.to_vec();
        let clusters = Measure::Latency.clusters(1);
        assert_eq!((clusters.len(), clusters.concat()), (all.len(), all.clone()));
        assert!(Measure::Latency.clusters(2).concat().iter().eq(all.iter().rev()));
        assert!(Measure::Silence.clusters(1).concat().contains(&Contender::KubeRuntime));
        assert_eq!(Measure::Silence.clusters(2), [[Contender::TwinTuned, Contender::Quintet]]);
    }
}
