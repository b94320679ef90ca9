//! The backoff of retries doubles between two limits. Jitter subtracts up to a half, so that the consumers of
//! a restarted broker do not all reconnect at the same moment.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::time::Duration;

/// The pauses between connections of a consumer.
pub const CONNECT: Range<Duration> = Duration::from_millis(100)..Duration::from_secs(30);
/// The pauses while the broker rejects the credentials, or a file is unusable. A pod sees a renewed Secret after
/// about a minute.
pub const RENEWAL: Range<Duration> = Duration::from_secs(2)..Duration::from_mins(1);
/// The pauses of the producer, whose user waits.
pub const PRODUCE: Range<Duration> = Duration::from_millis(100)..Duration::from_secs(2);

/// The pause after this number of failures in a row. `random` is any number.
pub fn pause(limits: &Range<Duration>, failures: u32, random: u64) -> Duration {
    let doubled = limits.start.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1)));
    let percent = u32::try_from(random % 51).unwrap_or_default();
    doubled.min(limits.end) * (100 - percent) / 100
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
    fn pauses_double_up_to_the_limit() {
        let pauses =
            |limits| -> Vec<u128> { (1..8).map(|failures| pause(limits, failures, 0).as_millis()).collect() };
        assert_eq!(pauses(&PRODUCE), [100, 200, 400, 800, 1_600, 2_000, 2_000]);
        assert_eq!(pauses(&RENEWAL), [2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]);
        assert_eq!(pause(&CONNECT, u32::MAX, 0), Duration::from_secs(30));
    }

    #[test]
    fn jitter_subtracts_up_to_a_half() {
        let pauses: Vec<u64> = (0..100).map(|random| pause(&CONNECT, 10, random).as_secs()).collect();
        assert_eq!((pauses.iter().min(), pauses.iter().max()), (Some(&15), Some(&30)));
    }

    /// The jitter of a consumer's failures must be independent, as it is in the program: this is splitmix64.
    fn random(seed: u64) -> u64 {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let random = (random ^ (random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let random = (random ^ (random >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        random ^ (random >> 31)
    }

    /// A thousand consumers lose a broker at the same moment, for ten minutes.
    #[test]
    fn a_fleet_does_not_storm_a_broker() {
        let mut attempts = vec![0; 600];
        for consumer in 0..1_000_u64 {
            let mut time = Duration::ZERO;
            for failures in 1.. {
                let random = random(consumer * 1_000 + u64::from(failures));
                time += pause(&CONNECT, failures, random);
                let Some(attempts) = attempts.get_mut(usize::try_from(time.as_secs()).unwrap()) else {
                    break;
                };
                *attempts += 1;
            }
        }
        let worst = |seconds: Range<usize>| attempts[seconds].iter().max().copied().unwrap();
        // Each consumer tries three or four times in the first second, because the first pauses are short. Then the
        // jitter spreads each attempt over a time that doubles.
        for (seconds, limit) in [(0..1, 3_500), (1..4, 1_000), (4..15, 600), (15..60, 200), (60..600, 100)] {
            assert!(worst(seconds.clone()) < limit, "{seconds:?}: {attempts:?}");
        }
    }
}
