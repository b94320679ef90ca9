//! How much of everything a run measures.

use std::time::Duration;

/// A tenth and half of so many pods.
pub fn fewer(many: usize) -> (usize, usize) {
    (many / 10, many / 2)
}

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
    /// Graceful hand-overs of Quintet; the twin's are a fifth of that if it releases the Lease, else one a pair.
    pub hand_overs: usize,
    /// How often a leader of Quintet is stopped for longer than its Lease; the twin's are a fifth of that.
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
