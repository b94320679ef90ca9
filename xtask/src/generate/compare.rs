//! Compares the generated files with the files on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use anyhow::Context as _;

use super::{FOLDERS, GENERATED_ONLY, HEADER};

/// The most characters of a line in the output.
const LONGEST_LINE: usize = 120;

/// A file that differs from its generated content.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Relative to the workspace's root.
    pub path: String,
    kind: ChangeKind,
}

#[derive(Debug, PartialEq, Eq)]
enum ChangeKind {
    /// The file does not exist. Holds its content.
    Missing(String),
    /// The content differs.
    Stale { wanted: String, difference: Difference },
    /// A generated file that the command does not generate anymore.
    Superfluous,
}

/// The first line that differs between two texts.
#[derive(Debug, PartialEq, Eq)]
struct Difference {
    /// Its number, from 1.
    line: usize,
    /// This line on disk and in the generated text; `None` past the end.
    is: Option<String>,
    should_be: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ChangeKind::Missing(content) => write!(f, "missing {} (+{})", self.path, content.lines().count()),
            ChangeKind::Superfluous => write!(f, "superfluous {}", self.path),
            ChangeKind::Stale { difference: Difference { line, is, should_be }, .. } => {
                let quote = |text: &Option<String>| {
                    text.as_ref().map_or_else(
                        || "the end".to_owned(),
                        |text| format!("`{}`", text.trim().chars().take(LONGEST_LINE).collect::<String>()),
                    )
                };
                write!(
                    f,
                    "stale {} (line {line} is {}, should be {})",
                    self.path,
                    quote(is),
                    quote(should_be)
                )
            }
        }
    }
}

impl Change {
    /// Writes or removes the file, and returns the verb for the output.
    pub(super) fn carry_out(&self, root: &Path) -> anyhow::Result<&'static str> {
        let path = root.join(&self.path);
        match &self.kind {
            ChangeKind::Missing(content) | ChangeKind::Stale { wanted: content, .. } => {
                if let Some(folder) = path.parent() {
                    fs::create_dir_all(folder)
                        .with_context(|| format!("cannot create {}", folder.display()))?;
                }
                fs::write(&path, content).map(|()| "wrote")
            }
            ChangeKind::Superfluous => fs::remove_file(&path).map(|()| "removed"),
        }
        .with_context(|| self.path.clone())
    }
}

/// The existing generated files: each file with the header, and each file in a folder that holds only generated files.
pub(super) fn on_disk(
    root: &Path,
    wanted: &BTreeMap<String, String>,
) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for folder in FOLDERS {
        for path in list(&root.join(folder)).with_context(|| folder.to_owned())? {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let key = format!("{folder}/{name}");
            // Lossy: a file that is not UTF-8 is stale, or not generated.
            let bytes = fs::read(&path).with_context(|| key.clone())?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let is_generated = text.starts_with(HEADER) || GENERATED_ONLY.contains(&folder);
            if wanted.contains_key(&key) || is_generated {
                found.insert(key, text);
            }
        }
    }
    Ok(found)
}

/// The files of a folder; none if the folder does not exist.
fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    Ok(files)
}

/// The changes that turn `found` into `wanted`, by path.
pub(super) fn compare(wanted: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> Vec<Change> {
    let paths: BTreeSet<&String> = wanted.keys().chain(found.keys()).collect();
    let mut changes = Vec::new();
    for path in paths {
        let kind = match (wanted.get(path), found.get(path)) {
            (Some(wanted), None) => ChangeKind::Missing(wanted.clone()),
            (None, _) => ChangeKind::Superfluous,
            (Some(wanted), Some(found)) if wanted == found => continue,
            (Some(wanted), Some(found)) => {
                ChangeKind::Stale { wanted: wanted.clone(), difference: difference(found, wanted) }
            }
        };
        changes.push(Change { path: path.clone(), kind });
    }
    changes
}

fn difference(is: &str, should_be: &str) -> Difference {
    // Not `lines()`, which hides a carriage return or a missing last newline.
    let (is, should_be): (Vec<&str>, Vec<&str>) = (is.split('\n').collect(), should_be.split('\n').collect());
    let head = is.iter().zip(&should_be).take_while(|(a, b)| a == b).count();
    let line = |lines: &[&str]| lines.get(head).map(|line| (*line).to_owned());
    Difference { line: head + 1, is: line(&is), should_be: line(&should_be) }
}

#[cfg(test)]
mod tests {
    use super::super::header;
    use super::*;

    fn map<const N: usize>(entries: [(&str, &str); N]) -> BTreeMap<String, String> {
        entries.into_iter().map(|(path, text)| (path.to_owned(), text.to_owned())).collect()
    }

    #[test]
    fn names_each_file_and_its_difference() {
        let wanted = map([("same", "a\n"), ("new", "a\nb\n"), ("old", "a\nb\nc\nd\n")]);
        let found = map([("same", "a\n"), ("old", "a\nx\nc\nd\ne\n"), ("gone", "a\n")]);
        let lines: Vec<String> = compare(&wanted, &found).iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            ["superfluous gone", "missing new (+2)", "stale old (line 2 is `x`, should be `b`)"]
        );
        assert!(compare(&wanted, &wanted).is_empty());
    }

    #[test]
    fn finds_a_difference_at_the_end() {
        let expected = Difference { line: 2, is: None, should_be: Some(String::new()) };
        assert_eq!(difference("a", "a\n"), expected);
    }

    #[test]
    fn keeps_files_maintained_by_hand() {
        let root = std::env::temp_dir().join(format!("quintet-generate-{}", std::process::id()));
        let by_hand = root.join("config/rbac/role_binding.yaml");
        let superfluous = root.join("config/crd/gone.yaml");
        let wanted = map([("config/crd/a.yaml", "# a\n"), ("charts/quintet/files/rbac/b.yaml", "# b\n")]);
        fs::create_dir_all(root.join("config/rbac")).unwrap();
        fs::create_dir_all(root.join("config/crd")).unwrap();
        fs::write(&by_hand, "kind: ClusterRoleBinding\n").unwrap();
        fs::write(&superfluous, header("a kind that is gone")).unwrap();

        let changes = compare(&wanted, &on_disk(&root, &wanted).unwrap());
        assert_eq!(changes.len(), 3);
        for change in &changes {
            change.carry_out(&root).unwrap();
        }
        assert_eq!(compare(&wanted, &on_disk(&root, &wanted).unwrap()), []);
        assert!(by_hand.exists() && !superfluous.exists());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_definition_of_the_chart_without_its_kind_is_superfluous() {
        let root = std::env::temp_dir().join(format!("quintet-superfluous-{}", std::process::id()));
        let gone = "charts/quintet/files/crds/gone.json";
        fs::create_dir_all(root.join("charts/quintet/files/crds")).unwrap();
        fs::write(root.join(gone), "{}\n").unwrap();
        let changes = compare(&BTreeMap::new(), &on_disk(&root, &BTreeMap::new()).unwrap());
        assert_eq!(changes, [Change { path: gone.to_owned(), kind: ChangeKind::Superfluous }]);
        fs::remove_dir_all(&root).unwrap();
    }
}
