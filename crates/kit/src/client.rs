//! The client to the API server: bounded in time, counted, and without blind retries.
//!
//! kube's default stack has no read limit and repeats every verb, POST included. Here the connection attempt,
//! the wait for response headers and (by the executor) each whole call are bounded, nothing is repeated below the
//! plan, and a peer that vanished silently is noticed by TCP within 15 seconds.

use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, Response};
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use tower::{BoxError, Layer, Service, ServiceBuilder};

use crate::executor::WINDOW;
use crate::metrics::Metrics;

/// How long a connection attempt may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long response headers may take. A watch or list answers its headers at once.
const HEADERS: Duration = Duration::from_secs(10);
/// How long a whole call that is not a watch may take.
pub const CALL: Duration = Duration::from_secs(20);
/// Idle time after which TCP asks whether the peer is there; the same between questions.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// How long TCP waits for the peer to acknowledge bytes: this is what notices a silent partition.
const USER_TIMEOUT: Duration = Duration::from_secs(15);

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

/// Makes a client with our limits from a configuration.
pub fn build(mut config: Config, metrics: &Metrics) -> Result<Client, Error> {
    let agent = HeaderValue::from_str(&format!("quintet/{}", env!("CARGO_PKG_VERSION")))?;
    config.headers.push((HeaderName::from_static("user-agent"), agent));
    let mut http = hyper_util::client::legacy::connect::HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    http.set_keepalive(Some(KEEPALIVE));
    http.set_keepalive_interval(Some(KEEPALIVE));
    http.set_keepalive_retries(Some(2));
    http.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let https = config.rustls_https_connector_with_connector(http)?;
    let transport: hyper_util::client::legacy::Client<_, Body> =
        hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new())
            // What a burst of writes has opened serves the next one too, or each would begin with handshakes.
            .pool_idle_timeout(Duration::from_secs(20))
            .pool_max_idle_per_host(WINDOW)
            .build(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .layer(Limits { metrics: metrics.clone() })
        .map_err(BoxError::from)
        .service(transport);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// The server's words where it answered: the whole status is too long for a line of the log.
pub fn brief(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} {}: {}", status.code, status.reason, status.message),
        other => other.to_string(),
    }
}

/// Bounds the wait for response headers and counts every request.
#[derive(Clone)]
struct Limits {
    metrics: Metrics,
}

impl<S> Layer<S> for Limits {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, metrics: self.metrics.clone() }
    }
}

#[derive(Clone)]
struct Limited<S> {
    inner: S,
    metrics: Metrics,
}

/// The API server did not begin to answer in time.
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {} s", HEADERS.as_secs())]
pub struct NoAnswer;

impl<S, B> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
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
        let host = request.uri().host().unwrap_or_default().to_owned();
        let requests = self.metrics.requests.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = match tokio::time::timeout(HEADERS, answer).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_elapsed) => Err(NoAnswer.into()),
            };
            let code =
                answer.as_ref().map_or("<error>".to_owned(), |answer| answer.status().as_str().to_owned());
            requests.with_label_values(&[code.as_str(), method.as_str(), host.as_str()]).inc();
            answer
        })
    }
}
