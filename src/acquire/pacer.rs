//! Pauses between questions, for waits in which nothing announces when to ask.

use std::time::Duration;

use crate::time;

/// The shortest pause in which another process has a chance to be first.
///
/// Measured: on a quiet machine another process needs 100 µs to be woken and to ask. A busy machine needs more, and a Java
/// process needs about 1 ms. The pauses of Redisson's spin lock also begin with 1 ms.
pub(super) const PAUSE: Duration = Duration::from_millis(1);

/// Random pauses that double for as long as nothing changes.
pub(super) struct Pacer {
    /// The shortest and the longest pause at first.
    first: (Duration, Duration),
    /// How often the pauses have doubled, and how often they may.
    doubled: u32,
    most: u32,
}

impl Pacer {
    pub(super) fn new(first: (Duration, Duration), most: u32) -> Self {
        Self {
            first,
            doubled: 0,
            most,
        }
    }

    /// How long the next pause may be.
    pub(super) fn longest(&self) -> Duration {
        self.first.1 * 2_u32.pow(self.doubled)
    }

    pub(super) fn next_pause(&mut self) -> Duration {
        let shortest = self.first.0 * 2_u32.pow(self.doubled);
        let pause = time::between(shortest, self.longest());
        self.doubled = (self.doubled + 1).min(self.most);
        pause
    }

    /// Begins with short pauses again, since something has changed.
    pub(super) fn reset(&mut self) {
        self.doubled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_they_are_reset() {
        let ms = Duration::from_millis;
        let mut pacer = Pacer::new((ms(1), ms(2)), 6);
        for _ in 0..2 {
            for doubled in [0, 1, 2, 3, 4, 5, 6, 6, 6] {
                let (shortest, longest) = (ms(1) * 2_u32.pow(doubled), ms(2) * 2_u32.pow(doubled));
                assert_eq!(pacer.longest(), longest);
                let pause = pacer.next_pause();
                assert!((shortest..=longest).contains(&pause), "{pause:?}");
            }
            pacer.reset();
        }
    }
}
