//! Shares news about connections to the API server between the parts of a process.
//!
//! Each part has its own connections and detects a dead connection or a recovery at its own time. The first part to
//! detect it notifies the others: they open new connections ([`crate::server::connection`]), or retry at once instead
//! of after their backoff.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The shortest time between two reported recoveries. Otherwise the parts would wake each other in a loop while the
/// API server flaps.
const CALM: Duration = Duration::from_secs(5);

/// News about the connections. Clones are cheap and share their state.
#[derive(Clone, Debug, Default)]
pub struct Link {
    doubts: watch::Sender<u64>,
    returns: watch::Sender<Option<Instant>>,
}

impl Link {
    /// Reports that a request got no answer, so that connections may be dead.
    pub fn suspect(&self) {
        self.doubts.send_modify(|doubts| *doubts += 1);
    }

    /// Reports that the API server answers again after an outage.
    pub fn is_back(&self) {
        self.returns.send_if_modified(|last| {
            let is_news = last.is_none_or(|at| at.elapsed() >= CALM);
            if is_news {
                *last = Some(Instant::now());
            }
            is_news
        });
    }

    /// A receiver that wakes at every doubt from now on.
    pub fn doubts(&self) -> watch::Receiver<u64> {
        self.doubts.subscribe()
    }

    /// A receiver that wakes at every reported recovery from now on.
    pub fn recoveries(&self) -> watch::Receiver<Option<Instant>> {
        self.returns.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reports_a_flapping_server_at_a_limited_pace() {
        let link = Link::default();
        let mut returns = link.recoveries();
        link.is_back();
        assert!(returns.has_changed().unwrap(), "the first news is for all");
        returns.mark_unchanged();
        for _ in 0..10 {
            link.is_back();
        }
        assert!(!returns.has_changed().unwrap());
        tokio::time::advance(CALM).await;
        link.is_back();
        assert!(returns.has_changed().unwrap());
    }
}
