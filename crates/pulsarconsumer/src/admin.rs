//! Pulsar's admin API, as far as a backlog needs it: one GET of a topic's statistics.
//!
//! Each call is bounded in time and in size, sends the token only where the object says, and turns every way to fail into
//! a reason that a person can act on. Brokers redirect to the one that serves the topic: that is followed, but never from
//! an encrypted address to a plain one.

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
use quintet_kit::resource::escape;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tower::ServiceExt as _;
use tower::util::BoxCloneSyncService;

use crate::backlog::{Reading, Stats, Unknown};
use crate::secrets::Sensitive;
use crate::topic::Topic;

/// How long one look may take, redirects included.
const CALL: Duration = Duration::from_secs(10);
/// How long a connection attempt may take.
const CONNECT: Duration = Duration::from_secs(5);
/// The longest answer that is read: a topic with tens of thousands of consumers.
const LONGEST: usize = 16 * 1024 * 1024;
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
#[derive(Default)]
pub struct Admin {
    /// By the authorities that it trusts.
    connections: Mutex<HashMap<Option<Vec<u8>>, Connection>>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{}", root(.0))]
    Connection(#[from] hyper_util::client::legacy::Error),
    #[error("the authorities in tls.caSecret cannot be used: {0}")]
    Authorities(String),
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
                Ok(Some(stats)) => {
                    let figures = stats.of(&asked.subscription).ok_or_else(|| Unknown {
                        reason: "SubscriptionNotFound",
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
        Reading { figures: Err(Unknown { reason: "TopicNotFound", message }), partitioned: None }
    }

    /// The statistics of a topic with partitions or without; None where there is no such topic.
    async fn stats(
        &self,
        asked: &Asked,
        access: &Access,
        partitioned: bool,
    ) -> Result<Option<Stats>, Unknown> {
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
            StatusCode::OK => serde_json::from_slice(&body).map(Some).map_err(|_| {
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

    async fn get(&self, url: &str, access: &Access) -> Result<(StatusCode, Vec<u8>), Failure> {
        let connection = self.connection(access.authorities.as_deref())?;
        let mut uri: Uri = url.parse().map_err(|_| Failure::Answer("this is no address".to_owned()))?;
        for _ in 0..=REDIRECTS {
            let mut request = Request::get(uri.clone()).header(header::ACCEPT, "application/json");
            if let Some(token) = &access.token {
                request = request.header(header::AUTHORIZATION, token.bearer().map_err(Failure::Answer)?);
            }
            let request = request.body(Empty::new()).map_err(|error| Failure::Answer(error.to_string()))?;
            let answer = connection.clone().oneshot(request).await?;
            let status = answer.status();
            if status.is_redirection() {
                uri = redirected(&uri, answer.headers().get(header::LOCATION))?;
                continue;
            }
            let body = Limited::new(answer.into_body(), LONGEST).collect().await;
            let body = body.map_err(|_| Failure::Answer("the answer was too long or cut off".to_owned()))?;
            return Ok((status, body.to_bytes().to_vec()));
        }
        Err(Failure::Answer(format!("it redirects more than {REDIRECTS} times")))
    }

    fn connection(&self, authorities: Option<&[u8]>) -> Result<Connection, Failure> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let trusted = authorities.map(<[u8]>::to_vec);
        if let Some(connection) = connections.get(&trusted) {
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
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_connect_timeout(Some(CONNECT));
        let https = config.rustls_https_connector_with_connector(http).map_err(|error| broken(&error))?;
        let client: Client<_, Empty<Bytes>> =
            Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build(https);
        let connection = BoxCloneSyncService::new(client.map_err(Failure::from));
        // Authorities change seldom; those that nobody has any more must not stay for ever.
        if connections.len() > 64 {
            connections.clear();
        }
        connections.insert(trusted, connection.clone());
        Ok(connection)
    }
}

/// Where an answer sends us.
fn redirected(from: &Uri, to: Option<&header::HeaderValue>) -> Result<Uri, Failure> {
    let refuse = |why: &str| Failure::Answer(format!("it redirects {why}"));
    let to = to.and_then(|to| to.to_str().ok()).and_then(|to| to.parse::<Uri>().ok());
    let to = to.ok_or_else(|| refuse("to no address"))?;
    match (from.scheme_str(), to.scheme_str()) {
        (_, Some("https")) | (Some("http"), Some("http")) => Ok(to),
        (_, Some(_)) => Err(refuse("to an address that is not encrypted")),
        (_, None) => {
            let mut parts = from.clone().into_parts();
            parts.path_and_query = to.path_and_query().cloned();
            Uri::from_parts(parts).map_err(|_| refuse("to no address"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("http://a/x", "http://b:1/y", Some("http://b:1/y"))]
    #[case("http://a/x", "https://b/y", Some("https://b/y"))]
    #[case("https://a/x", "http://b/y", None)]
    #[case("https://a:1/x", "/y?z", Some("https://a:1/y?z"))]
    #[case("http://a/x", "", None)]
    fn redirects_are_followed_but_not_out_of_encryption(
        #[case] from: &'static str,
        #[case] to: &str,
        #[case] expected: Option<&str>,
    ) {
        let to = header::HeaderValue::from_str(to).unwrap();
        let uri = redirected(&Uri::from_static(from), Some(&to)).ok();
        assert_eq!(uri.map(|uri| uri.to_string()).as_deref(), expected);
    }
}
