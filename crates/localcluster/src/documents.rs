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
