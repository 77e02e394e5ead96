//! Reads the replies about queues, and what became of handovers.

use std::time::Duration;

use redis::Value;

use super::{Fields, publish_refused, unreadable};
use crate::{backend::Kept, error::BackendError};

/// The handover that a script reports.
#[derive(Clone, Copy)]
pub(in super::super) struct Told {
    /// Whether the server refused to publish, if the script published.
    pub(in super::super) publish_refused: Option<bool>,
    /// There is more to do than one script may, and it is to be called again.
    pub(in super::super) again: bool,
}

impl Told {
    /// The bit of `lib/again.lua`.
    const AGAIN: i64 = 8;

    fn read(flags: i64) -> Result<Self, BackendError> {
        let publish_refused = publish_refused(flags & !Self::AGAIN)?;
        Ok(Self { publish_refused, again: flags & Self::AGAIN != 0 })
    }
}

/// Reads whether it was held, and what became of the handover.
pub(in super::super) fn released(value: Value) -> Result<(bool, Told), BackendError> {
    match value {
        Value::Int(flags) => Ok((flags & 1 == 1, Told::read(flags & !1)?)),
        other => Err(unreadable(&other)),
    }
}

/// The reply about a queue that a script was to keep.
pub(in super::super) enum QueueReply {
    Kept(Kept, Told),
    /// The script is to be called again for it.
    Again(Told),
    /// The queue needs a script of its own.
    Alone,
}

impl QueueReply {
    /// The bit of `lib/alone.lua`.
    const ALONE: i64 = 16;

    /// Returns whether the server refused to publish, if the script published for this queue.
    pub(in super::super) fn publish_refused(&self) -> Option<bool> {
        match self {
            Self::Kept(_, told) | Self::Again(told) => told.publish_refused,
            Self::Alone => None,
        }
    }

    fn read(value: Value, claims: usize) -> Result<Self, BackendError> {
        let mut fields = Fields::new(value)?;
        let flags = i64::try_from(fields.number()?).map_err(unreadable)?;
        if flags == Self::ALONE {
            return Ok(Self::Alone);
        }
        let told = Told::read(flags)?;
        if told.again {
            return Ok(Self::Again(told));
        }
        let remaining = Duration::from_millis(fields.number()?);
        let has_lapsed = fields.number()? == 1;
        let handed_over = fields.number()? == 1;
        let stands = (0..claims).map(|_| fields.number().map(|stands| stands == 1));
        let stands = stands.collect::<Result<_, _>>()?;
        Ok(Self::Kept(Kept { remaining, has_lapsed, handed_over, stands }, told))
    }
}

/// Reads what the keeping of queues has found, each with this many claims.
pub(in super::super) fn kept(
    value: Value,
    sizes: impl Iterator<Item = usize>,
) -> Result<Vec<QueueReply>, BackendError> {
    let mut fields = Fields::new(value)?;
    let each = sizes.map(|claims| {
        let one = fields.0.next().ok_or_else(|| unreadable("no answer for a queue"))?;
        QueueReply::read(one, claims)
    });
    each.collect()
}
