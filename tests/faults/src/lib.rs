//! Runs every scenario without a fault, then with each fault at each of its requests and watch events. `cargo
//! xtask faults` runs this crate; docs/reliability.md has its rules and results.
//!
//! Controllers, executor, caches and election are those of production. The API server is the fake one, and
//! time is simulated.

mod blindness;
mod bytes;
pub mod cli;
mod dice;
mod end;
#[cfg(test)]
mod load;
mod marks;
mod moments;
#[cfg(test)]
mod outdated;
mod pairs;
mod plan;
mod process;
mod promises;
mod run;
mod scenarios;
mod settling;
mod sweep;
mod transitions;
mod watcher;
