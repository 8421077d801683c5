//! Pseudo-random numbers that are the same in every run.

/// A pseudo-random generator with a fixed seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number from 0 to `below` - 1.
    pub(crate) fn draw(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % below
    }

    /// All numbers below `end`, in random order.
    pub(crate) fn shuffled(&mut self, end: usize) -> Vec<usize> {
        let mut all: Vec<_> = (0..end).collect();
        for place in 0..end {
            let other = place + self.draw(end - place);
            all.swap(place, other);
        }
        all
    }

    /// Between one and `most` different numbers below `end`, in random order.
    pub(crate) fn some_of(&mut self, end: usize, most: usize) -> Vec<usize> {
        let mut all = self.shuffled(end);
        all.truncate(1 + self.draw(most));
        all
    }
}
