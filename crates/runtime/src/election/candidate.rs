//! Competes for the Lease: acquires it, renews it, stands by, and releases it.

use std::time::Duration;

use futures::{AsyncBufReadExt as _, AsyncReadExt as _};
use kube::Client;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use crate::election::handover::{Handover, annotate, handed_over, without_seen};
use crate::election::leadership::{Decision, View};
use crate::election::lease::{
    self, Lease, LeaseEvent, LeaseSpec, Observed, body, held, micros, send, version,
};
use crate::election::{Error, Settings};
use crate::log_repeated;
use crate::model::clock::{Clock, Moment};
use crate::model::progress::revision;
use crate::model::resource::LEASES;
use crate::server::client::brief;
use crate::server::connectivity::Link;
use crate::server::gate::{Gate, Seen};

/// How long a process retries that was never allowed to access the Lease.
const FORBIDDEN: Duration = Duration::from_secs(30);
/// How often one attempt reads the Lease while its writes conflict. A broken webhook may answer every write with 409.
const CONFLICTS: u32 = 5;
/// Why a process with dead caches does not take the Lease.
const ABSTAINS: &str = "lists or watches get no answer, so this process leaves the lease to other processes";
/// The largest event of the Lease in bytes: more than the limit of etcd.
const LARGEST_EVENT: u64 = 4 * 1024 * 1024;

enum Attempt {
    /// With the predecessor's record if this process has just acquired the Lease. The record is empty unless the
    /// predecessor released the Lease.
    Held(Option<Seen>),
    HeldByOther(String),
    /// The API server answered, but did not grant the attempt.
    Refused(String),
    /// There was no answer, so connections may be dead.
    Unanswered(String),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Allowed {
    Nothing,
    Read,
    Write,
}

/// A candidate for the Lease, and the results of its attempts.
pub struct Candidate {
    client: Client,
    settings: Settings,
    gate: Gate,
    link: Link,
    clock: Clock,
    returns: watch::Receiver<Option<Instant>>,
    /// Since when the API server has denied a verb without granting it, and what the last denied verb needs.
    forbidden: Option<(Instant, Allowed)>,
    observed: Observed,
    held_since: Option<Moment>,
    /// Failed attempts in a row.
    failures: u64,
    /// The highest permission that the API server has granted so far.
    allowed: Allowed,
    /// The duration of the last attempt that got an answer.
    took: Duration,
    /// Rejected watches in a row.
    unwatched: u64,
    holder_told: Option<String>,
    answered: bool,
    works: bool,
    /// How long each necessary cache has had no answer.
    silences: Vec<Duration>,
    /// The first attempt in a row without an answer.
    unanswered: Option<Instant>,
    /// The end of the last outage; at first the start.
    unreached: Instant,
    /// See [`View::yielded`].
    yielded: Option<Instant>,
    /// Since when this process has seen the Lease without a holder.
    free: Option<Instant>,
}

impl Candidate {
    /// A candidate that opens and closes `gate`, and sends its requests through `client`. Nothing else should use the
    /// client, so that no other request delays a renewal.
    pub fn new(client: Client, settings: Settings, gate: Gate, link: Link, clock: Clock) -> Self {
        Self {
            client,
            settings,
            gate,
            clock,
            returns: link.recoveries(),
            link,
            forbidden: None,
            observed: Observed::default(),
            held_since: None,
            failures: 0,
            allowed: Allowed::Nothing,
            took: Duration::ZERO,
            unwatched: 0,
            holder_told: None,
            answered: true,
            works: true,
            silences: Vec::new(),
            unanswered: None,
            unreached: Instant::now(),
            yielded: None,
            free: None,
        }
    }

    /// Holds the Lease whenever it can, and opens and closes the gate. Returns after `stop` becomes true: the Lease
    /// is then released, with `seen` for the successor. Returns an error only if a user must fix its cause. `silences`
    /// returns how long each necessary cache has had no answer; see [`crate::election::leadership`].
    pub async fn run(
        mut self,
        seen: impl Fn() -> Seen,
        silences: impl Fn() -> Vec<Duration>,
        mut stop: watch::Receiver<bool>,
    ) -> Result<(), Error> {
        let may_hold = self.compete(&seen, &silences, &mut stop).await?;
        self.gate.close();
        if may_hold {
            self.leave(&seen, Duration::from_secs(3)).await;
        }
        Ok(())
    }

    /// Attempts and waits in turn until `stop` becomes true. Returns whether this process may then hold the Lease.
    async fn compete(
        &mut self,
        seen: &impl Fn() -> Seen,
        silences: &impl Fn() -> Vec<Duration>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<bool, Error> {
        loop {
            self.silences = silences();
            if self.view(self.gate.term().is_some()).decide() == Decision::Release {
                self.resign(seen).await;
            }
            let began = self.gate.moment();
            let outcome = tokio::select! {
                outcome = self.try_once() => outcome,
                _ = stop.wait_for(|stop| *stop) => return Ok(true),
            };
            if *stop.borrow() {
                return Ok(true);
            }
            let outcome = self.forgive(outcome)?;
            self.note(&outcome, began);
            let pause = match outcome {
                Attempt::Held(taken) => self.hold(taken, began),
                Attempt::Refused(error) | Attempt::Unanswered(error) => self.fail(&error, began),
                Attempt::HeldByOther(holder) => {
                    self.stand_by(holder).await?;
                    self.gate.mark_attempted();
                    tokio::select! {
                        () = self.wait_until_available() => continue,
                        _ = stop.wait_for(|stop| *stop) => return Ok(false),
                    }
                }
            };
            self.gate.mark_attempted();
            tokio::select! {
                () = sleep(pause) => {}
                _ = self.returns.changed(), if !self.answered => {}
                _ = stop.wait_for(|stop| *stop) => return Ok(true),
            }
        }
    }

    /// One attempt, which ends before the deadline that it would extend.
    async fn try_once(&mut self) -> Result<Attempt, Error> {
        let renew_deadline = self.settings.renew_deadline;
        // Several attempts fit into the remaining time, so a dead connection costs one attempt, not the Lease. A slow
        // API server gets twice the time of the last attempt.
        let left = self.held_since.map(|since| renew_deadline.saturating_sub(self.gate.elapsed(since)));
        let limit = match left.filter(|left| !left.is_zero()) {
            Some(left) => left.min((renew_deadline / 4).max(self.took * 2)),
            None => renew_deadline,
        };
        let is_stuck = self.gate.since_heartbeat() >= renew_deadline;
        let tried = timeout(limit, self.attempt(is_stuck)).await;
        tried.unwrap_or_else(|_elapsed| Ok(Attempt::Unanswered("no answer in time".to_owned())))
    }

    /// A starting API server may not have loaded its roles yet, and a user may fix a role. So a process gives up only if it
    /// was never granted the denied verb. Time without an answer does not count.
    fn forgive(&mut self, outcome: Result<Attempt, Error>) -> Result<Attempt, Error> {
        let Err(error @ Error::Forbidden { verb, .. }) = outcome else {
            // A process that may read the Lease, and not write it, also finds other holders.
            let needs_write = self.forbidden.is_some_and(|(_, needed)| needed == Allowed::Write);
            if !needs_write || !matches!(outcome, Ok(Attempt::HeldByOther(_))) {
                self.forbidden = None;
            }
            return outcome;
        };
        let since = self.forbidden.map_or_else(Instant::now, |(since, _)| since);
        let needed = if verb == "get" { Allowed::Read } else { Allowed::Write };
        self.forbidden = Some((since, needed));
        if self.allowed < needed && since.elapsed() >= FORBIDDEN {
            return Err(error);
        }
        Ok(Attempt::Refused(error.to_string()))
    }

    /// Records what an attempt shows about the connection, and notifies the other parts of the process.
    fn note(&mut self, outcome: &Attempt, began: Moment) {
        let is_answered = !matches!(outcome, Attempt::Unanswered(_));
        if is_answered {
            self.took = self.gate.elapsed(began);
            if self.is_outage() {
                self.unreached = Instant::now();
            }
            self.unanswered = None;
        } else {
            self.unanswered.get_or_insert_with(Instant::now);
        }
        // This attempt came after any earlier news.
        self.returns.mark_unchanged();
        if std::mem::replace(&mut self.answered, is_answered) && !is_answered {
            self.link.suspect();
        }
        // A starting API server may reject what it granted before, so only a granted attempt counts as a recovery.
        let is_granted = matches!(outcome, Attempt::Held(_) | Attempt::HeldByOther(_));
        if !std::mem::replace(&mut self.works, is_granted) && is_granted {
            self.link.is_back();
        }
        self.allowed = self.allowed.max(match outcome {
            Attempt::Held(_) => Allowed::Write,
            Attempt::HeldByOther(_) => Allowed::Read,
            Attempt::Refused(_) | Attempt::Unanswered(_) => Allowed::Nothing,
        });
        self.returns.mark_unchanged();
    }

    /// Handles a held Lease. Returns the pause until the renewal.
    fn hold(&mut self, taken: Option<Seen>, began: Moment) -> Duration {
        let identity = &self.settings.identity;
        if let Some(handed) = taken {
            // Another process may have held the Lease during the current term.
            self.gate.close();
            tracing::info!(identity, handed_over = !handed.is_empty(), "acquired the lease");
            self.gate.hand_over(handed);
            self.yielded = self.view(true).has_dead_cache().then(Instant::now);
        } else if self.held_since.is_none() {
            tracing::info!(identity, "re-acquired the lease; no other holder in between");
        }
        self.gate.note_holder(identity, true, Some(began.at));
        self.held_since = Some(began);
        (self.holder_told, self.failures, self.free) = (None, 0, None);
        self.gate.open_for(self.settings.renew_deadline, began);
        self.settings.renew.saturating_sub(self.gate.elapsed(began))
    }

    /// Handles a Lease that another process holds.
    async fn stand_by(&mut self, holder: String) -> Result<(), Error> {
        (self.failures, self.free, self.yielded) = (0, None, None);
        if self.held_since.take().is_some() {
            self.gate.close();
            tracing::warn!(holder, "lost the lease: another process holds the lease; standing by");
        } else if self.holder_told.as_ref() != Some(&holder) {
            tracing::info!(holder, "another process holds the lease; standing by");
        }
        if !self.gate.is_cancelled().await {
            return Err(Error::Uncancelled { holder });
        }
        self.holder_told = Some(holder);
        Ok(())
    }

    /// Handles a failed attempt. Returns the pause until the next one.
    fn fail(&mut self, error: &str, began: Moment) -> Duration {
        self.failures += 1;
        log_repeated!(warn, self.failures, error, "cannot read or renew the lease");
        let renew_deadline = self.settings.renew_deadline;
        if self.held_since.is_some_and(|since| self.gate.elapsed(since) >= renew_deadline) {
            self.held_since = None;
            self.gate.close();
            tracing::warn!("the renew deadline has passed; writing nothing until the lease is re-acquired");
        }
        if self.held_since.is_none() {
            // The attempt may have succeeded, and then its predecessor is unknown.
            self.gate.hand_over(Seen::new());
        }
        self.settings.retry.saturating_sub(self.gate.elapsed(began))
    }

    /// One attempt to acquire or renew. If the writing part of the process is stuck, the attempt only reads the
    /// Lease.
    async fn attempt(&mut self, is_stuck: bool) -> Result<Attempt, Error> {
        if let Some(lease) = self.observed.ours.take().filter(|_| !is_stuck)
            && let Some(renewed) = self.renew(&lease).await
        {
            return renewed;
        }
        for _ in 0..CONFLICTS {
            let tried = match send::<Lease>(&self.client, "GET", &self.settings.path(), None).await {
                Ok(lease) => self.take_over(lease, is_stuck).await,
                Err(kube::Error::Api(status)) if status.code == 404 => self.create(is_stuck).await,
                Err(error) => Some(self.refused(error, "get")),
            };
            if let Some(tried) = tried {
                return tried;
            }
        }
        Ok(Attempt::Refused(format!("the Lease was changed {CONFLICTS} times between a read and a write")))
    }

    /// Renews the Lease that this process wrote last. Returns None if the Lease was changed or deleted, so that the
    /// caller reads it.
    async fn renew(&mut self, lease: &Lease) -> Option<Result<Attempt, Error>> {
        let body = body(lease, &held(&self.settings, &lease.spec, &self.clock));
        match send::<Lease>(&self.client, "PUT", &self.settings.path(), Some(&body)).await {
            Ok(lease) => {
                self.observed = Observed::written(lease);
                Some(Ok(Attempt::Held(None)))
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => None,
            // The write may have succeeded, so the next attempt reads the Lease first.
            Err(error) => Some(self.refused(error, "update")),
        }
    }

    /// Creates the missing Lease. Returns None if another client created it, so that the caller reads it.
    async fn create(&mut self, is_stuck: bool) -> Option<Result<Attempt, Error>> {
        let observed = &self.observed;
        let holder = observed.spec.holder_identity.clone().unwrap_or_default();
        if !observed.is_free() && holder != self.settings.identity && !observed.is_expired(&self.settings) {
            // The Lease was deleted, and its holder may continue until it notices.
            return Some(Ok(Attempt::HeldByOther(holder)));
        }
        if let Some(abstains) = self.abstains(is_stuck, false) {
            return Some(Ok(abstains));
        }
        let settings = &self.settings;
        let spec = held(settings, &LeaseSpec::default(), &self.clock);
        let body = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": settings.name, "namespace": settings.namespace },
            "spec": spec,
        });
        match send::<Lease>(&self.client, "POST", &LEASES.path(&settings.namespace), Some(&body)).await {
            Ok(lease) => {
                self.observed = Observed::written(lease);
                Some(Ok(Attempt::Held(Some(Seen::new()))))
            }
            Err(kube::Error::Api(status)) if status.code == 409 => None,
            Err(error) => Some(self.refused(error, "create")),
        }
    }

    /// Takes the Lease, unless another process holds it. Returns None if another client changed or deleted the Lease,
    /// so that the caller reads it.
    async fn take_over(&mut self, lease: Lease, is_stuck: bool) -> Option<Result<Attempt, Error>> {
        let observed = &mut self.observed;
        // After a restore of etcd, the Lease may name an earlier holder, or none.
        let is_older = (1..revision(&observed.version)).contains(&revision(&version(&lease)));
        if is_older && self.gate.restored(observed.at) {
            let (known, shown) = (&observed.version, version(&lease));
            tracing::warn!(known, shown, "etcd was restored: the lease is older; listing everything again");
        }
        let before = observed.spec.holder_identity.clone().unwrap_or_default();
        if is_older
            && !observed.is_free()
            && before != self.settings.identity
            && !observed.is_expired(&self.settings)
        {
            // The holder continues until it notices.
            return Some(Ok(Attempt::HeldByOther(before)));
        }
        if observed.at.is_none() || observed.spec != lease.spec {
            *observed = Observed { at: Some(Instant::now()), lost: observed.lost, ..Observed::of(&lease) };
        }
        observed.version = version(&lease);
        let holder = lease.spec.holder_identity.clone().unwrap_or_default();
        let is_ours = holder == self.settings.identity;
        observed.lost |= !is_ours;
        self.gate.note_holder(&holder, is_ours, observed.at);
        if !holder.is_empty() && !is_ours && !observed.is_expired(&self.settings) {
            return Some(Ok(Attempt::HeldByOther(holder)));
        }
        if let Some(abstains) = self.abstains(is_stuck, is_ours) {
            return Some(Ok(abstains));
        }
        // The record is valid only if no other process has held the Lease since.
        let handed = if holder.is_empty() { handed_over(&lease) } else { Seen::new() };
        let spec = held(&self.settings, &lease.spec, &self.clock);
        let body = body(&without_seen(lease), &spec);
        match send::<Lease>(&self.client, "PUT", &self.settings.path(), Some(&body)).await {
            Ok(lease) => {
                let lost = std::mem::replace(&mut self.observed, Observed::written(lease)).lost;
                Some(Ok(Attempt::Held(lost.then_some(handed))))
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => None,
            Err(error) => Some(self.refused(error, "update")),
        }
    }

    /// Why this process neither takes a Lease without another holder nor renews it.
    fn abstains(&mut self, is_stuck: bool, is_ours: bool) -> Option<Attempt> {
        if is_stuck {
            return Some(Attempt::Refused(format!(
                "the process has been stuck for {} s or longer, so it does not acquire the lease",
                self.settings.renew_deadline.as_secs()
            )));
        }
        if !is_ours {
            self.free.get_or_insert_with(Instant::now);
        }
        let is_abstaining = self.view(is_ours).decide() == Decision::Abstain;
        is_abstaining.then(|| Attempt::Refused(ABSTAINS.to_owned()))
    }

    /// Whether the API server has been down. One lost request does not excuse silent caches.
    fn is_outage(&self) -> bool {
        self.unanswered.is_some_and(|since| since.elapsed() >= self.settings.lease)
    }

    fn view(&self, holds: bool) -> View {
        // While the API server is down, the caches of all managers are silent.
        let reached = if self.is_outage() { Duration::ZERO } else { self.unreached.elapsed() };
        View {
            silences: self.silences.iter().map(|silence| reached.min(*silence)).collect(),
            holds,
            yielded: self.yielded.map(|at| at.elapsed()),
            free: self.free.map_or(Duration::ZERO, |since| since.elapsed()),
        }
    }

    fn refused(&self, error: kube::Error, verb: &'static str) -> Result<Attempt, Error> {
        match error {
            kube::Error::Api(status) if status.code == 403 => {
                Err(Error::Forbidden { verb, namespace: self.settings.namespace.clone() })
            }
            // Neither a 5xx nor a proxy's JSON without a code is an answer; another API server may have one.
            kube::Error::Api(status) if (1..500).contains(&status.code) => {
                Ok(Attempt::Refused(brief(&kube::Error::Api(status))))
            }
            error => Ok(Attempt::Unanswered(brief(&error))),
        }
    }

    /// Waits until the Lease is released, deleted or expired. If the watch fails, returns after a pause.
    async fn wait_until_available(&mut self) {
        let (settings, observed) = (&self.settings, &mut self.observed);
        let began = Instant::now();
        let watched = lease::watch(&self.client, settings, &observed.version);
        let mut lines = match timeout_at(observed.expiry(settings), watched).await {
            Ok(Ok(lines)) => {
                self.unwatched = 0;
                lines
            }
            Ok(Err(error)) => {
                self.unwatched += 1;
                let error = brief(&error);
                log_repeated!(warn, self.unwatched, error, "cannot watch the Lease; polling it");
                sleep(settings.retry).await;
                return;
            }
            Err(_elapsed) => return,
        };
        let mut line = String::new();
        loop {
            line.clear();
            let mut bounded = (&mut lines).take(LARGEST_EVENT);
            match timeout_at(observed.expiry(settings), bounded.read_line(&mut line)).await {
                Ok(Ok(read)) if read > 0 => {}
                // The Lease has expired.
                Err(_elapsed) => return,
                // The watch ended normally.
                Ok(_) => break,
            }
            match serde_json::from_str::<LeaseEvent>(&line) {
                Ok(LeaseEvent { type_, object }) if type_ == "ADDED" || type_ == "MODIFIED" => {
                    observed.saw(&object);
                    let is_ours = observed.holder() == settings.identity;
                    self.gate.note_holder(observed.holder(), is_ours, observed.at);
                    if observed.is_free() {
                        return;
                    }
                }
                Ok(LeaseEvent { type_, .. }) if type_ == "BOOKMARK" => {}
                // The holder continues until it notices the deletion; see `create`.
                Ok(LeaseEvent { type_, .. }) if type_ == "DELETED" => {
                    sleep_until(observed.expiry(settings)).await;
                    return;
                }
                // The resourceVersion is too old, or the event cannot be decoded.
                _ => break,
            }
        }
        // Avoid a tight loop with a server that ends watches at once.
        let was_short = began.elapsed() < Duration::from_secs(1);
        sleep(if was_short { settings.retry } else { settings.retry.min(Duration::from_millis(200)) }).await;
    }

    /// Releases the Lease, so that a candidate with live caches can take it.
    async fn resign(&mut self, seen: &impl Fn() -> Seen) {
        tracing::warn!("lists or watches get no answer; releasing the lease");
        self.gate.close();
        let is_released =
            self.gate.is_cancelled().await && self.leave(seen, self.settings.renew_deadline).await;
        // Also after a failure: otherwise the gate would close at every renewal.
        self.yielded = Some(Instant::now());
        if is_released {
            self.held_since = None;
            self.observed.ours = None;
            self.gate.note_holder("", false, None);
            self.free = self.yielded;
        }
    }

    /// Releases the Lease. Only a process that has led records what it has seen. Returns whether the Lease was released.
    async fn leave(&self, seen: &impl Fn() -> Seen, limit: Duration) -> bool {
        // A cancelled attempt may have succeeded.
        let seen = if self.held_since.is_some() { seen() } else { Seen::new() };
        let released = async {
            match self.release(&seen).await {
                // The size of annotations is limited. Without a record, the successor lists again.
                Err(kube::Error::Api(status)) if status.code != 409 => self.release(&Seen::new()).await,
                // A late renewal may have changed the Lease meanwhile.
                Err(_) => self.release(&seen).await,
                released => released,
            }
        };
        let error = match timeout(limit, released).await {
            Ok(Ok(true)) => {
                tracing::info!("released the lease");
                return true;
            }
            Ok(Ok(false)) => return false,
            Ok(Err(error)) => brief(&error),
            Err(_elapsed) => "no answer in time".to_owned(),
        };
        tracing::warn!(error, "cannot release the lease; if it is held, a standby waits until it expires");
        false
    }

    /// Releases the Lease, so that a successor need not wait. Returns whether this process held the Lease.
    async fn release(&self, seen: &Seen) -> Result<bool, kube::Error> {
        let path = self.settings.path();
        let mut lease = send::<Lease>(&self.client, "GET", &path, None).await?;
        if lease.spec.holder_identity.as_deref() != Some(&self.settings.identity) {
            return Ok(false);
        }
        let spec = LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            renew_time: Some(micros(self.clock.now())),
            ..lease.spec.clone()
        };
        let handover = Handover { lease_transitions: spec.lease_transitions, seen: seen.clone() };
        annotate(&mut lease, &handover);
        send::<Lease>(&self.client, "PUT", &path, Some(&body(&lease, &spec))).await?;
        Ok(true)
    }
}
