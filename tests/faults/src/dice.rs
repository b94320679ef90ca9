//! Random numbers. The same seed gives the same numbers on every machine.

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The sequence of this seed and name.
    pub fn of(seed: u64, name: &str) -> Self {
        let mixed =
            name.bytes().fold(seed, |mixed, byte| mixed.wrapping_mul(0x0100_0000_01b3) ^ u64::from(byte));
        Self::new(mixed)
    }

    fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.next() % bound).unwrap_or(0)
    }

    /// True with a probability of `percent`.
    pub fn is(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// A random item of a slice that is not empty.
    pub fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}
