//! A parser for dictionaries and lists of structured fields (RFC 9651, section 4.2).

use std::collections::BTreeMap;

/// The value of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Integer(i64),
    Boolean(bool),
    Text(String),
    /// Any other type. No directive of a cache has one.
    Other,
}

/// Parses a dictionary. Of members with one name the last holds. Parameters are skipped.
///
/// Returns `None` if the text is not a dictionary.
pub(super) fn dictionary(text: &str) -> Option<BTreeMap<String, Item>> {
    let mut members = BTreeMap::new();
    let mut rest = Cursor(text.trim_matches(' '));
    while !rest.0.is_empty() {
        let name = rest.key()?;
        let value = match rest.eat('=') {
            true => rest.member()?,
            false => Item::Boolean(true),
        };
        rest.parameters()?;
        members.insert(name, value);
        rest.separator()?;
    }
    Some(members)
}

/// Parses a list, and returns its strings (RFC 9651, section 4.2.1). Members of other types and
/// parameters are skipped.
///
/// Returns `None` if the text is not a list.
pub(in super::super) fn strings(text: &str) -> Option<Vec<String>> {
    let (mut strings, mut rest) = (Vec::new(), Cursor(text.trim_matches(' ')));
    while !rest.0.is_empty() {
        let member = rest.member()?;
        rest.parameters()?;
        if let Item::Text(text) = member {
            strings.push(text);
        }
        rest.separator()?;
    }
    Some(strings)
}

/// The text that is not parsed yet.
struct Cursor<'a>(&'a str);

impl<'a> Cursor<'a> {
    fn eat(&mut self, character: char) -> bool {
        let rest = self.0.strip_prefix(character);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn skip_blanks(&mut self) {
        self.0 = self.0.trim_start_matches([' ', '\t']);
    }

    /// Takes the comma between two members, behind which there is one. At the end there is none.
    fn separator(&mut self) -> Option<()> {
        self.skip_blanks();
        if self.0.is_empty() {
            return Some(());
        }
        let is_there = self.eat(',');
        self.skip_blanks();
        (is_there && !self.0.is_empty()).then_some(())
    }

    /// Takes the characters that fit.
    fn take(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let end = self.0.find(|character| !fits(character)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        taken
    }

    fn key(&mut self) -> Option<String> {
        let begins = |character: char| character.is_ascii_lowercase() || character == '*';
        if !self.0.starts_with(begins) {
            return None;
        }
        let fits = |character: char| {
            character.is_ascii_lowercase()
                || character.is_ascii_digit()
                || "_-.*".contains(character)
        };
        Some(self.take(fits).to_owned())
    }

    fn member(&mut self) -> Option<Item> {
        if !self.eat('(') {
            return self.item();
        }
        loop {
            self.0 = self.0.trim_start_matches(' ');
            if self.eat(')') {
                return Some(Item::Other);
            }
            self.item()?;
            self.parameters()?;
            if !self.0.starts_with([' ', ')']) {
                return None;
            }
        }
    }

    fn item(&mut self) -> Option<Item> {
        match self.0.chars().next()? {
            '"' => self.text().map(Item::Text),
            '?' => self.boolean(),
            ':' => self.bytes(),
            '@' => {
                self.eat('@');
                self.number().filter(|number| *number != Item::Other).map(|_| Item::Other)
            }
            '-' | '0'..='9' => self.number(),
            first if first.is_ascii_alphabetic() || first == '*' => {
                self.take(|next| {
                    next.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~:/".contains(next)
                });
                Some(Item::Other)
            }
            _ => None,
        }
    }

    fn parameters(&mut self) -> Option<()> {
        while self.eat(';') {
            self.0 = self.0.trim_start_matches(' ');
            self.key()?;
            if self.eat('=') {
                self.item()?;
            }
        }
        Some(())
    }

    fn boolean(&mut self) -> Option<Item> {
        self.eat('?');
        match (self.eat('1'), self.eat('0')) {
            (true, false) => Some(Item::Boolean(true)),
            (false, true) => Some(Item::Boolean(false)),
            _ => None,
        }
    }

    fn bytes(&mut self) -> Option<Item> {
        self.eat(':');
        self.take(|next| next.is_ascii_alphanumeric() || "+/=".contains(next));
        self.eat(':').then_some(Item::Other)
    }

    /// Takes an integer of at most 15 digits, or a decimal.
    fn number(&mut self) -> Option<Item> {
        let sign = if self.eat('-') { -1 } else { 1 };
        let digits = self.take(|next| next.is_ascii_digit());
        if digits.is_empty() || digits.len() > 15 {
            return None;
        }
        if !self.eat('.') {
            return Some(Item::Integer(sign * digits.parse::<i64>().ok()?));
        }
        let fraction = self.take(|next| next.is_ascii_digit());
        let fits = digits.len() <= 12 && (1..=3).contains(&fraction.len());
        fits.then_some(Item::Other)
    }

    fn text(&mut self) -> Option<String> {
        self.eat('"');
        let mut text = String::new();
        let mut characters = self.0.char_indices();
        loop {
            match characters.next()? {
                (end, '"') => {
                    self.0 = self.0.get(end + 1..)?;
                    return Some(text);
                }
                (_, '\\') => match characters.next()?.1 {
                    escaped @ ('"' | '\\') => text.push(escaped),
                    _ => return None,
                },
                (_, character @ ' '..='~') => text.push(character),
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9651, section 4.2.2.
    #[test]
    fn members_have_their_types() {
        let text = [
            r#"a=1, b;x=1;y , c=?0,d="x\"y", e=tok/en;p"#,
            r#"f=(1 "a";q=2 b), g=:YQ==:, h=1.5, i=@7, a=-2 "#,
        ]
        .join(", ");
        let expected = [
            ("a", Item::Integer(-2)),
            ("b", Item::Boolean(true)),
            ("c", Item::Boolean(false)),
            ("d", Item::Text("x\"y".to_owned())),
            ("e", Item::Other),
            ("f", Item::Other),
            ("g", Item::Other),
            ("h", Item::Other),
            ("i", Item::Other),
        ];
        let expected = expected.map(|(name, item)| (name.to_owned(), item));
        assert_eq!(dictionary(&text), Some(expected.into()));
        assert_eq!(dictionary("  "), Some(BTreeMap::new()));
        let most = dictionary("a=999999999999999").unwrap();
        assert_eq!(most["a"], Item::Integer(999_999_999_999_999));
    }

    /// RFC 9651, section 4.2.1.
    #[test]
    fn a_list_has_its_strings() {
        let expected = ["a", "B c", "x\"y"].map(str::to_owned).to_vec();
        let text = "\"a\", \"B c\";p=1 ,\t\"x\\\"y\", token, 1, (\"d\")";
        assert_eq!(strings(text), Some(expected));
        assert_eq!(strings(" "), Some(Vec::new()));
        for text in ["\"a", "\"a\",", "\"a\" \"b\"", ",", "\"\u{e4}\"", "a,,b"] {
            assert_eq!(strings(text), None, "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_dictionary() {
        for text in [
            "A=1",
            "a = 1",
            "a= 1",
            "a=1,",
            "a=1;",
            "a=1 b",
            "a,,b",
            "1=a",
            "a=1000000000000000",
            "a=1.",
            "a=1.2345",
            "a=--1",
            "a=-",
            "a=\"x",
            "a=\"\\x\"",
            "a=\"\u{e4}\"",
            "a=?2",
            "a=(1",
            "a=(1)(2)",
            "a=:Y",
            "a=@1.5",
            "a='1'",
            "a;B=1",
            "a=",
        ] {
            assert_eq!(dictionary(text), None, "{text}");
        }
    }
}
