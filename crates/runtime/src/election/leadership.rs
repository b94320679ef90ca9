//! The rule for dead caches: whether a candidate keeps, releases, takes or leaves the Lease.
//!
//! A leader may be able to renew the Lease while its lists and watches get no answer, e.g. if a path drops large packets.
//! No candidate knows the caches of the others. So the leader releases the Lease, and takes it back if no candidate with
//! live caches takes it.
//!
//! Invariants, while no process restarts and the API server answers requests for the Lease:
//! - A leader whose cache dies releases the Lease within [`DEAD`] and one renewal. A candidate without a dead cache
//!   takes a free Lease at once, so it leads within two minutes.
//! - A candidate with a dead cache never takes the Lease before a candidate without one had time to take it.
//! - If no manager can watch, the Lease gets another holder at most once in [`TURN`]. A process that took the Lease with
//!   a dead cache keeps it that long, and the last holder takes a free Lease first.
//! - If one type gets no answer for any manager, the leader stays the same. The Lease is free for about [`PAUSE`] in each
//!   [`TURN`]. A candidate whose caches recover meanwhile waits for the next pause: more pauses would cost the other kinds
//!   more.
//!
//! A rejection of a request is an answer: it would be the same for another manager. So neither a missing permission nor
//! a deleted CustomResourceDefinition makes a cache dead. A list is an answer as long as it makes progress. Otherwise,
//! managers with slow lists would exchange the Lease, and each new leader would list again.
//!
//! The rule uses neither the wall clock nor anything that is stored in the Lease. A process that restarts counts its
//! caches as live for [`SILENCE`], so each restart may move a free Lease.

use std::time::Duration;

/// A cache without an answer for this long is dead. A silent watch is replaced by a list before that; see
/// [`crate::cache::informer::SILENCE`].
pub const SILENCE: Duration = Duration::from_secs(90);
/// A leader with a cache that had no answer for this long releases the Lease. By then, a candidate that lost its answers
/// at the same time counts its own caches as dead.
pub const DEAD: Duration = Duration::from_secs(110);
/// How long a process keeps the Lease that it took with a dead cache, and leaves it free if all of its caches are dead.
pub const TURN: Duration = Duration::from_mins(10);
/// How long a process with some live caches leaves a free Lease to other candidates. They watch the Lease, or poll it
/// every few seconds.
pub const PAUSE: Duration = Duration::from_secs(10);

/// The knowledge of a candidate.
#[derive(Clone, Debug)]
pub struct View {
    /// How long each necessary cache has had no answer from the API server.
    pub silences: Vec<Duration>,
    /// Whether this process holds the Lease.
    pub holds: bool,
    /// How long ago this process released or took the Lease with a dead cache; None if another process has held the
    /// Lease since.
    pub yielded: Option<Duration>,
    /// How long the Lease has had no holder.
    pub free: Duration,
}

/// The next act of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Keep the Lease.
    Hold,
    /// Release the Lease for a candidate with live caches.
    Release,
    /// Leave the free Lease to other candidates.
    Abstain,
    /// Take the Lease if it is free.
    Compete,
}

impl View {
    /// Whether a cache is dead.
    pub fn has_dead_cache(&self) -> bool {
        self.silences.iter().any(|silence| *silence >= SILENCE)
    }

    /// Applies the rule of this module.
    pub fn decide(&self) -> Decision {
        if self.holds {
            let is_dead = self.silences.iter().any(|silence| *silence >= DEAD);
            let may_release = self.yielded.is_none_or(|ago| ago >= TURN);
            return if is_dead && may_release { Decision::Release } else { Decision::Hold };
        }
        if !self.has_dead_cache() {
            return Decision::Compete;
        }
        // With live caches, this process can reconcile some kinds.
        let has_live_cache = self.silences.iter().any(|silence| *silence < SILENCE);
        let patience = if has_live_cache { PAUSE } else { TURN };
        let patience = if self.yielded.is_some() { patience } else { patience + PAUSE };
        if self.free >= patience { Decision::Compete } else { Decision::Abstain }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    #[test]
    fn decides_by_caches_and_history() {
        use Decision::{Abstain, Compete, Hold, Release};
        let view = |silences: &[u64], holds, yielded: Option<u64>, free| View {
            silences: silences.iter().map(|silence| Duration::from_secs(*silence)).collect(),
            holds,
            yielded: yielded.map(Duration::from_secs),
            free: Duration::from_secs(free),
        };
        for (decision, view, why) in [
            (Hold, view(&[], true, None, 0), "a process without caches"),
            (Hold, view(&[109, 109], true, None, 0), "silent for a moment"),
            (Release, view(&[110, 110], true, None, 0), "all caches are dead"),
            (Release, view(&[0, 110], true, None, 0), "one cache is dead"),
            (Hold, view(&[700, 700], true, Some(599), 0), "released or taken not long ago"),
            (Release, view(&[700, 700], true, Some(600), 0), "after its turn"),
            (Compete, view(&[], false, None, 0), "a process without caches"),
            (Compete, view(&[89, 89], false, Some(5), 0), "live again after a release"),
            (Compete, view(&[89, 89], false, None, 0), "just started"),
            (Abstain, view(&[0, 90], false, Some(9), 9), "another candidate may be better"),
            (Compete, view(&[0, 90], false, Some(10), 10), "no other candidate has taken it"),
            (Abstain, view(&[0, 90], false, None, 19), "the last holder comes first"),
            (Compete, view(&[0, 90], false, None, 20), "the last holder is gone"),
            (Abstain, view(&[90, 90], false, Some(599), 599), "it would reconcile nothing"),
            (Compete, view(&[90, 90], false, Some(600), 600), "nor would another"),
            (Abstain, view(&[90, 90], false, None, 609), "the last holder comes first"),
            (Compete, view(&[90, 90], false, None, 610), "the last holder is gone"),
        ] {
            assert_eq!(view.decide(), decision, "{why}: {view:?}");
        }
    }

    /// The end of a simulation, in seconds.
    const END: u64 = 7_200;
    const NEVER: Range<u64> = 0..0;

    /// Runs two managers with two caches each. The ranges are the times in which a cache gets no answer. Returns when the
    /// Lease changed, and its holder then.
    fn simulate(dead: &[[Range<u64>; 2]; 2]) -> Vec<(u64, Option<usize>)> {
        let mut holder: Option<usize> = None;
        let mut changes = Vec::new();
        let mut memory: [(Option<u64>, Option<u64>); 2] = [(None, None); 2];
        for now in 0..END {
            for (me, (yielded, free)) in memory.iter_mut().enumerate() {
                if holder.is_some_and(|holder| holder != me) {
                    (*yielded, *free) = (None, None);
                    continue;
                }
                let silence = |dead: &Range<u64>| if dead.contains(&now) { now - dead.start } else { 0 };
                let view = View {
                    silences: dead[me].iter().map(|dead| Duration::from_secs(silence(dead))).collect(),
                    holds: holder == Some(me),
                    yielded: yielded.map(|at| Duration::from_secs(now - at)),
                    free: Duration::from_secs(now - *free.get_or_insert(now)),
                };
                match view.decide() {
                    Decision::Release => (holder, *yielded, *free) = (None, Some(now), Some(now)),
                    Decision::Compete => {
                        (holder, *yielded, *free) = (Some(me), view.has_dead_cache().then_some(now), None);
                    }
                    Decision::Hold | Decision::Abstain => continue,
                }
                changes.push((now, holder));
            }
        }
        changes
    }

    /// The holders in turn, each with the time when it took the Lease from another.
    fn holders(changes: &[(u64, Option<usize>)]) -> Vec<(u64, usize)> {
        let mut holders: Vec<(u64, usize)> =
            changes.iter().filter_map(|(at, holder)| Some((*at, (*holder)?))).collect();
        holders.dedup_by_key(|(_, holder)| *holder);
        holders
    }

    #[test]
    fn moves_the_lease_to_a_manager_that_can_watch() {
        for (dead, expected, why) in [
            ([[100..END, 100..END], [NEVER; 2]], vec![(0, 0), (210, 1)], "one manager is blind"),
            ([[100..END, NEVER], [NEVER; 2]], vec![(0, 0), (210, 1)], "one cache is dead"),
            ([[100..END, 100..END], [150..400, 150..400]], vec![(0, 0), (210, 1)], "the standby goes blind"),
            ([[100..END, 100..END], [100..400, 100..400]], vec![(0, 0), (400, 1)], "the standby recovers"),
            (
                [[100..400, 100..400], [500..END, 500..END]],
                vec![(0, 0), (210, 1), (611, 0)],
                "one manager after the other",
            ),
        ] {
            assert_eq!(holders(&simulate(&dead)), expected, "{why}");
        }
    }

    #[test]
    fn keeps_the_leader_if_no_manager_can_watch() {
        for (dead, most, idle, why) in [
            // The standby counts itself as live when the leader releases the Lease.
            ([[100..END, 100..END], [158..END, 158..END]], 1, END, "all caches, one manager first"),
            ([[100..END, 100..END], [100..END, 100..END]], 0, END, "all caches"),
            ([[100..END, NEVER], [100..END, NEVER]], 0, END / 50, "one type"),
            ([[100..END, NEVER], [NEVER, 100..END]], 0, END / 50, "a type each"),
        ] {
            let changes = simulate(&dead);
            let moves = holders(&changes).len() - 1;
            assert!(moves <= most, "{why}: {changes:?}");
            let free = changes.windows(2).filter(|pair| pair[0].1.is_none());
            let free: u64 = free.map(|pair| pair[1].0 - pair[0].0).sum();
            assert!(free <= idle, "{why}: free for {free} s: {changes:?}");
        }
    }
}
