//! Who may write: whoever holds one Lease, which opens the gate.
//!
//! The algorithm is client-go's. The holder's clock is never trusted: a lease counts as expired when *this* process
//! has seen the same record for the lease duration. The renew deadline is measured from before the request that
//! last renewed, by a clock that goes on while the machine sleeps. All writes of the Lease are updates with
//! resourceVersion, so of two candidates one wins.

use std::time::Duration;

use crate::LEASE_NAME;
use crate::model::resource::LEASES;
use crate::server::gate::CANCEL;

pub mod candidate;
pub mod handover;
pub mod lease;

/// Election settings; the defaults are client-go's, but a healthy holder renews every 5 s.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Identity of this process, unique for its life.
    pub identity: String,
    /// How long others wait for a silent holder.
    pub lease: Duration,
    /// How long the holder goes on without a renewal.
    pub renew_deadline: Duration,
    /// How long between tries, and between renewals while they fail.
    pub retry: Duration,
    /// How long between renewals while they succeed.
    pub renew: Duration,
}

impl Settings {
    /// The usual times, for an identity and a namespace.
    pub fn new(namespace: String, identity: String) -> Self {
        Self {
            namespace,
            name: LEASE_NAME.to_owned(),
            identity,
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
            renew: Duration::from_secs(5),
        }
    }

    /// The Lease's path at the API server.
    fn path(&self) -> String {
        format!("{}/{}", LEASES.path(&self.namespace), self.name)
    }
}

/// A reason to give up: retrying cannot mend it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// RBAC.
    #[error(
        "this process may not {verb} leases in namespace {namespace}; it needs the rule: apiGroups \
         [coordination.k8s.io], resources [leases], verbs [create, get, update, watch]"
    )]
    Forbidden {
        /// What was tried.
        verb: &'static str,
        /// Where.
        namespace: String,
    },
    /// Only the end of the process ends its writes.
    #[error(
        "{holder} holds the lease, and writes of this process could not be cancelled within {} s: it must end",
        CANCEL.as_secs()
    )]
    Uncancelled {
        /// Who holds it.
        holder: String,
    },
}
