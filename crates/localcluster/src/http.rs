//! Plain requests on the loopback interface: enough for health endpoints and a test's administrator, and no HTTP library
//! to build.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(5);

/// The status code and body of `GET path` on 127.0.0.1, or nothing where nobody answers.
pub fn get(port: u16, path: &str) -> Option<(u16, String)> {
    send(&Request { method: "GET", port, path, headers: &[], body: "", limit: LIMIT })
}

/// What to send to a port of 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `GET`, `PUT` and so on.
    pub method: &'a str,
    /// The server's.
    pub port: u16,
    /// With the query.
    pub path: &'a str,
    /// Names and values.
    pub headers: &'a [(&'a str, &'a str)],
    /// Nothing, where it is empty.
    pub body: &'a str,
    /// How long every step may take.
    pub limit: Duration,
}

/// The status code and body of the answer, or nothing where nobody answers.
pub fn send(request: &Request<'_>) -> Option<(u16, String)> {
    let Request { method, port, path, headers, body, limit } = *request;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    stream.set_write_timeout(Some(limit)).ok()?;
    // HTTP/1.0: the server closes the connection after its answer and does not chunk it.
    let fields: String = headers.iter().map(|(name, value)| [name, ": ", value, "\r\n"].concat()).collect();
    let text = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n{fields}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).ok()?;
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
