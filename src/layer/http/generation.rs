//! The generation of a resource, in a layer with parts of the key.
//!
//! An invalidation is to end the responses with all values of the parts, and no process knows which
//! values there are. So the key of the resource holds a marker with a random generation, and the
//! keys of its responses contain that. An invalidation removes the marker, and the next one has
//! another generation. A response of the old one is never found again, even if its load began
//! before the invalidation and ends after it.
//!
//! The marker is there before a load begins. So requests with different parts share nothing else:
//! no flight, no failure, no mark and no `Vary`.
//!
//! Without a marker, a response is in a generation of the process. It is shared between callers
//! that wait for it, and in an outage it is remembered. It is never stored: an invalidation in
//! another process does not end this generation.

use std::time::Duration;

use super::{
    CachedResponse, Http,
    variants::{Place, selector::Selector},
};
use crate::{
    cache::{Cache, Flown, Lead, OnFull, OnUncacheable, Produced, Sharing},
    key::Key,
};

/// The bytes by which it makes a key longer.
pub(super) const GENERATION_LENGTH: usize = " ".len() + 32;

/// How long a marker is fresh. The first request after that renews it.
const FRESH: Duration = Duration::from_secs(600);

/// The load of a marker makes no call, so its callers share it as those of any cache do.
const SHARING: Sharing = Sharing {
    on_uncacheable: OnUncacheable::Coalesce,
    on_full: OnFull::Refuse,
    waits_once: false,
    takes_heads: false,
    is_local: false,
};

/// The generations of this process begin with it.
pub(super) struct OwnGenerations(String);

impl OwnGenerations {
    pub(super) fn new() -> Self {
        Self(format!("{:016x}", fastrand::u64(..)))
    }

    /// Returns the generation of a resource until this process invalidates it.
    fn of(&self, cache: &Cache<CachedResponse>, resource: &Key) -> Selector {
        let invalidations = cache.invalidations(resource);
        Selector::of_generation(format!("{}{invalidations:016x}", self.0))
    }

    fn contains(&self, selector: &Selector) -> bool {
        selector.generation().starts_with(&self.0)
    }
}

impl Http {
    /// Returns the place of a response with this key, in the generation of its resource.
    pub(super) async fn in_generation(&self, resource: &Key, key: Key) -> Place {
        let settings = &self.0;
        let own = settings.own_generations.of(&settings.cache, resource);
        // As long as a response that was stored while the marker was fresh.
        let kept = settings.cache.ttl().saturating_add(settings.stale.limit);
        let request = settings.cache.request(resource).sharing(SHARING).max_stale(kept);
        let request = settings.streaming.set(request);
        let without_lease = own.clone();
        let flown = request.fly(move |lead| async move {
            lead.expire_after(FRESH);
            lead.stale_while_revalidate(kept);
            lead.stale_if_error(kept);
            let marker = marker(&lead, without_lease);
            Ok(marker.map_or(Produced::Uncacheable, |marker| Produced::Value(marker.into())))
        });
        let found = match flown.await {
            Ok(Flown::Loaded(loaded)) => Selector::of(loaded.value()),
            Ok(_) | Err(_) => None,
        };
        let selector = found.unwrap_or(own);
        let is_local = settings.own_generations.contains(&selector);
        Place::in_generation(key, &selector, is_local)
    }
}

/// Returns the marker of a resource: the one that is stored, or one of a new generation, which will
/// be stored. Without a lease it is of the generation of this process.
fn marker(lead: &Lead<CachedResponse>, own: Selector) -> Option<CachedResponse> {
    match lead.stale() {
        Some(stale) => Some(stale.unchanged()),
        None if lead.fence().is_none() => own.marker(),
        None => Selector::new(Vec::new()).marker(),
    }
}
