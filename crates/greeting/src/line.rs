//! Formats a message as one line. It escapes characters that break the line or the terminal, or that reorder
//! text.

use std::fmt::Write as _;

/// The longest prefix of a line.
const LONGEST_PREFIX: &str = "Greeting";

/// Returns `prefix: message`. Control characters, Unicode line ends and direction overrides are escaped as in
/// Rust source. Marks, joiners and variants, which right-to-left text and emoji need, stay.
pub fn line(prefix: &str, message: &str) -> String {
    let mut line = String::with_capacity(prefix.len() + 2 + message.len());
    line.push_str(prefix);
    line.push_str(": ");
    for character in message.chars() {
        match character {
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            broken if is_escaped(broken) => {
                let _ = write!(line, "\\u{{{:x}}}", u32::from(broken));
            }
            plain => line.push(plain),
        }
    }
    line
}

/// Whether a character is a control character, a line or paragraph separator, or changes the direction of
/// text. With these, a message could end its line, or look like another Greeting's message.
fn is_escaped(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The bytes of all lines of a message that are printed together: at most three, at creation.
pub fn most_bytes(message: &str) -> usize {
    3 * (line(LONGEST_PREFIX, message).len() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("Hello, World!", "Greeting: Hello, World!")]
    #[case("two\nlines", "Greeting: two\\nlines")]
    #[case("bell\u{7}", "Greeting: bell\\u{7}")]
    #[case("\u{1b}[31mred", "Greeting: \\u{1b}[31mred")]
    #[case("a\u{2028}b", "Greeting: a\\u{2028}b")]
    #[case("שלום 👋", "Greeting: שלום 👋")]
    #[case("\u{200f}שלום\u{200e} x", "Greeting: \u{200f}שלום\u{200e} x")]
    #[case("👩\u{200d}🚀❤\u{fe0f}", "Greeting: 👩\u{200d}🚀❤\u{fe0f}")]
    #[case("a\u{202e}b\u{2066}c", "Greeting: a\\u{202e}b\\u{2066}c")]
    #[case("C:\\new", "Greeting: C:\\new")]
    fn escapes_special_characters(#[case] message: &str, #[case] expected: &str) {
        assert_eq!(line("Greeting", message), expected);
    }

    proptest! {
        #[test]
        fn every_message_is_one_line(message in any::<String>()) {
            let line = line("Timer", &message);
            prop_assert_eq!(line.lines().count(), 1);
            prop_assert!(!line.chars().any(is_escaped));
            prop_assert!(3 * (line.len() + 1) <= most_bytes(&message), "{}", line);
        }
    }
}
