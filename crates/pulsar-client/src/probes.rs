//! /healthz, /readyz and /metrics.

use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::metrics::Metrics;
use crate::problem::Code;

/// A consumer without activity for this time hangs.
const HANGS: Duration = Duration::from_secs(30);

/// The state of the consumer, which it shares with its probes.
#[derive(Clone, Debug)]
pub struct State(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    code: Code,
    sentence: String,
    looked: Instant,
}

impl Default for State {
    fn default() -> Self {
        let inner = Inner { code: Code::Starting, sentence: "starting".to_owned(), looked: Instant::now() };
        Self(Arc::new(Mutex::new(inner)))
    }
}

impl State {
    /// Sets the state.
    pub fn set(&self, code: Code, sentence: impl Into<String>) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.code = code;
        inner.sentence = sentence.into();
        inner.looked = Instant::now();
    }

    /// Records activity.
    pub fn looked(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).looked = Instant::now();
    }

    /// The answer of /readyz.
    pub fn readiness(&self) -> (u16, String) {
        let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (inner.code.status(), inner.sentence.clone())
    }

    fn is_well(&self, now: Instant) -> bool {
        let looked = self.0.lock().unwrap_or_else(PoisonError::into_inner).looked;
        now.saturating_duration_since(looked) < HANGS
    }
}

/// Listens on an address. `[::]` means every address, even without IPv6.
pub async fn listen(address: &str) -> io::Result<TcpListener> {
    match (TcpListener::bind(address).await, address.strip_prefix("[::]:").map(str::parse::<u16>)) {
        (Err(error), Some(Ok(port))) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        (listener, _) => listener,
    }
}

/// Answers probes.
pub async fn serve(listener: TcpListener, state: State, metrics: Metrics) -> io::Result<()> {
    let ready = state.clone();
    let router = Router::new()
        .route(
            "/healthz",
            get(async move || {
                if state.is_well(Instant::now()) {
                    (StatusCode::OK, "ok\n")
                } else {
                    (StatusCode::INTERNAL_SERVER_ERROR, "the consumer hangs\n")
                }
            }),
        )
        .route(
            "/readyz",
            get(async move || {
                let (status, sentence) = ready.readiness();
                (StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE), sentence + "\n")
            }),
        )
        .route(
            "/metrics",
            get(async move || match metrics.text() {
                Ok(text) => ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
                    .into_response(),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
            }),
        );
    axum::serve(listener, router).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_consumer_is_not_ready() {
        let state = State::default();
        assert_eq!(state.readiness(), (503, "starting".to_owned()));
        state.set(Code::Subscribed, "subscribed");
        assert_eq!(state.readiness().0, 200);
    }

    #[test]
    fn every_code_is_a_valid_status() {
        for code in Code::ALL {
            assert!(StatusCode::from_u16(code.status()).is_ok());
        }
    }

    #[test]
    fn a_consumer_without_activity_hangs() {
        let state = State::default();
        let now = Instant::now();
        assert!(state.is_well(now));
        assert!(!state.is_well(now + HANGS + Duration::from_secs(1)));
        state.looked();
        assert!(state.is_well(now + HANGS));
    }
}
