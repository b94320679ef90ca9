//! The files of a client: a token, or a certificate with its key, and a CA. They are read for each connection,
//! so a renewed file needs no restart.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::exit::Exit;
use crate::problem::{Code, Problem};

/// The paths of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// A file that has only the token.
    pub token: Option<PathBuf>,
    /// A file with CA certificates in PEM, which replace the public CAs.
    pub ca: Option<PathBuf>,
    /// The files of the client's certificate, with its chain, and of its key, in PEM.
    pub identity: Option<[PathBuf; 2]>,
}

impl Files {
    /// The token, if one is set.
    pub fn token(&self) -> Result<Option<String>, Problem> {
        let Some(file) = &self.token else { return Ok(None) };
        let text = read(file, Code::Unauthorized, "token")?;
        let token = String::from_utf8_lossy(&text).trim().to_owned();
        if token.is_empty() || token.chars().any(char::is_whitespace) {
            return Err(Problem::last(
                Exit::File,
                Code::Unauthorized,
                format!("{} does not contain a token", file.display()),
            ));
        }
        Ok(Some(token))
    }

    /// Pulsar's name of the authentication method; None without authentication.
    pub fn method(&self) -> Option<&'static str> {
        match (&self.token, &self.identity) {
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

    /// The content of the CA file, if one is set.
    pub fn ca(&self) -> Result<Option<Vec<u8>>, Problem> {
        self.ca.as_deref().map(|file| read(file, Code::TlsFailed, "CA")).transpose()
    }

    /// The TLS connector.
    pub fn tls(&self) -> Result<TlsConnector, Problem> {
        let mut roots = RootCertStore::empty();
        if let (Some(file), Some(pem)) = (&self.ca, self.ca()?) {
            let none = || {
                Problem::last(
                    Exit::File,
                    Code::TlsFailed,
                    format!("{} contains no certificate", file.display()),
                )
            };
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                roots.add(certificate.map_err(|_| none())?).map_err(|_| none())?;
            }
            if roots.is_empty() {
                return Err(none());
            }
        } else {
            roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Problem::last(Exit::File, Code::TlsFailed, error.to_string()))?
            .with_root_certificates(roots);
        let config = match self.identity()? {
            Some((chain, key)) => config.with_client_auth_cert(chain, key).map_err(|error| {
                let sentence = format!("the client's certificate and key do not fit: {error}");
                Problem::last(Exit::File, Code::TlsFailed, sentence)
            })?,
            None => config.with_no_client_auth(),
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// The client's certificate chain and key, if they are set.
    fn identity(&self) -> Result<Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>, Problem> {
        let Some([certificate, key]) = &self.identity else { return Ok(None) };
        let none = |file: &Path, what: &str| {
            let sentence = format!("{} contains no {what} in PEM", file.display());
            Problem::last(Exit::File, Code::TlsFailed, sentence)
        };
        let pem = read(certificate, Code::TlsFailed, "certificate")?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let chain = chain.ok().filter(|chain| !chain.is_empty());
        let chain = chain.ok_or_else(|| none(certificate, "certificate"))?;
        let pem = read(key, Code::TlsFailed, "key")?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| none(key, "key"))?;
        Ok(Some((chain, key)))
    }
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
    fn a_token_may_end_with_a_newline() {
        let path = file("token", "a.b.c\n");
        let files = Files { token: Some(path.clone()), ..Files::default() };
        assert_eq!(files.token().unwrap().as_deref(), Some("a.b.c"));
        fs::write(&path, "renewed").unwrap();
        assert_eq!(files.token().unwrap().as_deref(), Some("renewed"));
        fs::write(&path, " \n").unwrap();
        assert!(files.token().unwrap_err().sentence.contains("does not contain a token"));
        fs::remove_file(&path).unwrap();
        let problem = files.token().unwrap_err();
        assert!(problem.end == Some(Exit::File) && problem.sentence.contains("cannot read"), "{problem}");
    }

    #[test]
    fn a_renewed_file_ends_failures_of_files() {
        let with_token = Files { token: Some("t".into()), ..Files::default() };
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
            problem.end == Some(Exit::File) && problem.sentence.contains("contains no certificate"),
            "{problem}"
        );
        fs::remove_file(&path).unwrap();
        assert!(Files::default().tls().is_ok());
    }
}
