//! Addresses to listen on, and the probes: /healthz and /readyz.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;

/// What a probe asks: nothing to say, or one line for each thing that is wrong.
pub type Check = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// Why an address cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct Error {
    address: String,
    error: String,
}

/// Listens on `[host]:port`; `0` means nowhere, and an empty host means every address.
pub async fn listen(address: &str) -> Result<Option<TcpListener>, Error> {
    if address == "0" {
        return Ok(None);
    }
    let fail = |error: String| Error { address: address.to_owned(), error };
    let listener = match address.strip_prefix(':') {
        Some(port) => {
            let port: u16 = port.parse().map_err(|_| fail("the port is no number below 65536".to_owned()))?;
            match TcpListener::bind(SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port))).await {
                Ok(listener) => Ok(listener),
                // Hosts without IPv6.
                Err(_) => TcpListener::bind(SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, port))).await,
            }
        }
        None => TcpListener::bind(address).await,
    };
    listener.map(Some).map_err(|error| fail(error.to_string()))
}

/// Serves /healthz and /readyz.
pub async fn probes(listener: TcpListener, healthy: Check, ready: Check) -> std::io::Result<()> {
    let router = Router::new()
        .route("/healthz", get(move || std::future::ready(probe(&healthy))))
        .route("/readyz", get(move || std::future::ready(probe(&ready))));
    axum::serve(listener, router).await
}

fn probe(check: &Check) -> (StatusCode, String) {
    let wrong = check();
    if wrong.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, wrong.join("\n") + "\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn zero_means_nowhere_and_nonsense_is_named() {
        assert!(listen("0").await.unwrap().is_none());
        assert!(listen(":99999").await.unwrap_err().to_string().contains(":99999"));
        assert!(listen("nonsense").await.unwrap_err().to_string().contains("nonsense"));
        assert!(listen("127.0.0.1:0").await.unwrap().is_some());
    }
}
