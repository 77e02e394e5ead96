//! The contract of a shared load: all that a layer uses of a cache beside the public methods.
//!
//! A layer sends a request to its service, and may learn from the answer that the answer must not
//! be shared, or that the answer is long. So the load of a layer differs from a loader that a user
//! wrote. A layer makes a [`Request`], says by [`Sharing`] how its callers share the load, and
//! calls [`Request::fly`]. The loader ends with [`Produced`], and each caller gets a
//! [`FlightResult`]. The cache promises:
//!
//! - **The head before the value.** A loader may [announce](Lead::announce) a head while the value
//!   is still on its way. The callers of this process that
//!   [take heads](Sharing::takes_heads) get the head at once. A later caller gets it, too, after
//!   the cache has asked whether the lease is still held: then no act has changed the value since.
//!   If the lease is lost or the load fails, later callers begin a new flight.
//! - **Time to finish.** From the head on, the load has no time limit but that of its loader. The
//!   lease is kept for as long as [`rest_limit`](Sharing::rest_limit) behind the load limit.
//! - **For its caller alone.** [`Produced::alone`] says that the loader's caller has the answer
//!   already. All other callers get [`FlightResult::Alone`] with the [reason](Alone). Only
//!   [`Alone::Uncacheable`] marks the key in the fleet, for [`UNCACHEABLE_LIFE`].
//! - **Failed for all, or for one.** By default, a failed load is the error of all that wait. With
//!   [`fails_alone`](Sharing::fails_alone), the failure decides nothing for other callers: the key
//!   does not back off, and the next refresh may begin. A
//!   [rule of the cache](super::Builder::after_failure) goes before that.
//! - **A full process.** A load beyond the cap on loads queues, or is refused at once
//!   ([`never_queues`](Sharing::never_queues)), or leaves its callers alone
//!   ([`passes_full`](Sharing::passes_full)).
//! - **Counting.** A flight counts its load and how the load ended. A flight counts no caller: the
//!   layer counts each of its callers once, in the [counters](Cache::counters).
//!
//! Nothing here knows what a value is. The type of a head is known to the loader alone.

use std::{sync::Arc, time::Duration};

pub(crate) use super::{
    loader::Produced,
    outcome::{Alone, FlightResult, Head},
    settings::{Sharing, UNCACHEABLE_LIFE},
};
pub(crate) use crate::{
    backend::{Tagged, Windows},
    observe::Counters,
};

use super::{AfterFailure, Cache, Lead, Loaded, Request, settings::OwnWindows, tags};
use crate::{error::Error, key::Key};

/// The settings of a cache that a layer must know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheTerms {
    /// The longest key, in bytes.
    pub(crate) max_key: usize,
    /// The largest encoded value, in bytes.
    pub(crate) max_value: usize,
    /// The windows of a value that sets none. The fresh one is also a cap.
    pub(crate) windows: Windows,
    pub(crate) has_tags: bool,
    /// A load goes on to its end when its last caller has left.
    pub(crate) finishes_abandoned: bool,
}

impl<V> Cache<V> {
    pub(crate) fn terms(&self) -> CacheTerms {
        let settings = &self.core.settings;
        CacheTerms {
            max_key: settings.max_key,
            max_value: settings.max_value,
            windows: settings.options.windows,
            has_tags: settings.has_tags,
            finishes_abandoned: !settings.cancels_abandoned,
        }
    }

    /// Returns whether a value may have these tags, none of which is there twice.
    pub(crate) fn permits_tags(&self, tags: &[Arc<str>]) -> bool {
        tags::are_fit(tags)
    }

    /// Returns the rule by which a key backs off after this error, if the cache has one.
    pub(crate) fn backs_off_after(&self, error: &Error) -> Option<AfterFailure> {
        match self.core.loads.failures.policy(error)? {
            AfterFailure::LoadAgain => None,
            rule => Some(rule),
        }
    }

    /// Returns a number that each invalidation of the key by this process makes greater.
    pub(crate) fn invalidations(&self, key: &Key) -> u64 {
        self.core.local.invalidations.so_far(key)
    }

    /// Returns the counters, in which a layer counts each of its callers.
    pub(crate) fn counters(&self) -> &Counters {
        &self.core.counters
    }
}

impl<V: Clone + Send + Sync + 'static> Request<V> {
    /// Sets how the callers share the load, and the limit of both windows in which they accept a
    /// stale value.
    pub(crate) fn sharing(mut self, sharing: Sharing, stale: Duration) -> Self {
        let options = self.options_mut();
        options.sharing = sharing;
        options.windows.stale = stale;
        options.windows.error = stale;
        options.rules.stale = stale;
        options.rules.error = stale;
        self
    }

    /// Sets how long an inserted value is kept, and its tags, with the tag number from before the
    /// value was read.
    pub(crate) fn kept(mut self, windows: Windows, tagged: Tagged) -> Self {
        let options = self.options_mut();
        let Windows { fresh, stale, error } = windows;
        options.windows = windows;
        options.own = OwnWindows { fresh: Some(fresh), stale: Some(stale), error: Some(error) };
        options.tagged = tagged;
        self
    }
}

impl<V> Lead<V> {
    /// Announces the head of the value, so that callers of this process that take heads have it at
    /// once. From then on the load has no time limit but its loader's own.
    pub(crate) fn announce(&self, head: Head) {
        let _ = self.0.head.set(head);
    }

    /// Returns whether the load is to replace a stored value.
    pub(crate) fn replaces(&self) -> bool {
        self.0.previous.is_some()
    }

    /// Returns whether a stale value is served if this load fails now.
    pub(crate) fn has_stand_in(&self) -> bool {
        let previous = self.0.previous.as_ref();
        previous.is_some_and(|previous| previous.left_on_error().is_some())
    }

    /// Sets how long the value is kept, in each of its windows.
    pub(crate) fn keep(&self, windows: Windows) {
        let mut keeping = self.keeping();
        keeping.ttl = Some(windows.fresh);
        keeping.stale_while_revalidate = Some(windows.stale);
        keeping.stale_if_error = Some(windows.error);
    }

    /// Takes the tags out. The tag number stays.
    pub(crate) fn take_tags(&self) -> Tagged {
        let tagged = &mut self.keeping().tagged;
        Tagged { number: tagged.number, tags: std::mem::take(&mut tagged.tags) }
    }
}

impl<V> Produced<V> {
    /// Says that the answer is for the loader's caller alone, and why.
    pub(crate) fn alone(why: Alone) -> Self {
        Self { shared: Err(why) }
    }
}

impl<V> Loaded<V> {
    /// Returns for how long the value has not been fresh. `None` if the value is fresh, or not
    /// stored.
    pub(crate) fn lateness(&self) -> Option<Duration> {
        self.age()?.checked_sub(self.record.fresh?)
    }
}
