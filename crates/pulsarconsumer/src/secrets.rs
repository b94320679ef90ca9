//! Reads the Secrets of a PulsarConsumer with the credentials and the CA, if the manager may read Secrets.
//!
//! A value leaves this process only in a request to the `adminURL` or the OAuth2 issuer of the same object.

use std::collections::BTreeMap;
use std::fmt;

use http::HeaderValue;
use k8s_openapi::ByteString;
use quintet_runtime::model::resource::Resource;
use quintet_runtime::server::client::brief;
use quintet_runtime::write::executor::Executor;
use serde::Deserialize;

use crate::admin::{Access, Admin, Token};
use crate::api::PulsarConsumerSpec;
use crate::backlog::Unknown;
use crate::deployment::{AUTHORITIES, OAUTH2, TLS_KEYS, TOKEN};

/// Secrets.
const SECRETS: Resource = Resource::builtin("", "v1", "Secret", "secrets");

/// A value that no log or message may contain.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sensitive(ByteString);

impl fmt::Debug for Sensitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a secret)")
    }
}

impl From<&str> for Sensitive {
    fn from(value: &str) -> Self {
        Self(ByteString(value.as_bytes().to_vec()))
    }
}

impl Sensitive {
    /// The value, for Base64.
    pub fn bytes(&self) -> &ByteString {
        &self.0
    }

    /// The value as text, without a final newline.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.0).trim().to_owned()
    }

    /// The Authorization header with a token.
    pub fn bearer(&self) -> Result<HeaderValue, String> {
        let mut header = HeaderValue::from_str(&format!("Bearer {}", self.text()))
            .map_err(|_| "the token has invalid characters".to_owned())?;
        header.set_sensitive(true);
        Ok(header)
    }
}

#[derive(Deserialize)]
struct Secret {
    #[serde(default)]
    data: BTreeMap<String, ByteString>,
}

/// Reads the credentials, and for an `https://` address the client certificate and the CA. Returns a reason if a value does not exist, or the manager
/// may not read it, or the issuer gives no token.
pub async fn access(
    executor: &Executor,
    admin: &Admin,
    namespace: &str,
    spec: &PulsarConsumerSpec,
) -> Result<Access, Unknown> {
    let mut access = Access::default();
    if let Some(secret) = spec.admin_tls_secret() {
        let identity = read(executor, namespace, &secret.name, TLS_KEYS, "auth.tlsSecret").await?;
        access.tls.identity = Some(identity);
    }
    if let Some((field, secret)) = spec.admin_ca() {
        let keys = [AUTHORITIES.key_of(secret)];
        let [authorities] = read(executor, namespace, &secret.name, keys, field).await?;
        access.tls.authorities = Some(authorities.0.0);
    }
    if let Some(secret) = spec.token_secret() {
        let keys = [TOKEN.key_of(secret)];
        let [token] = read(executor, namespace, &secret.name, keys, "auth.tokenSecret").await?;
        access.token = Some(Token { value: token, issued: None });
    }
    if let Some(oauth2) = spec.oauth2() {
        let secret = &oauth2.client_secret;
        let (keys, field) = ([OAUTH2.key_of(secret)], "auth.oauth2.clientSecret");
        let [secret] = read(executor, namespace, &secret.name, keys, field).await?;
        access.token = Some(admin.token(oauth2, secret, access.tls.authorities.clone()).await?);
    }
    Ok(access)
}

/// Reads values of one version of a Secret.
async fn read<const N: usize>(
    executor: &Executor,
    namespace: &str,
    name: &str,
    keys: [&str; N],
    field: &'static str,
) -> Result<[Sensitive; N], Unknown> {
    let found = executor.reads.read::<Secret>(&SECRETS, namespace, name).await;
    let found = found.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 403 => {
            let remedy = "set the chart value pulsarConsumer.readSecrets to true, and add the Secret to pulsarConsumer.secretNames \
                          if that is not empty.";
            let message = format!("The manager may not read Secret {name} ({field}): {remedy}");
            Unknown::new(Unknown::SECRET_FORBIDDEN, message)
        }
        other => {
            Unknown::new("SecretUnknown", format!("Cannot read Secret {name} ({field}): {}", brief(&other)))
        }
    })?;
    let missing = |what: String| Unknown::new(Unknown::NO_SECRET, what);
    let found = found.ok_or_else(|| missing(format!("Secret {name} ({field}) does not exist.")))?;
    if let Some(key) = keys.iter().find(|key| !found.data.contains_key(**key)) {
        return Err(missing(format!("Secret {name} ({field}) has no key {key}.")));
    }
    Ok(keys.map(|key| Sensitive(found.data.get(key).cloned().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_the_value_in_debug_output() {
        let value = Sensitive::from("hunter2\n");
        assert_eq!(format!("{value:?}"), "(a secret)");
        let header = value.bearer().unwrap();
        assert_eq!(header, "Bearer hunter2");
        assert!(!format!("{header:?}").contains("hunter2"));
        assert!(Sensitive::from("a\0b").bearer().is_err());
    }
}
