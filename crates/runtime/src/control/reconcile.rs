//! One reconcile of one object.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use crate::cache::tracked::TrackedCache;
use crate::control::context::Context;
use crate::control::reconciler::Reconciler;
use crate::model::object::{Key, Object as _};
use crate::model::plan::{Action, Event, EventType, Plan};
use crate::model::refusals::Verb;
use crate::model::resource::Resource;
use crate::model::status_pace::ChangedStatus;
use crate::write::executor::{Error, Execution, Executor, Planned};

/// If a reconcile has written something and took less time to observe and plan, events do not wait.
const CHEAP: Duration = Duration::from_millis(1);
/// The longest wait of events after an expensive reconcile.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// The longest wait of events after a reconcile without a write.
const LONGEST_GATHERING: Duration = Duration::from_millis(50);
/// A shorter wait is skipped, because the timer would cost more than the reconcile.
const SHORTEST_GATHERING: Duration = Duration::from_millis(5);
/// The time of a reconcile for writes without urgency, and until the next reconcile has those that are left.
const TURN: Duration = Duration::from_secs(1);

/// The result of a successful reconcile.
#[derive(Default)]
pub(super) struct Passed {
    /// When to reconcile again without an event.
    pub again: Option<Instant>,
    /// How long it took to observe and plan.
    pub thought: Duration,
    /// Whether the reconcile wrote something.
    pub wrote: bool,
    /// The API server's message for a refusal that waits for a retry.
    pub refused: Option<String>,
}

impl Passed {
    /// How long events wait for the next reconcile. Observing and planning take at most a tenth of the time. After a
    /// reconcile without a write they take at most a 400th, for up to 50 ms. Few of the hundreds of events of a run
    /// with many pods matter.
    pub fn rest(&self) -> Duration {
        let dear = if self.thought < CHEAP { Duration::ZERO } else { (self.thought * 9).min(LONGEST_REST) };
        let idle = if self.wrote { Duration::ZERO } else { (self.thought * 400).min(LONGEST_GATHERING) };
        dear.max(if idle < SHORTEST_GATHERING { Duration::ZERO } else { idle })
    }
}

/// The parameters of one reconcile.
pub(super) struct Pass<'a, R: Reconciler> {
    pub controller: &'static str,
    pub resource: Resource,
    pub reconciler: &'a R,
    pub context: &'a Context,
    pub object: &'a R::Object,
    pub key: &'a Key,
    pub caches: &'a [Arc<dyn TrackedCache>],
    /// The start of the term.
    pub since: Instant,
    /// Whether the plan still applies to the current object.
    pub still: &'a (dyn Fn() -> bool + Sync),
}

/// The result of a status write.
enum StatusWrite {
    /// The status has not changed, or the plan has none.
    Unchanged,
    /// The pace of status writes forbids a write before this time.
    Deferred(Instant),
    /// The status was written.
    Written,
}

/// Observes, plans, executes the plan, writes the status, and records Events.
pub(super) async fn reconcile<R: Reconciler>(pass: Pass<'_, R>) -> Result<Passed, Error> {
    let Pass { reconciler, context, object, key, .. } = pass;
    let started = Instant::now();
    let memory = &context.executor.memory;
    let observed = async {
        if !pass.is_caught_up().await? {
            return Ok(None);
        }
        let began = Instant::now();
        Ok(Some((began, reconciler.observe(object, memory.refusals(key)).await?)))
    };
    // An observation that lasts into another term could be older than the caches of that term.
    let observed = context.gate.while_held(pass.since, observed).await;
    let Some((began, world)) = observed.unwrap_or(Err(Error::NotLeading))? else {
        // The caches do not show the clarified writes yet; the next reconcile waits until they do.
        return Ok(Passed { again: Some(Instant::now()), ..Passed::default() });
    };
    // A watch may have been interrupted while the observation waited.
    if !context.executor.is_current(&key.namespace, pass.caches) {
        return Err(Error::Stale(format!("a cache for {} {key}", pass.resource.kind)));
    }
    let now = context.clock.now();
    let mut plan = reconciler.plan(object, &world, now);
    memory.withhold(key, &mut plan);
    let thought = began.elapsed();
    let Plan { steps, background, status, events, repairs, again } = plan;

    let mut execution = pass.execute(&context.executor, steps, pass.still).await;
    if let Some(error) = execution.failure.take() {
        // A webhook can fail for a long time.
        if matches!(error, Error::Unanswered { is_said: true, .. }) {
            pass.write_status_meanwhile(status, events).await;
            pass.execute_background(background, &mut execution).await;
        }
        pass.log(&execution, 0, "error", started);
        return Err(error);
    }
    if execution.complete {
        pass.record(repairs);
    }
    // A stale reconcile is repeated after a backoff.
    let follows_writes = execution.writes > 0 && !execution.is_stale;
    let written = pass.write_status(status, execution.complete, follows_writes).await;
    let (is_told, wrote_status, deferred) = match written {
        Ok(StatusWrite::Unchanged) => (execution.complete, 0, None),
        Ok(StatusWrite::Deferred(until)) => (false, 0, Some(until)),
        Ok(StatusWrite::Written) => (true, 1, None),
        Err(error) => {
            pass.log(&execution, 0, "error", started);
            return Err(error);
        }
    };
    if is_told {
        pass.record(events);
    }
    let background_waits = pass.execute_background(background, &mut execution).await;
    if let Some(error) = execution.failure.take() {
        pass.log(&execution, wrote_status, "error", started);
        return Err(error);
    }
    let outcome = if execution.refusals.is_empty() { "success" } else { "refused" };
    pass.log(&execution, wrote_status, outcome, started);
    if execution.is_stale {
        return Err(Error::Stale(format!("an object of {} {key}", pass.resource.kind)));
    }
    // The next plan reads the refusal and reports it in the status.
    let at_once = execution.refused.then(Instant::now);
    let after_turn = background_waits.then(|| Instant::now() + TURN);
    let times = again.into_iter().chain(memory.terminating_until(key)).map(|at| instant(now, at));
    let again = times.chain(at_once).chain(after_turn).chain(deferred).min();
    Ok(Passed {
        again,
        thought,
        wrote: execution.writes + wrote_status > 0,
        refused: memory.refused_now(key),
    })
}

impl<R: Reconciler> Pass<'_, R> {
    fn planned(&self) -> Planned<'_> {
        let (key, version) = (self.key, self.object.resource_version());
        Planned { key, resource: self.resource, version, since: self.since }
    }

    /// Whether the caches show all writes for the object. Reads the objects of writes with an unknown outcome first.
    async fn is_caught_up(&self) -> Result<bool, Error> {
        let Executor { memory, .. } = &*self.context.executor;
        self.context.executor.clarify(self.planned()).await?;
        let is_caught_up = memory.caught_up(self.key, self.caches);
        if is_caught_up {
            memory.observe_generation(self.key, self.object.generation());
        }
        Ok(is_caught_up)
    }

    /// Executes the writes without urgency, if the steps wrote nothing: after writes, another plan follows. None
    /// begins after a second, so that the next plan soon sees what has changed, and none begins when the process exits. Returns whether some wait for another plan.
    async fn execute_background(
        &self,
        background: Vec<Action<R::Status, R::Effect>>,
        execution: &mut Execution,
    ) -> bool {
        if background.is_empty() || execution.is_stale {
            return false;
        }
        if execution.writes > 0 {
            return true;
        }
        let Some(executor) = self.context.executor.in_background() else { return true };
        let until = Instant::now() + TURN;
        let still = || (self.still)() && Instant::now() < until && !*self.context.stop.borrow();
        let later = self.execute(&executor, vec![background], &still).await;
        let is_cut =
            !later.complete && !later.is_stale && later.failure.is_none() && later.refusals.is_empty();
        execution.extend(later);
        is_cut
    }

    /// Executes steps while `still` returns true, and records Events for writes and refusals.
    async fn execute(
        &self,
        executor: &Executor,
        steps: Vec<Vec<Action<R::Status, R::Effect>>>,
        still: &(dyn Fn() -> bool + Sync),
    ) -> Execution {
        let effect = |effect| self.reconciler.effect(self.object, effect);
        let execution = executor.execute(self.planned(), steps, still, effect).await;
        self.reconciler.executed(self.key, &execution);
        // A process that lost the Lease must not record Events either.
        if !matches!(execution.failure, Some(Error::NotLeading)) {
            self.report(&execution);
        }
        execution
    }

    /// Writes the status if it has changed and its pace allows it. `follows_writes`: another reconcile follows the writes of
    /// this one.
    async fn write_status(
        &self,
        status: Option<R::Status>,
        complete: bool,
        follows_writes: bool,
    ) -> Result<StatusWrite, Error> {
        let stored = self.reconciler.status(self.object);
        let Some(status) = status.filter(|status| stored != Some(status)) else {
            return Ok(StatusWrite::Unchanged);
        };
        let is_settled = |status: &R::Status| self.reconciler.is_settled(status);
        let settles = complete && is_settled(&status) && !stored.is_some_and(is_settled);
        let (memory, now) = (&self.context.executor.memory, Instant::now());
        let changed = ChangedStatus { follows_writes, settles };
        if let Some(wait) = changed.wait(memory.status_times(self.key), |at| now - at) {
            return Ok(StatusWrite::Deferred(now + wait));
        }
        self.context.executor.write_status(self.planned(), &status).await?;
        if settles {
            memory.settled(self.key);
        }
        Ok(StatusWrite::Written)
    }

    /// Writes the status although the plan failed. The next reconcile may be a minute away, so the status does not wait for it.
    async fn write_status_meanwhile(&self, status: Option<R::Status>, events: Vec<Event>) {
        match self.write_status(status, false, false).await {
            Ok(StatusWrite::Written) => self.record(events),
            Ok(StatusWrite::Unchanged | StatusWrite::Deferred(_)) => {}
            Err(error) => tracing::debug!(object = %self.key, %error, "status not written"),
        }
    }

    fn record(&self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.context.recorder.record(self.resource, self.key, event));
    }

    /// Logs the writes even if other parts of the plan failed.
    fn log(&self, execution: &Execution, more: usize, outcome: &str, started: Instant) {
        let (writes, refused) = (execution.writes + more, execution.refusals.len());
        if writes > 0 && !self.reconciler.is_quiet() {
            let (controller, duration_ms) = (self.controller, millis(started.elapsed()));
            tracing::info!(controller, object = %self.key, outcome, duration_ms, writes, refused, "reconciled");
        }
    }

    /// Records one Event per verb and kind, not one per pod.
    fn report(&self, execution: &Execution) {
        for (verb, reason, action, past) in [
            (Verb::Create, "SuccessfulCreate", "Create", "Created"),
            (Verb::Delete, "SuccessfulDelete", "Delete", "Deleted"),
            (Verb::Apply, "SuccessfulApply", "Apply", "Applied"),
        ] {
            let mut by_kind: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for (_, kind, name) in execution.done.iter().filter(|(done, ..)| *done == verb) {
                by_kind.entry(kind).or_default().push(name);
            }
            for (kind, names) in by_kind {
                let note = match &*names {
                    [name] => format!("{past} {kind} {name}"),
                    names => {
                        let (first, more) = (names[0], names.len() - 1);
                        format!("{past} {} {kind}s: {first} and {more} more", names.len())
                    }
                };
                self.record([Event { type_: EventType::Normal, reason, action, note }]);
            }
        }
        for (verb, reason, action) in [
            (Verb::Create, "FailedCreate", "Create"),
            (Verb::Delete, "FailedDelete", "Delete"),
            (Verb::Apply, "FailedApply", "Apply"),
            (Verb::JsonPatch, "FailedPatch", "Patch"),
            (Verb::MergePatch, "FailedPatch", "Patch"),
        ] {
            let mut refused = execution.refusals.iter().filter(|(tried, ..)| *tried == verb);
            if let Some((_, name, message)) = refused.next() {
                let more = refused.count();
                let note = if more == 0 {
                    format!("{name}: {message}")
                } else {
                    format!("{name} (and {more} more): {message}")
                };
                self.record([Event { type_: EventType::Warning, reason, action, note }]);
            }
        }
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The instant at which the wall clock reaches `at`.
fn instant(now: Timestamp, at: Timestamp) -> Instant {
    let wait = Duration::try_from(at.duration_since(now)).unwrap_or_default();
    // The clock may be set meanwhile, so a distant time is checked again once a day.
    Instant::now() + wait.min(Duration::from_hours(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_wait_after_expensive_or_idle_reconciles() {
        let rest = |micros: u64, wrote: bool| {
            Passed { thought: Duration::from_micros(micros), wrote, ..Passed::default() }.rest()
        };
        assert_eq!(rest(900, true), Duration::ZERO, "there may be more to do");
        assert_eq!(rest(2_000, true), Duration::from_millis(18), "a tenth of the time");
        assert_eq!(rest(10_000_000, true), LONGEST_REST);
        assert_eq!(rest(10, false), Duration::ZERO, "cheaper than a timer");
        assert_eq!(rest(100, false), Duration::from_millis(40));
        assert_eq!(rest(1_500, false), LONGEST_GATHERING);
        assert_eq!(rest(20_000, false), Duration::from_millis(180));
    }
}
