//! Reads the project's documents: their commands and the manifests in them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::paths;

/// README, CONTRIBUTING, the pages in `docs` and the samples' READMEs.
///
/// # Panics
/// If a folder cannot be read; only tests call this.
pub fn all() -> Vec<PathBuf> {
    let root = paths::workspace();
    let entries = |folder: &str| fs::read_dir(root.join(folder)).expect("the folder is there").flatten();
    let mut documents = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    documents.extend(
        entries("docs")
            .map(|entry| entry.path())
            .filter(|file| file.extension().is_some_and(|end| end == "md")),
    );
    documents
        .extend(entries("samples").map(|entry| entry.path().join("README.md")).filter(|file| file.is_file()));
    documents.sort();
    documents
}

/// The fenced blocks of a document in one language.
///
/// # Panics
/// If the document cannot be read.
pub fn blocks(document: &Path, language: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(document).expect("the document is there");
    let (begin, mut blocks, mut inside) = (format!("```{language}"), Vec::new(), false);
    for line in text.lines() {
        match line.trim_end() {
            line if line == begin => {
                inside = true;
                blocks.push(Vec::new());
            }
            "```" => inside = false,
            line if inside => blocks.last_mut().expect("a block was begun").push(line.to_owned()),
            _ => {}
        }
    }
    blocks
}

/// The commands of a document, one a line unless the line ends in a backslash.
///
/// # Panics
/// If the document cannot be read.
pub fn commands(document: &Path) -> Vec<String> {
    let mut commands = Vec::new();
    for block in blocks(document, "sh") {
        let mut begun = String::new();
        for line in block {
            let line = line.split(" #").next().unwrap_or_default().trim();
            begun.push_str(line.trim_end_matches('\\'));
            if !line.ends_with('\\') && !begun.is_empty() {
                commands.push(std::mem::take(&mut begun));
            }
        }
    }
    commands
}

/// A command without the variables set before it, and with one space between its words.
pub fn without_variables(command: &str) -> String {
    command.split_whitespace().skip_while(|word| word.contains('=')).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The lines of a document outside of fenced blocks.
    fn prose(text: &str) -> String {
        let mut is_inside = false;
        let lines = text.lines().filter(|line| {
            let is_fence = line.trim_start().starts_with("```");
            is_inside ^= is_fence;
            !is_inside && !is_fence
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// The anchors of the headings, as GitHub makes them.
    fn anchors(text: &str) -> BTreeSet<String> {
        let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
        let mut anchors = BTreeSet::new();
        for heading in headings {
            let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
            let anchor: String = words.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
            let further = (1..).map(|number| format!("{anchor}-{number}"));
            let free = std::iter::once(anchor.clone()).chain(further).find(|one| !anchors.contains(one));
            anchors.extend(free);
        }
        anchors
    }

    /// The addresses of links to files and headings of the project.
    fn links(text: &str) -> impl Iterator<Item = &str> {
        let addresses = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        addresses.filter(|address| !address.contains("://") && !address.contains(char::is_whitespace))
    }

    fn read(file: &Path) -> String {
        prose(&fs::read_to_string(file).unwrap())
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let root = paths::workspace();
        let mut documents = all();
        documents.extend(
            ["ARCHITECTURE.md", "CHANGELOG.md", "charts/quintet/README.md"].map(|one| root.join(one)),
        );
        let pages = fs::read_dir(root.join("docs/bench")).unwrap().map(|entry| entry.unwrap().path());
        documents.extend(pages.filter(|page| page.extension().is_some_and(|end| end == "md")));
        let (mut found, mut dead) = (0, Vec::new());
        for document in documents {
            for link in links(&read(&document)) {
                let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
                let folder = document.parent().unwrap();
                let target = if path.is_empty() { document.clone() } else { folder.join(path) };
                let is_there =
                    target.exists() && (anchor.is_empty() || anchors(&read(&target)).contains(anchor));
                found += 1;
                if !is_there {
                    dead.push(format!("{}: {link}", document.display()));
                }
            }
        }
        assert_eq!(dead, Vec::<String>::new());
        assert!(found > 100, "only {found} links found");
    }

    #[test]
    fn anchors_are_those_of_github() {
        let text = "# The leader's pod\n## `quintet rollout`, by hand\n## Same\n## Same\n";
        let expected = ["the-leaders-pod", "quintet-rollout-by-hand", "same", "same-1"];
        assert_eq!(anchors(text), BTreeSet::from(expected.map(str::to_owned)));
    }
}
