//! The address of a Pulsar service: `pulsar://host:6650`, or `pulsar+ssl://` for TLS, with one or more hosts.

use std::fmt;
use std::str::FromStr;

/// The address of a Pulsar service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAddress {
    /// Whether to use TLS.
    pub tls: bool,
    /// At least one host; each of them serves the client.
    pub hosts: Vec<Host>,
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// A name or an IP address, without brackets.
    pub name: String,
    /// The port.
    pub port: u16,
}

/// Why an address is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address:?} is not an address of a Pulsar service: {why}")]
pub struct Malformed {
    address: String,
    why: String,
}

impl FromStr for ServiceAddress {
    type Err = Malformed;

    fn from_str(address: &str) -> Result<Self, Malformed> {
        let malformed = |why: String| Malformed { address: address.to_owned(), why };
        let (scheme, hosts) = address.split_once("://").unwrap_or_default();
        let tls = match scheme {
            "pulsar" => false,
            "pulsar+ssl" => true,
            _ => return Err(malformed("it must begin with pulsar:// or pulsar+ssl://".to_owned())),
        };
        let port = if tls { 6651 } else { 6650 };
        let hosts = hosts.strip_suffix('/').unwrap_or(hosts).split(',');
        let hosts = hosts.map(|host| parse_host(host, port)).collect::<Result<_, _>>().map_err(malformed)?;
        Ok(Self { tls, hosts })
    }
}

fn parse_host(host: &str, default_port: u16) -> Result<Host, String> {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or_else(|| format!("{host:?} lacks a bracket"))?;
            if name.parse::<std::net::Ipv6Addr>().is_err() {
                return Err(format!("{name:?} is not an IPv6 address"));
            }
            (name, port)
        }
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if name.is_empty() || !name.chars().all(allowed) {
        return Err(format!("{host:?} is not a host"));
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => default_port,
        Some(port) => match port.parse() {
            Ok(port @ 1..) => port,
            _ => return Err(format!("{port:?} is not a port")),
        },
        None => return Err(format!("{port:?} must not follow a host")),
    };
    Ok(Host { name: name.to_owned(), port })
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(Host::to_string).collect();
        write!(f, "{}://{}", self.scheme(), hosts.join(","))
    }
}

impl ServiceAddress {
    fn scheme(&self) -> &'static str {
        if self.tls { "pulsar+ssl" } else { "pulsar" }
    }

    /// The address of one of its hosts.
    pub fn of(&self, host: &Host) -> String {
        format!("{}://{host}", self.scheme())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn hosts(address: &str) -> Vec<String> {
        let address: ServiceAddress = address.parse().unwrap();
        address.hosts.iter().map(Host::to_string).collect()
    }

    #[rstest]
    #[case("pulsar://localhost:6650", &["localhost:6650"])]
    #[case("pulsar://localhost", &["localhost:6650"])]
    #[case("pulsar+ssl://a.b-c.example", &["a.b-c.example:6651"])]
    #[case("pulsar+ssl://a,b:7,c", &["a:6651", "b:7", "c:6651"])]
    #[case("pulsar://a:1/", &["a:1"])]
    #[case("pulsar://10.0.0.1:1,[::1]:2,[2001:db8::1]", &["10.0.0.1:1", "[::1]:2", "[2001:db8::1]:6650"])]
    fn parses_hosts_and_ports(#[case] address: &str, #[case] expected: &[&str]) {
        assert_eq!(hosts(address), expected);
    }

    #[rstest]
    #[case("", "pulsar://")]
    #[case("localhost:6650", "must begin with")]
    #[case("http://localhost:8080", "must begin with")]
    #[case("PULSAR://a", "must begin with")]
    #[case("pulsar://", "not a host")]
    #[case("pulsar://a,,b", "not a host")]
    #[case("pulsar://a:0", "not a port")]
    #[case("pulsar://a:65536", "not a port")]
    #[case("pulsar://a:", "not a port")]
    #[case("pulsar://a:b:c", "not a port")]
    #[case("pulsar://a/b", "not a host")]
    #[case("pulsar://a b", "not a host")]
    #[case("pulsar://user@a", "not a host")]
    #[case("pulsar://[::1", "bracket")]
    #[case("pulsar://[a]", "IPv6")]
    #[case("pulsar://[::1]x", "must not follow a host")]
    fn rejects_invalid_addresses_with_a_reason(#[case] address: &str, #[case] why: &str) {
        let error = address.parse::<ServiceAddress>().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn the_scheme_selects_tls() {
        let address: ServiceAddress = "pulsar+ssl://a".parse().unwrap();
        assert_eq!(address.of(&address.hosts[0]), "pulsar+ssl://a:6651");
        assert!(!"pulsar://a".parse::<ServiceAddress>().unwrap().tls);
    }
}
