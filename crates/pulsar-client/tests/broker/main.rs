//! Tests the programs with real brokers. `cargo xtask test` runs them; `cargo xtask test --pulsar FILTER`
//! runs those whose names contain FILTER. No test asserts a duration.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

mod delivery;
mod disturbances;
mod docs;
mod endings;
mod faults;
mod memory;
mod program;
mod raw;
mod readiness;
mod security;
mod topics;
