//! What can be measured.

use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// the size of the program, as it is and compressed
    Size,
    /// memory and threads while nothing happens
    Idle,
    /// memory for pods of others
    Foreign,
    /// memory for pods of its own, the peak at the start, and the time until the first write with them
    Own,
    /// from the start of the program until its first write, without objects
    Start,
    /// from an event until the write that it causes, at 100 events a second and at 25
    Latency,
    /// processor time and writes for pods that run to completion, and a canary's waits meanwhile
    Drive,
    /// graceful hand-over of leadership
    HandOver,
    /// the same with many pods
    HandOverMany,
    /// fail-over after a crash
    Crash,
    /// what leaders write that were stopped for longer than their Lease, in many tries
    Paused,
    /// from the return of an API server that was gone for a minute until all is made up for
    Outage,
    /// from the moment in which all connections went silent until somebody has noticed and all is made up for
    Silence,
    /// requests of a manager that is started anew when everything is as it should be
    Restart,
    /// requests while nothing happens, for minutes
    Requests,
}

impl Measure {
    /// In the order in which they are measured.
    pub const ALL: [Self; 15] = [
        Self::Size,
        Self::Idle,
        Self::Requests,
        Self::Foreign,
        Self::Own,
        Self::Start,
        Self::Latency,
        Self::Drive,
        Self::HandOver,
        Self::HandOverMany,
        Self::Crash,
        Self::Paused,
        Self::Outage,
        Self::Silence,
        Self::Restart,
    ];

    /// What a kept run of it is known by, whatever measures are added, and where it stands in the document.
    pub fn kept_as(self) -> usize {
        match self {
            Self::Size => 0,
            Self::Idle => 1,
            Self::Foreign => 2,
            Self::Own => 3,
            Self::Start => 4,
            Self::Latency => 5,
            Self::Drive => 6,
            Self::HandOver => 7,
            Self::HandOverMany => 8,
            Self::Crash => 9,
            Self::Restart => 10,
            Self::Requests => 11,
            Self::Outage => 12,
            Self::Silence => 13,
            Self::Paused => 14,
        }
    }

    /// As the option has it that measures this alone.
    pub fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}
