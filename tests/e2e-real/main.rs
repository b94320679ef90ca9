//! End-to-end tests on real nodes: the chart's own pods, and pods of all kinds that are containers.
//!
//! Each test has a cluster of its own. Run them by `cargo xtask test --nodes real`, or as a part of `cargo xtask test`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

mod broken_nodes;
mod consumers;
mod drain;
mod managers;
mod nodes;
mod restarts;
mod samples;
mod site;
mod uninstall;
