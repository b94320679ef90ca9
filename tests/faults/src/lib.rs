//! Faults, exhaustively: every story is run once without a fault, and then again with each fault at each of its requests and
//! watch events. `cargo xtask faults` runs this; docs/reliability.md says what came of it.
//!
//! Everything that is run here is what runs in production: controllers, executor, caches and election. The API server
//! is the fake one, and so is time.

mod bytes;
pub mod cli;
mod dice;
mod end;
mod plan;
mod process;
mod promises;
mod run;
mod scenarios;
mod sweep;
mod transitions;
mod watcher;
