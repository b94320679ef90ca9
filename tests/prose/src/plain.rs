//! The prose of YAML, TOML and JSON files and of chart templates.

use crate::text::Text;

/// Keys whose values are sentences.
const KEYS: [&str; 4] = ["description", "summary", "message", "$comment"];

/// Comments of a YAML or TOML file, and the values of a few keys.
pub fn yaml(source: &str) -> Text {
    let mut text = Text::default();
    // The indentation of the key whose value continues.
    let mut value_of: Option<usize> = None;
    let mut last_was_comment = false;
    for (i, line) in source.lines().enumerate() {
        let (number, trimmed) = (i + 1, line.trim());
        let indentation = line.len() - line.trim_start().len();
        if let Some(key) = value_of {
            if trimmed.is_empty() || indentation > key {
                text.line(number, &without_templates(trimmed));
                continue;
            }
            text.end_paragraph();
            value_of = None;
        }
        let comment = comment(line);
        if let Some((comment, alone)) = comment {
            if !alone || !last_was_comment {
                text.end_paragraph();
            }
            text.markdown(number, comment.trim_start_matches(['#', '-']));
            last_was_comment = alone;
            continue;
        }
        text.end_paragraph();
        last_was_comment = false;
        let Some((key, value)) = trimmed
            .trim_start_matches("- ")
            .split_once(": ")
            .or_else(|| trimmed.trim_start_matches("- ").strip_suffix(':').map(|key| (key, "")))
        else {
            continue;
        };
        if KEYS.contains(&key) {
            let value = value.trim_start_matches(['>', '|', '+', '-']).trim();
            text.line(number, &without_templates(value.trim_matches(['"', '\''])));
            value_of = Some(indentation);
        }
    }
    text
}

/// The comment of a line, and whether the line has nothing else.
fn comment(line: &str) -> Option<(&str, bool)> {
    let trimmed = line.trim_start();
    if let Some(comment) = trimmed.strip_prefix('#') {
        return Some((comment, true));
    }
    let (code, comment) = line.split_once(" # ")?;
    let is_quoted = |quote| code.matches(quote).count() % 2 == 1;
    (!is_quoted('"') && !is_quoted('\'')).then_some((comment, false))
}

/// The descriptions of a JSON schema.
pub fn json(source: &str) -> Text {
    let mut text = Text::default();
    for (i, line) in source.lines().enumerate() {
        for key in KEYS {
            for part in line.split(&format!("\"{key}\": \"")).skip(1) {
                let end = part.match_indices('"').find(|(at, _)| !part[..*at].ends_with('\\'));
                let value = &part[..end.map_or(part.len(), |(at, _)| at)];
                text.line(i + 1, &value.replace("\\\"", "\"").replace("\\n", " "));
                text.end_paragraph();
            }
        }
    }
    text
}

/// A template of the chart: comments, and strings of three words or more. `notes` is the text of NOTES.txt, where everything
/// outside of actions is prose.
pub fn template(source: &str, notes: bool) -> Text {
    let mut text = Text::default();
    let mut in_comment = false;
    for (i, line) in source.lines().enumerate() {
        let number = i + 1;
        if in_comment || line.contains("{{/*") || line.contains("{{- /*") {
            if !in_comment {
                text.end_paragraph();
            }
            let inner =
                line.replace("{{/*", "").replace("{{- /*", "").replace("*/}}", "").replace("*/ -}}", "");
            text.markdown(number, &inner);
            in_comment = !line.contains("*/");
            if !in_comment {
                text.end_paragraph();
            }
            continue;
        }
        if let Some(comment) = line.trim_start().strip_prefix("# ") {
            text.line(number, &without_templates(comment));
            continue;
        }
        let has_action = line.contains("{{");
        // Commands are indented.
        let is_prose = notes && !line.starts_with("  ") && !without_templates(line).trim().is_empty();
        if is_prose {
            text.line(number, &without_templates(line));
        } else {
            text.end_paragraph();
        }
        if has_action {
            text.end_paragraph();
            for literal in line.split('"').skip(1).step_by(2) {
                if literal.split_whitespace().count() > 2 {
                    text.line(number, &literal.replace("%s", "X").replace("%d", "1"));
                    text.end_paragraph();
                }
            }
        }
    }
    text
}

/// `{{ … }}` becomes a word; a line of nothing else becomes empty.
fn without_templates(line: &str) -> String {
    let mut plain = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("{{") {
        plain.push_str(before);
        plain.push('X');
        rest = after.split_once("}}").map_or("", |(_, rest)| rest);
    }
    plain.push_str(rest);
    if plain.contains(|c: char| c.is_alphabetic() && c != 'X') { plain } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: Text) -> Vec<String> {
        text.finish().0.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    #[test]
    fn finds_comments_and_descriptions_of_yaml() {
        let source = "# First\n# line.\na: \"b # c\"\nb: 1 # why\ndescription: >-\n  Two\n  lines.\nsummary: \"{{ $x }} ends.\"\nname: no\n";
        assert_eq!(lines(yaml(source)), ["First", "line.", "why.", "Two", "lines.", "X ends."]);
    }

    #[test]
    fn finds_descriptions_of_json() {
        assert_eq!(lines(json("{ \"description\": \"A \\\"b\\\".\", \"type\": \"c\" }")), ["A \"b\"."]);
    }

    #[test]
    fn finds_messages_and_comments_of_a_template() {
        let source = "{{- fail (printf \"Set %s to true.\" .x) }}\n{{/* Why\nso. */}}\nkind: \"a\"\n# Note\n";
        assert_eq!(lines(template(source, false)), ["Set X to true.", "Why", "so.", "Note."]);
        assert_eq!(lines(template("See {{ .x }} now:\n  a b c\n{{ end }}\n", true)), ["See X now."]);
    }
}
