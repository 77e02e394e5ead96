use std::{fmt, sync::Arc};

use super::{
    front::{Front, debug_guard, guard, settings},
    reentrant::give_back,
    scope::Scope,
};
use crate::{backend::Mode, error::Error, key::Key, lease::Held};

/// A lock that many readers or one writer have at a time. Made by [`Locks::rw_lock`](crate::Locks::rw_lock).
///
/// Who waits, waits in one queue over all processes: a reader does not pass a writer that came before it, nor
/// a writer the readers before it. So neither starves the other.
///
/// A caller that holds a read lock and needs another one clones its [guard](ReadGuard): asking for one anew
/// would wait behind a writer that waits for the first.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is locked"]
pub struct RwLock {
    front: Front,
}

impl RwLock {
    pub(super) fn new(scope: Scope, name: Key) -> Self {
        Self { front: Front::new(scope, name) }
    }

    settings!();
    settings!(fenced);

    /// Takes the lock beside other readers, and waits while a writer has it or is before us.
    ///
    /// # Errors
    ///
    /// [`NotAcquired`](crate::ErrorKind::NotAcquired) if the wait limit or the retry strategy ended first,
    /// or [`Backend`](crate::ErrorKind::Backend) if the last try before that failed; and as
    /// [`try_read`](Self::try_read).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back, its place in the queue too.
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        Ok(self.reader(self.front.acquire(Mode::Read).await?))
    }

    /// Takes the lock beside other readers; none, if a writer has it or waits for it.
    ///
    /// # Errors
    ///
    /// [`Backend`](crate::ErrorKind::Backend) if the backend did not answer,
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) and
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a name or a setting outside its range,
    /// [`ShutDown`](crate::ErrorKind::ShutDown) after [`Locks::shutdown`](crate::Locks::shutdown).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        Ok(self.front.try_acquire(Mode::Read).await?.map(|held| self.reader(held)))
    }

    /// Takes the lock alone, and waits while others have it or are before us.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back, its place in the queue too.
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        Ok(self.writer(self.front.acquire(Mode::Write).await?))
    }

    /// Takes the lock alone; none, if anyone has it or waits for it.
    ///
    /// # Errors
    ///
    /// As [`try_read`](Self::try_read).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        Ok(self.front.try_acquire(Mode::Write).await?.map(|held| self.writer(held)))
    }

    /// How many readers have the lock, at the moment of asking. Clones of a guard count as one.
    ///
    /// # Errors
    ///
    /// [`Backend`](crate::ErrorKind::Backend) if the backend did not answer, or if something stands in the
    /// place of the readers that is not a lock (in that of the writer it is not looked at);
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) for a name outside its range.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn readers(&self) -> Result<u32, Error> {
        Ok(self.front.holder(Mode::Read).await?.map_or(0, |occupied| occupied.holders))
    }

    /// Whether a writer has the lock, at the moment of asking.
    ///
    /// # Errors
    ///
    /// As [`readers`](Self::readers), with the places exchanged.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn is_write_locked(&self) -> Result<bool, Error> {
        Ok(self.front.holder(Mode::Write).await?.is_some())
    }

    /// Ends the lock, whoever has it, readers or writer, or whatever else stands in its place; who waits takes a
    /// new place in the queue. Says whether something was there. Locks
    /// [of another kind](super#which-locks-of-one-name-are-one) under the name stay.
    ///
    /// The holders are told of the loss at their next renewal, with a [fixed lease](Self::fixed_lease) at its
    /// end; until then others may hold it beside them, and only the writer's fence protects.
    ///
    /// # Errors
    ///
    /// [`Backend`](crate::ErrorKind::Backend) if the backend did not answer: it may or may not have been
    /// ended; [`InvalidKey`](crate::ErrorKind::InvalidKey) for a name outside its range.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have been ended.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.front.clear(Mode::Write).await
    }

    fn reader(&self, held: Held) -> ReadGuard {
        ReadGuard { front: self.front.clone(), held: Arc::new(held) }
    }

    fn writer(&self, held: Held) -> WriteGuard {
        WriteGuard { front: self.front.clone(), held }
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.front.debug(f, "RwLock")
    }
}

/// An [`RwLock`] that is held beside other readers.
///
/// Clones share one hold, which ends with the last of them, [in the background](super#what-is-dropped) if that is
/// dropped. Its lease is renewed while one lives.
#[derive(Clone)]
#[must_use = "a dropped guard gives the lock back"]
pub struct ReadGuard {
    front: Front,
    held: Arc<Held>,
}

impl ReadGuard {
    guard!();

    /// Makes this reader the writer, at once and with nobody in between; gives the guard back if there are
    /// other readers, its own clones among them.
    ///
    /// It does not wait: two readers that wait for each other to leave would do so for ever.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if it was no longer held. [`Backend`](crate::ErrorKind::Backend) if the
    /// backend did not answer. Which of the two is held is not known then, and both are given up.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, both are given up.
    pub async fn try_upgrade(self) -> Result<Upgrade, Error> {
        let front = self.front;
        let held = match Arc::try_unwrap(self.held) {
            Ok(held) => held,
            Err(held) => return Ok(Upgrade::Refused(Self { front, held })),
        };
        Ok(match convert(&front, held, Mode::Write).await? {
            Ok(held) => Upgrade::Done(WriteGuard { front, held }),
            Err(held) => Upgrade::Refused(Self { front, held: Arc::new(held) }),
        })
    }

    /// Gives the lock back, if no clone of the guard is left.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if it was no longer held: what was read under it may have been
    /// written meanwhile. [`Backend`](crate::ErrorKind::Backend) if the backend did not answer; the release
    /// is then repeated in the background, and the lease ends by itself at the latest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is given back all the same.
    pub async fn unlock(self) -> Result<(), Error> {
        give_back(self.held).await
    }
}

impl fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_guard(f, "ReadGuard", &self.front.name, &self.held)
    }
}

/// The outcome of [`ReadGuard::try_upgrade`]. Either way the lock is held.
#[derive(Debug)]
#[must_use = "a dropped guard gives the lock back"]
pub enum Upgrade {
    /// The reader is the writer now.
    Done(WriteGuard),
    /// Other readers hold the lock, and the reader is what it was.
    Refused(ReadGuard),
}

/// An [`RwLock`] that is held alone.
///
/// Its lease is renewed while it lives. Dropped, it is released [in the background](super#what-is-dropped);
/// [`unlock`](Self::unlock) also says whether it was held to the end.
#[must_use = "a dropped guard gives the lock back"]
pub struct WriteGuard {
    front: Front,
    held: Held,
}

impl WriteGuard {
    guard!();
    guard!(fenced);

    /// Makes this writer a reader, with nobody in between, and lets the readers in that are next.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if it was no longer held. [`Backend`](crate::ErrorKind::Backend) if
    /// the backend did not answer. Which of the two is held is not known then, and both are given up.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, both are given up.
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        let front = self.front;
        match convert(&front, self.held, Mode::Read).await? {
            Ok(held) => Ok(ReadGuard { front, held: Arc::new(held) }),
            Err(_) => Err(Held::lost()),
        }
    }

    /// Gives the lock back.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if it was no longer held: what was done under it may have been
    /// done beside another holder. [`Backend`](crate::ErrorKind::Backend) if the backend did not answer;
    /// the release is then repeated in the background, and the lease ends by itself at the latest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released all the same.
    pub async fn unlock(self) -> Result<(), Error> {
        self.held.release().await
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_guard(f, "WriteGuard", &self.front.name, &self.held)
    }
}

/// Turns a hold into one of the other mode; gives it back if that is refused.
async fn convert(front: &Front, held: Held, mode: Mode) -> Result<Result<Held, Held>, Error> {
    front.scope.engine.convert(held, mode, front.retry.try_limit()).await
}
