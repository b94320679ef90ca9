//! The API server's audit log as a neutral count of requests. All contenders of a bench are counted and timed
//! by the same clock, to the microsecond. The log has the writes of every client, and the reads of managers
//! (`tests/controlplane/audit-policy.yaml`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The client that sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Author {
    /// A manager of Quintet.
    Quintet,
    /// The bench.
    Bench,
    /// kopf.
    Kopf,
    /// The manager that is written with controller-runtime.
    Twin,
    /// The manager that is written with kube-runtime's Controller.
    KubeRuntime,
    /// OpenKruise.
    Kruise,
    /// The Job controller of kube-controller-manager.
    JobController,
    /// The DaemonSet controller of kube-controller-manager.
    DaemonSetController,
    /// The ReplicaSet controller of kube-controller-manager.
    ReplicaSetController,
    /// Any other client, such as the scheduler, a simulated kubelet or the garbage collector.
    Other,
}

/// The verb of a dry-run request, whatever its method.
const DRY_RUN: &str = "dry-run";

/// An answered request, or a watch that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client that sent the request.
    pub author: Author,
    /// The namespace; empty for cluster-scoped resources.
    pub namespace: String,
    /// `create`, `update`, `patch`, `delete` or `deletecollection`; `get`, `list` or `watch`; [`DRY_RUN`].
    pub verb: String,
    /// The resource, and the subresource after a slash.
    pub resource: String,
    /// The name of the object; empty if the request does not have it.
    pub name: String,
    /// The status code of the answer.
    pub code: u16,
    /// The message of the answer; empty if the request succeeded.
    pub message: String,
    /// When the API server received the request.
    pub received: Timestamp,
    /// When the API server answered.
    pub answered: Timestamp,
}

impl Request {
    /// Whether the request asks for a change.
    pub fn is_write(&self) -> bool {
        !self.is_read() && self.verb != "watch" && !self.is_dry_run()
    }

    /// Whether the request asks for a change that is not stored.
    pub fn is_dry_run(&self) -> bool {
        self.verb == DRY_RUN
    }

    /// Whether the request is a get or a list.
    pub fn is_read(&self) -> bool {
        matches!(self.verb.as_str(), "get" | "list")
    }

    /// Whether the request writes a Lease.
    pub fn is_of_election(&self) -> bool {
        self.is_write() && self.resource == "leases"
    }

    /// Whether the status code is 2xx.
    pub fn is_done(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Whether a ValidatingAdmissionPolicy denied the request.
    pub fn is_denied_by_policy(&self) -> bool {
        matches!(self.code, 403 | 422)
            && self.message.contains("ValidatingAdmissionPolicy '")
            && self.message.contains(" denied request: ")
    }

    /// Whether the request created a pod.
    pub fn is_creation_of_pod(&self) -> bool {
        self.is_done() && self.verb == "create" && self.resource == "pods"
    }

    /// Whether the request deleted a pod, or marked it for deletion.
    pub fn is_deletion_of_pod(&self) -> bool {
        self.is_done() && self.verb == "delete" && self.resource == "pods"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    stage: String,
    verb: String,
    #[serde(default, rename = "requestURI")]
    request_uri: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    object_ref: Option<ObjectRef>,
    response_status: Option<ResponseStatus>,
    request_received_timestamp: String,
    stage_timestamp: String,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize)]
struct ObjectRef {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
    message: String,
}

/// Parses a line of the log. Returns `None` unless it is an answered request for a resource.
fn parse(line: &[u8]) -> Option<Request> {
    let line: Line = serde_json::from_slice(line).ok()?;
    let object = line.object_ref.filter(|_| line.stage == "ResponseComplete")?;
    let resource = match object.subresource.as_str() {
        "" => object.resource,
        subresource => format!("{}/{subresource}", object.resource),
    };
    let answer = line.response_status.unwrap_or_default();
    Some(Request {
        author: author(&line.user.username, &line.user_agent),
        namespace: object.namespace,
        verb: if line.request_uri.contains("dryRun=All") { DRY_RUN.to_owned() } else { line.verb },
        resource,
        name: object.name,
        code: answer.code,
        message: answer.message,
        received: line.request_received_timestamp.parse().ok()?,
        answered: line.stage_timestamp.parse().ok()?,
    })
}

/// The bench uses the manager's identity for every contender, so that the API server treats all alike. The
/// user agent distinguishes them. The controllers of kube-controller-manager have a ServiceAccount each.
fn author(user: &str, agent: &str) -> Author {
    match user.strip_prefix("system:serviceaccount:kube-system:") {
        Some("job-controller") => Author::JobController,
        Some("daemon-set-controller") => Author::DaemonSetController,
        Some("replicaset-controller") => Author::ReplicaSetController,
        _ if agent.starts_with("quintet/") => Author::Quintet,
        _ if agent.starts_with("quintet-bench/") => Author::Bench,
        _ if agent.starts_with("kopf/") => Author::Kopf,
        _ if agent.starts_with("twin/") => Author::Twin,
        _ if agent.starts_with("kube-runtime/") => Author::KubeRuntime,
        // OpenKruise appends a slash and the controller's name.
        _ if agent.starts_with("kruise-manager") => Author::Kruise,
        _ => Author::Other,
    }
}

/// Follows the log while the API server writes it. The API server rotates a full file, so the open file is
/// read to its end before the next one is opened.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    file: BufReader<File>,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
}

impl AuditLog {
    /// Starts at the present end of the log.
    pub fn now(path: PathBuf) -> Result<Self> {
        let mut file = Self::open(&path)?;
        file.seek(SeekFrom::End(0)).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self { path, file, rest: Vec::new() })
    }

    /// The writes since the last call.
    pub fn writes(&mut self) -> Result<Vec<Request>> {
        let mut requests = self.requests()?;
        requests.retain(Request::is_write);
        Ok(requests)
    }

    /// All requests since the last call.
    pub fn requests(&mut self) -> Result<Vec<Request>> {
        let mut requests = Vec::new();
        loop {
            self.read_file(&mut requests)?;
            let Ok(next) = std::fs::metadata(&self.path) else { return Ok(requests) };
            if self.file.get_ref().metadata()?.ino() == next.ino() {
                return Ok(requests);
            }
            // Lines written between the last read and the rotation.
            self.read_file(&mut requests)?;
            self.file = Self::open(&self.path)?;
            self.rest.clear();
        }
    }

    fn read_file(&mut self, requests: &mut Vec<Request>) -> Result<()> {
        loop {
            let read = self
                .file
                .read_until(b'\n', &mut self.rest)
                .with_context(|| format!("cannot read {}", self.path.display()))?;
            if read == 0 || self.rest.last() != Some(&b'\n') {
                return Ok(());
            }
            requests.extend(parse(&self.rest));
            self.rest.clear();
        }
    }

    fn open(path: &PathBuf) -> Result<BufReader<File>> {
        Ok(BufReader::new(File::open(path).with_context(|| format!("cannot read {}", path.display()))?))
    }
}

/// The writes of one author in one namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tally {
    /// Requests by `verb resource`, without Events and Leases.
    pub by_kind: BTreeMap<String, u64>,
    /// Requests for Events.
    pub events: u64,
    /// The requests of `by_kind` that failed.
    pub refused: u64,
    /// The failed requests by status code.
    pub refused_by_code: BTreeMap<u16, u64>,
    /// Created pods.
    pub pods: u64,
    /// Pods that were deleted or marked for deletion.
    pub deletions: u64,
    /// When the API server received the first request to create a pod.
    #[serde(skip)]
    pub first_pod: Option<Timestamp>,
    /// When the API server answered the last successful creation of a pod.
    #[serde(skip)]
    pub last_pod: Option<Timestamp>,
    /// When the API server answered the last successful deletion of a pod.
    #[serde(skip)]
    pub last_deletion: Option<Timestamp>,
}

impl Tally {
    /// Counts the requests of an author in a namespace.
    pub fn of(writes: &[Request], author: Author, namespace: &str) -> Self {
        let mut tally = Self::default();
        for write in writes.iter().filter(|write| write.author == author && write.namespace == namespace) {
            match write.resource.as_str() {
                "leases" => continue,
                "events" => {
                    tally.events += 1;
                    continue;
                }
                _ => {}
            }
            *tally.by_kind.entry(format!("{} {}", write.verb, write.resource)).or_default() += 1;
            let done = write.is_done();
            if !done {
                tally.refused += 1;
                *tally.refused_by_code.entry(write.code).or_default() += 1;
            }
            if write.verb == "create" && write.resource == "pods" {
                tally.first_pod =
                    Some(tally.first_pod.map_or(write.received, |first| first.min(write.received)));
                if done {
                    tally.pods += 1;
                    tally.last_pod = tally.last_pod.max(Some(write.answered));
                }
            }
            if write.is_deletion_of_pod() {
                tally.deletions += 1;
                tally.last_deletion = tally.last_deletion.max(Some(write.answered));
            }
        }
        tally
    }

    /// The successful writes, without Events.
    pub fn writes(&self) -> u64 {
        self.requests().saturating_sub(self.refused)
    }

    /// All requests except those for Events, failed ones included.
    pub fn requests(&self) -> u64 {
        self.by_kind.values().sum()
    }

    /// The part of these requests that writes a status.
    pub fn status_requests(&self) -> u64 {
        let of_status = |(kind, count): (&String, &u64)| kind.ends_with("/status").then_some(*count);
        self.by_kind.iter().filter_map(of_status).sum()
    }

    /// The failed requests by status code: `409: 3, 429: 1`.
    pub fn codes(&self) -> String {
        let codes: Vec<String> =
            self.refused_by_code.iter().map(|(code, count)| format!("{code}: {count}")).collect();
        codes.join(", ")
    }

    /// `create pods: 3, patch daemonjobs/status: 1`.
    pub fn describe(&self) -> String {
        let kinds: Vec<String> =
            self.by_kind.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
        kinds.join(", ")
    }

    /// The seconds from the first request to create a pod to the answer to the last one.
    pub fn creating_seconds(&self) -> Option<f64> {
        Some(self.last_pod?.duration_since(self.first_pod?).as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn line(user: &str, agent: &str, verb: &str, resource: &str, code: u16, second: u32) -> String {
        format!(
            r#"{{"kind":"Event","level":"Metadata","stage":"ResponseComplete","verb":"{verb}","user":{{"username":"{user}","groups":["x"]}},"userAgent":"{agent}","objectRef":{{"resource":"{resource}","namespace":"n","apiVersion":"v1"}},"responseStatus":{{"metadata":{{}},"code":{code}}},"requestReceivedTimestamp":"2026-08-22T14:29:{second:02}.000001Z","stageTimestamp":"2026-08-22T14:29:{second:02}.250001Z"}}"#
        )
    }

    fn ours(verb: &str, resource: &str, code: u16, second: u32) -> Request {
        let user = "system:serviceaccount:quintet-system:quintet";
        parse(line(user, "quintet/0.1.0", verb, resource, code, second).as_bytes()).unwrap()
    }

    #[test]
    fn distinguishes_denials_of_policies() {
        let is_denied = |code, message: &str| {
            let request = Request { message: message.to_owned(), ..ours("patch", "nodes", code, 0) };
            request.is_denied_by_policy()
        };
        let of_policy =
            "nodes \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no";
        assert!(is_denied(403, of_policy) && is_denied(422, of_policy));
        assert!(!is_denied(201, of_policy), "a warning");
        assert!(!is_denied(403, "nodes \"a\" is forbidden: User \"u\" cannot patch resource \"nodes\""));
        assert!(!is_denied(403, "admission webhook \"w\" denied the request: no"));
    }

    #[test]
    fn distinguishes_authors() {
        let of = |user: &str, agent: &str| author(user, agent);
        let account = "system:serviceaccount:quintet-system:quintet";
        assert_eq!(of(account, "quintet/0.1.0"), Author::Quintet);
        assert_eq!(of(account, "quintet-bench/0.1.0"), Author::Bench);
        let agent = "kube-controller-manager/v1.37.1 (linux/amd64) kubernetes/$Format/x";
        assert_eq!(of("system:serviceaccount:kube-system:job-controller", agent), Author::JobController);
        assert_eq!(
            of("system:serviceaccount:kube-system:daemon-set-controller", agent),
            Author::DaemonSetController
        );
        assert_eq!(of("system:serviceaccount:kube-system:generic-garbage-collector", agent), Author::Other);
        assert_eq!(of("system:kube-scheduler", "kube-scheduler/v1.37.1"), Author::Other);
        assert_eq!(of("system:serviceaccount:default:kopf", "kopf/1"), Author::Kopf);
        assert_eq!(of(account, "twin/0.1.0"), Author::Twin);
        assert_eq!(of(account, "kube-runtime/0.1.0"), Author::KubeRuntime);
        assert_eq!(of(account, "kruise-manager/broadcastjob-controller"), Author::Kruise);
        assert_eq!(of(account, "kruise-manager"), Author::Kruise);
    }

    #[test]
    fn skips_lines_without_an_answer_about_a_resource() {
        assert_eq!(parse(b"not json"), None);
        let line = line("u", "a", "create", "pods", 201, 0);
        assert!(parse(line.as_bytes()).is_some());
        assert_eq!(parse(line.replace("ResponseComplete", "ResponseStarted").as_bytes()), None);
        assert_eq!(parse(line.replace("objectRef", "other").as_bytes()), None);
    }

    #[test]
    fn reads_are_not_writes() {
        let is = |verb: &str| {
            let request = ours(verb, "pods", 200, 1);
            (request.is_write(), request.is_read())
        };
        assert_eq!(["create", "update", "patch", "delete", "deletecollection"].map(is), [(true, false); 5]);
        assert_eq!(["get", "list", "watch"].map(is), [(false, true), (false, true), (false, false)]);
    }

    #[test]
    fn subresources_are_separate_kinds() {
        let line = line("u", "a", "patch", "pods", 200, 0)
            .replace(r#""namespace""#, r#""subresource":"status","namespace""#);
        assert_eq!(parse(line.as_bytes()).unwrap().resource, "pods/status");
    }

    #[test]
    fn a_tally_counts_events_apart_and_times_the_creations() {
        let writes = [
            ours("patch", "daemonjobs/status", 200, 1),
            ours("create", "pods", 201, 2),
            ours("create", "pods", 409, 3),
            ours("create", "pods", 201, 4),
            ours("create", "events", 201, 5),
            ours("update", "leases", 200, 5),
            Request { author: Author::Other, ..ours("create", "pods", 201, 9) },
            Request { namespace: "other".to_owned(), ..ours("create", "pods", 201, 9) },
        ];
        let tally = Tally::of(&writes, Author::Quintet, "n");
        assert_eq!(
            tally.by_kind,
            [("create pods".to_owned(), 3), ("patch daemonjobs/status".to_owned(), 1)].into()
        );
        assert_eq!((tally.requests(), tally.writes(), tally.refused), (4, 3, 1));
        assert_eq!((tally.events, tally.pods), (1, 2));
        assert_eq!(tally.creating_seconds(), Some(2.25));
        assert_eq!(Tally::of(&writes, Author::JobController, "n"), Tally::default());
        assert_eq!(Tally::default().creating_seconds(), None);
    }

    #[test]
    fn a_tally_counts_deletions_and_statuses() {
        let writes = [
            ours("delete", "pods", 200, 1),
            ours("delete", "pods", 404, 2),
            ours("delete", "configmaps", 200, 3),
            ours("patch", "podsets/status", 200, 4),
            ours("patch", "pods/status", 200, 5),
            Request { author: Author::ReplicaSetController, ..ours("delete", "pods", 200, 6) },
        ];
        let tally = Tally::of(&writes, Author::Quintet, "n");
        assert_eq!((tally.deletions, tally.refused, tally.status_requests(), tally.pods), (1, 1, 2, 0));
        assert_eq!(tally.codes(), "404: 1");
        assert_eq!(tally.last_deletion, Some(writes[0].answered));
        assert_eq!(
            tally.describe(),
            "delete configmaps: 1, delete pods: 2, patch pods/status: 1, patch podsets/status: 1"
        );
    }

    #[test]
    fn follows_a_log_over_a_rotation_and_half_a_line() {
        let dir = std::env::temp_dir().join(format!("quintet-audit-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("audit.log");
        let text = |second| line("u", "a", "create", "pods", 201, second) + "\n";
        std::fs::write(&path, text(0)).unwrap();
        let mut log = AuditLog::now(path.clone()).unwrap();
        assert_eq!(log.writes().unwrap().len(), 0);
        let mut file = File::options().append(true).open(&path).unwrap();
        let (begin, end) = (text(1)[..50].to_owned(), text(1)[50..].to_owned());
        file.write_all(begin.as_bytes()).unwrap();
        assert_eq!(log.writes().unwrap().len(), 0);
        file.write_all(end.as_bytes()).unwrap();
        assert_eq!(log.writes().unwrap().len(), 1);
        file.write_all(text(2).as_bytes()).unwrap();
        std::fs::rename(&path, dir.join("audit-old.log")).unwrap();
        std::fs::write(&path, text(3) + &text(4)).unwrap();
        assert_eq!(log.writes().unwrap().len(), 3);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
