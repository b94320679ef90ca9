//! Whether this process may write: the gate that every write asks. The election opens and closes it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::model::clock::{self, Moment};
use crate::model::progress::Progress;

/// How often whoever writes looks whether the machine has slept.
const LOOK: Duration = Duration::from_secs(1);

/// How long writes may take to be cancelled when another process holds the lease.
pub(crate) const CANCEL: Duration = Duration::from_secs(1);

/// How often whoever writes says that it goes on.
pub const BEAT: Duration = Duration::from_secs(1);

/// How far a holder that has released the lease had seen what each of its caches holds, by the cache's scope: a successor
/// that has seen as much need not list it anew.
pub type Seen = BTreeMap<String, u64>;

/// Whether this process may write. Cheap to clone; every clone is the same gate.
#[derive(Clone, Debug)]
pub struct Gate {
    state: watch::Sender<Option<Term>>,
    /// What the predecessor of the current term had seen.
    handed: Arc<Mutex<Seen>>,
    /// When the last term began, also after its end.
    since: Arc<Mutex<Option<Instant>>>,
    /// Whether it was tried at least once to open it.
    tried: watch::Sender<bool>,
    /// When whoever writes has last said that it goes on; None where it never did.
    beat: Arc<Mutex<Option<Instant>>>,
    /// Writes that are under way.
    writing: Arc<AtomicUsize>,
    /// For how long the machine has slept until now.
    asleep: fn() -> Duration,
}

/// How long this process has been and may go on writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Since when, without a gap.
    pub since: Instant,
    /// Until when, unless it is prolonged.
    pub until: Instant,
    /// For how long the machine had slept when that was set.
    asleep: Duration,
}

impl Gate {
    /// A gate that is closed until the lease is held.
    pub fn closed() -> Self {
        Self {
            state: watch::Sender::new(None),
            handed: Arc::default(),
            since: Arc::default(),
            tried: watch::Sender::new(false),
            beat: Arc::default(),
            writing: Arc::default(),
            asleep: clock::asleep,
        }
    }

    /// A gate that is always open: election is switched off.
    pub fn open() -> Self {
        let gate = Self::closed();
        // Far enough to mean never, near enough not to overflow.
        gate.open_until(Instant::now() + Duration::from_hours(262_800));
        gate.tried.send_replace(true);
        gate
    }

    /// A gate that is closed, and asks this for how long the machine has slept.
    #[cfg(test)]
    pub(crate) fn with_sleep(asleep: fn() -> Duration) -> Self {
        Self { asleep, ..Self::closed() }
    }

    /// Waits until it was tried at least once to open it: a list that begins then need not be repeated by a process that
    /// leads from its start.
    pub async fn tried(&self) {
        let mut tried = self.tried.subscribe();
        let _ = tried.wait_for(|tried| *tried).await;
    }

    /// Takes note that it was tried to open it.
    pub(crate) fn note_try(&self) {
        self.tried.send_replace(true);
    }

    /// How far the predecessor of the current term had seen what a cache of this scope holds; None where it did not say.
    pub fn handed(&self, scope: &str) -> Option<u64> {
        self.predecessor().get(scope).copied()
    }

    /// Says what the predecessor of the next term had seen.
    pub fn hand_over(&self, seen: Seen) {
        *self.predecessor() = seen;
    }

    fn predecessor(&self) -> MutexGuard<'_, Seen> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current term; None where this process may not write.
    pub fn term(&self) -> Option<Term> {
        let term = (*self.state.borrow())?;
        // While the machine slept, the others went on.
        let until = term.until.checked_sub((self.asleep)().saturating_sub(term.asleep))?;
        (until > Instant::now()).then_some(Term { until, ..term })
    }

    /// Waits until the term that began at `since` is over: another process was seen to hold the lease, or the term was not
    /// prolonged in time, perhaps since the machine has slept.
    pub async fn over(&self, since: Instant) {
        let mut state = self.state.subscribe();
        let other = |term: &Option<Term>| term.is_none_or(|term| term.since != since);
        while let Some(term) = self.term() {
            // No clock wakes anybody for the time that the machine has slept: it is looked at.
            let look = term.until.min(Instant::now() + LOOK);
            if timeout_at(look, state.wait_for(other)).await.is_ok() {
                return;
            }
        }
    }

    /// What `work` comes to, or nothing where the term that began at `since` is over first. The clock is looked at before each
    /// of its steps, and not only when a timer says so: a process that was stopped and wakes too late takes none.
    pub(crate) async fn while_held<F: Future>(&self, since: Instant, work: F) -> Option<F::Output> {
        let (mut work, mut over) = (pin!(work), pin!(self.over(since)));
        let fence = self.fence(since);
        poll_fn(|context| {
            if !fence.holds() || over.as_mut().poll(context).is_ready() {
                return Poll::Ready(None);
            }
            work.as_mut().poll(context).map(Some)
        })
        .await
    }

    /// What tells whether the term that began at `since` is over.
    pub(crate) fn fence(&self, since: Instant) -> Fence {
        Fence { gate: self.clone(), since }
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment { at: Instant::now(), asleep: (self.asleep)() }
    }

    pub(crate) fn elapsed(&self, since: Moment) -> Duration {
        since.at.elapsed() + (self.asleep)().saturating_sub(since.asleep)
    }

    /// Until when this process may write; None where it may not.
    pub fn deadline(&self) -> Option<Instant> {
        self.term().map(|term| term.until)
    }

    /// Opens it until `until`, or moves the deadline of the current term.
    pub fn open_until(&self, until: Instant) {
        self.set(until, (self.asleep)());
    }

    /// Opens it for so long from `began` on, or moves the deadline of the current term.
    pub(crate) fn open_for(&self, length: Duration, began: Moment) {
        self.set(began.at + length, began.asleep);
    }

    fn set(&self, until: Instant, asleep: Duration) {
        let since = self.term().map_or_else(Instant::now, |term| term.since);
        *self.since.lock().unwrap_or_else(PoisonError::into_inner) = Some(since);
        self.state.send_replace(Some(Term { since, until, asleep }));
    }

    /// Whether a cache of this scope shows what was written before the last term, whether or not that has ended: it was
    /// listed since, or has come as far as the predecessor had.
    pub fn is_caught_up(&self, scope: &str, progress: &Progress) -> bool {
        let since = *self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.is_some_and(|since| progress.listed >= Some(since))
            || self.handed(scope).is_some_and(|seen| progress.position >= seen)
    }

    /// Closes it.
    pub fn close(&self) {
        self.state.send_replace(None);
    }

    /// Says that whoever writes goes on. Who says so once says it every [`BEAT`]: the election runs on a thread of its own,
    /// and must not keep the lease for others that hang.
    pub fn heartbeat(&self) {
        *self.beat.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// For how long whoever writes has not said that it goes on.
    pub(crate) fn since_heartbeat(&self) -> Duration {
        let beat = *self.beat.lock().unwrap_or_else(PoisonError::into_inner);
        beat.map_or(Duration::ZERO, |beat| beat.elapsed())
    }

    /// A write is under way until this is dropped.
    pub fn writing(&self) -> Writing {
        self.writing.fetch_add(1, Ordering::Relaxed);
        Writing { writing: self.writing.clone() }
    }

    /// Whether the writes that were under way are cancelled in time.
    pub(crate) async fn is_cancelled(&self) -> bool {
        let began = Instant::now();
        while self.writing.load(Ordering::Relaxed) > 0 {
            if began.elapsed() >= CANCEL {
                return false;
            }
            sleep(CANCEL / 20).await;
        }
        true
    }

    /// Wakes whenever it opens, closes or its deadline moves.
    pub fn watch(&self) -> watch::Receiver<Option<Term>> {
        self.state.subscribe()
    }
}

/// A term, for what was begun in it and must not go on after it.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    gate: Gate,
    since: Instant,
}

impl Fence {
    /// Whether the term still lasts, by the clock.
    pub(crate) fn holds(&self) -> bool {
        self.gate.term().is_some_and(|term| term.since == self.since)
    }
}

/// A write that is under way.
#[derive(Debug)]
pub struct Writing {
    writing: Arc<AtomicUsize>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.writing.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// The monotonic clock stands still while a machine sleeps, and the others' clocks do not.
    #[tokio::test(start_paused = true)]
    async fn a_term_goes_on_while_the_machine_sleeps() {
        use std::sync::atomic::{AtomicU64, Ordering};
        static SLEPT: AtomicU64 = AtomicU64::new(0);
        let gate = Gate::with_sleep(|| Duration::from_secs(SLEPT.load(Ordering::Relaxed)));
        let began = gate.moment();
        gate.open_for(Duration::from_secs(10), began);
        SLEPT.store(4, Ordering::Relaxed);
        let left = gate.deadline().unwrap() - Instant::now();
        assert_eq!((left, gate.elapsed(began)), (Duration::from_secs(6), Duration::from_secs(4)));
        SLEPT.store(10, Ordering::Relaxed);
        assert!(gate.deadline().is_none(), "it woke up too late");
        // An answer that came while it slept does not count from when it was read.
        gate.open_for(Duration::from_secs(10), began);
        assert!(gate.deadline().is_none());
        gate.open_for(Duration::from_secs(10), gate.moment());
        assert!(gate.deadline().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_loses_a_term_is_told() {
        let gate = Gate::closed();
        gate.open_until(Instant::now() + Duration::from_secs(10));
        let since = gate.term().unwrap().since;
        assert!(timeout(Duration::from_secs(5), gate.over(since)).await.is_err(), "it is held");
        sleep(Duration::from_secs(1)).await;
        gate.close();
        gate.open_until(Instant::now() + Duration::from_secs(10));
        gate.over(since).await;
    }

    /// A process that is stopped sees its timers late: what was ready when it woke must not run before they do.
    #[test]
    fn nothing_is_done_in_a_term_that_ended_unnoticed() {
        use std::sync::atomic::AtomicBool;
        static ASLEEP: AtomicBool = AtomicBool::new(false);
        let asleep = || if ASLEEP.load(Ordering::Relaxed) { Duration::from_hours(1) } else { Duration::ZERO };
        let gate = Gate::with_sleep(asleep);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _context = runtime.enter();
        gate.open_until(Instant::now() + Duration::from_mins(1));
        let since = gate.term().unwrap().since;
        let mut steps = 0;
        let mut work = stepwise(gate.while_held(
            since,
            poll_fn(|_| {
                steps += 1;
                if steps < 3 { Poll::Pending } else { Poll::Ready(()) }
            }),
        ));
        assert!(work().is_pending() && work().is_pending());
        // No timer has told of it.
        ASLEEP.store(true, Ordering::Relaxed);
        assert_eq!(work(), Poll::Ready(None));
        drop(work);
        assert_eq!(steps, 2);
    }

    /// Takes one step of a future whenever it is called.
    fn stepwise<F: Future>(future: F) -> impl FnMut() -> Poll<F::Output> {
        let mut future = Box::pin(future);
        move || future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_that_is_prolonged_is_not_over() {
        let gate = Gate::closed();
        let began = Instant::now();
        gate.open_until(began + Duration::from_millis(3_500));
        let since = gate.term().unwrap().since;
        let over = async {
            gate.over(since).await;
            began.elapsed()
        };
        let prolonged = async {
            sleep(Duration::from_secs(2)).await;
            gate.open_until(began + Duration::from_millis(5_500));
        };
        let (over, ()) = futures::join!(over, prolonged);
        assert_eq!(over.as_millis(), 5_500, "and to the moment when it is");
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_closes_by_itself_at_its_deadline() {
        let gate = Gate::closed();
        assert!(gate.deadline().is_none());
        gate.open_until(Instant::now() + Duration::from_secs(10));
        assert!(gate.deadline().is_some());
        sleep(Duration::from_secs(10)).await;
        assert!(gate.deadline().is_none());
    }
}
