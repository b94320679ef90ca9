//! The prose of a Rust file: comments, string literals and the names of tests.

use std::ops::Range;

use anyhow::{Result, anyhow};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::text::Text;

/// A comment or a string literal, as it is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Comment,
    Literal,
}

/// The prose of a Rust file.
#[derive(Debug, Default)]
pub struct Prose {
    /// Comments and literals.
    pub text: Text,
    /// The names of the tests, with the line of each.
    pub tests: Vec<(usize, String)>,
}

/// Finds the prose of a Rust file.
pub fn prose(source: &str) -> Result<Prose> {
    let stream: TokenStream = source.parse().map_err(|error| anyhow!("this is not Rust: {error}"))?;
    let mut walk = Walk { source, code: Vec::new(), pieces: Vec::new(), tests: Vec::new() };
    walk.stream(stream);
    let Walk { code, mut pieces, tests, .. } = walk;
    // Between the tokens are only spaces and comments.
    let mut end = 0;
    for token in code.iter().chain([&(source.len()..source.len())]) {
        comments(source, end..token.start, &mut pieces);
        end = end.max(token.end);
    }
    pieces.sort_by_key(|(_, range)| range.start);
    let mut prose = Prose::default();
    let lines = Lines::of(source);
    let mut writer = Writer { source, lines: &lines, text: &mut prose.text, last: None, fenced: false };
    for (kind, range) in pieces {
        match kind {
            Kind::Comment => writer.comment(range),
            Kind::Literal => writer.literal(range),
        }
    }
    prose.tests = tests.into_iter().map(|(at, name)| (lines.number(at), name)).collect();
    Ok(prose)
}

/// Goes through the tokens in the order of the source.
struct Walk<'a> {
    source: &'a str,
    code: Vec<Range<usize>>,
    pieces: Vec<(Kind, Range<usize>)>,
    tests: Vec<(usize, String)>,
}

impl Walk<'_> {
    fn stream(&mut self, stream: TokenStream) {
        let (mut is_test, mut after_fn, mut after_hash) = (false, false, false);
        for token in stream {
            let hash = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#');
            match token {
                // The tokens of a doc comment have the comment as their place.
                TokenTree::Group(group) if self.is_comment(group.span().byte_range()) => {}
                TokenTree::Group(group) => {
                    if after_hash && group.delimiter() == Delimiter::Bracket {
                        is_test |= marks_test(group.stream());
                    }
                    self.token(group.span_open().byte_range());
                    self.stream(group.stream());
                    self.token(group.span_close().byte_range());
                }
                TokenTree::Ident(ident) => {
                    self.token(ident.span().byte_range());
                    if after_fn && is_test {
                        self.tests.push((ident.span().byte_range().start, ident.to_string()));
                        is_test = false;
                    }
                    after_fn = ident == "fn";
                }
                TokenTree::Punct(punct) => self.token(punct.span().byte_range()),
                TokenTree::Literal(literal) => {
                    let range = literal.span().byte_range();
                    if self.source[range.clone()].starts_with(['"', 'r']) {
                        self.pieces.push((Kind::Literal, range.clone()));
                    }
                    self.token(range);
                }
            }
            after_hash = hash;
        }
    }

    fn is_comment(&self, range: Range<usize>) -> bool {
        let written = &self.source[range];
        written.starts_with("//") || written.starts_with("/*")
    }

    fn token(&mut self, range: Range<usize>) {
        if !self.is_comment(range.clone()) {
            self.code.push(range);
        }
    }
}

/// Whether an attribute is `#[test]`, or one such as `#[tokio::test]` or `#[rstest]`.
fn marks_test(attribute: TokenStream) -> bool {
    let path = attribute.into_iter().take_while(|token| !matches!(token, TokenTree::Group(_)));
    let last =
        path.filter_map(|token| if let TokenTree::Ident(name) = token { Some(name) } else { None }).last();
    last.is_some_and(|name| name == "test" || name == "rstest")
}

/// Finds the comments between two tokens.
fn comments(source: &str, gap: Range<usize>, pieces: &mut Vec<(Kind, Range<usize>)>) {
    let mut at = gap.start;
    while at < gap.end {
        let rest = &source[at..gap.end];
        let Some(begin) = rest.find('/') else { return };
        let comment = &rest[begin..];
        let length = if comment.starts_with("/*") {
            comment.find("*/").map_or(comment.len(), |end| end + 2)
        } else {
            comment.find('\n').unwrap_or(comment.len())
        };
        pieces.push((Kind::Comment, at + begin..at + begin + length));
        at += begin + length;
    }
}

/// Where the lines of a source begin.
struct Lines(Vec<usize>);

impl Lines {
    fn of(source: &str) -> Self {
        let begins = source.match_indices('\n').map(|(at, _)| at + 1);
        Self([0].into_iter().chain(begins).collect())
    }

    /// The number of the line, from 1, that has this byte.
    fn number(&self, at: usize) -> usize {
        self.0.partition_point(|begin| *begin <= at)
    }
}

/// Writes comments and literals as paragraphs.
struct Writer<'a> {
    source: &'a str,
    lines: &'a Lines,
    text: &'a mut Text,
    /// The last line of the comment that the next one may continue, and its marker.
    last: Option<(usize, &'a str)>,
    /// Whether the line is code, between two fences of a doc comment.
    fenced: bool,
}

impl Writer<'_> {
    fn comment(&mut self, range: Range<usize>) {
        let number = self.lines.number(range.start);
        let written = &self.source[range.clone()];
        let marker = ["//!", "///", "//", "/*"].into_iter().find(|m| written.starts_with(m)).unwrap_or("//");
        let alone = self.source[self.lines.0[number - 1]..range.start].trim().is_empty();
        if self.last != Some((number - 1, marker)) || !alone {
            self.text.end_paragraph();
            self.fenced = false;
        }
        for (i, line) in written.trim_end_matches("*/").lines().enumerate() {
            let line = line.trim_start_matches(|c: char| "/*! ".contains(c));
            if line.starts_with("```") {
                self.text.end_paragraph();
                self.fenced = !self.fenced;
            } else if !self.fenced {
                // A list of a line comment begins with the marker that was cut.
                let item = written
                    .lines()
                    .nth(i)
                    .is_some_and(|l| l.trim_start_matches(['/', '!', ' ']).starts_with("* "));
                if item {
                    self.text.end_paragraph();
                }
                self.text.markdown(number + i, line);
            }
        }
        self.last = (alone && marker != "/*").then_some((number, marker));
    }

    fn literal(&mut self, range: Range<usize>) {
        self.last = None;
        let first = self.lines.number(range.start);
        let written = &self.source[range];
        let is_raw = written.starts_with('r');
        let inner = written.trim_start_matches('r').trim_matches('#');
        let inner = inner.strip_prefix('"').and_then(|s| s.strip_suffix('"')).unwrap_or(inner);
        if !is_prose(inner) {
            return;
        }
        self.text.end_paragraph();
        for (i, line) in inner.lines().enumerate() {
            if is_raw {
                self.text.line(first + i, &without_placeholders(line));
                continue;
            }
            let mut parts = line.split("\\n").peekable();
            while let Some(part) = parts.next() {
                let part = part.replace("\\\"", "\"").replace("\\\\", "\\");
                let continues = part.ends_with('\\') && parts.peek().is_none();
                self.text.line(first + i, &without_placeholders(part.trim_end_matches('\\')));
                // An empty line ends a paragraph, but not one that is nothing but `\`.
                if parts.peek().is_some() || (part.trim().is_empty() && !continues) {
                    self.text.end_paragraph();
                }
            }
        }
        self.text.end_paragraph();
    }
}

/// Whether a literal may be a sentence, or a part of one: it has two words with letters alone.
fn is_prose(literal: &str) -> bool {
    let is_word = |word: &&str| {
        let word = word.trim_matches(|c: char| c.is_ascii_punctuation());
        word.len() > 1 && word.chars().all(|c| c.is_alphabetic() || c == '\'' || c == '-')
    };
    literal.split_whitespace().filter(is_word).take(2).count() == 2
}

/// `{name}` of a format becomes a word.
fn without_placeholders(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('{') {
        plain.push_str(before);
        match after.split_once('}') {
            Some((name, after)) if !name.contains([' ', '{']) => {
                plain.push('X');
                rest = after;
            }
            _ => {
                plain.push('{');
                rest = after;
            }
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extracted(source: &str) -> Vec<(usize, String)> {
        let (text, lines) = prose(source).unwrap().text.finish();
        let lines = lines.into_iter().zip(text.lines().map(str::to_owned));
        lines.filter(|(_, line)| !line.is_empty()).collect()
    }

    fn line(number: usize, line: &str) -> (usize, String) {
        (number, line.to_owned())
    }

    #[test]
    fn finds_a_string_in_a_macro() {
        let source =
            "fn f() {\n    bail!(\"cannot read {}: {error:#}\\nDelete \\\n        the \\\"file\\\"\");\n}\n";
        let found = [line(2, "cannot read X: X."), line(2, "Delete"), line(3, "the \"file\".")];
        assert_eq!(extracted(source), found);
    }

    #[test]
    fn finds_a_raw_string() {
        let source = "const A: &str = r#\"\nfirst line\nsecond \"line\"\n\"#;\n";
        assert_eq!(extracted(source), [line(2, "first line"), line(3, "second \"line\".")]);
    }

    #[test]
    fn skips_strings_that_are_not_sentences() {
        assert!(extracted("const A: [&str; 3] = [\"podset\", \"a=b c.d\", \"\"];").is_empty());
    }

    #[test]
    fn finds_comments_of_every_kind() {
        let source = "//! Module doc.\n\n/// Item doc, see `x y`,\n/// continued.\n///\n/// ```\n/// code here\n/// ```\nfn f() {} // trailing\n// alone\n/* block */\n";
        let found = [
            line(1, "Module doc."),
            line(3, "Item doc, see X,"),
            line(4, "continued."),
            line(9, "trailing."),
            line(10, "alone."),
            line(11, "block."),
        ];
        assert_eq!(extracted(source), found);
    }

    #[test]
    fn slashes_in_a_string_are_not_a_comment() {
        assert_eq!(extracted("const A: &str = \"see // this\";\n"), [line(1, "see // this.")]);
    }

    #[test]
    fn finds_the_names_of_tests() {
        let source = "fn helper() {}\n#[test]\nfn one_thing() {}\n#[tokio::test(flavor = \"x\")]\nasync fn two_things() {}\n\
                      #[cfg(test)]\nmod tests {\n #[rstest]\n #[case(1)]\n fn third(#[case] n: u8) {}\n fn no() {}\n}\n";
        let names = [line(3, "one_thing"), line(5, "two_things"), line(10, "third")];
        assert_eq!(prose(source).unwrap().tests, names);
    }
}
