//! Names and hashes that outlive a process: short, lower-case, and valid in labels and DNS names.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// The first `characters` of the base32 form of the SHA-256 of `parts`, joined by a zero byte.
///
/// Ten characters are 50 bits: a collision among 5,000 nodes has a chance of about one in 90 million.
pub fn short(parts: &[&str], characters: usize) -> String {
    let mut hasher = Sha256::new();
    for (index, part) in parts.iter().enumerate() {
        if index > 0 {
            hasher.update([0]);
        }
        hasher.update(part.as_bytes());
    }
    base32(&hasher.finalize(), characters)
}

/// The first byte of the SHA-256 of a text, to distribute texts evenly.
pub fn first_byte(text: &str) -> u8 {
    Sha256::digest(text.as_bytes())[0]
}

/// A digest of a JSON value that ignores the order of keys, and members that are null.
pub fn of_json(value: &Value, characters: usize) -> String {
    let mut hasher = Sha256::new();
    feed(value, &mut hasher);
    base32(&hasher.finalize(), characters)
}

fn feed(value: &Value, hasher: &mut Sha256) {
    match value {
        Value::Object(members) => {
            let mut keys: Vec<&String> =
                members.iter().filter(|(_, member)| !member.is_null()).map(|(key, _)| key).collect();
            keys.sort_unstable();
            hasher.update(b"{");
            for key in keys {
                hasher.update(Value::String(key.clone()).to_string().as_bytes());
                hasher.update(b":");
                feed(&members[key.as_str()], hasher);
                hasher.update(b",");
            }
            hasher.update(b"}");
        }
        Value::Array(items) => {
            hasher.update(b"[");
            for item in items {
                feed(item, hasher);
                hasher.update(b",");
            }
            hasher.update(b"]");
        }
        scalar => hasher.update(scalar.to_string().as_bytes()),
    }
}

/// The first `characters` of the lower-case base32 form of `bytes`.
fn base32(bytes: &[u8], characters: usize) -> String {
    let mut text = String::with_capacity(characters);
    for index in 0..characters {
        let bit = index * 5;
        let high = u16::from(bytes[bit / 8]) << 8;
        let low = bytes.get(bit / 8 + 1).copied().map_or(0, u16::from);
        let five = ((high | low) >> (11 - bit % 8)) & 0x1f;
        text.push(char::from(ALPHABET[usize::from(five)]));
    }
    text
}

/// Truncates a name so that the name with `-` and a suffix is still a valid DNS name.
pub fn cut(name: &str, length: usize) -> &str {
    let end = name.char_indices().map(|(at, _)| at).chain([name.len()]).take_while(|at| *at <= length).last();
    name[..end.unwrap_or(0)].trim_end_matches(|last: char| !last.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn base32_is_the_standard_encoding() {
        assert_eq!(base32(b"foobar", 9), "mzxw6ytbo");
        assert_eq!(base32(b"f", 1), "m");
    }

    #[test]
    fn ignores_key_order_and_nulls_but_not_values_and_types() {
        let one = of_json(&json!({"a": 1, "b": {"c": null, "d": [1, 2]}}), 10);
        assert_eq!(one, of_json(&json!({"b": {"d": [1, 2]}, "a": 1}), 10));
        assert_ne!(one, of_json(&json!({"b": {"d": [2, 1]}, "a": 1}), 10));
        assert_ne!(of_json(&json!({"a": "1"}), 10), of_json(&json!({"a": 1}), 10));
        assert_ne!(of_json(&json!([]), 10), of_json(&json!({}), 10));
    }

    #[test]
    fn a_cut_name_ends_in_a_letter_or_digit() {
        assert_eq!(cut("abc", 40), "abc");
        assert_eq!(cut("abc.-def", 5), "abc");
        assert_eq!(cut("abcdef", 3), "abc");
    }

    #[test]
    fn the_same_text_in_other_parts_has_another_digest() {
        assert_ne!(short(&["ab", "c"], 10), short(&["a", "bc"], 10));
    }
}
