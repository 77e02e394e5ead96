//! Which keys have answers that belong to their callers, in this process: *hit-for-miss*.
//!
//! While a key has a mark, its requests go to the inner service in parallel. Each answer that
//! belongs to its caller renews the mark. The first answer whose headers allow sharing ends it.

use std::{
    hash::BuildHasher,
    sync::{
        RwLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hashbrown::DefaultHashBuilder;
use lru::LruCache;
use tokio::time::Instant;

use crate::{
    cache::OnUncacheable,
    key::Key,
    sync::{read, write},
    time::after,
};

/// How many keys are remembered. Beyond it, the one that was marked least recently is forgotten.
const MOST_KEYS: usize = 10_000;

pub(super) struct Marks {
    /// By the hash of the key. Two keys with one hash share a mark, which is harmless: it decides
    /// which requests wait, never what is shared.
    by_key: RwLock<LruCache<u64, KeyMark>>,
    /// How many keys are remembered. At zero, a request needs no look at them.
    known: AtomicUsize,
    hasher: DefaultHashBuilder,
    /// How long a mark lasts.
    life: Duration,
}

#[derive(Clone, Copy)]
struct KeyMark {
    until: Instant,
    /// An answer that could be shared has ended it. The fleet may still have it, and answers to
    /// older requests do not bring it back.
    is_ended: bool,
}

/// The requests of a key that a mark is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    All,
    /// Those with an `Authorization`.
    Authorized,
}

impl Marks {
    pub(super) fn new(life: Duration) -> Self {
        Self {
            by_key: RwLock::new(LruCache::unbounded()),
            known: AtomicUsize::new(0),
            hasher: DefaultHashBuilder::default(),
            life,
        }
    }

    /// Returns what becomes of a request if the fleet has a mark for its key. Returns `None` if the
    /// request goes alone, because of a mark of this process.
    pub(super) fn on_uncacheable(&self, key: &Key, is_authorized: bool) -> Option<OnUncacheable> {
        let is_reserved =
            || matches!(self.of(key, Whose::Authorized), Some(mark) if !mark.is_ended);
        match self.of(key, Whose::All) {
            Some(KeyMark { is_ended: false, .. }) => None,
            _ if is_authorized && is_reserved() => None,
            Some(KeyMark { is_ended: true, .. }) => Some(OnUncacheable::Claim),
            None => Some(OnUncacheable::Pass),
        }
    }

    /// Marks a key, because the answer to the request that led belongs to its caller.
    pub(super) fn set(&self, key: &Key, whose: Whose) {
        self.put(key, whose, false);
    }

    /// Marks a key, because the answer to a request that went alone belongs to its caller. It may
    /// have been sent before another one whose answer has ended the mark.
    pub(super) fn renew(&self, key: &Key, whose: Whose) {
        if self.of(key, whose).is_none_or(|mark| !mark.is_ended) {
            self.put(key, whose, false);
        }
    }

    /// Ends the mark of a key, because an answer could be shared.
    pub(super) fn end(&self, key: &Key) {
        self.put(key, Whose::All, true);
    }

    fn of(&self, key: &Key, whose: Whose) -> Option<KeyMark> {
        if self.known.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let hash = self.hasher.hash_one((key, whose));
        let mark = read(&self.by_key).peek(&hash).copied();
        mark.filter(|mark| Instant::now() < mark.until)
    }

    fn put(&self, key: &Key, whose: Whose, is_ended: bool) {
        let mark = KeyMark { until: after(Instant::now(), self.life), is_ended };
        let mut by_key = write(&self.by_key);
        by_key.put(self.hasher.hash_one((key, whose)), mark);
        if by_key.len() > MOST_KEYS {
            by_key.pop_lru();
        }
        self.known.store(by_key.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const LIFE: Duration = Duration::from_secs(10);

    /// Returns whether a key is marked for requests with an `Authorization`, or for all.
    fn has(marks: &Marks, key: &Key, is_authorized: bool) -> bool {
        marks.on_uncacheable(key, is_authorized).is_none()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_marked_for_as_long_as_that_is_renewed() {
        let (marks, key) = (Marks::new(LIFE), Key::from("a"));
        assert!(!has(&marks, &key, true));
        marks.set(&key, Whose::All);
        for _ in 0..3 {
            sleep(LIFE - Duration::from_millis(1)).await;
            assert!(has(&marks, &key, false));
            marks.renew(&key, Whose::All);
        }
        sleep(LIFE).await;
        assert!(!has(&marks, &key, true));
    }

    /// Callers that went alone at the same time have answers of both kinds.
    #[tokio::test(start_paused = true)]
    async fn an_answer_to_an_older_request_does_not_bring_a_mark_back() {
        let (marks, key) = (Marks::new(LIFE), Key::from("a"));
        marks.renew(&key, Whose::All);
        assert!(has(&marks, &key, false));
        marks.end(&key);
        marks.renew(&key, Whose::All);
        assert!(!has(&marks, &key, true));
        assert_eq!(marks.on_uncacheable(&key, false), Some(OnUncacheable::Claim));
        // A request that leads was sent after that.
        marks.set(&key, Whose::All);
        assert!(has(&marks, &key, false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_mark_for_credentials_concerns_no_other_request() {
        let (marks, key) = (Marks::new(LIFE), Key::from("a"));
        marks.set(&key, Whose::Authorized);
        assert!(has(&marks, &key, true) && !has(&marks, &key, false));
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_keys_is_bounded() {
        let (marks, key) = (Marks::new(LIFE), |number: usize| Key::from(number));
        (0..MOST_KEYS + 10).for_each(|number| marks.set(&key(number), Whose::All));
        assert_eq!(marks.known.load(Ordering::Relaxed), MOST_KEYS);
        assert!(!has(&marks, &key(0), false) && has(&marks, &key(10), false));
    }
}
