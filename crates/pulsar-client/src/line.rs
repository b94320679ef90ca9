//! Formats a payload as a line for standard output.

/// The prefix of every line.
pub const BEGINNING: &[u8] = b"Message Received: ";

/// Appends the line of a payload. It escapes control characters and Unicode line separators (`\n`, `\u{1b}`),
/// so that one message is one line. Bytes that are not UTF-8 become U+FFFD.
pub fn write(payload: &[u8], lines: &mut Vec<u8>) {
    lines.extend_from_slice(BEGINNING);
    if payload.iter().all(|byte| matches!(byte, b' '..=b'~')) {
        lines.extend_from_slice(payload);
    } else {
        let mut bytes = [0; 4];
        for c in String::from_utf8_lossy(payload).chars() {
            if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
                lines.extend(c.escape_default().map(|c| u8::try_from(c).unwrap_or(b'?')));
            } else {
                lines.extend_from_slice(c.encode_utf8(&mut bytes).as_bytes());
            }
        }
    }
    lines.push(b'\n');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn line(payload: &[u8]) -> String {
        let mut lines = Vec::new();
        write(payload, &mut lines);
        String::from_utf8(lines).unwrap()
    }

    #[rstest]
    #[case(b"Sample Message", "Sample Message")]
    #[case(b"", "")]
    #[case(b"{\"a\": \"b\\n\"}", "{\"a\": \"b\\n\"}")]
    #[case("gr\u{fc}\u{df}e \u{1f600}".as_bytes(), "gr\u{fc}\u{df}e \u{1f600}")]
    #[case(b"a\nb\r\n\tc", "a\\nb\\r\\n\\tc")]
    #[case(b"\x1b[31m\x00\x7f", "\\u{1b}[31m\\u{0}\\u{7f}")]
    #[case("\u{85}\u{2028}".as_bytes(), "\\u{85}\\u{2028}")]
    #[case(b"a\xffb", "a\u{fffd}b")]
    fn escapes_special_characters(#[case] payload: &[u8], #[case] text: &str) {
        assert_eq!(line(payload), format!("Message Received: {text}\n"));
    }

    proptest! {
        #[test]
        fn any_payload_is_exactly_one_line(payload: Vec<u8>) {
            let line = line(&payload);
            prop_assert_eq!(line.lines().count(), 1);
            prop_assert_eq!(line.matches(char::is_control).count(), 1);
        }
    }
}
