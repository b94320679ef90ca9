//! A message as one line: what would break the line or the terminal is escaped.

use std::fmt::Write as _;

/// `prefix: message`, with control characters and Unicode's own line ends escaped as in Rust source.
pub fn line(prefix: &str, message: &str) -> String {
    let mut line = String::with_capacity(prefix.len() + 2 + message.len());
    line.push_str(prefix);
    line.push_str(": ");
    for character in message.chars() {
        match character {
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            broken if broken.is_control() || matches!(broken, '\u{2028}' | '\u{2029}') => {
                let _ = write!(line, "\\u{{{:x}}}", u32::from(broken));
            }
            plain => line.push(plain),
        }
    }
    line
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
    fn one_line(#[case] message: &str, #[case] expected: &str) {
        assert_eq!(line("Greeting", message), expected);
    }

    proptest! {
        #[test]
        fn always_one_line(message in any::<String>()) {
            let line = line("Timer", &message);
            prop_assert_eq!(line.lines().count(), 1);
            prop_assert!(!line.chars().any(char::is_control));
        }
    }
}
