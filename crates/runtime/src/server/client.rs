//! The client to the API server: bounded in time, counted, and without blind retries.
//!
//! kube's default stack has no read limit and repeats every verb, POST included. Here the connection attempt,
//! the wait for response headers and (by the executor) each whole call are bounded, nothing is repeated below the
//! plan, and a peer that vanished silently is noticed by TCP within 15 seconds. A server that asks to be left alone for
//! a while (429 or 503 with Retry-After) is left alone by everything that shares the client and asks for the same type. Tokens ([`crate::server::token`])
//! and authorities that come from files are read anew once a minute.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use kube::client::{AuthError, Body, ClientBuilder, ConfigExt as _};
use kube::config::KubeconfigError;
use kube::{Client, Config};
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until, timeout};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt as _};

use crate::model::conditions::shorten;
use crate::server::connection::{Transport, connector, fenced};
use crate::server::connectivity::Link;
use crate::server::gate::{Gate, Term};
use crate::server::metrics::Metrics;
use crate::server::token::TokenFile;

/// How long response headers may take of what only reads: a watch or list answers its headers at once. A write does when all
/// webhooks have spoken, each of which has 10 s by default.
const HEADERS: Duration = Duration::from_secs(10);
/// Writes in flight, in the whole process. More only adds latency.
pub const WINDOW: usize = 32;
/// How long a whole call that is not a watch may take.
pub const CALL: Duration = Duration::from_secs(20);

/// The longest wait that a server's Retry-After is granted.
pub const LONGEST_REST: Duration = Duration::from_secs(30);

/// Bytes of an error that are told.
const LONGEST_ERROR: usize = 512;

/// A pause that a write waits for. A longer one is the plan's to wait for.
const SHORT_REST: Duration = Duration::from_secs(2);

/// What can go wrong while a client is made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig or the in-cluster configuration cannot be used.
    #[error("the client's TLS or authentication settings cannot be used: {0}")]
    Kube(#[from] kube::Error),
    /// The program's own version is no valid header.
    #[error("the user agent is no valid header: {0}")]
    UserAgent(#[from] http::header::InvalidHeaderValue),
}

/// Makes a client with our limits from a configuration. A server that asks for a pause gets it, for `longest_rest` at
/// most. What was connected before a doubt of `link` is not used again.
pub fn build(
    mut config: Config,
    metrics: &Metrics,
    longest_rest: Duration,
    link: &Link,
) -> Result<Client, Error> {
    let agent = HeaderValue::from_str(&format!("quintet/{}", env!("CARGO_PKG_VERSION")))?;
    config.headers.push((HeaderName::from_static("user-agent"), agent));
    let file = config.auth_info.token_file.take_if(|_| config.auth_info.token.is_none());
    let token = file.map(|file| TokenFile::new(file.as_ref())).transpose().map_err(kube::Error::Auth)?;
    let https = config.rustls_https_connector_with_connector(connector())?;
    let mut pool = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new());
    // What a burst of writes has opened serves the next one too, or each would begin with handshakes.
    pool.pool_idle_timeout(Duration::from_secs(20)).pool_max_idle_per_host(WINDOW);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .option_layer(token)
        .layer(config.extra_headers_layer()?)
        .layer(Limits { metrics: metrics.clone(), rest: Rest::new(longest_rest) })
        .map_err(BoxError::from)
        .map_request(fenced)
        .service(Transport::new(pool, https, link));
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// The same over another transport: a test's server, in the process of the test.
pub fn over<S, B>(transport: S, metrics: &Metrics, longest_rest: Duration) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let limits = Limits { metrics: metrics.clone(), rest: Rest::new(longest_rest) };
    Client::new(limits.layer(transport), "default")
}

/// Asks for something, and decodes the answer. Where it cannot be decoded, it is quoted nowhere: `Client::request` would log all of
/// it, and it may be a Secret, or a pod with its variables.
pub async fn ask<T: serde::de::DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
) -> Result<T, kube::Error> {
    let text = client.request_text(request).await?;
    serde_json::from_str(&text).map_err(kube::Error::SerdeError)
}

/// Asks for a change while a term lasts, for `limit` at most; nothing where the term was over first. What has not been handed to
/// the connection by then never is, whatever it waited for and whenever this process notices.
pub(crate) async fn ask_in_term<T: serde::de::DeserializeOwned>(
    client: &Client,
    gate: &Gate,
    term: Term,
    limit: Duration,
    mut request: Request<Vec<u8>>,
) -> Option<Result<Result<T, kube::Error>, Elapsed>> {
    debug_assert!(!request.body().is_empty(), "what has no body has no fence");
    request.extensions_mut().insert(gate.fence(term.since));
    let _writing = gate.writing();
    gate.while_held(term.since, timeout(limit, ask(client, request))).await
}

/// The server's words where it answered: the whole status is too long for a line of the log, and so is a value that could not
/// be decoded. Else the error and what caused it: the outermost of one that has no connection says only that.
pub fn brief(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => {
            shorten(format!("{} {}: {}", status.code, status.reason, status.message), LONGEST_ERROR)
        }
        other => brief_causes(other),
    }
}

/// An error and what caused it, in a line of the log.
pub(crate) fn brief_causes(error: &(dyn std::error::Error + 'static)) -> String {
    shorten(causes(error).join(": "), LONGEST_ERROR)
}

/// An error without what it quotes of a kubeconfig or of the answer of a credential plugin, which may be a token.
pub fn discreet(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut cause = Some(error);
    while let Some(one) = cause {
        if let Some(instead) = without_quotation(one) {
            words = words.replace(&one.to_string(), &instead);
        }
        cause = one.source();
    }
    words
}

/// What an error and its causes say, the outermost first, each thing once, with nothing that may be a token: what an error
/// quotes, its causes quote too.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut cause = Some(error);
    while let Some(one) = cause {
        let said = discreet(one);
        // Many an error says what caused it by itself.
        if !words.iter().any(|before| before.contains(&said)) {
            words.push(said);
        }
        cause = one.source().filter(|_| without_quotation(one).is_none());
    }
    words
}

/// What is said instead of an error that quotes what nobody may read.
fn without_quotation(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(KubeconfigError::Parse(error)) = error.downcast_ref() {
        let at = error.location().map(|at| format!(", at line {}, column {}", at.line(), at.column()));
        return Some(format!("this is no kubeconfig in YAML{}", at.unwrap_or_default()));
    }
    match error.downcast_ref()? {
        AuthError::AuthExecParse(_) => Some("the credential plugin's answer is no ExecCredential".to_owned()),
        // Its command is quoted with its arguments and variables.
        AuthError::AuthExecRun { out, .. } => {
            Some(format!("the credential plugin failed with {}", out.status))
        }
        // Of what a helper of the old kind prints, it is said where nothing is found.
        AuthError::AuthExec(said)
            if ["Target ", "Failed to query "].iter().any(|begin| said.starts_with(begin)) =>
        {
            Some("the credential helper's answer has no token where one is looked for".to_owned())
        }
        _ => None,
    }
}

/// The pauses that a server has asked for, by type: one that is just being defined must not hold the others back. Cheap to
/// clone; every clone is the same.
#[derive(Clone)]
struct Rest {
    until: Arc<Mutex<HashMap<String, Instant>>>,
    longest: Duration,
}

impl Rest {
    fn new(longest: Duration) -> Self {
        Self { until: Arc::default(), longest }
    }

    /// How long the pause lasts, if there is one.
    fn left(&self, of: &str) -> Option<Duration> {
        let until = self.until.lock().unwrap_or_else(PoisonError::into_inner).get(of).copied()?;
        until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// Waits until the pause is over.
    async fn over(&self, of: &str) {
        loop {
            let until = self.until.lock().unwrap_or_else(PoisonError::into_inner).get(of).copied();
            match until {
                Some(until) if until > Instant::now() => sleep_until(until).await,
                _ => return,
            }
        }
    }

    /// Takes note of what an answer asks for.
    fn heed(&self, of: String, status: StatusCode, headers: &HeaderMap) {
        let is_asked = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        // The API server says it in seconds, never as a date.
        let seconds = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        if let Some(seconds) = seconds.filter(|_| is_asked) {
            let until = Instant::now() + Duration::from_secs(seconds).min(self.longest);
            let mut asked = self.until.lock().unwrap_or_else(PoisonError::into_inner);
            asked.retain(|_, until| *until > Instant::now());
            let asked = asked.entry(of).or_insert(until);
            *asked = (*asked).max(until);
        }
    }
}

/// The type that a path of the API is about: its group, version and plural.
fn type_of(path: &str) -> String {
    // A server behind a proxy may have a path before that.
    let is_api = |segment: &&str| matches!(*segment, "api" | "apis");
    let mut segments = path.trim_matches('/').split('/').skip_while(|segment| !is_api(segment));
    let group = match segments.next() {
        Some("apis") => segments.next().unwrap_or_default(),
        _ => "",
    };
    let version = segments.next().unwrap_or_default();
    let rest: Vec<&str> = segments.collect();
    let plural = match rest[..] {
        ["namespaces", _, plural, ..] | [plural, ..] => plural,
        [] => "",
    };
    format!("{group}/{version}/{plural}")
}

/// The API server has asked to be left alone for a while, and this request was not sent. How long the while still is is not said:
/// the same failure reads the same.
#[derive(Debug, thiserror::Error)]
#[error("the API server has asked to be left alone for a while (Retry-After)")]
pub struct Resting;

/// Bounds the wait for response headers, counts and measures every request, and heeds Retry-After.
#[derive(Clone)]
struct Limits {
    metrics: Metrics,
    rest: Rest,
}

impl<S> Layer<S> for Limits {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, metrics: self.metrics.clone(), rest: self.rest.clone() }
    }
}

#[derive(Clone)]
struct Limited<S> {
    inner: S,
    metrics: Metrics,
    rest: Rest,
}

/// The API server did not begin to answer in time.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {} s", HEADERS.as_secs())]
pub struct NoAnswer;

impl<S, B> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.method().clone();
        // With the port where there is one, as client-go has it.
        let host = request.uri().authority().map_or_else(String::new, ToString::to_string);
        let (metrics, rest, of) = (self.metrics.clone(), self.rest.clone(), type_of(request.uri().path()));
        // The service that was asked whether it is ready is the one that is called.
        let ready = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, ready);
        Box::pin(async move {
            // Who writes holds a place that others wait for, and has a deadline.
            if let Some(left) = rest.left(&of)
                && method != Method::GET
                && left > SHORT_REST
            {
                return Err(Resting.into());
            }
            rest.over(&of).await;
            let limit = if method == Method::GET { HEADERS } else { CALL };
            let mut count = Count { metrics, method, host, began: Instant::now(), code: None };
            let answer = match timeout(limit, inner.oneshot(request)).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_elapsed) => Err(NoAnswer.into()),
            };
            if let Ok(answer) = &answer {
                count.code = Some(answer.status());
                rest.heed(of, answer.status(), answer.headers());
            }
            answer
        })
    }
}

/// Counts and measures a request when it is over, also one that nobody waits for any more: as client-go does.
struct Count {
    metrics: Metrics,
    method: Method,
    host: String,
    began: Instant,
    /// What it was answered, if it was.
    code: Option<StatusCode>,
}

impl Drop for Count {
    fn drop(&mut self) {
        let (method, host) = (self.method.as_str(), self.host.as_str());
        let code = self.code.as_ref().map_or("<error>", StatusCode::as_str);
        self.metrics.requests.with_label_values(&[code, method, host]).inc();
        let took = self.began.elapsed().as_secs_f64();
        self.metrics.request_duration.with_label_values(&[method, host]).observe(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Answers 429 with this Retry-After at first, then 200.
    fn busy(
        retry_after: &'static str,
        longest: Duration,
    ) -> (impl Fn(&str) -> BoxFuture<'static, StatusCode>, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let (counted, retry_after) = (asked.clone(), HeaderValue::from_static(retry_after));
        let service = tower::service_fn(move |_: Request<Body>| {
            let first = counted.fetch_add(1, Ordering::Relaxed) == 0;
            let answer = Response::builder();
            let answer = if first {
                answer.status(429).header("retry-after", retry_after.clone())
            } else {
                answer.status(200)
            };
            std::future::ready(answer.body(()))
        });
        let limits = Limits { metrics: Metrics::new().unwrap(), rest: Rest::new(longest) };
        let limited = limits.layer(service);
        let ask = move |path: &str| -> BoxFuture<'static, StatusCode> {
            let request = Request::get(format!("http://server{path}")).body(Body::empty()).unwrap();
            let limited = limited.clone();
            Box::pin(async move { limited.oneshot(request).await.unwrap().status() })
        };
        (ask, asked)
    }

    #[test]
    fn what_a_credential_plugin_answers_is_not_quoted() {
        let answer = "apiVersion: [s3cret, {";
        let Err(KubeconfigError::Parse(parse)) = kube::config::Kubeconfig::from_yaml(answer) else {
            panic!("it is no YAML")
        };
        assert!(parse.to_string().contains("s3cret"), "there is something to leave out");
        let error = kube::Error::Auth(AuthError::AuthExecParse(parse));
        assert_eq!(brief(&error), "auth error: the credential plugin's answer is no ExecCredential");
        assert_eq!(causes(&error), ["auth error: the credential plugin's answer is no ExecCredential"]);
    }

    #[test]
    fn nothing_of_a_credential_plugin_that_fails_is_quoted() {
        let mut plugin = std::process::Command::new("sh");
        plugin.args(["-c", "echo s3cret; echo s3cret >&2; exit 3", "--token=s3cret"]).env("KEY", "s3cret");
        let out = plugin.output().unwrap();
        let error = AuthError::AuthExecRun { cmd: format!("{plugin:?}"), out: Box::new(out) };
        assert!(error.to_string().contains("s3cret"), "there is something to leave out");
        let found =
            AuthError::AuthExec("Target Object {\"token\": \"s3cret\"} value \"x\" not found".to_owned());
        for error in [error, found] {
            let said = causes(&kube::Error::Auth(error)).join(": ");
            assert!(
                said.contains("credential") && !said.contains("s3cret") && !said.contains("KEY"),
                "{said}"
            );
        }
    }

    const PODS: &str = "/api/v1/namespaces/n/pods/a";

    #[tokio::test(start_paused = true)]
    async fn a_server_that_asks_for_a_pause_gets_it_from_all() {
        let (ask, asked) = busy("3", LONGEST_REST);
        assert_eq!(ask(PODS).await, StatusCode::TOO_MANY_REQUESTS, "it is the caller's to repeat");
        let began = Instant::now();
        ask("/api/v1/nodes").await;
        assert_eq!(began.elapsed(), Duration::ZERO, "of another type");
        let (first, second) = futures::join!(ask(PODS), ask("/api/v1/pods"));
        assert_eq!((first, second), (StatusCode::OK, StatusCode::OK));
        assert_eq!((began.elapsed(), asked.load(Ordering::Relaxed)), (Duration::from_secs(3), 4));
        ask(PODS).await;
        assert_eq!(began.elapsed(), Duration::from_secs(3), "it is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_has_a_bound_and_nonsense_is_none() {
        for (asked, waits) in [("3600", 1), ("-1", 0), ("soon", 0), ("99999999999999999999999", 0)] {
            let (ask, _) = busy(asked, Duration::from_secs(1));
            ask(PODS).await;
            let began = Instant::now();
            ask(PODS).await;
            assert_eq!(began.elapsed(), Duration::from_secs(waits), "{asked}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_is_not_kept_waiting_for_long() {
        let (_, asked) = busy("20", LONGEST_REST);
        let counted = asked.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Response::builder().status(429).header("retry-after", "20").body(()))
        });
        let limited =
            Limits { metrics: Metrics::new().unwrap(), rest: Rest::new(LONGEST_REST) }.layer(service);
        let send = async || {
            let request = Request::post(format!("http://server{PODS}")).body(Body::empty()).unwrap();
            limited.clone().oneshot(request).await
        };
        assert_eq!(send().await.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
        let error = send().await.unwrap_err();
        assert!(error.is::<Resting>(), "{error}");
        tokio::time::advance(Duration::from_secs(1)).await;
        let later = send().await.unwrap_err();
        assert_eq!(error.to_string(), later.to_string(), "it is the same failure");
        assert_eq!(asked.load(Ordering::Relaxed), 1, "it was not sent");
        tokio::time::advance(Duration::from_secs(20)).await;
        assert!(send().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_nobody_waits_for_any_more_is_counted() {
        let metrics = Metrics::new().unwrap();
        let service = tower::service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<()>, std::convert::Infallible>>()
        });
        let limited = Limits { metrics: metrics.clone(), rest: Rest::new(LONGEST_REST) }.layer(service);
        let request = Request::put(format!("http://server{PODS}")).body(Body::empty()).unwrap();
        let asked = timeout(Duration::from_millis(2_500), limited.oneshot(request)).await;
        assert!(asked.is_err());
        assert_eq!(metrics.requests.with_label_values(&["<error>", "PUT", "server"]).get(), 1);
        let took = metrics.request_duration.with_label_values(&["PUT", "server"]).get_sample_sum();
        assert!((took - 2.5).abs() < 0.1, "{took}");
    }

    #[test]
    fn a_path_is_about_a_type() {
        for (path, of) in [
            ("/api/v1/pods", "/v1/pods"),
            ("/api/v1/namespaces/n/pods/a/status", "/v1/pods"),
            ("/api/v1/namespaces/n", "/v1/namespaces"),
            ("/apis/apps/v1/namespaces/n/deployments", "apps/v1/deployments"),
            ("/apis/g/v1/things/a", "g/v1/things"),
            ("/k8s/clusters/c-1/api/v1/pods", "/v1/pods"),
            ("/k8s/clusters/c-1/apis/g/v1/namespaces/n/things", "g/v1/things"),
            ("/version", "//"),
        ] {
            assert_eq!(type_of(path), of, "{path}");
        }
    }
}
