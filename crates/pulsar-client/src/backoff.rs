//! The backoff of retries is 100 ms, doubling to 2 s. Jitter subtracts up to a quarter, so that consumers do
//! not all reconnect at the same moment.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);

/// The longest pause.
pub const LONGEST: Duration = Duration::from_secs(2);

/// The pause after this number of failures in a row. `random` is any number.
pub fn pause(failures: u32, random: u64) -> Duration {
    let full = FIRST.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(LONGEST);
    let percent = u32::try_from(random % 26).unwrap_or_default();
    full * (100 - percent) / 100
}

/// A random number.
pub fn random() -> u64 {
    // The system seeds every state.
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_two_seconds() {
        let pauses: Vec<u128> = (1..8).map(|failures| pause(failures, 0).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000]);
        assert_eq!(pause(u32::MAX, 0), LONGEST);
    }

    #[test]
    fn jitter_subtracts_up_to_a_quarter() {
        for random in 0..100 {
            let pause = pause(10, random);
            assert!((LONGEST * 3 / 4..=LONGEST).contains(&pause), "{pause:?}");
        }
    }
}
