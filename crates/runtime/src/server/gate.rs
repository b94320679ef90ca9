//! Whether this process may write. Every write asks the gate, and the election opens and closes it.

use std::collections::{BTreeMap, HashMap};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use crate::lock;
use crate::model::clock::{self, Moment};
use crate::model::progress::Progress;
use crate::model::resource::Resource;

/// How often a running write checks whether the machine has slept.
const LOOK: Duration = Duration::from_secs(1);

/// The time limit for cancelling writes when another process holds the Lease.
pub(crate) const CANCEL: Duration = Duration::from_secs(1);

/// The interval of heartbeats from the writing part of the process.
pub const BEAT: Duration = Duration::from_secs(1);
/// How long further evidence of a restore does not start the term again: behind a load balancer, an API server that was not
/// restarted lists the lost objects in turn with the others.
const CALM: Duration = Duration::from_mins(2);

/// The resourceVersion that the previous holder had seen, by cache scope. The holder records it when it releases the
/// Lease. A cache that has seen it too needs no relist.
pub type Seen = BTreeMap<String, u64>;

/// Whether this process may write. Clones are cheap and share their state.
#[derive(Clone, Debug)]
pub struct Gate {
    state: watch::Sender<Option<Term>>,
    /// The record of the current term's predecessor.
    handed: Arc<Mutex<Seen>>,
    /// The start of the last term, even after its end.
    since: Arc<Mutex<Option<Instant>>>,
    /// When this process last noticed that etcd was restored. Lists from before may show lost changes. Each proof wakes the
    /// receivers, even if it changes nothing.
    restored: watch::Sender<Option<Instant>>,
    /// How often that was noticed since the metric was last updated.
    restores: Arc<AtomicU64>,
    /// The highest resourceVersion in the answers to this process's writes since then, by type.
    written: Arc<Mutex<HashMap<Resource, u64>>>,
    /// Wakes the controllers after a list that followed writes of this process which no watch had shown.
    unshown: watch::Sender<()>,
    /// Whether the election has made its first attempt.
    tried: watch::Sender<bool>,
    /// The last heartbeat; None before the first one.
    beat: Arc<Mutex<Option<Instant>>>,
    /// The number of running writes.
    writing: Arc<AtomicUsize>,
    /// Returns how long the machine has slept so far.
    asleep: fn() -> Duration,
    /// Whether an election opens and closes the gate.
    elects: bool,
    /// The holder of the Lease that the election observed last; None before, and while the Lease is free.
    holder: Arc<Mutex<Option<Holder>>>,
}

/// The holder of the Lease, as this process observed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The identity in the Lease.
    pub identity: Arc<str>,
    /// Whether it is this process.
    pub is_ours: bool,
    /// When this process observed the last renewal.
    pub renewed: Instant,
}

/// The leader, as this process knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// This process writes without an election.
    Unelected,
    /// This process may write.
    Leads,
    /// This process holds the Lease, but did not renew it in time, so it may not write.
    Overdue,
    /// Another process holds the Lease.
    Standby(Holder),
    /// This process has observed no holder.
    NoLeader,
}

/// The period in which this process may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The start; the term has had no gap since, and no restore of etcd was noticed since.
    pub since: Instant,
    /// The end, unless the election extends the term.
    pub until: Instant,
    /// How long the machine had slept when `until` was set.
    asleep: Duration,
}

impl Term {
    /// The rest of the term, if the machine has slept for this time so far; None if the term is over.
    fn left(self, asleep: Duration) -> Option<Self> {
        // The other processes' clocks ran while this machine slept, so subtract the sleep from the term.
        let until = self.until.checked_sub(asleep.saturating_sub(self.asleep))?;
        (until > Instant::now()).then_some(Self { until, ..self })
    }
}

impl Gate {
    /// A gate that stays closed until the process holds the Lease.
    pub fn closed() -> Self {
        Self {
            state: watch::Sender::new(None),
            handed: Arc::default(),
            since: Arc::default(),
            restored: watch::Sender::new(None),
            restores: Arc::default(),
            written: Arc::default(),
            unshown: watch::Sender::new(()),
            tried: watch::Sender::new(false),
            beat: Arc::default(),
            writing: Arc::default(),
            asleep: clock::asleep,
            elects: true,
            holder: Arc::default(),
        }
    }

    /// A gate that is always open, for a process without leader election.
    pub fn open() -> Self {
        let gate = Self { elects: false, ..Self::closed() };
        // 30 years: longer than any process runs, and short enough not to overflow.
        gate.open_until(Instant::now() + Duration::from_hours(262_800));
        gate.tried.send_replace(true);
        gate
    }

    /// A closed gate that takes the sleep time of the machine from `asleep`.
    #[cfg(test)]
    pub(crate) fn with_sleep(asleep: fn() -> Duration) -> Self {
        Self { asleep, ..Self::closed() }
    }

    /// Waits for the election's first attempt. A list that starts after a successful attempt belongs to the term, so
    /// the new leader need not repeat it.
    pub async fn tried(&self) {
        let mut tried = self.tried.subscribe();
        let _ = tried.wait_for(|tried| *tried).await;
    }

    /// Records the holder in the Lease, and when its last renewal was observed. An empty holder means that the Lease is
    /// free.
    pub(crate) fn note_holder(&self, identity: &str, is_ours: bool, renewed: Option<Instant>) {
        let renewed = renewed.unwrap_or_else(Instant::now);
        let holder = Holder { identity: identity.into(), is_ours, renewed };
        *lock(&self.holder) = Some(holder).filter(|holder| !holder.identity.is_empty());
    }

    /// The leader, as this process knows it.
    pub fn leadership(&self) -> Leadership {
        if !self.elects {
            return Leadership::Unelected;
        }
        if self.term().is_some() {
            return Leadership::Leads;
        }
        match lock(&self.holder).clone() {
            None => Leadership::NoLeader,
            Some(holder) if holder.is_ours => Leadership::Overdue,
            Some(holder) => Leadership::Standby(holder),
        }
    }

    /// Records an attempt of the election.
    pub(crate) fn mark_attempted(&self) {
        self.tried.send_replace(true);
    }

    /// The resourceVersion that the predecessor had seen for this cache scope; None if it recorded none.
    pub fn handed(&self, scope: &str) -> Option<u64> {
        lock(&self.handed).get(scope).copied()
    }

    /// Sets the record of the next term's predecessor.
    pub fn hand_over(&self, seen: Seen) {
        *lock(&self.handed) = seen;
    }

    /// The current term; None if this process may not write.
    pub fn term(&self) -> Option<Term> {
        let term = (*self.state.borrow())?;
        term.left((self.asleep)())
    }

    /// Waits until the term that began at `since` is over: the gate was closed, or the term was not extended in time.
    pub async fn over(&self, since: Instant) {
        let mut state = self.state.subscribe();
        let other = |term: &Option<Term>| term.is_none_or(|term| term.since != since);
        while let Some(term) = self.term() {
            // No timer runs while the machine sleeps, so check the sleep time at intervals.
            let look = term.until.min(Instant::now() + LOOK);
            if timeout_at(look, state.wait_for(other)).await.is_ok() {
                return;
            }
        }
    }

    /// Runs `work`. Returns None if the term that began at `since` ends first. The clock is checked before each poll
    /// of `work`, because a process that was stopped gets its timers late.
    pub async fn while_held<F: Future>(&self, since: Instant, work: F) -> Option<F::Output> {
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

    /// A check of the term that began at `since`.
    pub(crate) fn fence(&self, since: Instant) -> Fence {
        Fence { gate: self.clone(), since }
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment { at: Instant::now(), asleep: (self.asleep)() }
    }

    pub(crate) fn elapsed(&self, since: Moment) -> Duration {
        since.at.elapsed() + (self.asleep)().saturating_sub(since.asleep)
    }

    /// The end of the current term; None if this process may not write.
    pub fn deadline(&self) -> Option<Instant> {
        self.term().map(|term| term.until)
    }

    /// Opens the gate until `until`, or moves the end of the current term.
    pub fn open_until(&self, until: Instant) {
        self.set(until, (self.asleep)());
    }

    /// Opens the gate for `length` from `began` on, or moves the end of the current term.
    pub(crate) fn open_for(&self, length: Duration, began: Moment) {
        self.set(began.at + length, began.asleep);
    }

    fn set(&self, until: Instant, asleep: Duration) {
        let slept = (self.asleep)();
        // A restore may start the term again at this moment.
        self.state.send_modify(|state| {
            let since = state.and_then(|term| term.left(slept)).map_or_else(Instant::now, |term| term.since);
            *lock(&self.since) = Some(since);
            *state = Some(Term { since, until, asleep });
        });
    }

    /// Reports that the store is older than this process knew at `known`, because etcd was restored. Plans may follow from
    /// changes that are lost. So the term starts again, and every cache must be listed again. Returns false if this was
    /// already reported after `known`, or within [`CALM`].
    pub fn restored(&self, known: Option<Instant>) -> bool {
        let now = Instant::now();
        let mut is_news = false;
        self.restored.send_modify(|last| {
            is_news = *last <= known && last.is_none_or(|last| last.elapsed() >= CALM);
            if is_news {
                *last = Some(now);
            }
        });
        if is_news {
            self.restores.fetch_add(1, Ordering::Relaxed);
            lock(&self.written).clear();
            self.hand_over(Seen::new());
            self.state.send_if_modified(|state| {
                if let Some(term) = state {
                    term.since = now;
                }
                state.is_some()
            });
        }
        is_news
    }

    /// Records the resourceVersion in the answer to a write of this type.
    pub fn wrote(&self, resource: Resource, version: u64) {
        let mut written = lock(&self.written);
        let highest = written.entry(resource).or_default();
        *highest = version.max(*highest);
    }

    /// The highest resourceVersion that this process knows to be stored by its own writes of this type. The cache may never
    /// show it, if a restore of etcd loses the write.
    pub(crate) fn written(&self, resource: &Resource) -> u64 {
        lock(&self.written).get(resource).copied().unwrap_or_default()
    }

    /// Reports that a list followed writes of this process which no watch had shown. A restore of etcd may have lost them, and
    /// no change would wake their owners.
    pub(crate) fn report_unshown(&self) {
        self.unshown.send_replace(());
    }

    /// A receiver that each [`Self::report_unshown`] wakes.
    pub(crate) fn unshown(&self) -> watch::Receiver<()> {
        self.unshown.subscribe()
    }

    /// Whether a cache has its history, and was listed since the last restore of etcd.
    pub(crate) fn is_current(&self, progress: &Progress) -> bool {
        !progress.expired && progress.listed >= *self.restored.borrow()
    }

    /// A receiver of the last time when this process noticed a restore of etcd. Each proof of a restore wakes it.
    pub(crate) fn restores(&self) -> watch::Receiver<Option<Instant>> {
        self.restored.subscribe()
    }

    /// How often this process noticed a restore of etcd since the last call.
    pub fn take_restores(&self) -> u64 {
        self.restores.swap(0, Ordering::Relaxed)
    }

    /// Whether a cache of this scope shows all writes from before the last term, even after that term's end. The
    /// cache was listed since its start, or has seen as much as the predecessor. A cache that needs a list shows none.
    pub fn is_caught_up(&self, scope: &str, progress: &Progress) -> bool {
        let since = *lock(&self.since);
        let is_listed = since.is_some_and(|since| progress.listed >= Some(since));
        self.is_current(progress)
            && (is_listed || self.handed(scope).is_some_and(|seen| progress.position >= seen))
    }

    /// Closes the gate.
    pub fn close(&self) {
        self.state.send_replace(None);
    }

    /// Records a heartbeat, which must follow every [`BEAT`] from the first one on. The election has its own thread,
    /// and must not keep the Lease while the rest of the process hangs.
    pub fn heartbeat(&self) {
        *lock(&self.beat) = Some(Instant::now());
    }

    /// The time since the last heartbeat; zero before the first one.
    pub(crate) fn since_heartbeat(&self) -> Duration {
        let beat = *lock(&self.beat);
        beat.map_or(Duration::ZERO, |beat| beat.elapsed())
    }

    /// Counts a write as running until the returned guard is dropped.
    pub fn writing(&self) -> Writing {
        self.writing.fetch_add(1, Ordering::Relaxed);
        Writing { writing: self.writing.clone() }
    }

    /// Waits for running writes to end. Returns whether they ended within the limit.
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

    /// A receiver that wakes when the gate opens or closes, or when its deadline moves.
    pub fn watch(&self) -> watch::Receiver<Option<Term>> {
        self.state.subscribe()
    }
}

/// Lets work that started in a term check whether the term still lasts.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    gate: Gate,
    since: Instant,
}

impl Fence {
    /// Whether the term still lasts. Reads the clock.
    pub(crate) fn holds(&self) -> bool {
        self.gate.term().is_some_and(|term| term.since == self.since)
    }
}

/// A running write.
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

    /// The monotonic clock stops while a machine sleeps; the clocks of other machines do not.
    #[tokio::test(start_paused = true)]
    async fn a_term_elapses_while_the_machine_sleeps() {
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
        // A renewal counts from before its request, even if the machine slept before the answer was read.
        gate.open_for(Duration::from_secs(10), began);
        assert!(gate.deadline().is_none());
        gate.open_for(Duration::from_secs(10), gate.moment());
        assert!(gate.deadline().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn reports_who_leads() {
        assert_eq!(Gate::open().leadership(), Leadership::Unelected);
        let gate = Gate::closed();
        assert_eq!(gate.leadership(), Leadership::NoLeader);
        let other = Holder { identity: "other".into(), is_ours: false, renewed: Instant::now() };
        gate.note_holder("other", false, Some(other.renewed));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(gate.leadership(), Leadership::Standby(other));
        gate.note_holder("us", true, None);
        gate.open_until(Instant::now() + Duration::from_secs(10));
        assert_eq!(gate.leadership(), Leadership::Leads);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(gate.leadership(), Leadership::Overdue, "the renew deadline has passed");
        gate.note_holder("", false, None);
        assert_eq!(gate.leadership(), Leadership::NoLeader, "the Lease is free");
    }

    #[tokio::test(start_paused = true)]
    async fn over_returns_when_the_gate_reopens_for_a_new_term() {
        let gate = Gate::closed();
        gate.open_until(Instant::now() + Duration::from_secs(10));
        let since = gate.term().unwrap().since;
        assert!(timeout(Duration::from_secs(5), gate.over(since)).await.is_err(), "it is held");
        sleep(Duration::from_secs(1)).await;
        gate.close();
        gate.open_until(Instant::now() + Duration::from_secs(10));
        gate.over(since).await;
    }

    /// A process that was stopped gets its timers late, so ready work must not run before them.
    #[test]
    fn does_no_work_after_a_term_ended_without_a_timer() {
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
        // The term is over, and no timer has fired.
        ASLEEP.store(true, Ordering::Relaxed);
        assert_eq!(work(), Poll::Ready(None));
        drop(work);
        assert_eq!(steps, 2);
    }

    /// Polls a future once per call.
    fn stepwise<F: Future>(future: F) -> impl FnMut() -> Poll<F::Output> {
        let mut future = Box::pin(future);
        move || future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_extended_term_ends_at_its_new_deadline() {
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

    /// Neither a plan nor a cache from before a restore of etcd counts afterwards.
    #[tokio::test(start_paused = true)]
    async fn a_restore_starts_the_term_again() {
        let gate = Gate::closed();
        let shows =
            |listed| gate.is_caught_up("pods.", &Progress { position: 9, listed, ..Progress::default() });
        gate.open_until(Instant::now() + Duration::from_secs(10));
        let before = gate.term().unwrap().since;
        sleep(Duration::from_secs(1)).await;
        assert!(gate.fence(before).holds() && shows(Some(before)));
        assert!(gate.restored(Some(before)));
        assert!(!gate.fence(before).holds() && !shows(Some(before)));
        assert!(shows(Some(Instant::now())));
        let restores = gate.restores();
        assert!(!gate.restored(Some(before)), "this was reported");
        assert!(restores.has_changed().unwrap(), "but the kinds drop what they concluded since");
        assert_eq!((gate.take_restores(), gate.take_restores()), (1, 0));
        gate.open_until(Instant::now() + Duration::from_secs(10));
        assert_eq!(gate.term().unwrap().since, Instant::now(), "a renewal continues the term");
        // The next predecessor's record does not help an older cache either.
        gate.hand_over([("pods.".to_owned(), 5)].into());
        assert!(!shows(Some(before)));
    }

    #[tokio::test(start_paused = true)]
    async fn closes_at_the_deadline() {
        let gate = Gate::closed();
        assert!(gate.deadline().is_none());
        gate.open_until(Instant::now() + Duration::from_secs(10));
        assert!(gate.deadline().is_some());
        sleep(Duration::from_secs(10)).await;
        assert!(gate.deadline().is_none());
    }
}
