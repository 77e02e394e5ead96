//! Tags of a cache. An entry of the backend is checked against the ends of its tags in the backend,
//! and a copy in this process against the ends that were told.

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

/// How many tags an entry has at most, and how long each is in bytes. RFC 9875, section 2.1, asks
/// for 32 of 32 characters at least.
const MOST_TAGS: usize = 128;
const LONGEST_TAG: usize = 512;

/// Returns whether a value may have these tags, none of which is there twice.
pub(crate) fn are_fit(tags: &[Arc<str>]) -> bool {
    let is_fit = |tag: &Arc<str>| (1..=LONGEST_TAG).contains(&tag.len());
    tags.len() <= MOST_TAGS && tags.iter().all(is_fit)
}

/// The tags of a cache.
pub(super) struct Tags {
    /// The entries of this cache have tags.
    pub(super) is_on: bool,
    /// The name under which the namespace keeps its tags.
    pub(super) name: Name,
    /// The greatest number of an end that this process was told, for each stripe of tags. A tag
    /// whose stripe has another one that ended is asked for once more.
    ends: Box<[AtomicU64]>,
    /// The greatest number of all.
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

    /// Returns whether a tag of these stripes may have ended with a greater number than this.
    pub(super) fn have_ended(&self, stripes: impl IntoIterator<Item = usize>, number: u64) -> bool {
        let last = |stripe: usize| self.ends[stripe % self.ends.len()].load(Ordering::Acquire);
        stripes.into_iter().any(|stripe| last(stripe) > number)
    }

    /// Notes the end of a tag.
    pub(super) fn note(&self, tag: &str, number: u64) {
        self.ends[stripe_of(tag) % self.ends.len()].fetch_max(number, Ordering::AcqRel);
        self.greatest.fetch_max(number, Ordering::AcqRel);
    }

    /// Returns the windows of a value, which the ends of its tags are to outlive.
    pub(super) fn limit(&self, windows: Windows) -> Windows {
        if !self.is_on {
            return windows;
        }
        let fresh = windows.fresh.min(TAGGED_LIFE);
        let left = TAGGED_LIFE - fresh;
        Windows { fresh, stale: windows.stale.min(left), error: windows.error.min(left) }
    }

    /// Checks the tags of a value that is to be stored, or one that is to end.
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
            let (count, longest) = (tags.len(), tags.iter().map(|tag| tag.len()).max());
            let words = format!(
                "{count} tags of up to {} bytes: give at most {MOST_TAGS}, each of 1 to \
                 {LONGEST_TAG} bytes",
                longest.unwrap_or_default()
            );
            return Err(Error::new(ErrorKind::InvalidKey, words));
        }
        Ok(())
    }
}
