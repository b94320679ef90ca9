//! The Lease: its spec, what this process observed of it, and the requests that read and write it.

use std::time::Duration;

use http::Request;
use jiff::Timestamp;
use kube::Client;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::election::Settings;
use crate::model::clock::Clock;
use crate::model::resource::{LEASES, escape};
use crate::server::client;

/// The duration of one watch of the Lease.
const WATCH: Duration = Duration::from_mins(5);

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LeaseSpec {
    pub(super) holder_identity: Option<String>,
    pub(super) lease_duration_seconds: Option<i64>,
    pub(super) acquire_time: Option<String>,
    pub(super) renew_time: Option<String>,
    pub(super) lease_transitions: Option<i64>,
    /// Other fields are preserved, e.g. the preferred holder or fields of a later version.
    #[serde(flatten)]
    pub(super) others: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize, Default)]
#[serde(default)]
pub(super) struct Lease {
    pub(super) metadata: Value,
    pub(super) spec: LeaseSpec,
}

/// The holder of a Lease in JSON, decoded as the election decodes it.
pub fn holder_of(lease: &[u8]) -> Result<Option<String>, serde_json::Error> {
    Ok(serde_json::from_slice::<Lease>(lease)?.spec.holder_identity)
}

/// The last observed state of the Lease, and the time by this process's clock.
#[derive(Default)]
pub(super) struct Observed {
    pub(super) spec: LeaseSpec,
    pub(super) at: Option<Instant>,
    /// The last resourceVersion that was read.
    pub(super) version: String,
    /// The Lease that this process wrote last. A healthy holder renews it without a read.
    pub(super) ours: Option<Lease>,
    /// Whether another process held the Lease, or it was free, since this process last knew that it held it. An
    /// attempt without an answer may have acquired the Lease again.
    pub(super) lost: bool,
}

impl Observed {
    pub(super) fn of(lease: &Lease) -> Self {
        Self { spec: lease.spec.clone(), version: version(lease), ..Self::default() }
    }

    pub(super) fn written(lease: Lease) -> Self {
        let observed = Self::of(&lease);
        Self { at: Some(Instant::now()), ours: Some(lease), ..observed }
    }

    /// Records a Lease that the watch shows.
    pub(super) fn saw(&mut self, lease: &Lease) {
        self.version = version(lease);
        if self.spec != lease.spec {
            self.spec = lease.spec.clone();
            self.at = Some(Instant::now());
        }
    }

    /// When the observed holder's Lease expires.
    pub(super) fn expiry(&self, settings: &Settings) -> Instant {
        self.at.unwrap_or_else(Instant::now) + duration(&self.spec, settings)
    }

    /// Whether the observed holder's Lease has expired.
    pub(super) fn is_expired(&self, settings: &Settings) -> bool {
        self.at.is_some() && self.expiry(settings) <= Instant::now()
    }

    /// The observed holder; empty if there is none.
    pub(super) fn holder(&self) -> &str {
        self.spec.holder_identity.as_deref().unwrap_or_default()
    }

    /// Whether the observed Lease has no holder.
    pub(super) fn is_free(&self) -> bool {
        self.holder().is_empty()
    }
}

pub(super) fn version(lease: &Lease) -> String {
    lease.metadata["resourceVersion"].as_str().unwrap_or_default().to_owned()
}

#[derive(Deserialize)]
pub(super) struct LeaseEvent {
    #[serde(rename = "type")]
    pub(super) type_: String,
    pub(super) object: Lease,
}

pub(super) async fn watch(
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

/// The Lease with another spec. The resourceVersion stays, so that only one of two concurrent writes succeeds.
pub(super) fn body(lease: &Lease, spec: &LeaseSpec) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": lease.metadata, "spec": spec,
    })
}

/// The longest lease duration, which limits the wait for a vanished manager.
pub const LONGEST_LEASE: Duration = Duration::from_hours(24);

/// How long the observed holder may stay silent. An invalid duration in the Lease is replaced by this process's own.
fn duration(spec: &LeaseSpec, settings: &Settings) -> Duration {
    spec.lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .filter(|seconds| (1..=LONGEST_LEASE.as_secs()).contains(seconds))
        .map_or(settings.lease, Duration::from_secs)
}

/// The spec of a Lease that this process holds.
pub(super) fn held(settings: &Settings, before: &LeaseSpec, clock: &Clock) -> LeaseSpec {
    let now = micros(clock.now());
    let ours = before.holder_identity.as_deref() == Some(&settings.identity);
    // The API stores an int32 and rejects larger values.
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

/// The MicroTime format of the API server: exactly six decimals.
pub(super) fn micros(at: Timestamp) -> String {
    format!("{at:.6}")
}

pub(super) async fn send<T: DeserializeOwned>(
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
    fn only_a_takeover_increments_the_transitions() {
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
    fn preserves_fields_of_other_clients() {
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
    fn replaces_an_invalid_duration_with_its_own() {
        for nonsense in [None, Some(-1), Some(0), Some(i64::MAX)] {
            let spec = LeaseSpec { lease_duration_seconds: nonsense, ..LeaseSpec::default() };
            assert_eq!(duration(&spec, &settings()), Duration::from_secs(15));
        }
        let spec = LeaseSpec { lease_duration_seconds: Some(1), ..LeaseSpec::default() };
        assert_eq!(duration(&spec, &settings()), Duration::from_secs(1));
    }

    #[test]
    fn writes_times_with_six_decimals() {
        assert_eq!(micros("2026-01-01T00:00:00Z".parse().unwrap()), "2026-01-01T00:00:00.000000Z");
    }
}
