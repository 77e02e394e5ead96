//! Deferred writes: those that failed because the backend was away, and are repeated when it
//! answers.
//!
//! - **Noted.** A write that fails is noted under its name or tag, before its call returns. Of a
//!   name the strongest write is kept. What cannot be repeated is noted as what ends older values:
//!   a failed insert as an invalidation.
//! - **Repeated.** One task for each shard repeats the notes, some at once, with growing pauses
//!   after a failure. It ends with the last note. A refusal until an operator acts drops the note.
//! - **Waited for.** Each question and each later write of a noted name waits until the note is
//!   repeated. If that fails, the backend counts as away for it. So nothing older is read, no later
//!   write is undone, and no other process is waited for.
//! - **Bounded.** Beyond [`MOST_NOTES`], a shard notes no more names. From then on, each entry
//!   counts as old whose fence is smaller than the first one after the outage. Fences follow the
//!   clock of the server, so that is what was loaded before. Nothing is sent for these entries: a
//!   fleet that removes all would make a stampede of an outage.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

use crate::{
    backend::{Edit, Entry, Store, TagEnd, Tagged, answered_by, in_time},
    error::{BackendError, BackendErrorKind, Chain},
    key::Name,
    shards::Shards,
    sync::lock,
    time::Pauses,
};

/// How many writes a shard notes. Each takes about 200 bytes, and its key.
const MOST_NOTES: usize = if cfg!(test) { 1_000 } else { 100_000 };
/// How many writes are repeated at once.
const AT_ONCE: usize = 128;
/// The bound of the fences that count as old, while the backend has not answered yet.
const ALL: u64 = u64::MAX;

/// The writes of a cache that wait for its backend.
pub(in crate::cache) struct DeferredWrites {
    store: Arc<dyn Store>,
    /// How long one try may take.
    try_limit: Duration,
    fence_life: Duration,
    /// The name under which the namespace keeps its tags.
    tags: Name,
    shards: Shards<ShardNotes>,
    /// The shard of each note. In a cluster, a name may have moved to another one since then. This
    /// lock is taken before the one of a shard.
    places: Mutex<HashMap<WriteTarget, usize>>,
    /// The number of notes. While there is none, nothing is looked up.
    noted: AtomicUsize,
    /// Some entries count as old by their fence, or by their tag number. It stays so.
    has_old: AtomicBool,
    /// Entries with a smaller tag number count as old.
    old_number: AtomicU64,
}

/// What a write ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::cache) enum WriteTarget {
    Name(Name),
    /// The entries with a tag, or all for the empty tag.
    Tag(Arc<str>),
}

/// What became of a write that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Deferral {
    /// It is not repeated: the backend is not away.
    Refused,
    Noted,
    /// It is not repeated, and all older entries of the shard count as old.
    Full,
}

/// The notes of a shard.
#[derive(Default)]
struct ShardNotes {
    notes: Mutex<Notes>,
    /// Ends the pause of the task.
    wanted: Notify,
    /// The number of rounds that have ended.
    rounds: watch::Sender<u64>,
    /// Entries with a smaller fence count as old.
    old_fence: AtomicU64,
}

#[derive(Default)]
struct Notes {
    by_target: HashMap<WriteTarget, Note>,
    /// The notes that a caller waits for. They are repeated first.
    awaited: HashSet<WriteTarget>,
    /// Whether a task repeats the notes.
    has_task: bool,
    /// The last round that failed, and why.
    failed: Option<(u64, BackendError)>,
    /// How many writes found no place, and whether tags were among them.
    overflows: u64,
    lacks_tags: bool,
    /// When the first note was made, and what became of the notes since then.
    since: Option<Instant>,
    repeated: usize,
    dropped: usize,
    next: u64,
}

#[derive(Clone, Copy)]
struct Note {
    end: TagEnd,
    /// A write that fails while its note is repeated makes another note.
    number: u64,
}

/// Some notes that are repeated at once.
struct Round {
    batch: Vec<(WriteTarget, Note)>,
    overflows: u64,
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
            old_number: AtomicU64::new(0),
        })
    }

    /// Returns how many writes wait.
    pub(in crate::cache) fn len(&self) -> usize {
        self.noted.load(Ordering::Acquire)
    }

    pub(in crate::cache) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes a write that failed with this error, if it is to be repeated.
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
        let place = places.get(&target).copied().unwrap_or_else(|| self.place_now(&target));
        let shard = self.shards.of(place);
        let mut notes = lock(&shard.notes);
        let before = notes.by_target.get(&target).copied();
        if before.is_none() && notes.by_target.len() >= MOST_NOTES {
            notes.overflows += 1;
            let bound = match target {
                WriteTarget::Name(_) => &shard.old_fence,
                WriteTarget::Tag(_) => &self.old_number,
            };
            notes.lacks_tags |= matches!(target, WriteTarget::Tag(_));
            let had_place = bound.swap(ALL, Ordering::AcqRel) != ALL;
            self.has_old.store(true, Ordering::Release);
            drop(notes);
            drop(places);
            if had_place {
                warn!(
                    "{MOST_NOTES} writes are deferred, so this process takes all entries from \
                     before the end of the outage for old, and further writes are lost"
                );
            }
            return Deferral::Full;
        }
        let is_first = notes.by_target.is_empty();
        notes.next += 1;
        let strongest = before.map_or(end, |before| before.end.max(end));
        let note = Note { end: strongest, number: notes.next };
        notes.by_target.insert(target.clone(), note);
        if before.is_none() {
            places.insert(target, place);
            self.noted.fetch_add(1, Ordering::AcqRel);
        }
        if is_first {
            notes.since = Some(Instant::now());
            notes.repeated = 0;
            notes.dropped = 0;
        }
        drop(notes);
        drop(places);
        if is_first {
            let error = Chain(error);
            warn!(%error, "a write failed, and is repeated when the backend answers");
        }
        self.start(&shard);
        Deferral::Noted
    }

    /// Waits until what is noted of a name is repeated.
    ///
    /// # Errors
    ///
    /// The reason why it could not be repeated now.
    pub(in crate::cache) async fn repeated(
        self: &Arc<Self>,
        target: &WriteTarget,
    ) -> Result<(), BackendError> {
        if self.is_empty() {
            return Ok(());
        }
        let shard = self.shard_of(target);
        // The task may be in a runtime that stands still.
        in_time(self.try_limit.saturating_mul(2), self.until_repeated(&shard, target)).await
    }

    async fn until_repeated(
        self: &Arc<Self>,
        shard: &Arc<ShardNotes>,
        target: &WriteTarget,
    ) -> Result<(), BackendError> {
        let mut rounds = shard.rounds.subscribe();
        let first = *rounds.borrow();
        loop {
            rounds.borrow_and_update();
            {
                let mut notes = lock(&shard.notes);
                let is_noted = notes.by_target.contains_key(target);
                // The first repeat says which entries are old.
                let is_open = !notes.by_target.is_empty() && self.is_open_for(shard, target);
                if !is_noted && !is_open {
                    return Ok(());
                }
                if let Some((round, error)) = &notes.failed
                    && *round > first
                {
                    return Err(error.clone());
                }
                if is_noted {
                    notes.awaited.insert(target.clone());
                }
            }
            self.start(shard);
            shard.wanted.notify_one();
            // The sender is in the shard.
            let _ = rounds.changed().await;
        }
    }

    /// Tries once more to repeat all notes.
    pub(in crate::cache) async fn try_again(self: &Arc<Self>, limit: Duration) {
        if self.is_empty() {
            return;
        }
        let shards = self.shards.all();
        let _ = timeout(limit, join_all(shards.iter().map(|shard| self.try_shard(shard)))).await;
    }

    async fn try_shard(self: &Arc<Self>, shard: &Arc<ShardNotes>) {
        let mut rounds = shard.rounds.subscribe();
        let first = *rounds.borrow();
        loop {
            rounds.borrow_and_update();
            {
                let notes = lock(&shard.notes);
                let has_failed = notes.failed.as_ref().is_some_and(|(round, _)| *round > first);
                if notes.by_target.is_empty() || has_failed {
                    return;
                }
            }
            self.start(shard);
            shard.wanted.notify_one();
            let _ = rounds.changed().await;
        }
    }

    /// Returns whether an entry of this name and fence may be older than a write that is noted.
    pub(in crate::cache) fn holds_back(&self, name: &Name, fence: u64) -> bool {
        if self.is_empty() && !self.has_old.load(Ordering::Acquire) {
            return false;
        }
        let target = WriteTarget::Name(name.clone());
        let shard = self.shard_of(&target);
        let is_noted = lock(&shard.notes).by_target.contains_key(&target);
        is_noted || fence < shard.old_fence.load(Ordering::Acquire)
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
        let number = entry.tagged.as_ref().map_or(ALL, |tagged| tagged.number);
        entry.fence < shard.old_fence.load(Ordering::Acquire)
            || number < self.old_number.load(Ordering::Acquire)
    }

    /// Returns how the noted ends of its tags end an entry.
    pub(in crate::cache) fn end_of(&self, tagged: &Tagged) -> Option<TagEnd> {
        if self.is_empty() {
            return None;
        }
        let noted = |tag| {
            let target = WriteTarget::Tag(tag);
            let shard = self.shard_of(&target);
            let notes = lock(&shard.notes);
            notes.by_target.get(&target).map(|note| note.end)
        };
        tagged.all().filter_map(noted).max()
    }

    /// Returns the shard that has the note of a target, or would have it now.
    fn shard_of(&self, target: &WriteTarget) -> Arc<ShardNotes> {
        let place = lock(&self.places).get(target).copied();
        self.shards.of(place.unwrap_or_else(|| self.place_now(target)))
    }

    fn place_now(&self, target: &WriteTarget) -> usize {
        match target {
            WriteTarget::Name(name) => self.store.shard(name),
            WriteTarget::Tag(_) => self.store.shard(&self.tags),
        }
    }

    /// Returns whether it is not known yet which entries of the kind of a target are old.
    fn is_open_for(&self, shard: &ShardNotes, target: &WriteTarget) -> bool {
        let bound = match target {
            WriteTarget::Name(_) => &shard.old_fence,
            WriteTarget::Tag(_) => &self.old_number,
        };
        bound.load(Ordering::Acquire) == ALL
    }

    /// Starts the task of a shard, unless one runs.
    fn start(self: &Arc<Self>, shard: &Arc<ShardNotes>) {
        {
            let mut notes = lock(&shard.notes);
            if notes.has_task || notes.by_target.is_empty() {
                return;
            }
            notes.has_task = true;
        }
        let running = RunningTask(Some(shard.clone()));
        tokio::spawn(Self::repeat_all(Arc::downgrade(self), shard.clone(), running));
    }

    /// Repeats the notes of a shard until there are none, or the cache ends.
    async fn repeat_all(writes: Weak<Self>, shard: Arc<ShardNotes>, mut running: RunningTask) {
        let mut pauses = Pauses::default();
        loop {
            tokio::select! {
                () = sleep(pauses.next()) => {}
                () = shard.wanted.notified() => {}
            }
            let mut has_answered = true;
            while has_answered {
                let Some(writes) = writes.upgrade() else { return };
                let Some(round) = shard.begin_round() else {
                    running.0 = None;
                    return;
                };
                has_answered = writes.play(&shard, round).await;
                if has_answered {
                    pauses = Pauses::default();
                }
            }
        }
    }

    /// Repeats the notes of a round. Returns whether the backend has answered.
    async fn play(&self, shard: &ShardNotes, round: Round) -> bool {
        let repeats = round.batch.iter().map(|(target, note)| self.repeat(target, note.end));
        let answers = join_all(repeats).await;
        self.end_round(shard, &round, answers)
    }

    /// Removes the notes that were repeated. Returns whether the backend has answered.
    fn end_round(
        &self,
        shard: &ShardNotes,
        round: &Round,
        answers: Vec<Result<u64, BackendError>>,
    ) -> bool {
        let mut places = lock(&self.places);
        let mut notes = lock(&shard.notes);
        // Otherwise a write found no place since the questions were asked. The notes are repeated
        // once more, for an answer from after that write.
        let is_closed = notes.overflows == round.overflows;
        let mut newest = 0;
        let mut failure = None;
        let mut gone = 0;
        for ((target, note), answer) in round.batch.iter().zip(answers) {
            let is_same = notes.by_target.get(target).is_some_and(|now| now.number == note.number);
            match answer {
                Ok(number) => {
                    newest = number.max(newest);
                    if !is_same || !is_closed {
                        continue;
                    }
                    notes.repeated += 1;
                }
                // It happened.
                Err(error) if error.kind() == BackendErrorKind::Unreplicated && is_same => {
                    notes.repeated += 1;
                }
                Err(error) if error.is_forbidden() && is_same => {
                    let error = Chain(&error);
                    warn!(?target, %error, "a deferred write is refused, and dropped");
                    notes.dropped += 1;
                }
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            }
            notes.by_target.remove(target);
            places.remove(target);
            gone += 1;
        }
        let number = *shard.rounds.borrow() + 1;
        let has_answered = failure.is_none();
        if let Some(error) = failure {
            notes.failed = Some((number, error));
        }
        let is_over = notes.by_target.is_empty();
        // The entries that count as old are those from before this answer.
        if is_closed && newest > 0 || is_over {
            close(&shard.old_fence, newest);
            if mem::take(&mut notes.lacks_tags) {
                close(&self.old_number, newest);
            }
        }
        if is_over {
            let Notes { repeated, dropped, since, .. } = *notes;
            let away = since.map(|since| since.elapsed()).unwrap_or_default();
            info!(repeated, dropped, ?away, "the deferred writes are repeated");
            // Frees the memory.
            notes.by_target = HashMap::new();
            notes.awaited = HashSet::new();
        }
        if places.is_empty() {
            *places = HashMap::new();
        }
        self.noted.fetch_sub(gone, Ordering::AcqRel);
        drop(notes);
        drop(places);
        shard.rounds.send_replace(number);
        has_answered
    }

    /// Repeats a write. Returns its fence, or the number of its tag.
    async fn repeat(&self, target: &WriteTarget, end: TagEnd) -> Result<u64, BackendError> {
        let store = &self.store;
        match target {
            WriteTarget::Name(name) => {
                let edit = match end {
                    TagEnd::Expired => Edit::Expire,
                    TagEnd::Invalidated => Edit::Invalidate,
                };
                let repeated = store.edit(name, &edit, self.fence_life);
                answered_by(store.as_ref(), self.try_limit, repeated).await
            }
            WriteTarget::Tag(tag) => {
                let repeated = store.end_tag(&self.tags, tag, end);
                answered_by(store.as_ref(), self.try_limit, repeated).await
            }
        }
    }
}

impl ShardNotes {
    /// Returns the notes to repeat next, or `None` if there are none, which ends the task.
    fn begin_round(&self) -> Option<Round> {
        let mut notes = lock(&self.notes);
        if notes.by_target.is_empty() {
            notes.has_task = false;
            return None;
        }
        let mut batch = Vec::new();
        for target in mem::take(&mut notes.awaited) {
            match notes.by_target.get(&target).copied() {
                Some(note) if batch.len() < AT_ONCE => batch.push((target, note)),
                Some(_) => drop(notes.awaited.insert(target)),
                None => {}
            }
        }
        if batch.is_empty() {
            let first = notes.by_target.iter().take(AT_ONCE);
            batch.extend(first.map(|(target, note)| (target.clone(), *note)));
        }
        Some(Round { batch, overflows: notes.overflows })
    }
}

/// Sets the bound of what is old, where that is open.
fn close(bound: &AtomicU64, newest: u64) {
    let _ = bound.compare_exchange(ALL, newest, Ordering::AcqRel, Ordering::Acquire);
}

/// Notes that the task of a shard has ended, if its runtime did.
struct RunningTask(Option<Arc<ShardNotes>>);

impl Drop for RunningTask {
    fn drop(&mut self) {
        if let Some(shard) = &self.0 {
            lock(&shard.notes).has_task = false;
        }
    }
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
        (loaded.value, loaded.source())
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
