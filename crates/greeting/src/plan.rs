//! The plan for one Greeting: a pure function of the observed state and the time.
//!
//! The cause follows from the state, not from events. No claim means create, and a claim of another message
//! means update. A claim of this message means resume, and a deletion with the finalizer means delete. The
//! plan calls the handlers of the cause, claims their lines in the status, and then prints them.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;
use quintet_runtime::model::clock::{is_recent, whole_seconds};
use quintet_runtime::model::conditions::{self, Wanted, shorten};
use quintet_runtime::model::digest;
use quintet_runtime::model::finalizer;
use quintet_runtime::model::object::Object as _;
use quintet_runtime::model::plan::{Action, Event, EventType, Plan};

use crate::FINALIZER;
use crate::api::{Claim, Greeting, GreetingStatus, LONGEST_INTERVAL};
use crate::handlers::{self, Attempt, Cause, Kwargs, Output, TIMED_OUT, Verdict};
use crate::observe::{Owed, Say, World};
use crate::printer::Room;

/// The tutorial's interval, in seconds.
const INTERVAL: i64 = 60;
/// The mark of the hash's algorithm. A claim with another mark is of another version and stays.
const MARK: &str = "v1-";
/// The kinds of claims, and the actions of Events.
const CREATE: &str = "Create";
const UPDATE: &str = "Update";
const DELETE: &str = "Delete";
/// How long a removed finalizer may still be in the cache. The answer to the removal of the last finalizer
/// has no new resourceVersion to wait for.
const SEEN_WITHIN: SignedDuration = SignedDuration::from_secs(10);
/// The limit of bytes of the message in the status.
const KEPT: usize = 256;

/// The effects of a plan besides writes.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Stores the lines of a claim before it is sent, because its answer may be lost.
    Owe(Owed),
    /// Prints lines.
    Say(Say),
    /// Stores a failed attempt.
    Retry(Attempt),
    /// Stores when the finalizer was removed.
    LetGo(Timestamp),
}

type Planned = Plan<GreetingStatus, Effect>;

/// Makes the plan.
pub fn plan(greeting: &Greeting, world: &World, now: Timestamp) -> Planned {
    let pass = Pass { greeting, world, now, before: greeting.status.clone().unwrap_or_default() };
    let mut plan = Plan::default();
    if let Some(owed) = world.owed.as_ref().filter(|owed| owed.is_claimed(greeting)) {
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

/// The result of a cause's handlers.
enum Called {
    /// These lines, for this room.
    Said(Vec<String>, Room),
    /// A retry, which is already in the plan.
    Again,
    /// A permanent failure.
    GivenUp(&'static str, String),
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
        if let Some(at) = self.world.let_go.filter(|at| is_recent(*at, SEEN_WITHIN, self.now)) {
            // The cache has not shown the removal yet.
            plan.requeue_at(at + SEEN_WITHIN);
            return;
        }
        let is_owed = self.before.claim.as_ref().is_some_and(|claim| {
            // Of a newer version's claim it is unknown whether it was printed; the finalizer is removed
            // anyway.
            claim.kind != DELETE && claim.message_hash.starts_with(MARK)
        });
        // A Greeting without a claim gets no farewell: a definition without a status can store no claim.
        if let Some(message) = self.message().filter(|_| is_owed) {
            match self.call(plan, Cause::Delete) {
                Called::Said(lines, room) => {
                    self.claim(plan, Cause::Delete, hash(message), lines, room);
                    plan.requeue_at(self.now);
                    return;
                }
                Called::Again => return,
                Called::GivenUp(reason, message) => plan.events.push(unsaid(reason, DELETE, message)),
            }
        }
        plan.steps.push(vec![finalizer::remove(self.greeting, FINALIZER)]);
        plan.steps.push(vec![Action::Effect(Effect::LetGo(self.now))]);
    }

    fn greet(&self, plan: &mut Planned) {
        let (cause, hash) = match (&self.before.claim, self.message().map(hash)) {
            // Of a newer version's claim it is unknown whether this message was printed.
            (Some(claim), _) if !claim.message_hash.starts_with(MARK) => return,
            (Some(claim), Some(hash)) if claim.message_hash == hash => (Cause::Resume, hash),
            (Some(_), hash) => (Cause::Update, hash.unwrap_or_default()),
            (None, hash) => (Cause::Create, hash.unwrap_or_default()),
        };
        if cause != Cause::Resume && self.has_timed_out() {
            self.tick(plan);
            return;
        }
        match self.call(plan, cause) {
            // The finalizer comes before the first line, because it guarantees the last one.
            Called::Said(..) if !self.is_held() => {
                plan.steps.push(vec![finalizer::add(self.greeting, FINALIZER)]);
            }
            Called::Said(..) if cause == Cause::Resume => {
                plan.status = Some(self.with_condition(self.before.clone(), GREETED));
                self.tick(plan);
            }
            Called::Said(lines, room) => self.claim(plan, cause, hash, lines, room),
            Called::Again => {}
            Called::GivenUp(reason, mut message) => {
                if reason == TIMED_OUT {
                    message.push_str(" Change spec.message to have it printed.");
                }
                let is_reported = self.before.conditions.iter().any(|condition| condition.reason == reason);
                if !is_reported {
                    plan.events.push(unsaid(reason, "Greet", message.clone()));
                }
                plan.status = Some(self.with_condition(self.before.clone(), (false, reason, &message)));
                self.tick(plan);
            }
        }
    }

    /// Claims lines, and then prints them.
    fn claim(&self, plan: &mut Planned, cause: Cause, hash: String, mut lines: Vec<String>, room: Room) {
        let at = whole_seconds(self.now);
        let mut status = self.before.clone();
        let mut tick = None;
        let kind = match cause {
            Cause::Create => {
                // The timer's first tick is due at once. It fails only if the creation fails too.
                lines.extend(handlers::call(Cause::Timer, &self.kwargs()).unwrap_or_default());
                (tick, status.greeted_at) = (Some(at), Some(Time(at)));
                CREATE
            }
            Cause::Delete => DELETE,
            _ => {
                status.updates = Some(status.updates.unwrap_or_default().saturating_add(1));
                UPDATE
            }
        };
        if cause != Cause::Delete {
            status.last_greeting = self.message().map(|message| shorten(message.to_owned(), KEPT));
            status = self.with_condition(status, GREETED);
        }
        let token = self.world.token.clone();
        status.claim = Some(Claim {
            message_hash: hash,
            kind: kind.to_owned(),
            token: token.clone(),
            at: Some(Time(at)),
        });
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
    fn tick(&self, plan: &mut Planned) {
        let (now, World { leading_since, ticked, .. }) = (self.now, self.world);
        let (Some(Time(origin)), Some(_)) = (self.before.greeted_at.as_ref(), self.message()) else { return };
        let seconds = self.greeting.spec.interval_seconds.unwrap_or(INTERVAL).clamp(1, LONGEST_INTERVAL);
        let interval = SignedDuration::from_secs(seconds).as_millis();
        let passed = now.duration_since(*origin).as_millis().max(0) / interval;
        let offset = |ticks: i128| {
            let millis = i64::try_from(ticks.saturating_mul(interval)).unwrap_or(i64::MAX);
            origin.checked_add(SignedDuration::from_millis(millis)).unwrap_or(Timestamp::MAX)
        };
        let latest = offset(passed);
        plan.requeue_at(offset(passed + 1));
        if latest < *leading_since || latest > now || ticked.is_some_and(|ticked| latest <= ticked) {
            return;
        }
        if let Called::Said(lines, room) = self.call_about(plan, Cause::Timer, latest.as_second()) {
            let say = Say { cause: Cause::Timer, lines, tick: Some(latest), room };
            plan.steps.push(vec![Action::Effect(Effect::Say(say))]);
        }
    }

    fn call(&self, plan: &mut Planned, cause: Cause) -> Called {
        self.call_about(plan, cause, self.greeting.generation())
    }

    /// Calls the handlers of a cause. After a temporary failure, adds the retry to the plan.
    fn call_about(&self, plan: &mut Planned, cause: Cause, about: i64) -> Called {
        let failure = match (handlers::call(cause, &self.kwargs()), &self.world.room) {
            (Ok(lines), Ok(room)) => return Called::Said(lines, room.clone()),
            // No lines need no room.
            (Ok(lines), Err(_)) => return Called::Said(lines, Room::unbounded()),
            (Err(failure), _) => failure,
        };
        let uid = self.greeting.meta().uid.as_deref().unwrap_or_default();
        match handlers::verdict(&failure, (cause, about), self.world.attempt.as_ref(), uid, self.now) {
            Verdict::Again { at, attempt } => {
                plan.requeue_at(at);
                plan.steps.push(vec![Action::Effect(Effect::Retry(attempt))]);
                Called::Again
            }
            Verdict::GivenUp { reason, message } => Called::GivenUp(reason, message),
        }
    }

    fn kwargs(&self) -> Kwargs<'_> {
        let output = self.world.room.as_ref().map_or_else(|output| *output, |_| Output::Ready);
        Kwargs { message: self.message(), output }
    }

    /// The message, if it is not empty.
    fn message(&self) -> Option<&str> {
        self.greeting.spec.message.as_deref().filter(|message| !message.is_empty())
    }

    /// Whether the Greeting has the finalizer.
    fn is_held(&self) -> bool {
        finalizer::has(self.greeting, FINALIZER)
    }

    /// Whether this generation has timed out before.
    fn has_timed_out(&self) -> bool {
        let generation = self.greeting.meta().generation;
        self.before
            .conditions
            .iter()
            .any(|condition| condition.reason == TIMED_OUT && condition.observed_generation == generation)
    }

    fn with_condition(
        &self,
        mut status: GreetingStatus,
        (said, reason, message): (bool, &'static str, &str),
    ) -> GreetingStatus {
        let generation = self.greeting.meta().generation;
        let wanted = Wanted { type_: "Ready", status: Some(said), reason, message: message.to_owned() };
        status.observed_generation = generation;
        status.conditions = conditions::next(&status.conditions, [wanted], generation, self.now);
        status
    }
}

/// The condition of a greeted Greeting.
const GREETED: (bool, &str, &str) = (true, "Greeted", "The message was printed.");

fn hash(message: &str) -> String {
    format!("{MARK}{}", digest::short(&[message], 16))
}

fn said(cause: Cause) -> Event {
    let (reason, action, note) = match cause {
        Cause::Create => ("Greeted", CREATE, "Printed the message for the first time."),
        Cause::Delete => ("Deleted", DELETE, "Printed the farewell."),
        _ => ("Updated", UPDATE, "Printed the changed message."),
    };
    Event { type_: EventType::Normal, reason, action, note: note.to_owned() }
}

fn unsaid(reason: &'static str, action: &'static str, note: String) -> Event {
    Event { type_: EventType::Warning, reason, action, note }
}

#[cfg(test)]
mod tests;
