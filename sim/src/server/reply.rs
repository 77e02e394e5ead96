//! Replies, and their bytes in both versions of the protocol.

use std::{
    fmt,
    hash::{Hash, Hasher},
};

/// The reply to a command.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Nil,
    Int(i64),
    Score(f64),
    Status(&'static str),
    Error(String),
    Bulk(Vec<u8>),
    Array(Vec<Reply>),
    /// A map in version 3, and a flat array in version 2.
    Map(Vec<(Reply, Reply)>),
    /// Members with their scores: pairs in version 3, and a flat array in version 2.
    Scored(Vec<(Vec<u8>, f64)>),
    /// A message that no command asked for. It is an array in version 2.
    Push(Vec<Reply>),
    /// The command has written its replies itself.
    Written,
}

impl Reply {
    pub fn ok() -> Self {
        Self::Status("OK")
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    pub fn text(text: impl AsRef<[u8]>) -> Self {
        Self::Bulk(text.as_ref().to_vec())
    }

    /// Returns 1 or 0.
    pub fn flag(is_set: bool) -> Self {
        Self::Int(i64::from(is_set))
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// Appends the bytes of the reply.
    pub fn encode(&self, version: u8, into: &mut Vec<u8>) {
        match self {
            Self::Nil if version == 3 => into.extend_from_slice(b"_\r\n"),
            Self::Nil => into.extend_from_slice(b"$-1\r\n"),
            Self::Int(number) => line(into, b':', &number.to_string()),
            Self::Score(score) if version == 3 => line(into, b',', &number_text(*score)),
            Self::Score(score) => Self::text(number_text(*score)).encode(version, into),
            Self::Status(text) => line(into, b'+', text),
            Self::Error(text) => line(into, b'-', text),
            Self::Bulk(bytes) => {
                line(into, b'$', &bytes.len().to_string());
                into.extend_from_slice(bytes);
                into.extend_from_slice(b"\r\n");
            }
            Self::Array(items) => {
                line(into, b'*', &items.len().to_string());
                items.iter().for_each(|item| item.encode(version, into));
            }
            Self::Push(items) => {
                line(into, if version == 3 { b'>' } else { b'*' }, &items.len().to_string());
                items.iter().for_each(|item| item.encode(version, into));
            }
            Self::Map(pairs) => {
                if version == 3 {
                    line(into, b'%', &pairs.len().to_string());
                } else {
                    line(into, b'*', &(pairs.len() * 2).to_string());
                }
                for (key, value) in pairs {
                    key.encode(version, into);
                    value.encode(version, into);
                }
            }
            Self::Scored(members) if version == 3 => {
                line(into, b'*', &members.len().to_string());
                for (member, score) in members {
                    into.extend_from_slice(b"*2\r\n");
                    Self::text(member).encode(version, into);
                    Self::Score(*score).encode(version, into);
                }
            }
            Self::Scored(members) => {
                line(into, b'*', &(members.len() * 2).to_string());
                for (member, score) in members {
                    Self::text(member).encode(version, into);
                    Self::Score(*score).encode(version, into);
                }
            }
            Self::Written => {}
        }
    }
}

impl Hash for Reply {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut bytes = Vec::new();
        self.encode(3, &mut bytes);
        bytes.hash(state);
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => f.write_str("nil"),
            Self::Int(number) => write!(f, "{number}"),
            Self::Score(score) => write!(f, "{score}"),
            Self::Status(text) => f.write_str(text),
            Self::Error(text) => write!(f, "error: {text}"),
            Self::Bulk(bytes) => write!(f, "'{}'", String::from_utf8_lossy(bytes).escape_debug()),
            Self::Array(items) => {
                f.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if at == 0 { "" } else { ", " })?;
                }
                f.write_str("]")
            }
            other => write!(f, "{other:?}"),
        }
    }
}

fn line(into: &mut Vec<u8>, kind: u8, text: &str) {
    into.push(kind);
    into.extend_from_slice(text.as_bytes());
    into.extend_from_slice(b"\r\n");
}

/// Returns a number as C prints it by `%.17g`, as Redis 7.0 and Lua arguments have it.
pub fn number_text(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    if number == number.trunc() && number.abs() < 1e17 {
        return format!("{number:.0}");
    }
    let scientific = format!("{number:.16e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| text.trim_end_matches('0').trim_end_matches('.').to_owned();
    if (-4..17).contains(&exponent) {
        let decimals = usize::try_from(16 - exponent).unwrap_or(0);
        let text = format!("{number:.decimals$}");
        return if text.contains('.') { trimmed(&text) } else { text };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
}

/// Takes one command from the front of the bytes: an array of bulk strings. Returns `None` if it
/// is not whole yet.
pub fn take_command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let count = length(bytes, &mut at, b'*')?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let size = length(bytes, &mut at, b'$')?;
        let word = bytes.get(at..at + size)?;
        bytes.get(at + size + 1)?;
        at += size + 2;
        words.push(word.to_vec());
    }
    Some((words, at))
}

/// Reads the number of a line of this kind. A client of the crate sends nothing else.
fn length(bytes: &[u8], at: &mut usize, kind: u8) -> Option<usize> {
    let rest = bytes.get(*at..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    assert_eq!(rest[0], kind, "the bytes are no command: {:?}", String::from_utf8_lossy(rest));
    *at += end + 2;
    std::str::from_utf8(&rest[1..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_by_c() {
        for (number, text) in [
            (0.0, "0"),
            (-3.0, "-3"),
            (1.5, "1.5"),
            (0.1, "0.10000000000000001"),
            (1_795_000_000_000.5, "1795000000000.5"),
            (4_102_444_800_000_001.0, "4102444800000001"),
            (1e20, "1e+20"),
            (1.25e-7, "1.2499999999999999e-07"),
        ] {
            assert_eq!(number_text(number), text);
        }
    }

    #[test]
    fn a_command_is_taken_when_it_is_whole() {
        let bytes = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1";
        for end in 0..bytes.len() - 2 {
            assert_eq!(take_command(&bytes[..end]), None, "{end}");
        }
        let words = vec![b"GET".to_vec(), b"k".to_vec()];
        assert_eq!(take_command(bytes), Some((words, bytes.len() - 2)));
    }
}
