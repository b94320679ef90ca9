//! Reads an archive as an importer does: from its index down to the program, by digests and sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use serde_json::Value;

use super::oci::{CONFIG, INDEX, LAYER, MANIFEST, digest};

#[derive(Debug)]
pub(super) struct Archive {
    /// The name with its tag.
    pub name: String,
    pub digest: String,
    pub images: Vec<Image>,
}

#[derive(Debug)]
pub(super) struct Image {
    pub architecture: String,
    pub digest: String,
    pub config: Value,
    /// The size of manifest, configuration and layer, in bytes.
    pub compressed: u64,
    /// The name and the content of the only file.
    pub program: (String, Vec<u8>),
}

/// The files of an archive, and the paths that were referenced.
struct Files {
    files: BTreeMap<String, Vec<u8>>,
    seen: BTreeSet<String>,
}

impl Files {
    fn json(&mut self, path: &str) -> Result<Value> {
        let bytes = self.files.get(path).with_context(|| format!("the archive lacks {path}"))?;
        self.seen.insert(path.to_owned());
        serde_json::from_slice(bytes).with_context(|| format!("{path} is not JSON"))
    }

    /// The blob of a descriptor. Fails unless media type, digest and size match.
    fn blob(&mut self, descriptor: &Value, media_type: &str) -> Result<&[u8]> {
        let named = descriptor["digest"].as_str().context("a descriptor has no digest")?;
        ensure!(descriptor["mediaType"] == media_type, "{named} is not of type {media_type}");
        let path = format!("blobs/{}", named.replace(':', "/"));
        let bytes = self.files.get(&path).with_context(|| format!("the archive lacks {path}"))?;
        ensure!(digest(bytes) == named, "{path} has another digest");
        ensure!(descriptor["size"] == bytes.len(), "{path} has another size");
        self.seen.insert(path);
        Ok(bytes)
    }

    fn json_blob(&mut self, descriptor: &Value, media_type: &str) -> Result<Value> {
        serde_json::from_slice(self.blob(descriptor, media_type)?).context("a blob is not JSON")
    }
}

/// Reads an archive and checks all of it.
pub(super) fn archive(bytes: &[u8]) -> Result<Archive> {
    let mut files = Files { files: entries(bytes)?.into_iter().collect(), seen: BTreeSet::new() };
    let layout = files.json("oci-layout")?;
    ensure!(layout["imageLayoutVersion"] == "1.0.0", "the archive's layout has another version");
    let index = files.json("index.json")?;
    let [top] = list(&index["manifests"])? else { bail!("the archive does not have exactly one image") };
    let name = top["annotations"]["io.containerd.image.name"].as_str().context("the image has no name")?;
    let tag = top["annotations"]["org.opencontainers.image.ref.name"].as_str().unwrap_or_default();
    ensure!(name.ends_with(&format!(":{tag}")), "{name} does not have the tag {tag}");
    let manifests = match top["mediaType"].as_str() {
        Some(INDEX) => list(&files.json_blob(top, INDEX)?["manifests"])?.to_vec(),
        _ => vec![top.clone()],
    };
    let images = manifests.iter().map(|manifest| image(&mut files, manifest)).collect::<Result<Vec<_>>>()?;

    // Docker reads this file, so it must agree.
    let docker = files.json("manifest.json")?;
    let [docker] = list(&docker)? else { bail!("manifest.json does not have exactly one image") };
    ensure!(docker["RepoTags"][0] == name, "manifest.json has another name");
    for path in [&docker["Config"], &docker["Layers"][0]] {
        let path = path.as_str().unwrap_or_default();
        ensure!(files.seen.contains(path), "only manifest.json refers to {path}");
    }
    for path in files.files.keys() {
        ensure!(files.seen.contains(path), "nothing refers to {path}");
    }
    let digest = top["digest"].as_str().unwrap_or_default().to_owned();
    Ok(Archive { name: name.to_owned(), digest, images })
}

fn image(files: &mut Files, descriptor: &Value) -> Result<Image> {
    let manifest = files.json_blob(descriptor, MANIFEST)?;
    let config = files.json_blob(&manifest["config"], CONFIG)?;
    let [layer] = list(&manifest["layers"])? else { bail!("an image does not have exactly one layer") };
    let mut tar = Vec::new();
    GzDecoder::new(files.blob(layer, LAYER)?).read_to_end(&mut tar).context("cannot decompress a layer")?;
    ensure!(config["rootfs"]["diff_ids"][0] == digest(&tar), "a layer does not have its digest");
    ensure!(config["architecture"] == descriptor["platform"]["architecture"], "the architectures differ");
    let [program] = <[_; 1]>::try_from(entries(&tar)?)
        .map_err(|files| anyhow::anyhow!("an image has {} files, expected 1", files.len()))?;
    let sizes =
        [descriptor, &manifest["config"], layer].map(|blob| blob["size"].as_u64().unwrap_or_default());
    Ok(Image {
        architecture: config["architecture"].as_str().unwrap_or_default().to_owned(),
        digest: descriptor["digest"].as_str().unwrap_or_default().to_owned(),
        compressed: sizes.iter().sum(),
        config,
        program,
    })
}

fn list(value: &Value) -> Result<&[Value]> {
    value.as_array().map(Vec::as_slice).context("a list is missing")
}

/// The files of a tar archive, in their order.
fn entries(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut tar = tar::Archive::new(bytes);
    let entries = tar.entries().context("this is not an archive")?;
    let files = entries.map(|entry| {
        let mut entry = entry?;
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        Ok((entry.path()?.to_string_lossy().into_owned(), bytes))
    });
    files.collect::<std::io::Result<_>>().context("the archive is damaged")
}
