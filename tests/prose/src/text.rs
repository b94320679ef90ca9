//! The text that Vale reads instead of a source file: its prose alone, and for each line of it the line of the source.

use std::mem;

/// Stands for code, a link's address or a placeholder in a sentence.
const CODE: &str = "X";

/// Paragraphs, separated by empty lines.
#[derive(Debug, Default)]
pub struct Text {
    lines: Vec<(usize, String)>,
    paragraph: Vec<(usize, String)>,
}

impl Text {
    /// Appends a line of the source to the current paragraph. An empty one ends the paragraph.
    pub fn line(&mut self, number: usize, line: &str) {
        let line = line.trim();
        if line.is_empty() {
            self.end_paragraph();
        } else {
            self.paragraph.push((number, line.to_owned()));
        }
    }

    /// Ends the current paragraph.
    pub fn end_paragraph(&mut self) {
        let paragraph = mem::take(&mut self.paragraph);
        if paragraph.is_empty() {
            return;
        }
        let joined: Vec<&str> = paragraph.iter().map(|(_, line)| line.as_str()).collect();
        let mut plain = without_code(&joined.join("\n"));
        // A message begins with a small letter, and a sentence for Vale with a capital one.
        let first = plain.split_whitespace().next().unwrap_or_default();
        if ["what", "who", "whoever"].contains(&first) {
            plain.replace_range(..1, "W");
        }
        // Vale sees the end of a sentence by its full stop alone.
        if !plain.ends_with(['.', '?', '!']) {
            plain.truncate(plain.trim_end_matches([',', ':', ';']).len());
            plain.push('.');
        }
        let numbers = paragraph.iter().map(|(number, _)| *number);
        self.lines.extend(numbers.zip(plain.split('\n').map(str::to_owned)));
        let last = paragraph.last().map_or(0, |(number, _)| *number);
        self.lines.push((last, String::new()));
    }

    /// Appends one line of Markdown, which may begin a paragraph of its own.
    pub fn markdown(&mut self, number: usize, line: &str) {
        let line = line.trim();
        let ordered = line.split_once(". ").is_some_and(|(n, _)| n.parse::<u8>().is_ok());
        if line.starts_with(['#', '|', '>']) || line.starts_with("- ") || line.starts_with("* ") || ordered {
            self.end_paragraph();
        }
        if line.starts_with('|') {
            for cell in line.split('|').filter(|cell| cell.contains(char::is_alphabetic)) {
                self.line(number, cell);
                self.end_paragraph();
            }
            return;
        }
        self.line(number, line.trim_start_matches(['#', '-', '*', '>', ' ']));
        if line.starts_with('#') {
            self.end_paragraph();
        }
    }

    /// The whole text, and the line of the source that each of its lines comes from.
    pub fn finish(mut self) -> (String, Vec<usize>) {
        self.end_paragraph();
        let numbers = self.lines.iter().map(|(number, _)| *number).collect();
        let text = self.lines.into_iter().map(|(_, line)| line + "\n").collect();
        (text, numbers)
    }
}

/// Replaces code between backticks, addresses and placeholders. Keeps every end of a line.
fn without_code(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut parts = text.split('`');
    plain.push_str(parts.next().unwrap_or_default());
    while let Some(code) = parts.next() {
        let Some(prose) = parts.next() else {
            plain.push_str(code);
            break;
        };
        plain.push_str(CODE);
        plain.extend(code.chars().filter(|c| *c == '\n'));
        plain.push_str(prose);
    }
    let lines = plain.split('\n').map(|line| {
        let words = line.split(' ').map(|word| if word.contains("://") { CODE } else { word });
        without_links(&words.collect::<Vec<_>>().join(" "))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// `[text](address)` becomes `text`, and `[text]` too.
fn without_links(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    plain.replace(['[', ']'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[&str]) -> (String, Vec<usize>) {
        let mut text = Text::default();
        for (i, line) in lines.iter().enumerate() {
            text.markdown(i + 1, line);
        }
        text.finish()
    }

    #[test]
    fn code_and_links_leave_the_sentence() {
        let (plain, lines) =
            text(&["The [manager](docs/a.md) reads `a", "b` from https://a.example/b.", "", "- Item"]);
        assert_eq!(plain, "The manager reads X\n from X.\n\nItem.\n\n");
        assert_eq!(lines, [1, 2, 2, 4, 4]);
    }

    #[test]
    fn a_message_is_a_sentence() {
        assert_eq!(text(&["who", "reads"]).0, "Who\nreads.\n\n");
    }

    #[test]
    fn a_table_cell_is_a_paragraph() {
        assert_eq!(text(&["| a b | c |", "|---|---|"]).0, "a b.\n\nc.\n\n");
    }
}
