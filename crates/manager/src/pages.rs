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
use quintet_runtime::server::gate::{Holder, Leadership};
use tokio::net::TcpListener;

use crate::kubeconfig::{host, pod_of};
use crate::logs::LogHandle;
use crate::metrics_auth::{self, Guard, Identity};

/// The most objects that a page lists in each state.
const NAMED: usize = 200;
/// The word before an object whose last reconcile failed.
const FAILING: &str = "failing";
/// The word before an object with a rejected write.
const REJECTED: &str = "rejected";

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

/// Serves the debug pages in plain HTTP, on a loopback address. `quintet doctor` reads /metrics there, even if the metrics
/// address requires a token.
pub async fn serve_debugging(listener: TcpListener, pages: Pages) {
    probes::serve(listener, metrics().merge(debugging()).with_state(pages)).await;
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
        .route("/debug/", get(show_index))
        .route("/debug/controllers", get(show_controllers))
        .route("/debug/caches", get(show_caches))
        .route("/debug/log-level", get(show_level).put(set_level))
}

const INDEX: &str = "\
/debug/controllers   running reconciles, waiting keys, the last error of each failing object, and rejected writes
/debug/caches        objects and resourceVersion of each cache, and the time since the last event of its watch
/metrics             the metrics
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

/// The first line of each debug page. `host` is this manager's pod. A standby has no work, so its pages show nothing that
/// fails.
fn leader_line(leadership: &Leadership, host: &str) -> String {
    match leadership {
        Leadership::Unelected => format!("Leader: {host}, this manager, without leader election.\n"),
        Leadership::Leads => format!("Leader: {host}, this manager.\n"),
        Leadership::Overdue => {
            format!(
                "Leader: none. {host}, this manager, did not renew the Lease in time, and writes nothing.\n"
            )
        }
        Leadership::NoLeader => {
            format!("Leader: unknown. {host}, this manager, has observed no holder of the Lease.\n")
        }
        Leadership::Standby(Holder { identity, renewed, .. }) => format!(
            "Leader: {}. {host}, this manager, is a standby, and observed the last renewal {:.1} s ago.\n",
            pod_of(identity),
            renewed.elapsed().as_secs_f64()
        ),
    }
}

/// A debug page with its first line.
fn led(pages: &Pages, page: &str) -> String {
    leader_line(&pages.context.gate.leadership(), &host()) + page
}

async fn show_index(State(pages): State<Pages>) -> String {
    led(&pages, INDEX)
}

async fn show_controllers(State(pages): State<Pages>) -> String {
    led(&pages, &controllers(&pages.context.activities()))
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
            let _ = writeln!(text, "  {FAILING}  {key}  {times} times, last at {at:.0}: {error}");
        }
        for (key, refused) in now.refused.iter().take(NAMED) {
            let _ = writeln!(text, "  {REJECTED}  {key}  {}", refused.message);
        }
        let more: usize =
            [running, failing, refused].map(|objects| objects.saturating_sub(NAMED)).iter().sum();
        if more > 0 {
            let _ = writeln!(text, "  … and {more} more");
        }
    }
    text
}

/// The objects of the page /debug/controllers that fail or have rejected writes, each with its controller.
pub fn objects_in_error(page: &str) -> Vec<String> {
    let mut controller = "";
    let mut found = Vec::new();
    for line in page.lines() {
        if let Some(object) = line.strip_prefix("  ") {
            if object.starts_with(FAILING) || object.starts_with(REJECTED) {
                found.push(format!("{controller}: {object}"));
            }
        } else if let Some((name, _)) = line.split_once(": ") {
            controller = name;
        }
    }
    found
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
    led(&pages, &text)
}

async fn show_level(State(pages): State<Pages>) -> String {
    led(&pages, &(pages.log.current() + "\n"))
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
        let page = leader_line(&Leadership::Leads, "pod") + &text;
        let expected = lines[2..].iter().map(|line| format!("book: {}", line.trim_start()));
        assert_eq!(objects_in_error(&page), expected.collect::<Vec<_>>());
    }

    #[test]
    fn the_first_line_names_the_leader() {
        let renewed = tokio::time::Instant::now();
        let holder = Holder { identity: "quintet-1-a_uuid".into(), is_ours: false, renewed };
        for (leadership, expected) in [
            (Leadership::Leads, "Leader: me, this manager."),
            (Leadership::Unelected, "Leader: me, this manager, without"),
            (Leadership::Overdue, "Leader: none. me, "),
            (Leadership::NoLeader, "Leader: unknown. me, "),
            (Leadership::Standby(holder), "Leader: quintet-1-a. me, this manager, is a standby"),
        ] {
            let line = leader_line(&leadership, "me");
            assert!(line.starts_with(expected), "{line}");
            assert_eq!((line.lines().count(), line.ends_with('\n')), (1, true), "{line}");
        }
    }
}
