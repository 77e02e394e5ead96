//! How names, labels and texts of other programs are shown to an operator.

use std::fmt::{self, Write};

/// Shows a text in one line, without what a terminal would act on.
///
/// A lock or a key may have any name, even `x\u{1b}[2J`, which clears a screen. The shown form has
/// `\u{…}` for control characters, line breaks and characters that change the direction of the
/// text. It has two backslashes for each backslash. [`unescape`] returns the text.
///
/// `Display` of [`ListedLock`](crate::lock::ListedLock) and
/// [`Holding`](crate::backend::Holding) uses it.
///
/// # Examples
///
/// ```
/// use bellwether::key::{Escaped, unescape};
///
/// let shown = Escaped("x\u{1b}[2J").to_string();
/// assert_eq!(shown, r"x\u{1b}[2J");
/// assert_eq!(unescape(&shown).as_deref(), Some("x\u{1b}[2J"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '\\' => f.write_str(r"\\")?,
                '\n' => f.write_str(r"\n")?,
                letter if acts_on_a_terminal(letter) => write!(f, "{}", letter.escape_unicode())?,
                letter => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// Returns the text of a form that [`Escaped`] shows. Returns `None` if no text has this form.
pub fn unescape(shown: &str) -> Option<String> {
    let mut text = String::with_capacity(shown.len());
    let mut rest = shown;
    while let Some((plain, escape)) = rest.split_once('\\') {
        text.push_str(plain);
        if let Some(behind) = escape.strip_prefix('\\') {
            text.push('\\');
            rest = behind;
        } else if let Some(behind) = escape.strip_prefix('n') {
            text.push('\n');
            rest = behind;
        } else {
            let (number, behind) = escape.strip_prefix("u{")?.split_once('}')?;
            text.push(char::from_u32(u32::from_str_radix(number, 16).ok()?)?);
            rest = behind;
        }
    }
    text.push_str(rest);
    Some(text)
}

/// Returns whether a terminal acts on a character in place of showing it: a control character, a
/// line break of Unicode, or a change of the direction of the text.
pub fn acts_on_a_terminal(letter: char) -> bool {
    let changes_direction = matches!(
        letter,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    let breaks_lines = matches!(letter, '\u{2028}' | '\u{2029}');
    letter.is_control() || changes_direction || breaks_lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_escaped_and_comes_back() {
        for (text, shown) in [
            ("plain ü 漢", "plain ü 漢"),
            ("x\u{1b}[2J", r"x\u{1b}[2J"),
            ("a\nb\tc\r\u{7f}", r"a\nb\u{9}c\u{d}\u{7f}"),
            ("\u{9b}2J", r"\u{9b}2J"),
            ("\u{202e}\u{2066}\u{200f}\u{2028}", r"\u{202e}\u{2066}\u{200f}\u{2028}"),
            (r"DOMAIN\user", r"DOMAIN\\user"),
            (r"\u{1b}", r"\\u{1b}"),
        ] {
            assert_eq!(Escaped(text).to_string(), shown);
            assert_eq!(unescape(shown).as_deref(), Some(text));
        }
        for wrong in [r"\", r"\x", r"\u{1b", r"\u{zz}", r"\u{d800}", r"a\u"] {
            assert_eq!(unescape(wrong), None, "{wrong}");
        }
    }
}
