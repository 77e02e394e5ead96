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

/// Returns the error for a reply that no script gives.
pub(super) fn unreadable(what: impl fmt::Debug) -> BackendError {
    BackendError::new(BackendErrorKind::Unknown, format!("unexpected reply: {what:?}"))
}

/// Reads the fields of a reply. No script replies with a negative number among others.
fn read<T: FromRedisValue>(value: Value) -> Result<T, BackendError> {
    let is_negative = |field: &Value| matches!(field, Value::Int(number) if *number < 0);
    match &value {
        Value::Array(fields) if !fields.iter().any(is_negative) => {
            from_redis_value(value).map_err(unreadable)
        }
        other => Err(unreadable(other)),
    }
}

/// Returns the word with which a reply begins, if it does so.
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

/// Reads an entry behind a word, with the time of the server.
fn newer(value: Value) -> Result<Entry, BackendError> {
    let (_, bytes, time): (Value, Bytes, _) = read(value)?;
    Ok(Entry::decode(bytes)?.read_at(time))
}

/// Reads the back-off of a name, and the failure that it follows.
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

/// Reads the reply to a pass. Shared units are granted before what is left to do.
pub(super) fn passed(value: Value) -> Result<Option<Grant>, BackendError> {
    match value {
        Value::Nil => Ok(None),
        value if word(&value) == b"again" => Ok(Some(Grant::new(0))),
        value => fence(value).map(|fence| Some(Grant::new(fence))),
    }
}

pub(super) fn held(value: Value) -> Result<Holding, BackendError> {
    type Fields = (String, u64, u64, u32, u32, u64, String, u64, u32, Bytes);
    let (owner, fence, millis, holders, waiting, now, label, wait, failures, message) =
        read::<Fields>(value)?;
    let expires_in = Duration::from_millis(millis);
    // Without failed loads, there is no failure to read.
    let failed = backs_off(wait, failures, message).ok();
    let held = Holding { holders, expires_in, waiting, failed, ..Holding::default() };
    let label = Some(label.as_str()).filter(|label| !label.is_empty());
    Ok(owner.parse().map_or(held.clone(), |holder| held.by(holder, fence, now, label)))
}

/// Reads the mark before, whether it was set, and the server's time.
pub(super) fn marked(value: Value) -> Result<Marked, BackendError> {
    let (is_set, mark, now): (_, String, _) = read(value)?;
    let (tick, owner) = mark.split_once(':').map_or((&*mark, None), |(tick, by)| (tick, Some(by)));
    let begun_by = owner.map(str::parse).transpose().map_err(unreadable)?;
    let tick = Some(tick).filter(|tick| !tick.is_empty()).map(str::parse).transpose();
    let before = tick.map_err(unreadable)?.map(|tick| Mark { tick, begun_by });
    Ok(Marked { before, is_set, now })
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
    Ok((Some(Countdown { left, remaining }), Flags::of(flags)?))
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
/// The script has more to do than it may, and is to be called again.
pub(super) const AGAIN: i64 = 8;

/// The bits of a reply, as in `scripts/lib/`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags(i64);

impl Flags {
    pub(super) fn read(value: Value) -> Result<Self, BackendError> {
        match value {
            Value::Int(bits) => Self::of(bits),
            other => Err(unreadable(&other)),
        }
    }

    fn of(bits: i64) -> Result<Self, BackendError> {
        let is_known = bits & !(HELD | REFUSED | AGAIN) == 0;
        is_known.then_some(Self(bits)).ok_or_else(|| unreadable(bits))
    }

    pub(super) fn has(self, bit: i64) -> bool {
        self.0 & bit != 0
    }
}

/// Reads what the keeping of a queue has found, with this many claims.
pub(super) fn kept(value: Value, claims: usize) -> Result<(Kept, Flags), BackendError> {
    let numbers: Vec<i64> = read(value)?;
    match &numbers[..] {
        [flags, millis, has_lapsed, handed_over, stands @ ..] if stands.len() == claims => {
            let kept = Kept {
                remaining: Duration::from_millis(millis.unsigned_abs()),
                has_lapsed: *has_lapsed == 1,
                handed_over: *handed_over == 1,
                stands: stands.iter().map(|stands| *stands == 1).collect(),
            };
            Ok((kept, Flags::of(*flags)?))
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
    match flags.len() == count {
        true => Ok(flags.into_iter().map(|flag| flag == 1).collect()),
        false => Err(unreadable(flags)),
    }
}

pub(super) fn text(value: Value) -> Result<String, BackendError> {
    from_redis_value(value).map_err(unreadable)
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
