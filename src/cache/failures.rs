//! The failed loads of a cache: what follows a failure, and which failures this process remembers.
//!
//! The backend keeps the failures of loads under a lease, for the whole fleet. Their errors become
//! bytes, so that other processes get the same error. This process keeps the failures of loads
//! without a lease. Both kinds count for the back-off after the next failure of the key.

use std::{
    error::Error as StdError,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use lru::LruCache;
use tokio::time::Instant;

use super::Codec;
use crate::{
    backend::{BackOff, Failure},
    error::{BoxError, Error, ErrorKind},
    key::Key,
    observe::Rarely,
    sync::lock,
    time::after,
};

/// The rule after a failed load: when a caller may load its key again.
///
/// While a key backs off, no process of the fleet loads it. Its callers are served the [stale
/// value](super::Builder::stale_if_error) at once if there is one. Otherwise they get the failure
/// at once: with its type if the cache has an [error codec](super::Builder::error_codec), and else
/// as [`BackingOff`](ErrorKind::BackingOff). When the time is over, one process loads.
///
/// ```
/// use std::time::Duration;
/// use bellwether::{Cache, MemoryBackend, cache::AfterFailure};
///
/// let cache: Cache<String> = Cache::builder(MemoryBackend::new(), "shop")
///     .after_failure(|error| match error.load_ref::<std::io::Error>()?.kind() {
///         // The mistake of one caller must not block other callers.
///         std::io::ErrorKind::InvalidInput => Some(AfterFailure::LoadAgain),
///         std::io::ErrorKind::QuotaExceeded => {
///             Some(AfterFailure::RetryAfter(Duration::from_secs(30)))
///         }
///         _ => Some(AfterFailure::BACK_OFF),
///     })
///     .build()?;
/// # Ok::<_, bellwether::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AfterFailure {
    /// The next caller loads.
    LoadAgain,
    /// The key backs off. The wait doubles with each further failure in a row.
    ///
    /// Each wait is random, between half of that time and all of it, so that keys that failed
    /// together are not loaded again together. A wait is 1 ms at least and a day at most. Zero is
    /// no wait.
    BackOff {
        /// The wait after the first failure.
        first: Duration,
        /// The longest wait.
        longest: Duration,
    },
    /// The key backs off for this time, such as a `Retry-After`; an hour at most.
    RetryAfter(Duration),
}

const MILLISECOND: Duration = Duration::from_millis(1);
const NANOSECOND: Duration = Duration::from_nanos(1);
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// The most doublings: `1 << 31` is the greatest power of two in a `u32`. From 1 ms, 27 of them
/// exceed a day.
const DOUBLINGS: u32 = 31;

impl AfterFailure {
    /// Backs off for up to 100 ms after the first failure, and up to 5 s after further ones.
    pub const BACK_OFF: Self =
        Self::BackOff { first: Duration::from_millis(100), longest: Duration::from_secs(5) };

    /// Returns how long a key backs off after this many failures in a row. `random` is from 0 to 1.
    /// Returns `None` if the next caller loads.
    pub(super) fn wait(self, failures: u32, random: f64) -> Option<Duration> {
        let (wait, round_up) = match self {
            Self::LoadAgain => return None,
            // Rounded up, because the origin wants no request before this time.
            Self::RetryAfter(time) => (time.min(LONGEST_RETRY_AFTER), MILLISECOND - NANOSECOND),
            Self::BackOff { first, longest } => {
                let doublings = failures.saturating_sub(1).min(DOUBLINGS);
                // At least 1 ms, so that doubling makes the wait longer.
                let first = if first.is_zero() { first } else { first.max(MILLISECOND) };
                let longest = longest.min(LONGEST_WAIT);
                let all = first.saturating_mul(1 << doublings).min(longest);
                let half = all / 2;
                let random_part = half.mul_f64(random.clamp(0.0, 1.0));
                let some = half.saturating_add(random_part);
                (some.max(all.min(MILLISECOND)), Duration::ZERO)
            }
        };
        whole_millis(wait.saturating_add(round_up))
    }
}

/// Returns a wait in whole milliseconds, the unit of backends. Returns `None` for less than 1 ms.
pub(super) fn whole_millis(wait: Duration) -> Option<Duration> {
    let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    (millis > 0).then(|| Duration::from_millis(millis))
}

pub(super) struct Failures {
    /// Decides what follows an error, or returns `None` for the default.
    pub(super) policy: Option<Box<FailurePolicy>>,
    /// Without a codec, other processes get only the text of an error.
    pub(super) codec: Option<ErrorCodec>,
    here: Mutex<LruCache<Key, FailedHere>>,
    /// Limits the warnings of failed loads.
    pub(super) warned: Rarely,
}

pub(super) type FailurePolicy = dyn Fn(&Error) -> Option<AfterFailure> + Send + Sync;

/// The last failure of loads in a row that ran in this process without a lease.
struct FailedHere {
    error: Error,
    back_off: BackOff,
    until: Instant,
}

impl FailedHere {
    /// Returns whether the failures no longer count for the next one.
    fn is_over(&self) -> bool {
        Instant::now() >= after(self.until, self.back_off.remembered())
    }
}

/// The number of keys whose failures without a lease are remembered.
const KEYS: usize = 1024;

impl Default for Failures {
    fn default() -> Self {
        let here = Mutex::new(LruCache::unbounded());
        Self { policy: None, codec: None, here, warned: Rarely::default() }
    }
}

impl Failures {
    pub(super) fn policy(&self, error: &Error) -> Option<AfterFailure> {
        self.policy.as_ref().and_then(|policy| policy(error))
    }

    /// Returns the error of the last load without a lease, while the key backs off after it.
    pub(super) fn backs_off_here(&self, key: &Key) -> Option<Error> {
        let mut here = lock(&self.here);
        let failed = here.get(key)?;
        let left = failed.until.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then(|| failed.error.again_after(left))
    }

    /// Returns how many loads of a key have failed in a row without a lease.
    pub(super) fn failed_here(&self, key: &Key) -> u32 {
        let mut here = lock(&self.here);
        match here.get(key) {
            Some(failed) if !failed.is_over() => failed.back_off.failures,
            _ => 0,
        }
    }

    /// Remembers a load that failed without a lease, or whose failure may not be in the backend.
    pub(super) fn fail_here(&self, key: &Key, error: &Error, back_off: BackOff) {
        let until = after(Instant::now(), back_off.wait);
        let mut here = lock(&self.here);
        here.put(key.clone(), FailedHere { error: error.clone(), back_off, until });
        while here.len() > KEYS || here.peek_lru().is_some_and(|(_, oldest)| oldest.is_over()) {
            here.pop_lru();
        }
    }

    pub(super) fn forget(&self, key: &Key) {
        lock(&self.here).pop(key);
    }

    /// Returns the failure of a load, as other processes receive it.
    pub(super) fn to_publish(
        &self,
        fence: u64,
        error: &Error,
        back_off: Option<BackOff>,
    ) -> Failure {
        let wait = back_off.map_or(Duration::ZERO, |back_off| back_off.wait);
        let encoded = self.codec.as_ref().and_then(|codec| (codec.encode)(error));
        Failure::new(fence, error, wait, encoded.unwrap_or_default())
    }

    /// Returns the error for a failure that another process has published.
    pub(super) fn of_another(&self, failure: Failure) -> Error {
        let wait = failure.wait;
        let error = match self.decoded(&failure) {
            Some(error) => {
                Error::with_source(ErrorKind::Load, "the load failed in another process", error)
            }
            None => failure.into_error(),
        };
        if wait.is_zero() { error } else { error.with_retry_after(wait) }
    }

    /// Returns the error of a key that backs off for this time after a failure.
    pub(super) fn backing_off(&self, failure: &Failure, wait: Duration) -> Error {
        let words = "the load failed, and its key backs off";
        let (kind, source) = match self.decoded(failure) {
            Some(error) => (ErrorKind::Load, error),
            None => (ErrorKind::BackingOff, failure.message().into()),
        };
        Error::with_source(kind, words, source).with_retry_after(wait)
    }

    fn decoded(&self, failure: &Failure) -> Option<BoxError> {
        (self.codec.as_ref()?.decode)(failure.encoded.clone())
    }
}

/// The codec of a cache for the errors of its loaders, without the type of the errors.
pub(super) struct ErrorCodec {
    /// Returns `None` if the error is of another type, or has no encoding.
    encode: Box<EncodeError>,
    decode: Box<DecodeError>,
}

type EncodeError = dyn Fn(&Error) -> Option<Bytes> + Send + Sync;
type DecodeError = dyn Fn(Bytes) -> Option<BoxError> + Send + Sync;

impl ErrorCodec {
    pub(super) fn new<E>(codec: impl Codec<E>) -> Self
    where
        E: StdError + Send + Sync + 'static,
    {
        let codec = Arc::new(codec);
        let for_encode = codec.clone();
        Self {
            encode: Box::new(move |error| encode_error(&*for_encode, error)),
            decode: Box::new(move |bytes| decode_error(&*codec, bytes)),
        }
    }
}

/// Returns the tag of the codec, and then the encoded error.
fn encode_error<E: StdError + Send + Sync + 'static>(
    codec: &impl Codec<E>,
    error: &Error,
) -> Option<Bytes> {
    let encoded = codec.encode(error.load_ref::<E>()?).ok()?;
    let mut bytes = BytesMut::with_capacity(2 + encoded.len());
    bytes.put_u16(codec.tag());
    bytes.put_slice(&encoded);
    Some(bytes.freeze())
}

fn decode_error<E: StdError + Send + Sync + 'static>(
    codec: &impl Codec<E>,
    mut bytes: Bytes,
) -> Option<BoxError> {
    if bytes.try_get_u16().ok()? != codec.tag() {
        return None;
    }
    Some(codec.decode(bytes).ok()?.into())
}
