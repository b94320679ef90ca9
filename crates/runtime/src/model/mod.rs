//! Plain data and pure rules, without I/O and without a client.

pub mod clock;
pub mod conditions;
pub mod core_types;
pub mod digest;
pub mod finalizer;
pub mod fingerprint;
pub mod int_or_percent;
pub mod object;
pub mod plan;
pub mod pod_template;
pub mod problem;
pub mod progress;
pub mod protobuf;
pub mod refusals;
pub mod repeated;
pub mod resource;
pub mod rollout;
pub mod rule;
pub mod schema;
pub mod status_pace;
pub mod table;
