//! Parsers of flag values, for clap.

use std::time::Duration;

use jiff::SignedDuration;

/// A duration greater than zero.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = text.parse::<SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok());
    duration
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "must be a duration greater than 0, such as 15s, 1m30s or 500ms".to_owned())
}
