//! Reads the facts for the checks. Each fact is read even if another one cannot be read.

use std::cell::{Cell, OnceCell};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use quintet_kinds::Kind;
use quintet_runtime::model::resource::{DEPLOYMENTS, LEASES, PODS, Resource};
use quintet_runtime::server::client::WINDOW;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::activity::Activity;
use super::definitions::{Document, enabled};
use super::finding::Fact;
use super::installation::Installation;
use super::leader::LeaseFacts;
use super::objects::{Item, Tally};
use super::permissions::{Permission, UNREVIEWED, is_allowed, needed};
use super::webhooks::{Found, Suspect, is_ready, suspects};
use crate::api_client::{Cluster, is_absent};
use crate::check::{Renewals, holder};
use crate::kubeconfig::host;
use crate::uninstall::{Manager, lasts};

/// The pause between two reads of the Lease.
const PAUSE: Duration = Duration::from_secs(1);
/// The shortest and the longest wait for a renewal of the Lease. A manager renews it every 5 s by default, and the duration of
/// a released Lease is 1 s.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(15), Duration::from_mins(1));
/// The time limit for a page of a manager.
const PAGE: Duration = Duration::from_secs(5);
/// The most bytes of a page of a manager.
const LARGEST: u64 = 16 << 20;

const VALIDATING: Resource =
    configurations("ValidatingWebhookConfiguration", "validatingwebhookconfigurations");
const MUTATING: Resource = configurations("MutatingWebhookConfiguration", "mutatingwebhookconfigurations");
const ENDPOINT_SLICES: Resource =
    Resource::builtin("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");

const fn configurations(kind: &'static str, plural: &'static str) -> Resource {
    Resource { namespaced: false, ..Resource::builtin("admissionregistration.k8s.io", "v1", kind, plural) }
}

/// Reads the facts of an installation.
pub struct Reader<'a> {
    cluster: &'a Cluster,
    /// Whether the API server has answered a request.
    is_reached: Cell<bool>,
    /// The failure of a request before the first answer. Further requests would fail too, perhaps after a long wait.
    unreachable: OnceCell<kube::Error>,
}

impl<'a> Reader<'a> {
    /// A reader that has sent no request.
    pub fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, is_reached: Cell::new(false), unreachable: OnceCell::new() }
    }

    /// The answer to a request, or one sentence that begins with `what`.
    async fn ask<T>(&self, what: &str, request: impl Future<Output = kube::Result<T>>) -> Fact<T> {
        let sorry = |error: &kube::Error| self.cluster.sorry(what, error).to_string();
        if let Some(error) = self.unreachable.get() {
            return Err(sorry(error));
        }
        let answer = request.await;
        let is_answer = !matches!(answer, Err(kube::Error::Service(_)));
        self.is_reached.set(self.is_reached.get() || is_answer);
        answer.map_err(|error| {
            let why = sorry(&error);
            if !self.is_reached.get() {
                // A later failure does not replace the first one.
                let _ = self.unreachable.set(error);
            }
            why
        })
    }

    /// The manager's Deployment; None if it does not exist.
    pub async fn deployment(&self, manager: &Manager) -> Fact<Option<Value>> {
        let Manager { namespace, deployment } = manager;
        let what = format!("cannot read Deployment {namespace}/{deployment}");
        self.ask(&what, self.cluster.reads.read(&DEPLOYMENTS, namespace, deployment)).await
    }

    /// The version of the API server.
    pub async fn version(&self) -> Fact<String> {
        let version: Value =
            self.ask("cannot read the version of the API server", self.cluster.get("/version")).await?;
        Ok(version["gitVersion"].as_str().unwrap_or_default().to_owned())
    }

    /// The name of this program's user.
    pub async fn user(&self) -> Fact<String> {
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let asked = self.cluster.review("/apis/authentication.k8s.io/v1/selfsubjectreviews", &review);
        let status = self.ask("cannot read the name of your user", asked).await?;
        Ok(status["userInfo"]["username"].as_str().unwrap_or_default().to_owned())
    }

    /// The manager's Lease, until its holder renews it or the wait is over.
    pub async fn lease(&self, installation: &Installation) -> Fact<LeaseFacts> {
        let lease = &installation.lease;
        let (place, what) = (format!("{}/{}", lease.namespace, lease.name), format!("cannot read {lease}"));
        let (mut renewals, begin) = (Renewals::default(), Instant::now());
        // The time of the first read with the current holder.
        let (mut before, mut since) = (String::new(), begin);
        let outcome = loop {
            let read = self.cluster.reads.read::<Value>(&LEASES, &lease.namespace, &lease.name);
            let outcome = renewals.observe(&place, self.ask(&what, read).await?);
            let now = renewals.lease().map(holder).unwrap_or_default();
            if now != before {
                (before, since) = (now.to_owned(), Instant::now());
            }
            let (least, most) = PATIENCE;
            let wait = renewals.lease().and_then(lasts).unwrap_or_default().clamp(least, most);
            let is_over = since.elapsed() >= wait || begin.elapsed() >= most * 2;
            if outcome.is_ok() || renewals.lease().is_none() || is_over {
                break outcome;
            }
            sleep(PAUSE).await;
        };
        let mut facts = LeaseFacts {
            outcome,
            lease: renewals.lease().cloned(),
            watched: since.elapsed(),
            pod_exists: Ok(true),
        };
        if let Some(pod) = facts.pod() {
            let what = format!("cannot read pod {pod}");
            let read = self.cluster.reads.read_meta(&PODS, &installation.manager.namespace, pod);
            let found = self.ask(&what, read).await;
            facts.pod_exists = found.map(|found| found.is_some());
        }
        Ok(facts)
    }

    /// The fingerprints of the served schemas of the enabled kinds.
    pub async fn definitions(&self, installation: &Installation) -> Vec<(Resource, Fact<Option<String>>)> {
        let mut served = Vec::new();
        // In turn: the pod in which this program may run has little memory.
        for resource in enabled(installation).map(|kind| (kind.resource)()) {
            served.push((resource, self.fingerprint(&resource).await));
        }
        served
    }

    async fn fingerprint(&self, resource: &Resource) -> Fact<Option<String>> {
        let what = format!("cannot read the schema of {}", resource.crd_name());
        let path = format!("/openapi/v3/apis/{}", resource.api_version());
        let document = async {
            match self.cluster.get::<Document>(&path).await {
                Err(error) if is_absent(&error) => Ok(None),
                answer => answer.map(Some),
            }
        };
        match self.ask(&what, document).await? {
            Some(document) => document.fingerprint(resource),
            None => Ok(None),
        }
    }

    /// The objects of the enabled kinds in the watched namespaces that have problems.
    pub async fn objects(&self, installation: &Installation, now: Timestamp) -> Vec<(Resource, Fact<Tally>)> {
        let mut all = Vec::new();
        for kind in enabled(installation) {
            all.push(((kind.resource)(), self.objects_of(kind, &installation.flags.namespaces, now).await));
        }
        all
    }

    /// Keeps one page of objects at a time: the pod in which this program may run has little memory.
    async fn objects_of(&self, kind: &Kind, namespaces: &[String], now: Timestamp) -> Fact<Tally> {
        let resource = (kind.resource)();
        // An empty name means all namespaces.
        let everywhere = [String::new()];
        let namespaces = if namespaces.is_empty() { &everywhere } else { namespaces };
        let what = format!("cannot list {}", resource.crd_name());
        let add = |tally: &mut Tally, page: Vec<Item>| {
            for Item { listed, json } in page {
                tally.add(&listed, &(kind.problems)(json.get(), now), now);
            }
        };
        let mut tally = Tally::default();
        for namespace in namespaces {
            let list = self.cluster.reads.fold(&resource, namespace, || tally.clone(), add);
            let next = self.ask(&what, list).await?;
            tally = next;
        }
        Ok(tally)
    }

    /// The permissions that the manager needs, with the authorizer's answers.
    pub async fn permissions(&self, installation: &Installation) -> Fact<Vec<(Permission, Fact<bool>)>> {
        let user = self.user().await?;
        // Every user may review their own permissions. To review those of another account, a user needs a permission.
        let account = Some(installation.account.as_str()).filter(|account| *account != user);
        let needed = needed(installation);
        // If the first review is denied, all are.
        if let Some(first) = needed.first() {
            self.review(first, account).await?;
        }
        let reviews = stream::iter(needed).map(|one| async move {
            let answer = self.review(&one, account).await.and_then(|status| is_allowed(&status));
            (one, answer)
        });
        Ok(reviews.buffered(WINDOW).collect().await)
    }

    async fn review(&self, permission: &Permission, account: Option<&str>) -> Fact<Value> {
        let (path, review) = permission.review(account);
        self.ask(UNREVIEWED, self.cluster.review(path, &review)).await
    }

    /// The webhooks that match a write of Quintet, and whether their Services have a ready endpoint.
    pub async fn webhooks(&self) -> Fact<Found> {
        let mut found = Found::default();
        for resource in [VALIDATING, MUTATING] {
            let what = format!("cannot list {}", resource.plural);
            let listed = self.ask(&what, self.cluster.reads.list::<Value>(&resource, "", "")).await?;
            let (suspects, unchecked) = suspects(resource.plural, &listed);
            found.unchecked += unchecked;
            for suspect in suspects {
                let is_ready = self.has_endpoint(&suspect).await;
                found.suspects.push((suspect, is_ready));
            }
        }
        Ok(found)
    }

    async fn has_endpoint(&self, suspect: &Suspect) -> Fact<bool> {
        let Suspect { namespace, service, .. } = suspect;
        let what = format!("cannot list the EndpointSlices of Service {namespace}/{service}");
        let selector = format!("kubernetes.io/service-name={service}");
        let list = self.cluster.reads.list::<Value>(&ENDPOINT_SLICES, namespace, &selector);
        Ok(self.ask(&what, list).await?.iter().any(is_ready))
    }

    /// The pod that leads: the holder's, or without leader election the only pod.
    pub async fn leader(&self, installation: &Installation, lease: &Fact<LeaseFacts>) -> Fact<String> {
        let home = &installation.manager.namespace;
        let none = || "The leader is unknown.".to_owned();
        if installation.flags.elects {
            return lease.as_ref().ok().and_then(LeaseFacts::pod).map(str::to_owned).ok_or_else(none);
        }
        let list = self.cluster.reads.list::<Value>(&PODS, home, &installation.selector);
        let pods = self.ask("cannot list the manager's pods", list).await?;
        running(&pods).map(str::to_owned).ok_or_else(none)
    }

    /// The pages of the leader. In the leader's pod, they are those of its loopback address.
    pub async fn activity(&self, installation: &Installation, leader: &Fact<String>) -> Fact<Activity> {
        let pod = leader.as_ref().map_err(Clone::clone)?;
        if *pod == host() {
            let debug = installation.flags.debug.ok_or("The leader serves no debug pages.")?;
            // The metrics come last: they show whether this pod still leads.
            let controllers = Some(page(debug, "/debug/controllers").await?);
            return Ok(Activity { metrics: page(debug, "/metrics").await?, controllers });
        }
        let port = installation.flags.metrics_port.ok_or("The leader serves no metrics.")?;
        let home = &installation.manager.namespace;
        let path = format!("/api/v1/namespaces/{home}/pods/{pod}:{port}/proxy/metrics");
        let what = format!("cannot read the metrics of the leader, {pod}");
        let proxied = self.ask(&what, self.cluster.get_text(&path)).await;
        let metrics = match proxied {
            Ok(metrics) => metrics,
            // Another pod reaches the leader without the API server.
            Err(why) => match self.address(installation, pod).await {
                Some(address) => page(SocketAddr::new(address, port), "/metrics").await.map_err(|_| why)?,
                None => return Err(why),
            },
        };
        Ok(Activity { metrics, controllers: None })
    }

    /// The address of a pod, if this program runs in a pod.
    async fn address(&self, installation: &Installation, pod: &str) -> Option<IpAddr> {
        std::env::var_os("KUBERNETES_SERVICE_HOST")?;
        let what = format!("cannot read pod {pod}");
        let read = self.cluster.reads.read::<Value>(&PODS, &installation.manager.namespace, pod);
        self.ask(&what, read).await.ok()??["status"]["podIP"].as_str()?.parse().ok()
    }
}

/// The name of the first pod that runs.
fn running(pods: &[Value]) -> Option<&str> {
    let is_running =
        |pod: &&Value| pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null();
    pods.iter().find(is_running)?["metadata"]["name"].as_str()
}

/// GETs a page in plain HTTP. With HTTP/1.0, the server closes the connection after its answer, and sends no chunks.
async fn page(address: SocketAddr, path: &str) -> Fact<String> {
    let fetched = async {
        let mut stream = TcpStream::connect(address).await?;
        stream
            .write_all(
                format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
            )
            .await?;
        let mut answer = Vec::new();
        stream.take(LARGEST).read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let what = format!("cannot read http://{address}{path}");
    let answer = timeout(PAGE, fetched).await.map_err(|_| format!("{what}: no answer in time"))?;
    let answer = answer.map_err(|error| format!("{what}: {error}"))?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.split(' ').nth(1) == Some("200") => {
            if body.len() < length(head) {
                return Err(format!("{what}: the answer is incomplete"));
            }
            Ok(body.to_owned())
        }
        _ => Err(format!("{what}: {}", answer.lines().next().unwrap_or("no answer"))),
    }
}

/// The length of a page, from the head of its answer; 0 if it has none.
fn length(head: &str) -> usize {
    let headers = head.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = headers.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    lengths.next().and_then(|(_, value)| value.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use quintet_runtime::probes;
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn without_election_a_running_pod_leads() {
        let pod =
            |name: &str, phase: &str| json!({ "metadata": { "name": name }, "status": { "phase": phase } });
        let mut deleted = pod("c", "Running");
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let pods = [pod("a", "Failed"), pod("b", "Pending"), deleted, pod("d", "Running")];
        assert_eq!(running(&pods), Some("d"));
        assert_eq!(running(&pods[..3]), None);
    }

    #[tokio::test]
    async fn reads_a_page_of_a_manager() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/metrics", get(|| async { "a 1\nb 2\n".repeat(50_000) }));
        let server = tokio::spawn(probes::serve(listener, router));
        assert_eq!(page(address, "/metrics").await.unwrap().lines().count(), 100_000);
        let missing = page(address, "/debug/controllers").await.unwrap_err();
        assert!(missing.contains("404"), "{missing}");
        server.abort();
        let _ = server.await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cut = listener.local_addr().unwrap();
        let serve = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let size = stream.read(&mut [0; 1000]).await.unwrap();
            assert!(size > 0);
            stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 9\r\n\r\na 1\n").await.unwrap();
        };
        let (incomplete, ()) = tokio::join!(page(cut, "/metrics"), serve);
        assert!(incomplete.unwrap_err().ends_with("the answer is incomplete"));
        let away = page(address, "/metrics").await.unwrap_err();
        assert!(away.starts_with("cannot read http://127.0.0.1:"), "{away}");
    }
}
