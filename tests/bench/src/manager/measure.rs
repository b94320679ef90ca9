//! The measures: their contenders, clusters, rows, limits and number of pairs.

use serde::{Deserialize, Serialize};

use super::contender::Contender;
use super::sizes::Sizes;
use crate::contest::order;
use crate::table::count;

/// In the order of the runs. The number identifies a stored run and orders the page; new measures come last. See
/// [`Measure::id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize, strum::VariantArray)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// size of the program, plain and compressed
    Size = 0,
    /// memory and threads of an idle manager
    Idle = 1,
    /// requests of an idle manager in some minutes
    Requests = 11,
    /// memory for foreign pods
    Foreign = 2,
    /// memory for own pods, the peak at the start, and the time until the first write with them
    Own = 3,
    /// from the start of the program to its first write, without objects
    Start = 4,
    /// from an event to the write that it causes, at 100 events a second and at 25
    Latency = 5,
    /// processor time and writes for pods that run to completion, and a canary's latency meanwhile
    Drive = 6,
    /// from a request to the first write, while a webhook keeps each pod and DaemonJobs want thousands
    SlowWebhook = 15,
    /// graceful hand-over of leadership
    HandOver = 7,
    /// graceful hand-over of leadership with many pods
    HandOverMany = 8,
    /// fail-over after a crash
    Crash = 9,
    /// writes of leaders that were paused for longer than their Lease, in many attempts
    Paused = 14,
    /// recovery after an API server outage of a minute
    Outage = 12,
    /// recovery after all connections went silent
    Silence = 13,
    /// requests of a restarted manager when all objects are in their desired state
    Restart = 10,
    /// from the start of the program until its caches are filled, with many pods, and the processor time of that
    Fill = 16,
}

/// The shown value of a pair's attempts.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    P50,
    P99,
    Worst,
    /// A single value, with the lowest and the highest of the pairs.
    Range,
}

/// A row of a table: the figure's name in samples, its label, the shown value, the decimals, and the goal.
pub type Row = (&'static str, &'static str, Part, usize, &'static str);

/// The rows of [`Measure::SlowWebhook`]: three for each kind.
const OF_SLOW_WEBHOOK: &[Row] = &[
    ("book", "Book, request to first write p50 ms", Part::P50, 0, ""),
    ("book", "p99", Part::P99, 0, "2000"),
    ("book", "worst", Part::Worst, 0, ""),
    ("greeting", "Greeting p50 ms", Part::P50, 0, ""),
    ("greeting", "p99", Part::P99, 0, "2000"),
    ("greeting", "worst", Part::Worst, 0, ""),
    ("podset", "scaled PodSet p50 ms", Part::P50, 0, ""),
    ("podset", "p99", Part::P99, 0, "2000"),
    ("podset", "worst", Part::Worst, 0, ""),
    ("pulsarconsumer", "PulsarConsumer p50 ms", Part::P50, 0, ""),
    ("pulsarconsumer", "p99", Part::P99, 0, "2000"),
    ("pulsarconsumer", "worst", Part::Worst, 0, ""),
    ("kept", "most pods in the webhook at once", Part::P50, 0, ""),
    ("least", "fewest pods of DaemonJobs in the webhook", Part::P50, 0, ""),
];

impl Measure {
    /// The identity of a stored run: the number of the measure or, if the measure has several sizes, that of the pods.
    pub fn id(self, sizes: &Sizes) -> usize {
        if self == Self::Fill { sizes.many } else { self as usize }
    }

    pub fn title(self, sizes: &Sizes) -> String {
        let many = count(sizes.many);
        match self {
            Self::Size => "Size of the program".to_owned(),
            Self::Idle => "Idle".to_owned(),
            Self::Requests => format!("Requests of idle managers in {} s", sizes.long.as_secs()),
            Self::Foreign => format!("{many} foreign pods"),
            Self::Own => format!("{many} own pods"),
            Self::Restart => format!("Restart with {many} objects"),
            Self::Start => "Start".to_owned(),
            Self::Latency => {
                format!("{} events at 100 a second, {} at 25 a second", sizes.events, sizes.calm_events)
            }
            Self::Drive => format!("{} pods to completion", sizes.jobs * sizes.nodes),
            Self::SlowWebhook => {
                let (jobs, nodes) = (sizes.slow_jobs, count(sizes.slow_nodes));
                format!("A webhook that keeps each pod 10 s, and {jobs} DaemonJobs on {nodes} nodes")
            }
            Self::HandOver => "Graceful hand-over".to_owned(),
            Self::HandOverMany => format!("Graceful hand-over with {many} pods"),
            Self::Crash => "Fail-over after a crash".to_owned(),
            Self::Paused => "Leaders that were paused for longer than their Lease".to_owned(),
            Self::Outage => format!("An API server outage of {} s", sizes.outage.as_secs()),
            Self::Silence => "Connections that went silent".to_owned(),
            Self::Fill => format!("Caches filled with {many} pods"),
        }
    }

    pub fn rows(self) -> &'static [Row] {
        use Part::{P50, P99, Range, Worst};
        match self {
            Self::Size => &[
                ("bytes", "program MiB", P50, 1, ""),
                ("compressed", "compressed MB", P50, 1, "10 (ambitious: 5)"),
            ],
            Self::Idle => &[
                ("rss", "RSS MiB", P50, 1, "12 (ambitious: 8)"),
                ("pss", "PSS MiB", P50, 1, ""),
                ("threads", "threads", P50, 0, ""),
            ],
            Self::Requests => &[
                ("requests", "requests a second", P50, 3, "0.25"),
                ("reads", "get and list", P50, 3, "0"),
                ("besides", "without renewals of the Lease", P50, 3, ""),
            ],
            Self::Foreign => &[("bytes", "RSS per pod, bytes", P50, 0, "±10")],
            Self::Own => &[
                ("bytes", "RSS per pod, bytes", P50, 0, "2048 (ambitious: 1024)"),
                ("rss", "RSS MiB", P50, 1, ""),
                ("rss-half", "RSS MiB with half of them", P50, 1, ""),
                ("rss-tenth", "RSS MiB with a tenth of them", P50, 1, ""),
                ("rss-none", "RSS MiB without pods", P50, 1, ""),
                ("peak", "peak RSS / settled RSS", P50, 2, "1.3"),
                ("first", "start to first write ms", P50, 0, "0.5 of controller-runtime's"),
            ],
            Self::Restart => &[
                ("writes", "writes", P50, 0, "0"),
                ("reads", "get and list", P50, 0, ""),
                ("steady", "get and list, later", P50, 0, "0"),
            ],
            Self::Start => &[("first", "start to first write ms", P50, 0, "0.5 of controller-runtime's")],
            Self::Latency => &[
                ("delay", "event to write p50 ms", P50, 1, "0.8 of controller-runtime's"),
                ("delay", "p99", P99, 1, "0.7 of controller-runtime's"),
                ("delay-calm", "at 25 a second, p50 ms", P50, 1, ""),
                ("delay-calm", "p99", P99, 1, ""),
            ],
            Self::Drive => &[
                ("cpu", "CPU s for 1,000 pods", P50, 2, "0.5 of controller-runtime's, tuned"),
                ("writes", "writes per pod", P50, 2, ""),
                ("refused", "rejected per pod", P50, 2, ""),
                ("seconds", "until all have succeeded s", P50, 1, ""),
                ("canary", "canary p50 ms", P50, 1, ""),
                ("canary", "canary p99 ms", P99, 1, "1000"),
                ("canary-429", "canary answered with 429", P50, 0, "0"),
                ("others", "other processes' CPU %", P50, 0, ""),
            ],
            Self::SlowWebhook => OF_SLOW_WEBHOOK,
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
                ("tries", "attempts", P50, 0, ""),
                ("writes", "writes after they resumed", P50, 0, "0"),
                ("unclean", "attempts with such a write", P50, 0, ""),
            ],
            Self::Outage => &[
                ("back", "from its return to the last pod s", P50, 1, "5 (ambitious: 2)"),
                ("restarts", "restarts of the process", P50, 0, "0"),
            ],
            Self::Silence => &[
                ("back", "from the silence to the last pod s", P50, 1, "45 (ambitious: 15)"),
                ("restarts", "restarts of the process", P50, 0, "0"),
            ],
            Self::Fill => &[
                ("seconds", "start to filled caches s", Range, 2, ""),
                ("api-cpu", "API server's CPU s", Range, 2, ""),
                ("cpu", "manager's CPU s", Range, 2, ""),
                ("sent", "events of pods MB", Range, 1, ""),
                ("peak", "peak RSS MiB", Range, 1, ""),
            ],
        }
    }

    /// The limits of Quintet's figures, as distances from 0. A quick run checks only limits of 0.
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

    pub fn nodes(self, sizes: &Sizes) -> usize {
        match self {
            Self::Drive => sizes.nodes,
            Self::SlowWebhook => sizes.slow_nodes,
            _ => 1,
        }
    }

    pub fn contenders(self) -> &'static [Contender] {
        match self {
            Self::Idle | Self::Drive => {
                &[Contender::Quintet, Contender::OtherBuild, Contender::Twin, Contender::TwinTuned]
            }
            Self::Latency => Contender::WITH_PEERS,
            // The peers run two of the kinds.
            Self::SlowWebhook => &[Contender::Quintet],
            // Both managers run at the same time, and `Twin` and `TwinTuned` share a Lease.
            Self::Requests => &[Contender::Quintet, Contender::Twin],
            Self::Paused => &[Contender::Quintet, Contender::TwinTuned],
            Self::Outage | Self::Silence => {
                &[Contender::Quintet, Contender::TwinTuned, Contender::KubeRuntime]
            }
            Self::Fill => &[Contender::Quintet, Contender::OtherBuild],
            _ => Contender::MANAGERS,
        }
    }

    /// Whether the measure compares the program with that of `--beside`.
    pub fn compares_builds(self) -> bool {
        self.contenders().contains(&Contender::OtherBuild)
    }

    /// The contenders of each cluster of a pair. If a measure is mostly the API server's time, the order on
    /// one cluster changes the result, so each contender has its own cluster.
    pub fn clusters(self, pair: usize) -> Vec<Vec<Contender>> {
        let mut contenders = order(self.contenders(), pair);
        if self == Self::Silence && pair > 1 {
            // It detects the silence when its watch ends, which takes the same time in each pair.
            contenders.retain(|contender| *contender != Contender::KubeRuntime);
        }
        let of_one =
            if matches!(self, Self::Latency | Self::Drive | Self::Own) { 1 } else { contenders.len() };
        contenders.chunks(of_one).map(<[_]>::to_vec).collect()
    }

    pub fn pairs(self, sizes: &Sizes) -> usize {
        // Two of these do not vary, two have enough attempts in one pair, and the last repeats itself with the same pods.
        let is_once =
            matches!(self, Self::Size | Self::Requests | Self::Paused | Self::SlowWebhook | Self::Fill);
        if is_once { 1 } else { sizes.pairs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_runs_check_only_limits_of_0() {
        assert_eq!(Measure::Requests.limits(true), [("reads", 0.0)]);
        assert_eq!(Measure::Own.limits(true), []);
        assert_eq!(Measure::Own.limits(false).len(), 2);
    }

    #[test]
    fn latency_has_a_cluster_for_each_contender() {
        assert_eq!(Measure::Foreign.clusters(1), [Contender::MANAGERS]);
        let all = Contender::WITH_PEERS.to_vec();
        let clusters = Measure::Latency.clusters(1);
        assert_eq!((clusters.len(), clusters.concat()), (all.len(), all.clone()));
        assert!(Measure::Latency.clusters(2).concat().iter().eq(all.iter().rev()));
        assert!(Measure::Silence.clusters(1).concat().contains(&Contender::KubeRuntime));
        assert_eq!(Measure::Silence.clusters(2), [[Contender::TwinTuned, Contender::Quintet]]);
    }
}
