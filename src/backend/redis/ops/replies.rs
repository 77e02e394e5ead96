//! Reads the replies of the scripts. A reply of another form is an error, and never a guess.

use std::{fmt, time::Duration};

use bytes::Bytes;
use redis::Value;

use super::PART;
use crate::{
    backend::{
        BackOff, Change, Claimed, Committed, Countdown, Entry, Failure, Grant, Holding, Kept, Mark,
        Marked, Occupied,
    },
    error::{BackendError, BackendErrorKind},
};

/// Reads the reply to a claim. Returns `None` for a newer entry of which the reply has only a part.
pub(super) fn claimed(value: Value) -> Result<Option<Claimed>, BackendError> {
    if let Value::Int(_) = value {
        return fence(value).map(|fence| Some(Claimed::Granted(Grant::new(fence))));
    }
    let mut fields = Fields::new(value)?;
    Ok(Some(match fields.word()?.as_str() {
        "held" => Claimed::Occupied(fields.occupied()?),
        AGAIN => Claimed::Occupied(Occupied { fence: 0, remaining: Duration::ZERO, holders: 0 }),
        "newer" => return Ok(fields.newer()?.map(Claimed::Newer)),
        "granted" => {
            let (fence, failures) = (fields.number()?, fields.count()?);
            Claimed::Granted(Grant::new(fence).after_failures(failures))
        }
        "failed" => {
            let (back_off, failure) = fields.backs_off()?;
            Claimed::BacksOff(back_off, failure)
        }
        other => return Err(unreadable(other)),
    }))
}

/// What a script says that grants and has more to do than it may at once.
const AGAIN: &str = "again";

/// Returns whether a script that grants is to be called again.
pub(super) fn is_again(value: &Value) -> bool {
    let Value::Array(fields) = value else { return false };
    matches!(fields.first(), Some(Value::BulkString(word)) if word == AGAIN.as_bytes())
}

/// Reads the reply to a pass. Shared units are granted before what is left to do.
pub(super) fn passed(value: Value) -> Result<Option<Grant>, BackendError> {
    match value {
        Value::Nil => Ok(None),
        value if is_again(&value) => Ok(Some(Grant::new(0))),
        value => fence(value).map(|fence| Some(Grant::new(fence))),
    }
}

/// Reads who holds a lock or loads an entry.
pub(super) fn held(value: Value) -> Result<Holding, BackendError> {
    let mut fields = Fields::new(value)?;
    let (owner, Occupied { fence, remaining, holders }) = (fields.word()?, fields.occupied()?);
    let (waiting, now, label) = (fields.count()?, fields.number()?, fields.word()?);
    // Without failed loads, there is no failure to read.
    let failed = fields.backs_off().ok();
    let held = Holding { holders, expires_in: remaining, waiting, failed, ..Holding::default() };
    let label = Some(label.as_str()).filter(|label| !label.is_empty());
    Ok(owner.parse().map_or(held.clone(), |holder| held.by(holder, fence, now, label)))
}

/// Reads the mark before, whether it was set, and the server's time.
pub(super) fn marked(value: Value) -> Result<Marked, BackendError> {
    let mut fields = Fields::new(value)?;
    let is_set = fields.number()? == 1;
    let (mark, now) = (fields.word()?, fields.word()?.parse().map_err(unreadable)?);
    if mark.is_empty() {
        return Ok(Marked { before: None, is_set, now });
    }
    let mut parts = mark.split(':');
    let tick = parts.next().unwrap_or_default().parse().map_err(unreadable)?;
    let begun_by = parts.next().map(str::parse).transpose().map_err(unreadable)?;
    Ok(Marked { before: Some(Mark { tick, begun_by }), is_set, now })
}

/// Reads the reply to `TIME`, in microseconds.
pub(super) fn micros(value: Value) -> Result<u64, BackendError> {
    let (seconds, micros) =
        redis::from_redis_value::<(u64, u64)>(value.clone()).map_err(|_| unreadable(&value))?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

/// Reads the state of a latch.
pub(super) fn countdown(value: Value) -> Result<(Option<Countdown>, Flags), BackendError> {
    let mut fields = Fields::new(value)?;
    match fields.word()?.as_str() {
        "left" => {
            let left = u32::try_from(fields.number()?).map_err(unreadable)?;
            let remaining = Duration::from_millis(fields.number()?);
            Ok((Some(Countdown { left, remaining }), fields.flags()?))
        }
        "unset" => Ok((None, Flags(0))),
        other => Err(unreadable(other)),
    }
}

/// The reply to a commit.
#[derive(Debug)]
pub(super) enum CommitReply {
    Done(Committed),
    /// The staged entry is not there, and nothing was done.
    Unstaged,
    /// There is a newer entry, of which the reply has only a part.
    PartOfNewer,
}

/// Reads the outcome of a commit, and its flags if it was made now.
pub(super) fn committed(value: Value) -> Result<(CommitReply, Option<Flags>), BackendError> {
    if let Value::Int(number) = value {
        let outcome = match number >> 3 {
            -1 => return Ok((CommitReply::Unstaged, None)),
            0 if number == 0 => return Ok((CommitReply::Done(Committed::Refused), None)),
            1 => Committed::Pushed,
            2 => Committed::Stored,
            _ => return Err(unreadable(number)),
        };
        return Ok((CommitReply::Done(outcome), Some(Flags::of(number & 7)?)));
    }
    let mut fields = Fields::new(value)?;
    match fields.word()?.as_str() {
        "newer" => {
            let newer = fields.newer()?.map(Committed::Newer);
            Ok((newer.map_or(CommitReply::PartOfNewer, CommitReply::Done), None))
        }
        other => Err(unreadable(other)),
    }
}

/// The bits of a reply. The first says whether a lease was held, or an entry waited for. The others
/// stand in `lib/basics.lua`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags(i64);

impl Flags {
    const FIRST: i64 = 1;
    const REFUSED: i64 = 4;
    const AGAIN: i64 = 8;

    pub(super) fn read(value: Value) -> Result<Self, BackendError> {
        match value {
            Value::Int(bits) => Self::of(bits),
            other => Err(unreadable(&other)),
        }
    }

    fn of(bits: i64) -> Result<Self, BackendError> {
        match bits & !(Self::FIRST | Self::REFUSED | Self::AGAIN) {
            0 => Ok(Self(bits)),
            _ => Err(unreadable(bits)),
        }
    }

    pub(super) fn first(self) -> bool {
        self.0 & Self::FIRST != 0
    }

    /// Returns whether the server refused to publish.
    pub(super) fn is_refused(self) -> bool {
        self.0 & Self::REFUSED != 0
    }

    /// Returns whether the script has more to do than it may, and is to be called again.
    pub(super) fn is_again(self) -> bool {
        self.0 & Self::AGAIN != 0
    }
}

/// Reads what the keeping of a queue has found, with this many claims.
pub(super) fn kept(value: Value, claims: usize) -> Result<(Kept, Flags), BackendError> {
    let mut fields = Fields::new(value)?;
    let flags = fields.flags()?;
    let remaining = Duration::from_millis(fields.number()?);
    let (has_lapsed, handed_over) = (fields.number()? == 1, fields.number()? == 1);
    let stands = (0..claims).map(|_| fields.number().map(|stands| stands == 1));
    let stands = stands.collect::<Result<_, _>>()?;
    Ok((Kept { remaining, has_lapsed, handed_over, stands }, flags))
}

pub(super) fn entry(bytes: Vec<u8>) -> Result<Entry, BackendError> {
    Entry::decode(Bytes::from(bytes))
        .map_err(|error| BackendError::new(BackendErrorKind::Foreign, error))
}

pub(super) fn fence(value: Value) -> Result<u64, BackendError> {
    match value {
        Value::Int(number) => u64::try_from(number).map_err(unreadable),
        other => Err(unreadable(&other)),
    }
}

pub(super) fn flag(value: Value) -> Result<bool, BackendError> {
    match value {
        Value::Int(number) => Ok(number == 1),
        other => Err(unreadable(&other)),
    }
}

pub(super) fn flags(value: Value, count: usize) -> Result<Vec<bool>, BackendError> {
    match value {
        Value::Array(values) if values.len() == count => values.into_iter().map(flag).collect(),
        other => Err(unreadable(&other)),
    }
}

pub(super) fn words(value: Value) -> Result<Vec<String>, BackendError> {
    let mut fields = Fields::new(value)?;
    let count = fields.0.len();
    (0..count).map(|_| fields.word()).collect()
}

/// Checks rules that hold for all replies of scripts.
#[cfg(any(fuzzing, test))]
pub(in super::super) fn check_any_reply(value: &Value) {
    let _ = (claimed(value.clone()), passed(value.clone()));
    let _ = (micros(value.clone()), marked(value.clone()), held(value.clone()));
    let _ = (countdown(value.clone()), committed(value.clone()), Flags::read(value.clone()));
    let _ = (fence(value.clone()), flag(value.clone()));
    for count in 0..4 {
        if let Ok((kept, _)) = kept(value.clone(), count) {
            assert_eq!(kept.stands.len(), count);
        }
        if let Ok(flags) = flags(value.clone(), count) {
            assert_eq!(flags.len(), count);
        }
    }
}

/// Returns the error for a reply that no script gives.
pub(super) fn unreadable(what: impl fmt::Debug) -> BackendError {
    BackendError::new(BackendErrorKind::Unknown, format!("unexpected reply: {what:?}"))
}

struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    fn new(value: Value) -> Result<Self, BackendError> {
        match value {
            Value::Array(fields) => Ok(Self(fields.into_iter())),
            other => Err(unreadable(&other)),
        }
    }

    fn bytes(&mut self) -> Result<Vec<u8>, BackendError> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            other => Err(unreadable(&other)),
        }
    }

    /// An entry, and the time of the server. Returns `None` if the reply has only its first
    /// [`PART`].
    fn newer(&mut self) -> Result<Option<Entry>, BackendError> {
        let bytes = self.bytes()?;
        let time = self.word()?;
        let time = time.parse().map_err(|_| unreadable(&time))?;
        if bytes.len() >= PART {
            return Ok(None);
        }
        Ok(Some(entry(bytes)?.read_at(time)))
    }

    fn flags(&mut self) -> Result<Flags, BackendError> {
        Flags::read(self.0.next().unwrap_or(Value::Nil))
    }

    fn word(&mut self) -> Result<String, BackendError> {
        String::from_utf8(self.bytes()?).map_err(unreadable)
    }

    fn occupied(&mut self) -> Result<Occupied, BackendError> {
        let fence = self.number()?;
        let remaining = Duration::from_millis(self.number()?);
        let holders = self.count()?;
        Ok(Occupied { fence, remaining, holders })
    }

    /// The back-off of a name, and the failure that it follows.
    fn backs_off(&mut self) -> Result<(BackOff, Failure), BackendError> {
        let (wait, failures) = (Duration::from_millis(self.number()?), self.count()?);
        match Change::decode(&Bytes::from(self.bytes()?)) {
            Change::Failed(failure) => Ok((BackOff { wait, failures }, failure)),
            other => Err(unreadable(&other)),
        }
    }

    fn count(&mut self) -> Result<u32, BackendError> {
        Ok(u32::try_from(self.number()?).unwrap_or(u32::MAX))
    }

    fn number(&mut self) -> Result<u64, BackendError> {
        match self.0.next() {
            Some(Value::Int(number)) => u64::try_from(number).map_err(unreadable),
            other => Err(unreadable(&other)),
        }
    }
}
