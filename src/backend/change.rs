//! The changes of a name that a backend pushes to the waiters of the name.

use std::{ops::Range, time::Duration};

use bytes::{Buf, Bytes};

use crate::{
    backend::{Entry, Mode, Owner},
    error::{Chain, Error, ErrorKind},
};

/// A change of a name.
///
/// A push may be lost, doubled, late or out of order. So a waiter compares the fence of the push
/// with the fences that it knows, or reads again. No waiter depends on a push alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The waiter sends its request again: a lease was released, or a push may have been missed.
    Wake,
    /// An entry was committed, put, or pushed without being stored.
    Entry(Entry),
    /// An entry was committed or put that is too large to be pushed to all its waiters.
    Announced(Announcement),
    /// A load failed.
    Failed(Failure),
    /// The entry was removed. No load under this fence or a smaller fence can commit.
    Invalidated(u64),
    /// The waiter in the queue with this owner has the lease now. Other waiters have nothing to do.
    Granted(Handover),
    /// Another caller has ended the lease of this owner.
    Ended(Owner),
}

/// An entry that its waiters [read](crate::backend::Store::get) by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The fence of the entry.
    pub fence: u64,
    /// The size of the entry in bytes, with its header.
    pub bytes: usize,
    /// How many processes will read the entry. Zero if the backend does not know.
    pub crowd: u32,
}

/// A lease that a release granted to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handover {
    /// The new holder.
    pub owner: Owner,
    /// The fence of the grant. If the mode [has no fence](crate::backend::Mode::is_fenced), this is
    /// the time at the backend, which shows a late push in the same way.
    pub fence: u64,
    /// When the lease ends unless it is renewed, counted from the time at which its holder entered
    /// the queue. The holder and the server have no other time in common. Zero if the holder must
    /// send its claim again before it trusts the grant.
    pub ends: Duration,
    /// What was granted. It says how to release a lease for which no caller of the process waits.
    pub hold: HandedHold,
}

/// What a handover has granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandedHold {
    /// The mutex of the name.
    Mutex,
    /// The read-write lock of the name, as its writer.
    Writer,
    /// Shared units. The process never releases these, because another process may have the id of
    /// the permit.
    Shared,
}

impl HandedHold {
    /// Returns the letter in a message: the key of a sole holder, or `s`.
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

/// A failed load, as the backend pushes it to other processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    fence: u64,
    kind: ErrorKind,
    message: String,
    /// For how long the key backs off after the push. Zero without a back-off.
    pub(crate) wait: Duration,
    /// The loader's error, encoded. Empty if the error has no encoding.
    pub(crate) encoded: Bytes,
}

const LONGEST_MESSAGE: usize = 1024;
/// The largest encoded error that is pushed, because a push goes to each process that waits.
const LONGEST_ENCODED: usize = 16 << 10;

impl Failure {
    /// Creates the failure of the load that ran under `fence`. An encoded error that is too large
    /// is left out.
    pub(crate) fn new(fence: u64, error: &Error, wait: Duration, encoded: Bytes) -> Self {
        let mut message = match std::error::Error::source(error) {
            // The process that reads the message adds that the load failed.
            Some(cause) if error.kind() == ErrorKind::Load => Chain(cause).to_string(),
            _ => Chain(error).to_string(),
        };
        let mut end = message.len().min(LONGEST_MESSAGE);
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        let encoded = if encoded.len() <= LONGEST_ENCODED { encoded } else { Bytes::new() };
        Self { fence, kind: error.kind(), message, wait, encoded }
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
            // The message of any other kind says what happened.
            _ => format!("in another process: {}", self.message),
        };
        Error::new(self.kind, message)
    }

    /// Returns the bytes of the failure: a letter for the kind, the wait, the size of the encoded
    /// error, the encoded error, and the text.
    fn encode(&self) -> Bytes {
        let kind = match self.kind {
            ErrorKind::Panicked => 'p',
            ErrorKind::LoadTimeout => 't',
            ErrorKind::Codec => 'c',
            _ => 'l',
        };
        let wait = u32::try_from(self.wait.as_millis()).unwrap_or(u32::MAX);
        let header = format!("{kind}{wait:08x}{:08x}", self.encoded.len());
        [header.as_bytes(), &self.encoded, self.message.as_bytes()].concat().into()
    }

    fn decode(fence: u64, mut bytes: Bytes) -> Option<Self> {
        let kind = match bytes.first()? {
            b'p' => ErrorKind::Panicked,
            b't' => ErrorKind::LoadTimeout,
            b'c' => ErrorKind::Codec,
            _ => ErrorKind::Load,
        };
        let wait = u64::from_str_radix(text_in(&bytes, 1..9)?, 16).ok()?;
        let size = usize::from_str_radix(text_in(&bytes, 9..17)?, 16).ok()?;
        bytes.advance(17);
        if size > bytes.len() {
            return None;
        }
        let encoded = bytes.split_to(size);
        let message = String::from_utf8_lossy(&bytes).into_owned();
        Some(Self { fence, kind, message, wait: Duration::from_millis(wait), encoded })
    }
}

fn text_in(bytes: &Bytes, range: Range<usize>) -> Option<&str> {
    std::str::from_utf8(bytes.get(range)?).ok()
}

/// The back-off of a name after failed loads. Until it ends, no claim begins a load of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// For how long the name still backs off.
    pub wait: Duration,
    /// The number of failed loads in a row.
    pub failures: u32,
}

impl BackOff {
    /// Returns how long the failures are remembered after the wait is over: for the same time
    /// again, and at least 1 s. A load that fails in this time counts as the next failure in the
    /// row.
    pub fn remembered(&self) -> Duration {
        self.wait.max(Duration::from_secs(1))
    }
}

impl Change {
    /// Returns the owner that the change is for, if the change is for a single owner.
    pub fn addressee(&self) -> Option<Owner> {
        match self {
            Self::Granted(Handover { owner, .. }) | Self::Ended(owner) => Some(*owner),
            _ => None,
        }
    }

    /// Returns the fence under which an entry was changed, if an entry was changed.
    pub(crate) fn of_entry(&self) -> Option<u64> {
        match self {
            Self::Entry(entry) => Some(entry.fence),
            Self::Announced(announced) => Some(announced.fence),
            Self::Invalidated(fence) => Some(*fence),
            Self::Wake | Self::Failed(_) | Self::Granted(_) | Self::Ended(_) => None,
        }
    }

    /// Returns the bytes of a message. The first byte says what follows:
    ///
    /// | byte | then |
    /// |---|---|
    /// | `w` | nothing |
    /// | `e` | the entry |
    /// | `a` | the fence in 16 digits, the size in bytes, `,`, the crowd |
    /// | `f` | the fence in 16 digits, the failure |
    /// | `i` | the fence in 16 digits |
    /// | `g` | the fence in 16 digits, the owner, the end in ms, `,`, a letter for the hold |
    /// | `l` | the owner |
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

    /// Reads a message. Bytes that cannot be read are a [`Wake`](Self::Wake), so that the waiter
    /// sends its request again.
    pub fn decode(bytes: &Bytes) -> Self {
        Self::try_decode(bytes).unwrap_or(Self::Wake)
    }

    fn try_decode(bytes: &Bytes) -> Option<Self> {
        match bytes.first()? {
            b'e' => Some(Self::Entry(Entry::decode(bytes.slice(1..)).ok()?)),
            b'a' => {
                let fence = fence_in(bytes)?;
                let (size, crowd) = text_in(bytes, 17..bytes.len())?.split_once(',')?;
                let bytes = size.parse().ok()?;
                let crowd = crowd.parse().ok()?;
                Some(Self::Announced(Announcement { fence, bytes, crowd }))
            }
            b'f' => Some(Self::Failed(Failure::decode(fence_in(bytes)?, bytes.slice(17..))?)),
            b'i' => Some(Self::Invalidated(fence_in(bytes)?)),
            b'g' => {
                let (ends, hold) = text_in(bytes, 49..bytes.len())?.split_once(',')?;
                Some(Self::Granted(Handover {
                    fence: fence_in(bytes)?,
                    owner: text_in(bytes, 17..49)?.parse().ok()?,
                    ends: Duration::from_millis(ends.parse().ok()?),
                    hold: HandedHold::from_letter(hold),
                }))
            }
            b'l' => Some(Self::Ended(text_in(bytes, 1..33)?.parse().ok()?)),
            _ => Some(Self::Wake),
        }
    }
}

/// Reads the 16 digits of a fence behind the first byte of a message.
fn fence_in(bytes: &Bytes) -> Option<u64> {
    text_in(bytes, 1..17)?.parse().ok()
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
