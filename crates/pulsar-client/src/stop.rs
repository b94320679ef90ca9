//! The signals that stop the consumer, and the deadline of its shutdown.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use crate::exit::Failure;

/// The time limit to print the received messages at shutdown.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// SIGTERM and SIGINT.
#[derive(Debug)]
pub struct Stop {
    term: Signal,
    int: Signal,
    /// The time of the signal.
    signalled_at: Option<Instant>,
}

impl Stop {
    /// Listens for both.
    pub fn listen() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::other(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            term: listen(SignalKind::terminate())?,
            int: listen(SignalKind::interrupt())?,
            signalled_at: None,
        })
    }

    /// Waits for a signal. Cancel safe.
    pub async fn wanted(&mut self) {
        tokio::select! {
            _ = self.term.recv() => {}
            _ = self.int.recv() => {}
        }
        self.signalled_at.get_or_insert_with(Instant::now);
    }

    /// The deadline of the shutdown, the same for all its waits.
    pub fn deadline(&self) -> Instant {
        self.signalled_at.unwrap_or_else(Instant::now) + DRAIN_LIMIT
    }
}
