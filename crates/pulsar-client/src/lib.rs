//! The programs `pulsar-consumer`, which PulsarConsumers run in their pods, and `pulsar-producer`.
//!
//! Rules are pure functions: addresses ([`address`]), topics ([`topic`]), lines ([`line`]), acknowledgements
//! ([`ledger`]) and errors of the broker ([`problem`]). The crate `pulsar` provides the wire format and the
//! producer. The consumer's protocol is in [`link`] and [`session`]. The consumer of that crate acknowledges
//! a whole batch for one of its messages, and queues acknowledgements without limit. It cannot pause, and
//! does not report a rejected token.

pub mod address;
pub mod backoff;
pub mod batch;
pub mod consumer;
pub mod dead_letters;
pub mod duration;
pub mod exit;
pub mod frame;
pub mod ledger;
pub mod line;
pub mod link;
pub mod metrics;
pub mod notes;
pub mod printer;
pub mod probes;
pub mod problem;
pub mod producer;
pub mod refused;
pub mod security;
pub mod session;
pub mod settings;
pub mod topic;
