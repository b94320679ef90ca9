//! The sizes of a full run and of a smoke test.

use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub pairs: usize,
    /// Pods or objects of the measures with many.
    pub many: usize,
    /// Events at the high rate.
    pub events: usize,
    /// Events at the low rate, which leaves the API server time.
    pub calm_events: usize,
    /// DaemonJobs that run at once, each on every node.
    pub jobs: usize,
    pub nodes: usize,
    /// DaemonJobs whose pods a webhook keeps, each on every one of these nodes.
    pub slow_jobs: usize,
    pub slow_nodes: usize,
    /// Objects of each other kind that are created or scaled meanwhile.
    pub slow_objects: usize,
    /// Graceful hand-overs of Quintet. The controller-runtime manager has a fifth of them if it releases the
    /// Lease, else one for each pair.
    pub hand_overs: usize,
    /// Pauses of Quintet's leaders. The controller-runtime manager has a fifth of them.
    pub pauses: usize,
    /// Pauses at the same time.
    pub lanes: usize,
    /// The time after which a process counts as settled.
    pub settle: Duration,
    /// The time in which a ready standby fills its caches.
    pub standby: Duration,
    pub idle: Duration,
    /// The time in which an idle process's requests are counted: longer than a watch.
    pub long: Duration,
    pub outage: Duration,
    /// Objects that are created during a fault.
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
            slow_jobs: 16,
            slow_nodes: 5,
            slow_objects: 5,
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
            slow_jobs: 16,
            slow_nodes: 1_000,
            slow_objects: 100,
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
