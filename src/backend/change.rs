//! The changes of a name that are pushed to its waiters.

use std::time::Duration;

use bytes::{Buf, Bytes};

use crate::{
    backend::{Entry, Mode, Owner},
    error::{Chain, Error, ErrorKind},
};

/// A change of a name.
///
/// A push may be lost, doubled, late or out of order. A waiter compares its fence with what it
/// knows, or looks again. No waiter depends on a push alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Look again: a lease was released, or pushes may have been missed.
    Wake,
    /// An entry was committed, put, or pushed without being stored.
    Entry(Entry),
    /// An entry was committed or put that is too large to be pushed to all that wait for it.
    Announced(Announcement),
    /// A load failed.
    Failed(Failure),
    /// The entry was removed, and this fence burnt.
    Invalidated(u64),
    /// The waiter in the queue with this owner has the lease now. The others need not look.
    Granted(Handover),
    /// The lease of this owner was ended from outside.
    Ended(Owner),
}

/// An entry that waiters are to [read](crate::backend::Store::get).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The fence of the entry.
    pub fence: u64,
    /// The size of the entry in bytes, with its header.
    pub bytes: usize,
    /// How many processes are to fetch it. Zero if the backend does not know.
    pub crowd: u32,
}

/// A lease that a release granted to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The new holder.
    pub owner: Owner,
    /// The fence of the grant. Where the mode [has none](crate::backend::Mode::is_fenced), it is
    /// the time at the backend, so that it tells an old push all the same.
    pub fence: u64,
    /// When it ends unless it is renewed, counted from the time at which its holder entered the
    /// queue. The holder and the server have no other time in common. Zero if the holder is to ask
    /// before it trusts the grant.
    pub ends: Duration,
    /// What is held. It tells how to release a lease that no one here waits for.
    pub hold: HandedHold,
}

/// What a handover has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedHold {
    /// The mutex of the name.
    Mutex,
    /// The read-write lock of the name, as its writer.
    Writer,
    /// Shared units. These are not released here: a permit may have left with its id.
    Shared,
}

impl HandedHold {
    /// Returns the letter in a message: that of the key of a sole holder, or `s`.
    fn letter(self) -> char {
        match self {
            Self::Mutex => 'l',
            Self::Writer => 'w',
            Self::Shared => 's',
        }
    }

    fn from_letter(letter: &str) -> Self {
        match letter {
            "l" => Self::Mutex,
            "w" => Self::Writer,
            _ => Self::Shared,
        }
    }
}

impl From<Mode> for HandedHold {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive | Mode::Fair => Self::Mutex,
            Mode::Write => Self::Writer,
            Mode::Read | Mode::Permit { .. } => Self::Shared,
        }
    }
}

/// A failed load, as other processes are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    fence: u64,
    kind: ErrorKind,
    message: String,
    /// For how long the key backs off, from when it is told. Zero if it does not.
    pub(crate) wait: Duration,
    /// The loader's error, encoded. Empty if it has no encoding.
    pub(crate) encoded: Bytes,
}

/// The letters of the kinds of failures that are not `l`, a failed load.
const KINDS: [(char, ErrorKind); 3] =
    [('p', ErrorKind::Panicked), ('t', ErrorKind::LoadTimeout), ('c', ErrorKind::Codec)];
const LONGEST_MESSAGE: usize = 1024;
/// The largest encoded error that is told. A push goes to each process that waits.
const LONGEST_ENCODED: usize = 16 << 10;

impl Failure {
    /// The failure of the load that ran under `fence`. An encoded error that is too large is left
    /// out.
    pub(crate) fn new(fence: u64, error: &Error, wait: Duration, encoded: Bytes) -> Self {
        let mut message = match std::error::Error::source(error) {
            // The process that reads this adds that the load failed.
            Some(cause) if error.kind() == ErrorKind::Load => Chain(cause).to_string(),
            _ => Chain(error).to_string(),
        };
        let ends = message.char_indices().map(|(at, character)| at + character.len_utf8());
        let cut = ends.take_while(|end| *end <= LONGEST_MESSAGE).last().unwrap_or(0);
        message.truncate(cut);
        let encoded = Some(encoded).filter(|encoded| encoded.len() <= LONGEST_ENCODED);
        Self { fence, kind: error.kind(), message, wait, encoded: encoded.unwrap_or_default() }
    }

    /// Returns the text of the loader's error.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the fence of the load that failed.
    pub fn fence(&self) -> u64 {
        self.fence
    }

    pub(crate) fn into_error(self) -> Error {
        let message = match self.kind {
            ErrorKind::Load => format!("the load failed in another process: {}", self.message),
            // The others say themselves what happened.
            _ => format!("in another process: {}", self.message),
        };
        Error::new(self.kind, message)
    }

    /// Returns a letter for the kind, the wait, the size of the encoded error, that, and the text.
    fn encode(&self) -> Bytes {
        let kind =
            KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or('l', |(letter, _)| *letter);
        let wait = u32::try_from(self.wait.as_millis()).unwrap_or(u32::MAX);
        let header = format!("{kind}{wait:08x}{:08x}", self.encoded.len());
        [header.as_bytes(), &self.encoded, self.message.as_bytes()].concat().into()
    }

    fn decode(fence: u64, mut bytes: Bytes) -> Option<Self> {
        let number = |from| {
            let digits = std::str::from_utf8(bytes.get(from..from + 8)?).ok()?;
            u32::from_str_radix(digits, 16).ok()
        };
        let letter = char::from(*bytes.first()?);
        let kind =
            KINDS.iter().find(|(its, _)| *its == letter).map_or(ErrorKind::Load, |(_, it)| *it);
        let (wait, size) = (number(1)?, usize::try_from(number(9)?).ok()?);
        bytes.advance(17);
        let encoded = (size <= bytes.len()).then(|| bytes.split_to(size))?;
        let message = String::from_utf8_lossy(&bytes).into_owned();
        Some(Self { fence, kind, message, wait: Duration::from_millis(wait.into()), encoded })
    }
}

/// How a name backs off after failed loads: for a time, no claim begins a load of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// For how long it still backs off.
    pub wait: Duration,
    /// The number of failed loads in a row.
    pub failures: u32,
}

impl BackOff {
    /// Returns how long the failures are remembered after the wait is over: as long again, and at
    /// least 1 s. A load that fails in this time counts as one more in the row.
    pub fn remembered(&self) -> Duration {
        self.wait.max(Duration::from_secs(1))
    }
}

impl Change {
    /// Returns the owner that the change is for, if it is for one only.
    pub fn addressee(&self) -> Option<Owner> {
        match self {
            Self::Granted(Handover { owner, .. }) | Self::Ended(owner) => Some(*owner),
            _ => None,
        }
    }

    /// Returns the fence under which an entry was changed, if that is what happened.
    pub(crate) fn of_entry(&self) -> Option<u64> {
        match self {
            Self::Entry(entry) => Some(entry.fence),
            Self::Announced(announced) => Some(announced.fence),
            Self::Invalidated(fence) => Some(*fence),
            Self::Wake | Self::Failed(_) | Self::Granted(_) | Self::Ended(_) => None,
        }
    }

    /// Returns the bytes of a message: `w`, `e` and an entry, or a letter and the 16 digits of a
    /// fence. The rest is bytes and a crowd after `a`, a failure after `f`, nothing after `i`, and
    /// an owner, milliseconds and the need of the claim after `g`. An owner follows `l`.
    pub fn encode(&self) -> Bytes {
        let (head, rest) = match self {
            Self::Wake => ("w".to_owned(), Bytes::new()),
            Self::Entry(entry) => ("e".to_owned(), entry.encode()),
            Self::Announced(Announcement { fence, bytes, crowd }) => {
                (format!("a{fence:016}{bytes},{crowd}"), Bytes::new())
            }
            Self::Failed(failure) => (format!("f{:016}", failure.fence), failure.encode()),
            Self::Invalidated(fence) => (format!("i{fence:016}"), Bytes::new()),
            Self::Granted(Handover { owner, fence, ends, hold }) => {
                let ends = ends.as_millis();
                (format!("g{fence:016}{owner}{ends},{}", hold.letter()), Bytes::new())
            }
            Self::Ended(owner) => (format!("l{owner}"), Bytes::new()),
        };
        [head.as_bytes(), &rest].concat().into()
    }

    /// Reads a message. Bytes that cannot be read mean: look again.
    pub fn decode(bytes: &Bytes) -> Self {
        let read = || {
            let text = |from: usize, to: usize| std::str::from_utf8(bytes.get(from..to)?).ok();
            let fence = || text(1, 17)?.parse().ok();
            Some(match bytes.first()? {
                b'e' => Self::Entry(Entry::decode(bytes.slice(1..)).ok()?),
                b'a' => {
                    let (size, crowd) = text(17, bytes.len())?.split_once(',')?;
                    let (bytes, crowd) = (size.parse().ok()?, crowd.parse().ok()?);
                    Self::Announced(Announcement { fence: fence()?, bytes, crowd })
                }
                b'f' => Self::Failed(Failure::decode(fence()?, bytes.slice(17..))?),
                b'i' => Self::Invalidated(fence()?),
                b'g' => {
                    let (ends, hold) = text(49, bytes.len())?.split_once(',')?;
                    Self::Granted(Handover {
                        fence: fence()?,
                        owner: text(17, 49)?.parse().ok()?,
                        ends: Duration::from_millis(ends.parse().ok()?),
                        hold: HandedHold::from_letter(hold),
                    })
                }
                b'l' => Self::Ended(text(1, 33)?.parse().ok()?),
                _ => Self::Wake,
            })
        };
        read().unwrap_or(Self::Wake)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_read_as_it_was_written() {
        let error = Error::with_source(ErrorKind::Load, "the loader failed", "no such product");
        for (wait, encoded) in [(0, &b""[..]), (86_400, b"\xff1")] {
            let (wait, encoded) = (Duration::from_secs(wait), Bytes::from_static(encoded));
            let change = Change::Failed(Failure::new(1 << 52, &error, wait, encoded));
            assert_eq!(Change::decode(&change.encode()), change);
        }
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let error = Error::new(ErrorKind::Load, "ü".repeat(2000));
        let failure = Failure::new(1, &error, Duration::ZERO, Bytes::new());
        assert_eq!(failure.message.len(), LONGEST_MESSAGE);
    }
}
