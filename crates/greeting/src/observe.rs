//! What a Greeting's plan looks at besides the Greeting: this process, what it has ticked, what it owes, and whether
//! standard output takes more.

use jiff::Timestamp;

use crate::api::Greeting;
use crate::handlers::{Attempt, Cause, Output};
use crate::plan::Effect;
use crate::printer::Room;

/// What a plan looks at besides the Greeting itself.
#[derive(Clone, Debug)]
pub struct World {
    /// What a new claim is marked with: no other process and no other claim has it.
    pub token: String,
    /// Since when this process may write, without a gap.
    pub leading_since: Timestamp,
    /// The tick that this process said last.
    pub ticked: Option<Timestamp>,
    /// A claim that was sent and may have been, or still be, written.
    pub owed: Option<Owed>,
    /// Tries that have failed for now.
    pub attempt: Option<Attempt>,
    /// When this process took our finalizer off.
    pub let_go: Option<Timestamp>,
    /// Room for every line that the message may come to in one pass, or why there is none.
    pub room: Result<Room, Output>,
}

/// Lines to be said together.
#[derive(Clone, Debug, PartialEq)]
pub struct Say {
    /// Why.
    pub cause: Cause,
    /// The lines, in order.
    pub lines: Vec<String>,
    /// The tick that one of them is, if any.
    pub tick: Option<Timestamp>,
    /// Their place in the queue of lines.
    pub room: Room,
}

/// What a claim owes from the moment on in which it is written.
#[derive(Clone, Debug, PartialEq)]
pub struct Owed {
    /// The claim's token.
    pub token: String,
    /// The resourceVersion that it was sent with: it can be written to no other.
    pub version: Box<str>,
    /// What it owes.
    pub say: Say,
}

impl Owed {
    /// Whether the claim is in the status.
    pub fn is_claimed(&self, greeting: &Greeting) -> bool {
        let claim = greeting.status.as_ref().and_then(|status| status.claim.as_ref());
        claim.is_some_and(|claim| claim.token == self.token)
    }

    /// Whether the claim can still be written: the Greeting is as it was when it was sent.
    pub fn is_pending(&self, greeting: &Greeting) -> bool {
        greeting.metadata.resource_version.as_deref() == Some(&*self.version)
    }
}

/// What a process remembers of a Greeting between two passes; it goes with the Greeting. All of it may be lost: then a
/// line that was claimed may be missing, but none is said twice.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    ticked: Option<Timestamp>,
    let_go: Option<Timestamp>,
    owed: Option<Box<Owed>>,
    attempt: Option<Box<Attempt>>,
}

/// What [`Memory::recall`] finds; see the fields of [`World`].
#[derive(Clone, Debug, Default)]
pub struct Recalled {
    /// The tick that was said last.
    pub ticked: Option<Timestamp>,
    /// What a claim owes.
    pub owed: Option<Owed>,
    /// What was tried.
    pub attempt: Option<Attempt>,
    /// When it was let go.
    pub let_go: Option<Timestamp>,
}

impl Memory {
    /// What is remembered of a Greeting as it is now.
    pub fn recall(&mut self, greeting: &Greeting) -> Recalled {
        // A claim that is neither there nor can come any more owes nothing.
        self.owed.take_if(|owed| !owed.is_claimed(greeting) && !owed.is_pending(greeting));
        Recalled {
            ticked: self.ticked,
            owed: self.owed.as_deref().cloned(),
            attempt: self.attempt.as_deref().cloned(),
            let_go: self.let_go,
        }
    }

    /// What a claim owes that was sent last, if its lines are not said.
    pub fn owed(&self) -> Option<&Owed> {
        self.owed.as_deref()
    }

    /// Takes note of an effect of a plan. Returns what is to be said.
    pub fn take(&mut self, effect: Effect) -> Option<Say> {
        match effect {
            Effect::Owe(owed) => self.owed = Some(Box::new(owed)),
            Effect::Retry(attempt) => self.attempt = Some(Box::new(attempt)),
            Effect::LetGo(at) => self.let_go = Some(at),
            Effect::Say(say) => {
                self.ticked = say.tick.or(self.ticked);
                self.attempt = None;
                // A tick settles no claim.
                self.owed.take_if(|_| say.cause != Cause::Timer);
                return Some(say);
            }
        }
        None
    }
}
