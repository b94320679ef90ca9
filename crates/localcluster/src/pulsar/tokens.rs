//! Tokens for Pulsar's brokers: JSON Web Tokens (RFC 7519), signed with HMAC-SHA256.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The block size of SHA-256, in bytes.
const BLOCK: usize = 64;

/// The token of a role, with an optional expiry.
pub fn token(secret: &[u8], role: &str, ends: Option<SystemTime>) -> String {
    let mut claims = json!({ "sub": role });
    if let Some(ends) = ends {
        let seconds = ends.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        claims["exp"] = Value::from(seconds);
    }
    let signed = format!(
        "{}.{}",
        base64url(json!({"alg": "HS256", "typ": "JWT"}).to_string().as_bytes()),
        base64url(claims.to_string().as_bytes())
    );
    let signature = base64url(&hmac_sha256(secret, signed.as_bytes()));
    format!("{signed}.{signature}")
}

/// RFC 2104.
fn hmac_sha256(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().to_vec()
}

/// RFC 4648, section 5, without padding.
fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().enumerate().fold(0_u32, |bits, (i, byte)| bits | u32::from(*byte) << (16 - 8 * i));
        for digit in 0..=group.len() {
            let index = (bits >> (18 - 6 * digit)) & 0x3f;
            text.push(char::from(DIGITS[index as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_bytes_in_base64url() {
        for (bytes, text) in [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")] {
            assert_eq!(base64url(bytes.as_bytes()), text);
        }
        assert_eq!(base64url(&[0xfb, 0xff]), "-_8");
    }

    #[test]
    fn signs_the_examples_of_rfc_4231() {
        let hex = |bytes: Vec<u8>| bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
        assert_eq!(
            hex(hmac_sha256(b"Jefe", b"what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(hmac_sha256(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }

    #[test]
    fn a_token_has_three_parts() {
        let token = token(b"secret", "admin", Some(UNIX_EPOCH));
        assert_eq!(token.split('.').count(), 3);
        assert!(token.starts_with("eyJ"));
    }
}
