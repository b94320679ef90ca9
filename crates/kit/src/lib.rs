//! What the five kinds share: everything between a pure plan and the API server.
//!
//! A kind's crate says *what* should be true ([`plan::Plan`]); this crate watches, queues, carries out, reports
//! and knows when this process may write. Read [`controller`] first: it is the loop that ties the rest together.

pub mod client;
pub mod clock;
pub mod conditions;
mod connection;
pub mod controller;
pub mod departed;
pub mod digest;
pub mod election;
pub mod events;
pub mod executor;
pub mod gate;
pub mod informer;
pub mod inspect;
pub mod link;
pub mod metrics;
pub mod object;
pub mod plan;
pub mod protobuf;
pub mod queue;
pub mod rbac;
pub mod resource;
pub mod schema;
pub mod serve;
pub mod share;
pub mod shared;
pub mod sums;
pub mod template;
pub mod token;
pub mod types;

/// The label that every pod of ours carries; the one Pod watch of the process selects by it.
pub const KIND_LABEL: &str = "quintet.dev/kind";

/// The field manager of every write.
pub const FIELD_MANAGER: &str = "quintet";
