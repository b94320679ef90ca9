//! The answers of the API server to a list or watch: texts, events one by one, and errors.

use std::time::Duration;

use axum::body::Body;
use futures::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, TryStreamExt as _};
use http::{HeaderValue, Request, Response, header};
use kube::Client;
use kube::core::Status;
use tokio::time::timeout;

use crate::model::protobuf::{self, Malformed};
use crate::server::client::{CALL, brief, brief_causes};

/// Bytes that are read of an error answer.
const LONGEST_REFUSAL: usize = 64 * 1024;
/// Bytes of a buffer that is kept for the next event.
const BUFFER: usize = 64 * 1024;
/// The largest event in bytes: many times the limit of etcd.
pub(super) const LARGEST_EVENT: usize = 32 * 1024 * 1024;

/// Why a list or watch ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Interrupted {
    #[error("{}", brief(.0))]
    Kube(#[from] kube::Error),
    #[error("{}", brief_causes(.0))]
    Read(#[from] std::io::Error),
    #[error("unexpected JSON in the answer: {0}")]
    Json(#[from] serde_json::Error),
    #[error("{0}")]
    Protobuf(#[from] Malformed),
    #[error("the server ended the watch: {} {}", .0.reason, .0.message)]
    Watch(Box<Status>),
    #[error("the server was silent for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("an event has more than {} bytes", LARGEST_EVENT)]
    TooLarge,
    #[error("the request cannot be built: {0}")]
    Request(#[from] http::Error),
}

impl Interrupted {
    /// Whether the API server did not answer: no response, or only a response of a proxy.
    pub fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::Kube(kube::Error::Service(_) | kube::Error::HyperError(_))
                | Self::Read(_)
                | Self::Silent(_)
        ) || matches!(self, Self::Kube(kube::Error::Api(status)) if (502..=504).contains(&status.code))
    }

    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Kube(kube::Error::Api(status)) | Self::Watch(status) => Some(status.code),
            _ => None,
        }
    }

    /// Whether JSON may work instead: the protobuf is malformed, the answer has another format, or the API server or
    /// a proxy answers 406.
    pub fn is_misunderstanding(&self) -> bool {
        matches!(self, Self::Protobuf(_) | Self::Json(_)) || self.code() == Some(406)
    }

    /// Whether only a new list helps: the resourceVersion is too old.
    pub fn needs_list(&self) -> bool {
        self.code() == Some(410)
            || matches!(self, Self::Watch(status) if status.reason == "Expired" || status.reason == "Gone")
    }
}

/// The answer to a request, which must be complete within [`CALL`].
pub(super) async fn text(client: &Client, request: Request<Vec<u8>>) -> Result<String, Interrupted> {
    let text = timeout(CALL, client.request_text(request)).await;
    Ok(text.map_err(|_elapsed| Interrupted::Silent(CALL))??)
}

/// Converts an error answer to the error that kube would return; kube cannot read a protobuf Status.
async fn refusal(answer: Response<kube::client::Body>, is_protobuf: bool) -> kube::Error {
    let code = answer.status().as_u16();
    let mut body = Vec::new();
    let mut chunks = Body::new(answer.into_body()).into_data_stream();
    // The part that arrived before the connection ended may still contain the reason.
    while body.len() < LONGEST_REFUSAL
        && let Ok(Some(chunk)) = chunks.try_next().await
    {
        body.extend_from_slice(&chunk);
    }
    let json = if is_protobuf { protobuf::status(&body).ok() } else { None };
    let status = serde_json::from_slice::<Status>(json.as_ref().unwrap_or(&body));
    // kube parses any JSON object as a Status, so a missing code means that it is not one.
    let status = status.ok().filter(|status| status.code != 0).unwrap_or_else(|| {
        let words = String::from_utf8_lossy(&body);
        Status::failure(words.trim(), "not an answer of an API server").with_code(code)
    });
    kube::Error::Api(status.boxed())
}

/// The events of a watch.
pub(super) struct Events<B> {
    pub(super) body: B,
    /// The type of the objects, if they arrive in protobuf.
    pub(super) of: Option<&'static protobuf::Type>,
    pub(super) frame: Vec<u8>,
}

/// Opens a watch, in protobuf if this process can read the type (`of`) and the API server supports it.
pub(super) async fn open(
    client: &Client,
    request: Request<Vec<u8>>,
    of: Option<&'static protobuf::Type>,
) -> Result<Events<impl AsyncBufRead + Unpin + use<>>, Interrupted> {
    let mut request = request.map(kube::client::Body::from);
    if of.is_some() {
        request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static(protobuf::ACCEPT));
    }
    let answer = client.send(request).await?;
    let is_protobuf = answer
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|of| of.as_bytes().starts_with(protobuf::CONTENT_TYPE.as_bytes()));
    if !answer.status().is_success() {
        let refused = timeout(CALL, refusal(answer, is_protobuf)).await;
        return Err(refused.map_or(Interrupted::Silent(CALL), Interrupted::Kube));
    }
    let body = Body::new(answer.into_body()).into_data_stream();
    Ok(Events {
        body: body.map_err(std::io::Error::other).into_async_read(),
        of: of.filter(|_| is_protobuf),
        frame: Vec::new(),
    })
}

impl<B: AsyncBufRead + Unpin> Events<B> {
    /// Reads the next event as a line of JSON. Returns false at the end.
    pub async fn next(&mut self, line: &mut Vec<u8>, silence: Duration) -> Result<bool, Interrupted> {
        // One huge object must not keep its buffer for the whole watch.
        for buffer in [&mut *line, &mut self.frame] {
            buffer.clear();
            buffer.shrink_to(BUFFER);
        }
        let reading = async {
            match self.of {
                None => self.read_line(line).await,
                Some(of) => self.read_frame(of, line).await,
            }
        };
        timeout(silence, reading).await.unwrap_or(Err(Interrupted::Silent(silence)))
    }

    async fn read_line(&mut self, line: &mut Vec<u8>) -> Result<bool, Interrupted> {
        (&mut self.body).take(LARGEST_EVENT as u64 + 1).read_until(b'\n', line).await?;
        if line.len() > LARGEST_EVENT {
            return Err(Interrupted::TooLarge);
        }
        // The connection may end within a line: a partial line is dropped.
        Ok(line.ends_with(b"\n"))
    }

    /// Reads one frame: its length in four bytes, then an event.
    async fn read_frame(&mut self, of: &protobuf::Type, line: &mut Vec<u8>) -> Result<bool, Interrupted> {
        let mut length = [0; 4];
        if !read_whole(&mut self.body, &mut length).await? {
            return Ok(false);
        }
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > LARGEST_EVENT {
            return Err(Malformed("an event that is larger than the limit of objects").into());
        }
        self.frame.resize(length, 0);
        let is_whole = read_whole(&mut self.body, &mut self.frame).await?;
        if is_whole {
            protobuf::event(&self.frame, of, line)?;
        }
        Ok(is_whole)
    }
}

/// Fills a buffer. Returns false if the connection ends first.
async fn read_whole(body: &mut (impl AsyncBufRead + Unpin), buffer: &mut [u8]) -> Result<bool, Interrupted> {
    match body.read_exact(buffer).await {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error.into()),
    }
}
