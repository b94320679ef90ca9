//! How much of everything a run measures.

use std::time::Duration;

/// How much of everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// How often every contender is measured.
    pub pairs: usize,
    /// Pods that are many.
    pub many: usize,
    /// Events of the open loop.
    pub events: usize,
    /// Events of the one that leaves the API server time.
    pub calm_events: usize,
    /// DaemonJobs that run at once, each on every node.
    pub jobs: usize,
    /// Nodes for them.
    pub nodes: usize,
    /// Graceful hand-overs of Quintet; the controller-runtime manager's are a fifth of that if it releases the Lease, else one a pair.
    pub hand_overs: usize,
    /// How often a leader of Quintet is stopped for longer than its Lease; the controller-runtime manager's are a fifth of that.
    pub pauses: usize,
    /// How many of them are at the same time.
    pub lanes: usize,
    /// How long a process is left alone until it counts as settled.
    pub settle: Duration,
    /// How long a standby has, once it is ready, to have caches that are warm.
    pub standby: Duration,
    /// How long a process is left alone while it is idle.
    pub idle: Duration,
    /// How long its requests are counted: longer than a watch lasts.
    pub long: Duration,
    /// How long the API server is gone.
    pub outage: Duration,
    /// Objects that are made while nothing comes through.
    pub meanwhile: usize,
}

impl Sizes {
    pub fn small() -> Self {
        let seconds = Duration::from_secs;
        Self {
            pairs: 1,
            many: 100,
            events: 50,
            calm_events: 10,
            jobs: 2,
            nodes: 5,
            hand_overs: 2,
            pauses: 4,
            lanes: 2,
            settle: seconds(1),
            standby: seconds(1),
            idle: seconds(5),
            long: seconds(5),
            outage: seconds(3),
            meanwhile: 3,
        }
    }

    pub fn full(pairs: usize) -> Self {
        let seconds = Duration::from_secs;
        Self {
            pairs,
            many: 10_000,
            events: 1_000,
            calm_events: 250,
            jobs: 5,
            nodes: 200,
            hand_overs: 100,
            pauses: 1_000,
            lanes: 50,
            settle: seconds(8),
            standby: seconds(1),
            idle: seconds(30),
            long: Duration::from_mins(20),
            outage: Duration::from_mins(1),
            meanwhile: 20,
        }
    }
}
