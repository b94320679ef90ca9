//! From a plan to the API server.

mod answer;
pub mod events;
pub mod executor;
pub mod owner_memory;
pub mod request;
mod slots;
mod status;
