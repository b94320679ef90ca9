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

/// One path of an entry.
#[derive(Debug)]
struct Allowed {
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
        for Entry { paths, rule, word, reason } in file.exception {
            if reason.trim().is_empty() {
                bail!("the exception for {paths:?} has no reason");
            }
            for path in paths {
                let path = Pattern::new(&path).with_context(|| format!("{path:?} is not a pattern"))?;
                rules.push(Allowed { path, rule: rule.clone(), word: word.clone(), used: false });
            }
        }
        Ok(Self(rules))
    }

    /// Whether an exception allows the finding. Every exception that does counts as used.
    pub fn allow(&mut self, finding: &Finding) -> bool {
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
        let mut allowed = false;
        for rule in &mut self.0 {
            let matches = rule.path.matches_with(&finding.path, options)
                && rule.rule.as_ref().is_none_or(|name| *name == finding.rule)
                && rule.word.as_ref().is_none_or(|word| word.eq_ignore_ascii_case(&finding.word));
            rule.used |= matches;
            allowed |= matches;
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
}
