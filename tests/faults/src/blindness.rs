//! Blind managers: their lists and watches get no answer, while small requests do. Checks which manager holds the Lease
//! meanwhile.

use std::time::Duration;

use tokio::time::Instant;

/// The time in which a blind leader must hand over the Lease.
const HANDED_OVER: Duration = Duration::from_mins(2);
/// If all managers are blind, the time between two changes of the leader.
const TURN: Duration = Duration::from_mins(10);

/// A time in which managers are blind.
pub struct Blindness {
    /// The prefix of the blind managers' names.
    who: String,
    is_everywhere: bool,
    began: Instant,
    until: Instant,
    /// The holder after each write of the Lease; empty if it has none.
    holders: Vec<(Instant, String)>,
}

impl Blindness {
    /// One manager is blind for this time, or all managers whose names begin with `who`.
    pub fn new(who: String, is_everywhere: bool, length: Duration) -> Self {
        let began = Instant::now();
        Self { who, is_everywhere, began, until: began + length, holders: Vec::new() }
    }

    /// Whether lists and watches of this type get no answer. The election watches the Lease, which is small.
    pub fn hits(&self, who: &str, resource: &str) -> bool {
        resource != "leases" && who.starts_with(&self.who) && Instant::now() < self.until
    }

    /// Records the holder after a write of the Lease.
    pub fn saw(&mut self, holder: &str) {
        self.holders.push((Instant::now(), holder.to_owned()));
    }

    /// The violations.
    pub fn wrong(&self) -> Vec<String> {
        let meanwhile = self.holders.iter().filter(|(at, holder)| *at < self.until && !holder.is_empty());
        if self.is_everywhere { changes(meanwhile) } else { self.kept(meanwhile) }
    }

    /// Another manager leads two minutes after the leader became blind, and as long as it is blind.
    fn kept<'a>(&self, holders: impl Iterator<Item = &'a (Instant, String)>) -> Vec<String> {
        let late: Vec<_> = holders.filter(|(at, _)| *at >= self.began + HANDED_OVER).collect();
        let kept = late.iter().find(|(_, holder)| holder.starts_with(&self.who));
        let kept = kept.map(|(at, holder)| {
            format!("{holder} holds the Lease {} s after it became blind", (*at - self.began).as_secs())
        });
        let is_free = late.is_empty().then(|| format!("no manager has taken the Lease of {}", self.who));
        kept.into_iter().chain(is_free).collect()
    }
}

/// Violations if no manager can watch.
fn changes<'a>(holders: impl Iterator<Item = &'a (Instant, String)>) -> Vec<String> {
    let mut terms: Vec<_> = holders.collect();
    terms.dedup_by(|one, before| one.1 == before.1);
    let soon = terms.windows(3).find(|terms| terms[2].0 - terms[1].0 < TURN);
    let soon = soon.map(|terms| {
        let after = (terms[2].0 - terms[1].0).as_secs();
        format!("the Lease moves from {} to {} after {after} s; neither can watch", terms[1].1, terms[2].1)
    });
    soon.into_iter().collect()
}
