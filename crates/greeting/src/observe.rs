//! The input of a Greeting's plan besides the Greeting: this process, its last tick, its claimed lines, and
//! the room of standard output.

use jiff::Timestamp;

use crate::api::Greeting;
use crate::handlers::Cause;
use crate::plan::Effect;
use crate::printer::{NoRoom, Room, Waiting};

/// The input of a plan besides the Greeting.
#[derive(Clone, Debug)]
pub struct World {
    /// The unique token of a new claim.
    pub token: String,
    /// The start of the uninterrupted time in which this process may write.
    pub leading_since: Timestamp,
    /// The memory of this process about the Greeting.
    pub recalled: Recalled,
    /// Room for all lines of one reconcile, or why there is none.
    pub room: Result<Room, NoRoom>,
}

/// The first attempt to print lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Their cause.
    pub cause: Cause,
    /// When this process tried first.
    pub at: Timestamp,
}

/// Lines that are printed together.
#[derive(Clone, Debug, PartialEq)]
pub struct Say {
    /// The cause.
    pub cause: Cause,
    /// The lines, in order.
    pub lines: Vec<String>,
    /// The tick, if one of the lines is a tick.
    pub tick: Option<Timestamp>,
    /// Their room in the queue.
    pub room: Room,
}

/// The lines that a stored claim owes.
#[derive(Clone, Debug, PartialEq)]
pub struct Owed {
    /// The claim's token.
    pub token: String,
    /// The resourceVersion of the claim: the API server stores it only for this version.
    pub version: Box<str>,
    /// The lines.
    pub say: Say,
}

impl Owed {
    /// Whether the claim is in the status.
    pub fn is_claimed(&self, greeting: &Greeting) -> bool {
        let claim = greeting.status.as_ref().and_then(|status| status.claim.as_ref()?.known());
        claim.is_some_and(|claim| claim.token == self.token)
    }

    /// Whether the claim can still be stored: the Greeting has not changed since.
    pub fn is_pending(&self, greeting: &Greeting) -> bool {
        greeting.metadata.resource_version.as_deref() == Some(&*self.version)
    }
}

/// The memory of a process about a Greeting between two reconciles. Without it, a claimed line may be
/// missing, but no line is printed twice.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The result of [`Self::recall`], apart from `waits`.
    pub kept: Recalled,
    /// The last lines in the queue of standard output.
    waiting: Waiting,
}

/// The result of [`Memory::recall`].
#[derive(Clone, Debug, Default)]
pub struct Recalled {
    /// The last tick that this process printed.
    pub ticked: Option<Timestamp>,
    /// Whether the last lines still wait for standard output.
    pub waits: bool,
    /// A claim that was sent and may be, or may still become, stored.
    pub owed: Option<Box<Owed>>,
    /// The first attempt to print lines that are not printed yet.
    pub attempt: Option<Attempt>,
    /// Whether the API server rejected the last claim.
    pub is_rejected: bool,
    /// When this process removed the finalizer.
    pub let_go: Option<Timestamp>,
}

impl Memory {
    /// Returns the memory that applies to the current Greeting.
    pub fn recall(&mut self, greeting: &Greeting) -> Recalled {
        // A claim that is not stored and cannot be stored any more owes nothing.
        self.kept.owed.take_if(|owed| !owed.is_claimed(greeting) && !owed.is_pending(greeting));
        Recalled { waits: self.waiting.strong_count() > 0, ..self.kept.clone() }
    }

    /// Stores that the API server rejected a claim, so that its lines need no room.
    pub fn reject(&mut self) {
        (self.kept.owed, self.kept.is_rejected) = (None, true);
    }

    /// Stores an effect of a plan. Returns the lines to print.
    pub fn take(&mut self, effect: Effect) -> Option<Say> {
        let kept = &mut self.kept;
        match effect {
            Effect::Owe(owed) => kept.owed = Some(Box::new(owed)),
            Effect::Try(attempt) => kept.attempt = Some(attempt),
            Effect::LetGo(at) => kept.let_go = Some(at),
            Effect::Say(say) => {
                kept.ticked = say.tick.or(kept.ticked);
                self.waiting = say.room.waiting();
                (kept.attempt, kept.is_rejected) = (None, false);
                // A tick is not the line of a claim.
                kept.owed.take_if(|_| say.cause != Cause::Timer);
                return Some(say);
            }
        }
        None
    }
}
