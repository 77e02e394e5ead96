//! The order of changes and reads in this process, and the watches of the user.
//!
//! The names of a namespace are spread over stripes. A stripe counts the changes of its names, both
//! received and made here, so that the answer to a read that began before a change is not kept.

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
    stripes: Box<[Mutex<ChangeStripe>]>,
    /// The prefix of all names of cache entries.
    scope: String,
    /// The prefix of all names of tags.
    scope_of_tags: String,
    pub(super) tags: Arc<Tags>,
    origin: Instant,
    /// All changes up to this moment were received, in nanoseconds since the origin. Zero if the
    /// backend publishes no changes.
    complete_until: AtomicU64,
    /// How often changes may have been missed.
    pub(super) generation: AtomicU64,
    /// A name was read twice, so this process has asked for changes.
    pub(super) is_wanted: AtomicBool,
}

/// The changes of the names of one stripe.
#[derive(Default)]
struct ChangeStripe {
    /// The number of changes that were received or made here.
    changes: u64,
    /// The greatest fence of a change that was received.
    greatest: u64,
    /// The number of the last change that this process made.
    last_own_change: u64,
    /// The generation in which the subscription to changes was confirmed.
    subscribed_in: Option<u64>,
    /// A name of this stripe was read without a subscription.
    was_read: bool,
}

/// The state of a stripe before a read, whose answer may be kept if the state allows it.
#[derive(Clone, Copy, Debug)]
pub(in crate::cache) struct Fill {
    stripe: usize,
    changes: u64,
    pub(super) generation: u64,
    pub(super) read_at: Instant,
    /// The greatest end of a tag that was received before the read.
    pub(super) ended: u64,
    /// The subscription to changes of the name was confirmed before the read.
    pub(in crate::cache) is_subscribed: bool,
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

    /// Returns the state before a read of a name.
    pub(in crate::cache) fn fill(&self, name: &Name, now: Instant) -> Fill {
        // Before the stripe, because a new generation must not be taken for one that was checked.
        let generation = self.generation.load(Ordering::Acquire);
        let ended = self.tags.greatest.load(Ordering::Acquire);
        let at = stripe_of(&name.prefix);
        let stripe = self.stripe(at);
        Fill {
            stripe: at,
            changes: stripe.changes,
            generation,
            read_at: now,
            ended,
            is_subscribed: stripe.subscribed_in == Some(generation),
        }
    }

    /// Returns the state before a read of a name, and subscribes to changes of the name: at the
    /// second read, or at the first read if `at_once`.
    pub(in crate::cache) fn begin(
        &self,
        store: &dyn Store,
        name: &Name,
        now: Instant,
        at_once: bool,
    ) -> Fill {
        let fill = self.fill(name, now);
        if fill.is_subscribed {
            // The task that confirms the completeness of changes may have ended with its runtime.
            // The store then starts the task again.
            if now.saturating_duration_since(self.complete_until()) > GREATEST_STALENESS {
                store.hears(name, true);
            }
            return fill;
        }
        let was_read = std::mem::replace(&mut self.stripe(fill.stripe).was_read, true);
        let subscribes = was_read || at_once;
        let is_subscribed = store.hears(name, subscribes);
        if subscribes || is_subscribed {
            self.is_wanted.store(true, Ordering::Relaxed);
        }
        if is_subscribed {
            self.stripe(fill.stripe).subscribed_in = Some(fill.generation);
        }
        Fill { is_subscribed, ..fill }
    }

    /// Returns the tag whose name has this prefix.
    pub(super) fn tag_of<'p>(&self, prefix: &'p str) -> Option<Cow<'p, str>> {
        prefix.strip_prefix(&*self.scope_of_tags).and_then(key_of)
    }

    /// Returns the key whose name has this prefix.
    pub(super) fn key_of<'p>(&self, prefix: &'p str) -> Option<Cow<'p, str>> {
        prefix.strip_prefix(&*self.scope).and_then(key_of)
    }

    /// Runs `insert`, which keeps the answer to a read with this fence, unless a newer change has
    /// come since the read began. Returns whether `insert` ran.
    pub(in crate::cache) fn keep(&self, fill: Fill, fence: u64, insert: impl FnOnce()) -> bool {
        let stripe = self.stripe(fill.stripe);
        let has_newer = stripe.changes != fill.changes && fence < stripe.greatest;
        let has_own = stripe.last_own_change > fill.changes;
        let generation = self.generation.load(Ordering::Acquire);
        let is_current = !has_newer && !has_own && generation == fill.generation;
        if is_current {
            insert();
        }
        is_current
    }

    /// Counts a change that this process makes, and runs `remove`, which drops what is kept of the
    /// name. No read that has begun is kept any more.
    pub(in crate::cache) fn forget(&self, name: &Name, remove: impl FnOnce()) {
        let mut stripe = self.stripe(stripe_of(&name.prefix));
        stripe.changes += 1;
        stripe.last_own_change = stripe.changes;
        remove();
    }

    /// Counts a change that was received, and runs `remove`, which drops what is kept of the name.
    pub(super) fn changed(&self, prefix: &str, fence: u64, remove: impl FnOnce()) {
        let mut stripe = self.stripe(stripe_of(prefix));
        stripe.changes += 1;
        stripe.greatest = stripe.greatest.max(fence);
        remove();
    }

    pub(super) fn lost(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Waits for all calls of [`keep`](Self::keep) that have seen an older generation.
    pub(super) fn settle(&self) {
        for stripe in &self.stripes {
            drop(lock(stripe));
        }
    }

    pub(super) fn note_complete(&self, asked: Instant) {
        let since = asked.saturating_duration_since(self.origin).as_nanos();
        let since = u64::try_from(since).unwrap_or(u64::MAX);
        self.complete_until.fetch_max(since, Ordering::AcqRel);
    }

    /// Returns the moment up to which all changes were received.
    pub(in crate::cache) fn complete_until(&self) -> Instant {
        self.origin + Duration::from_nanos(self.complete_until.load(Ordering::Acquire))
    }

    fn stripe(&self, at: usize) -> MutexGuard<'_, ChangeStripe> {
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

    /// Notifies all watches. A listener may begin a watch, so this holds no lock meanwhile.
    pub(in crate::cache) fn each(&self, notify: impl Fn(&WatchedOrder)) {
        let watches = read(&self.0);
        let all: Vec<_> = watches.iter().filter_map(Weak::upgrade).collect();
        drop(watches);
        for watch in all {
            notify(&watch);
        }
    }
}

/// The changes of one watch.
pub(in crate::cache) struct WatchedOrder {
    pub(in crate::cache) order: Order,
    pub(in crate::cache) listener: Box<WatchListener>,
}

impl WatchedOrder {
    /// Notifies the listener of a change by this process.
    pub(in crate::cache) fn changed_here(&self, key: &Key, name: &Name) {
        self.order.forget(name, || self.notify(Some(&key.text)));
    }

    fn notify(&self, key: Option<&str>) {
        // The listener runs in the task of a connection, which must go on.
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
            self.order.changed(prefix, fence, || self.notify(Some(&key)));
        }
    }

    fn lost(&self) {
        self.order.lost();
        // An insert that is under way must end first. It could put an old value back after the
        // notification.
        self.order.settle();
        self.notify(None);
    }

    fn complete_until(&self, asked: Instant) {
        self.order.note_complete(asked);
    }
}
