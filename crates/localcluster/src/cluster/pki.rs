//! The certificates of a cluster: a CA whose key is not kept, one certificate for all servers, and one for
//! each client. The keys are EC P-256 in PKCS#8, which Go and rustls read.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

use super::real::network;
use super::state;

const YEAR: Duration = Duration::from_hours(365 * 24);

/// The clients of the API server: file name, user, group.
const CLIENTS: [(&str, &str, Option<&str>); 7] = [
    ("admin", "quintet:admin", Some("system:masters")),
    ("kube-controller-manager", "system:kube-controller-manager", None),
    ("kube-scheduler", "system:kube-scheduler", None),
    // kwok plays every kubelet, so it has the permissions of all of them.
    ("kwok", "quintet:kwok", Some("system:masters")),
    // For real nodes: the API server's client of the kubelets, and kube-proxy.
    ("kubelet-client", "quintet:kube-apiserver", Some("system:masters")),
    ("kube-proxy", "system:kube-proxy", None),
    (FRONT_PROXY, FRONT_PROXY, None),
];

/// The API server as a client of extension API servers, to which it names the user in headers. It is both the
/// certificate's file name and its common name.
pub(super) const FRONT_PROXY: &str = "front-proxy-client";

/// The names of the clients with a certificate.
pub(super) fn clients() -> impl Iterator<Item = &'static str> {
    CLIENTS.iter().map(|(file, ..)| *file)
}

/// The names and addresses of all possible nodes: without the CA's key no certificate can be added later.
pub(super) fn nodes() -> impl Iterator<Item = (String, Ipv4Addr)> {
    (1..=network::MAX_NODES).map(|number| (network::name_of(number), network::node(number)))
}

/// Creates the certificates below `dir`, unless all exist.
pub(super) fn ensure(dir: &Path) -> Result<()> {
    // This file is written last.
    let complete = dir.join("ca.crt");
    // An older version made fewer clients.
    if complete.exists() && clients().all(|client| dir.join(format!("{client}.crt")).exists()) {
        return Ok(());
    }
    let authority = authority().context("cannot make a certificate authority")?;
    let write_pair = |name: &str, params: CertificateParams| -> Result<()> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &authority)?;
        state::write(&dir.join(format!("{name}.crt")), certificate.pem().as_bytes())?;
        state::write(&dir.join(format!("{name}.key")), key.serialize_pem().as_bytes())
    };
    write_pair("serving", serving()?)?;
    for (file, user, group) in CLIENTS {
        write_pair(file, client(user, group))?;
    }
    for (name, address) in nodes() {
        write_pair(&name, node(&name, address)?)?;
    }
    // The key that signs tokens of service accounts needs no certificate.
    let signing = KeyPair::generate()?;
    state::write(&dir.join("service-accounts.key"), signing.serialize_pem().as_bytes())?;
    state::write(&dir.join("service-accounts.pub"), signing.public_key_pem().as_bytes())?;
    state::write(&complete, authority.pem().as_bytes())
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = params("quintet");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn serving() -> Result<CertificateParams> {
    let mut params = params("localhost");
    // The last two are the addresses for real nodes and for their pods.
    let addresses = [Ipv4Addr::LOCALHOST, network::CONTROL_PLANE, network::SERVER];
    let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    params.subject_alt_names =
        addresses.into_iter().map(|address| SanType::IpAddress(IpAddr::V4(address))).collect();
    for name in names {
        params.subject_alt_names.push(SanType::DnsName(name.try_into()?));
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

/// The certificate of a kubelet, which is a client and a server.
fn node(name: &str, address: Ipv4Addr) -> Result<CertificateParams> {
    let mut params = client(&format!("system:node:{name}"), Some("system:nodes"));
    params.subject_alt_names =
        vec![SanType::IpAddress(IpAddr::V4(address)), SanType::DnsName(name.try_into()?)];
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    Ok(params)
}

fn client(user: &str, group: Option<&str>) -> CertificateParams {
    let mut params = params(user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.use_authority_key_identifier_extension = true;
    // A day ago, in case a clock is set back.
    params.not_before = (SystemTime::now() - YEAR / 365).into();
    params.not_after = (SystemTime::now() + YEAR * 10).into();
    params
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn completes_the_certificates_of_an_older_version() {
        let dir = std::env::temp_dir().join(format!("quintet-pki-{}", std::process::id()));
        state::create_private(&[&dir]).unwrap();
        let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
        ensure(&dir).unwrap();
        let made = read("ca.crt");
        ensure(&dir).unwrap();
        assert_eq!(read("ca.crt"), made);
        let newest = format!("{FRONT_PROXY}.crt");
        fs::remove_file(dir.join(&newest)).unwrap();
        ensure(&dir).unwrap();
        assert!(read(&newest).starts_with("-----BEGIN CERTIFICATE"));
        assert_ne!(read("ca.crt"), made, "another CA makes every component start again");
        fs::remove_dir_all(&dir).unwrap();
    }
}
