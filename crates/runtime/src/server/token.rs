//! The bearer token in a file that is replaced while the process runs, such as a ServiceAccount's.
//!
//! kube also rereads such a file, but by the wall clock: after the clock was set back, it keeps an old token.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderValue, Request, Response, StatusCode, header};
use kube::client::{AuthError, Body};
use tokio::time::Instant;

use crate::lock;

/// The maximum age of the token in memory. The kubelet replaces a token long before it expires.
const AGE: Duration = Duration::from_mins(1);
/// The maximum age after the API server rejected the token.
const AGE_REFUSED: Duration = Duration::from_secs(1);

/// A token file. Clones are cheap and share their state.
#[derive(Clone)]
pub struct TokenFile {
    path: Arc<Path>,
    token: Arc<Mutex<Token>>,
}

struct Token {
    header: HeaderValue,
    read: Instant,
    /// Whether the API server has rejected the token.
    refused: bool,
}

impl TokenFile {
    /// Reads the file for the first time.
    pub fn new(path: &Path) -> Result<Self, AuthError> {
        let header = read(path)?;
        let token = Token { header, read: Instant::now(), refused: false };
        Ok(Self { path: path.into(), token: Arc::new(Mutex::new(token)) })
    }

    /// The header to send. If the file is missing or invalid, this is the header of the last token.
    fn header(&self) -> HeaderValue {
        let mut token = lock(&self.token);
        let age = if token.refused { AGE_REFUSED } else { AGE };
        if token.read.elapsed() >= age {
            let header = read(&self.path).unwrap_or_else(|_| token.header.clone());
            *token = Token { header, read: Instant::now(), refused: false };
        }
        token.header.clone()
    }

    /// Adds the token to a request.
    pub fn sign(&self, mut request: Request<Body>) -> Request<Body> {
        request.headers_mut().insert(header::AUTHORIZATION, self.header());
        request
    }

    /// Records whether the API server rejected a token.
    pub fn heed<B>(&self, answer: Response<B>) -> Response<B> {
        lock(&self.token).refused |= answer.status() == StatusCode::UNAUTHORIZED;
        answer
    }
}

fn read(path: &Path) -> Result<HeaderValue, AuthError> {
    let token =
        std::fs::read_to_string(path).map_err(|error| AuthError::ReadTokenFile(error, path.to_owned()))?;
    let mut header =
        HeaderValue::try_from(format!("Bearer {}", token.trim())).map_err(AuthError::InvalidBearerToken)?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use tower::ServiceExt as _;

    #[tokio::test(start_paused = true)]
    async fn rereads_the_token_each_minute_and_after_a_rejection() {
        let file = std::env::temp_dir().join(format!("quintet-token-{}", std::process::id()));
        std::fs::write(&file, "first\n").unwrap();
        // The server accepts only the newest token.
        let newest = Arc::new(Mutex::new("first"));
        let known = newest.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let sent = request.headers()[header::AUTHORIZATION].to_str().unwrap().to_owned();
            let code = if sent == format!("Bearer {}", known.lock().unwrap()) { 200 } else { 401 };
            std::future::ready(Ok::<_, Infallible>(Response::builder().status(code).body(sent).unwrap()))
        });
        let token = TokenFile::new(&file).unwrap();
        let ask = async || {
            let answer = service.clone().oneshot(token.sign(Request::new(Body::empty()))).await.unwrap();
            let answer = token.heed(answer);
            (answer.status().as_u16(), answer.into_body())
        };
        assert_eq!(ask().await, (200, "Bearer first".to_owned()));
        std::fs::write(&file, "second").unwrap();
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_eq!(ask().await.0, 200, "the token is still fresh");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(ask().await.1, "Bearer second");
        assert_eq!(ask().await.0, 401, "the server does not accept it yet");
        *newest.lock().unwrap() = "third";
        std::fs::write(&file, "third").unwrap();
        tokio::time::advance(AGE_REFUSED).await;
        assert_eq!(ask().await, (200, "Bearer third".to_owned()));
        std::fs::remove_file(&file).unwrap();
        tokio::time::advance(AGE).await;
        assert_eq!(ask().await, (200, "Bearer third".to_owned()), "keeps the last token if the file is gone");
        assert!(TokenFile::new(&file).is_err());
    }
}
