//! Deferred writes: a write that fails because the backend is away is repeated when the backend
//! answers.
//!
//! - **Noted.** A write that fails is [noted](DeferredWrites::defer) under its name or tag, before
//!   its call returns. Of a name the strongest write is kept. A failed insert is noted as an
//!   invalidation, because there may be a newer value when the backend answers.
//! - **Repeated.** One task for each shard [repeats](super::repeats) the notes, some at once, with
//!   growing pauses after a failure. The task ends with the last note. If the backend refuses a
//!   write until an operator acts, the task drops its note.
//! - **Waited for.** Each read and each later write of a noted name waits until the note is
//!   repeated. If the repeat fails, the backend counts as away for the name. So no caller reads an
//!   older value, the repeat undoes no later write, and no caller waits for another process.
//! - **Bounded.** A shard keeps at most [`MOST_NOTES`] notes. Once a write has found no place, an
//!   entry counts as old if its fence is smaller than the fence of the first answer after the
//!   outage. Fences follow the clock of the server, so these entries were stored before that
//!   answer. The process sends nothing for them, because a fleet that removes all entries would
//!   make a stampede of an outage.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tracing::warn;

use super::write_notes::{Added, MOST_NOTES, OldBound, ShardNotes, WriteTarget};
use crate::{
    backend::{Entry, Store, TagEnd, Tagged},
    error::{BackendError, Chain},
    key::Name,
    shards::Shards,
    sync::lock,
};

/// The writes of a cache that wait for its backend.
pub(in crate::cache) struct DeferredWrites {
    pub(super) store: Arc<dyn Store>,
    /// How long one try may take.
    pub(super) try_limit: Duration,
    pub(super) fence_life: Duration,
    /// The name under which the namespace keeps its tags.
    pub(super) tags: Name,
    pub(super) shards: Shards<ShardNotes>,
    /// The shard that has the note of each target. In a cluster, a name may have moved to another
    /// shard since the note was made. This lock is taken before the lock of a shard.
    pub(super) places: Mutex<HashMap<WriteTarget, usize>>,
    /// The number of notes. While it is zero, reads look nothing up.
    pub(super) noted: AtomicUsize,
    /// Some entries count as old, by their fence or by their tag number. Never set back.
    has_old: AtomicBool,
    /// The tag numbers of the entries that count as old.
    pub(super) old_numbers: OldBound,
}

/// What happens to a write that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Deferral {
    /// The write is not repeated, because the backend is not away.
    Refused,
    /// The write is repeated later.
    Noted,
    /// The write is not repeated. All older entries of the shard count as old.
    Full,
}

impl DeferredWrites {
    pub(in crate::cache) fn new(
        store: Arc<dyn Store>,
        tags: Name,
        try_limit: Duration,
        fence_life: Duration,
    ) -> Arc<Self> {
        Arc::new(Self {
            store,
            try_limit,
            fence_life,
            tags,
            shards: Shards::default(),
            places: Mutex::default(),
            noted: AtomicUsize::new(0),
            has_old: AtomicBool::new(false),
            old_numbers: OldBound::default(),
        })
    }

    /// Returns how many writes wait.
    pub(in crate::cache) fn len(&self) -> usize {
        self.noted.load(Ordering::Acquire)
    }

    pub(in crate::cache) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes a write that failed with this error, if the error says that the backend is away.
    pub(in crate::cache) fn defer(
        self: &Arc<Self>,
        target: WriteTarget,
        end: TagEnd,
        error: &BackendError,
    ) -> Deferral {
        if !error.is_away() {
            return Deferral::Refused;
        }
        let mut places = lock(&self.places);
        let place = match places.get(&target) {
            Some(place) => *place,
            None => self.place_now(&target),
        };
        let shard = self.shards.of(place);
        let mut notes = lock(&shard.notes);
        let added = notes.add(&target, end);
        match added {
            Added::Full => {
                // Under the lock, so that no round ends between the count and the bound.
                let was_closed = self.old_bound(&shard, &target).open();
                self.has_old.store(true, Ordering::Release);
                drop(notes);
                drop(places);
                if was_closed {
                    tell_full();
                }
                return Deferral::Full;
            }
            Added::First | Added::Another => {
                places.insert(target, place);
                self.noted.fetch_add(1, Ordering::AcqRel);
            }
            Added::Again => {}
        }
        drop(notes);
        drop(places);
        if added == Added::First {
            let error = Chain(error);
            warn!(%error, "a write failed, and is repeated when the backend answers");
        }
        self.start(&shard);
        Deferral::Noted
    }

    /// Returns whether an entry of this name and fence may be older than a noted write.
    pub(in crate::cache) fn holds_back(&self, name: &Name, fence: u64) -> bool {
        if self.is_empty() && !self.has_old() {
            return false;
        }
        let target = WriteTarget::Name(name.clone());
        let shard = self.shard_of(&target);
        let is_noted = lock(&shard.notes).by_target.contains_key(&target);
        is_noted || shard.old_fences.includes(fence)
    }

    /// Returns whether entries count as old by their fence.
    pub(in crate::cache) fn has_old(&self) -> bool {
        self.has_old.load(Ordering::Acquire)
    }

    /// Returns whether an entry counts as old, because it is from before an outage in which too
    /// many writes failed.
    pub(in crate::cache) fn is_old(&self, name: &Name, entry: &Entry) -> bool {
        if !self.has_old() {
            return false;
        }
        let shard = self.shards.of(self.store.shard(name));
        if shard.old_fences.includes(entry.fence) {
            return true;
        }
        // No write to a tag concerns an entry without tags.
        entry.tagged.as_ref().is_some_and(|tagged| self.old_numbers.includes(tagged.number))
    }

    /// Returns how the noted writes to its tags end an entry.
    pub(in crate::cache) fn end_of(&self, tagged: &Tagged) -> Option<TagEnd> {
        if self.is_empty() {
            return None;
        }
        let mut strongest = None;
        for tag in tagged.all() {
            let target = WriteTarget::Tag(tag);
            let shard = self.shard_of(&target);
            let noted = lock(&shard.notes).by_target.get(&target).map(|note| note.end);
            strongest = strongest.max(noted);
        }
        strongest
    }

    /// Returns the shard that has the note of a target, or that would get the note now.
    pub(super) fn shard_of(&self, target: &WriteTarget) -> Arc<ShardNotes> {
        let place = lock(&self.places).get(target).copied();
        self.shards.of(place.unwrap_or_else(|| self.place_now(target)))
    }

    fn place_now(&self, target: &WriteTarget) -> usize {
        match target {
            WriteTarget::Name(name) => self.store.shard(name),
            WriteTarget::Tag(_) => self.store.shard(&self.tags),
        }
    }

    /// Returns the bound of old entries for writes of this kind: by fence for names, by tag number
    /// for tags.
    pub(super) fn old_bound<'a>(
        &'a self,
        shard: &'a ShardNotes,
        target: &WriteTarget,
    ) -> &'a OldBound {
        match target {
            WriteTarget::Name(_) => &shard.old_fences,
            WriteTarget::Tag(_) => &self.old_numbers,
        }
    }
}

fn tell_full() {
    warn!(
        "{MOST_NOTES} writes are deferred, so this process takes all entries from before the end \
         of the outage for old, and further writes are lost"
    );
}

impl Drop for DeferredWrites {
    fn drop(&mut self) {
        let lost = *self.noted.get_mut();
        if lost > 0 {
            warn!(lost, "the cache ends, and its deferred writes are lost");
        }
    }
}

#[cfg(test)]
#[cfg(feature = "test-util")]
mod tests {
    use super::*;
    use crate::{
        BoxError, Cache, MemoryBackend,
        cache::Source,
        testing::{Fault, Faulty},
    };

    const REPEATED: Duration = Duration::from_secs(20);

    /// A process whose backend may be away, and another one.
    fn processes() -> (Faulty, Cache<u64>, Cache<u64>) {
        let faulty = Faulty::over(MemoryBackend::new(), |_| None);
        let here = Cache::builder(faulty.clone(), "bellwether").tags().build();
        let there = Cache::builder(faulty.inner.clone(), "bellwether").tags().build();
        (faulty, here.unwrap(), there.unwrap())
    }

    async fn ask(cache: &Cache<u64>, made: u64) -> (u64, Source) {
        let load = move |_| async move { Ok::<_, BoxError>(made) };
        let loaded = cache.request("k").load(load).await.unwrap();
        (loaded.value, loaded.source)
    }

    /// A write without a place is not repeated. What was stored before the backend answered again
    /// counts as old, and nothing that is stored later.
    #[tokio::test(start_paused = true)]
    async fn beyond_the_bound_each_older_entry_counts_as_old() {
        let (faulty, here, there) = processes();
        there.insert("k", &1).await.unwrap();
        assert_eq!(ask(&here, 0).await, (1, Source::Hit));
        faulty.plan(|_| Some(Fault::Refuse));
        for number in 0..MOST_NOTES {
            assert!(here.invalidate(number).await.unwrap_err().is_deferred());
        }
        assert!(!here.invalidate("k").await.unwrap_err().is_deferred());
        assert_eq!(here.stats().deferred_writes, MOST_NOTES as u64);
        faulty.plan(|_| None);
        // It was not removed for the other process.
        assert_eq!(here.get("k").await.unwrap(), None);
        assert_eq!(there.get("k").await.unwrap(), Some(1));
        assert!(!here.request("k").touch().await.unwrap(), "an old value was touched");
        assert_eq!(ask(&here, 2).await, (2, Source::Led));
        assert_eq!(ask(&here, 3).await, (2, Source::Hit));
        there.insert("new", &4).await.unwrap();
        assert_eq!(here.get("new").await.unwrap(), Some(4));
        tokio::time::sleep(REPEATED).await;
        assert_eq!(here.stats().deferred_writes, 0);
        assert_eq!(ask(&here, 5).await, (2, Source::Hit));
    }

    /// The same for tags: the end of one is forgotten, and so each older entry counts as old.
    #[tokio::test(start_paused = true)]
    async fn beyond_the_bound_each_older_entry_with_tags_counts_as_old() {
        let (faulty, here, there) = processes();
        there.request("k").tag("t").insert(&1).await.unwrap();
        faulty.plan(|_| Some(Fault::Refuse));
        for number in 0..MOST_NOTES {
            here.invalidate_tag(number.to_string()).await.unwrap_err();
        }
        assert!(!here.invalidate_tag("t").await.unwrap_err().is_deferred());
        faulty.plan(|_| None);
        tokio::time::sleep(REPEATED).await;
        assert_eq!(here.get("k").await.unwrap(), None);
        assert_eq!(there.get("k").await.unwrap(), Some(1));
        assert_eq!(ask(&here, 2).await, (2, Source::Led));
        assert_eq!(ask(&here, 3).await, (2, Source::Hit));
    }
}
