//! The plan for one Greeting: a pure function of the observed state and the time.
//!
//! The cause follows from the state, not from events. No claim means create, and a claim of another message
//! means update. A claim of this message means resume, and a deletion with the finalizer means delete. The
//! plan calls the handlers of the cause, claims their lines in the status, and then prints them.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;
use quintet_runtime::model::clock::{is_recent, whole_seconds};
use quintet_runtime::model::conditions::{self, READY, Wanted, shorten};
use quintet_runtime::model::digest;
use quintet_runtime::model::finalizer;
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::plan::{Action, Event, EventType, Plan};

use crate::FINALIZER;
use crate::api::{Claim, Greeting, GreetingStatus, LONGEST_INTERVAL, MARK, StoredClaim};
use crate::handlers::{self, Cause};
use crate::observe::{Attempt, Owed, Say, World};
use crate::printer::Room;

/// The tutorial's interval, in seconds.
const INTERVAL: i64 = 60;
/// The reasons of Ready that only a user can change.
const NO_MESSAGE: &str = "NoMessage";
const OTHER_VERSION: &str = "ClaimedByOtherVersion";
/// How long a removed finalizer may still be in the cache. The answer to the removal of the last finalizer
/// has no new resourceVersion to wait for.
const SEEN_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// The limit of bytes of the message in the status.
const KEPT: usize = 256;
/// The shortest and the longest pause between two attempts without room.
const PAUSES: (SignedDuration, SignedDuration) = (SignedDuration::from_secs(1), SignedDuration::from_mins(1));
/// A deletion waits this long for its line. After this time, the condition reports that other lines wait.
const PATIENCE: SignedDuration = SignedDuration::from_mins(1);

/// The effects of a plan besides writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Stores the lines of a claim before it is sent, because its answer may be lost.
    Owe(Owed),
    /// Prints lines.
    Say(Say),
    /// Stores the first attempt to print lines.
    Try(Attempt),
    /// Stores when the finalizer was removed.
    LetGo(Timestamp),
}

type Planned = Plan<GreetingStatus, Effect>;

/// Makes the plan.
pub fn plan(greeting: &Greeting, world: &World, now: Timestamp) -> Planned {
    let pass = Pass { greeting, world, now, before: greeting.status.clone().unwrap_or_default() };
    let mut plan = Plan::default();
    if let Some(owed) = world.recalled.owed.as_ref().filter(|owed| owed.is_claimed(greeting)) {
        // The answer to our claim was lost. Print its lines first, even if the Greeting has changed since.
        plan.events.push(said(owed.say.cause));
        plan.steps.push(vec![Action::Effect(Effect::Say(owed.say.clone()))]);
        plan.requeue_at(now);
    } else if greeting.terminating() {
        pass.farewell(&mut plan);
    } else {
        pass.greet(&mut plan);
    }
    plan
}

/// One reconcile of one Greeting.
struct Pass<'a> {
    greeting: &'a Greeting,
    world: &'a World,
    now: Timestamp,
    before: GreetingStatus,
}

impl Pass<'_> {
    /// Handles a deletion: claims and prints the last line, and removes the finalizer when the claim is
    /// visible. The removal cannot serve as the claim, because the API server answers all concurrent removals
    /// of a last finalizer with success. It happens in a separate reconcile, so that the Event of the line
    /// does not depend on it.
    fn farewell(&self, plan: &mut Planned) {
        if !self.is_held() {
            return;
        }
        if let Some(at) = self.world.recalled.let_go.filter(|at| is_recent(*at, SEEN_WITHIN, self.now)) {
            // The cache has not shown the removal yet.
            plan.requeue_at(at + SEEN_WITHIN);
            return;
        }
        // Of another version's claim it is unknown whether it was printed; the finalizer is removed anyway.
        let claim = self.before.claim.as_ref().and_then(StoredClaim::known);
        let is_owed = claim.is_some_and(|claim| claim.kind != Cause::Delete.word());
        // A Greeting without a claim gets no farewell: a definition without a status can store no claim.
        if let Some(message) = self.message().filter(|_| is_owed) {
            let waited = self.attempt(plan, Cause::Delete);
            match &self.world.room {
                room if waited >= PATIENCE && (room.is_err() || self.world.recalled.is_rejected) => {
                    let rejected = "The API server rejects the claim in status.claim.";
                    let why = room.as_ref().map_or_else(Into::into, |_| rejected);
                    let note = format!("The farewell was not printed within {PATIENCE:#}. {why}");
                    plan.events.push(unsaid("TimedOut", Cause::Delete.word(), note));
                }
                Ok(room) => {
                    self.claim(plan, Cause::Delete, message, room.clone());
                    plan.requeue_at(self.now);
                    return;
                }
                Err(_) => return plan.requeue_at(self.now + pause(waited).min(PATIENCE - waited)),
            }
        }
        plan.steps.push(vec![finalizer::remove(self.greeting, FINALIZER)]);
        plan.steps.push(vec![Action::Effect(Effect::LetGo(self.now))]);
    }

    fn greet(&self, plan: &mut Planned) {
        let claim = self.before.claim.as_ref().and_then(StoredClaim::known);
        if claim.is_none() && self.before.claim.is_some() {
            // It is unknown whether this message was printed.
            let message = "Another version of the manager has claimed the line. Update the manager, or remove \
                status.claim to have the message printed again.";
            return self.report(plan, OTHER_VERSION, message);
        }
        let Some(message) = self.message() else {
            let message = "spec.message is missing, empty or not a string. Set it to have it printed.";
            return self.report(plan, NO_MESSAGE, message);
        };
        let cause = match claim {
            Some(claim) if claim.message_hash == hash(message) => Cause::Resume,
            Some(_) => Cause::Update,
            None => Cause::Create,
        };
        match &self.world.room {
            Err(_) if cause != Cause::Resume => self.wait(plan, cause),
            // The finalizer comes before the first line, because it guarantees the last one.
            _ if !self.is_held() => plan.steps.push(vec![finalizer::add(self.greeting, FINALIZER)]),
            Ok(room) if cause != Cause::Resume => self.claim(plan, cause, message, room.clone()),
            _ => {
                plan.status = Some(self.with_condition(self.before.clone(), GREETED));
                self.tick(plan, message);
            }
        }
    }

    /// Tries again later, and reports a long wait.
    fn wait(&self, plan: &mut Planned, cause: Cause) {
        let waited = self.attempt(plan, cause);
        plan.requeue_at(self.now + pause(waited));
        if waited >= PATIENCE {
            let message = "The manager's standard output has no room, because its reader is too slow, or writes fail. \
                The manager prints the message when there is room.";
            self.report(plan, "OutputBlocked", message);
        }
    }

    /// Stores the first attempt to print the lines of a cause. Returns the time since then.
    fn attempt(&self, plan: &mut Planned, cause: Cause) -> SignedDuration {
        // The clock may go back.
        let known = self.world.recalled.attempt.filter(|known| known.cause == cause && known.at <= self.now);
        let attempt = known.unwrap_or(Attempt { cause, at: self.now });
        if known.is_none() {
            plan.steps.push(vec![Action::Effect(Effect::Try(attempt))]);
        }
        self.now.duration_since(attempt.at)
    }

    /// Adds a condition with the reason why the message is not printed, and an Event if it is new.
    fn report(&self, plan: &mut Planned, reason: &'static str, message: &str) {
        if !self.before.conditions.iter().any(|condition| condition.reason == reason) {
            plan.events.push(unsaid(reason, "Greet", message.to_owned()));
        }
        plan.status = Some(self.with_condition(self.before.clone(), (false, reason, message)));
    }

    /// Claims lines, and then prints them.
    fn claim(&self, plan: &mut Planned, cause: Cause, message: &str, room: Room) {
        let at = whole_seconds(self.now);
        let mut lines = handlers::call(cause, message);
        let mut status = self.before.clone();
        let tick = (cause == Cause::Create).then_some(at);
        if cause == Cause::Create {
            // The timer's first tick is due at once.
            lines.extend(handlers::call(Cause::Timer, message));
            status.greeted_at = tick.map(Time);
        } else if cause == Cause::Update {
            status.updates = Some(status.updates.unwrap_or_default().saturating_add(1));
        }
        if cause != Cause::Delete {
            status.last_greeting = Some(shorten(message.to_owned(), KEPT));
            status = self.with_condition(status, GREETED);
        }
        let token = self.world.token.clone();
        status.claim = Some(StoredClaim::Known(Claim {
            message_hash: hash(message),
            kind: cause.word().to_owned(),
            token: token.clone(),
            at: Some(Time(at)),
        }));
        let say = Say { cause, lines, tick, room };
        let owed =
            Owed { token: token.clone(), version: self.greeting.resource_version().into(), say: say.clone() };
        plan.steps.push(vec![Action::Effect(Effect::Owe(owed))]);
        plan.steps.push(vec![Action::Claim { status, token }]);
        plan.steps.push(vec![Action::Effect(Effect::Say(say))]);
        // The claim causes an event, and the next reconcile schedules the tick.
        plan.events.push(said(cause));
    }

    /// Prints a due tick, and requeues for the next. Ticks are at greetedAt and every interval after it, so
    /// their phase needs no write. A tick from before this process led is skipped.
    fn tick(&self, plan: &mut Planned, message: &str) {
        let (now, World { leading_since, recalled, .. }) = (self.now, self.world);
        let Some(Time(origin)) = self.before.greeted_at.as_ref() else { return };
        let seconds = self.greeting.spec.interval_seconds.unwrap_or(INTERVAL).clamp(1, LONGEST_INTERVAL);
        let interval = SignedDuration::from_secs(seconds).as_millis();
        let passed = now.duration_since(*origin).as_millis().max(0) / interval;
        let offset = |ticks: i128| {
            let millis = i64::try_from(ticks.saturating_mul(interval)).unwrap_or(i64::MAX);
            origin.checked_add(SignedDuration::from_millis(millis)).unwrap_or(Timestamp::MAX)
        };
        let latest = offset(passed);
        plan.requeue_at(offset(passed + 1));
        if latest < *leading_since || latest > now || recalled.ticked.is_some_and(|ticked| latest <= ticked) {
            return;
        }
        match &self.world.room {
            Ok(room) if !recalled.waits => {
                let lines = handlers::call(Cause::Timer, message);
                let say = Say { cause: Cause::Timer, lines, tick: Some(latest), room: room.clone() };
                plan.steps.push(vec![Action::Effect(Effect::Say(say))]);
            }
            // The next tick replaces one that could not be printed, also because the last lines still wait.
            _ => plan.requeue_at(now + pause(now.duration_since(latest))),
        }
    }

    /// The message, if it is not empty.
    fn message(&self) -> Option<&str> {
        self.greeting.spec.message.as_deref().filter(|message| !message.is_empty())
    }

    /// Whether the Greeting has the finalizer.
    fn is_held(&self) -> bool {
        finalizer::has(self.greeting, FINALIZER)
    }

    fn with_condition(
        &self,
        mut status: GreetingStatus,
        (said, reason, message): (bool, &'static str, &str),
    ) -> GreetingStatus {
        let generation = self.greeting.meta().generation;
        let ready = Wanted { type_: READY, status: Some(said), reason, message: message.to_owned() };
        let stalled = [NO_MESSAGE, OTHER_VERSION].contains(&reason).then(|| ready.stalled());
        let wanted = [ready].into_iter().chain(stalled);
        status.observed_generation = generation;
        status.conditions = conditions::next(&status.conditions, wanted, generation, self.now);
        status
    }
}

/// The condition of a greeted Greeting.
const GREETED: (bool, &str, &str) =
    (true, "Greeted", "The message was printed, or waits for the reader of standard output.");

/// The pause before the next attempt: as long as the lines have waited, within limits.
fn pause(waited: SignedDuration) -> SignedDuration {
    waited.clamp(PAUSES.0, PAUSES.1)
}

fn hash(message: &str) -> String {
    format!("{MARK}{}", digest::short(&[message], 16))
}

fn said(cause: Cause) -> Event {
    let (reason, note) = match cause {
        Cause::Create => ("Greeted", "Printed the message for the first time."),
        Cause::Delete => ("Deleted", "Printed the farewell."),
        _ => ("Updated", "Printed the changed message."),
    };
    Event { type_: EventType::Normal, reason, action: cause.word(), note: note.to_owned() }
}

fn unsaid(reason: &'static str, action: &'static str, note: String) -> Event {
    Event { type_: EventType::Warning, reason, action, note }
}

#[cfg(test)]
mod tests;
