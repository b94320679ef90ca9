//! The findings that `exceptions.toml` allows.

use anyhow::{Context, Result, bail};
use glob::{MatchOptions, Pattern};
use serde::Deserialize;

use crate::Finding;

/// The most entries of the list `exception`.
const MOST: usize = 20;

/// `exceptions.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    exception: Vec<Entry>,
    #[serde(default)]
    waiting: Vec<Waiting>,
    #[serde(default)]
    not_yet: NotYet,
}

/// Texts that are not rewritten yet.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotYet {
    paths: Vec<String>,
}

/// Findings that stay.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    paths: Vec<String>,
    rule: Option<String>,
    word: Option<String>,
    reason: String,
}

/// Findings that an issue removes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Waiting {
    issue: String,
    paths: Vec<String>,
}

/// Why a finding is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Because {
    Exception,
    Waiting,
    NotYet,
}

/// One path of an entry.
#[derive(Debug)]
struct Allowed {
    because: Because,
    path: Pattern,
    rule: Option<String>,
    word: Option<String>,
    used: bool,
}

/// Every exception, and whether it was used.
#[derive(Debug)]
pub struct Exceptions(Vec<Allowed>);

impl Exceptions {
    /// Reads `exceptions.toml`.
    pub fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text).context("cannot read the exceptions")?;
        if file.exception.len() > MOST {
            bail!("exceptions.toml has {} exceptions; at most {MOST} are allowed", file.exception.len());
        }
        let mut rules = Vec::new();
        let mut add = |because, paths: &[String], rule: Option<&String>, word: Option<&String>| {
            for path in paths {
                let path = Pattern::new(path).with_context(|| format!("{path:?} is not a pattern"))?;
                rules.push(Allowed { because, path, rule: rule.cloned(), word: word.cloned(), used: false });
            }
            Ok::<_, anyhow::Error>(())
        };
        for entry in &file.exception {
            if entry.reason.trim().is_empty() {
                bail!("the exception for {:?} has no reason", entry.paths);
            }
            add(Because::Exception, &entry.paths, entry.rule.as_ref(), entry.word.as_ref())?;
        }
        for entry in &file.waiting {
            if entry.issue.trim().is_empty() {
                bail!("the entry that waits for {:?} names no issue", entry.paths);
            }
            add(Because::Waiting, &entry.paths, None, None)?;
        }
        add(Because::NotYet, &file.not_yet.paths, None, None)?;
        Ok(Self(rules))
    }

    /// Drops the folders that are not rewritten yet: their findings count.
    pub fn without_not_yet(mut self) -> Self {
        self.0.retain(|rule| rule.because != Because::NotYet);
        self
    }

    /// Whether an exception allows the finding. Every exception that does counts as used, except that a folder of `not_yet`
    /// counts only where no other exception allows the finding.
    pub fn allow(&mut self, finding: &Finding) -> bool {
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
        let matches = |rule: &Allowed| {
            rule.path.matches_with(&finding.path, options)
                && rule.rule.as_ref().is_none_or(|name| *name == finding.rule)
                && rule.word.as_ref().is_none_or(|word| word.eq_ignore_ascii_case(&finding.word))
        };
        let (mut allowed, mut allowed_for_good) = (false, false);
        for rule in &mut self.0 {
            if matches(rule) && !(allowed_for_good && rule.because == Because::NotYet) {
                rule.used = true;
                allowed = true;
                allowed_for_good |= rule.because != Because::NotYet;
            }
        }
        allowed
    }

    /// The patterns that allowed nothing.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|rule| !rule.used).map(|rule| rule.path.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(path: &str, word: &str) -> Finding {
        Finding {
            path: path.into(),
            line: 1,
            rule: "Words".into(),
            word: word.into(),
            sentence: String::new(),
            message: String::new(),
            is_error: true,
        }
    }

    #[test]
    fn an_exception_needs_a_reason() {
        assert!(Exceptions::parse("[[exception]]\npaths = [\"a\"]\nreason = \" \"\n").is_err());
        assert!(Exceptions::parse("[[waiting]]\npaths = [\"a\"]\nissue = \"\"\n").is_err());
    }

    #[test]
    fn at_most_twenty_exceptions_are_allowed() {
        let entry = "[[exception]]\npaths = [\"a\"]\nreason = \"b\"\n";
        assert!(Exceptions::parse(&entry.repeat(20)).is_ok());
        assert!(Exceptions::parse(&entry.repeat(21)).is_err());
    }

    #[test]
    fn an_exception_allows_its_path_and_word_alone() {
        let text = "[[exception]]\npaths = [\"docs/*.md\", \"x\"]\nword = \"says\"\nreason = \"b\"\n";
        let mut exceptions = Exceptions::parse(text).unwrap();
        assert!(exceptions.allow(&finding("docs/a.md", "Says")));
        assert!(!exceptions.allow(&finding("docs/a.md", "anew")));
        assert!(!exceptions.allow(&finding("docs/a/b.md", "says")));
        assert_eq!(exceptions.unused().collect::<Vec<_>>(), ["x"]);
    }

    #[test]
    fn a_folder_not_yet_rewritten_counts_last() {
        let text =
            "[[waiting]]\npaths = [\"a/b/**\"]\nissue = \"c\"\n[not_yet]\npaths = [\"a/**\", \"b/**\"]\n";
        let mut exceptions = Exceptions::parse(text).unwrap();
        assert!(exceptions.allow(&finding("a/b/c.rs", "anew")));
        assert!(exceptions.allow(&finding("b/c.rs", "anew")));
        assert_eq!(exceptions.unused().collect::<Vec<_>>(), ["a/**"]);
        assert!(!exceptions.without_not_yet().allow(&finding("b/c.rs", "anew")));
    }
}
