//! Pulsar's admin API: reads the statistics of topics, and creates and deletes a subscription.
//!
//! Each call has limits of time and size, and every failure has a reason that a user can act on. Brokers
//! redirect to the broker that serves the topic. The client follows a redirect only with the same path and
//! query, apart from the parameter with which a broker marks redirects, and never from `https` to `http`. It
//! sends the token only within the host name of the spec. The private key of a client certificate is never
//! sent.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::ConfigExt as _;
use quintet_pulsar_topic::{Topic, split_partition};
use quintet_runtime::lock;
use quintet_runtime::model::resource::escape;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserializer as _;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::ServiceExt as _;
use tower::util::BoxCloneSyncService;

use crate::answer::{Names, Rejection};
use crate::api::{InitialPosition, OAuth2};
use crate::backlog::{Partitions, TopicFigures, TopicSample, Unknown, figures};
use crate::reach::{Reach, Refused, Resolver, is_refused};
use crate::secrets::Sensitive;
use crate::topic::{self, Topics};

/// The time limit of one request, including redirects.
const CALL: Duration = Duration::from_secs(10);
/// The time limit of a read of all topics.
const READ: Duration = Duration::from_mins(1);
/// The time limit of a connection attempt.
const CONNECT: Duration = Duration::from_secs(5);
/// The size limit of an answer; enough for a topic with ten thousand consumers.
const LONGEST: usize = 4 * 1024 * 1024;
/// The size up to which any number of answers are read at the same time.
const SMALL: usize = 16 * 1024;
/// The limit of larger answers that are read at the same time, so that they cannot exhaust the memory.
const READERS: usize = 2;
/// The beginning of the error of a server that rejects a client certificate.
const ALERT: &str = "received fatal alert";
/// The beginning of the error about a server whose certificate is not trusted.
const UNTRUSTED: &str = "invalid peer certificate";
/// The message for every other failure without an answer. It does not distinguish a closed port from a filtered one or an
/// unknown name, so that a user cannot scan the manager's network.
const NO_ANSWER: &str = "no usable answer; the manager logs the cause at level debug";
/// The header that names the authentication method. Without it, a broker tries each method.
const AUTH_METHOD: &str = "x-pulsar-auth-method-name";
/// The size limit of an issuer's answer.
const LONGEST_TOKEN: usize = 64 * 1024;
/// The shortest time between two requests of a client for a token, apart from its expiry.
const TOKEN_PAUSE: Duration = Duration::from_mins(1);
/// The limit of OAuth2 clients whose tokens are kept.
const CLIENTS: usize = 4_096;
/// The limit of redirects.
const REDIRECTS: usize = 3;
/// The reason of a failure without an answer.
const UNREACHABLE: &str = "AdminUnreachable";
/// The limit of an object's requests at the same time.
const AT_ONCE: usize = 4;
/// The limit of topics that match a pattern. An answer of 4 MiB has room for 200,000.
const MOST_TOPICS: usize = 2_000;
/// The limit of a topic's partitions, which only a broken admin API exceeds.
const MOST_PARTITIONS: u32 = 100_000;

/// The target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BacklogQuery {
    /// The admin API's address.
    pub url: String,
    /// The topics.
    pub topics: Topics,
    /// The subscription.
    pub subscription: String,
    /// Whether the position of a new subscription is replicated.
    pub is_replicated: bool,
}

/// A topic in which the subscription is created, and its position there.
pub type Creation = (Topic, InitialPosition);

/// The credentials for the admin API.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The token.
    pub token: Option<Token>,
    /// The files for an `https` address.
    pub tls: TlsFiles,
}

/// A token.
#[derive(Clone, Debug)]
pub struct Token {
    /// The token.
    pub value: Sensitive,
    /// Its expiry, and the memory of its OAuth2 client; None for a token from a Secret.
    pub issued: Option<(Instant, Issued)>,
}

impl Token {
    /// Whether another token is needed.
    pub fn has_expired(&self) -> bool {
        self.issued.as_ref().is_some_and(|(until, _)| *until <= Instant::now())
    }

    /// Makes the next read request another token, but at most once a minute: a role without permission does not
    /// get it with another token.
    pub async fn reject(&self) {
        if let Some((_, issued)) = &self.issued {
            issued.0.lock().await.take_if(|answer| answer.at.elapsed() >= TOKEN_PAUSE);
        }
    }
}

/// The last answer of an issuer to a client. The lock is held during a request, so that the others wait for it.
#[derive(Clone, Debug, Default)]
pub struct Issued(Arc<tokio::sync::Mutex<Option<IssuerAnswer>>>);

#[derive(Debug)]
struct IssuerAnswer {
    at: Instant,
    until: Instant,
    token: Result<Sensitive, Unknown>,
}

/// An OAuth2 client, its secret, and the CAs of its issuer.
type IssuerClient = (quintet_oauth2::Client, Sensitive, Option<Vec<u8>>);

/// The certificates for an `https` address.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TlsFiles {
    /// The CA certificates to trust, in PEM; None for the public CAs.
    pub authorities: Option<Vec<u8>>,
    /// Whether to trust the public CAs besides these.
    pub and_public: bool,
    /// The client certificate and its key, in PEM.
    pub identity: Option<[Sensitive; 2]>,
}

/// The status and the body of an answer.
type Reply = (StatusCode, Bytes);
type Answer = http::Response<hyper::body::Incoming>;
type Connection = BoxCloneSyncService<Request<Full<Bytes>>, Answer, Failure>;

/// A client of admin APIs. It keeps connections open between reads.
pub struct Admin {
    /// The client for `http` addresses.
    plain: Connection,
    /// The clients for `https` addresses.
    encrypted: Mutex<BTreeMap<TlsFiles, Connection>>,
    issued: Mutex<BTreeMap<IssuerClient, Issued>>,
    readers: Semaphore,
    reach: Reach,
}

fn connector(reach: Reach) -> HttpConnector<Resolver> {
    let mut http = HttpConnector::new_with_resolver(Resolver::new(reach));
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    http
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{}", root(.0))]
    Connection(hyper_util::client::legacy::Error),
    #[error("{0}")]
    Address(#[from] Refused),
    #[error("the CA in adminTLS.caSecret, or else tls.caSecret, cannot be used: {0}")]
    Authorities(String),
    #[error("auth.tlsSecret has no certificate in tls.crt with its key in tls.key")]
    Identity,
    #[error("{0}")]
    Answer(String),
}

impl From<hyper_util::client::legacy::Error> for Failure {
    fn from(error: hyper_util::client::legacy::Error) -> Self {
        if is_refused(&error) { Self::Address(Refused) } else { Self::Connection(error) }
    }
}

/// The message of the innermost error; the outer errors add nothing.
fn innermost(error: &hyper_util::client::legacy::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// The message of a problem with certificates, with a remedy. For other problems, [`NO_ANSWER`].
fn root(error: &hyper_util::client::legacy::Error) -> String {
    let message = innermost(error);
    if message.starts_with(UNTRUSTED) {
        format!("{message}: set adminTLS.caSecret to its CA")
    } else if message.starts_with(ALERT) {
        format!("{message}: check auth.tlsSecret")
    } else {
        NO_ANSWER.to_owned()
    }
}

/// The requests about a subscription, with the credentials of its object.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    admin: &'a Admin,
    asked: &'a BacklogQuery,
    access: &'a Access,
}

impl Session<'_> {
    /// Reads the figures of a subscription in each topic. `last` are the last known partitions, which decide the
    /// first request about a topic.
    pub async fn read(self, last: &Partitions) -> Result<Vec<TopicSample>, Unknown> {
        let topics = &self.asked.topics;
        let reading = async {
            let named = topics.names().map(|topic| (topic.clone(), last.get(topic).copied()));
            let mut all: Vec<(Topic, Option<u32>)> = named.collect();
            all.extend(self.matching().await?);
            let reads: Vec<_> = all.into_iter().map(|(topic, last)| self.look(topic, last)).collect();
            let mut samples: Vec<TopicSample> = stream::iter(reads).buffered(AT_ONCE).try_collect().await?;
            // A matching topic may be deleted after it was listed.
            samples.retain(|one| {
                let is_gone = one.figures.as_ref().is_err_and(|unknown| unknown.reason == Unknown::NO_TOPIC);
                !is_gone || topics.names().any(|topic| *topic == one.topic)
            });
            Ok(samples)
        };
        timely(READ, reading, "reading all topics").await
    }

    /// Creates a subscription in topics, where it begins at these positions, and the topics if the broker allows it.
    /// An existing subscription stays as it is. Returns until the admin API does not answer whether each is new.
    pub async fn create_subscriptions(self, topics: &[Creation]) -> Vec<Result<bool, Unknown>> {
        let creations: Vec<_> =
            topics.iter().map(|(topic, at)| self.create_subscription(topic, *at)).collect();
        let mut results = Vec::new();
        let mut creations = stream::iter(creations).buffered(AT_ONCE);
        while let Some(result) = creations.next().await {
            let is_last = result.as_ref().is_err_and(|unknown: &Unknown| unknown.reason == UNREACHABLE);
            results.push(result);
            if is_last {
                break;
            }
        }
        results
    }

    async fn create_subscription(self, topic: &Topic, position: InitialPosition) -> Result<bool, Unknown> {
        let position = match position {
            InitialPosition::Earliest => r#""earliest""#,
            InitialPosition::Latest => r#""latest""#,
        };
        let replicated = if self.asked.is_replicated { "?replicated=true" } else { "" };
        let path = format!("{}{replicated}", self.subscription_path(topic));
        match self.call(Method::PUT, &path, position).await?.0 {
            StatusCode::CONFLICT => Ok(false),
            status if status.is_success() => Ok(true),
            status => Err(self.refused(status)),
        }
    }

    /// Deletes a subscription without consumers. Succeeds when no topic and no partition has it any more.
    pub async fn delete_subscription(self) -> Result<(), Unknown> {
        let samples = match self.read(&Partitions::new()).await {
            // The namespace of the pattern is gone.
            Err(unknown) if unknown.reason == Unknown::NO_TOPIC => {
                let mut named = self.asked.clone();
                named.topics.pattern = None;
                Session { asked: &named, ..self }.read(&Partitions::new()).await?
            }
            samples => samples?,
        };
        let topics = samples.into_iter().flat_map(|TopicSample { topic, partitions, .. }| match partitions {
            // An answer for the whole topic would be that of any partition.
            Some(partitions) => topic.partitions(partitions),
            // There is no such topic.
            None => Vec::new(),
        });
        for topic in topics {
            match self.call(Method::DELETE, &self.subscription_path(&topic), "").await?.0 {
                status if status.is_success() || status == StatusCode::NOT_FOUND => {}
                StatusCode::PRECONDITION_FAILED => {
                    let name = &self.asked.subscription;
                    let message = format!("A client consumes from the subscription {name}.");
                    return Err(Unknown::new("SubscriptionInUse", message));
                }
                status => return Err(self.refused(status)),
            }
        }
        Ok(())
    }

    /// The topics that match the pattern. The number is above 0 for a topic with partitions.
    async fn matching(self) -> Result<Vec<(Topic, Option<u32>)>, Unknown> {
        let Some(pattern) = &self.asked.topics.pattern else { return Ok(Vec::new()) };
        let pattern = pattern.as_ref().map_err(|error| {
            Unknown::new("PatternInvalid", format!("The manager cannot read topicsPattern: {error}."))
        })?;
        let path = format!("persistent/{}", pattern.namespace());
        let matches = |name: &str| pattern.matches(name);
        let partitioned = self.list(&format!("{path}/partitioned"), matches).await?;
        // This list has each partition, too.
        let whole: HashSet<&str> = partitioned.iter().map(String::as_str).collect();
        let is_other = |name: &str| pattern.matches(name) && !whole.contains(split_partition(name).0);
        let others = self.list(&path, is_other).await?;
        if partitioned.len() + others.len() > MOST_TOPICS {
            let message = format!("More than {MOST_TOPICS} topics match topicsPattern.");
            return Err(Unknown::new("AdminFailed", message));
        }
        Ok(topic::sorted(partitioned, others))
    }

    /// The first names of topics at a path of a namespace for which `keep` returns true, one more than the limit.
    async fn list(self, path: &str, keep: impl Fn(&str) -> bool) -> Result<Vec<String>, Unknown> {
        match self.call(Method::GET, path, "").await? {
            (StatusCode::OK, body) => {
                let mut answer = serde_json::Deserializer::from_slice(&body);
                let names = answer.deserialize_seq(Names(keep, MOST_TOPICS + 1));
                names.map_err(|_| self.unreadable("a list of topics"))
            }
            (StatusCode::NOT_FOUND, _) => {
                Err(Unknown::new(Unknown::NO_TOPIC, "The namespace of topicsPattern does not exist."))
            }
            (other, _) => Err(self.refused(other)),
        }
    }

    async fn look(self, topic: Topic, last: Option<u32>) -> Result<TopicSample, Unknown> {
        let partitioned = last.is_some_and(|partitions| partitions > 0);
        for partitioned in [partitioned, !partitioned] {
            if let Some(found) = self.stats(&topic, partitioned).await? {
                let name = &self.asked.subscription;
                let figures = found.subscription.ok_or_else(|| {
                    let message = format!("The topic {topic} has no subscription {name}.");
                    Unknown::new(Unknown::NO_SUBSCRIPTION, message)
                });
                return Ok(TopicSample { topic, figures, partitions: Some(found.partitions) });
            }
        }
        let unknown = Unknown::new(Unknown::NO_TOPIC, format!("There is no topic {topic}."));
        Ok(TopicSample { topic, figures: Err(unknown), partitions: last })
    }

    /// Reads the statistics of a topic, as partitioned or not. Returns None without such a topic.
    async fn stats(self, topic: &Topic, partitioned: bool) -> Result<Option<TopicFigures>, Unknown> {
        let what = if partitioned { "partitioned-stats?perPartition=false" } else { "stats" };
        let path = format!("{}/{what}", topic::path(topic));
        let (status, body) = self.call(Method::GET, &path, "").await?;
        match status {
            StatusCode::OK => {
                let figures = figures(&body, &self.asked.subscription);
                let mut figures = figures.map_err(|_| self.unreadable("the statistics of a topic"))?;
                figures.partitions = if partitioned { figures.partitions.max(1) } else { 0 };
                if figures.partitions > MOST_PARTITIONS {
                    let message = format!("{topic} has more than {MOST_PARTITIONS} partitions.");
                    return Err(Unknown::new("AdminFailed", message));
                }
                Ok(Some(figures))
            }
            StatusCode::NOT_FOUND => Ok(None),
            other => Err(self.refused(other)),
        }
    }

    /// Sends a request. `path` is below `/admin/v2/`. Only an answer with status 200 has a body.
    async fn call(self, method: Method, path: &str, body: &'static str) -> Result<Reply, Unknown> {
        let server = &self.asked.url;
        let url = format!("{}/admin/v2/{path}", server.trim_end_matches('/'));
        let Ok(answer) = tokio::time::timeout(CALL, self.follow(method, &url, body)).await else {
            tracing::debug!(server, "the admin API does not answer in time");
            return Err(Unknown::new(UNREACHABLE, format!("{server}: {NO_ANSWER}.")));
        };
        answer.map_err(|failure| {
            let reason = match &failure {
                Failure::Connection(error) if root(error).starts_with(ALERT) => Unknown::ADMIN_REFUSED,
                Failure::Connection(error) => {
                    tracing::debug!(server, error = innermost(error), "the admin API gives no usable answer");
                    UNREACHABLE
                }
                _ => "AdminFailed",
            };
            Unknown::new(reason, format!("{server}: {failure}."))
        })
    }

    /// Sends a request, and follows redirects.
    async fn follow(self, method: Method, url: &str, body: &'static str) -> Result<Reply, Failure> {
        let Self { admin, access, .. } = self;
        let first: Uri = url.parse().map_err(|_| Failure::Answer("the address is invalid".to_owned()))?;
        let mut uri = first.clone();
        for _ in 0..=REDIRECTS {
            let mut request = Request::builder()
                .method(method.clone())
                .uri(uri.clone())
                .header(header::ACCEPT, "application/json");
            if !body.is_empty() {
                request = request.header(header::CONTENT_TYPE, "application/json");
            }
            if let Some(token) = access.token.as_ref().filter(|_| is_within(&first, &uri)) {
                let bearer = token.value.bearer().map_err(Failure::Answer)?;
                request = request.header(header::AUTHORIZATION, bearer).header(AUTH_METHOD, "token");
            } else if access.tls.identity.is_some() {
                request = request.header(AUTH_METHOD, "tls");
            }
            let answer = admin.send(request.body(Full::from(body)), &access.tls).await?;
            let status = answer.status();
            if matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::FOUND) {
                uri = redirected(&uri, answer.headers().get(header::LOCATION))?;
                continue;
            }
            return match status {
                StatusCode::OK => Ok((status, admin.body(answer, LONGEST).await?)),
                // Without its form, the answer may be that of a proxy that has no way to the broker.
                StatusCode::NOT_FOUND
                    if serde_json::from_slice::<Rejection>(&admin.body(answer, LONGEST).await?).is_err() =>
                {
                    let why = "it answered 404 Not Found, but not as Pulsar's admin API does";
                    Err(Failure::Answer(why.to_owned()))
                }
                _ => Ok((status, Bytes::new())),
            };
        }
        Err(Failure::Answer(format!("it redirected more than {REDIRECTS} times")))
    }

    /// The path of a topic's subscription, below `/admin/v2/`.
    fn subscription_path(self, topic: &Topic) -> String {
        format!("{}/subscription/{}", topic::path(topic), escape(&self.asked.subscription))
    }

    /// The failure of a request with this status.
    fn refused(self, status: StatusCode) -> Unknown {
        let url = &self.asked.url;
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Unknown::new("AdminFailed", format!("{url} answered {status}."));
        }
        let message = match (&self.access.token, &self.access.tls.identity) {
            (Some(_), _) => format!("{url} rejects the token of auth ({status})."),
            (None, Some(_)) => format!("{url} rejects the certificate of auth.tlsSecret ({status})."),
            (None, None) => format!(
                "{url} requires authentication ({status}): set auth. A client certificate needs an https adminURL."
            ),
        };
        Unknown::new(Unknown::ADMIN_REFUSED, message)
    }

    /// The failure of an answer in another form.
    fn unreadable(self, expected: &str) -> Unknown {
        Unknown::new("AdminFailed", format!("The answer of {} is not {expected}.", self.asked.url))
    }
}

impl Admin {
    /// A client whose requests have this reach.
    pub fn new(reach: Reach) -> Self {
        let client: Client<_, Full<Bytes>> =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(AT_ONCE).build(connector(reach));
        Self {
            plain: BoxCloneSyncService::new(client.map_err(Failure::from)),
            encrypted: Mutex::default(),
            issued: Mutex::default(),
            readers: Semaphore::new(READERS),
            reach,
        }
    }

    /// The requests about a subscription.
    pub fn session<'a>(&'a self, asked: &'a BacklogQuery, access: &'a Access) -> Session<'a> {
        Session { admin: self, asked, access }
    }

    async fn send(
        &self,
        request: http::Result<Request<Full<Bytes>>>,
        files: &TlsFiles,
    ) -> Result<Answer, Failure> {
        let request = request.map_err(|error| Failure::Answer(error.to_string()))?;
        if request.uri().host().is_some_and(|host| !self.reach.allows_host(host)) {
            return Err(Refused.into());
        }
        let is_encrypted = request.uri().scheme_str() == Some("https");
        let connection = if is_encrypted { self.encrypted(files)? } else { self.plain.clone() };
        connection.oneshot(request).await
    }

    /// The body of an answer up to a size.
    async fn body(&self, answer: Answer, longest: usize) -> Result<Bytes, Failure> {
        let broken = |_| Failure::Answer("the answer was too long or incomplete".to_owned());
        let mut body = Limited::new(answer.into_body(), longest);
        let mut read = Vec::new();
        // A slow answer must not delay the others, and most are small.
        let mut reader = None;
        while let Some(frame) = body.frame().await {
            read.extend_from_slice(&frame.map_err(broken)?.into_data().unwrap_or_default());
            if read.len() > SMALL && reader.is_none() {
                reader = Some(self.readers.acquire().await);
            }
        }
        Ok(read.into())
    }

    /// A token of an OAuth2 issuer, which has a certificate of a public CA or of one of `authorities`. All objects of
    /// a client share it. A failure is kept for a while, too.
    pub async fn token(
        &self,
        oauth2: &OAuth2,
        secret: Sensitive,
        authorities: Option<Vec<u8>>,
    ) -> Result<Token, Unknown> {
        let client = quintet_oauth2::Client {
            token_url: oauth2.token_url.clone(),
            client_id: oauth2.client_id.clone(),
            audience: oauth2.audience.clone(),
            scope: oauth2.scope.clone(),
        };
        let client = (client, secret, authorities);
        let issued = {
            let mut all = lock(&self.issued);
            // Tokens of clients that no object has any more.
            if all.len() > CLIENTS {
                all.clear();
            }
            all.entry(client.clone()).or_default().clone()
        };
        let mut last = issued.0.lock().await;
        let now = Instant::now();
        let answer = match last.take().filter(|answer| now < answer.until) {
            Some(answer) => answer,
            None => match self.request_token(&client).await {
                Ok((token, lifetime)) => IssuerAnswer { at: now, until: now + lifetime, token: Ok(token) },
                Err(unknown) => IssuerAnswer { at: now, until: now + TOKEN_PAUSE, token: Err(unknown) },
            },
        };
        let IssuerAnswer { until, token, .. } = last.insert(answer);
        Ok(Token { value: token.clone()?, issued: Some((*until, issued.clone())) })
    }

    async fn request_token(&self, client: &IssuerClient) -> Result<(Sensitive, Duration), Unknown> {
        let (client, secret, authorities) = client;
        let files = TlsFiles { authorities: authorities.clone(), and_public: true, identity: None };
        let requested = async {
            let request = client.request(&secret.text()).map(|request| request.map(Full::from));
            let answer = self.send(request, &files).await?;
            let status = answer.status();
            let body = self.body(answer, LONGEST_TOKEN).await?;
            quintet_oauth2::Token::read(status, &body).map_err(|refusal| Failure::Answer(refusal.to_string()))
        };
        let token = tokio::time::timeout(CALL, requested).await.unwrap_or_else(|_elapsed| {
            tracing::debug!(issuer = client.token_url, "the issuer does not answer in time");
            Err(Failure::Answer(NO_ANSWER.to_owned()))
        });
        let token = token.map_err(|failure| {
            let why = match failure {
                Failure::Connection(error) => {
                    let message = innermost(&error);
                    tracing::debug!(issuer = client.token_url, error = message, "the issuer gives no token");
                    if message.starts_with(UNTRUSTED) { message } else { NO_ANSWER.to_owned() }
                }
                other => other.to_string(),
            };
            let message = format!("Cannot get a token from {}: {why}.", client.token_url);
            Unknown::new("TokenUnavailable", message)
        })?;
        Ok((Sensitive::from(token.value.as_str()), token.lifetime))
    }

    fn encrypted(&self, files: &TlsFiles) -> Result<Connection, Failure> {
        if let Some(connection) = lock(&self.encrypted).get(files) {
            return Ok(connection.clone());
        }
        let broken = |error: &dyn std::fmt::Display| Failure::Authorities(error.to_string());
        let mut config = Config::new(Uri::from_static("https://localhost"));
        let given = files.authorities.as_deref().map(|pem| CertificateDer::pem_slice_iter(pem).collect());
        // The error would quote the Secret.
        let given: Option<Vec<_>> = given.transpose().map_err(|_| broken(&"it is not valid PEM"))?;
        if given.as_ref().is_some_and(Vec::is_empty) {
            return Err(broken(&"it has no certificate"));
        }
        let mut certificates = Vec::new();
        if given.is_none() || files.and_public {
            // The image has no CAs.
            certificates.extend_from_slice(webpki_root_certs::TLS_SERVER_ROOT_CERTS);
        }
        certificates.extend(given.into_iter().flatten());
        config.root_cert = Some(certificates.iter().map(|one| one.to_vec()).collect());
        if let Some([certificate, key]) = &files.identity {
            let user =
                json!({ "client-certificate-data": certificate.bytes(), "client-key-data": key.bytes() });
            config.auth_info = serde_json::from_value(user).map_err(|_| Failure::Identity)?;
        }
        let https = config.rustls_https_connector_with_connector(connector(self.reach));
        // The error would quote the Secret.
        let unusable = |error| if files.identity.is_some() { Failure::Identity } else { broken(&error) };
        let https = https.map_err(unusable)?;
        let client: Client<_, Full<Bytes>> =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(AT_ONCE).build(https);
        let connection = BoxCloneSyncService::new(client.map_err(Failure::from));
        // CAs change rarely; this limit removes those that are no longer used.
        let mut connections = lock(&self.encrypted);
        if connections.len() > 64 {
            connections.clear();
        }
        connections.insert(files.clone(), connection.clone());
        Ok(connection)
    }
}

/// The result of a call within its time limit.
async fn timely<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, Unknown>>,
    what: &str,
) -> Result<T, Unknown> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_elapsed| {
        Err(Unknown::new(UNREACHABLE, format!("Timeout: {what} takes longer than {} s.", limit.as_secs())))
    })
}

/// Whether a redirect goes to the host of the spec or to a host within its name. A StatefulSet's pod has a
/// name within the name of its Service, and often with the cluster's domain.
fn is_within(named: &Uri, uri: &Uri) -> bool {
    let (Some(named), Some(host)) = (named.host(), uri.host()) else { return false };
    let host = host
        .strip_suffix(".cluster.local")
        .filter(|_| named.rsplit('.').next() == Some("svc"))
        .unwrap_or(host);
    host == named || host.strip_suffix(named).is_some_and(|pod| pod.ends_with('.'))
}

/// The parameters of a query, except the one that a broker adds to a redirect.
fn query(uri: &Uri) -> Vec<(Cow<'_, str>, Cow<'_, str>)> {
    let parameters = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    parameters.filter(|(name, _)| name != "authoritative").collect()
}

/// Returns the target of a redirect: another server with the same path and query.
fn redirected(from: &Uri, to: Option<&header::HeaderValue>) -> Result<Uri, Failure> {
    let refuse = |why: &str| Failure::Answer(format!("it redirected {why}"));
    let to = to.and_then(|to| to.to_str().ok()).and_then(|to| to.parse::<Uri>().ok());
    let to = to.ok_or_else(|| refuse("without an address"))?;
    if to.path() != from.path() || query(&to) != query(from) {
        return Err(refuse("to another path or query"));
    }
    match (from.scheme_str(), to.scheme_str()) {
        (_, Some("https")) | (Some("http"), Some("http")) => Ok(to),
        (_, Some(_)) => Err(refuse("to an address that is not encrypted")),
        (_, None) => Err(refuse("without an address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::PulsarConsumerSpec;
    use crate::backlog::BacklogSample;
    use rstest::rstest;
    use serde_json::Value;
    use tokio::io::AsyncWriteExt as _;

    #[rstest]
    #[case("http://a/x?y", "http://b:1/x?y", Some("http://b:1/x?y"))]
    #[case("http://a/x", "https://b/x", Some("https://b/x"))]
    #[case::out_of_encryption("https://a/x", "http://b/x", None)]
    #[case::another_path("http://a/x", "http://b/y", None)]
    #[case("http://a/x?y=1", "http://b/x?y=1&authoritative=true", Some("http://b/x?y=1&authoritative=true"))]
    #[case("http://a/x", "http://b/x?authoritative=false", Some("http://b/x?authoritative=false"))]
    #[case::another_query("http://a/x?y", "http://b/x?z", None)]
    #[case::in_a_circle("https://a:1/x", "/x", None)]
    #[case("http://a/x", "", None)]
    fn follows_redirects_with_the_same_path_and_query(
        #[case] from: &'static str,
        #[case] to: &str,
        #[case] expected: Option<&str>,
    ) {
        let to = header::HeaderValue::from_str(to).unwrap();
        let uri = redirected(&Uri::from_static(from), Some(&to)).ok();
        assert_eq!(uri.map(|uri| uri.to_string()).as_deref(), expected);
    }

    #[rstest]
    #[case("http://broker:1/x", "http://broker:2/x", true)]
    #[case("http://broker.ns.svc/x", "http://broker-0.broker.ns.svc/x", true)]
    #[case("http://broker.ns.svc/x", "http://broker-0.broker.ns.svc.cluster.local/x", true)]
    #[case("http://broker.ns/x", "http://broker.ns.cluster.local/x", false)]
    #[case("http://broker.ns.svc/x", "http://broker.ns.svc.evil/x", false)]
    #[case("http://broker/x", "http://evilbroker/x", false)]
    #[case("http://broker/x", "http://other/x", false)]
    fn sends_tokens_only_within_the_host_name(
        #[case] named: &'static str,
        #[case] to: &'static str,
        #[case] within: bool,
    ) {
        assert_eq!(is_within(&Uri::from_static(named), &Uri::from_static(to)), within);
    }

    /// A server with one answer for each path. Also returns the requests with their tokens.
    async fn server(
        answers: Vec<(&'static str, u16, String)>,
    ) -> (String, std::sync::Arc<Mutex<Vec<String>>>) {
        let asked = std::sync::Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = axum::Router::new().fallback(move |request: axum::extract::Request| {
            let uri = request.uri().to_string();
            let token =
                request.headers().get(header::AUTHORIZATION).map(|token| token.to_str().unwrap().to_owned());
            seen.lock().unwrap().push(format!("{uri} {}", token.unwrap_or_default()));
            let line = format!("{} {uri}", request.method());
            let answer = answers.iter().find(|(part, ..)| line.contains(part)).cloned();
            async move {
                let (_, code, body) = answer.unwrap_or(("", 404, String::new()));
                let is_bare = code == 404 && body.is_empty();
                let body = if is_bare { r#"{"reason":"Not found"}"#.to_owned() } else { body };
                let answer = http::Response::builder().status(code);
                let answer = if code == 307 { answer.header(header::LOCATION, body.clone()) } else { answer };
                answer.body(axum::body::Body::from(body)).unwrap()
            }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        (url, asked)
    }

    const TOPIC: &str = "/admin/v2/persistent/public/default/t";

    fn asked(url: &str) -> BacklogQuery {
        asked_for(url, &json!({ "topic": "t" }))
    }

    /// A client for servers of these tests.
    fn local() -> Admin {
        Admin::new(Reach::Everywhere)
    }

    /// A query about the topics in a spec with these fields.
    fn asked_for(url: &str, fields: &Value) -> BacklogQuery {
        let mut spec = json!({ "serverAddress": "", "subscriptionName": "s" });
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let spec: PulsarConsumerSpec = serde_json::from_value(spec).unwrap();
        let (topics, subscription) = (Topics::of(&spec), spec.subscription_name);
        BacklogQuery { url: url.to_owned(), topics, subscription, is_replicated: false }
    }

    /// The sum of a read with these last known partitions.
    async fn read(asked: &BacklogQuery, access: &Access, last: &Partitions) -> BacklogSample {
        BacklogSample::sum(local().session(asked, access).read(last).await, Partitions::new())
    }

    /// The sum of a first read without credentials.
    async fn first_read(asked: &BacklogQuery) -> BacklogSample {
        read(asked, &Access::default(), &Partitions::new()).await
    }

    fn backlog_or_reason(reading: &BacklogSample) -> Result<i64, &'static str> {
        reading.figures.as_ref().map(|figures| figures.backlog).map_err(|unknown| unknown.reason)
    }

    fn with_token() -> Access {
        Access { token: Some(Token { value: Sensitive::from("secret"), issued: None }), ..Access::default() }
    }

    #[rstest]
    #[case::known(200, r#"{"subscriptions":{"s":{"msgBacklog":3}}}"#, Ok(3))]
    #[case::no_subscription(200, r#"{"subscriptions":{}}"#, Err("SubscriptionNotFound"))]
    #[case::no_topic(404, "", Err("TopicNotFound"))]
    #[case::no_way_to_the_broker(404, "default backend - 404", Err("AdminFailed"))]
    #[case::another_service(404, r#"{"code":404}"#, Err("AdminFailed"))]
    #[case::refused(401, "", Err("AdminRefused"))]
    #[case::forbidden(403, "", Err("AdminRefused"))]
    #[case::broken(500, "", Err("AdminFailed"))]
    #[case::not_json(200, "<html>", Err("AdminFailed"))]
    #[case::moved_permanently(301, "", Err("AdminFailed"))]
    #[tokio::test]
    async fn every_answer_has_figures_or_a_reason(
        #[case] code: u16,
        #[case] body: &str,
        #[case] expected: Result<i64, &'static str>,
    ) {
        let (url, _) = server(vec![("/stats", code, body.to_owned())]).await;
        assert_eq!(backlog_or_reason(&first_read(&asked(&url)).await), expected);
    }

    #[rstest]
    #[case::created(204, Ok(true))]
    #[case::exists(409, Ok(false))]
    #[case::forbidden(403, Err("AdminRefused"))]
    #[case::without_topic(404, Err("AdminFailed"))]
    #[tokio::test]
    async fn creates_a_missing_subscription(#[case] code: u16, #[case] expected: Result<bool, &str>) {
        let (url, seen) = server(vec![("PUT", code, String::new())]).await;
        let (admin, access) = (local(), Access::default());
        for (is_replicated, query) in [(false, ""), (true, "?replicated=true")] {
            let asked = BacklogQuery { is_replicated, ..asked(&url) };
            let topics = [(Topic::of("t"), InitialPosition::Earliest)];
            let created = admin.session(&asked, &access).create_subscriptions(&topics).await.remove(0);
            assert_eq!(created.map_err(|unknown| unknown.reason), expected);
            assert_eq!(seen.lock().unwrap().pop().unwrap().trim(), format!("{TOPIC}/subscription/s{query}"));
        }
    }

    fn stats(backlog: i64, partitions: u32) -> String {
        json!({ "subscriptions": { "s": { "msgBacklog": backlog } }, "metadata": { "partitions": partitions } })
            .to_string()
    }

    /// A tenant chooses the address, and may not use the manager's memory up.
    #[tokio::test]
    async fn limits_partitions_topics_and_subscriptions() {
        let topics: Vec<String> =
            (0..=MOST_TOPICS).map(|at| Topic::of(&format!("t{at}")).to_string()).collect();
        let many: serde_json::Map<_, _> = (0..100_000).map(|at| (format!("other{at}"), json!({}))).collect();
        let mut subscriptions = json!({ "subscriptions": many });
        subscriptions["subscriptions"]["s"] = json!({ "msgBacklog": 7 });
        let (url, _) = server(vec![
            ("/a/stats", 404, String::new()),
            ("/a/partitioned-stats", 200, stats(1, u32::MAX)),
            ("/b/stats", 200, subscriptions.to_string()),
            ("/public/default/partitioned", 200, "[]".to_owned()),
            ("/public/default", 200, json!(topics).to_string()),
        ])
        .await;
        let read = async |fields: Value| first_read(&asked_for(&url, &fields)).await.figures;
        let failure = read(json!({ "topic": "a" })).await.unwrap_err();
        assert!(failure.message.contains("more than 100000 partitions"), "{}", failure.message);
        let failure = read(json!({ "topicsPattern": ".*" })).await.unwrap_err();
        assert_eq!(failure.message, "More than 2000 topics match topicsPattern.");
        assert_eq!(read(json!({ "topic": "b" })).await.unwrap().backlog, 7);
    }

    #[rstest]
    #[case::all_topics(json!({ "topics": ["a", "b"] }), Ok(5), "")]
    #[case::with_retry_letters(
        json!({ "topic": "a", "deadLetterPolicy": { "maxRedeliverCount": 1, "retryLetterTopic": "r" } }), Ok(9), "")]
    #[case::one_missing(json!({ "topics": ["a", "x", "b"] }), Err("TopicNotFound"), "no topic persistent://public/default/x.")]
    #[case::the_first_failure(
        json!({ "topics": ["y", "x"] }), Err("SubscriptionNotFound"), "topic persistent://public/default/y has no subscription s.")]
    #[tokio::test]
    async fn sums_the_backlog_of_several_topics(
        #[case] fields: Value,
        #[case] expected: Result<i64, &str>,
        #[case] message: &str,
    ) {
        let (url, _) = server(vec![
            ("/a/stats", 200, stats(2, 0)),
            ("/b/partitioned-stats", 200, stats(3, 2)),
            ("/r/stats", 200, stats(7, 0)),
            ("/y/stats", 200, r#"{"subscriptions":{}}"#.to_owned()),
        ])
        .await;
        let reading = first_read(&asked_for(&url, &fields)).await;
        assert_eq!(backlog_or_reason(&reading), expected);
        assert!(reading.figures.err().unwrap_or_else(|| Unknown::new("", message)).message.contains(message));
    }

    #[rstest]
    #[case::matching("orders-.*", Ok(5), &["orders-a/stats", "orders-b/partitioned-stats?perPartition=false"])]
    #[case::a_deleted_one("gone|orders-a", Ok(2), &["gone/stats", "gone/partitioned-stats?perPartition=false", "orders-a/stats"])]
    #[case::nothing("nothing", Ok(0), &[])]
    #[case::in_no_namespace("a/b/.*", Err("TopicNotFound"), &[])]
    #[case::another_syntax(r"\pL+", Err("PatternInvalid"), &[])]
    #[tokio::test]
    async fn reads_the_topics_that_match(
        #[case] pattern: &str,
        #[case] expected: Result<i64, &str>,
        #[case] requests: &[&str],
    ) {
        let all =
            ["gone", "orders-a", "orders-b-partition-0", "orders-b-partition-1", "others", "__orders-c"];
        let names = |names: &[&str]| {
            json!(names.iter().map(|name| Topic::of(name).to_string()).collect::<Vec<_>>()).to_string()
        };
        let (url, seen) = server(vec![
            ("/gone/", 404, String::new()),
            ("/orders-a/stats", 200, stats(2, 0)),
            ("/orders-b/partitioned-stats", 200, stats(3, 2)),
            ("/public/default/partitioned", 200, names(&["orders-b"])),
            ("/public/default", 200, names(&all)),
        ])
        .await;
        let reading = first_read(&asked_for(&url, &json!({ "topicsPattern": pattern }))).await;
        assert_eq!(backlog_or_reason(&reading), expected);
        let mut seen: Vec<String> = seen.lock().unwrap().clone();
        seen.retain(|request| request.contains("stats"));
        seen.sort();
        let topic = |request: &&str| format!("/admin/v2/persistent/public/default/{request} ");
        let mut requests: Vec<String> = requests.iter().map(topic).collect();
        requests.sort();
        assert_eq!(seen, requests);
    }

    #[tokio::test]
    async fn deletes_the_subscription_of_each_topic() {
        let (url, seen) = server(vec![
            ("DELETE", 204, String::new()),
            ("/a/stats", 200, stats(0, 0)),
            ("/b/partitioned-stats", 200, stats(0, 1)),
        ])
        .await;
        let asked = asked_for(&url, &json!({ "topics": ["a", "missing", "b"] }));
        local().session(&asked, &Access::default()).delete_subscription().await.unwrap();
        let mut seen: Vec<String> = seen.lock().unwrap().clone();
        seen.retain(|request| request.contains("/subscription/"));
        let deleted = ["a", "b-partition-0"]
            .map(|topic| format!("/admin/v2/persistent/public/default/{topic}/subscription/s "));
        assert_eq!(seen, deleted);
    }

    #[rstest]
    #[case::deleted([204, 204], Ok(()))]
    #[case::absent_there([204, 404], Ok(()))]
    #[case::in_use_there([404, 412], Err("SubscriptionInUse"))]
    #[case::failed_there([404, 500], Err("AdminFailed"))]
    #[case::forbidden([403, 403], Err("AdminRefused"))]
    #[tokio::test]
    async fn deletes_the_subscription_of_each_partition(
        #[case] codes: [u16; 2],
        #[case] expected: Result<(), &str>,
    ) {
        // A broker leaves out partitions that it cannot read.
        let stats = r#"{"subscriptions":{},"metadata":{"partitions":2}}"#;
        let (url, _) = server(vec![
            ("DELETE /admin/v2/persistent/public/default/t-partition-0/", codes[0], String::new()),
            ("DELETE /admin/v2/persistent/public/default/t-partition-1/", codes[1], String::new()),
            ("/partitioned-stats", 200, stats.to_owned()),
        ])
        .await;
        let deletion = local().session(&asked(&url), &Access::default()).delete_subscription().await;
        assert_eq!(deletion.map_err(|unknown| unknown.reason), expected);
    }

    #[rstest]
    #[case::deleted(204, 200, Ok(()))]
    #[case::in_use(412, 200, Err("SubscriptionInUse"))]
    #[case::no_topic(500, 404, Ok(()))]
    #[case::unknown(204, 503, Err("AdminFailed"))]
    #[tokio::test]
    async fn deletes_the_subscription_of_a_topic_without_partitions(
        #[case] code: u16,
        #[case] stats: u16,
        #[case] expected: Result<(), &str>,
    ) {
        let body = r#"{"subscriptions":{"s":{}},"reason":""}"#.to_owned();
        let (url, _) = server(vec![("DELETE", code, String::new()), ("/stats", stats, body)]).await;
        let deletion = local().session(&asked(&url), &Access::default()).delete_subscription().await;
        assert_eq!(deletion.map_err(|unknown| unknown.reason), expected);
    }

    #[tokio::test]
    async fn detects_partitions_and_then_requests_them_first() {
        let body = r#"{"subscriptions":{"s":{"msgBacklog":9}},"metadata":{"partitions":2}}"#;
        let (url, seen) = server(vec![("/partitioned-stats", 200, body.to_owned())]).await;
        let reading = first_read(&asked(&url)).await;
        assert_eq!(reading.partitions, Partitions::from([(Topic::of("t"), 2)]));
        assert_eq!(reading.figures.unwrap().backlog, 9);
        read(&asked(&url), &Access::default(), &reading.partitions).await.figures.unwrap();
        let seen: Vec<String> = seen.lock().unwrap().iter().map(|asked| asked.trim().to_owned()).collect();
        let (whole, parts) =
            (format!("{TOPIC}/stats"), format!("{TOPIC}/partitioned-stats?perPartition=false"));
        assert_eq!(seen, [whole, parts.clone(), parts]);
    }

    #[tokio::test]
    async fn does_not_send_a_token_to_another_host() {
        let body = r#"{"subscriptions":{"s":{}}}"#;
        let (there, seen) = server(vec![("/stats", 200, body.to_owned())]).await;
        // The other host is another name of this machine.
        let elsewhere = there.replace("127.0.0.1", "localhost");
        for (target, token) in [(there.clone(), "Bearer secret"), (elsewhere, "")] {
            let (here, _) = server(vec![("/stats", 307, format!("{target}{TOPIC}/stats"))]).await;
            read(&asked(&here), &with_token(), &Partitions::new()).await.figures.unwrap();
            let last = seen.lock().unwrap().pop().unwrap();
            assert_eq!(last, format!("{TOPIC}/stats {token}"));
        }
    }

    #[tokio::test]
    async fn limits_the_answer_and_reports_an_unreachable_host() {
        let (url, _) = server(vec![("/stats", 200, "x".repeat(LONGEST + 1))]).await;
        assert_eq!(backlog_or_reason(&first_read(&asked(&url)).await), Err("AdminFailed"));
        let silent = first_read(&asked("http://127.0.0.1:9")).await;
        assert_eq!(backlog_or_reason(&silent), Err("AdminUnreachable"));
    }

    #[tokio::test]
    async fn failures_to_connect_look_alike() {
        // A server of another protocol, which answers and closes.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut connection, _)) = listener.accept().await {
                let _ = connection.write_all(b"SSH-2.0-server\r\n").await;
            }
        });
        for host in ["127.0.0.1:9", other.as_str()] {
            let url = format!("http://{host}");
            let unknown = first_read(&asked(&url)).await.figures.unwrap_err();
            assert_eq!((unknown.reason, unknown.message), (UNREACHABLE, format!("{url}: {NO_ANSWER}.")));
        }
    }

    #[tokio::test]
    async fn sends_nothing_to_its_own_machine() {
        let (url, seen) = server(vec![("/stats", 200, r#"{"subscriptions":{"s":{}}}"#.to_owned())]).await;
        let admin = Admin::new(Reach::Remote);
        for url in [url.clone(), url.replace("127.0.0.1", "localhost")] {
            let access = Access::default();
            let read = admin.session(&asked(&url), &access).read(&Partitions::new()).await;
            let unknown = read.map(drop).unwrap_err();
            assert_eq!((unknown.reason, unknown.message), ("AdminFailed", format!("{url}: {Refused}.")));
        }
        assert_eq!(*seen.lock().unwrap(), [""; 0]);
    }

    #[tokio::test]
    async fn trusts_the_given_ca_or_the_public_ones() {
        let admin = local();
        assert!(admin.encrypted(&TlsFiles::default()).is_ok(), "the image has no CAs");
        let error = |pem: &[u8]| {
            let files = TlsFiles { authorities: Some(pem.to_vec()), ..TlsFiles::default() };
            admin.encrypted(&files).err().unwrap().to_string()
        };
        assert!(error(b"no certificate").ends_with("cannot be used: it has no certificate"));
        // A message must not quote a key that is on one line.
        assert!(error(br"-----BEGIN KEY-----\nsecret").ends_with("cannot be used: it is not valid PEM"));
        let key = Sensitive::from(r"-----BEGIN KEY-----\nsecret");
        let files = TlsFiles { identity: Some([key.clone(), key]), ..TlsFiles::default() };
        let error = admin.encrypted(&files).err().unwrap().to_string();
        assert_eq!(error, "auth.tlsSecret has no certificate in tls.crt with its key in tls.key");
    }
}
