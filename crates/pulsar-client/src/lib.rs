//! The programs `pulsar-consumer`, which PulsarConsumers run in their pods, and `pulsar-producer`.
//!
//! Rules are pure functions: addresses ([`address`]), topics ([`topic`]), lines ([`line`]), acknowledgements
//! ([`ledger`]) and errors of the broker ([`problem`]). The crate `pulsar` provides the types of the wire
//! format. The protocol is in [`link`], [`brokers`], [`session`] and [`publisher`]. The clients of that crate
//! acknowledge a whole batch for one of its messages, queue acknowledgements without limit, cannot pause, do
//! not report a rejected token, and have no client certificates.

pub mod address;
pub mod backoff;
pub mod batch;
pub mod brokers;
pub mod consumer;
pub mod duration;
pub mod exit;
pub mod frame;
pub mod issuer;
pub mod ledger;
pub mod letters;
pub mod line;
pub mod link;
pub mod metrics;
pub mod notes;
pub mod printer;
pub mod probes;
pub mod problem;
pub mod producer;
pub mod publisher;
pub mod refused;
pub mod security;
pub mod session;
pub mod settings;
pub mod stop;
pub mod waiting;
