//! An entry: a value with its fence and its windows, as the backend stores it.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::{Buf, Bytes};

use super::tags::{TagEnd, Tagged, Undecodable};

/// A value with the fence under which it was written.
///
/// Two entries are equal if they were written with the same content, at any time.
///
/// # Format
///
/// A header of text, which the scripts in Redis read, and the payload. Times are in milliseconds
/// and hexadecimal unless the table says otherwise:
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
    /// Whether the entry is a value, or says that the name is uncacheable.
    pub kind: EntryKind,
    /// The fence under which the entry was written.
    pub fence: u64,
    /// When the backend stored the entry, in microseconds of its clock. Zero: unknown.
    pub stored_at: u64,
    /// The age of the entry when the backend returned it. `None` for a push, and if the age is
    /// unknown. The age is not encoded.
    pub age: Option<Duration>,
    /// The reader of the payload: the schema in the upper 16 bits, the
    /// [codec](crate::cache::Codec::tag) in the lower 16 bits.
    pub tag: u32,
    /// How long the load of the value took. Zero for a value that was written without a load.
    pub cost: Duration,
    /// How long the entry is of use. An entry without windows is fresh until it is gone.
    pub windows: Option<Windows>,
    /// The tags of the entry. `None` if its cache has no tags.
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
    /// The last value could not be shared. While this entry stands, each caller loads for itself.
    Uncacheable,
    /// A tag of the entry was invalidated, so the entry counts as missing. Only a cache sets this,
    /// in an entry that it has read.
    Ended,
}

const HEADER: usize = 88;

impl Entry {
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) const FENCE: Range<usize> = 4..20;
    /// Where the header has the time at which the entry was stored.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) const STORED_AT: Range<usize> = 20..36;

    /// Creates a value to be written. A commit or a put sets the fence and the time.
    pub fn value(tag: u32, cost: Duration, payload: Bytes) -> Self {
        Self { tag, cost, payload, ..Self::default() }
    }

    /// Creates the entry of an uncacheable name.
    pub fn uncacheable(cost: Duration) -> Self {
        Self { kind: EntryKind::Uncacheable, cost, ..Self::default() }
    }

    /// Returns the same entry under a fence.
    pub fn with_fence(mut self, fence: u64) -> Self {
        self.fence = fence;
        self
    }

    /// Returns the same entry with windows. Each window has whole milliseconds, at most 34 years.
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
        self.age = match self.stored_at {
            0 => None,
            stored_at => Some(Duration::from_micros(micros.saturating_sub(stored_at))),
        };
        self
    }

    /// Returns the size of the encoded entry in bytes.
    pub fn weight(&self) -> usize {
        HEADER + self.tags_weight() + self.payload.len()
    }

    /// Notes that a tag of the entry was invalidated or expired. An expired entry gets the windows
    /// that [`Expire`](super::Edit::Expire) would have given it.
    pub(crate) fn end_by_tag(&mut self, end: TagEnd) {
        match (end, self.windows) {
            (TagEnd::Expired, Some(windows)) if !windows.error.is_zero() => {
                self.windows = Some(Windows::fresh(Duration::ZERO).error(windows.kept()));
                self.age = Some(self.age.unwrap_or_default());
            }
            _ => self.kind = EntryKind::Ended,
        }
    }

    /// Returns whether an edit or a tag has ended the windows of the entry.
    pub(crate) fn has_ended(&self) -> bool {
        self.kind == EntryKind::Ended || self.windows.is_some_and(Windows::has_only_error)
    }

    fn tags_weight(&self) -> usize {
        self.tagged.as_ref().map_or(0, |tagged| tagged.weight())
    }

    /// Returns the entry without its payload, and the size of the payload.
    pub(crate) fn without_payload(&self) -> (Self, usize) {
        let tagged = self.tagged.clone();
        let without_payload = Self { payload: Bytes::new(), tagged, ..*self };
        (without_payload, self.payload.len())
    }

    /// Returns the bytes that are stored and pushed.
    pub fn encode(&self) -> Bytes {
        let header = self.header();
        [header.as_bytes(), &self.payload].concat().into()
    }

    /// Returns the bytes before the payload.
    pub(crate) fn header(&self) -> String {
        let kind = match self.kind {
            EntryKind::Value | EntryKind::Ended => 'v',
            EntryKind::Uncacheable => 'u',
        };
        let cost = u32::try_from(self.cost.as_millis()).unwrap_or(u32::MAX);
        let windows = self.windows.map_or_else(|| "0".repeat(30), Windows::encoded);
        let Self { fence, stored_at, tag, .. } = self;
        let tags_weight = self.tags_weight();
        let mut header = format!(
            "bw1{kind}{fence:016}{stored_at:016}{tag:08x}{cost:08x}{windows}{tags_weight:06x}"
        );
        if let Some(tagged) = &self.tagged {
            tagged.encode(&mut header);
        }
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
        let fence = digits(&header[Self::FENCE], 10)?;
        let stored_at = digits(&header[Self::STORED_AT], 10)?;
        let tag = digits(&header[36..44], 16)? as u32;
        let cost = Duration::from_millis(digits(&header[44..52], 16)?);
        let fresh = digits(&header[52..62], 16)?;
        let stale = digits(&header[62..72], 16)?;
        let error = digits(&header[72..82], 16)?;
        let windows = match [fresh, stale, error] {
            [0, 0, 0] => None,
            millis => Some(Windows::from_millis(millis)),
        };
        let tags_weight = digits(&header[82..88], 16)? as usize;
        let payload_at = (HEADER + tags_weight).min(bytes.len());
        let tagged = Tagged::decode(&bytes[HEADER..payload_at])?.map(Arc::new);
        // A slice of the bytes would cost a reference count.
        bytes.advance(payload_at);
        Ok(Self { kind, fence, stored_at, age: None, tag, cost, windows, tagged, payload: bytes })
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.fence == other.fence
            && self.tag == other.tag
            && self.cost == other.cost
            && self.windows == other.windows
            && self.tagged == other.tagged
            && self.payload == other.payload
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
/// First the entry is `fresh`. The other two windows begin together at the end of the fresh window,
/// as [RFC 5861](https://www.rfc-editor.org/rfc/rfc5861) defines them. The entry is gone at the end
/// of the longer window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Windows {
    /// How long the entry is served without a refresh.
    pub fresh: Duration,
    /// How long after the fresh window the entry is served while one process of the fleet refreshes
    /// it.
    pub stale: Duration,
    /// How long after the fresh window the entry is served in place of a failure.
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

    /// Returns whether an edit has ended the fresh and the stale window, and left the error window.
    fn has_only_error(self) -> bool {
        self.fresh.is_zero() && self.stale.is_zero() && !self.error.is_zero()
    }

    /// Returns whether the entry is of no use after its fresh window.
    pub fn is_fresh_only(&self) -> bool {
        self.stale.max(self.error).is_zero()
    }

    fn millis(self) -> [u64; 3] {
        [self.fresh, self.stale, self.error].map(|window| {
            let millis = u64::try_from(window.as_millis()).unwrap_or(LONGEST);
            millis.min(LONGEST)
        })
    }

    /// Returns the text of the windows in the header of an entry.
    pub(crate) fn encoded(self) -> String {
        let [fresh, stale, error] = self.millis();
        format!("{fresh:010x}{stale:010x}{error:010x}")
    }

    fn from_millis(windows: [u64; 3]) -> Self {
        let [fresh, stale, error] = windows.map(Duration::from_millis);
        Self { fresh, stale, error }
    }

    /// Returns the same windows, rounded as the encoding rounds them. A fresh window has at least
    /// 1 ms.
    pub(crate) fn in_range(self) -> Self {
        let fresh = self.fresh.max(Duration::from_millis(1));
        Self::from_millis(Self { fresh, ..self }.millis())
    }
}
