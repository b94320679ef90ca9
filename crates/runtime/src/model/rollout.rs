//! The results of `quintet rollout`, which every kind with rollouts returns as data.

use serde_json::Value;

/// The state of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutState {
    /// The rollout continues, or the manager has not observed a change yet.
    Continues,
    /// The rollout is complete.
    Complete,
    /// The rollout has ended or made no progress, and is not complete.
    Failed,
    /// The manager creates no pods until a user or an administrator acts, or a time comes.
    Held,
}

/// A rollout, as `quintet rollout status` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RolloutStatus {
    /// The state, which determines the exit code.
    pub state: RolloutState,
    /// The progress in one line.
    pub message: String,
    /// Further lines for a rollout that does not continue: nodes with their reasons, and the command that continues it.
    pub details: Vec<String>,
    /// The steps in their order. A terminal shows a progress bar for each.
    pub steps: Vec<Step>,
}

impl RolloutStatus {
    /// A status without details and steps.
    pub fn new(state: RolloutState, message: impl Into<String>) -> Self {
        Self { state, message: message.into(), details: Vec::new(), steps: Vec::new() }
    }
}

/// A step of a rollout, such as a wave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The name.
    pub name: String,
    /// The number of finished objects, such as nodes.
    pub done: u64,
    /// The number of all objects.
    pub size: u64,
    /// The current work, in a few words.
    pub note: String,
}

/// A change of an object by `quintet rollout`.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The JSON patch. It tests that the object is the one that was read.
    pub operations: Value,
    /// The message for the user after the change.
    pub message: String,
}
