//! Reads the project's documents: their commands and the manifests in them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::paths;

/// README, CONTRIBUTING, the pages in `docs`, and the READMEs of the benches, the chart and the samples.
///
/// # Panics
/// If a folder cannot be read; only tests call this.
pub fn all() -> Vec<PathBuf> {
    let root = paths::workspace();
    let entries = |folder: &str| fs::read_dir(root.join(folder)).expect("the folder is there").flatten();
    let named = ["README.md", "CONTRIBUTING.md", "charts/quintet/README.md", "docs/bench/README.md"];
    let mut documents = named.map(|name| root.join(name)).to_vec();
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

fn read(document: &Path) -> String {
    fs::read_to_string(document).expect("the document is there")
}

/// The fenced blocks of a document in one language.
///
/// # Panics
/// If the document cannot be read.
pub fn blocks(document: &Path, language: &str) -> Vec<Vec<String>> {
    blocks_of(&read(document), language)
}

/// The fenced blocks of a text in one language, without the indentation of their fences.
fn blocks_of(text: &str, language: &str) -> Vec<Vec<String>> {
    let mut blocks: Vec<Vec<String>> = Vec::new();
    // The indentation of the open fence, and whether its block has the language.
    let mut open: Option<(usize, bool)> = None;
    for line in text.lines() {
        let spaces = line.len() - line.trim_start_matches(' ').len();
        match (open, line.trim().strip_prefix("```")) {
            (None, Some(named)) => {
                open = Some((spaces, named == language));
                blocks.extend((named == language).then(Vec::new));
            }
            (Some(_), Some("")) => open = None,
            (Some((indent, true)), _) => {
                let block = blocks.last_mut().expect("a block was begun");
                block.push(line[spaces.min(indent)..].trim_end().to_owned());
            }
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
    commands_of(&read(document))
}

/// The commands of a section without its subsections. The heading includes its number signs.
///
/// # Panics
/// If the document has no such heading.
pub fn commands_of_section(document: &Path, heading: &str) -> Vec<String> {
    let text = read(document);
    let mut lines = text.lines();
    assert!(lines.any(|line| line == heading), "{} has no heading {heading:?}", document.display());
    commands_of(&lines.take_while(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n"))
}

/// The first command of a document that begins and continues like this.
///
/// # Panics
/// If the document has no such command.
pub fn command(document: &Path, begin: &str, part: &str) -> String {
    let is_it = |command: &String| command.starts_with(begin) && command.contains(part);
    let found = commands(document).into_iter().find(is_it);
    found.unwrap_or_else(|| panic!("{} has no command `{begin}… {part}`", document.display()))
}

fn commands_of(text: &str) -> Vec<String> {
    let mut commands = Vec::new();
    for block in blocks_of(text, "sh") {
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

    #[test]
    fn links_lead_to_files_and_headings() {
        let root = paths::workspace();
        let mut documents = all();
        documents.extend(["ARCHITECTURE.md", "CHANGELOG.md"].map(|one| root.join(one)));
        let pages = fs::read_dir(root.join("docs/bench")).unwrap().map(|entry| entry.unwrap().path());
        documents.extend(pages.filter(|page| page.extension().is_some_and(|end| end == "md")));
        let (mut found, mut dead) = (0, Vec::new());
        for document in documents {
            for link in links(&prose(&read(&document))) {
                let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
                let folder = document.parent().unwrap();
                let target = if path.is_empty() { document.clone() } else { folder.join(path) };
                let is_there = target.exists()
                    && (anchor.is_empty() || anchors(&prose(&read(&target))).contains(anchor));
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

    #[test]
    fn finds_blocks_in_lists() {
        let text = "```sh\na\n```\n1. Do it:\n\n   ```sh\n   b \\\n     --c  # why\n   d\n   ```\n\n```text\n```\n```sh\n  e\n```\n";
        let blocks = blocks_of(text, "sh");
        assert_eq!(blocks, [vec!["a"], vec!["b \\", "  --c  # why", "d"], vec!["  e"]]);
        assert_eq!(commands_of(text), ["a", "b --c", "d", "e"]);
    }

    /// Commands in a block of text run in no test.
    #[test]
    fn no_block_of_text_has_a_command() {
        let mut hidden = Vec::new();
        for document in all() {
            let lines = blocks(&document, "text").into_iter().flatten();
            let is_command = |line: &String| {
                let command = without_variables(line);
                let programs = ["cargo", "crane", "helm", "kubectl", "pulsar-consumer", "quintet"];
                // The output of quintet begins with its name, too.
                command.split_once(' ').is_some_and(|(program, rest)| {
                    programs.contains(&program) && rest.starts_with(char::is_lowercase)
                }) || command == "pulsar-consumer"
            };
            // No file of a release is published yet.
            let needs_release = |line: &String| line.contains("/releases/download/");
            let found = lines.filter(|line| is_command(line) && !needs_release(line));
            hidden.extend(found.map(|line| format!("{}: {line}", document.display())));
        }
        assert_eq!(hidden, Vec::<String>::new());
    }
}
