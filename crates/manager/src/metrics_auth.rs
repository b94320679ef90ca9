//! Secure metrics: TLS, authentication and authorization, like in controller-runtime.
//!
//! A TokenReview authenticates the bearer token, and a SubjectAccessReview authorizes its user for the path. A scraper needs
//! the rule `nonResourceURLs: [/metrics], verbs: [get]`. A cache keeps the verdicts under a digest of the token.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use kube::Client;
use quintet_runtime::lock;
use quintet_runtime::log_repeated;
use quintet_runtime::model::digest;
use quintet_runtime::probes;
use quintet_runtime::server::client::brief;
use quintet_runtime::server::metrics::Metrics;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;

use crate::api_client::{code_of, send_review};

/// How long the cache keeps the verdict "allowed".
const ALLOWED: Duration = Duration::from_mins(1);
/// How long the cache keeps other verdicts: short, so that a corrected role takes effect soon.
const REFUSED: Duration = Duration::from_secs(10);
/// The most verdicts in the cache.
const REMEMBERED: usize = 256;
/// Concurrent reviews. A client without permission must not overload the API server.
const QUESTIONS: usize = 4;
/// The timeout of a review.
const QUESTION: Duration = Duration::from_secs(5);
/// How often the manager reads the files of the certificate.
const LOOK: Duration = Duration::from_secs(10);
/// The timeout of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Authenticates and authorizes requests. Clones share one cache.
#[derive(Clone)]
pub struct Guard {
    client: Client,
    questions: Arc<Semaphore>,
    answers: Arc<Mutex<HashMap<String, (Instant, Verdict)>>>,
    /// Consecutive failed reviews.
    failures: Arc<AtomicU64>,
}

/// The result of a review.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    /// The cluster rejects the token.
    Unknown,
    /// The user of the token has no permission.
    Forbidden(String),
}

impl Guard {
    /// A guard that sends its reviews with this client.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            questions: Arc::new(Semaphore::new(QUESTIONS)),
            answers: Arc::default(),
            failures: Arc::default(),
        }
    }

    /// Sends a review, and returns its status.
    async fn ask(&self, path: &str, body: &Value) -> kube::Result<Value> {
        send_review(&self.client, QUESTION, path, body).await
    }

    async fn authorize(&self, token: &str, verb: &str, path: &str) -> kube::Result<Verdict> {
        let key = digest::short(&[token, verb, path], 52);
        let known = lock(&self.answers).get(&key).filter(|(until, _)| *until > Instant::now()).cloned();
        if let Some((_, verdict)) = known {
            return Ok(verdict);
        }
        let waited = timeout(QUESTION, self.questions.acquire()).await;
        let _permit = waited.map_err(|elapsed| kube::Error::Service(elapsed.into()))?;
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
            "spec": { "token": token } });
        let status = self.ask("/apis/authentication.k8s.io/v1/tokenreviews", &review).await?;
        let verdict = if status["authenticated"] == true {
            let user = &status["user"];
            let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": { "user": user["username"], "uid": user["uid"], "groups": user["groups"],
                    "extra": user["extra"], "nonResourceAttributes": { "path": path, "verb": verb } } });
            let access = self.ask("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await?;
            let name = user["username"].as_str().unwrap_or_default().to_owned();
            if access["allowed"] == true { Verdict::Allowed } else { Verdict::Forbidden(name) }
        } else {
            Verdict::Unknown
        };
        self.failures.store(0, Ordering::Relaxed);
        let now = Instant::now();
        let mut answers = lock(&self.answers);
        if answers.len() >= REMEMBERED {
            answers.retain(|_, (until, _)| *until > now);
            if answers.len() >= REMEMBERED {
                // Clients without permission must not fill the cache.
                answers.retain(|_, (_, verdict)| *verdict == Verdict::Allowed);
            }
        }
        if answers.len() < REMEMBERED {
            let lasts = if verdict == Verdict::Allowed { ALLOWED } else { REFUSED };
            answers.insert(key, (now + lasts, verdict.clone()));
        }
        Ok(verdict)
    }

    /// Logs a failed review.
    fn tell(&self, error: &kube::Error) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let needs = if code_of(error) == Some(403) {
            ": allow the manager to create tokenreviews.authentication.k8s.io and \
             subjectaccessreviews.authorization.k8s.io (as in the ClusterRole system:auth-delegator)"
        } else {
            ""
        };
        log_repeated!(warn, failures, error = brief(error), "cannot authorize a client of /metrics{needs}");
    }
}

/// Rejects requests that the cluster does not authorize.
pub async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let Some(token) = bearer(request.headers()) else {
        return refuse(
            StatusCode::UNAUTHORIZED,
            "the request has no bearer token: send a token of this cluster",
        );
    };
    let (verb, path) = (request.method().as_str().to_lowercase(), request.uri().path().to_owned());
    match guard.authorize(token, &verb, &path).await {
        Ok(Verdict::Allowed) => next.run(request).await,
        Ok(Verdict::Unknown) => refuse(StatusCode::UNAUTHORIZED, "the cluster rejects this token"),
        Ok(Verdict::Forbidden(user)) => refuse(
            StatusCode::FORBIDDEN,
            &format!(
                "{user} has no permission: bind a ClusterRole with nonResourceURLs [{path}] and verbs [{verb}]"
            ),
        ),
        Err(error) => {
            guard.tell(&error);
            refuse(
                StatusCode::SERVICE_UNAVAILABLE,
                "cannot authorize the request: the API server does not answer; see the manager's log",
            )
        }
    }
}

fn refuse(code: StatusCode, why: &str) -> Response {
    (code, format!("{why}\n")).into_response()
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// The serving certificate: from files that may change, or self-signed at start.
pub struct Identity {
    config: Arc<Mutex<Arc<ServerConfig>>>,
    directory: Option<PathBuf>,
    metrics: Metrics,
}

impl Identity {
    /// Reads `tls.crt` and `tls.key` of a directory, or creates a self-signed certificate.
    pub fn new(directory: Option<&Path>, metrics: &Metrics) -> Result<Self> {
        let config = match directory {
            Some(directory) => from_files(directory, metrics)?,
            None => self_signed()?,
        };
        let directory = directory.map(Path::to_owned);
        Ok(Self { config: Arc::new(Mutex::new(Arc::new(config))), directory, metrics: metrics.clone() })
    }

    /// Serves a router over TLS, and reloads the files when they change.
    pub async fn serve(self, listener: TcpListener, router: Router) {
        let config = self.config.clone();
        // A connection's own task does its handshake, so that a slow one does not delay others.
        let handshake = |stream: TcpStream| {
            let (acceptor, peer) = (TlsAcceptor::from(lock(&config).clone()), stream.peer_addr().ok());
            async move {
                let shaken = timeout(HANDSHAKE, acceptor.accept(stream)).await;
                let shaken = shaken.unwrap_or_else(|elapsed| Err(elapsed.into()));
                shaken.inspect_err(|error| tracing::debug!(?peer, %error, "TLS handshake failed"))
            }
        };
        tokio::join!(probes::serve_over(listener, router, handshake), self.renew());
    }

    async fn renew(self) {
        let Some(directory) = self.directory else { return };
        let mut seen = contents(&directory);
        let (mut last, mut failures) = (seen.clone(), 0);
        loop {
            tokio::time::sleep(LOOK).await;
            let now = contents(&directory);
            // A new version of the files starts a new count.
            if now != last {
                last.clone_from(&now);
                failures = 0;
            }
            if now == seen {
                continue;
            }
            match from_files(&directory, &self.metrics) {
                Ok(config) => {
                    tracing::info!("reloaded the certificate of the metrics address");
                    *lock(&self.config) = Arc::new(config);
                    seen = now;
                }
                // The two files do not change atomically: the next read may succeed.
                Err(error) => {
                    failures += 1;
                    let error = format!("{error:#}");
                    log_repeated!(
                        warn,
                        failures,
                        error,
                        "cannot reload the certificate of the metrics address; keeping the old one"
                    );
                }
            }
        }
    }
}

fn contents(directory: &Path) -> [Option<Vec<u8>>; 2] {
    ["tls.crt", "tls.key"].map(|name| fs::read(directory.join(name)).ok())
}

fn from_files(directory: &Path, metrics: &Metrics) -> Result<ServerConfig> {
    metrics.certificate_reads.inc();
    read(directory).inspect_err(|_| metrics.certificate_read_errors.inc())
}

fn read(directory: &Path) -> Result<ServerConfig> {
    let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
    let named = |path: &Path| format!("cannot read {} of --metrics-cert-dir", path.display());
    let chain = CertificateDer::pem_file_iter(&certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| named(&certificate))?;
    if chain.is_empty() {
        return Err(anyhow!("{}: it contains no certificate", named(&certificate)));
    }
    let key = PrivateKeyDer::from_pem_file(&key).with_context(|| named(&key))?;
    config(chain, key).with_context(|| format!("{} does not match its key", certificate.display()))
}

fn self_signed() -> Result<ServerConfig> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "quintet-metrics".to_owned()])
        .context("cannot create a certificate for the metrics address")?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    config(vec![made.cert.der().clone()], key.into())
}

fn config(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::atomic::AtomicBool;

    use axum::body::Body;
    use axum::http::HeaderValue;
    use axum::middleware;
    use axum::routing::get;
    use rustls::{ClientConfig, RootCertStore};
    use rustls_pki_types::ServerName;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio_rustls::TlsConnector;
    use tower::ServiceExt as _;

    #[test]
    fn parses_only_bearer_tokens() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(of("bearer  abc ").as_deref(), Some("abc"));
        for none in ["", "Bearer", "Bearer ", "Basic abc", "abc"] {
            assert_eq!(of(none), None, "{none}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }

    /// A cluster that knows one token, whose user may get /metrics. It counts the reviews.
    fn guarded() -> (Guard, Arc<Mutex<usize>>) {
        let asked = Arc::new(Mutex::new(0));
        let counted = asked.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            *counted.lock().unwrap() += 1;
            async move {
                let path = request.uri().path().to_owned();
                let body = request.into_body().collect_bytes().await.unwrap();
                let body: Value = serde_json::from_slice(&body).unwrap();
                let status = if path.ends_with("tokenreviews") {
                    let known = body["spec"]["token"] == "known";
                    json!({ "authenticated": known, "user": { "username": "scraper", "groups": ["g"] } })
                } else {
                    assert_eq!(
                        (&body["spec"]["user"], &body["spec"]["groups"]),
                        (&json!("scraper"), &json!(["g"]))
                    );
                    let may =
                        body["spec"]["nonResourceAttributes"] == json!({ "path": "/metrics", "verb": "get" });
                    json!({ "allowed": may })
                };
                let answer = json!({ "status": status }).to_string().into_bytes();
                http::Response::builder().status(201).body(kube::client::Body::from(answer))
            }
        });
        (Guard::new(Client::new(service, "n")), asked)
    }

    #[tokio::test(start_paused = true)]
    async fn caches_the_verdicts_of_the_cluster() {
        let (guard, asked) = guarded();
        let authorize =
            async |token: &str, verb: &str, path: &str| guard.authorize(token, verb, path).await.unwrap();
        assert_eq!(authorize("known", "get", "/metrics").await, Verdict::Allowed);
        assert_eq!(authorize("known", "get", "/metrics").await, Verdict::Allowed);
        assert_eq!(*asked.lock().unwrap(), 2, "once");
        assert_eq!(authorize("known", "put", "/debug/log-level").await, Verdict::Forbidden("scraper".into()));
        assert_eq!(authorize("unknown", "get", "/metrics").await, Verdict::Unknown);
        assert_eq!(*asked.lock().unwrap(), 5);
        tokio::time::advance(REFUSED).await;
        assert_eq!(authorize("unknown", "get", "/metrics").await, Verdict::Unknown);
        assert_eq!(authorize("known", "get", "/metrics").await, Verdict::Allowed);
        assert_eq!(*asked.lock().unwrap(), 6, "allowed lasts longer");
        for token in 0..2 * REMEMBERED {
            authorize(&token.to_string(), "get", "/metrics").await;
        }
        assert!(lock(&guard.answers).len() <= REMEMBERED);
    }

    #[tokio::test]
    async fn counts_failed_reviews_until_one_succeeds() {
        let may_ask = Arc::new(AtomicBool::new(false));
        let may = may_ask.clone();
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let code: u16 = if may.load(Ordering::Relaxed) { 201 } else { 403 };
            let answer = kube::client::Body::from(json!({ "code": code }).to_string().into_bytes());
            std::future::ready(http::Response::builder().status(code).body(answer))
        });
        let guard = Guard::new(Client::new(service, "n"));
        let guarded = middleware::from_fn_with_state(guard.clone(), super::guard);
        let read = get(|| std::future::ready("read"));
        let router: Router = Router::new().route("/metrics", read).layer(guarded);
        let ask = async || {
            let request = http::Request::get("/metrics").header(header::AUTHORIZATION, "Bearer unknown");
            let answer = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            (answer.status(), guard.failures.load(Ordering::Relaxed))
        };
        assert_eq!(ask().await, (StatusCode::SERVICE_UNAVAILABLE, 1));
        assert_eq!(ask().await, (StatusCode::SERVICE_UNAVAILABLE, 2));
        may_ask.store(true, Ordering::Relaxed);
        assert_eq!(ask().await, (StatusCode::UNAUTHORIZED, 0));
    }

    #[tokio::test]
    async fn silent_connections_do_not_block_others() {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let served = config(vec![made.cert.der().clone()], key.into()).unwrap();
        let identity = Identity {
            config: Arc::new(Mutex::new(Arc::new(served))),
            directory: None,
            metrics: Metrics::new().unwrap(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(identity.serve(listener, Router::new()));
        let mut silent = Vec::new();
        for _ in 0..probes::CONNECTIONS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connected = TlsConnector::from(Arc::new(client)).connect(name, stream).await;
        let mut stream = connected.expect("one more is served");
        silent[0].readable().await.unwrap();
        assert_eq!(silent[0].try_read(&mut [0]).unwrap(), 0, "the oldest is closed");
        let kept = silent[1].try_read(&mut [0]).unwrap_err();
        assert_eq!(kept.kind(), io::ErrorKind::WouldBlock, "the others are not");

        let mut ask = async || {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            stream.read(&mut [0; 1_024]).await.unwrap_or(0)
        };
        assert!(ask().await > 0);
        let mut newer = Vec::new();
        for _ in 0..probes::CONNECTIONS {
            newer.push(TcpStream::connect(address).await.unwrap());
        }
        newer[0].readable().await.unwrap();
        assert_eq!(newer[0].try_read(&mut [0]).unwrap(), 0, "an unfinished handshake is closed");
        assert!(ask().await > 0, "and an older client is not");
    }

    #[test]
    fn creates_a_certificate_and_names_an_unreadable_one() {
        let metrics = Metrics::new().unwrap();
        Identity::new(None, &metrics).unwrap();
        assert_eq!(metrics.certificate_reads.get(), 0, "reads no file");
        let error = Identity::new(Some(Path::new("/does/not/exist")), &metrics).map(|_| ()).unwrap_err();
        assert!(format!("{error:#}").contains("/does/not/exist/tls.crt"), "{error:#}");
        assert_eq!((metrics.certificate_reads.get(), metrics.certificate_read_errors.get()), (1, 1));
    }
}
