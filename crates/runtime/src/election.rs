//! Who may write: whoever holds one Lease, which opens the gate.
//!
//! The algorithm is client-go's. The holder's clock is never trusted: a lease counts as expired when *this* process
//! has seen the same record for the lease duration. The renew deadline is measured from before the request that
//! last renewed, by a clock that goes on while the machine sleeps. All writes of the Lease are updates with
//! resourceVersion, so of two candidates one wins.

use std::time::Duration;

use futures::AsyncBufReadExt as _;
use http::Request;
use jiff::Timestamp;
use kube::Client;
use prometheus::IntCounter;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::model::clock::{Clock, Moment};
use crate::model::resource::{LEASES, escape};
use crate::server::client::{self, brief};
use crate::server::connectivity::Link;
use crate::server::gate::{CANCEL, Gate, Seen};
use crate::server::metrics::Metrics;
use crate::{LEASE_NAME, log_repeated};

/// How long one watch of the Lease lasts.
const WATCH: Duration = Duration::from_mins(5);
/// How long a process goes on that was never allowed to ask for the lease.
const FORBIDDEN: Duration = Duration::from_secs(30);

/// Annotation of a released Lease: a [`Seen`] as JSON, and the term that it is of. Whoever acquires the Lease takes it off.
pub const SEEN_ANNOTATION: &str = "quintet.dev/written";

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

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct LeaseSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_duration_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    acquire_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renew_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_transitions: Option<i64>,
    /// What is not read is kept: a preferred holder, and what a later version has.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize, Default)]
#[serde(default)]
struct Lease {
    metadata: Value,
    spec: LeaseSpec,
}

/// Who holds a Lease, read as the election reads it.
pub fn holder_of(lease: &[u8]) -> Result<Option<String>, serde_json::Error> {
    Ok(serde_json::from_slice::<Lease>(lease)?.spec.holder_identity)
}

/// What was observed of the Lease, and when by this process's clock.
#[derive(Default)]
struct Observed {
    spec: LeaseSpec,
    at: Option<Instant>,
    /// The resourceVersion of what was read last.
    version: String,
    /// The Lease as this process wrote it last: a healthy holder renews it without reading it first.
    ours: Option<Lease>,
    /// Whether it was seen not to be ours since this process last knew that it held it: a try that was not answered may have
    /// acquired it anew.
    lost: bool,
}

impl Observed {
    fn of(lease: &Lease) -> Self {
        Self { spec: lease.spec.clone(), version: version(lease), ..Self::default() }
    }

    fn written(lease: Lease) -> Self {
        let observed = Self::of(&lease);
        Self { at: Some(Instant::now()), ours: Some(lease), ..observed }
    }

    /// Takes note of a record that the watch shows.
    fn saw(&mut self, lease: &Lease) {
        self.version = version(lease);
        if self.spec != lease.spec {
            self.spec = lease.spec.clone();
            self.at = Some(Instant::now());
        }
    }

    /// When the holder that was observed has been silent for too long.
    fn expiry(&self, settings: &Settings) -> Instant {
        self.at.unwrap_or_else(Instant::now) + duration(&self.spec, settings)
    }

    /// Whether the holder that was observed has been silent for too long.
    fn is_expired(&self, settings: &Settings) -> bool {
        self.at.is_some() && self.expiry(settings) <= Instant::now()
    }

    /// Whether nobody holds what was observed.
    fn is_free(&self) -> bool {
        self.spec.holder_identity.as_deref().unwrap_or_default().is_empty()
    }
}

fn version(lease: &Lease) -> String {
    lease.metadata["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

/// Who competes for the lease, with what.
pub struct Candidate {
    /// A client of its own, so that nothing delays a renewal.
    pub client: Client,
    /// Who it is, and its times.
    pub settings: Settings,
    /// What it opens and closes.
    pub gate: Gate,
    /// News about the connections.
    pub link: Link,
    /// Time.
    pub clock: Clock,
    /// Where the renewals are counted that had to read the Lease.
    pub metrics: Metrics,
}

/// Holds the lease whenever it can, and opens and closes the gate. Ends when `stop` becomes true, with the lease
/// released and what was `seen` handed over, or with an error that only a person can mend.
pub async fn run(
    candidate: Candidate,
    seen: impl Fn() -> Seen,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Error> {
    let Candidate { client, settings, gate, link, clock, metrics } = candidate;
    let slow = metrics.slow_renewals.with_label_values(&[&*metrics.lease]);
    // Tries in a row that came to nothing.
    let mut failures = 0;
    let mut observed = Observed::default();
    let mut held_since: Option<Moment> = None;
    // Whether it was ever allowed to read the Lease, and to write it.
    let (mut was_read, mut was_written) = (false, false);
    // How long the last try took that was answered.
    let mut took = Duration::ZERO;
    // Watches in a row that were refused.
    let mut unwatched = 0;
    let mut holder_told = None;
    let (mut answered, mut works) = (true, true);
    let mut may_hold;
    let mut returns = link.returns();
    let started = Instant::now();
    loop {
        let began = gate.moment();
        // A request that hangs must end before the deadline that it would move.
        // Several tries fit into the time that is left: a dead connection costs one of them, not the lease. A server that is slow
        // gets the time that it takes.
        let left = held_since.map(|since| settings.renew_deadline.saturating_sub(gate.elapsed(since)));
        let limit = match left.filter(|left| !left.is_zero()) {
            Some(left) => left.min((settings.renew_deadline / 4).max(took * 2)),
            None => settings.renew_deadline,
        };
        may_hold = true;
        let is_stuck = gate.silence() >= settings.renew_deadline;
        let tried = timeout(limit, attempt(&client, &settings, &mut observed, &clock, &slow, is_stuck));
        let outcome = tokio::select! {
            outcome = tried => outcome.unwrap_or(Ok(Attempt::Unanswered("no answer in time".to_owned()))),
            _ = stop.wait_for(|stop| *stop) => Ok(Attempt::Unanswered("stopping".to_owned())),
        };
        if *stop.borrow() {
            break;
        }
        let was_allowed = |verb| if verb == "get" { was_read } else { was_written };
        let outcome = match outcome {
            // At its start an API server may not know its roles yet, and a role may be mended: only a process that
            // was never allowed to ask gives up.
            Err(Error::Forbidden { verb, namespace })
                if was_allowed(verb) || started.elapsed() < FORBIDDEN =>
            {
                Attempt::Refused(Error::Forbidden { verb, namespace }.to_string())
            }
            outcome => outcome?,
        };
        if !matches!(outcome, Attempt::Unanswered(_)) {
            took = gate.elapsed(began);
        }
        // Whatever was said by this news is tried now.
        returns.mark_unchanged();
        if std::mem::replace(&mut answered, !matches!(outcome, Attempt::Unanswered(_))) && !answered {
            link.doubt();
        }
        // A server that refuses what it has granted before, as one that starts does, is not back yet.
        let is_granted = matches!(outcome, Attempt::Held(_) | Attempt::OthersHold(_));
        if !std::mem::replace(&mut works, is_granted) && works {
            link.is_back();
        }
        was_read |= works;
        was_written |= matches!(outcome, Attempt::Held(_));
        returns.mark_unchanged();
        let pause = match outcome {
            Attempt::Held(taken) => {
                if let Some(handed) = taken {
                    // A term that this process believed to have may have been somebody else's meanwhile.
                    gate.close();
                    tracing::info!(
                        identity = settings.identity,
                        handed_over = !handed.is_empty(),
                        "acquired the lease"
                    );
                    gate.hand_over(handed);
                } else if held_since.is_none() {
                    tracing::info!(
                        identity = settings.identity,
                        "holds the lease again, as nobody had it meanwhile"
                    );
                }
                held_since = Some(began);
                (holder_told, failures) = (None, 0);
                gate.open_for(settings.renew_deadline, began);
                settings.renew.saturating_sub(gate.elapsed(began))
            }
            Attempt::OthersHold(holder) => {
                (may_hold, failures) = (false, 0);
                if held_since.take().is_some() {
                    gate.close();
                    tracing::warn!(holder, "another process holds the lease: lost it, standing by");
                } else if holder_told.as_ref() != Some(&holder) {
                    tracing::info!(holder, "another process holds the lease: standing by");
                }
                if !gate.is_cancelled().await {
                    return Err(Error::Uncancelled { holder });
                }
                holder_told = Some(holder);
                gate.note_try();
                tokio::select! {
                    () = chance(&client, &settings, &mut observed, &mut unwatched) => continue,
                    _ = stop.wait_for(|stop| *stop) => break,
                }
            }
            Attempt::Refused(error) | Attempt::Unanswered(error) => {
                failures += 1;
                log_repeated!(warn, failures, error, "the lease could not be read or renewed");
                if held_since.is_some_and(|since| gate.elapsed(since) >= settings.renew_deadline) {
                    held_since = None;
                    gate.close();
                    tracing::warn!(
                        "the renew deadline has passed: nothing is written until the lease is held again"
                    );
                }
                if held_since.is_none() {
                    // The try may have gone through: whose term came before is not known then.
                    gate.hand_over(Seen::new());
                }
                settings.retry.saturating_sub(gate.elapsed(began))
            }
        };
        gate.note_try();
        tokio::select! {
            () = sleep(pause) => {}
            _ = returns.changed(), if !answered => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    gate.close();
    // A try that was cut off may have gone through. What was seen is told by who has led alone.
    let seen = if held_since.is_some() { seen() } else { Seen::new() };
    if may_hold {
        let released = async {
            match release(&client, &settings, &clock, &seen).await {
                // Annotations have a limit. The successor lists anew then.
                Err(kube::Error::Api(status)) if status.code != 409 => {
                    release(&client, &settings, &clock, &Seen::new()).await
                }
                // A renewal that was on its way may have come in between.
                Err(_) => release(&client, &settings, &clock, &seen).await,
                released => released,
            }
        };
        let error = match timeout(Duration::from_secs(3), released).await {
            Ok(Ok(true)) => {
                tracing::info!("released the lease");
                return Ok(());
            }
            Ok(Ok(false)) => return Ok(()),
            Ok(Err(error)) => brief(&error),
            Err(_elapsed) => "no answer in time".to_owned(),
        };
        tracing::warn!(error, "the lease could not be released: if it is held, others wait until it expires");
    }
    Ok(())
}

/// Waits until the Lease that another process holds may be had: it is released, gone, or its holder was silent for too
/// long. Where it cannot be watched, a while later is time enough.
async fn chance(client: &Client, settings: &Settings, observed: &mut Observed, unwatched: &mut u64) {
    let began = Instant::now();
    let mut lines =
        match timeout_at(observed.expiry(settings), watch_lease(client, settings, &observed.version)).await {
            Ok(Ok(lines)) => {
                *unwatched = 0;
                lines
            }
            Ok(Err(error)) => {
                *unwatched += 1;
                let error = brief(&error);
                log_repeated!(
                    warn,
                    *unwatched,
                    error,
                    "the Lease cannot be watched and is asked for instead"
                );
                sleep(settings.retry).await;
                return;
            }
            Err(_elapsed) => return,
        };
    let mut line = String::new();
    loop {
        line.clear();
        match timeout_at(observed.expiry(settings), lines.read_line(&mut line)).await {
            Ok(Ok(read)) if read > 0 => {}
            // It has expired.
            Err(_elapsed) => return,
            // The watch has ended, as watches do.
            Ok(_) => break,
        }
        match serde_json::from_str::<LeaseEvent>(&line) {
            Ok(LeaseEvent { type_, object }) if type_ == "ADDED" || type_ == "MODIFIED" => {
                observed.saw(&object);
                if observed.is_free() {
                    return;
                }
            }
            Ok(LeaseEvent { type_, .. }) if type_ == "BOOKMARK" => {}
            // Its holder goes on until it knows: see `attempt`.
            Ok(LeaseEvent { type_, .. }) if type_ == "DELETED" => {
                sleep_until(observed.expiry(settings)).await;
                return;
            }
            // The watch is too old, or what came is none.
            _ => break,
        }
    }
    // Whoever ends watches at once must not be asked in a circle.
    let was_short = began.elapsed() < Duration::from_secs(1);
    sleep(if was_short { settings.retry } else { settings.retry.min(Duration::from_millis(200)) }).await;
}

#[derive(Deserialize)]
struct LeaseEvent {
    #[serde(rename = "type")]
    type_: String,
    object: Lease,
}

async fn watch_lease(
    client: &Client,
    settings: &Settings,
    version: &str,
) -> Result<impl futures::AsyncBufRead + Unpin + use<>, kube::Error> {
    let path = format!(
        "{}?watch=true&fieldSelector={}&resourceVersion={version}&timeoutSeconds={}",
        LEASES.path(&settings.namespace),
        escape(&format!("metadata.name={}", settings.name)),
        WATCH.as_secs()
    );
    let request = Request::get(path)
        .header(http::header::ACCEPT_ENCODING, "identity")
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    client.request_stream(request).await
}

enum Attempt {
    /// With what the predecessor had seen (nothing, unless it has just released the lease) where it was not ours before.
    Held(Option<Seen>),
    OthersHold(String),
    /// The server has answered, and the answer is of no use.
    Refused(String),
    /// There was no answer: what is connected may be connected to nobody.
    Unanswered(String),
}

/// One try to acquire or renew. Where whoever writes is stuck, the lease is not had, and only looked at.
async fn attempt(
    client: &Client,
    settings: &Settings,
    observed: &mut Observed,
    clock: &Clock,
    slow: &IntCounter,
    is_stuck: bool,
) -> Result<Attempt, Error> {
    let stuck = || {
        Ok(Attempt::Refused(format!(
            "whoever writes has been stuck for {} s or longer, and does not get the lease",
            settings.renew_deadline.as_secs()
        )))
    };
    let path = settings.path();
    if let Some(lease) = observed.ours.take().filter(|_| !is_stuck) {
        let body = body(&lease, &held(settings, &lease.spec, clock));
        match send::<Lease>(client, "PUT", &path, Some(&body)).await {
            Ok(lease) => {
                *observed = Observed::written(lease);
                return Ok(Attempt::Held(None));
            }
            // It was changed, or is gone: a look says more.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                // It may have been written all the same: the next try looks first.
                return refused(error, "update", settings);
            }
        }
    }
    let lease = match send::<Lease>(client, "GET", &path, None).await {
        Ok(lease) => lease,
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let holder = observed.spec.holder_identity.clone().unwrap_or_default();
            if !observed.is_free() && holder != settings.identity && !observed.is_expired(settings) {
                // Somebody has deleted it; its holder does not know yet, and goes on until it does.
                return Ok(Attempt::OthersHold(holder));
            }
            if is_stuck {
                return stuck();
            }
            let spec = held(settings, &LeaseSpec::default(), clock);
            let body = json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": { "name": settings.name, "namespace": settings.namespace },
                "spec": spec,
            });
            let collection = LEASES.path(&settings.namespace);
            return match send::<Lease>(client, "POST", &collection, Some(&body)).await {
                Ok(lease) => {
                    *observed = Observed::written(lease);
                    Ok(Attempt::Held(Some(Seen::new())))
                }
                Err(error) => refused(error, "create", settings),
            };
        }
        Err(error) => return refused(error, "get", settings),
    };
    if observed.at.is_none() || observed.spec != lease.spec {
        *observed = Observed { at: Some(Instant::now()), lost: observed.lost, ..Observed::of(&lease) };
    }
    observed.version = version(&lease);
    let holder = lease.spec.holder_identity.clone().unwrap_or_default();
    observed.lost |= holder != settings.identity;
    if !holder.is_empty() && holder != settings.identity && !observed.is_expired(settings) {
        return Ok(Attempt::OthersHold(holder));
    }
    if is_stuck {
        return stuck();
    }
    if holder == settings.identity {
        slow.inc();
    }
    // It is of use only while nobody has held the lease since.
    let handed = if holder.is_empty() { handed_over(&lease) } else { Seen::new() };
    let body = body(&without_seen(lease.clone()), &held(settings, &lease.spec, clock));
    match send::<Lease>(client, "PUT", &path, Some(&body)).await {
        Ok(lease) => {
            let lost = std::mem::replace(observed, Observed::written(lease)).lost;
            let handed = if holder == settings.identity { Seen::new() } else { handed };
            Ok(Attempt::Held(lost.then_some(handed)))
        }
        // Somebody wrote the Lease meanwhile: the next look says who holds it. Ours it may still be.
        Err(kube::Error::Api(status)) if status.code == 409 && holder == settings.identity => {
            Ok(Attempt::Refused("the Lease was changed meanwhile".to_owned()))
        }
        Err(kube::Error::Api(status)) if status.code == 409 => {
            Ok(Attempt::OthersHold("(unknown)".to_owned()))
        }
        Err(error) => refused(error, "update", settings),
    }
}

/// The Lease with another record. Its resourceVersion is kept: of two who write, one wins.
fn body(lease: &Lease, spec: &LeaseSpec) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": lease.metadata, "spec": spec,
    })
}

/// The longest lease: nobody waits longer for a manager that is gone.
pub const LONGEST_LEASE: Duration = Duration::from_hours(24);

/// How long the observed holder may stay silent. A nonsense duration in the record counts as ours.
fn duration(spec: &LeaseSpec, settings: &Settings) -> Duration {
    spec.lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .filter(|seconds| (1..=LONGEST_LEASE.as_secs()).contains(seconds))
        .map_or(settings.lease, Duration::from_secs)
}

/// The record of a Lease that this process holds.
fn held(settings: &Settings, before: &LeaseSpec, clock: &Clock) -> LeaseSpec {
    let now = micros(clock.now());
    let ours = before.holder_identity.as_deref() == Some(&settings.identity);
    // The API keeps 32 bits of it, and refuses more.
    let transitions = before.lease_transitions.filter(|count| (0..i64::from(i32::MAX)).contains(count));
    let transitions = transitions.unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(settings.identity.clone()),
        lease_duration_seconds: i64::try_from(settings.lease.as_secs()).ok(),
        acquire_time: if ours { before.acquire_time.clone() } else { Some(now.clone()) },
        renew_time: Some(now),
        lease_transitions: Some(transitions + i64::from(!ours)),
        others: before.others.clone(),
    }
}

/// Gives the lease up, so that a successor need not wait. True where it was ours and is free now.
async fn release(
    client: &Client,
    settings: &Settings,
    clock: &Clock,
    seen: &Seen,
) -> Result<bool, kube::Error> {
    let path = settings.path();
    let mut lease = send::<Lease>(client, "GET", &path, None).await?;
    if lease.spec.holder_identity.as_deref() != Some(&settings.identity) {
        return Ok(false);
    }
    let spec = LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        renew_time: Some(micros(clock.now())),
        ..lease.spec.clone()
    };
    let handover = Handover { lease_transitions: spec.lease_transitions, seen: seen.clone() };
    annotate(&mut lease, &handover);
    send::<Lease>(client, "PUT", &path, Some(&body(&lease, &spec))).await?;
    Ok(true)
}

/// The annotation of a released Lease.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Handover {
    /// Those of the record that it belongs to: a later holder that leaves the annotation as it is counts on.
    lease_transitions: Option<i64>,
    seen: Seen,
}

/// Tells a successor what was seen.
fn annotate(lease: &mut Lease, handover: &Handover) {
    if let Some(metadata) = lease.metadata.as_object_mut() {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if !annotations.is_object() {
            *annotations = json!({});
        }
        annotations[SEEN_ANNOTATION] = json!(json!(handover).to_string());
    }
}

/// What the last holder had seen, by a Lease that it has released.
fn handed_over(lease: &Lease) -> Seen {
    let text = lease.metadata["annotations"][SEEN_ANNOTATION].as_str();
    let handover = text.and_then(|text| serde_json::from_str::<Handover>(text).ok());
    let current = handover.filter(|handover| handover.lease_transitions == lease.spec.lease_transitions);
    current.map(|handover| handover.seen).unwrap_or_default()
}

/// A Lease without what its last holder had seen.
fn without_seen(mut lease: Lease) -> Lease {
    if let Some(annotations) = lease.metadata["annotations"].as_object_mut() {
        annotations.remove(SEEN_ANNOTATION);
    }
    lease
}

/// MicroTime, as the API server wants it: exactly six decimals.
fn micros(at: Timestamp) -> String {
    format!("{at:.6}")
}

fn refused(error: kube::Error, verb: &'static str, settings: &Settings) -> Result<Attempt, Error> {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            Err(Error::Forbidden { verb, namespace: settings.namespace.clone() })
        }
        // What a server that has lost its store says is no answer: another server may have one.
        // Nor is what somebody between says, whose JSON has no code.
        kube::Error::Api(status) if (1..500).contains(&status.code) => {
            Ok(Attempt::Refused(brief(&kube::Error::Api(status))))
        }
        error => Ok(Attempt::Unanswered(brief(&error))),
    }
}

async fn send<T: serde::de::DeserializeOwned>(
    client: &Client,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> Result<T, kube::Error> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default())
        .map_err(kube::Error::HttpError)?;
    client::ask(client, request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings::new("n".into(), "me".into())
    }

    #[test]
    fn a_take_over_counts_a_transition_and_a_renewal_does_not() {
        let clock = Clock::System;
        let first = held(&settings(), &LeaseSpec::default(), &clock);
        assert_eq!(first.lease_transitions, Some(1));
        let second = held(&settings(), &first, &clock);
        assert_eq!((second.lease_transitions, &second.acquire_time), (Some(1), &first.acquire_time));
        let other = LeaseSpec { holder_identity: Some("other".into()), ..first };
        assert_eq!(held(&settings(), &other, &clock).lease_transitions, Some(2));
        for nonsense in [i64::MAX, i64::from(i32::MAX), -1] {
            let last = LeaseSpec { lease_transitions: Some(nonsense), ..other.clone() };
            assert_eq!(held(&settings(), &last, &clock).lease_transitions, Some(1), "32 bits are taken");
        }
    }

    #[test]
    fn what_others_have_written_into_the_record_stays() {
        let text = json!({ "holderIdentity": "other", "strategy": "OldestEmulationVersion", "preferredHolder": "x" });
        let spec: LeaseSpec = serde_json::from_value(text).unwrap();
        let ours = serde_json::to_value(held(&settings(), &spec, &Clock::System)).unwrap();
        assert_eq!(
            (&ours["strategy"], &ours["preferredHolder"]),
            (&json!("OldestEmulationVersion"), &json!("x"))
        );
        assert_eq!(ours["holderIdentity"], "me");
    }

    #[test]
    fn what_was_seen_is_read_once() {
        let lease = |annotation: &str| Lease {
            metadata: json!({ "name": "l", "annotations": { SEEN_ANNOTATION: annotation, "theirs": "x" } }),
            spec: LeaseSpec::default(),
        };
        let seen = Seen::from([("pods.".to_owned(), 7)]);
        let handover =
            |lease_transitions| json!(Handover { lease_transitions, seen: seen.clone() }).to_string();
        let released = lease(&handover(None));
        assert_eq!(handed_over(&released), seen);
        assert_eq!(handed_over(&lease(&handover(Some(1)))), Seen::new(), "of an earlier term");
        let taken = without_seen(released);
        assert_eq!(taken.metadata["annotations"], json!({ "theirs": "x" }));
        assert_eq!(handed_over(&taken), Seen::new());
        for nonsense in ["", "[]", "{\"pods.\": -1}", "null"] {
            assert_eq!(handed_over(&lease(nonsense)), Seen::new());
        }
        for (metadata, is_told) in
            [(json!("x"), false), (json!({ "annotations": ["x"] }), true), (json!({}), true)]
        {
            let mut lease = Lease { metadata, spec: LeaseSpec::default() };
            annotate(&mut lease, &Handover { lease_transitions: None, seen: seen.clone() });
            assert_eq!(handed_over(&lease) == seen, is_told);
        }
        assert_eq!(handed_over(&Lease::default()), Seen::new());
    }

    #[test]
    fn a_nonsense_duration_counts_as_ours() {
        for nonsense in [None, Some(-1), Some(0), Some(i64::MAX)] {
            let spec = LeaseSpec { lease_duration_seconds: nonsense, ..LeaseSpec::default() };
            assert_eq!(duration(&spec, &settings()), Duration::from_secs(15));
        }
        let spec = LeaseSpec { lease_duration_seconds: Some(1), ..LeaseSpec::default() };
        assert_eq!(duration(&spec, &settings()), Duration::from_secs(1));
    }

    #[test]
    fn times_have_six_decimals() {
        assert_eq!(micros("2026-01-01T00:00:00Z".parse().unwrap()), "2026-01-01T00:00:00.000000Z");
    }
}
