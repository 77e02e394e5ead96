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

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{CachedResponse, Http, variants::selector::Selector};
use crate::{
    cache::{Flown, Lead, OnFull, OnUncacheable, Produced, Sharing},
    key::Key,
    sync::lock,
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
    is_anew: false,
};

/// The generation of this process, for resources whose marker is neither stored nor remembered, so
/// that its callers share all the same.
pub(super) struct OwnGeneration(Mutex<Selector>);

impl Default for OwnGeneration {
    fn default() -> Self {
        Self(Mutex::new(Selector::new(Vec::new())))
    }
}

impl OwnGeneration {
    fn get(&self) -> Selector {
        lock(&self.0).clone()
    }

    /// Ends it, because an invalidation did not reach the backend.
    pub(super) fn end(&self) {
        *lock(&self.0) = Selector::new(Vec::new());
    }
}

impl Http {
    /// Returns the key of a response in the generation of its resource.
    pub(super) async fn in_generation(&self, resource: &Key, key: &Key) -> Key {
        let settings = &self.0;
        // As long as a response that was stored while the marker was fresh.
        let kept = settings.cache.ttl().saturating_add(settings.stale.limit);
        let own = (!settings.cache.remembers()).then(|| Arc::clone(&settings.own_generation));
        let request = settings.cache.request(resource).sharing(SHARING).max_stale(kept);
        let flown = request.fly(move |lead| async move {
            lead.expire_after(FRESH);
            lead.stale_while_revalidate(kept);
            lead.stale_if_error(kept);
            Ok(marker(&lead, own.as_deref()).map_or(Produced::Uncacheable, Produced::Value))
        });
        let found = match flown.await {
            Ok(Flown::Loaded(loaded)) => Selector::of(loaded.value()),
            Ok(_) | Err(_) => None,
        };
        let selector = found.unwrap_or_else(|| settings.own_generation.get());
        Key::from(format!("{key} {}", selector.generation()))
    }
}

/// Returns the marker of a resource: the one that is stored, or one of a new generation, which will
/// be stored or remembered. Otherwise it is of the process's own generation.
fn marker(lead: &Lead<CachedResponse>, own: Option<&OwnGeneration>) -> Option<CachedResponse> {
    if let Some(stale) = lead.stale() {
        return Some(stale.unchanged());
    }
    match own.filter(|_| lead.fence().is_none()) {
        Some(own) => own.get().marker(),
        None => Selector::new(Vec::new()).marker(),
    }
}
