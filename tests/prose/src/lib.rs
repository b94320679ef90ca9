//! Checks that the project's texts are plain English: `cargo xtask prose`.
//!
//! The rules are Vale's, in `styles/Quintet`. Vale reads the documents itself. From the other files this crate extracts the prose:
//! comments, descriptions, string literals, messages of templates, and the names of tests.

mod exceptions;
mod plain;
mod rust;
#[cfg(test)]
mod style_tests;
mod text;
mod vale;

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use quintet_localcluster::cluster::binaries;
use quintet_localcluster::{paths, run};

use exceptions::Exceptions;
use text::Text;
use vale::{Vale, relative};

/// The most characters of a test's name.
const LONGEST_NAME: usize = 60;

/// `cargo xtask prose`.
#[derive(Debug, Default, clap::Args)]
#[command(
    about = "Check that the project's texts are plain English",
    long_about = "Check that the project's texts are plain English.\n\n\
    The rules are in tests/prose/styles/Quintet, and the exceptions are in tests/prose/exceptions.toml. The command prints \
    each finding as FILE:LINE: SENTENCE — MESSAGE. The exit code is 1 if a finding is an error. If you give no PATH, an \
    exception that matches no finding is also an error."
)]
pub struct Args {
    /// Check only these files and folders
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print every warning, not only the number of warnings
    #[arg(long)]
    warnings: bool,
}

/// A text that breaks a rule.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The file, below the root of the checkout.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// The name of the rule.
    pub rule: String,
    /// The words that matched.
    pub word: String,
    /// The words around them.
    pub sentence: String,
    /// The words to write instead.
    pub message: String,
    /// Whether it fails the check.
    pub is_error: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, rule, sentence, message, .. } = self;
        write!(f, "{path}:{line}: {sentence} — {message} [{rule}]")
    }
}

/// Whether Vale is built, so that the check takes seconds.
pub fn is_built() -> bool {
    binaries::is_built(binaries::PROSE[0])
}

/// Runs the command. Fails if there is an error.
pub fn run(args: &Args) -> Result<()> {
    let mut files = Vec::new();
    if args.paths.is_empty() {
        walk(paths::workspace(), &mut files)?;
    }
    let here = env::current_dir().context("cannot find the current directory")?;
    for path in &args.paths {
        let given = here.join(path);
        let path = fs::canonicalize(&given).or_else(|_| fs::canonicalize(paths::workspace().join(path)));
        let path = path.with_context(|| format!("cannot read {}", given.display()))?;
        if path.is_dir() { walk(&path, &mut files)? } else { files.push(path) }
    }
    let found = findings(&files)?;
    let file = paths::workspace().join("tests/prose/exceptions.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut exceptions = Exceptions::parse(&text)?;
    let is_whole = args.paths.is_empty();
    let (errors, warnings): (Vec<_>, Vec<_>) = found.into_iter().partition(|finding| finding.is_error);
    let (allowed, errors): (Vec<_>, Vec<_>) = errors.into_iter().partition(|error| exceptions.allow(error));
    let shown = errors.iter().chain(warnings.iter().filter(|_| args.warnings));
    for finding in shown {
        run::print(format!("{finding}\n"))?;
    }
    let unused: Vec<&str> = exceptions.unused().filter(|_| is_whole).collect();
    for path in &unused {
        run::print(format!("tests/prose/exceptions.toml: {path} matches no finding — remove it\n"))?;
    }
    run::print(format!(
        "{} files: {} errors, {} excepted, {} warnings\n",
        files.len(),
        errors.len(),
        allowed.len(),
        warnings.len()
    ))?;
    if !errors.is_empty() || !unused.is_empty() {
        bail!("{} texts break a rule, {} exceptions match nothing", errors.len(), unused.len());
    }
    Ok(())
}

/// The files below a folder that have prose, in a fixed order.
fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if name != "target" && (!name.starts_with('.') || name == ".github") {
                walk(&path, files)?;
            }
        } else if kind(&relative(&path)).is_some() {
            files.push(path);
        }
    }
    Ok(())
}

/// How the prose of a file is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Document,
    Rust,
    Yaml,
    Schema,
    Template,
    Notes,
}

fn kind(path: &str) -> Option<Kind> {
    let ends = |end: &str| path.ends_with(end);
    if path == "tests/prose/src/style_tests.rs" || path.starts_with("tests/prose/styles/") {
        // They name the words that the rules find.
        None
    } else if ends(".md") {
        Some(Kind::Document)
    } else if ends(".rs") {
        Some(Kind::Rust)
    } else if path.starts_with("charts/quintet/templates/") {
        Some(if ends("NOTES.txt") { Kind::Notes } else { Kind::Template })
    } else if ends(".yaml") || ends(".yml") || ends(".toml") {
        Some(Kind::Yaml)
    } else {
        ends(".schema.json").then_some(Kind::Schema)
    }
}

/// Finds the texts of these files that break a rule.
fn findings(files: &[PathBuf]) -> Result<Vec<Finding>> {
    let mut vale = Vale::new()?;
    let mut found = Vec::new();
    for file in files {
        let path = relative(file);
        let Some(kind) = kind(&path) else { continue };
        let source = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let text = match kind {
            Kind::Document => {
                vale.document(&path, &source);
                continue;
            }
            Kind::Rust => {
                let mut prose = rust::prose(&source).with_context(|| path.clone())?;
                found.extend(long_names(&path, &prose.tests));
                name_sentences(&mut prose.text, &prose.tests);
                prose.text
            }
            Kind::Yaml => plain::yaml(&source),
            Kind::Schema => plain::json(&source),
            Kind::Template => plain::template(&source, false),
            Kind::Notes => plain::template(&source, true),
        };
        vale.text(&path, text)?;
    }
    found.extend(vale.run()?);
    found.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok(found)
}

/// The names of tests, as sentences for the rules.
fn name_sentences(text: &mut Text, tests: &[(usize, String)]) {
    text.end_paragraph();
    for (line, name) in tests {
        let words = name.replace('_', " ");
        let mut letters = words.chars();
        let first = letters.next().map(|letter| letter.to_ascii_uppercase());
        text.line(*line, &first.into_iter().chain(letters).collect::<String>());
        text.end_paragraph();
    }
}

fn long_names<'a>(path: &'a str, tests: &'a [(usize, String)]) -> impl Iterator<Item = Finding> + 'a {
    let long = tests.iter().filter(|(_, name)| name.len() > LONGEST_NAME);
    long.map(move |(line, name)| Finding {
        path: path.to_owned(),
        line: *line,
        rule: "TestName".to_owned(),
        word: name.clone(),
        sentence: name.clone(),
        message: format!(
            "A test name has at most {LONGEST_NAME} characters, this one {}. State the behaviour alone.",
            name.len()
        ),
        is_error: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_test_name_is_a_finding() {
        let tests = [(3, "a".repeat(60)), (9, "b".repeat(61))];
        let found: Vec<_> =
            long_names("a.rs", &tests).map(|finding| (finding.line, finding.is_error)).collect();
        assert_eq!(found, [(9, true)]);
    }

    #[test]
    fn a_test_name_is_read_as_a_sentence() {
        let mut text = Text::default();
        name_sentences(&mut text, &[(3, "lists_every_pod".to_owned())]);
        assert_eq!(text.finish().0, "Lists every pod.\n\n");
    }
}
