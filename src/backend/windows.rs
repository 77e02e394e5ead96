//! The windows of an entry: how long it is of use, and for what.

use std::time::Duration;

/// How long an entry is of use after it was stored.
///
/// First it is `fresh`. The other two windows begin together when it no longer is, as those of [RFC
/// 5861](https://www.rfc-editor.org/rfc/rfc5861) do. It is gone when the longer one has ended.
///
/// ```
/// use std::time::Duration;
/// use bellwether::backend::Windows;
///
/// let seconds = Duration::from_secs;
/// let windows = Windows::fresh(seconds(60)).stale(seconds(30)).error(seconds(600));
/// assert_eq!(windows.kept(), seconds(660));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Windows {
    /// How long it is served as it is.
    pub fresh: Duration,
    /// How long after that it is still served, while one process of the fleet refreshes it.
    pub stale: Duration,
    /// How long after that it is served in place of a failure.
    pub error: Duration,
}

/// A window in milliseconds has ten hexadecimal digits.
pub(super) const LONGEST: u64 = (1 << 40) - 1;

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

    /// Returns whether an expiry has ended the first two windows.
    pub(crate) fn are_ended(&self) -> bool {
        self.fresh.max(self.stale).is_zero() && !self.error.is_zero()
    }

    pub(crate) fn millis(self) -> [u64; 3] {
        [self.fresh, self.stale, self.error]
            .map(|window| u64::try_from(window.as_millis()).unwrap_or(LONGEST).min(LONGEST))
    }

    /// Returns the windows as they stand in the header of an entry.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn encoded(self) -> String {
        let [fresh, stale, error] = self.in_range().millis();
        format!("{fresh:010x}{stale:010x}{error:010x}")
    }

    pub(crate) fn from_millis(windows: [u64; 3]) -> Self {
        let [fresh, stale, error] = windows.map(Duration::from_millis);
        Self { fresh, stale, error }
    }

    /// Returns the same windows as they are encoded. A fresh window has at least 1 ms.
    pub(crate) fn in_range(self) -> Self {
        let fresh = self.fresh.max(Duration::from_millis(1));
        Self::from_millis(Self { fresh, ..self }.millis())
    }
}
