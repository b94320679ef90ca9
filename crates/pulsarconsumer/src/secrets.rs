//! Reads the Secrets of a PulsarConsumer with the token and the CA, if the manager may read Secrets.
//!
//! A value leaves this process only in a request to the `adminURL` of the same object.

use std::collections::BTreeMap;
use std::fmt;

use http::HeaderValue;
use k8s_openapi::ByteString;
use quintet_runtime::model::resource::Resource;
use quintet_runtime::server::client::brief;
use quintet_runtime::write::executor::Executor;
use serde::Deserialize;

use crate::admin::Access;
use crate::api::{PulsarConsumerSpec, SecretKey};
use crate::backlog::Unknown;
use crate::deployment::{AUTHORITIES, TOKEN, key_of};

/// Secrets.
const SECRETS: Resource =
    Resource { group: "", version: "v1", kind: "Secret", plural: "secrets", namespaced: true, custom: false };

/// A value that no log or message may contain.
#[derive(Clone, PartialEq, Eq)]
pub struct Sensitive(Vec<u8>);

impl fmt::Debug for Sensitive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(a secret)")
    }
}

#[cfg(test)]
impl From<&str> for Sensitive {
    fn from(value: &str) -> Self {
        Self(value.as_bytes().to_vec())
    }
}

impl Sensitive {
    /// The Authorization header with a token.
    pub fn bearer(&self) -> Result<HeaderValue, String> {
        let text = String::from_utf8_lossy(&self.0);
        let mut header = HeaderValue::from_str(&format!("Bearer {}", text.trim()))
            .map_err(|_| "the token in auth.tokenSecret has invalid characters".to_owned())?;
        header.set_sensitive(true);
        Ok(header)
    }
}

#[derive(Deserialize)]
struct Secret {
    #[serde(default)]
    data: BTreeMap<String, ByteString>,
}

/// Reads the token, and the CA for an `https://` address. Returns a reason if a value does
/// not exist or the manager may not read it.
pub async fn access(
    executor: &Executor,
    namespace: &str,
    spec: &PulsarConsumerSpec,
) -> Result<Access, Unknown> {
    let mut access = Access::default();
    if let Some(auth) = &spec.auth {
        let field = "auth.tokenSecret";
        access.token = Some(read(executor, namespace, &auth.token_secret, TOKEN.0, field).await?);
    }
    if let Some((field, secret)) = spec.admin_ca() {
        access.authorities = Some(read(executor, namespace, secret, AUTHORITIES.0, field).await?.0);
    }
    Ok(access)
}

async fn read(
    executor: &Executor,
    namespace: &str,
    secret: &SecretKey,
    volume: &str,
    field: &'static str,
) -> Result<Sensitive, Unknown> {
    let (name, key) = (&secret.name, key_of(secret, volume));
    let found = executor.reads.read::<Secret>(&SECRETS, namespace, name).await;
    let found = found.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 403 => {
            let remedy = "install the chart with pulsarConsumer.readSecrets=true.";
            let message = format!("The manager may not read Secret {name} ({field}): {remedy}");
            Unknown::new("SecretForbidden", message)
        }
        other => {
            Unknown::new("SecretUnknown", format!("Cannot read Secret {name} ({field}): {}", brief(&other)))
        }
    })?;
    let missing = |what: String| Unknown::new("SecretNotFound", what);
    let found = found.ok_or_else(|| missing(format!("Secret {name} ({field}) does not exist.")))?;
    let value = found.data.into_iter().find(|(one, _)| one == key).map(|(_, value)| Sensitive(value.0));
    value.ok_or_else(|| missing(format!("Secret {name} ({field}) has no key {key}.")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hides_the_value_in_debug_output() {
        let value = Sensitive(b"hunter2\n".to_vec());
        assert_eq!(format!("{value:?}"), "(a secret)");
        let header = value.bearer().unwrap();
        assert_eq!(header, "Bearer hunter2");
        assert!(!format!("{header:?}").contains("hunter2"));
        assert!(Sensitive(b"a\0b".to_vec()).bearer().is_err());
    }
}
