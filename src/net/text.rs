//! Short texts without a heap allocation: the ids of owners, and numbers, which every request needs.

use std::fmt::{self, Display, Write as _};
use std::ops::Deref;

/// A text of at most `N` bytes, kept in place.
#[derive(Clone)]
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

/// A number in decimal.
pub(crate) type Digits = Text<20>;

impl<const N: usize> Default for Text<N> {
    /// The empty text.
    fn default() -> Self {
        Self {
            bytes: [0; N],
            len: 0,
        }
    }
}

impl<const N: usize> Text<N> {
    /// The text of `shown`, which has to fit.
    pub(crate) fn of(shown: impl Display) -> Self {
        let mut text = Self::default();
        write!(text, "{shown}").expect("a text that is short enough");
        text
    }
}

/// These methods avoid `std::fmt` and the UTF-8 check of `deref`, which together would be 800 of the 12,000 instructions
/// of a request (bench: 64 threads on 64 locks).
impl<const N: usize> Text<N> {
    /// A copy of `text`, which has to fit.
    pub(crate) fn copy(text: &str) -> Self {
        let mut copy = Self::default();
        copy.write_str(text).expect("a text that is short enough");
        copy
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// `front` followed by `n` in decimal. Both have to fit.
    pub(crate) fn numbered(front: &str, n: u64) -> Self {
        let mut text = Self::copy(front);
        let start = front.len();
        let end = start + n.checked_ilog10().map_or(1, |log| log as usize + 1);
        let mut quotient = n;
        for digit in text.bytes[start..end].iter_mut().rev() {
            *digit = b"0123456789"[(quotient % 10) as usize];
            quotient /= 10;
        }
        text.len = u8::try_from(end).expect("a text that is short enough");
        text
    }
}

impl<const N: usize> From<u64> for Text<N> {
    fn from(n: u64) -> Self {
        Self::numbered("", n)
    }
}

impl<const N: usize> AsRef<[u8]> for Text<N> {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl<const N: usize> Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl<const N: usize> fmt::Write for Text<N> {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let start = usize::from(self.len);
        let end = start + more.len();
        let place = self.bytes.get_mut(start..end).ok_or(fmt::Error)?;
        place.copy_from_slice(more.as_bytes());
        self.len = u8::try_from(end).map_err(|_| fmt::Error)?;
        Ok(())
    }
}

impl<const N: usize> Deref for Text<N> {
    type Target = str;

    fn deref(&self) -> &str {
        // Every write is a whole string, so this is valid UTF-8.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_digits() {
        assert_eq!(&*Digits::of(0), "0");
        assert_eq!(&*Digits::of(u64::MAX), "18446744073709551615");
        assert_eq!(&*Digits::of(i64::MIN), "-9223372036854775808");
        let powers = (0..20).map(|digits| 10_u64.pow(digits));
        for n in powers.flat_map(|power| [power - 1, power, 3 * (power / 2)]) {
            assert_eq!(&*Digits::from(n), n.to_string());
            let (behind, shown) = (Text::<22>::numbered("é", n), format!("é{n}"));
            assert_eq!(&*behind, shown);
        }
        assert_eq!(&*Digits::from(u64::MAX), u64::MAX.to_string());
    }

    #[test]
    fn what_does_not_fit_is_refused_and_not_cut_off() {
        assert_eq!(&*Text::<2>::of("é"), "é");
        assert!(std::panic::catch_unwind(|| Text::<2>::of("abc")).is_err());
        assert!(std::panic::catch_unwind(|| Text::<300>::of("a".repeat(256))).is_err());
        assert!(std::panic::catch_unwind(|| Text::<2>::copy("abc")).is_err());
        assert!(std::panic::catch_unwind(|| Text::<2>::numbered("a", 10)).is_err());
    }
}
