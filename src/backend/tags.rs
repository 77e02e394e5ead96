//! Tags: one command invalidates all entries that carry a tag, however many they are.
//!
//! Each namespace has a tag number that only grows. An entry keeps its tags, and the tag number
//! from before its load began. To invalidate a tag is to give the tag the next number. An entry is
//! of use while no tag of it has a greater number than the entry. So there is no list of the
//! entries of a tag, and no two clocks are compared.

use std::{sync::Arc, time::Duration};

use super::local_tier::stripe_of;
use crate::error::{BackendError, BackendErrorKind};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// For how long an entry with tags is kept at most.
pub(crate) const TAGGED_LIFE: Duration = DAY.saturating_mul(30);
/// For how long the number of a tag is remembered. A load that began before an invalidation ends
/// within the day.
pub(crate) const TAG_LIFE: Duration = DAY.saturating_mul(31);
/// The first letter of encoded tags.
const LETTER: char = 't';
/// The number of digits of a tag number as text.
const DIGITS: usize = 16;
/// The number of digits of the length of a tag.
const LENGTH_DIGITS: usize = 4;

/// The tags of an entry, and the tag number from before its load began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tagged {
    /// The last tag number when the load began. Zero is older than each number of a tag.
    pub number: u64,
    /// The tags without the empty tag, which all entries have.
    pub tags: Vec<Arc<str>>,
}

/// The tag numbers of the last invalidation and the last expiry of a tag. Zero: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagEnds {
    /// Entries with a smaller number are of no use.
    pub ended: u64,
    /// Entries with a smaller number are served in place of failed loads only.
    pub expired: u64,
}

/// How the entries of a tag end. The greater end counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TagEnd {
    /// The entries are kept for failed loads.
    Expired,
    /// The entries count as missing.
    Invalidated,
}

/// Bytes that are not an entry of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are not an entry in a format that this version reads")]
pub struct Undecodable;

impl From<Undecodable> for BackendError {
    fn from(error: Undecodable) -> Self {
        Self::new(BackendErrorKind::Foreign, error)
    }
}

impl Tagged {
    /// Returns all tags, with the empty tag that each entry has.
    pub(crate) fn all(&self) -> impl Iterator<Item = Arc<str>> + '_ {
        std::iter::once(Arc::from("")).chain(self.tags.iter().cloned())
    }

    /// Takes the ends of [all](Self::all) tags, and returns how they end the entry. A tag without
    /// an answer counts as invalidated.
    pub(crate) fn end(&self, ends: &mut impl Iterator<Item = TagEnds>) -> Option<TagEnd> {
        let mut end = None;
        for _ in self.all() {
            end = end.max(self.end_by(ends.next()));
        }
        end
    }

    fn end_by(&self, ends: Option<TagEnds>) -> Option<TagEnd> {
        let Some(TagEnds { ended, expired }) = ends else { return Some(TagEnd::Invalidated) };
        if ended > self.number {
            Some(TagEnd::Invalidated)
        } else if expired > self.number {
            Some(TagEnd::Expired)
        } else {
            None
        }
    }

    pub(crate) fn stripes(&self) -> impl Iterator<Item = usize> + '_ {
        self.all().map(|tag| stripe_of(&tag))
    }

    /// Appends the bytes that an entry keeps between its header and its payload.
    pub(super) fn encode(&self, header: &mut String) {
        header.push_str(&format!("{LETTER}{:016}{:04x}", self.number, self.tags.len()));
        for tag in &self.tags {
            header.push_str(&format!("{:04x}{tag}", tag.len()));
        }
    }

    /// Returns the number of bytes that [`encode`](Self::encode) appends.
    pub(super) fn weight(&self) -> usize {
        let mut weight = LETTER.len_utf8() + DIGITS + LENGTH_DIGITS;
        for tag in &self.tags {
            weight += LENGTH_DIGITS + tag.len();
        }
        weight
    }

    /// Reads the bytes that [`encode`](Self::encode) wrote. Bytes behind them, and bytes with
    /// another first letter, belong to a later version and are ignored.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, Undecodable> {
        let Some(mut rest) = bytes.strip_prefix(&[LETTER as u8]) else { return Ok(None) };
        let number = take(&mut rest, DIGITS)?.parse().map_err(|_| Undecodable)?;
        let count = length(&mut rest)?;
        let mut tags = Vec::new();
        for _ in 0..count {
            let length = length(&mut rest)?;
            tags.push(take(&mut rest, length)?.into());
        }
        Ok(Some(Self { number, tags }))
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a str, Undecodable> {
    let (taken, behind) = rest.split_at_checked(length).ok_or(Undecodable)?;
    *rest = behind;
    std::str::from_utf8(taken).map_err(|_| Undecodable)
}

fn length(rest: &mut &[u8]) -> Result<usize, Undecodable> {
    usize::from_str_radix(take(rest, LENGTH_DIGITS)?, 16).map_err(|_| Undecodable)
}

impl TagEnds {
    /// Returns the ends of the tag after an invalidation or expiry with this number.
    pub(crate) fn with(self, end: TagEnd, number: u64) -> Self {
        match end {
            TagEnd::Invalidated => Self { ended: number, ..self },
            TagEnd::Expired => Self { expired: number, ..self },
        }
    }

    /// Reads the text that a server keeps for a tag: both numbers.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn decode(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (ended, expired) = text.split_at_checked(DIGITS)?;
        let ended = ended.parse().ok()?;
        let expired = expired.parse().ok()?;
        Some(Self { ended, expired })
    }
}
