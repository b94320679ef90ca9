//! From a changed object to a plan: the queue and the reconcile loop.

pub mod activity;
pub mod context;
pub mod controller;
pub mod queue;
mod reconcile;
pub mod reconciler;
pub mod sweeper;
pub mod waker;
