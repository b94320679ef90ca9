//! OAuth2 client credentials (RFC 6749, section 4.4): the request for a token, and its answer. The callers send
//! the request. Of the parameters in the body, `audience` is not in the RFC; Pulsar's clients and several issuers
//! have it.

use std::time::Duration;

use http::{Method, Request, StatusCode, header};
use serde::Deserialize;
use serde_json::Value;

/// How long a token without `expires_in` is used.
const DEFAULT_LIFETIME: Duration = Duration::from_mins(5);

/// The longest use of a token.
const LONGEST_LIFETIME: Duration = Duration::from_hours(24);

/// The longest error code that is reported.
const LONGEST_ERROR: usize = 64;

/// A client of an issuer. Its secret is not here, because a file or a Kubernetes Secret has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Client {
    /// The address of the issuer's token endpoint.
    pub token_url: String,
    /// The client's ID.
    pub client_id: String,
    /// The audience of the token, if the issuer needs one.
    pub audience: Option<String>,
    /// The scopes of the token, separated by blanks.
    pub scope: Option<String>,
}

/// A token, and how long it is used: nine tenths of its lifetime.
#[derive(Clone)]
pub struct Token {
    /// The token, a secret. So this type has no `Debug`.
    pub value: String,
    /// The time for which a client uses it.
    pub lifetime: Duration,
}

/// Why an issuer gave no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The issuer rejects the client or its request.
    #[error("the issuer rejects the client ({0})")]
    Rejected(String),
    /// The answer is not one of an issuer.
    #[error("the answer is not an issuer's ({0})")]
    Unusable(StatusCode),
}

impl Client {
    /// The request for a token. It authenticates the client in the body, as Pulsar's clients do.
    pub fn request(&self, secret: &str) -> http::Result<Request<String>> {
        let mut body = form_urlencoded::Serializer::new(String::new());
        body.append_pair("grant_type", "client_credentials");
        body.append_pair("client_id", &self.client_id).append_pair("client_secret", secret);
        let more = [("audience", &self.audience), ("scope", &self.scope)];
        body.extend_pairs(more.iter().filter_map(|(name, value)| Some((name, value.as_ref()?))));
        Request::builder()
            .method(Method::POST)
            .uri(&self.token_url)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::ACCEPT, "application/json")
            .body(body.finish())
    }
}

impl Token {
    /// The token in an issuer's answer. Of an error it keeps only the error's code, because a description may quote
    /// the request.
    pub fn read(status: StatusCode, body: &[u8]) -> Result<Self, Refusal> {
        #[derive(Deserialize)]
        struct Answer {
            access_token: String,
            /// A number, or at some issuers a text.
            expires_in: Option<Value>,
        }
        #[derive(Deserialize)]
        struct Failure {
            error: String,
        }
        let is_passing = [StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT].contains(&status);
        if status.is_client_error()
            && !is_passing
            && let Ok(Failure { error }) = serde_json::from_slice(body)
            && error.len() <= LONGEST_ERROR
            && error.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_')
        {
            return Err(Refusal::Rejected(error));
        }
        let answer = serde_json::from_slice(body).ok().filter(|_| status == StatusCode::OK);
        let Answer { access_token, expires_in } = answer.ok_or(Refusal::Unusable(status))?;
        let seconds = expires_in.and_then(|value| value.as_u64().or_else(|| value.as_str()?.parse().ok()));
        let lifetime = seconds.map_or(DEFAULT_LIFETIME, Duration::from_secs).min(LONGEST_LIFETIME) * 9 / 10;
        Ok(Self { value: access_token, lifetime })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn requests_a_token_with_the_secret_in_the_body() {
        let client = Client {
            token_url: "https://issuer/token".to_owned(),
            client_id: "quintet".to_owned(),
            audience: Some("urn:pulsar".to_owned()),
            scope: None,
        };
        let request = client.request("a&b").unwrap();
        assert_eq!(request.uri().to_string(), "https://issuer/token");
        let body =
            "grant_type=client_credentials&client_id=quintet&client_secret=a%26b&audience=urn%3Apulsar";
        assert_eq!(request.body(), body);
        assert!(Client { token_url: "not an address".to_owned(), ..client }.request("s").is_err());
    }

    #[rstest]
    #[case(200, r#"{"access_token":"t","expires_in":100,"token_type":"bearer"}"#, Ok(90))]
    #[case::text(200, r#"{"access_token":"t","expires_in":"100"}"#, Ok(90))]
    #[case::endless(200, r#"{"access_token":"t","expires_in":9223372036854775807}"#, Ok(77_760))]
    #[case::limited(429, r#"{"error":"too_many_requests"}"#, Err("not an issuer's (429 Too Many Requests)"))]
    #[case::no_lifetime(200, r#"{"access_token":"t"}"#, Ok(270))]
    #[case(
        401,
        r#"{"error":"invalid_client","error_description":"no"}"#,
        Err("rejects the client (invalid_client)")
    )]
    #[case::quoted(400, r#"{"error":"s3cret is wrong"}"#, Err("not an issuer's (400 Bad Request)"))]
    #[case::no_token(200, "{}", Err("not an issuer's (200 OK)"))]
    #[case::broken(502, "<html>", Err("not an issuer's (502 Bad Gateway)"))]
    fn reads_a_token_or_a_reason(
        #[case] status: u16,
        #[case] body: &str,
        #[case] expected: Result<u64, &str>,
    ) {
        let found = Token::read(StatusCode::from_u16(status).unwrap(), body.as_bytes());
        match (found, expected) {
            (Ok(token), Ok(seconds)) => {
                assert_eq!((token.value.as_str(), token.lifetime), ("t", Duration::from_secs(seconds)));
            }
            (Err(refusal), Err(words)) => assert!(refusal.to_string().contains(words), "{refusal}"),
            (found, expected) => panic!("{:?}, not {expected:?}", found.err()),
        }
    }
}
