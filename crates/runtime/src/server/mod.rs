//! Requests to the API server: one client, its connections, and the gate that every write passes.

pub mod client;
mod connection;
pub mod connectivity;
pub mod gate;
pub mod live_reads;
pub mod memory;
pub mod metrics;
pub mod token;
