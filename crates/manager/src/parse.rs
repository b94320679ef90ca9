//! Values of flags that several commands take.

use std::time::Duration;

use jiff::SignedDuration;

/// A length of time, more than none.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let duration = text.parse::<SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok());
    duration
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "write it as 15s, 1m30s or 500ms".to_owned())
}
