//! How the answers of each key turned out lately, in this process.
//!
//! Uncacheable is *hit-for-miss*: while a key counts as uncacheable, its requests go to the inner
//! service in parallel. Each uncacheable answer renews that, and the first answer that could be
//! shared ends it.
//!
//! A key whose answers were shared lately does not become uncacheable by one odd answer. Its
//! waiters elect a new leader, up to [`RETRIES`] times in a row. So a few odd requests do not send
//! all others to the inner service. An unknown key counts as the other keys of the layer do: while
//! most of them are shared, its waiters elect a new leader too. Otherwise they never wait twice.

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
    key::Key,
    sync::{read, write},
    time::after,
};

/// How many leaders in a row may have an answer that cannot be shared, before their waiters stop
/// waiting.
pub(super) const RETRIES: u8 = 4;

/// How many keys are remembered. Beyond it, the one that was used least recently is forgotten.
const MOST_KEYS: usize = 10_000;

pub(super) struct RecentAnswers {
    states: RwLock<States>,
    /// How many states are [`State::Uncacheable`]. At zero, a hit needs no look at the states.
    uncacheable: AtomicUsize,
    hasher: DefaultHashBuilder,
    /// How long an uncacheable answer is remembered.
    ttl: Duration,
}

struct States {
    /// States by the hash of their key. Two keys with one hash share a state, which is harmless: a
    /// state decides which requests wait, never what is shared.
    by_key: LruCache<u64, State>,
    /// How far an unknown key may be expected to be shared, up to [`MOST_TRUST`].
    trust: u8,
}

/// Each answer that can be shared adds one, and each other one takes away two. So the trust grows
/// if fewer than a third of the answers are odd.
const MOST_TRUST: u8 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// An answer was shared, and that many leaders in a row may still fail to make another. It came
    /// at this time, if this is not only expected.
    Shared { retries: u8, since: Option<Instant> },
    /// The answers cannot be shared.
    Uncacheable { until: Instant },
}

/// How an answer turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Turnout {
    /// It could be shared.
    Shareable,
    /// It belonged to its caller.
    Uncacheable,
    /// It belonged to its caller, whose request had credentials. Without them, it could be shared.
    Reserved,
    /// It was an error.
    Failing,
    /// Its end is not known yet.
    Open,
}

impl RecentAnswers {
    pub(super) fn new(ttl: Duration) -> Self {
        Self {
            states: RwLock::new(States { by_key: LruCache::unbounded(), trust: 0 }),
            uncacheable: AtomicUsize::new(0),
            hasher: DefaultHashBuilder::default(),
            ttl,
        }
    }

    /// Returns whether the answers of a key belong to their callers.
    pub(super) fn is_uncacheable(&self, key: &Key) -> bool {
        self.is_marked(self.hash(key))
    }

    fn is_marked(&self, hash: u64) -> bool {
        if self.uncacheable.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let state = read(&self.states).by_key.peek(&hash).copied();
        matches!(state, Some(State::Uncacheable { until }) if Instant::now() < until)
    }

    /// Returns whether the answers of a key to requests with credentials belong to their callers.
    pub(super) fn is_reserved(&self, key: &Key) -> bool {
        self.is_marked(self.hash_reserved(key))
    }

    /// Returns whether the next answer of a key can probably be shared, although the last one could
    /// not.
    pub(super) fn is_promising(&self, key: &Key) -> bool {
        let hash = self.hash(key);
        matches!(read(&self.states).of(hash), Some(State::Shared { retries, .. }) if retries > 0)
    }

    /// Records how the answer to a request turned out that was sent alone, at this time.
    ///
    /// Many such requests are under way at once. The first of their answers that can be shared is
    /// newer than the others, which would mark the key again.
    pub(super) fn record_alone(&self, key: &Key, turnout: Turnout, sent: Instant) {
        let state = read(&self.states).by_key.peek(&self.hash(key)).copied();
        let is_older =
            matches!(state, Some(State::Shared { since: Some(since), .. }) if sent < since);
        if turnout == Turnout::Shareable || !is_older {
            self.record(key, turnout);
        }
    }

    /// Records how an answer turned out.
    pub(super) fn record(&self, key: &Key, turnout: Turnout) {
        let hash = match turnout {
            Turnout::Reserved => self.hash_reserved(key),
            _ => self.hash(key),
        };
        let mut states = write(&self.states);
        let state = states.of(hash);
        states.learn(turnout, state);
        let next = match (turnout, state) {
            (Turnout::Shareable, _) => {
                State::Shared { retries: RETRIES, since: Some(Instant::now()) }
            }
            (Turnout::Uncacheable, Some(State::Shared { retries, since })) if retries > 1 => {
                State::Shared { retries: retries - 1, since }
            }
            (Turnout::Uncacheable | Turnout::Reserved, _)
            | (Turnout::Open, Some(State::Uncacheable { .. })) => {
                State::Uncacheable { until: after(Instant::now(), self.ttl) }
            }
            (Turnout::Failing, Some(State::Shared { retries, since })) => {
                State::Shared { retries: retries.saturating_sub(1), since }
            }
            (Turnout::Failing | Turnout::Open, _) => return,
        };
        let states = &mut states.by_key;
        let replaced = states.put(hash, next);
        let evicted = (states.len() > MOST_KEYS).then(|| states.pop_lru()).flatten();
        let gone = [replaced, evicted.map(|(_, state)| state)];
        let is_uncacheable = |state: &State| matches!(state, State::Uncacheable { .. });
        let fewer = gone.iter().flatten().filter(|state| is_uncacheable(state)).count();
        let more = usize::from(is_uncacheable(&next));
        // Under the lock, so that the count never falls below zero.
        self.uncacheable.fetch_add(more, Ordering::Relaxed);
        self.uncacheable.fetch_sub(fewer, Ordering::Relaxed);
    }

    fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }

    /// Returns the hash of a key for requests with credentials.
    fn hash_reserved(&self, key: &Key) -> u64 {
        self.hasher.hash_one((key, Turnout::Reserved))
    }
}

impl States {
    /// Returns the state of a key. That of an unknown one depends on the other keys.
    fn of(&self, hash: u64) -> Option<State> {
        let unknown = State::Shared { retries: RETRIES, since: None };
        let is_trusted = self.trust > MOST_TRUST / 2;
        self.by_key.peek(&hash).copied().or_else(|| is_trusted.then_some(unknown))
    }

    /// Learns from the answer of a key with this state what to expect of unknown ones.
    fn learn(&mut self, turnout: Turnout, state: Option<State>) {
        self.trust = match (turnout, state) {
            // A known uncacheable key says nothing new, however often it is asked for.
            (_, Some(State::Uncacheable { .. })) | (Turnout::Open | Turnout::Reserved, _) => {
                self.trust
            }
            (Turnout::Shareable, _) => (self.trust + 1).min(MOST_TRUST),
            (Turnout::Uncacheable | Turnout::Failing, _) => self.trust.saturating_sub(2),
        };
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn key(number: usize) -> Key {
        Key::from(format!("key {number}"))
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_key_is_uncacheable_at_once_and_for_as_long_as_it_is_renewed() {
        let (recent, key) = (RecentAnswers::new(TTL), key(0));
        assert!(!recent.is_uncacheable(&key) && !recent.is_promising(&key));
        recent.record(&key, Turnout::Failing);
        assert!(!recent.is_uncacheable(&key));
        for _ in 0..3 {
            recent.record(&key, Turnout::Uncacheable);
            sleep(TTL - Duration::from_millis(1)).await;
            recent.record(&key, Turnout::Failing);
            assert!(recent.is_uncacheable(&key));
        }
        sleep(Duration::from_millis(1)).await;
        assert!(!recent.is_uncacheable(&key));
        recent.record(&key, Turnout::Uncacheable);
        recent.record(&key, Turnout::Shareable);
        assert!(!recent.is_uncacheable(&key) && recent.is_promising(&key));
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_was_shared_survives_a_few_odd_answers() {
        let (recent, key) = (RecentAnswers::new(TTL), key(0));
        recent.record(&key, Turnout::Shareable);
        assert!(recent.is_promising(&key));
        for _ in 1..RETRIES {
            recent.record(&key, Turnout::Uncacheable);
            assert!(recent.is_promising(&key) && !recent.is_uncacheable(&key));
        }
        recent.record(&key, Turnout::Uncacheable);
        assert!(!recent.is_promising(&key) && recent.is_uncacheable(&key));
    }

    /// Callers that went alone at the same time have answers of both kinds.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_was_asked_for_earlier_marks_nothing() {
        let (recent, key, sent) = (RecentAnswers::new(TTL), key(0), Instant::now());
        recent.record_alone(&key, Turnout::Uncacheable, sent);
        assert!(recent.is_uncacheable(&key));
        sleep(Duration::from_millis(1)).await;
        recent.record_alone(&key, Turnout::Shareable, sent);
        for _ in 0..2 * RETRIES {
            recent.record_alone(&key, Turnout::Uncacheable, sent);
            assert!(recent.is_promising(&key) && !recent.is_uncacheable(&key));
        }
        (0..RETRIES).for_each(|_| recent.record_alone(&key, Turnout::Uncacheable, Instant::now()));
        assert!(recent.is_uncacheable(&key));
    }

    #[tokio::test(start_paused = true)]
    async fn errors_end_the_patience_of_waiters_and_mark_nothing() {
        let (recent, key) = (RecentAnswers::new(TTL), key(0));
        recent.record(&key, Turnout::Shareable);
        (0..RETRIES).for_each(|_| recent.record(&key, Turnout::Failing));
        assert!(!recent.is_promising(&key) && !recent.is_uncacheable(&key));
    }

    #[tokio::test(start_paused = true)]
    async fn an_unknown_key_is_promising_while_most_others_are_shared() {
        let recent = RecentAnswers::new(TTL);
        (0..20).for_each(|number| recent.record(&key(number), Turnout::Shareable));
        assert!(recent.is_promising(&key(99)));
        recent.record(&key(99), Turnout::Failing);
        assert!(recent.is_promising(&key(99)) && !recent.is_uncacheable(&key(99)));
        // Half of the keys are uncacheable.
        for number in 100..140 {
            let odd = [Turnout::Shareable, Turnout::Uncacheable][number % 2];
            recent.record(&key(number), odd);
        }
        assert!(!recent.is_promising(&key(999)));
        // One more that is asked for often changes nothing.
        let before = read(&recent.states).trust;
        (0..20).for_each(|_| recent.record(&key(139), Turnout::Uncacheable));
        assert!(read(&recent.states).trust.abs_diff(before) <= 6);
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_keys_is_bounded_and_the_count_is_exact() {
        let recent = RecentAnswers::new(TTL);
        let uncacheable = || recent.uncacheable.load(Ordering::Relaxed);
        for number in 0..MOST_KEYS + 10 {
            recent.record(&key(number), Turnout::Uncacheable);
        }
        assert_eq!(uncacheable(), MOST_KEYS);
        assert!(!recent.is_uncacheable(&key(0)) && recent.is_uncacheable(&key(10)));
        for number in 10..MOST_KEYS + 10 {
            recent.record(&key(number), Turnout::Shareable);
        }
        assert_eq!(uncacheable(), 0);
    }
}
