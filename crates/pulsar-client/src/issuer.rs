//! Tokens of an OAuth2 issuer. One token serves all connections, until nine tenths of its lifetime are over or a
//! broker rejects it.

use std::error::Error;
use std::fmt;
use std::iter::successors;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Limited};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use quintet_oauth2::{Client, Refusal, Token};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::exit::Exit;
use crate::problem::{Code, Problem};
use crate::security::{Files, read_secret};

/// The time limit of a request.
const LIMIT: Duration = Duration::from_secs(10);

/// The size limit of an answer.
const LONGEST: usize = 64 << 10;

/// A client of an issuer, and its current token.
pub struct Issuer {
    client: Client,
    /// The file with the client's secret.
    secret: PathBuf,
    current: Mutex<Option<(Token, Instant)>>,
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Issuer {
    /// A client without a token. It requests one when it is needed.
    pub fn new(client: Client, secret: PathBuf) -> Self {
        Self { client, secret, current: Mutex::new(None) }
    }

    /// A valid token.
    pub async fn token(&self, files: &Files) -> Result<String, Problem> {
        let mut current = self.current.lock().await;
        if let Some((token, until)) = &*current
            && Instant::now() < *until
        {
            return Ok(token.value.clone());
        }
        let token = self.request(files).await?;
        let value = token.value.clone();
        let until = Instant::now() + token.lifetime;
        *current = Some((token, until));
        Ok(value)
    }

    /// Drops a token that a broker has rejected, unless there is a newer one.
    pub async fn drop_rejected(&self, rejected: &str) {
        let mut current = self.current.lock().await;
        current.take_if(|(token, _)| token.value == rejected);
    }

    async fn request(&self, files: &Files) -> Result<Token, Problem> {
        let cannot = |why: &str| format!("cannot get a token from {}: {why}", self.client.token_url);
        let failed = |why: &(dyn Error + 'static)| {
            let root = successors(Some(why), |error| (*error).source()).last().unwrap_or(why);
            Problem::passing(Code::Unreachable, cannot(&root.to_string()))
        };
        let secret = read_secret(&self.secret, "client secret")?;
        let request = self.client.request(&secret).map_err(|error| failed(&error))?;
        let tls = HttpsConnectorBuilder::new().with_tls_config(files.issuer_tls()?);
        let http =
            HttpClient::builder(TokioExecutor::new()).build(tls.https_or_http().enable_http1().build());
        let answered = timeout(LIMIT, async {
            let (head, body) = http.request(request).await.map_err(|error| failed(&error))?.into_parts();
            let body = Limited::new(body, LONGEST).collect().await.map_err(|error| failed(&*error))?;
            Ok((head.status, body.to_bytes()))
        });
        let (status, body) = answered.await.map_err(|elapsed| failed(&elapsed))??;
        Token::read(status, &body).map_err(|refusal| match refusal {
            Refusal::Rejected(_) => {
                Problem::last(Exit::Unauthorized, Code::Unauthorized, cannot(&refusal.to_string()))
            }
            Refusal::Unusable(_) => failed(&refusal),
        })
    }
}
