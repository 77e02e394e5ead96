//! Where a response is stored: under the key of its resource, or as one of its variants.

pub(super) mod limit;
pub(super) mod selector;

use std::time::Duration;

use http::HeaderMap;
use tracing::debug;

use self::{
    limit::Variants,
    selector::{KEY_LENGTH, Selector},
};
use super::{CachedResponse, Http, fields::vary::vary, responses::Freshness};
use crate::{
    cache::{Lead, Produced},
    error::Error,
    key::Key,
};

/// How long a marker is kept at least. Its variants are lost with it.
const MARKER_LIFE: Duration = Duration::from_secs(86_400);

/// The key of a flight, and what it is the key of.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) key: Key,
    /// The key without the generation of its resource, if it contains one.
    lasting: Option<Key>,
    /// The key is in a generation of this process alone.
    pub(super) is_local: bool,
    /// The resource of a variant, and what selects the variant.
    variant_of: Option<Box<(Key, Selector)>>,
}

/// Where a response belongs that the flight of a place has loaded.
pub(super) enum Belongs {
    /// To this place.
    Here,
    /// To a variant that this selector selects.
    With(Selector),
}

/// The callers that may read a response, beside the one whose request it answers.
pub(super) enum Readers {
    All,
    /// Those whose requests select the same variant of the resource.
    Selecting {
        resource: Key,
        selector: Selector,
        variant: Key,
    },
    /// None.
    Own,
}

impl Belongs {
    /// Returns which callers of a place may read the response to a request with these headers.
    pub(super) fn readers(&self, place: &Place, request: &HeaderMap) -> Readers {
        match self {
            Self::Here => Readers::All,
            // They may differ in what was not known.
            Self::With(_) if place.variant_of.is_some() => Readers::Own,
            Self::With(selector) => Readers::Selecting {
                resource: place.key.clone(),
                selector: selector.clone(),
                variant: selector.key(&place.key, request),
            },
        }
    }
}

impl Place {
    /// Returns the place of a resource.
    pub(super) fn resource(key: Key) -> Self {
        Self { key, lasting: None, is_local: false, variant_of: None }
    }

    /// Returns the place of a response with this key, in a generation of its resource.
    pub(super) fn in_generation(key: Key, selector: &Selector, is_local: bool) -> Self {
        let text = format!("{key} {}", selector.generation());
        Self { key: Key::from(text), lasting: Some(key), is_local, variant_of: None }
    }

    /// Returns the place of the variant that a request selects.
    pub(super) fn variant(self, selector: Selector, request: &HeaderMap) -> Self {
        let key = selector.key(&self.key, request);
        let variant_of = Some(Box::new((self.key, selector)));
        Self { key, lasting: None, is_local: self.is_local, variant_of }
    }

    /// Returns the key that no invalidation changes, if it is not that of a variant.
    pub(super) fn lasting_key(&self) -> &Key {
        self.lasting.as_ref().unwrap_or(&self.key)
    }

    /// Returns whether it is the place of a variant.
    pub(super) fn is_variant(&self) -> bool {
        self.variant_of.is_some()
    }

    /// Returns whether the resource has no more variants than are shared.
    pub(super) fn is_admitted(&self, variants: &Variants) -> bool {
        let variant_of = self.variant_of.as_ref();
        variant_of.is_none_or(|variant_of| variants.admit(&variant_of.1, &self.key))
    }

    /// Returns where a response belongs. `None` if nowhere, because its `Vary` has no end, or the
    /// key of a variant is too long.
    pub(super) fn of(
        &self,
        response: &HeaderMap,
        variants: &Variants,
        key_limit: usize,
    ) -> Option<Belongs> {
        let names = vary(response)?;
        let selector = match &self.variant_of {
            None if names.is_empty() => return Some(Belongs::Here),
            None if key_limit < KEY_LENGTH => return None,
            None => variants.selector(&self.key, names),
            Some(variant_of) if variant_of.1.covers(&names) => return Some(Belongs::Here),
            Some(variant_of) => variant_of.1.and(&names),
        };
        selector.map(Belongs::With)
    }
}

impl Http {
    /// Keeps a response that the flight of a place has loaded for a request with these headers.
    /// Returns what the flight lands with.
    pub(super) async fn keep(
        &self,
        place: &Place,
        belongs: Belongs,
        request: &HeaderMap,
        response: CachedResponse,
        freshness: &Freshness,
        lead: &Lead<CachedResponse>,
    ) -> Produced<CachedResponse> {
        match belongs {
            Belongs::Here => {
                freshness.keep(lead);
                // Its bytes need not be written again.
                let response = match lead.stale() {
                    Some(stale) if stale.value().differs_by_dates(&response) => stale.unchanged(),
                    _ => response,
                };
                Produced::Value(response.into())
            }
            Belongs::With(selector) => {
                let stored =
                    self.store_variant(place, &selector, request, &response, freshness, lead);
                // In a box, which most loads do not need.
                Box::pin(stored).await
            }
        }
    }

    /// Stores a response as a variant. Returns what the flight of its resource lands with: a
    /// marker, by which each follower finds its own variant.
    ///
    /// The variant is stored before its marker, so that the followers find it.
    ///
    /// The flight of a variant, whose resource varies by more than its marker says, lands with
    /// nothing. Its followers may differ in what was not known. It removes the marker and writes no
    /// other one, because its load may have begun before an invalidation.
    async fn store_variant(
        &self,
        place: &Place,
        selector: &Selector,
        request: &HeaderMap,
        response: &CachedResponse,
        freshness: &Freshness,
        lead: &Lead<CachedResponse>,
    ) -> Produced<CachedResponse> {
        let cache = &self.0.cache;
        if let Some(variant_of) = &place.variant_of {
            self.0.variants.remember(&variant_of.0, selector);
            log(cache.invalidate(&variant_of.0).await);
            lead.do_not_store();
            return Produced::Uncacheable;
        }
        let Some(marker) = selector.marker() else { return Produced::Uncacheable };
        let variant = selector.key(&place.key, request);
        self.0.variants.admit(selector, &variant);
        // The marker is of all variants, and each may be of other groups.
        let tagged = lead.take_tags();
        // Without a lease, the marker is not stored.
        if lead.fence().is_some() && !freshness.lifetime.is_zero() {
            let request = cache.request(variant).tagged(tagged);
            log(freshness.kept(request).insert(response).await);
        }
        keep_marker(lead, MARKER_LIFE.max(freshness.total()));
        Produced::Value(marker.into())
    }

    /// Renews a marker that is refreshed early, without a call of the service.
    pub(super) fn renewed_marker(&self, lead: &Lead<CachedResponse>) -> Option<CachedResponse> {
        let stale = lead.stale()?;
        Selector::of(stale.value())?;
        keep_marker(lead, MARKER_LIFE);
        Some(stale.unchanged())
    }
}

/// Sets how long a marker is kept. A process remembers it for an outage, with its variants, because
/// it has a window for failures.
fn keep_marker(lead: &Lead<CachedResponse>, life: Duration) {
    lead.expire_after(life);
    lead.stale_while_revalidate(Duration::ZERO);
    lead.stale_if_error(Duration::from_secs(1));
}

fn log(stored: Result<u64, Error>) {
    if let Err(error) = stored {
        debug!(%error, "a variant is not stored");
    }
}
