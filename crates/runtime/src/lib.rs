//! What the kinds share: everything between a pure plan and the API server. Nothing here names a kind.
//!
//! The modules are floors: each imports only those below it.
//!
//! | floor | what it does |
//! |---|---|
//! | [`control`] | from a key in the queue to a plan: start with [`control::controller`] |
//! | [`write`] | from a plan to the API server |
//! | [`cache`] | from the API server into memory |
//! | [`election`] | which process may write |
//! | [`server`] | requests to the API server, sent only while this process may write |
//! | [`model`] | plain data and pure rules: no I/O |

pub mod cache;
pub mod control;
pub mod election;
pub mod model;
pub mod probes;
pub mod server;
pub mod write;

/// The label that every pod of ours carries; the one Pod watch of the process selects by it.
pub const KIND_LABEL: &str = "quintet.dev/kind";

/// The field manager of every write.
pub const FIELD_MANAGER: &str = "quintet";

/// The name of the Lease, unless `--leader-election-id` says otherwise.
pub const LEASE_NAME: &str = "quintet-manager";
