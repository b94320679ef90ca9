//! The certificates of a broker: a CA, whose key is kept for renewals, the broker's, which may be
//! expired, and a client's. Keys are EC P-256 in PKCS#8, which Java reads.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::cluster::state;

const DAY: Duration = Duration::from_hours(24);

/// The validity of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Valid for a year from now.
    Year,
    /// Expired yesterday.
    Expired,
}

/// Creates a CA below `dir`, `ca.crt` and `ca.key`, unless it exists.
pub fn authority(dir: &Path) -> Result<()> {
    // This file is written last.
    let complete = dir.join("ca.crt");
    if complete.exists() {
        return Ok(());
    }
    let key = KeyPair::generate()?;
    let certificate = authority_params().self_signed(&key)?;
    state::write(&dir.join("ca.key"), key.serialize_pem().as_bytes())?;
    state::write(&complete, certificate.pem().as_bytes())
}

/// Creates `broker.crt` and `broker.key` below `dir`, for 127.0.0.1 and localhost, signed by the CA in `dir`.
pub fn broker(dir: &Path, lifetime: Lifetime) -> Result<()> {
    let mut params = params("localhost", lifetime);
    params.subject_alt_names =
        vec![SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)), SanType::DnsName("localhost".try_into()?)];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    sign(dir, "broker", params)
}

/// Creates `client.crt` and `client.key` below `dir`, for a role, signed by the CA in `dir`.
pub fn client(dir: &Path, role: &str) -> Result<()> {
    let mut params = params(role, Lifetime::Year);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(dir, "client", params)
}

fn sign(dir: &Path, name: &str, mut params: CertificateParams) -> Result<()> {
    let key = dir.join("ca.key");
    let key = fs::read_to_string(&key).with_context(|| format!("cannot read {}", key.display()))?;
    // An issuer needs only the name and the key of the CA, not its dates.
    let issuer = Issuer::new(authority_params(), KeyPair::from_pem(&key)?);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &issuer)?;
    state::write(&dir.join(format!("{name}.key")), key.serialize_pem().as_bytes())?;
    state::write(&dir.join(format!("{name}.crt")), certificate.pem().as_bytes())
}

fn authority_params() -> CertificateParams {
    let mut params = params("quintet-pulsar", Lifetime::Year);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn params(common_name: &str, lifetime: Lifetime) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.use_authority_key_identifier_extension = true;
    let now = SystemTime::now();
    let (from, until) = match lifetime {
        // A day ago, in case a clock is set back.
        Lifetime::Year => (now - DAY, now + 365 * DAY),
        Lifetime::Expired => (now - 10 * DAY, now - DAY),
    };
    params.not_before = from.into();
    params.not_after = until.into();
    params
}
