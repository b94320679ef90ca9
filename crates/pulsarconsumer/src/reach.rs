//! The addresses to which a user may send the manager's requests.
//!
//! A user chooses `adminURL` and `tokenURL`, and the manager connects from its place in the network. It refuses the
//! addresses of its machine, and those of the link, at which cloud providers serve credentials. A name is checked when it
//! is resolved, because its address may change after the object was written.

use std::error::Error;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower::Service;

/// Where the manager's requests may go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Neither to a loopback address nor to a link-local one.
    #[default]
    Remote,
    /// Everywhere, for a broker on the manager's machine.
    Everywhere,
}

impl Reach {
    /// Whether the manager may connect to an address.
    pub fn allows(self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_of_the_link = match address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        // Linux connects to this machine instead of to the unspecified address.
        let is_near = is_of_the_link || address.is_loopback() || address.is_unspecified();
        self == Self::Everywhere || !is_near
    }

    /// Whether the host of a URL is a name or an allowed address.
    pub fn allows_host(self, host: &str) -> bool {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.unwrap_or(host).parse::<IpAddr>().ok().is_none_or(|address| self.allows(address))
    }
}

/// A name has no allowed address.
#[derive(Debug, thiserror::Error)]
#[error("it leads to a loopback or link-local address, which is not allowed")]
pub struct Refused;

/// Whether an error is, or is caused by, [`Refused`].
pub fn is_refused(error: &(dyn Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.any(|error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.and_then(|inner| inner.downcast_ref::<Refused>()).is_some()
    })
}

/// Resolves names to their allowed addresses.
#[derive(Clone)]
pub struct Resolver {
    names: GaiResolver,
    reach: Reach,
}

impl Resolver {
    /// A resolver that uses the system's.
    pub fn new(reach: Reach) -> Self {
        Self { names: GaiResolver::new(), reach }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.names.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (resolved, reach) = (self.names.call(name), self.reach);
        async move {
            let (allowed, refused): (Vec<_>, Vec<_>) =
                resolved.await?.partition(|address: &SocketAddr| reach.allows(address.ip()));
            if allowed.is_empty() && !refused.is_empty() {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, Refused));
            }
            Ok(allowed.into_iter())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("broker.pulsar.svc", true)]
    #[case("10.0.0.1", true)]
    #[case("[fd00::1]", true)]
    #[case("127.0.0.1", false)]
    #[case("127.1.2.3", false)]
    #[case("0.0.0.0", false)]
    #[case("169.254.169.254", false)]
    #[case("[::1]", false)]
    #[case("[::]", false)]
    #[case("[fe80::1]", false)]
    #[case::mapped("[::ffff:127.0.0.1]", false)]
    #[case::mapped("[::ffff:169.254.169.254]", false)]
    fn refuses_addresses_of_the_machine_and_of_the_link(#[case] host: &str, #[case] is_allowed: bool) {
        assert_eq!(Reach::Remote.allows_host(host), is_allowed);
        assert!(Reach::Everywhere.allows_host(host));
    }

    #[rstest]
    #[case::name("localhost")]
    // The system's resolver reads these as addresses.
    #[case::number("2130706433")]
    #[case::short("127.1")]
    #[tokio::test]
    async fn refuses_names_of_the_machine(#[case] name: &str) {
        let name: Name = name.parse().unwrap();
        let error = Resolver::new(Reach::Remote).call(name.clone()).await.unwrap_err();
        assert!(is_refused(&error), "{error}");
        let mut addresses = Resolver::new(Reach::Everywhere).call(name).await.unwrap();
        assert!(addresses.all(|address| address.ip().is_loopback()));
    }
}
