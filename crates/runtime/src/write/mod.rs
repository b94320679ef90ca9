//! From a plan to the API server.

pub mod events;
pub mod executor;
