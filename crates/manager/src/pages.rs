//! The HTTP pages: /metrics, and /debug/ for troubleshooting.
//!
//! The debug pages show objects and their errors, and one of them changes the log level. So the manager serves them on a
//! loopback address, for `kubectl port-forward`. It also serves them beside secured metrics, to clients that RBAC authorizes.

use std::fmt::Write as _;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use quintet_runtime::cache::state::Health;
use quintet_runtime::control::activity::Activity;
use quintet_runtime::control::context::Context;
use quintet_runtime::probes;
use tokio::net::TcpListener;

use crate::logs::LogHandle;
use crate::metrics_auth::{self, Guard, Identity};

/// The most objects that a page lists in each state.
const NAMED: usize = 200;

/// The state that the pages show.
#[derive(Clone)]
pub struct Pages {
    /// The controllers, caches and metrics.
    pub context: Context,
    /// The log level.
    pub log: LogHandle,
}

/// Serves /metrics in plain HTTP.
pub async fn serve(listener: TcpListener, pages: Pages) {
    probes::serve(listener, metrics().with_state(pages)).await;
}

/// Serves the debug pages in plain HTTP, on a loopback address.
pub async fn serve_debugging(listener: TcpListener, pages: Pages) {
    probes::serve(listener, debugging().with_state(pages)).await;
}

/// Serves all pages over TLS, to clients that the cluster's RBAC authorizes.
pub async fn serve_secured(listener: TcpListener, pages: Pages, identity: Identity, guard: Guard) {
    let guarded = middleware::from_fn_with_state(guard, metrics_auth::guard);
    let router = metrics().merge(debugging()).layer(guarded).with_state(pages);
    identity.serve(listener, router).await;
}

fn metrics() -> Router<Pages> {
    Router::new().route("/metrics", get(show_metrics))
}

fn debugging() -> Router<Pages> {
    Router::new()
        .route("/debug/", get(|| std::future::ready(INDEX)))
        .route("/debug/controllers", get(show_controllers))
        .route("/debug/caches", get(show_caches))
        .route("/debug/log-level", get(show_level).put(set_level))
}

const INDEX: &str = "\
/debug/controllers   running reconciles, waiting keys, the last error of each failing object, and rejected writes
/debug/caches        objects and resourceVersion of each cache, and the time since the last event of its watch
/debug/log-level     the log level; PUT a level or a filter to change it until the process exits
";

async fn show_metrics(State(pages): State<Pages>) -> Response {
    match pages.context.scrape() {
        Ok(text) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn show_controllers(State(pages): State<Pages>) -> String {
    controllers(&pages.context.activities())
}

fn controllers(activities: &[(&'static str, Activity)]) -> String {
    let mut text = String::new();
    for (controller, activity) in activities {
        let now = activity.now();
        let (waiting, parked, running) = (now.waiting, now.parked, now.running.len());
        let (failing, refused) = (now.failing.len(), now.refused.len());
        let _ = writeln!(
            text,
            "{controller}: {waiting} waiting, {parked} waiting for caches, {running} running, {failing} failing, \
             {refused} with rejected writes"
        );
        for (key, since) in now.running.iter().take(NAMED) {
            let _ = writeln!(text, "  running  {key}  for {:.1} s", since.elapsed().as_secs_f64());
        }
        for (key, failing) in now.failing.iter().take(NAMED) {
            let (error, times, at) = (&failing.error, failing.times, failing.at);
            let _ = writeln!(text, "  failing  {key}  {times} times, last at {at:.0}: {error}");
        }
        for (key, refused) in now.refused.iter().take(NAMED) {
            let _ = writeln!(text, "  rejected  {key}  {}", refused.message);
        }
        let more: usize =
            [running, failing, refused].map(|objects| objects.saturating_sub(NAMED)).iter().sum();
        if more > 0 {
            let _ = writeln!(text, "  … and {more} more");
        }
    }
    text
}

async fn show_caches(State(pages): State<Pages>) -> String {
    let mut text = String::new();
    for cache in pages.context.caches() {
        let health = match cache.health {
            Health::Unsynced => "not synced".to_owned(),
            Health::Absent { .. } => "the cluster has no such resource type".to_owned(),
            Health::Synced { heard } => format!("last event {:.1} s ago", heard.elapsed().as_secs_f64()),
        };
        let (scope, objects, position) = (cache.scope, cache.objects, cache.progress.position);
        let _ = write!(text, "{scope}: {objects} objects, at resourceVersion {position}, {health}");
        if let Some(since) = cache.unwatched {
            let _ = write!(text, ", without a watch for {:.1} s", since.elapsed().as_secs_f64());
        }
        if cache.undecodable > 0 {
            let _ = write!(text, ", {} undecodable", cache.undecodable);
        }
        text.push('\n');
    }
    text
}

async fn show_level(State(pages): State<Pages>) -> String {
    pages.log.current() + "\n"
}

async fn set_level(State(pages): State<Pages>, level: String) -> (StatusCode, String) {
    match pages.log.set(level.trim()) {
        Ok(()) => (StatusCode::OK, pages.log.current() + "\n"),
        Err(error) => (StatusCode::BAD_REQUEST, error + "\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use quintet_runtime::model::object::Key;

    #[test]
    fn shows_the_last_error_of_failing_objects() {
        let key = |name: &str| Key { namespace: "n".into(), name: name.into(), uid: name.into() };
        let activity = Activity::default();
        activity.begins(&key("running"));
        for _ in 0..2 {
            activity.begins(&key("failing"));
            activity.fails(&key("failing"), "the server is away", Timestamp::UNIX_EPOCH);
        }
        activity.ends(&key("refused"), Some("the quota is exceeded".to_owned()), Timestamp::UNIX_EPOCH);
        let text = controllers(&[("book", activity)]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "book: 0 waiting, 0 waiting for caches, 1 running, 1 failing, 1 with rejected writes"
        );
        assert!(lines[1].starts_with("  running  n/running  for "), "{text}");
        assert_eq!(
            lines[2],
            "  failing  n/failing  2 times, last at 1970-01-01T00:00:00Z: the server is away"
        );
        assert_eq!(lines[3], "  rejected  n/refused  the quota is exceeded");
        assert_eq!(lines.len(), 4);
    }
}
