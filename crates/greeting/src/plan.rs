//! What should be done for one Greeting: a pure function of what is observed and the time.
//!
//! kopf's handlers and their counterparts here: `on.create` and `on.update` are a claim followed by lines;
//! `on.delete` is the removal of the finalizer followed by a line; `on.resume` says nothing; `timer` is a tick.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Resource as _;
use quintet_kit::clock::whole_seconds;
use quintet_kit::conditions::{self, Wanted, shorten};
use quintet_kit::digest;
use quintet_kit::object::Object as _;
use quintet_kit::plan::{Action, Event, EventType, Plan};
use quintet_kit::resource::Resource;
use serde_json::json;

use crate::FINALIZER;
use crate::api::{Claim, Greeting, GreetingStatus};
use crate::line::line;
use crate::observe::World;

/// The post's interval.
const INTERVAL: i64 = 60;
/// How the message's hash is made; another mark was written by another version and is left alone.
const MARK: &str = "v1-";
/// Bytes of the message that the status keeps.
const KEPT: usize = 256;

/// What a plan does besides writing: it says lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Say {
    /// The lines, in order.
    pub lines: Vec<String>,
    /// The tick that they are, if any.
    pub tick: Option<Timestamp>,
}

/// Makes the plan.
pub fn plan(greeting: &Greeting, world: &World, now: Timestamp) -> Plan<GreetingStatus, Say> {
    let mut plan = Plan { fenced: true, ..Plan::default() };
    let message = greeting.spec.message.as_deref().filter(|message| !message.is_empty());
    let ours = greeting.meta().finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER);
    if greeting.terminating() {
        if ours {
            plan.steps.push(vec![let_go(greeting)]);
            if let Some(message) = message {
                let lines = vec![line("Delete", message)];
                plan.steps.push(vec![Action::Effect(Say { lines, tick: None })]);
                plan.events.push(news("Deleted", "Delete", "Said farewell."));
            }
        }
        return plan;
    }
    let before = greeting.status.clone().unwrap_or_default();
    let Some(message) = message else {
        plan.status = Some(with_condition(greeting, before, false, now));
        return plan;
    };
    if !ours {
        // The finalizer first: from the first line on, the last one is owed.
        plan.steps.push(vec![hold(greeting)]);
        return plan;
    }
    let hash = format!("{MARK}{}", digest::short(&[message], 16));
    let kind = match &before.claim {
        Some(claim) if claim.message_hash == hash => None,
        Some(claim) if !claim.message_hash.starts_with(MARK) => {
            // A newer version's claim: whether this message was said is not ours to judge.
            return plan;
        }
        Some(_) => Some("Update"),
        None => Some("Create"),
    };
    let interval = SignedDuration::from_secs(greeting.spec.interval_seconds.unwrap_or(INTERVAL).max(1));
    if let Some(claim) = before.claim.as_ref().filter(|claim| kind.is_none() && claim.token == world.token) {
        // Our own claim, whose answer was lost: what it owes is said now.
        let greeted_at = before.greeted_at.as_ref().map_or(now, |time| time.0);
        plan.steps.push(vec![Action::Effect(owed(&claim.kind, message, greeted_at))]);
        return plan;
    }
    let Some(kind) = kind else {
        plan.status = Some(with_condition(greeting, before.clone(), true, now));
        tick(&mut plan, &before, message, interval, world, now);
        return plan;
    };
    let at = whole_seconds(now);
    let claimed = GreetingStatus {
        greeted_at: before.greeted_at.clone().or(Some(Time(at))),
        last_greeting: Some(shorten(message.to_owned(), KEPT)),
        claim: Some(Claim {
            message_hash: hash,
            kind: kind.to_owned(),
            token: world.token.clone(),
            at: Some(Time(at)),
        }),
        ..before
    };
    let status = with_condition(greeting, claimed, true, now);
    let greeted_at = status.greeted_at.as_ref().map_or(at, |time| time.0);
    plan.steps.push(vec![Action::Claim { status, token: world.token.clone() }]);
    plan.steps.push(vec![Action::Effect(owed(kind, message, greeted_at))]);
    plan.events.push(if kind == "Create" {
        news("Greeted", "Create", "Said the message for the first time.")
    } else {
        news("Updated", "Update", "Said the changed message.")
    });
    plan
}

/// What a claim owes.
fn owed(kind: &str, message: &str, greeted_at: Timestamp) -> Say {
    if kind == "Create" {
        // The timer's first tick is due at once.
        let lines = ["Greeting", "Create", "Timer"].map(|prefix| line(prefix, message)).to_vec();
        Say { lines, tick: Some(greeted_at) }
    } else {
        Say { lines: vec![line("Update", message)], tick: None }
    }
}

/// Says a tick that is due, and asks to be woken for the next. Ticks are at greetedAt and every interval after it:
/// their phase needs no write. One that was due before this process led is not made up.
fn tick(
    plan: &mut Plan<GreetingStatus, Say>,
    status: &GreetingStatus,
    message: &str,
    interval: SignedDuration,
    world: &World,
    now: Timestamp,
) {
    let Some(Time(origin)) = status.greeted_at else { return };
    let elapsed = now.duration_since(origin).as_millis().max(0);
    let passed = elapsed / interval.as_millis().max(1);
    let offset = |ticks: i128| {
        let millis = i64::try_from(ticks.saturating_mul(interval.as_millis())).unwrap_or(i64::MAX);
        origin.checked_add(SignedDuration::from_millis(millis)).unwrap_or(Timestamp::MAX)
    };
    let latest = offset(passed);
    if latest >= world.leading_since && latest <= now && world.ticked.is_none_or(|ticked| latest > ticked) {
        let lines = vec![line("Timer", message)];
        plan.steps.push(vec![Action::Effect(Say { lines, tick: Some(latest) })]);
    }
    plan.look_again(offset(passed + 1));
}

fn with_condition(
    greeting: &Greeting,
    mut status: GreetingStatus,
    said: bool,
    now: Timestamp,
) -> GreetingStatus {
    let (reason, message) = if said {
        ("Greeted", "The message was said.")
    } else {
        ("NoMessage", "spec.message is missing or empty: nothing is said until it is set.")
    };
    let wanted = Wanted { type_: "Ready", status: Some(said), reason, message: message.to_owned() };
    status.observed_generation = greeting.meta().generation;
    status.conditions = conditions::next(&status.conditions, [wanted], greeting.meta().generation, now);
    status
}

fn news(reason: &'static str, action: &'static str, note: &str) -> Event {
    Event { type_: EventType::Normal, reason, action, note: note.to_owned() }
}

/// Puts our finalizer on. A metadata patch, so that nothing of the spec is touched.
fn hold(greeting: &Greeting) -> Action<GreetingStatus, Say> {
    let operation = if greeting.meta().finalizers.as_ref().is_none_or(Vec::is_empty) {
        json!({ "op": "add", "path": "/metadata/finalizers", "value": [FINALIZER] })
    } else {
        json!({ "op": "add", "path": "/metadata/finalizers/-", "value": FINALIZER })
    };
    patch(greeting, vec![operation])
}

/// Takes our finalizer off, if it is still where it was seen.
pub fn let_go<E>(greeting: &Greeting) -> Action<GreetingStatus, E> {
    let at = greeting
        .meta()
        .finalizers
        .iter()
        .flatten()
        .position(|finalizer| finalizer == FINALIZER)
        .unwrap_or_default();
    let path = format!("/metadata/finalizers/{at}");
    patch(
        greeting,
        vec![
            json!({ "op": "test", "path": path, "value": FINALIZER }),
            json!({ "op": "remove", "path": path }),
        ],
    )
}

/// A patch that fails unless the Greeting is as it was seen: of two who claim, one wins.
fn patch<E>(greeting: &Greeting, operations: Vec<serde_json::Value>) -> Action<GreetingStatus, E> {
    let key = greeting.key();
    let mut all = vec![
        json!({ "op": "test", "path": "/metadata/uid", "value": &*key.uid }),
        json!({ "op": "test", "path": "/metadata/resourceVersion", "value": greeting.resource_version() }),
    ];
    all.extend(operations);
    Action::Patch {
        resource: Resource::of::<Greeting>(),
        namespace: key.namespace,
        name: key.name,
        operations: all.into(),
    }
}

#[cfg(test)]
mod tests;
