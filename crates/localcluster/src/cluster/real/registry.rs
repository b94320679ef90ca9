//! A read-only image registry over a folder of OCI image layout archives. Every image name resolves to it, so
//! `busybox` works with every pull policy, and a missing image fails immediately.
//!
//! Sources: the OCI distribution specification 1.1; the query parameter `ns` is containerd's, for mirrors.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::Value;

/// The port, at the control plane's address.
pub(super) const PORT: u16 = 5000;

/// The header with the digest of the content.
const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const BYTES: &str = "application/octet-stream";

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// The version check of the API.
    Version,
    /// An image by its whole name or by its digest.
    Manifest(String),
    /// A blob by its digest.
    Blob(String),
}

fn parse(path: &str, query: &str) -> Option<Asked> {
    let path = path.strip_prefix("/v2")?.trim_matches('/');
    if path.is_empty() {
        return Some(Asked::Version);
    }
    let (rest, reference) = path.rsplit_once('/')?;
    let (name, what) = rest.rsplit_once('/')?;
    let host = query.split('&').find_map(|part| part.strip_prefix("ns=")).unwrap_or("localhost");
    match what {
        "blobs" => Some(Asked::Blob(reference.to_owned())),
        "manifests" if reference.contains(':') => Some(Asked::Manifest(reference.to_owned())),
        "manifests" => Some(Asked::Manifest(format!("{host}/{name}:{reference}"))),
        _ => None,
    }
}

/// Serves the archives in a folder, which is read again for each request.
pub(super) fn serve(listener: TcpListener, folder: PathBuf) -> Result<()> {
    listener.set_nonblocking(true).context("cannot serve images")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        axum::serve(listener, Router::new().route("/{*path}", get(answer)).with_state(folder)).await
    })?;
    Ok(())
}

async fn answer(State(folder): State<PathBuf>, uri: Uri) -> Response {
    let found = match parse(uri.path(), uri.query().unwrap_or_default()) {
        Some(Asked::Version) => Some((String::new(), "application/json", b"{}".to_vec())),
        Some(Asked::Manifest(name)) => {
            let digest = if name.starts_with("sha256:") { Some(name) } else { digest(&folder, &name) };
            digest.and_then(|digest| blob(&folder, &digest).map(|bytes| (digest, MANIFEST, bytes)))
        }
        Some(Asked::Blob(digest)) => blob(&folder, &digest).map(|bytes| (digest, BYTES, bytes)),
        None => None,
    };
    let Some((digest, media_type, bytes)) = found else {
        let body = r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no archive has this image"}]}"#;
        return (StatusCode::NOT_FOUND, [(CONTENT_TYPE, "application/json")], body).into_response();
    };
    ([(CONTENT_TYPE, media_type.to_owned()), (DIGEST, digest)], bytes).into_response()
}

/// The digest of the image with a name.
fn digest(folder: &Path, name: &str) -> Option<String> {
    archives(folder).iter().find_map(|archive| {
        let index: Value = serde_json::from_slice(&member(archive, "index.json")?).ok()?;
        let manifests = index["manifests"].as_array()?;
        let named = |one: &&Value| one["annotations"]["io.containerd.image.name"] == name;
        manifests.iter().find(named)?["digest"].as_str().map(str::to_owned)
    })
}

fn blob(folder: &Path, digest: &str) -> Option<Vec<u8>> {
    let path = format!("blobs/{}", digest.replace(':', "/"));
    archives(folder).iter().find_map(|archive| member(archive, &path))
}

fn archives(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.extension().is_some_and(|extension| extension == "tar")).collect()
}

/// A file of an archive; `None` also if the archive cannot be read.
fn member(archive: &Path, path: &str) -> Option<Vec<u8>> {
    let mut file = File::open(archive).ok()?;
    let (position, size) = {
        let mut tar = tar::Archive::new(&mut file);
        let mut entries = tar.entries_with_seek().ok()?.filter_map(std::io::Result::ok);
        let entry = entries.find(|entry| entry.path().is_ok_and(|its| its == Path::new(path)))?;
        (entry.raw_file_position(), entry.size())
    };
    file.seek(SeekFrom::Start(position)).ok()?;
    let mut bytes = Vec::new();
    file.take(size).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_registry_name_and_tag_of_a_request() {
        let manifest = |name: &str| Some(Asked::Manifest(name.to_owned()));
        assert_eq!(parse("/v2/", ""), Some(Asked::Version));
        assert_eq!(
            parse("/v2/library/busybox/manifests/latest", "ns=docker.io"),
            manifest("docker.io/library/busybox:latest")
        );
        assert_eq!(parse("/v2/a/manifests/1", "x=y&ns=ghcr.io"), manifest("ghcr.io/a:1"));
        assert_eq!(parse("/v2/a/manifests/sha256:00", "ns=ghcr.io"), manifest("sha256:00"));
        assert_eq!(parse("/v2/a/b/blobs/sha256:00", ""), Some(Asked::Blob("sha256:00".to_owned())));
        assert_eq!(parse("/v2/a/tags/list", ""), None);
        assert_eq!(parse("/metrics", ""), None);
    }

    #[test]
    fn finds_parts_of_archives() {
        let folder = std::env::temp_dir().join(format!("quintet-registry-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let index = r#"{"manifests":[{"digest":"sha256:11","annotations":{"io.containerd.image.name":"docker.io/library/busybox:latest"}}]}"#;
        let mut tar = tar::Builder::new(Vec::new());
        for (path, text) in
            [("index.json", index), ("blobs/sha256/11", "the manifest"), ("blobs/sha256/22", "")]
        {
            let mut header = tar::Header::new_ustar();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
        fs::write(folder.join("busybox.tar"), tar.into_inner().unwrap()).unwrap();
        fs::write(folder.join("half.tar"), "half an arch").unwrap();
        fs::write(folder.join("notes.txt"), "none").unwrap();
        let found = digest(&folder, "docker.io/library/busybox:latest");
        let gone = digest(&folder, "docker.io/library/busybox:1");
        let blobs = ["sha256:11", "sha256:22", "sha256:33"].map(|digest| blob(&folder, digest));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!((found.as_deref(), gone), (Some("sha256:11"), None));
        assert_eq!(blobs, [Some(b"the manifest".to_vec()), Some(Vec::new()), None]);
    }
}
