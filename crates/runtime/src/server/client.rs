//! The client of the API server: with time limits and metrics, and without blind retries.
//!
//! kube's default stack retries every verb, even POST, unless `Config::default_retry` is false. It has no limit for the
//! wait for response headers, because its read timeout would also end quiet watches, and no TCP keepalive. This client
//! limits the connection attempt and the wait for response headers; its callers limit whole calls. Nothing below the
//! plan retries. TCP notices a vanished peer within 15 seconds. After a 429 or 503 with Retry-After, all users of the
//! client pause requests for that type. Token files ([`crate::server::token`]) and CA files are read again once a
//! minute.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use kube::client::{AuthError, Body, ClientBuilder, ConfigExt as _};
use kube::config::KubeconfigError;
use kube::{Client, Config};
use tokio::time::{Instant, sleep, timeout};
use tower::util::{MapRequestLayer, MapResponseLayer};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, service_fn};

use crate::lock;
use crate::model::conditions::shorten;
use crate::server::connection::{Transport, connector, fenced};
use crate::server::connectivity::Link;
use crate::server::gate::Gate;
use crate::server::metrics::Metrics;
use crate::server::token::TokenFile;

/// The time limit for the response headers of a GET, which arrive at once even for a watch or list. A write answers
/// only after all webhooks, each of which has 10 s by default; its limit is [`CALL`].
const HEADERS: Duration = Duration::from_secs(10);
/// Concurrent writes of one kind, except that three deletions count as two writes. With 100 creations, other clients wait
/// longer than beside a ReplicaSet (`docs/bench/goals.md`, Reasons).
pub const WINDOW: usize = 64;
/// The time limit of a whole call, except a watch.
pub const CALL: Duration = Duration::from_secs(20);

/// The longest Retry-After that the client obeys.
pub const LONGEST_REST: Duration = Duration::from_secs(30);

/// Bytes of an error that are logged.
const LONGEST_ERROR: usize = 512;

/// The longest pause that a write waits for. After a longer one, the plan retries.
const SHORT_REST: Duration = Duration::from_secs(2);

/// Why a client could not be built.
#[derive(Debug, thiserror::Error)]
#[error("the client's TLS or authentication settings cannot be used: {0}")]
pub struct Error(#[from] kube::Error);

/// Builds a client with this module's limits. Retry-After pauses last up to `longest_rest`. After a doubt of `link`,
/// new requests use new connections.
pub fn build(
    mut config: Config,
    metrics: &Metrics,
    longest_rest: Duration,
    link: &Link,
) -> Result<Client, Error> {
    let agent = HeaderValue::from_static(concat!("quintet/", env!("CARGO_PKG_VERSION")));
    config.headers.push((header::USER_AGENT, agent));
    let file = config.auth_info.token_file.take_if(|_| config.auth_info.token.is_none());
    let token = file.map(|file| TokenFile::new(file.as_ref())).transpose().map_err(kube::Error::Auth)?;
    let sign = token.clone().map(|token| MapRequestLayer::new(move |request| token.sign(request)));
    let heed = token.map(|token| MapResponseLayer::new(move |answer: Response<Incoming>| token.heed(answer)));
    let https = config.rustls_https_connector_with_connector(connector())?;
    let mut pool = hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new());
    // Keep the connections of a burst of writes, so that the next burst needs no handshakes.
    pool.pool_idle_timeout(Duration::from_secs(20)).pool_max_idle_per_host(WINDOW);
    let transport = Transport::new(pool, https, link).map_request(fenced);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .option_layer(sign)
        .option_layer(heed)
        .layer(config.extra_headers_layer()?)
        .service(limited(transport, metrics.clone(), longest_rest));
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// Builds the same client over another transport, e.g. a test server in the same process.
pub fn over<S, B>(transport: S, metrics: &Metrics, longest_rest: Duration) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Client::new(limited(transport, metrics.clone(), longest_rest), "default")
}

/// Sends a request and decodes the answer. Unlike `Client::request`, it does not log an answer that cannot be
/// decoded, which may contain a Secret, a token or the environment of a pod.
pub async fn ask<T: serde::de::DeserializeOwned>(
    client: &Client,
    request: Request<Vec<u8>>,
) -> Result<T, kube::Error> {
    let text = client.request_text(request).await?;
    serde_json::from_str(&text).map_err(kube::Error::SerdeError)
}

/// Sends a request and returns the text of the answer. After `limit`, it returns a `Service` error with [`NoAnswer`].
pub async fn call_text(
    client: &Client,
    limit: Duration,
    request: Result<Request<Vec<u8>>, http::Error>,
) -> Result<String, kube::Error> {
    let request = request.map_err(kube::Error::HttpError)?;
    let answer = timeout(limit, client.request_text(request)).await;
    answer.unwrap_or_else(|_elapsed| Err(kube::Error::Service(NoAnswer(limit).into())))
}

/// Like [`ask`], with the limit of [`call_text`].
pub async fn call<T: serde::de::DeserializeOwned>(
    client: &Client,
    limit: Duration,
    request: Result<Request<Vec<u8>>, http::Error>,
) -> Result<T, kube::Error> {
    let text = call_text(client, limit, request).await?;
    serde_json::from_str(&text).map_err(kube::Error::SerdeError)
}

/// Like [`call`], for a write during the term that began at `since`. Returns None if the term ends first. After the end of
/// the term, no part of the request is handed to the connection.
pub(crate) async fn ask_in_term<T: serde::de::DeserializeOwned>(
    client: &Client,
    gate: &Gate,
    since: Instant,
    limit: Duration,
    mut request: Request<Vec<u8>>,
) -> Option<Result<T, kube::Error>> {
    debug_assert!(!request.body().is_empty(), "the fence needs a body");
    request.extensions_mut().insert(gate.fence(since));
    let _writing = gate.writing();
    gate.while_held(since, call(client, limit, Ok(request))).await
}

/// The error in one log line: the API server's message if it answered, else the error and its causes. An answer that
/// could not be decoded is not quoted.
pub fn brief(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => {
            shorten(format!("{} {}: {}", status.code, status.reason, status.message), LONGEST_ERROR)
        }
        other => brief_causes(other),
    }
}

/// An error and its causes in one log line.
pub(crate) fn brief_causes(error: &(dyn std::error::Error + 'static)) -> String {
    shorten(causes(error).join(": "), LONGEST_ERROR)
}

/// The error without quotes of a kubeconfig or of a credential plugin's answer, which may contain a token.
fn discreet(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |one| (*one).source());
    let quotes = chain.filter_map(|one| Some((one.to_string(), without_quotation(one)?)));
    quotes.fold(error.to_string(), |words, (quote, instead)| words.replace(&quote, &instead))
}

/// The messages of an error and its causes, outermost first, without duplicates and without quotes that may contain a
/// token. The causes of such an error are left out, because they contain the same quote.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut cause = Some(error);
    while let Some(one) = cause {
        let said = discreet(one);
        // Many errors already include the message of their cause.
        if !words.iter().any(|before| before.contains(&said)) {
            words.push(said);
        }
        cause = one.source().filter(|_| without_quotation(one).is_none());
    }
    words
}

/// A replacement for an error that quotes confidential text.
fn without_quotation(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(KubeconfigError::Parse(error)) = error.downcast_ref() {
        let at = error.location().map(|at| format!(", at line {}, column {}", at.line(), at.column()));
        return Some(format!("it is not a kubeconfig in YAML{}", at.unwrap_or_default()));
    }
    match error.downcast_ref()? {
        AuthError::AuthExecParse(_) => {
            Some("the credential plugin's answer is not an ExecCredential".to_owned())
        }
        // The error quotes the command with its arguments and environment.
        AuthError::AuthExecRun { out, .. } => {
            Some(format!("the credential plugin failed with {}", out.status))
        }
        // These errors of a legacy credential helper quote its output.
        AuthError::AuthExec(said)
            if ["Target ", "Failed to query "].iter().any(|begin| said.starts_with(begin)) =>
        {
            Some("the credential helper's answer has no token in the expected place".to_owned())
        }
        _ => None,
    }
}

/// The Retry-After pauses by type, so that a type that was just defined does not delay other types. Clones are cheap
/// and share their state.
#[derive(Clone)]
struct Rest {
    until: Arc<Mutex<HashMap<String, Instant>>>,
    longest: Duration,
}

impl Rest {
    /// The remaining pause, if there is one.
    fn left(&self, of: &str) -> Option<Duration> {
        let until = lock(&self.until).get(of).copied()?;
        until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// Records the Retry-After of an answer.
    fn heed(&self, of: String, status: StatusCode, headers: &HeaderMap) {
        let is_asked = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        // The API server sends seconds, never a date.
        let seconds = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        if let Some(seconds) = seconds.filter(|_| is_asked) {
            let until = Instant::now() + Duration::from_secs(seconds).min(self.longest);
            let mut asked = lock(&self.until);
            asked.retain(|_, until| *until > Instant::now());
            let asked = asked.entry(of).or_insert(until);
            *asked = (*asked).max(until);
        }
    }
}

/// The type in an API path: group, version and plural.
fn type_of(path: &str) -> String {
    // If the API server is behind a proxy, the path may have a prefix.
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

/// The request was not sent, because of a Retry-After pause. The message omits the remaining time, so that equal
/// failures have equal messages.
#[derive(Debug, thiserror::Error)]
#[error("the API server requested a pause (Retry-After)")]
pub struct Resting;

/// The API server sent no response headers, or not the whole answer, within this time.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {} s", .0.as_secs())]
pub struct NoAnswer(pub Duration);

/// Limits the wait for response headers, counts and times every request, and obeys Retry-After.
fn limited<S, B>(
    inner: S,
    metrics: Metrics,
    longest_rest: Duration,
) -> impl Service<Request<Body>, Response = Response<B>, Error = BoxError, Future: Send> + Clone + Send
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: 'static,
{
    let rest = Rest { until: Arc::default(), longest: longest_rest };
    service_fn(move |request: Request<Body>| {
        let method = request.method().clone();
        // With the port if there is one, like client-go.
        let host = request.uri().authority().map_or_else(String::new, ToString::to_string);
        let of = type_of(request.uri().path());
        let (inner, metrics, rest) = (inner.clone(), metrics.clone(), rest.clone());
        async move {
            while let Some(left) = rest.left(&of) {
                // A write holds a slot of the window and has a deadline, so it does not wait for a long pause.
                if method != Method::GET && left > SHORT_REST {
                    return Err(BoxError::from(Resting));
                }
                sleep(left).await;
            }
            let limit = if method == Method::GET { HEADERS } else { CALL };
            let mut count = Count { metrics, method, host, began: Instant::now(), code: None };
            let answer = match timeout(limit, inner.oneshot(request)).await {
                Ok(answer) => answer.map_err(Into::<BoxError>::into)?,
                Err(_elapsed) => return Err(NoAnswer(limit).into()),
            };
            count.code = Some(answer.status());
            rest.heed(of, answer.status(), answer.headers());
            Ok(answer)
        }
    })
}

/// Counts and times a request when it ends, even if it was cancelled, like client-go.
struct Count {
    metrics: Metrics,
    method: Method,
    host: String,
    began: Instant,
    /// The status code of the answer, if there was one.
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
    use futures::future::BoxFuture;
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
        let limited = limited(service, Metrics::new().unwrap(), longest);
        let ask = move |path: &str| -> BoxFuture<'static, StatusCode> {
            let request = Request::get(format!("http://server{path}")).body(Body::empty()).unwrap();
            let limited = limited.clone();
            Box::pin(async move { limited.oneshot(request).await.unwrap().status() })
        };
        (ask, asked)
    }

    #[test]
    fn does_not_quote_the_answer_of_a_credential_plugin() {
        let answer = "apiVersion: [s3cret, {";
        let Err(KubeconfigError::Parse(parse)) = kube::config::Kubeconfig::from_yaml(answer) else {
            panic!("the error is not about YAML")
        };
        assert!(parse.to_string().contains("s3cret"), "the error quotes it");
        let error = kube::Error::Auth(AuthError::AuthExecParse(parse));
        assert_eq!(brief(&error), "auth error: the credential plugin's answer is not an ExecCredential");
        assert_eq!(causes(&error), ["auth error: the credential plugin's answer is not an ExecCredential"]);
    }

    #[test]
    fn does_not_quote_a_failed_credential_plugin() {
        let mut plugin = std::process::Command::new("sh");
        plugin.args(["-c", "echo s3cret; echo s3cret >&2; exit 3", "--token=s3cret"]).env("KEY", "s3cret");
        let out = plugin.output().unwrap();
        let error = AuthError::AuthExecRun { cmd: format!("{plugin:?}"), out: Box::new(out) };
        assert!(error.to_string().contains("s3cret"), "the error quotes it");
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
    async fn retry_after_pauses_all_requests_for_the_type() {
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
    async fn limits_retry_after_and_ignores_invalid_values() {
        for (asked, waits) in [("3600", 1), ("-1", 0), ("soon", 0), ("99999999999999999999999", 0)] {
            let (ask, _) = busy(asked, Duration::from_secs(1));
            ask(PODS).await;
            let began = Instant::now();
            ask(PODS).await;
            assert_eq!(began.elapsed(), Duration::from_secs(waits), "{asked}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_fails_instead_of_waiting_for_a_long_pause() {
        let (_, asked) = busy("20", LONGEST_REST);
        let counted = asked.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Response::builder().status(429).header("retry-after", "20").body(()))
        });
        let limited = limited(service, Metrics::new().unwrap(), LONGEST_REST);
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
    async fn counts_a_cancelled_request() {
        let metrics = Metrics::new().unwrap();
        let service = tower::service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<()>, std::convert::Infallible>>()
        });
        let limited = limited(service, metrics.clone(), LONGEST_REST);
        let request = Request::put(format!("http://server{PODS}")).body(Body::empty()).unwrap();
        let asked = timeout(Duration::from_millis(2_500), limited.oneshot(request)).await;
        assert!(asked.is_err());
        assert_eq!(metrics.requests.with_label_values(&["<error>", "PUT", "server"]).get(), 1);
        let took = metrics.request_duration.with_label_values(&["PUT", "server"]).get_sample_sum();
        assert!((took - 2.5).abs() < 0.1, "{took}");
    }

    #[test]
    fn finds_the_type_in_a_path() {
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
