//! The files of a client: a token, or a certificate with its key, and a CA. They are read for each connection,
//! so a renewed file needs no restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::exit::Exit;
use crate::issuer::Issuer;
use crate::problem::{Code, Problem};

/// The paths of the files.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Where the token comes from.
    pub token: Option<TokenSource>,
    /// A file with CA certificates in PEM, which replace the public CAs.
    pub ca: Option<PathBuf>,
    /// The files of the client's certificate, with its chain, and of its key, in PEM.
    pub client_certificate: Option<[PathBuf; 2]>,
}

/// Where a token comes from.
#[derive(Clone, Debug)]
pub enum TokenSource {
    /// A file that has only the token.
    File(PathBuf),
    /// An OAuth2 issuer.
    Issuer(Arc<Issuer>),
}

impl Files {
    /// The token, if one is set.
    pub async fn token(&self) -> Result<Option<String>, Problem> {
        match &self.token {
            None => Ok(None),
            Some(TokenSource::File(file)) => read_secret(file, "token").map(Some),
            Some(TokenSource::Issuer(issuer)) => issuer.token(self).await.map(Some),
        }
    }

    /// Drops a token that a broker has rejected, or that has expired for it.
    pub async fn drop_token(&self, rejected: Option<&str>) {
        if let (Some(TokenSource::Issuer(issuer)), Some(rejected)) = (&self.token, rejected) {
            issuer.drop_rejected(rejected).await;
        }
    }

    /// Pulsar's name of the authentication method; None without authentication.
    pub fn method(&self) -> Option<&'static str> {
        match (&self.token, &self.client_certificate) {
            (Some(_), _) => Some("token"),
            // The broker takes the role from the certificate.
            (None, Some(_)) => Some("tls"),
            (None, None) => None,
        }
    }

    /// Whether other contents of the files may end a permanent failure. A Secret may be renewed.
    pub fn may_end(&self, problem: &Problem) -> bool {
        match problem.end {
            Some(Exit::File) => true,
            Some(Exit::Unauthorized) => self.method().is_some(),
            _ => false,
        }
    }

    /// The TLS connector for brokers.
    pub fn tls(&self) -> Result<TlsConnector, Problem> {
        let config = self.trust(self.ca.is_none())?;
        let config = match self.client_certificate()? {
            Some((chain, key)) => config.with_client_auth_cert(chain, key).map_err(|error| {
                let sentence = format!("the client's certificate and key do not fit: {error}");
                Problem::last(Exit::File, Code::TlsFailed, sentence)
            })?,
            None => config.with_no_client_auth(),
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// The TLS configuration for an OAuth2 issuer, which may have a certificate of a public CA or of the broker's.
    pub fn issuer_tls(&self) -> Result<ClientConfig, Problem> {
        Ok(self.trust(true)?.with_no_client_auth())
    }

    /// A configuration that trusts the CA file, and perhaps the public CAs.
    fn trust(&self, public: bool) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Problem> {
        let mut roots = RootCertStore::empty();
        if public {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        if let Some(file) = &self.ca {
            for certificate in certificates(file, "CA")? {
                roots.add(certificate).map_err(|_| lacks(file, "certificate"))?;
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| Problem::last(Exit::File, Code::TlsFailed, error.to_string()))?;
        Ok(config.with_root_certificates(roots))
    }

    /// The client's certificate chain and key, if they are set.
    fn client_certificate(
        &self,
    ) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, Problem> {
        let Some([certificate, key]) = &self.client_certificate else { return Ok(None) };
        let chain = certificates(certificate, "certificate")?;
        let pem = read(key, Code::TlsFailed, "key")?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| lacks(key, "key"))?;
        Ok(Some((chain, key)))
    }
}

/// The secret of a file that has nothing else.
pub fn read_secret(file: &Path, what: &str) -> Result<String, Problem> {
    let text = read(file, Code::Unauthorized, what)?;
    let secret = String::from_utf8_lossy(&text).trim().to_owned();
    if secret.is_empty() || secret.chars().any(char::is_whitespace) {
        let sentence = format!("{} does not contain a {what}", file.display());
        return Err(Problem::last(Exit::File, Code::Unauthorized, sentence));
    }
    Ok(secret)
}

/// The certificates of a PEM file, at least one.
fn certificates(file: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let pem = read(file, Code::TlsFailed, what)?;
    let found: Option<Vec<_>> = CertificateDer::pem_slice_iter(&pem).map(Result::ok).collect();
    found.filter(|found| !found.is_empty()).ok_or_else(|| lacks(file, "certificate"))
}

fn lacks(file: &Path, what: &str) -> Problem {
    Problem::last(Exit::File, Code::TlsFailed, format!("{} contains no {what} in PEM", file.display()))
}

fn read(file: &Path, code: Code, what: &str) -> Result<Vec<u8>, Problem> {
    fs::read(file).map_err(|error| {
        Problem::last(Exit::File, code, format!("cannot read the {what} file {}: {error}", file.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> PathBuf {
        let file = std::env::temp_dir().join(format!("quintet-security-{}-{name}", std::process::id()));
        fs::write(&file, text).unwrap();
        file
    }

    #[test]
    fn a_secret_may_end_with_a_newline() {
        let path = file("token", "a.b.c\n");
        let token = || read_secret(&path, "token");
        assert_eq!(token().unwrap(), "a.b.c");
        fs::write(&path, "renewed").unwrap();
        assert_eq!(token().unwrap(), "renewed");
        fs::write(&path, " \n").unwrap();
        assert!(token().unwrap_err().sentence.contains("does not contain a token"));
        fs::remove_file(&path).unwrap();
        let problem = token().unwrap_err();
        assert!(problem.end == Some(Exit::File) && problem.sentence.contains("cannot read"), "{problem}");
    }

    #[test]
    fn a_renewed_file_ends_failures_of_files() {
        let with_token = Files { token: Some(TokenSource::File("t".into())), ..Files::default() };
        let problem = |exit| Problem::last(exit, Code::Unauthorized, "no");
        for (exit, with, without) in
            [(Exit::File, true, true), (Exit::Unauthorized, true, false), (Exit::Setting, false, false)]
        {
            let problem = problem(exit);
            assert_eq!((with_token.may_end(&problem), Files::default().may_end(&problem)), (with, without));
        }
    }

    #[test]
    fn a_ca_file_must_hold_a_certificate() {
        let path = file("ca", "no certificate");
        let files = Files { ca: Some(path.clone()), ..Files::default() };
        let problem = files.tls().err().unwrap();
        assert!(
            problem.end == Some(Exit::File) && problem.sentence.contains("contains no certificate in PEM"),
            "{problem}"
        );
        fs::remove_file(&path).unwrap();
        assert!(Files::default().tls().is_ok());
    }
}
