//! Pulsar's admin API, as far as a backlog needs it: one GET of a topic's statistics.
//!
//! Each call is bounded in time and in size, sends the token only where the object says, and turns every way to fail into
//! a reason that a person can act on. Brokers redirect to the one that serves the topic: that is followed for the same
//! question only, never from an encrypted address to a plain one, and a token goes along only within the same host name.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::Config;
use kube::client::ConfigExt as _;
use quintet_runtime::model::resource::escape;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;
use tower::util::BoxCloneSyncService;

use crate::backlog::{Figures, Reading, Unknown, figures};
use crate::secrets::Sensitive;
use crate::topic::Topic;

/// How long one look may take, redirects included.
const CALL: Duration = Duration::from_secs(10);
/// How long a connection attempt may take.
const CONNECT: Duration = Duration::from_secs(5);
/// The longest answer that is read: a topic with ten thousand consumers.
const LONGEST: usize = 4 * 1024 * 1024;
/// Answers that are read at the same time: whoever answers much must not fill the memory for everybody.
const READERS: usize = 2;
/// How many redirects are followed.
const REDIRECTS: usize = 3;

/// What is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The admin API's address.
    pub url: String,
    /// The topic.
    pub topic: Topic,
    /// The subscription.
    pub subscription: String,
}

/// How the admin API is talked to.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// The token.
    pub token: Option<Sensitive>,
    /// The certificates of the authorities that may have signed the server's, in PEM; none for those that the system
    /// trusts.
    pub authorities: Option<Vec<u8>>,
}

type Answer = http::Response<hyper::body::Incoming>;
type Connection = BoxCloneSyncService<Request<Empty<Bytes>>, Answer, Failure>;

/// A client of admin APIs. It keeps connections open between two looks.
pub struct Admin {
    /// For addresses without encryption.
    plain: Connection,
    /// By the authorities that it trusts.
    encrypted: Mutex<HashMap<Option<Vec<u8>>, Connection>>,
    readers: Semaphore,
}

impl Default for Admin {
    fn default() -> Self {
        let client: Client<_, Empty<Bytes>> =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(connector());
        Self {
            plain: BoxCloneSyncService::new(client.map_err(Failure::from)),
            encrypted: Mutex::default(),
            readers: Semaphore::new(READERS),
        }
    }
}

fn connector() -> HttpConnector {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    http
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{}", root(.0))]
    Connection(#[from] hyper_util::client::legacy::Error),
    #[error("the authorities in tls.caSecret cannot be used: {0}")]
    Authorities(String),
    #[error(
        "this system has no authorities that could have signed its certificate: name them in tls.caSecret"
    )]
    NoAuthorities,
    #[error("{0}")]
    Answer(String),
}

/// The words of the innermost error: those around it say only that there is one.
fn root(error: &hyper_util::client::legacy::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

impl Admin {
    /// Reads the figures of a subscription. `partitioned` is what was known of the topic so far, so that the likelier
    /// question is asked first.
    pub async fn read(&self, asked: &Asked, access: &Access, partitioned: Option<bool>) -> Reading {
        match tokio::time::timeout(CALL, self.look(asked, access, partitioned.unwrap_or_default())).await {
            Ok(reading) => reading,
            Err(_elapsed) => {
                let message = format!("{} did not answer within {} s.", asked.url, CALL.as_secs());
                Reading { figures: Err(Unknown { reason: "AdminUnreachable", message }), partitioned: None }
            }
        }
    }

    async fn look(&self, asked: &Asked, access: &Access, partitioned: bool) -> Reading {
        for partitioned in [partitioned, !partitioned] {
            match self.stats(asked, access, partitioned).await {
                Ok(Some(figures)) => {
                    let figures = figures.ok_or_else(|| Unknown {
                        reason: Unknown::NO_SUBSCRIPTION,
                        message: format!(
                            "The topic {} has no subscription {}: it is made when the first consumer connects.",
                            asked.topic, asked.subscription
                        ),
                    });
                    return Reading { figures, partitioned: Some(partitioned) };
                }
                Ok(None) => {}
                Err(unknown) => return Reading { figures: Err(unknown), partitioned: None },
            }
        }
        let message = format!(
            "There is no topic {}: it is made when the first client uses it, if the broker allows it.",
            asked.topic
        );
        Reading { figures: Err(Unknown { reason: Unknown::NO_TOPIC, message }), partitioned: None }
    }

    /// The figures by the statistics of a topic with partitions or without. None where there is no such topic, Some(None)
    /// where it has no such subscription.
    async fn stats(
        &self,
        asked: &Asked,
        access: &Access,
        partitioned: bool,
    ) -> Result<Option<Option<Figures>>, Unknown> {
        let unknown = |reason, message| Unknown { reason, message };
        let what = if partitioned { "partitioned-stats?perPartition=false" } else { "stats" };
        let topic = asked.topic.segments().map(escape).join("/");
        let url = format!("{}/admin/v2/{topic}/{what}", asked.url.trim_end_matches('/'));
        let (status, body) = match self.get(&url, access).await {
            Ok(answer) => answer,
            Err(failure) => {
                let reason = if matches!(failure, Failure::Connection(_)) {
                    "AdminUnreachable"
                } else {
                    "AdminFailed"
                };
                return Err(unknown(reason, format!("{}: {failure}.", asked.url)));
            }
        };
        match status {
            StatusCode::OK => figures(&body, &asked.subscription).map(Some).map_err(|_| {
                unknown(
                    "AdminFailed",
                    format!("{} answers something else than a topic's statistics.", asked.url),
                )
            }),
            StatusCode::NOT_FOUND => Ok(None),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(unknown(
                "AdminRefused",
                match access.token {
                    Some(_) => format!("{} refuses the token of auth.tokenSecret ({status}).", asked.url),
                    None => format!("{} wants a token ({status}): set auth.tokenSecret.", asked.url),
                },
            )),
            other => Err(unknown("AdminFailed", format!("{} answers {other}.", asked.url))),
        }
    }

    async fn get(&self, url: &str, access: &Access) -> Result<(StatusCode, Bytes), Failure> {
        let first: Uri = url.parse().map_err(|_| Failure::Answer("this is no address".to_owned()))?;
        let mut uri = first.clone();
        for _ in 0..=REDIRECTS {
            let mut request = Request::get(uri.clone()).header(header::ACCEPT, "application/json");
            if let Some(token) = access.token.as_ref().filter(|_| is_within(&first, &uri)) {
                request = request.header(header::AUTHORIZATION, token.bearer().map_err(Failure::Answer)?);
            }
            let request = request.body(Empty::new()).map_err(|error| Failure::Answer(error.to_string()))?;
            let connection = if uri.scheme_str() == Some("https") {
                self.encrypted(access.authorities.as_deref())?
            } else {
                self.plain.clone()
            };
            let answer = connection.oneshot(request).await?;
            let status = answer.status();
            if matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::FOUND) {
                uri = redirected(&uri, answer.headers().get(header::LOCATION))?;
                continue;
            }
            if status != StatusCode::OK {
                return Ok((status, Bytes::new()));
            }
            let Ok(_reader) = self.readers.acquire().await else { return Ok((status, Bytes::new())) };
            let body = Limited::new(answer.into_body(), LONGEST).collect().await;
            let body = body.map_err(|_| Failure::Answer("the answer was too long or cut off".to_owned()))?;
            return Ok((status, body.to_bytes()));
        }
        Err(Failure::Answer(format!("it redirects more than {REDIRECTS} times")))
    }

    fn encrypted(&self, authorities: Option<&[u8]>) -> Result<Connection, Failure> {
        let trusted = authorities.map(<[u8]>::to_vec);
        let connections = || self.encrypted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = connections().get(&trusted) {
            return Ok(connection.clone());
        }
        let broken = |error: &dyn std::fmt::Display| Failure::Authorities(error.to_string());
        let mut config = Config::new(Uri::from_static("https://localhost"));
        if let Some(pem) = authorities {
            let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            let certificates = certificates.map_err(|error| broken(&error))?;
            if certificates.is_empty() {
                return Err(broken(&"there is no certificate in it"));
            }
            config.root_cert = Some(certificates.iter().map(|one| one.to_vec()).collect());
        }
        let https = config.rustls_https_connector_with_connector(connector());
        let https = https.map_err(|error| match authorities {
            Some(_) => broken(&error),
            None => Failure::NoAuthorities,
        })?;
        let client: Client<_, Empty<Bytes>> =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(https);
        let connection = BoxCloneSyncService::new(client.map_err(Failure::from));
        // Authorities change seldom; those that nobody has any more must not stay for ever.
        let mut connections = connections();
        if connections.len() > 64 {
            connections.clear();
        }
        connections.insert(trusted, connection.clone());
        Ok(connection)
    }
}

/// Whether a redirect has stayed at the host that was named, or gone to one within its name, as that of a StatefulSet's pod
/// is within its Service's.
fn is_within(named: &Uri, uri: &Uri) -> bool {
    let (Some(named), Some(host)) = (named.host(), uri.host()) else { return false };
    host == named || host.strip_suffix(named).is_some_and(|pod| pod.ends_with('.'))
}

/// Where an answer sends us: another server, and the same question.
fn redirected(from: &Uri, to: Option<&header::HeaderValue>) -> Result<Uri, Failure> {
    let refuse = |why: &str| Failure::Answer(format!("it redirects {why}"));
    let to = to.and_then(|to| to.to_str().ok()).and_then(|to| to.parse::<Uri>().ok());
    let to = to.ok_or_else(|| refuse("to no address"))?;
    if to.path_and_query() != from.path_and_query() {
        return Err(refuse("to another question"));
    }
    match (from.scheme_str(), to.scheme_str()) {
        (_, Some("https")) | (Some("http"), Some("http")) => Ok(to),
        (_, Some(_)) => Err(refuse("to an address that is not encrypted")),
        (_, None) => Err(refuse("to no address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("http://a/x?y", "http://b:1/x?y", Some("http://b:1/x?y"))]
    #[case("http://a/x", "https://b/x", Some("https://b/x"))]
    #[case::out_of_encryption("https://a/x", "http://b/x", None)]
    #[case::another_question("http://a/x", "http://b/y", None)]
    #[case::another_query("http://a/x?y", "http://b/x?z", None)]
    #[case::in_a_circle("https://a:1/x", "/x", None)]
    #[case("http://a/x", "", None)]
    fn redirects_are_followed_for_the_same_question(
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
    #[case("http://broker/x", "http://evilbroker/x", false)]
    #[case("http://broker/x", "http://other/x", false)]
    fn tokens_stay_within_a_host_name(
        #[case] named: &'static str,
        #[case] to: &'static str,
        #[case] within: bool,
    ) {
        assert_eq!(is_within(&Uri::from_static(named), &Uri::from_static(to)), within);
    }

    /// A server of one answer for each path, and what it was asked with which token.
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
            let answer = answers.iter().find(|(part, ..)| uri.contains(part)).cloned();
            async move {
                let (_, code, body) = answer.unwrap_or(("", 404, String::new()));
                let answer = http::Response::builder().status(code);
                let answer = if code == 307 { answer.header(header::LOCATION, body.clone()) } else { answer };
                answer.body(axum::body::Body::from(body)).unwrap()
            }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        (url, asked)
    }

    const TOPIC: &str = "/admin/v2/persistent/public/default/t";

    fn asked(url: &str) -> Asked {
        Asked { url: url.to_owned(), topic: Topic::of("t"), subscription: "s".to_owned() }
    }

    fn with_token() -> Access {
        Access { token: Some(Sensitive::from("secret")), authorities: None }
    }

    #[rstest]
    #[case::known(200, r#"{"subscriptions":{"s":{"msgBacklog":3}}}"#, Ok(3))]
    #[case::no_subscription(200, r#"{"subscriptions":{}}"#, Err("SubscriptionNotFound"))]
    #[case::no_topic(404, "", Err("TopicNotFound"))]
    #[case::refused(401, "", Err("AdminRefused"))]
    #[case::forbidden(403, "", Err("AdminRefused"))]
    #[case::broken(500, "", Err("AdminFailed"))]
    #[case::no_json(200, "<html>", Err("AdminFailed"))]
    #[case::moved_for_good(301, "", Err("AdminFailed"))]
    #[tokio::test]
    async fn every_answer_is_a_figure_or_a_reason(
        #[case] code: u16,
        #[case] body: &str,
        #[case] expected: Result<i64, &'static str>,
    ) {
        let (url, _) = server(vec![("/stats", code, body.to_owned())]).await;
        let reading = Admin::default().read(&asked(&url), &Access::default(), None).await;
        let found = reading.figures.map(|figures| figures.backlog).map_err(|unknown| unknown.reason);
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn partitions_are_found_out_and_asked_for_first_from_then_on() {
        let body = r#"{"subscriptions":{"s":{"msgBacklog":9}}}"#;
        let (url, seen) = server(vec![("/partitioned-stats", 200, body.to_owned())]).await;
        let admin = Admin::default();
        let reading = admin.read(&asked(&url), &Access::default(), None).await;
        assert_eq!((reading.partitioned, reading.figures.unwrap().backlog), (Some(true), 9));
        admin.read(&asked(&url), &Access::default(), reading.partitioned).await.figures.unwrap();
        let seen: Vec<String> = seen.lock().unwrap().iter().map(|asked| asked.trim().to_owned()).collect();
        let (whole, parts) =
            (format!("{TOPIC}/stats"), format!("{TOPIC}/partitioned-stats?perPartition=false"));
        assert_eq!(seen, [whole, parts.clone(), parts]);
    }

    #[tokio::test]
    async fn a_token_is_sent_where_it_belongs_and_no_further() {
        let body = r#"{"subscriptions":{"s":{}}}"#;
        let (there, seen) = server(vec![("/stats", 200, body.to_owned())]).await;
        // The other host is this machine by another name.
        let elsewhere = there.replace("127.0.0.1", "localhost");
        for (target, token) in [(there.clone(), "Bearer secret"), (elsewhere, "")] {
            let (here, _) = server(vec![("/stats", 307, format!("{target}{TOPIC}/stats"))]).await;
            Admin::default().read(&asked(&here), &with_token(), None).await.figures.unwrap();
            let last = seen.lock().unwrap().pop().unwrap();
            assert_eq!(last, format!("{TOPIC}/stats {token}"));
        }
    }

    #[tokio::test]
    async fn an_answer_without_end_is_cut_off_and_nobody_is_no_figure() {
        let (url, _) = server(vec![("/stats", 200, "x".repeat(LONGEST + 1))]).await;
        let reading = Admin::default().read(&asked(&url), &Access::default(), None).await;
        assert_eq!(reading.figures.unwrap_err().reason, "AdminFailed");
        let reading = Admin::default().read(&asked("http://127.0.0.1:9"), &Access::default(), None).await;
        assert_eq!(reading.figures.unwrap_err().reason, "AdminUnreachable");
    }
}
