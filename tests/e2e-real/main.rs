//! End-to-end tests on real nodes: the chart's pods, and the containers of all kinds. Each test has its own
//! cluster. Run them with `cargo xtask test --nodes real`, or as a part of `cargo xtask test`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a test that fails should panic")]

mod broken_nodes;
mod canary;
mod consumers;
mod drain;
mod managers;
mod marks;
mod nodes;
mod restarts;
mod samples;
mod schedule;
mod site;
mod uninstall;
mod waves;
