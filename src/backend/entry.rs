//! An entry: a value with its fence and its windows, as it lies in the backend.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::{Buf, Bytes};

use super::tags::{TagEnd, Tagged, Undecodable};

/// A value with the fence under which it was written.
///
/// Two entries are equal if the same was written, whenever that was.
///
/// # Format
///
/// A header of text, which the scripts in Redis read, then the payload. Times are in milliseconds
/// and hexadecimal unless said otherwise:
///
/// | bytes | what |
/// |---|---|
/// | 0..3 | `bw1`: this format |
/// | 3 | `v` a value, `u` uncacheable |
/// | 4..20 | the fence, decimal |
/// | 20..36 | when it was stored, by the clock of the backend: microseconds, decimal |
/// | 36..44 | the tag: schema and codec |
/// | 44..52 | how long its load took |
/// | 52..82 | the [windows](Windows): fresh, stale and error, 10 digits each; all 0: unknown |
/// | 82..88 | the number of bytes between the header and the payload: none without tags |
/// | 88.. | the tags, then the payload |
///
/// The tags are: `t`; the tag number, in 16 decimal digits; how many tags there are, in 4
/// hexadecimal digits; each tag behind its length in bytes, in 4 hexadecimal digits.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Whether there is a value, or the mark that the name is uncacheable.
    pub kind: EntryKind,
    /// The fence under which it was written.
    pub fence: u64,
    /// When it was stored, in microseconds of the backend's clock, which sets it. Zero: unknown.
    pub stored_at: u64,
    /// How long ago it was stored, when the backend returned it. `None` for a push, and if it is
    /// unknown. It is not encoded.
    pub age: Option<Duration>,
    /// The reader of the payload: the schema in the upper 16 bits, the
    /// [codec](crate::cache::Codec::tag) in the lower.
    pub tag: u32,
    /// How long its load took. Zero if it was written without one.
    pub cost: Duration,
    /// How long it is of use. Without windows it is fresh until it is gone.
    pub windows: Option<Windows>,
    /// Its tags. `None` if its cache has none.
    pub tagged: Option<Arc<Tagged>>,
    /// The encoded value.
    pub payload: Bytes,
}

/// The content of an [`Entry`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A value.
    #[default]
    Value,
    /// The last answer was not to be shared: each caller loads for itself while this stands.
    Uncacheable,
    /// A tag of the entry has ended, so it counts as missing. A cache says so of what it has read.
    Ended,
}

const HEADER: usize = 88;

impl Entry {
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) const FENCE: Range<usize> = 4..20;
    /// The place of the time at which it was stored.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) const STORED_AT: Range<usize> = 20..36;

    /// Creates a value that is still to be written. A commit or a put sets the fence and the time.
    pub fn value(tag: u32, cost: Duration, payload: Bytes) -> Self {
        Self { tag, cost, payload, ..Self::default() }
    }

    /// Creates the mark that a name is uncacheable.
    pub fn uncacheable(cost: Duration) -> Self {
        Self { kind: EntryKind::Uncacheable, cost, ..Self::default() }
    }

    /// Returns the same entry under a fence.
    pub fn with_fence(mut self, fence: u64) -> Self {
        self.fence = fence;
        self
    }

    /// Returns the same entry with its windows. Each is whole milliseconds, at most 34 years.
    pub fn with_windows(mut self, windows: Windows) -> Self {
        self.windows = Some(windows.in_range());
        self
    }

    /// Returns the same entry with tags.
    pub fn with_tags(mut self, tagged: Tagged) -> Self {
        self.tagged = Some(Arc::new(tagged));
        self
    }

    /// Returns the same entry with its age at a time of the backend's clock, in microseconds.
    pub fn read_at(mut self, micros: u64) -> Self {
        let age = Duration::from_micros(micros.saturating_sub(self.stored_at));
        self.age = (self.stored_at != 0).then_some(age);
        self
    }

    /// Returns its size in bytes, encoded.
    pub fn weight(&self) -> usize {
        HEADER + self.tags_weight() + self.payload.len()
    }

    /// Notes that a tag has ended. An expired entry is as [`Expire`](super::Edit::Expire) leaves
    /// it.
    pub(crate) fn end_by_tag(&mut self, end: TagEnd) {
        match (end, self.windows) {
            (TagEnd::Expired, Some(windows)) if !windows.error.is_zero() => {
                self.windows = Some(Windows::fresh(Duration::ZERO).error(windows.kept()));
                self.age = Some(self.age.unwrap_or_default());
            }
            _ => self.kind = EntryKind::Ended,
        }
    }

    /// Returns whether an act or a tag has ended its windows.
    pub(crate) fn has_ended(&self) -> bool {
        let have_ended = |it: Windows| it.fresh.max(it.stale).is_zero() && !it.error.is_zero();
        self.kind == EntryKind::Ended || self.windows.is_some_and(have_ended)
    }

    fn tags_weight(&self) -> usize {
        self.tagged.as_ref().map_or(0, |tagged| tagged.weight())
    }

    /// Returns the entry without its payload, and the size of that.
    pub(crate) fn without_payload(&self) -> (Self, usize) {
        let tagged = self.tagged.clone();
        (Self { payload: Bytes::new(), tagged, ..*self }, self.payload.len())
    }

    /// Returns the bytes that are stored and pushed.
    pub fn encode(&self) -> Bytes {
        [self.header().as_bytes(), &self.payload].concat().into()
    }

    /// Returns the bytes before the payload.
    pub(crate) fn header(&self) -> String {
        let kind = match self.kind {
            EntryKind::Value | EntryKind::Ended => 'v',
            EntryKind::Uncacheable => 'u',
        };
        let cost = u32::try_from(self.cost.as_millis()).unwrap_or(u32::MAX);
        let windows = self.windows.map_or_else(|| "0".repeat(30), Windows::encoded);
        let (fence, stored_at, tag) = (self.fence, self.stored_at, self.tag);
        let more = self.tags_weight();
        let mut header =
            format!("bw1{kind}{fence:016}{stored_at:016}{tag:08x}{cost:08x}{windows}{more:06x}");
        self.tagged.iter().for_each(|tagged| tagged.encode(&mut header));
        header
    }

    /// Reads the bytes that [`encode`](Self::encode) wrote. The payload keeps the memory of
    /// `bytes`.
    pub fn decode(mut bytes: Bytes) -> Result<Self, Undecodable> {
        let header: &[u8; HEADER] = bytes.first_chunk().ok_or(Undecodable)?;
        let kind = match &header[..4] {
            b"bw1v" => EntryKind::Value,
            b"bw1u" => EntryKind::Uncacheable,
            _ => return Err(Undecodable),
        };
        let hex = |range: Range<usize>| digits(&header[range], 16);
        let fence = digits(&header[Self::FENCE], 10)?;
        let stored_at = digits(&header[Self::STORED_AT], 10)?;
        let (tag, cost) = (hex(36..44)? as u32, Duration::from_millis(hex(44..52)?));
        let windows = [hex(52..62)?, hex(62..72)?, hex(72..82)?];
        let windows = (windows != [0; 3]).then(|| Windows::from_millis(windows));
        let payload_at = (HEADER + hex(82..88)? as usize).min(bytes.len());
        let tagged = Tagged::decode(&bytes[HEADER..payload_at])?.map(Arc::new);
        // A slice of the bytes would cost a reference count.
        bytes.advance(payload_at);
        let (age, payload) = (None, bytes);
        Ok(Self { kind, fence, stored_at, age, tag, cost, windows, tagged, payload })
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        let written =
            |entry: &Self| (entry.kind, entry.fence, entry.tag, entry.cost, entry.windows);
        let is_same = written(self) == written(other) && self.tagged == other.tagged;
        is_same && self.payload == other.payload
    }
}

impl Eq for Entry {}

fn digits(text: &[u8], radix: u32) -> Result<u64, Undecodable> {
    text.iter().try_fold(0, |number: u64, byte| {
        let digit = char::from(*byte).to_digit(radix).filter(|_| !byte.is_ascii_uppercase());
        let digit = digit.ok_or(Undecodable)?;
        Ok(number * u64::from(radix) + u64::from(digit))
    })
}

/// How long an entry is of use after it was stored.
///
/// First it is `fresh`. The other two windows begin together when it no longer is, as those of [RFC
/// 5861](https://www.rfc-editor.org/rfc/rfc5861) do. It is gone when the longer one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Windows {
    /// How long it is served as it is.
    pub fresh: Duration,
    /// How long after that it is still served, while one process of the fleet refreshes it.
    pub stale: Duration,
    /// How long after that it is served in place of a failure.
    pub error: Duration,
}

/// A window in milliseconds has ten hexadecimal digits.
const LONGEST: u64 = (1 << 40) - 1;

impl Windows {
    /// Creates the windows of an entry that is fresh until it is gone.
    pub fn fresh(fresh: Duration) -> Self {
        Self { fresh, stale: Duration::ZERO, error: Duration::ZERO }
    }

    /// Returns the same windows with a time in which the entry is served while it is refreshed.
    pub fn stale(self, stale: Duration) -> Self {
        Self { stale, ..self }
    }

    /// Returns the same windows with a time in which the entry is served in place of a failure.
    pub fn error(self, error: Duration) -> Self {
        Self { error, ..self }
    }

    /// Returns how long the entry is kept: to the end of its last window.
    pub fn kept(&self) -> Duration {
        self.fresh.saturating_add(self.stale.max(self.error))
    }

    /// Returns whether the entry is of no use once it is no longer fresh.
    pub fn is_fresh_only(&self) -> bool {
        self.stale.max(self.error).is_zero()
    }

    fn millis(self) -> [u64; 3] {
        [self.fresh, self.stale, self.error]
            .map(|window| u64::try_from(window.as_millis()).unwrap_or(LONGEST).min(LONGEST))
    }

    /// Returns the windows as they stand in the header of an entry.
    pub(crate) fn encoded(self) -> String {
        let [fresh, stale, error] = self.millis();
        format!("{fresh:010x}{stale:010x}{error:010x}")
    }

    fn from_millis(windows: [u64; 3]) -> Self {
        let [fresh, stale, error] = windows.map(Duration::from_millis);
        Self { fresh, stale, error }
    }

    /// Returns the same windows as they are encoded. A fresh window has at least 1 ms.
    pub(crate) fn in_range(self) -> Self {
        let fresh = self.fresh.max(Duration::from_millis(1));
        Self::from_millis(Self { fresh, ..self }.millis())
    }
}
