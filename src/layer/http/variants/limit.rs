//! The variants that this process has seen of each resource, which are limited.

use std::{hash::BuildHasher, sync::Mutex, time::Duration};

use hashbrown::{DefaultHashBuilder, HashMap};
use http::HeaderName;
use lru::LruCache;
use tokio::time::Instant;

use super::selector::Selector;
use crate::{key::Key, sync::lock};

/// How many variants of a resource are shared. A request for another one is passed on.
pub(super) const MOST_VARIANTS: usize = 64;

/// How long a variant counts after its last request.
const IN_USE: Duration = Duration::from_secs(600);

/// How many resources are remembered. Beyond it, the one that was used least recently is forgotten.
const MOST_RESOURCES: usize = 10_000;

pub(crate) struct Variants {
    /// By the hash of the generation, which is that of one resource.
    by_generation: Mutex<LruCache<u64, HashMap<u64, Instant>>>,
    /// By the hash of the resource. Names that a resource varies by in some of its variants only.
    names: Mutex<LruCache<u64, Vec<HeaderName>>>,
    hasher: DefaultHashBuilder,
}

impl Variants {
    pub(crate) fn new() -> Self {
        Self {
            by_generation: Mutex::new(LruCache::unbounded()),
            names: Mutex::new(LruCache::unbounded()),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Remembers what a resource varies by, for the next marker.
    pub(super) fn remember(&self, resource: &Key, selector: &Selector) {
        let mut names = lock(&self.names);
        names.put(self.hasher.hash_one(resource), selector.names().to_vec());
        if names.len() > MOST_RESOURCES {
            names.pop_lru();
        }
    }

    /// Returns a new selector of a resource by these names, and by those that are remembered.
    pub(super) fn selector(&self, resource: &Key, names: Vec<HeaderName>) -> Option<Selector> {
        let selector = Selector::new(names);
        match lock(&self.names).get(&self.hasher.hash_one(resource)) {
            Some(more) => selector.and(more),
            None => Some(selector),
        }
    }

    /// Returns whether a variant is among those that are shared, and counts it.
    pub(super) fn admit(&self, selector: &Selector, variant: &Key) -> bool {
        let generation = self.hasher.hash_one(selector.generation());
        let (variant, now) = (self.hasher.hash_one(variant), Instant::now());
        let mut resources = lock(&self.by_generation);
        let seen = resources.get_or_insert_mut(generation, HashMap::new);
        if seen.len() >= MOST_VARIANTS && !seen.contains_key(&variant) {
            seen.retain(|_, used| now.duration_since(*used) < IN_USE);
            if seen.len() >= MOST_VARIANTS {
                return false;
            }
        }
        seen.insert(variant, now);
        if resources.len() > MOST_RESOURCES {
            resources.pop_lru();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_number_of_variants_is_limited_to_those_in_use() {
        let variants = Variants::new();
        let [one, other] = [Selector::new(Vec::new()), Selector::new(Vec::new())];
        let key = |number: usize| Key::from(number);
        for number in 0..MOST_VARIANTS {
            assert!(variants.admit(&one, &key(number)));
        }
        assert!(!variants.admit(&one, &key(MOST_VARIANTS)));
        assert!(variants.admit(&one, &key(0)) && variants.admit(&other, &key(MOST_VARIANTS)));
        sleep(IN_USE / 2).await;
        assert!(variants.admit(&one, &key(1)));
        sleep(IN_USE / 2).await;
        for number in 0..MOST_VARIANTS - 1 {
            assert!(variants.admit(&one, &key(1000 + number)));
        }
        assert!(variants.admit(&one, &key(1)) && !variants.admit(&one, &key(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_resources_is_bounded() {
        let (variants, key) = (Variants::new(), Key::from("a"));
        for _ in 0..MOST_RESOURCES + 10 {
            assert!(variants.admit(&Selector::new(Vec::new()), &key));
        }
        assert_eq!(lock(&variants.by_generation).len(), MOST_RESOURCES);
    }
}
