//! The tags of a cache. An entry is checked against the invalidations of its tags in the backend,
//! and a copy against the invalidations that this process has received.
//!
//! Each invalidation of a tag has a number, which is greater than all earlier numbers of the
//! namespace. The number is called the end of the tag.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::settings::Settings;
use crate::{
    backend::{STRIPES, TAGGED_LIFE, Windows, stripe_of},
    error::{Error, ErrorKind},
    key::Name,
};

/// The greatest number of tags of an entry. RFC 9875, section 2.1, requires at least 32.
const MOST_TAGS: usize = 128;
/// The greatest length of a tag, in bytes. RFC 9875 requires at least 32 characters.
const LONGEST_TAG: usize = 512;

/// Returns whether a value may have these tags, which must all differ.
pub(crate) fn are_fit(tags: &[Arc<str>]) -> bool {
    tags.len() <= MOST_TAGS && tags.iter().all(|tag| (1..=LONGEST_TAG).contains(&tag.len()))
}

/// The tags of a cache.
pub(super) struct Tags {
    /// The entries of this cache have tags.
    pub(super) is_on: bool,
    /// The name under which the namespace keeps its tags.
    pub(super) name: Name,
    /// The greatest end that this process has received, for each stripe of tags. A copy with an
    /// older number and a tag of that stripe is read again, even if another tag has ended.
    ends: Box<[AtomicU64]>,
    /// The greatest end of all tags.
    pub(super) greatest: AtomicU64,
}

impl Tags {
    pub(super) fn new(settings: &Settings) -> Self {
        let is_told = settings.has_tags || settings.local.is_some();
        Self {
            is_on: settings.has_tags,
            name: Name::of_tags(&settings.namespace),
            ends: (0..if is_told { STRIPES } else { 1 }).map(|_| AtomicU64::new(0)).collect(),
            greatest: AtomicU64::new(0),
        }
    }

    /// Returns whether a tag of these stripes may have an end with a greater number than this.
    pub(super) fn have_ended(&self, stripes: impl IntoIterator<Item = usize>, number: u64) -> bool {
        for stripe in stripes {
            if self.last_end(stripe).load(Ordering::Acquire) > number {
                return true;
            }
        }
        false
    }

    /// Notes the end of a tag.
    pub(super) fn note(&self, tag: &str, number: u64) {
        self.last_end(stripe_of(tag)).fetch_max(number, Ordering::AcqRel);
        self.greatest.fetch_max(number, Ordering::AcqRel);
    }

    fn last_end(&self, stripe: usize) -> &AtomicU64 {
        &self.ends[stripe % self.ends.len()]
    }

    /// Shortens the windows of a value with tags, because the backend forgets the end of a tag
    /// after [`TAGGED_LIFE`].
    pub(super) fn limit(&self, windows: Windows) -> Windows {
        if !self.is_on {
            return windows;
        }
        let fresh = windows.fresh.min(TAGGED_LIFE);
        let left = TAGGED_LIFE - fresh;
        Windows { fresh, stale: windows.stale.min(left), error: windows.error.min(left) }
    }

    /// Checks the tags of a value to store, or the tag to invalidate.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the cache has no tags. [`ErrorKind::InvalidKey`] if there
    /// are too many, or one is empty or too long.
    pub(super) fn check(&self, tags: &[Arc<str>]) -> Result<(), Error> {
        if !self.is_on {
            let words = "this cache has no tags; build it with `tags()`";
            return Err(Error::new(ErrorKind::InvalidConfig, words));
        }
        if !are_fit(tags) {
            let count = tags.len();
            let longest = tags.iter().map(|tag| tag.len()).max();
            let longest = longest.unwrap_or_default();
            let words = format!(
                "{count} tags of up to {longest} bytes: give at most {MOST_TAGS}, each of 1 to \
                 {LONGEST_TAG} bytes"
            );
            return Err(Error::new(ErrorKind::InvalidKey, words));
        }
        Ok(())
    }
}
