//! One plain GET on the loopback interface: enough for health endpoints, and no HTTP library to build.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(5);

/// The status code and body of `GET path` on 127.0.0.1, or nothing where nobody answers.
pub fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, LIMIT).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    stream.set_write_timeout(Some(LIMIT)).ok()?;
    // HTTP/1.0: the server closes the connection after its answer and does not chunk it.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    parse(&String::from_utf8_lossy(&answer))
}

fn parse(answer: &str) -> Option<(u16, String)> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_parsed() {
        assert_eq!(parse("HTTP/1.1 200 OK\r\nA: b\r\n\r\nok"), Some((200, "ok".to_owned())));
        assert_eq!(parse("HTTP/1.0 503 Service Unavailable\r\n\r\n"), Some((503, String::new())));
        assert_eq!(parse("SSH-2.0-x"), None);
    }
}
