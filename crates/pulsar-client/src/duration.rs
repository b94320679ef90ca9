//! Durations in the format of Go and Kubernetes: `60s`, `1m30s`, `500ms`.

use std::time::Duration;

/// Parses a duration: numbers with the units h, m, s and ms, the largest first. `0` needs no unit.
pub fn parse(text: &str) -> Result<Duration, String> {
    let malformed = || format!("{text:?} is not a duration: write it as 60s, 1m30s or 500ms");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut sum = Duration::ZERO;
    let mut smallest = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(malformed)?;
        let number: u64 = rest[..digits].parse().map_err(|_| malformed())?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let milliseconds = match &rest[..unit] {
            "h" => 3_600_000,
            "m" => 60_000,
            "s" => 1_000,
            "ms" => 1,
            _ => return Err(malformed()),
        };
        if milliseconds >= smallest {
            return Err(malformed());
        }
        smallest = milliseconds;
        let part = number.checked_mul(milliseconds).map(Duration::from_millis);
        sum = part.and_then(|part| sum.checked_add(part)).ok_or_else(malformed)?;
        rest = &rest[unit..];
    }
    if smallest == u64::MAX { Err(malformed()) } else { Ok(sum) }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("60s", 60_000)]
    #[case("1m30s", 90_000)]
    #[case("500ms", 500)]
    #[case("2h", 7_200_000)]
    #[case("1h1m1s1ms", 3_661_001)]
    #[case("0", 0)]
    #[case("0s", 0)]
    fn parses_durations(#[case] text: &str, #[case] milliseconds: u64) {
        assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)));
    }

    #[rstest]
    #[case("")]
    #[case("60")]
    #[case("s")]
    #[case("-1s")]
    #[case("1.5s")]
    #[case("1s1m")]
    #[case("1s1s")]
    #[case("1d")]
    #[case("1 s")]
    #[case("99999999999999999999s")]
    #[case("18446744073709551615h")]
    fn rejects_invalid_durations(#[case] text: &str) {
        assert!(parse(text).unwrap_err().contains("write it as"), "{text}");
    }
}
