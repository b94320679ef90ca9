//! Plain HTTP requests on the loopback interface, without an HTTP library to build. Enough for health
//! endpoints and the broker's admin API.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(5);

/// The status code and body of `GET path` on 127.0.0.1, or `None` without an answer.
pub fn get(port: u16, path: &str) -> Option<(u16, String)> {
    send(&Request { method: "GET", port, path, headers: &[], body: "", limit: LIMIT })
}

/// A request to a port of 127.0.0.1.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// `GET`, `PUT` and so on.
    pub method: &'a str,
    /// The server's port.
    pub port: u16,
    /// The path with its query.
    pub path: &'a str,
    /// Names and values.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body; may be empty.
    pub body: &'a str,
    /// The limit of each step: connect, read and write.
    pub limit: Duration,
}

/// The status code and body of the answer, or `None` without an answer.
pub fn send(request: &Request<'_>) -> Option<(u16, String)> {
    let Request { method, port, path, headers, body, limit } = *request;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, limit).ok()?;
    stream.set_read_timeout(Some(limit)).ok()?;
    stream.set_write_timeout(Some(limit)).ok()?;
    // With HTTP/1.0 the server closes the connection after its answer and does not chunk the body.
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
    fn parses_an_answer() {
        assert_eq!(parse("HTTP/1.1 200 OK\r\nA: b\r\n\r\nok"), Some((200, "ok".to_owned())));
        assert_eq!(parse("HTTP/1.0 503 Service Unavailable\r\n\r\n"), Some((503, String::new())));
        assert_eq!(parse("SSH-2.0-x"), None);
    }
}
