//! Names in texts for people. The command compiles this file too.

use std::fmt;

/// A name, or another text of foreign origin, for a message. Control characters are shown as escapes, so that the
/// text stays on its line and sends nothing to a terminal. All other characters stay as they are, backslashes too:
/// escaping an escaped text does not change it.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

/// Whether a character moves the cursor, ends a line, or changes the direction of the text after it.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_control(*c)) {
            write!(f, "{}{}", &rest[..at], c.escape_debug())?;
            rest = &rest[at + c.len_utf8()..];
        }
        f.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_nothing_else_is() {
        let plain = "größe:\u{1f468}\u{200d}\u{1f469}:日本 'a' \"b\" `c` \\n e\u{301}";
        assert_eq!(Shown(plain).to_string(), plain);
        let shown = Shown("a\x1b[2J\r\nb\tc\0d\u{7f}\u{9b}e\u{2028}\u{202e}f").to_string();
        assert_eq!(
            shown,
            r"a\u{1b}[2J\r\nb\tc\0d\u{7f}\u{9b}e\u{2028}\u{202e}f"
        );
        assert_eq!(Shown(&shown).to_string(), shown);
    }
}
