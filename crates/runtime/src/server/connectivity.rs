//! What the parts of a process tell each other about their connections to the API server.
//!
//! Each part has connections of its own, and each finds out by itself, sooner or later, that one is dead or that the
//! server is back. Whoever finds out first tells the others: what may be dead is used by nobody any more
//! ([`crate::server::connection`]), and a server that was gone is used again by all at once, not when the longest backoff ends.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// How soon after it was back a server may be back again. One that comes and goes must not be used in a circle by those who
/// wake each other.
const CALM: Duration = Duration::from_secs(5);

/// News about the connections. Cheap to clone; every clone is the same.
#[derive(Clone, Debug)]
pub struct Link {
    doubts: watch::Sender<u64>,
    returns: watch::Sender<Option<Instant>>,
}

impl Default for Link {
    fn default() -> Self {
        Self { doubts: watch::Sender::new(0), returns: watch::Sender::new(None) }
    }
}

impl Link {
    /// A request got no answer: what is connected may be connected to nobody.
    pub fn doubt(&self) {
        self.doubts.send_modify(|doubts| *doubts += 1);
    }

    /// The server has answered somebody who had waited for that.
    pub fn is_back(&self) {
        self.returns.send_if_modified(|last| {
            let is_news = last.is_none_or(|at| at.elapsed() >= CALM);
            if is_news {
                *last = Some(Instant::now());
            }
            is_news
        });
    }

    /// Wakes at every doubt from now on.
    pub fn doubts(&self) -> watch::Receiver<u64> {
        self.doubts.subscribe()
    }

    /// Wakes whenever the server is back, from now on.
    pub fn returns(&self) -> watch::Receiver<Option<Instant>> {
        self.returns.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_comes_and_goes_is_not_news_each_time() {
        let link = Link::default();
        let mut returns = link.returns();
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
