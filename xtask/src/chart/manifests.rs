//! Rendered manifests as objects.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Objects without duplicates.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    objects: Vec<Value>,
    seen: BTreeSet<String>,
}

impl Manifests {
    /// The objects of YAML documents.
    pub fn of(text: &str) -> Result<Self> {
        let mut manifests = Self::default();
        manifests.add(text)?;
        Ok(manifests)
    }

    /// The objects of every file in a folder of rendered charts.
    pub fn below(folder: &Path) -> Result<Self> {
        let mut manifests = Self::default();
        let mut files = Vec::new();
        for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
            files.push(entry?.path());
        }
        anyhow::ensure!(
            !files.is_empty(),
            "no manifests were rendered: add helm's post-renderer to the suites"
        );
        for file in files {
            let text =
                fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            // helm-unittest names the template above each part. NOTES.txt is not a manifest.
            for part in text.split("---\n#### file: ") {
                let (template, text) = part.split_once('\n').unwrap_or_default();
                let is_notes = Path::new(template.trim()).extension().is_some_and(|end| end == "txt");
                if !is_notes {
                    manifests.add(text).with_context(|| format!("{template}:\n{text}"))?;
                }
            }
        }
        Ok(manifests)
    }

    fn add(&mut self, text: &str) -> Result<()> {
        for document in text.split("\n---").map(|part| part.strip_prefix("---").unwrap_or(part)) {
            let lines = || document.lines().map(str::trim);
            if lines().all(|line| line.is_empty() || line.starts_with('#')) {
                continue;
            }
            let object: Value = serde_saphyr::from_str(document).with_context(|| document.to_owned())?;
            if object.is_object() && self.seen.insert(object.to_string()) {
                self.objects.push(object);
            }
        }
        Ok(())
    }

    /// The objects.
    pub fn all(&self) -> &[Value] {
        &self.objects
    }

    /// The namespaces of the objects.
    pub fn namespaces(&self) -> BTreeSet<&str> {
        self.objects.iter().filter_map(|object| object["metadata"]["namespace"].as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_documents_and_drops_duplicates() {
        let text = "---\n# Source: a\nkind: A\n---\n# Source: b\nkind: B\nmetadata: {namespace: ns}\n---\nkind: A\n---\n# nothing\n";
        let manifests = Manifests::of(text).unwrap();
        assert_eq!(manifests.all().len(), 2);
        assert_eq!(manifests.namespaces(), BTreeSet::from(["ns"]));
    }
}
