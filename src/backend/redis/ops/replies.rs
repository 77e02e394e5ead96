//! Reads the replies of the scripts. A reply of another form is an error, and never a guess.

use std::{fmt, time::Duration};

use bytes::Bytes;
use redis::{FromRedisValue, Value, from_redis_value};

use crate::{
    backend::{
        BackOff, Change, Claimed, Committed, Countdown, Entry, Failure, Grant, Holding, Kept, Mark,
        Marked, Occupied,
    },
    error::{BackendError, BackendErrorKind},
};

/// Returns the error of a reply that no script returns.
pub(super) fn unreadable(what: impl fmt::Debug) -> BackendError {
    BackendError::new(BackendErrorKind::Unknown, format!("unexpected reply: {what:?}"))
}

/// Reads the fields of a reply. No field of a script's reply is a negative number.
fn read<T: FromRedisValue>(value: Value) -> Result<T, BackendError> {
    match &value {
        Value::Array(fields) if !fields.iter().any(is_negative) => {
            from_redis_value(value).map_err(unreadable)
        }
        other => Err(unreadable(other)),
    }
}

fn is_negative(field: &Value) -> bool {
    matches!(field, Value::Int(number) if *number < 0)
}

/// Returns the word with which a reply begins. Returns no bytes if it begins with another field.
pub(super) fn word(value: &Value) -> &[u8] {
    let Value::Array(fields) = value else { return b"" };
    match fields.first() {
        Some(Value::BulkString(word)) => word,
        _ => b"",
    }
}

pub(super) fn claimed(value: Value) -> Result<Claimed, BackendError> {
    Ok(match word(&value) {
        b"held" => {
            let (_, fence, millis, holders): (Value, _, _, _) = read(value)?;
            let remaining = Duration::from_millis(millis);
            Claimed::Occupied(Occupied { fence, remaining, holders })
        }
        b"again" => Claimed::Occupied(Occupied { fence: 0, remaining: Duration::ZERO, holders: 0 }),
        b"newer" => Claimed::Newer(newer(value)?),
        b"granted" => {
            let (_, fence, failures): (Value, _, _) = read(value)?;
            Claimed::Granted(Grant { failures, ..Grant::new(fence) })
        }
        b"failed" => {
            let (_, millis, failures, message): (Value, _, _, _) = read(value)?;
            let (back_off, failure) = backs_off(millis, failures, message)?;
            Claimed::BacksOff(back_off, failure)
        }
        _ => Claimed::Granted(Grant::new(fence(value)?)),
    })
}

/// Reads the entry behind the word of a reply, with the time of the server.
fn newer(value: Value) -> Result<Entry, BackendError> {
    let (_, bytes, time): (Value, Bytes, _) = read(value)?;
    Ok(Entry::decode(bytes)?.read_at(time))
}

/// Reads the back-off of a name, and the failure that caused the back-off.
fn backs_off(
    millis: u64,
    failures: u32,
    message: Bytes,
) -> Result<(BackOff, Failure), BackendError> {
    match Change::decode(&message) {
        Change::Failed(failure) => {
            Ok((BackOff { wait: Duration::from_millis(millis), failures }, failure))
        }
        other => Err(unreadable(other)),
    }
}

/// Reads the reply to a pass. With `again`, the script has granted the shared units, and has work
/// left.
pub(super) fn passed(value: Value) -> Result<Option<Grant>, BackendError> {
    match value {
        Value::Nil => Ok(None),
        value if word(&value) == b"again" => Ok(Some(Grant::new(0))),
        value => fence(value).map(|fence| Some(Grant::new(fence))),
    }
}

pub(super) fn holding(value: Value) -> Result<Holding, BackendError> {
    type Fields = (String, u64, u64, u32, u32, u64, String, u64, u32, Bytes);
    let (owner, fence, millis, holders, waiting, now, label, wait, failures, message) =
        read::<Fields>(value)?;
    let holding = Holding {
        holders,
        expires_in: Duration::from_millis(millis),
        waiting,
        // Without failed loads, the message is empty and no failure can be read.
        failed: backs_off(wait, failures, message).ok(),
        ..Holding::default()
    };
    let label = if label.is_empty() { None } else { Some(label.as_str()) };
    match owner.parse() {
        Ok(holder) => Ok(holding.by(holder, fence, now, label)),
        // There is no sole holder.
        Err(_) => Ok(holding),
    }
}

/// Reads whether the mark was set, the mark before the request, and the time of the server.
pub(super) fn marked(value: Value) -> Result<Marked, BackendError> {
    let (is_set, mark, now): (_, String, _) = read(value)?;
    Ok(Marked { before: read_mark(&mark)?, is_set, now })
}

/// Reads a mark: nothing, a tick, or a tick and the owner of its turn.
fn read_mark(text: &str) -> Result<Option<Mark>, BackendError> {
    if text.is_empty() {
        return Ok(None);
    }
    let (tick, begun_by) = match text.split_once(':') {
        Some((tick, owner)) => (tick, Some(owner.parse().map_err(unreadable)?)),
        None => (text, None),
    };
    let tick = tick.parse().map_err(unreadable)?;
    Ok(Some(Mark { tick, begun_by }))
}

/// Reads the reply to `TIME`, in microseconds.
pub(super) fn micros(value: Value) -> Result<u64, BackendError> {
    let (seconds, micros): (u64, u64) = read(value)?;
    Ok(seconds.saturating_mul(1_000_000).saturating_add(micros))
}

pub(super) fn countdown(value: Value) -> Result<(Option<Countdown>, Flags), BackendError> {
    if word(&value) == b"unset" {
        return Ok((None, Flags::default()));
    }
    let (_, left, millis, flags): (Value, _, _, _) = read(value)?;
    let remaining = Duration::from_millis(millis);
    Ok((Some(Countdown { left, remaining }), Flags::from_bits(flags)?))
}

/// Reads the outcome of a commit, and whether the server refused to publish.
pub(super) fn committed(value: Value) -> Result<(Committed, bool), BackendError> {
    let Value::Int(number) = value else { return Ok((Committed::Newer(newer(value)?), false)) };
    let outcome = match number & !REFUSED {
        0 => Committed::Refused,
        1 => Committed::Pushed,
        2 => Committed::Stored,
        _ => return Err(unreadable(number)),
    };
    Ok((outcome, number & REFUSED != 0))
}

/// A lease was held.
pub(super) const HELD: i64 = 1;
/// The server refused to publish.
pub(super) const REFUSED: i64 = 4;
/// The script could not do all its work in one run, and is to be called again.
pub(super) const AGAIN: i64 = 8;

/// The bits of a reply, as in `scripts/lib/`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags(i64);

impl Flags {
    pub(super) fn read(value: Value) -> Result<Self, BackendError> {
        match value {
            Value::Int(bits) => Self::from_bits(bits),
            other => Err(unreadable(&other)),
        }
    }

    fn from_bits(bits: i64) -> Result<Self, BackendError> {
        let is_known = bits & !(HELD | REFUSED | AGAIN) == 0;
        if is_known { Ok(Self(bits)) } else { Err(unreadable(bits)) }
    }

    pub(super) fn has(self, bit: i64) -> bool {
        self.0 & bit != 0
    }
}

/// Reads the reply to a request that keeps a queue and names this many claims.
pub(super) fn kept(value: Value, claims: usize) -> Result<(Kept, Flags), BackendError> {
    let numbers: Vec<i64> = read(value)?;
    match &numbers[..] {
        [flags, millis, has_lapsed, handed_over, stands @ ..] if stands.len() == claims => {
            let kept = Kept {
                remaining: Duration::from_millis(millis.unsigned_abs()),
                has_lapsed: *has_lapsed == 1,
                handed_over: *handed_over == 1,
                stands: stands.iter().map(is_one).collect(),
            };
            Ok((kept, Flags::from_bits(*flags)?))
        }
        other => Err(unreadable(other)),
    }
}

pub(super) fn fence(value: Value) -> Result<u64, BackendError> {
    match value {
        Value::Int(number) => u64::try_from(number).map_err(unreadable),
        other => Err(unreadable(&other)),
    }
}

pub(super) fn flag(value: Value) -> Result<bool, BackendError> {
    fence(value).map(|number| number == 1)
}

pub(super) fn flags(value: Value, count: usize) -> Result<Vec<bool>, BackendError> {
    let flags: Vec<i64> = read(value)?;
    if flags.len() != count {
        return Err(unreadable(flags));
    }
    Ok(flags.iter().map(is_one).collect())
}

fn is_one(flag: &i64) -> bool {
    *flag == 1
}

pub(super) fn text(value: Value) -> Result<String, BackendError> {
    from_redis_value(value).map_err(unreadable)
}

/// Checks rules that hold for all replies of scripts.
#[cfg(any(fuzzing, test))]
pub(in super::super) fn check_any_reply(value: &Value) {
    let _ = (claimed(value.clone()), passed(value.clone()));
    let _ = (micros(value.clone()), marked(value.clone()), holding(value.clone()));
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
