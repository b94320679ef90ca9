//! What the programs `pulsar-consumer` and `pulsar-producer` are made of: the container that a PulsarConsumer runs, and
//! the program that sends it something.
//!
//! Rules are pure functions: what a server's address or a topic's name may be ([`address`], [`topic`]), how a payload
//! becomes a line ([`line`]), what may be acknowledged ([`ledger`]), what an answer means ([`problem`]). The wire format
//! comes from the crate `pulsar`, and so does the producer. The consumer's side of the protocol is ours ([`link`],
//! [`session`]): that crate's consumer acknowledges a whole batch for any one of its messages, lets acknowledgements pile
//! up without bound, cannot pause, and does not say that a token was refused.

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
