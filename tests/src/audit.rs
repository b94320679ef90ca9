//! The managers' requests, from the API server's audit log.

use std::collections::BTreeMap;
use std::sync::Mutex;

use quintet_localcluster::audit::{AuditLog, Author, Request};
use quintet_localcluster::cluster::Cluster;
use quintet_runtime::lock;

/// The answered writes of managers since a moment, with dry runs. The log shows a request a moment after its answer.
pub struct Audit(Mutex<(AuditLog, Vec<Request>)>);

impl Audit {
    /// Begins now.
    pub fn of(cluster: &Cluster) -> Self {
        let log = AuditLog::now(cluster.audit_log()).expect("there is an audit log");
        Self(Mutex::new((log, Vec::new())))
    }

    /// The requests that `keep` selects.
    pub fn requests(&self, keep: impl Fn(&Request) -> bool) -> Vec<Request> {
        let (log, seen) = &mut *lock(&self.0);
        let more = log.requests().expect("the audit log can be read").into_iter();
        seen.extend(more.filter(|one| one.author == Author::Quintet && (one.is_write() || one.is_dry_run())));
        seen.iter().filter(|one| keep(one)).cloned().collect()
    }

    /// The writes in a namespace, without Events and Leases.
    pub fn writes(&self, namespace: &str) -> Vec<Request> {
        let is_of_object = |one: &Request| !matches!(one.resource.as_str(), "events" | "leases");
        self.requests(|one| one.namespace == namespace && one.is_write() && is_of_object(one))
    }

    /// The number of times that managers created a pod of each name in a namespace.
    pub fn created_pods(&self, namespace: &str) -> BTreeMap<String, usize> {
        let mut created = BTreeMap::new();
        for write in self.writes(namespace).into_iter().filter(Request::is_creation_of_pod) {
            *created.entry(write.name).or_insert(0) += 1;
        }
        created
    }
}
