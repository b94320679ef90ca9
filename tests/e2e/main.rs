//! End-to-end tests on a real API server, controller-manager and scheduler, with simulated nodes.
//!
//! Each test has a namespace and a manager of its own and runs beside the others. Run them by `cargo xtask test`.

mod book;
mod daemonjob;
mod greeting;
mod manager;
mod podset;
mod pulsarconsumer;
