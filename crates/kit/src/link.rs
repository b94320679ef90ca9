//! What the parts of a process tell each other about their connections to the API server.
//!
//! Each part has connections of its own, and each finds out by itself, sooner or later, that one is dead or that the
//! server is back. Whoever finds out first tells the others: a server that was gone is used again by all at once, not
//! when the longest backoff ends.

use tokio::sync::watch;

/// News about the connections. Cheap to clone; every clone is the same.
#[derive(Clone, Debug)]
pub struct Link {
    doubts: watch::Sender<u64>,
    returns: watch::Sender<u64>,
}

impl Default for Link {
    fn default() -> Self {
        Self { doubts: watch::Sender::new(0), returns: watch::Sender::new(0) }
    }
}

impl Link {
    /// A request got no answer: what is connected may be connected to nobody.
    pub fn doubt(&self) {
        self.doubts.send_modify(|doubts| *doubts += 1);
    }

    /// The server has answered somebody who had waited for that.
    pub fn is_back(&self) {
        self.returns.send_modify(|returns| *returns += 1);
    }

    /// Wakes at every doubt from now on.
    pub fn doubts(&self) -> watch::Receiver<u64> {
        self.doubts.subscribe()
    }

    /// Wakes whenever the server is back, from now on.
    pub fn returns(&self) -> watch::Receiver<u64> {
        self.returns.subscribe()
    }
}
