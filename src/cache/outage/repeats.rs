//! The repeats of deferred writes: one task for each shard, and the callers that wait for the task.
//!
//! The task repeats the notes of its shard in rounds. A caller that waits ends the pause of the
//! task, and looks at the notes after each round.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{
    write_notes::{Notes, Round, ShardNotes, WriteTarget},
    writes::DeferredWrites,
};
use crate::{
    backend::{Edit, TagEnd, answered_by, in_time},
    error::{BackendError, BackendErrorKind, Chain},
    sync::lock,
    time::Pauses,
};

/// What happens to a note after its write was tried again.
enum NoteEnd {
    Stays,
    Repeated,
    /// The backend refuses the write until an operator acts.
    Dropped,
}

impl DeferredWrites {
    /// Waits until the noted write of a name or a tag is repeated.
    ///
    /// # Errors
    ///
    /// The reason why the repeat failed.
    pub(in crate::cache) async fn repeated(
        self: &Arc<Self>,
        target: &WriteTarget,
    ) -> Result<(), BackendError> {
        if self.is_empty() {
            return Ok(());
        }
        let shard = self.shard_of(target);
        let bound = self.old_bound(&shard, target);
        let repeated = self.wait_for_rounds(&shard, |notes, failure| {
            let is_noted = notes.by_target.contains_key(target);
            // Until the first repeat, it is not known which entries are old.
            let is_unknown = !notes.by_target.is_empty() && bound.is_open();
            if !is_noted && !is_unknown {
                return Some(Ok(()));
            }
            if let Some(error) = failure {
                return Some(Err(error));
            }
            if is_noted {
                notes.awaited.insert(target.clone());
            }
            None
        });
        // With a limit, because the task may belong to a runtime that is blocked.
        in_time(self.try_limit.saturating_mul(2), repeated).await
    }

    /// Tries once more to repeat all notes.
    pub(in crate::cache) async fn try_again(self: &Arc<Self>, limit: Duration) {
        if self.is_empty() {
            return;
        }
        let shards = self.shards.all();
        let tries = shards.iter().map(|shard| {
            self.wait_for_rounds(shard, |notes, failure| {
                let is_over = notes.by_target.is_empty() || failure.is_some();
                if is_over { Some(()) } else { None }
            })
        });
        let _ = timeout(limit, join_all(tries)).await;
    }

    /// Lets the task of a shard repeat notes at once, round after round, until `look` returns an
    /// answer. `look` gets the notes, and the error of a round that has failed since this call.
    async fn wait_for_rounds<T>(
        self: &Arc<Self>,
        shard: &Arc<ShardNotes>,
        mut look: impl FnMut(&mut Notes, Option<BackendError>) -> Option<T>,
    ) -> T {
        let mut rounds = shard.rounds.subscribe();
        let first = *rounds.borrow();
        loop {
            // Before the look, so that a round that ends after the look is not missed.
            rounds.borrow_and_update();
            {
                let mut notes = lock(&shard.notes);
                let failure = notes.failure_since(first);
                if let Some(answer) = look(&mut notes, failure) {
                    return answer;
                }
            }
            self.start(shard);
            shard.wanted.notify_one();
            // This cannot fail, because the shard has the sender.
            let _ = rounds.changed().await;
        }
    }

    /// Starts the task of a shard, unless one runs.
    pub(super) fn start(self: &Arc<Self>, shard: &Arc<ShardNotes>) {
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

    /// Repeats the notes of a shard until none is left, or the cache is dropped.
    async fn repeat_all(writes: Weak<Self>, shard: Arc<ShardNotes>, mut running: RunningTask) {
        let mut pauses = Pauses::default();
        loop {
            tokio::select! {
                () = sleep(pauses.next()) => {}
                () = shard.wanted.notified() => {}
            }
            loop {
                let Some(writes) = writes.upgrade() else { return };
                let Some(round) = shard.begin_round() else {
                    running.0 = None;
                    return;
                };
                if !writes.repeat_round(&shard, round).await {
                    break;
                }
                pauses = Pauses::default();
            }
        }
    }

    /// Repeats the notes of a round. Returns whether the backend has answered.
    async fn repeat_round(&self, shard: &ShardNotes, round: Round) -> bool {
        let repeats = round.batch.iter().map(|(target, note)| self.repeat(target, note.end));
        let answers = join_all(repeats).await;
        self.end_round(shard, &round, answers)
    }

    /// Repeats a write. Returns the fence of the write, or the number of the tag's end.
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

    /// Removes the notes that were repeated. Returns whether the backend has answered.
    fn end_round(
        &self,
        shard: &ShardNotes,
        round: &Round,
        answers: Vec<Result<u64, BackendError>>,
    ) -> bool {
        let mut places = lock(&self.places);
        let mut notes = lock(&shard.notes);
        // If a write has found no place since the round began, the notes of the round stay and are
        // repeated once more, because the answer that closes the bound must come after that write.
        let is_whole = notes.overflows == round.overflows;
        let mut newest = 0;
        let mut failure = None;
        let mut gone = 0;
        for ((target, note), answer) in round.batch.iter().zip(answers) {
            // If the target was written again meanwhile and that failed, there is a new note, which
            // stays.
            let is_same = notes.has(target, *note);
            let end = match answer {
                Ok(number) => {
                    newest = number.max(newest);
                    if is_same && is_whole { NoteEnd::Repeated } else { NoteEnd::Stays }
                }
                // The master has done the write.
                Err(error) if is_same && error.kind() == BackendErrorKind::Unreplicated => {
                    NoteEnd::Repeated
                }
                Err(error) if is_same && error.is_forbidden() => {
                    let error = Chain(&error);
                    warn!(?target, %error, "a deferred write is refused, and dropped");
                    NoteEnd::Dropped
                }
                Err(error) => {
                    failure = Some(error);
                    NoteEnd::Stays
                }
            };
            match end {
                NoteEnd::Stays => continue,
                NoteEnd::Repeated => notes.repeated += 1,
                NoteEnd::Dropped => notes.dropped += 1,
            }
            notes.by_target.remove(target);
            places.remove(target);
            gone += 1;
        }
        let number = *shard.rounds.borrow() + 1;
        let has_answered = failure.is_none();
        if let Some(error) = failure {
            notes.note_failure(number, error);
        }
        let is_over = notes.by_target.is_empty();
        // From now on, the entries from before this answer count as old.
        if is_whole && newest > 0 || is_over {
            shard.old_fences.close(newest);
            if mem::take(&mut notes.lacks_tags) {
                self.old_numbers.close(newest);
            }
        }
        if is_over {
            notes.end();
        }
        if places.is_empty() {
            // Frees the memory.
            *places = HashMap::new();
        }
        self.noted.fetch_sub(gone, Ordering::AcqRel);
        drop(notes);
        drop(places);
        shard.rounds.send_replace(number);
        has_answered
    }
}

/// Marks that the task of a shard runs. On drop, such as at the end of the task's runtime, another
/// task may start.
struct RunningTask(Option<Arc<ShardNotes>>);

impl Drop for RunningTask {
    fn drop(&mut self) {
        if let Some(shard) = &self.0 {
            lock(&shard.notes).has_task = false;
        }
    }
}
