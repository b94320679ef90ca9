//! An image as a tar archive in the OCI image layout: a pure function of the program and its facts. It also
//! has the `manifest.json` that older versions of `docker load` require. A chart is stored the same way.
//!
//! Sources: the OCI image specification 1.1; the annotation `io.containerd.image.name` is containerd's. The media
//! types of charts are those of Helm's page on OCI registries.

use anyhow::{Context, Result};
use jiff::Timestamp;
use libdeflater::{CompressionLvl, Compressor};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::build::Arch;
use crate::run;

pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(super) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

const CHART_CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
const CHART_LAYER: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

/// containerd's annotation for the name under which it imports an image.
const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// The annotation with the tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The user and group of an image, as numbers that a kubelet knows are not root. The chart names no other user.
pub(super) const USER: u64 = 65_532;

/// The facts about an image that hold for all architectures.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    /// The name of the program, the image's only file and its entrypoint.
    pub program: &'static str,
    /// The name with its registry, without a tag.
    pub name: String,
    pub tag: String,
    /// The time of the commit, so that a later build makes the same image.
    pub created: Timestamp,
    /// The names after `org.opencontainers.image.`, and their values. `created` is added.
    pub labels: Vec<(&'static str, String)>,
    /// More names of a program that acts by its name. With them, the image has no entrypoint and no user.
    pub links: Vec<String>,
    /// The link that runs by default.
    pub run: String,
}

#[derive(Clone, Debug)]
pub(super) struct Program {
    pub arch: Arch,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub arch: Arch,
    /// The digest of the manifest.
    pub digest: String,
    /// The size of manifest, configuration and layer, in bytes.
    pub compressed: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Archive {
    pub bytes: Vec<u8>,
    /// The digest in a registry.
    pub digest: String,
    pub images: Vec<Stored>,
}

struct Blob {
    media_type: &'static str,
    bytes: Vec<u8>,
    digest: String,
}

impl Blob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        Self { media_type, digest: digest(&bytes), bytes }
    }

    fn json(media_type: &'static str, value: &Value) -> Result<Self> {
        Ok(Self::new(media_type, serde_json::to_vec(value).context("cannot write JSON")?))
    }

    fn descriptor(&self) -> Value {
        json!({ "mediaType": self.media_type, "digest": self.digest, "size": self.bytes.len() })
    }

    fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }
}

/// `sha256:…`
pub(super) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", run::hex(&Sha256::digest(bytes)))
}

/// The archive of an image for one or more architectures.
pub(super) fn archive(facts: &Facts, programs: &[Program]) -> Result<Archive> {
    let (mut blobs, mut manifests, mut images, mut docker) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let name = format!("{}:{}", facts.name, facts.tag);
    for program in programs {
        let tar = layer(facts.program, &program.bytes, &facts.links)?;
        let config = Blob::json(CONFIG, &config(facts, program.arch, &digest(&tar)))?;
        let layer = Blob::new(LAYER, gzip(&tar)?);
        let manifest = Blob::json(
            MANIFEST,
            &json!({
                "schemaVersion": 2, "mediaType": MANIFEST,
                "config": config.descriptor(), "layers": [layer.descriptor()],
            }),
        )?;
        let mut descriptor = manifest.descriptor();
        descriptor["platform"] = json!({ "os": "linux", "architecture": program.arch.name() });
        manifests.push(descriptor);
        // Docker's format has one architecture. Use the first.
        if docker.is_empty() {
            docker.push(json!({ "Config": config.path(), "RepoTags": [name], "Layers": [layer.path()] }));
        }
        let stored = [&manifest, &config, &layer];
        images.push(Stored {
            arch: program.arch,
            digest: manifest.digest.clone(),
            compressed: stored.iter().map(|blob| blob.bytes.len() as u64).sum(),
        });
        blobs.extend([manifest, config, layer]);
    }
    let mut top = if let [only] = &mut manifests[..] {
        only.take()
    } else {
        let index =
            Blob::json(INDEX, &json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests }))?;
        let descriptor = index.descriptor();
        blobs.push(index);
        descriptor
    };
    top["annotations"] = json!({ CONTAINERD_NAME: name, REF_NAME: facts.tag });
    let digest = top["digest"].as_str().unwrap_or_default().to_owned();
    let docker = ("manifest.json".to_owned(), Value::Array(docker).to_string().into_bytes());
    Ok(Archive { bytes: layout(&top, Some(docker), blobs)?, digest, images })
}

/// The archive of a chart, as `helm push` stores it, and the chart's digest in a registry. `metadata` is the content of
/// Chart.yaml, and `package` is the output of `helm package`.
pub(super) fn chart(metadata: &Value, package: &[u8], created: Timestamp) -> Result<(Vec<u8>, String)> {
    let config = Blob::json(CHART_CONFIG, metadata)?;
    let layer = Blob::new(CHART_LAYER, package.to_vec());
    let mut annotations = serde_json::Map::new();
    annotations.insert("org.opencontainers.image.created".to_owned(), json!(created.to_string()));
    for (key, value) in [
        ("title", &metadata["name"]),
        ("version", &metadata["version"]),
        ("description", &metadata["description"]),
        ("url", &metadata["home"]),
        ("source", &metadata["sources"][0]),
    ] {
        if value.is_string() {
            annotations.insert(format!("org.opencontainers.image.{key}"), value.clone());
        }
    }
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": config.descriptor(), "layers": [layer.descriptor()], "annotations": annotations,
    });
    let manifest = Blob::json(MANIFEST, &manifest)?;
    let mut top = manifest.descriptor();
    top["annotations"] = json!({ REF_NAME: metadata["version"] });
    let digest = manifest.digest.clone();
    Ok((layout(&top, None, vec![manifest, config, layer])?, digest))
}

/// The archive of the image layout with one entry, `top`.
fn layout(top: &Value, more: Option<(String, Vec<u8>)>, blobs: Vec<Blob>) -> Result<Vec<u8>> {
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [top] });
    let mut files = vec![
        ("oci-layout".to_owned(), json!({ "imageLayoutVersion": "1.0.0" }).to_string().into_bytes()),
        ("index.json".to_owned(), index.to_string().into_bytes()),
    ];
    files.extend(more);
    files.extend(blobs.into_iter().map(|blob| (blob.path(), blob.bytes)));
    let files: Vec<_> = files.iter().map(|(path, bytes)| (path.as_str(), 0o644, bytes.as_slice())).collect();
    tar(&files)
}

fn config(facts: &Facts, arch: Arch, layer: &str) -> Value {
    let created = facts.created.to_string();
    let mut labels = serde_json::Map::new();
    let time = [("created", created.clone())];
    for (key, value) in facts.labels.iter().chain(&time) {
        labels.insert(format!("org.opencontainers.image.{key}"), json!(value));
    }
    let mut run = json!({ "WorkingDir": "/", "Labels": labels });
    if facts.links.is_empty() {
        run["User"] = json!(format!("{USER}:{USER}"));
        run["Entrypoint"] = json!([format!("/{}", facts.program)]);
    } else {
        run["Cmd"] = json!([facts.run]);
    }
    json!({
        "created": created,
        "architecture": arch.name(),
        "os": "linux",
        "config": run,
        "rootfs": { "type": "layers", "diff_ids": [layer] },
        "history": [{ "created": created, "created_by": "cargo xtask image" }],
    })
}

/// The layer of the image: one file, and links to it.
fn layer(name: &str, program: &[u8], links: &[String]) -> Result<Vec<u8>> {
    let mut tar = started(&[(name, 0o755, program)])?;
    for link in links {
        let mut header = header(0, 0o777);
        header.set_entry_type(tar::EntryType::Symlink);
        let linked = tar.append_link(&mut header, link, format!("/{name}"));
        linked.with_context(|| format!("cannot archive {link}"))?;
    }
    tar.into_inner().context("cannot finish an archive")
}

/// A tar archive of files that belong to root, without times, in the given order. Each has a path and a mode.
pub fn tar(files: &[(&str, u32, &[u8])]) -> Result<Vec<u8>> {
    started(files)?.into_inner().context("cannot finish an archive")
}

fn started(files: &[(&str, u32, &[u8])]) -> Result<tar::Builder<Vec<u8>>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, mode, bytes) in files {
        let mut header = header(bytes.len() as u64, *mode);
        tar.append_data(&mut header, path, *bytes).with_context(|| format!("cannot archive {path}"))?;
    }
    Ok(tar)
}

fn header(size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// Compresses at the highest level, without a name and a time in the header.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut compressor = Compressor::new(CompressionLvl::best());
    let mut gzip = vec![0; compressor.gzip_compress_bound(bytes.len())];
    let length = compressor.gzip_compress(bytes, &mut gzip).context("cannot compress")?;
    gzip.truncate(length);
    Ok(gzip)
}

#[cfg(test)]
mod tests {
    use super::super::read;
    use super::*;

    fn facts() -> Facts {
        Facts {
            program: "quintet",
            name: "registry.example.com/quintet".to_owned(),
            tag: "1.2.3".to_owned(),
            created: "2026-01-02T03:04:05Z".parse().unwrap(),
            labels: vec![("title", "quintet".to_owned()), ("licenses", "Apache-2.0".to_owned())],
            links: Vec::new(),
            run: String::new(),
        }
    }

    fn program(arch: Arch) -> Program {
        Program { arch, bytes: format!("the program for {}", arch.name()).into_bytes() }
    }

    #[test]
    fn reads_what_it_wrote() {
        let written = archive(&facts(), &[program(Arch::Amd64)]).unwrap();
        let read = read::archive(&written.bytes).unwrap();
        assert_eq!(read.digest, written.digest);
        assert_eq!(read.name, "registry.example.com/quintet:1.2.3");
        let [image] = &read.images[..] else { panic!("{read:?}") };
        assert_eq!(image.architecture, "amd64");
        assert_eq!(image.digest, written.images[0].digest);
        assert_eq!(image.digest, written.digest);
        assert_eq!(image.compressed, written.images[0].compressed);
        assert_eq!(image.program, ("quintet".to_owned(), b"the program for amd64".to_vec()));
        let config = &image.config;
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Entrypoint"], json!(["/quintet"]));
        let labels = json!({
            "org.opencontainers.image.created": "2026-01-02T03:04:05Z",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.title": "quintet",
        });
        assert_eq!(config["config"]["Labels"], labels);
    }

    #[test]
    fn the_same_facts_make_the_same_bytes() {
        let both = [program(Arch::Amd64), program(Arch::Arm64)];
        let once = archive(&facts(), &both).unwrap();
        assert_eq!(archive(&facts(), &both).unwrap().bytes, once.bytes);
        let later = Facts { created: "2026-01-02T03:04:06Z".parse().unwrap(), ..facts() };
        assert_ne!(archive(&later, &both).unwrap().digest, once.digest);
    }

    #[test]
    fn several_architectures_are_one_image() {
        let written = archive(&facts(), &[program(Arch::Amd64), program(Arch::Arm64)]).unwrap();
        let read = read::archive(&written.bytes).unwrap();
        assert_eq!(read.digest, written.digest);
        let architectures: Vec<_> = read.images.iter().map(|image| image.architecture.as_str()).collect();
        assert_eq!(architectures, ["amd64", "arm64"]);
        assert!(read.images.iter().all(|image| image.digest != read.digest));
    }

    #[test]
    fn detects_changed_bytes() {
        let mut bytes = archive(&facts(), &[program(Arch::Amd64)]).unwrap().bytes;
        let at = bytes.windows(8).position(|eight| eight == br#""created"#).unwrap();
        bytes[at + 1] = b'C';
        let error = read::archive(&bytes).unwrap_err();
        assert!(format!("{error:#}").contains("digest"), "{error:#}");
    }

    #[test]
    fn links_a_program_with_many_names_and_runs_it_by_them() {
        let facts = Facts {
            links: vec!["bin/sh".to_owned(), "bin/true".to_owned()],
            run: "sh".to_owned(),
            ..facts()
        };
        let layer = layer("standin", b"x", &facts.links).unwrap();
        let mut tar = tar::Archive::new(layer.as_slice());
        let entries = tar.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let to = entry.link_name().unwrap().map(|to| to.display().to_string());
            (entry.path().unwrap().display().to_string(), to)
        });
        let to = Some("/standin".to_owned());
        assert_eq!(
            entries.collect::<Vec<_>>(),
            [("standin".to_owned(), None), ("bin/sh".to_owned(), to.clone()), ("bin/true".to_owned(), to)]
        );
        let config = config(&facts, Arch::Amd64, "sha256:00");
        assert_eq!(
            (&config["config"]["Entrypoint"], &config["config"]["User"]),
            (&Value::Null, &Value::Null)
        );
        assert_eq!(config["config"]["Cmd"], json!(["sh"]));
    }

    #[test]
    fn a_chart_is_stored_as_helm_pushes_it() {
        let metadata = json!({
            "name": "quintet", "version": "1.2.3", "description": "One operator", "sources": ["https://example.com/q"],
        });
        let created = "2026-01-02T03:04:05Z".parse().unwrap();
        let (archive, digest) = chart(&metadata, b"the package", created).unwrap();
        let mut files = std::collections::BTreeMap::new();
        for entry in tar::Archive::new(archive.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
            files.insert(entry.path().unwrap().display().to_string(), bytes);
        }
        let read = |path: &str| serde_json::from_slice::<Value>(&files[path]).unwrap();
        let blob = |digest: &Value| format!("blobs/{}", digest.as_str().unwrap().replace(':', "/"));
        let top = &read("index.json")["manifests"][0];
        assert_eq!((&top["digest"], &top["annotations"][REF_NAME]), (&json!(digest), &json!("1.2.3")));
        let manifest = read(&blob(&top["digest"]));
        assert_eq!(manifest["config"]["mediaType"], "application/vnd.cncf.helm.config.v1+json");
        assert_eq!(read(&blob(&manifest["config"]["digest"])), metadata);
        let layer = &manifest["layers"][0];
        assert_eq!(layer["mediaType"], "application/vnd.cncf.helm.chart.content.v1.tar+gzip");
        assert_eq!(files[&blob(&layer["digest"])], b"the package");
        assert_eq!(manifest["annotations"]["org.opencontainers.image.title"], "quintet");
        assert_eq!(manifest["annotations"].get("org.opencontainers.image.url"), None);
    }

    #[test]
    fn a_layer_contains_nothing_of_this_machine() {
        let layer = layer("quintet", b"x", &[]).unwrap();
        let mut tar = tar::Archive::new(layer.as_slice());
        let entry = tar.entries().unwrap().next().unwrap().unwrap();
        let header = entry.header();
        assert_eq!((header.mtime().unwrap(), header.uid().unwrap(), header.gid().unwrap()), (0, 0, 0));
        assert_eq!(header.mode().unwrap(), 0o755);
        assert_eq!((header.username().unwrap(), header.groupname().unwrap()), (Some(""), Some("")));
        // RFC 1952: bytes 4 to 7 are the time, byte 3 is 0 without a name.
        let gzip = gzip(b"x").unwrap();
        assert_eq!(gzip[3..8], [0; 5]);
    }
}
