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
    /// The bit of `again` in `lib/basics.lua`.
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

/// Reads what the keeping of a queue has found, with this many claims.
pub(in super::super) fn kept(value: Value, claims: usize) -> Result<(Kept, Told), BackendError> {
    let mut fields = Fields::new(value)?;
    let told = Told::read(i64::try_from(fields.number()?).map_err(unreadable)?)?;
    let remaining = Duration::from_millis(fields.number()?);
    let has_lapsed = fields.number()? == 1;
    let handed_over = fields.number()? == 1;
    let stands = (0..claims).map(|_| fields.number().map(|stands| stands == 1));
    let stands = stands.collect::<Result<_, _>>()?;
    Ok((Kept { remaining, has_lapsed, handed_over, stands }, told))
}
