//! The Lease: its record, what was observed of it, and the requests that read and write it.

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

/// How long one watch of the Lease lasts.
const WATCH: Duration = Duration::from_mins(5);

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct LeaseSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) holder_identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease_duration_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) acquire_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) renew_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lease_transitions: Option<i64>,
    /// What is not read is kept: a preferred holder, and what a later version has.
    #[serde(flatten)]
    pub(super) others: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize, Default)]
#[serde(default)]
pub(super) struct Lease {
    pub(super) metadata: Value,
    pub(super) spec: LeaseSpec,
}

/// Who holds a Lease, read as the election reads it.
pub fn holder_of(lease: &[u8]) -> Result<Option<String>, serde_json::Error> {
    Ok(serde_json::from_slice::<Lease>(lease)?.spec.holder_identity)
}

/// What was observed of the Lease, and when by this process's clock.
#[derive(Default)]
pub(super) struct Observed {
    pub(super) spec: LeaseSpec,
    pub(super) at: Option<Instant>,
    /// The resourceVersion of what was read last.
    pub(super) version: String,
    /// The Lease as this process wrote it last: a healthy holder renews it without reading it first.
    pub(super) ours: Option<Lease>,
    /// Whether it was seen not to be ours since this process last knew that it held it: a try that was not answered may have
    /// acquired it anew.
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

    /// Takes note of a record that the watch shows.
    pub(super) fn saw(&mut self, lease: &Lease) {
        self.version = version(lease);
        if self.spec != lease.spec {
            self.spec = lease.spec.clone();
            self.at = Some(Instant::now());
        }
    }

    /// When the holder that was observed has been silent for too long.
    pub(super) fn expiry(&self, settings: &Settings) -> Instant {
        self.at.unwrap_or_else(Instant::now) + duration(&self.spec, settings)
    }

    /// Whether the holder that was observed has been silent for too long.
    pub(super) fn is_expired(&self, settings: &Settings) -> bool {
        self.at.is_some() && self.expiry(settings) <= Instant::now()
    }

    /// Whether nobody holds what was observed.
    pub(super) fn is_free(&self) -> bool {
        self.spec.holder_identity.as_deref().unwrap_or_default().is_empty()
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

/// The Lease with another record. Its resourceVersion is kept: of two who write, one wins.
pub(super) fn body(lease: &Lease, spec: &LeaseSpec) -> Value {
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
pub(super) fn held(settings: &Settings, before: &LeaseSpec, clock: &Clock) -> LeaseSpec {
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

/// MicroTime, as the API server wants it: exactly six decimals.
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
