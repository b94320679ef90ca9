//! The managers' requests, from the API server's audit log.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use quintet_localcluster::audit::{AuditLog, Author, Request};
use quintet_localcluster::cluster::Cluster;
use quintet_runtime::lock;

/// How long the log may lack an answered request.
const DELAY: Duration = Duration::from_millis(200);

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

    /// The selected requests that a policy denied. The manager's log has no messages of rejected writes.
    pub fn denials(&self, keep: impl Fn(&Request) -> bool) -> Vec<String> {
        std::thread::sleep(DELAY);
        let denied = self.requests(|one| one.is_denied_by_policy() && keep(one));
        let line = |Request { verb, resource, namespace, name, message, .. }| {
            format!("{verb} {resource} {namespace}/{name}: {message}")
        };
        denied.into_iter().map(line).collect()
    }

    /// Fails if a policy denied one of the selected requests.
    pub fn assert_no_denials(&self, keep: impl Fn(&Request) -> bool) {
        let denials = self.denials(keep);
        assert!(denials.is_empty(), "the guard rails denied requests of managers:\n{}", denials.join("\n"));
    }
}
