//! Everything between a pure plan and the API server, shared by the kinds. Nothing here names a kind.
//!
//! Each module imports only those below it:
//!
//! | module | task |
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

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread panicked while it held the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The label of every pod that Quintet creates. The only Pod watch of the process selects by it.
pub const KIND_LABEL: &str = "quintet.dev/kind";

/// The field manager of every write.
pub const FIELD_MANAGER: &str = "quintet";

/// The default name of the Lease; see `--leader-election-id`.
pub const LEASE_NAME: &str = "quintet-manager";
