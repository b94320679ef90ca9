//! An admission webhook in this process. It keeps each new pod for 10 s, and then allows it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::post;
use axum::serve::Listener;
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

use crate::rig::Rig;

/// How long the webhook keeps a pod.
pub const KEEPS: Duration = Duration::from_secs(10);

/// The API server's time limit of a call, which is never reached.
const LIMIT_SECONDS: u64 = 30;

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// A registered webhook. Dropping it stops the server.
pub struct Webhook {
    pods: Arc<Pods>,
    task: tokio::task::JoinHandle<()>,
}

/// Numbers of pods.
#[derive(Default)]
struct Pods {
    called: AtomicUsize,
    kept: AtomicUsize,
    most: AtomicUsize,
}

impl Webhook {
    /// Starts the server and registers it for every new pod. If a call fails, the API server rejects the pod.
    pub fn start(rig: &Rig) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed([Ipv4Addr::LOCALHOST.to_string()])
            .context("cannot make a certificate for the webhook")?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        let config = config(made.cert.der().clone(), key).context("cannot serve TLS")?;
        let listener = rig.wait_for(async {
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("the webhook cannot listen")
        })?;
        let port = listener.local_addr()?.port();
        let pods = Arc::<Pods>::default();
        let router = Router::new().route("/", post(review)).with_state(pods.clone());
        let listener = Tls { listener, acceptor: TlsAcceptor::from(Arc::new(config)) };
        let task = rig.spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        rig.create(CONFIGURATIONS, &configuration(port, &made.cert.pem()))?;
        Ok(Self { pods, task })
    }

    /// The number of pods that the API server has sent.
    pub fn called(&self) -> usize {
        self.pods.called.load(Ordering::Relaxed)
    }

    /// The number of pods that wait for their answer now.
    pub fn kept(&self) -> usize {
        self.pods.kept.load(Ordering::Relaxed)
    }

    /// The most pods that waited at the same time.
    pub fn most(&self) -> usize {
        self.pods.most.load(Ordering::Relaxed)
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn config(
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(vec![certificate], key.into())?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn configuration(port: u16, certificate: &str) -> Value {
    let authority = ByteString(certificate.as_bytes().to_vec());
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "slow"},
        "webhooks": [{
            "name": "slow.bench.quintet.dev",
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/"), "caBundle": authority},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            "failurePolicy": "Fail", "timeoutSeconds": LIMIT_SECONDS,
            "sideEffects": "None", "admissionReviewVersions": ["v1"],
        }],
    })
}

/// Keeps a pod, and then allows it.
async fn review(State(pods): State<Arc<Pods>>, body: Bytes) -> impl IntoResponse {
    let _kept = Kept::new(pods);
    tokio::time::sleep(KEEPS).await;
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let response = json!({"uid": review["request"]["uid"], "allowed": true});
    let answer =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    ([(CONTENT_TYPE, "application/json")], answer.to_string())
}

/// A pod that waits for its answer, until that or until the API server gives up.
struct Kept(Arc<Pods>);

impl Kept {
    fn new(pods: Arc<Pods>) -> Self {
        pods.called.fetch_add(1, Ordering::Relaxed);
        let kept = pods.kept.fetch_add(1, Ordering::Relaxed) + 1;
        pods.most.fetch_max(kept, Ordering::Relaxed);
        Self(pods)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.kept.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Tls {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            // axum's accept retries after an error. The API server is the only client.
            let (stream, peer) = Listener::accept(&mut self.listener).await;
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, peer);
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
