//! From the API server into memory: lists, watches, and what follows from their changes.

pub mod aggregate_gauge;
pub mod deselected;
pub mod informer;
mod list_watch;
mod response;
pub mod state;
mod store;
pub mod tracked;
