//! The notes of deferred writes: one note for each name or tag, in the shard that repeats the
//! write.

use std::{
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tracing::info;

use crate::{
    backend::TagEnd,
    error::BackendError,
    key::Name,
    random::{HashMap, HashSet},
    sync::lock,
};

/// How many writes a shard notes. A note takes about 200 bytes, and the bytes of the key.
pub(super) const MOST_NOTES: usize = if cfg!(test) { 1_000 } else { 100_000 };
/// How many writes are repeated at once.
const AT_ONCE: usize = 128;

/// What a write ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::cache) enum WriteTarget {
    Name(Name),
    /// The entries with a tag. The empty tag means all entries.
    Tag(Arc<str>),
}

/// The notes of a shard.
#[derive(Default)]
pub(super) struct ShardNotes {
    pub(super) notes: Mutex<Notes>,
    /// Ends the pause of the task.
    pub(super) wanted: Notify,
    /// The number of rounds that have ended.
    pub(super) rounds: watch::Sender<u64>,
    /// The fences of the entries that count as old.
    pub(super) old_fences: OldBound,
}

#[derive(Default)]
pub(super) struct Notes {
    pub(super) by_target: HashMap<WriteTarget, Note>,
    /// The notes that a caller waits for, which are repeated first.
    pub(super) awaited: HashSet<WriteTarget>,
    /// Whether a task repeats the notes.
    pub(super) has_task: bool,
    /// The last round that failed, and why.
    failed: Option<FailedRound>,
    /// How many writes found no place.
    pub(super) overflows: u64,
    /// A write to a tag was among the writes without a place.
    pub(super) lacks_tags: bool,
    /// When the first note was made.
    since: Option<Instant>,
    /// How many notes have been repeated since then.
    pub(super) repeated: usize,
    /// How many notes were dropped since then, because the backend refused their writes.
    pub(super) dropped: usize,
    /// The number of the last note.
    last: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Note {
    pub(super) end: TagEnd,
    /// Differs between notes of one target. A write that fails while a note of its target is being
    /// repeated makes a new note.
    pub(super) number: u64,
}

struct FailedRound {
    number: u64,
    error: BackendError,
}

/// Some notes that are repeated at once.
pub(super) struct Round {
    pub(super) batch: Vec<(WriteTarget, Note)>,
    /// How many writes had found no place when the round began.
    pub(super) overflows: u64,
}

/// How the notes of a shard took a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// The shard had no notes.
    First,
    Another,
    /// The target had a note. The note now has the stronger write of the two.
    Again,
    /// The shard has no place for the note.
    Full,
}

impl Notes {
    /// Notes a write, if there is a place for it.
    pub(super) fn add(&mut self, target: &WriteTarget, end: TagEnd) -> Added {
        let before = self.by_target.get(target).map(|note| note.end);
        if before.is_none() && self.by_target.len() >= MOST_NOTES {
            self.overflows += 1;
            self.lacks_tags |= matches!(target, WriteTarget::Tag(_));
            return Added::Full;
        }
        let is_first = self.by_target.is_empty();
        if is_first {
            self.since = Some(Instant::now());
            self.repeated = 0;
            self.dropped = 0;
        }
        self.last += 1;
        let strongest = before.map_or(end, |before| before.max(end));
        let note = Note { end: strongest, number: self.last };
        self.by_target.insert(target.clone(), note);
        if is_first {
            Added::First
        } else if before.is_none() {
            Added::Another
        } else {
            Added::Again
        }
    }

    /// Returns whether a note is still the one that was repeated.
    pub(super) fn has(&self, target: &WriteTarget, note: Note) -> bool {
        self.by_target.get(target).is_some_and(|now| now.number == note.number)
    }

    pub(super) fn note_failure(&mut self, number: u64, error: BackendError) {
        self.failed = Some(FailedRound { number, error });
    }

    /// Returns why a round failed that ended after this one, if one did.
    pub(super) fn failure_since(&self, round: u64) -> Option<BackendError> {
        let failed = self.failed.as_ref()?;
        if failed.number > round { Some(failed.error.clone()) } else { None }
    }

    /// Logs how many writes were repeated and dropped, and frees the memory of the notes.
    pub(super) fn end(&mut self) {
        let Self { repeated, dropped, since, .. } = *self;
        let away = since.map(|since| since.elapsed()).unwrap_or_default();
        info!(repeated, dropped, ?away, "the deferred writes are repeated");
        self.by_target = HashMap::default();
        self.awaited = HashSet::default();
    }

    /// Takes the notes to repeat next: the notes that callers wait for, or else any notes.
    fn next_batch(&mut self) -> Vec<(WriteTarget, Note)> {
        let mut batch = Vec::new();
        for target in mem::take(&mut self.awaited) {
            let Some(note) = self.by_target.get(&target).copied() else { continue };
            if batch.len() < AT_ONCE {
                batch.push((target, note));
            } else {
                self.awaited.insert(target);
            }
        }
        if batch.is_empty() {
            for (target, note) in self.by_target.iter().take(AT_ONCE) {
                batch.push((target.clone(), *note));
            }
        }
        batch
    }
}

impl ShardNotes {
    /// Returns the notes to repeat next, or `None` if there are none, which ends the task.
    pub(super) fn begin_round(&self) -> Option<Round> {
        let mut notes = lock(&self.notes);
        if notes.by_target.is_empty() {
            notes.has_task = false;
            return None;
        }
        Some(Round { batch: notes.next_batch(), overflows: notes.overflows })
    }
}

/// The fences, or the tag numbers, of the entries that count as old because a write found no place.
///
/// Such a write opens the bound: all entries count as old. The first answer of the backend has a
/// greater number than all entries that were stored before, and closes the bound at this number for
/// good.
#[derive(Default)]
pub(super) struct OldBound(AtomicU64);

/// The bound while it is open.
const OPEN: u64 = u64::MAX;

impl OldBound {
    /// Opens the bound. Returns whether it was closed.
    pub(super) fn open(&self) -> bool {
        self.0.swap(OPEN, Ordering::AcqRel) != OPEN
    }

    /// Closes the bound at the number of an answer, if the bound is open.
    pub(super) fn close(&self, newest: u64) {
        let _ = self.0.compare_exchange(OPEN, newest, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Returns whether the backend has not answered yet, so that all entries count as old.
    pub(super) fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) == OPEN
    }

    /// Returns whether an entry with this number counts as old.
    pub(super) fn includes(&self, number: u64) -> bool {
        number < self.0.load(Ordering::Acquire)
    }
}
