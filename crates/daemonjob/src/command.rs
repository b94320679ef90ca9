//! The rules of `quintet rollout` for a DaemonJob: the progress of its rollout, and the changes by users.
//!
//! They are pure functions of the object that the command read. An approval and a pause are annotations, not
//! fields of the spec. A GitOps tool that applies the spec therefore reverts neither, and approves no wave of
//! the next template.

pub mod change;
pub mod progress;
mod subject;
#[cfg(test)]
mod tests;
