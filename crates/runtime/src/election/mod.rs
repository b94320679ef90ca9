//! Leader election: the holder of one Lease may write, and the gate is open while it holds the Lease.
//!
//! The algorithm is client-go's. It never trusts the holder's clock: a Lease expires when *this* process has seen it
//! unchanged for the lease duration. The renew deadline counts from before the last renewal request, by a clock that
//! runs while the machine sleeps. Updates carry the resourceVersion, so only one of two candidates succeeds.

use std::time::Duration;

use crate::LEASE_NAME;
use crate::model::resource::LEASES;
use crate::server::gate::CANCEL;

pub mod candidate;
pub mod handover;
pub mod leadership;
pub mod lease;

/// Settings of the election. The defaults are client-go's, except that a healthy holder renews every 5 s.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The identity of this process, unique to each start.
    pub identity: String,
    /// How long other processes wait for a silent holder.
    pub lease: Duration,
    /// How long the holder may write without a renewal.
    pub renew_deadline: Duration,
    /// The pause between attempts, and between renewals while they fail.
    pub retry: Duration,
    /// The pause between renewals while they succeed.
    pub renew: Duration,
}

impl Settings {
    /// The default settings, for a namespace and an identity.
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

    /// The API path of the Lease.
    fn path(&self) -> String {
        format!("{}/{}", LEASES.path(&self.namespace), self.name)
    }
}

/// An error that a retry cannot fix.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// RBAC denies access to the Lease.
    #[error(
        "this process may not {verb} leases in namespace {namespace}; it needs the rule: apiGroups \
         [coordination.k8s.io], resources [leases], verbs [create, get, update, watch]"
    )]
    Forbidden {
        /// The denied verb.
        verb: &'static str,
        /// The namespace of the Lease.
        namespace: String,
    },
    /// A write was not cancelled in time, and only the exit of the process can end it.
    #[error(
        "{holder} holds the lease, and writes of this process could not be cancelled within {} s, so it exits",
        CANCEL.as_secs()
    )]
    Uncancelled {
        /// The current holder of the Lease.
        holder: String,
    },
}
