//! An entry: a value with its fence, as it lies in the backend.

use std::{ops::Range, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// A value with the fence under which it was written.
///
/// # Format
///
/// A header of text, so that the scripts in Redis can read it, then the payload:
///
/// | bytes | what |
/// |---|---|
/// | 0..3 | `bw1`: this format |
/// | 3 | `v` a value, `u` uncacheable |
/// | 4..20 | the fence: 16 decimal digits |
/// | 20..28 | the tag, schema and codec: 8 hexadecimal digits |
/// | 28..36 | what the load cost: milliseconds, 8 hexadecimal digits |
/// | 36..44 | how long it is kept after its load: milliseconds, 8 hexadecimal digits; 0: unknown |
/// | 44.. | the payload |
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// Whether there is a value, or the mark that the name is uncacheable.
    pub kind: EntryKind,
    /// The fence under which it was written.
    pub fence: u64,
    /// The reader of the payload: the schema in the upper 16 bits, the
    /// [codec](crate::cache::Codec::tag) in the lower.
    pub tag: u32,
    /// How long the load took.
    pub cost: Duration,
    /// How long it is kept, counted from the end of its load. Zero if that is unknown.
    pub ttl: Duration,
    /// The encoded value.
    pub payload: Bytes,
}

/// The content of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// A value.
    Value,
    /// The last answer was not to be shared: each caller loads for itself while this stands.
    Uncacheable,
}

/// Bytes that are not an entry of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the bytes are not an entry in a format that this version reads")]
pub struct Undecodable;

const HEADER: usize = 44;

impl Entry {
    /// The place of the fence in the encoded bytes.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) const FENCE: Range<usize> = 4..20;

    /// Creates a value that is still to be written. A commit or a put sets the fence.
    pub fn value(tag: u32, cost: Duration, payload: Bytes) -> Self {
        Self { kind: EntryKind::Value, fence: 0, tag, cost, ttl: Duration::ZERO, payload }
    }

    /// Creates the mark that a name is uncacheable.
    pub fn uncacheable(cost: Duration) -> Self {
        let (kind, ttl) = (EntryKind::Uncacheable, Duration::ZERO);
        Self { kind, fence: 0, tag: 0, cost, ttl, payload: Bytes::new() }
    }

    /// Returns the same entry under a fence.
    pub fn with_fence(mut self, fence: u64) -> Self {
        self.fence = fence;
        self
    }

    /// Returns the same entry with the time that it is kept.
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Returns how much of a memory limit it takes, in bytes.
    pub fn weight(&self) -> usize {
        HEADER + self.payload.len()
    }

    /// Returns the bytes that are stored and pushed.
    pub fn encode(&self) -> Bytes {
        let kind = match self.kind {
            EntryKind::Value => 'v',
            EntryKind::Uncacheable => 'u',
        };
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let (cost, ttl) = (millis(self.cost), millis(self.ttl));
        let header = format!("bw1{kind}{:016}{:08x}{cost:08x}{ttl:08x}", self.fence, self.tag);
        let mut bytes = BytesMut::with_capacity(header.len() + self.payload.len());
        bytes.put_slice(header.as_bytes());
        bytes.put_slice(&self.payload);
        bytes.freeze()
    }

    /// Reads the bytes that [`encode`](Self::encode) wrote. The payload keeps the memory of
    /// `bytes`.
    ///
    /// # Errors
    ///
    /// Returns [`Undecodable`] for any other bytes.
    pub fn decode(mut bytes: Bytes) -> Result<Self, Undecodable> {
        let header = bytes.get(..HEADER).ok_or(Undecodable)?;
        let kind = match &header[..4] {
            b"bw1v" => EntryKind::Value,
            b"bw1u" => EntryKind::Uncacheable,
            _ => return Err(Undecodable),
        };
        let fence = digits::<10>(&header[Self::FENCE])?;
        let tag_and_cost = digits::<16>(&header[20..36])?;
        let ttl = digits::<16>(&header[36..44])?;
        // A slice of the bytes would cost a reference count.
        bytes.advance(HEADER);
        Ok(Self {
            kind,
            fence,
            tag: (tag_and_cost >> 32) as u32,
            cost: Duration::from_millis(tag_and_cost & u64::from(u32::MAX)),
            ttl: Duration::from_millis(ttl),
            payload: bytes,
        })
    }
}

/// Reads 16 digits, which fit into a `u64` in either radix.
fn digits<const RADIX: u64>(text: &[u8]) -> Result<u64, Undecodable> {
    let (mut number, mut all) = (0, true);
    for byte in text {
        let digit = DIGITS[usize::from(*byte)];
        all &= u64::from(digit) < RADIX;
        number = number * RADIX + u64::from(digit & 15);
    }
    if all { Ok(number) } else { Err(Undecodable) }
}

/// The value of each byte as a digit; greater than that of any digit if it is none.
const DIGITS: [u8; 256] = {
    let mut digits = [u8::MAX; 256];
    let mut worth = 0;
    while worth < 16 {
        digits[b"0123456789abcdef"[worth as usize] as usize] = worth;
        worth += 1;
    }
    digits
};
