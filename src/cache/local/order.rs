//! The changes that this process was told of, in their order, and the watches that hear them.

use std::{
    borrow::Cow,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    backend::{Store, Tap, stripe_of},
    cache::{settings::GREATEST_STALENESS, tags::Tags},
    key::{Key, Name, Namespace, key_of},
    sync::{lock, read},
};

/// The changes of the names of one namespace.
pub(in crate::cache) struct Order {
    stripes: Box<[Mutex<ToldStripe>]>,
    scope: String,
    scope_of_tags: String,
    pub(super) tags: Arc<Tags>,
    origin: Instant,
    /// All changes were told up to this moment, in nanoseconds since the origin, if they are told
    /// at all.
    complete_until: AtomicU64,
    /// How often changes may have been missed.
    pub(super) generation: AtomicU64,
    /// Whether changes are to be heard: a name was asked for twice.
    pub(super) is_wanted: AtomicBool,
}

/// The changes of the names of one stripe.
#[derive(Default)]
struct ToldStripe {
    /// How many changes were told or made here, and the greatest fence that was told.
    changes: u64,
    greatest: u64,
    /// The number of the last change that this process made.
    last_act: u64,
    /// The generation in which changes were known to be heard.
    heard_in: Option<u64>,
    is_missed: bool,
}

/// A question to the backend whose answer may be kept.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Fill {
    stripe: usize,
    changes: u64,
    pub(super) generation: u64,
    pub(super) asked: Instant,
    /// The greatest number of an ended tag that was told before the question.
    pub(super) ended: u64,
    /// Changes of the name were heard before the question.
    pub(in crate::cache) is_heard: bool,
}

impl Order {
    pub(in crate::cache) fn new(namespace: &Namespace, tags: &Arc<Tags>, stripes: usize) -> Self {
        Self {
            tags: tags.clone(),
            scope_of_tags: format!("{}:t:{{", namespace.as_str()),
            stripes: (0..stripes).map(|_| Mutex::default()).collect(),
            scope: format!("{}:c:{{", namespace.as_str()),
            origin: Instant::now(),
            complete_until: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            is_wanted: AtomicBool::new(false),
        }
    }

    /// Notes what was told of a name until now.
    pub(in crate::cache) fn mark(&self, name: &Name, now: Instant) -> Fill {
        // Before anything else is looked at.
        let generation = self.generation.load(Ordering::Acquire);
        let ended = self.tags.greatest.load(Ordering::Acquire);
        let at = stripe_of(&name.prefix);
        let stripe = self.stripe(at);
        let is_heard = stripe.heard_in == Some(generation);
        Fill { stripe: at, changes: stripe.changes, generation, asked: now, ended, is_heard }
    }

    /// Begins a question to the backend. If changes of the name are not heard yet, they will be
    /// from the second time on, or the first if it is to hear at once.
    pub(in crate::cache) fn begin(
        &self,
        store: &dyn Store,
        name: &Name,
        now: Instant,
        at_once: bool,
    ) -> Fill {
        let fill = self.mark(name, now);
        if fill.is_heard {
            // The task that proves it may have ended with its runtime. The store begins it anew.
            if now.saturating_duration_since(self.complete_until()) > GREATEST_STALENESS {
                store.hears(name, true);
            }
            return fill;
        }
        let was_missed = std::mem::replace(&mut self.stripe(fill.stripe).is_missed, true);
        let begins = was_missed || at_once;
        let is_heard = store.hears(name, begins);
        if begins || is_heard {
            self.is_wanted.store(true, Ordering::Relaxed);
        }
        if is_heard {
            self.stripe(fill.stripe).heard_in = Some(fill.generation);
        }
        Fill { is_heard, ..fill }
    }

    /// Returns the tag that a change with this prefix is about.
    pub(super) fn tag_of<'p>(&self, prefix: &'p str) -> Option<Cow<'p, str>> {
        prefix.strip_prefix(&*self.scope_of_tags).and_then(key_of)
    }

    /// Returns the key that a change with this prefix is about.
    pub(super) fn key_of<'p>(&self, prefix: &'p str) -> Option<Cow<'p, str>> {
        prefix.strip_prefix(&*self.scope).and_then(key_of)
    }

    /// Keeps the answer to a question, unless something has come in between that is newer than its
    /// fence. Returns whether it was kept.
    pub(in crate::cache) fn keep(&self, fill: Fill, fence: u64, insert: impl FnOnce()) -> bool {
        let stripe = self.stripe(fill.stripe);
        let is_told = stripe.changes != fill.changes && fence < stripe.greatest;
        let is_acted = stripe.last_act > fill.changes;
        let generation = self.generation.load(Ordering::Acquire);
        let is_current = !is_told && !is_acted && generation == fill.generation;
        if is_current {
            insert();
        }
        is_current
    }

    /// Lets go of a name, and of all answers to questions until now.
    pub(in crate::cache) fn forget(&self, name: &Name, remove: impl FnOnce()) {
        let mut stripe = self.stripe(stripe_of(&name.prefix));
        stripe.changes += 1;
        stripe.last_act = stripe.changes;
        remove();
    }

    /// Notes a change of the name with this prefix, and removes what is kept of it.
    pub(super) fn changed(&self, prefix: &str, fence: u64, remove: impl FnOnce()) {
        let mut stripe = self.stripe(stripe_of(prefix));
        stripe.changes += 1;
        stripe.greatest = stripe.greatest.max(fence);
        remove();
    }

    pub(super) fn lost(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits until no answer from before the present generation is being kept.
    pub(super) fn settle(&self) {
        self.stripes.iter().for_each(|stripe| drop(lock(stripe)));
    }

    pub(super) fn note_complete(&self, asked: Instant) {
        let since = asked.saturating_duration_since(self.origin).as_nanos();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.complete_until.fetch_max(since, Ordering::AcqRel);
    }

    /// Returns the moment up to which it is known that all changes were told.
    pub(in crate::cache) fn complete_until(&self) -> Instant {
        self.origin + Duration::from_nanos(self.complete_until.load(Ordering::Acquire))
    }

    fn stripe(&self, at: usize) -> MutexGuard<'_, ToldStripe> {
        lock(&self.stripes[at % self.stripes.len()])
    }
}

type WatchListener = dyn Fn(Option<&str>) + Send + Sync;

/// The watches of a cache, each with an order of its own.
#[derive(Default)]
pub(in crate::cache) struct Watches(pub(in crate::cache) RwLock<Vec<Weak<WatchedOrder>>>);

impl Watches {
    pub(in crate::cache) fn are_none(&self) -> bool {
        read(&self.0).is_empty()
    }

    pub(in crate::cache) fn each(&self, tell: impl Fn(&WatchedOrder)) {
        read(&self.0).iter().filter_map(Weak::upgrade).for_each(|watch| tell(&watch));
    }
}

/// The changes of one watch.
pub(in crate::cache) struct WatchedOrder {
    pub(in crate::cache) order: Order,
    pub(in crate::cache) listener: Box<WatchListener>,
}

impl WatchedOrder {
    /// Tells of an act of this process.
    pub(in crate::cache) fn acted(&self, key: &Key, name: &Name) {
        self.order.forget(name, || self.tell(Some(&key.text)));
    }

    fn tell(&self, key: Option<&str>) {
        // It runs in the task of a connection, which must go on.
        if catch_unwind(AssertUnwindSafe(|| (self.listener)(key))).is_err() {
            tracing::error!("the listener of a watch panicked, and missed a change");
        }
    }
}

impl Tap for WatchedOrder {
    fn changed(&self, prefix: &str, fence: u64) {
        if self.order.tag_of(prefix).is_some() {
            return self.lost();
        }
        if let Some(key) = self.order.key_of(prefix) {
            self.order.changed(prefix, fence, || self.tell(Some(&key)));
        }
    }

    fn lost(&self) {
        self.order.lost();
        // Otherwise an insert under way would put an old value back, after the listener was told.
        self.order.settle();
        self.tell(None);
    }

    fn complete_until(&self, asked: Instant) {
        self.order.note_complete(asked);
    }
}
