//! The list of the locks of a namespace, with their holders.

use std::{cmp::Reverse, collections::HashSet, fmt};

use futures_util::future::try_join_all;

use super::{
    Locks,
    front::{Lock, Looks},
};
use crate::{
    backend::{Claim, Holding, Mode, SearchFrom, SemaphoreKind},
    error::{BackendErrorKind, Error},
    escape::Escaped,
    key::{Key, Name},
    lease::Release,
};

/// How many locks are looked at in one write. The server takes some 30 us for each, and no other
/// client is to wait for long.
const INSPECTED_AT_ONCE: usize = 12;

/// A lock that is held or waited for, as any process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedLock {
    /// Its name.
    pub name: String,
    /// Which of the locks of that name.
    pub kind: SemaphoreKind,
    /// The holder, and how many wait at the server.
    pub held: Holding,
}

/// A listed lock is known by the mode of its holders.
impl Looks for Mode {
    fn mode(&self) -> Mode {
        *self
    }
}

impl Locks {
    /// Returns the locks of this namespace that are held or waited for. The lock with most
    /// [waiters](Holding::waiting) at the server comes first, and then the one that is held for
    /// longest. Latches are not among them, nor the locks of a [`Redlock`](super::Redlock).
    ///
    /// It [searches](Self::search) all keys of the server. That takes about 1 s for 10,000 keys,
    /// and a minute and a half for a million.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). The user needs the right to `SCAN`.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn free(locks: bellwether::Locks) -> Result<(), bellwether::Error> {
    /// for lock in locks.list().await? {
    ///     println!("{lock}");
    /// }
    /// for lock in locks.explain("import").await? {
    ///     locks.end(&lock).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn list(&self) -> Result<Vec<ListedLock>, Error> {
        let mut search = self.search();
        let mut listed = Vec::new();
        while let Some(found) = search.next().await? {
            listed.extend(found);
        }
        ListedLock::sort(&mut listed);
        Ok(listed)
    }

    /// Begins a search for the locks of this namespace that are held or waited for, which returns
    /// them as it finds them.
    ///
    /// It looks at all keys of the server, step by step. The server spends about 1 % of its time on
    /// the search, and up to a tenth where most of its keys are locks that are held.
    pub fn search(&self) -> LockSearch {
        LockSearch { locks: self.clone(), from: Some(SearchFrom::default()), seen: HashSet::new() }
    }

    /// Returns the locks of this name that are held or waited for: at most one of each kind. It
    /// does not see the lock of a [`Redlock`](super::Redlock).
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn explain(&self, name: impl Into<Key>) -> Result<Vec<ListedLock>, Error> {
        let name = self.space.name(&name.into())?;
        self.look(&SemaphoreKind::ALL.map(|kind| (name.clone(), kind))).await
    }

    /// Ends what is held of a lock, as [`force_unlock`](crate::lock::Mutex::force_unlock) does, if
    /// its holder is still the listed one. Returns `false` if it is not. Readers and permits have
    /// no one holder, so all of them are ended.
    pub async fn end(&self, lock: &ListedLock) -> Result<bool, Error> {
        let mode = match lock.kind {
            SemaphoreKind::Mutex => Mode::Exclusive,
            SemaphoreKind::ReadWrite => Mode::Write,
            SemaphoreKind::Permits => Mode::Permit { limit: 1, count: 1 },
        };
        let found = Lock::new(&self.space, lock.name.as_str().into(), mode);
        let Some(holder) = lock.held.holder else { return found.force_unlock().await };
        let claim = Claim { owner: holder, ..found.claim(mode)? };
        let name = claim.name.clone();
        let was_held = Release::new(&self.space.engine.janitor, claim).end().await?;
        if was_held {
            // Best effort: without the push, the holder learns of it at its next renewal.
            let _ = self.space.engine.backend.tell_ended(&name, holder).await;
        }
        Ok(was_held)
    }

    /// Returns the locks that are held or waited for, out of some names.
    async fn look(&self, locks: &[(Name, SemaphoreKind)]) -> Result<Vec<ListedLock>, Error> {
        let mut listed = Vec::new();
        for batch in locks.chunks(INSPECTED_AT_ONCE) {
            let backend = &self.space.engine.backend;
            let questions = batch.iter().map(async |(name, kind)| {
                match backend.inspect(name, *kind).await {
                    // One such name must not hide all other locks.
                    Err(error) if error.kind() == BackendErrorKind::Foreign => {
                        Ok(Holding { is_foreign: true, ..Holding::default() })
                    }
                    answer => answer,
                }
            });
            let answers = try_join_all(questions).await?;
            for ((name, kind), held) in batch.iter().zip(answers) {
                if !held.is_idle() {
                    listed.push(ListedLock { name: name.key().into_owned(), kind: *kind, held });
                }
            }
        }
        Ok(listed)
    }
}

/// A search for the locks of a namespace. [`Locks::search`] begins it.
#[must_use = "a search does nothing until `next` is called"]
pub struct LockSearch {
    locks: Locks,
    /// `None` after the last step.
    from: Option<SearchFrom>,
    /// A lock has several keys.
    seen: HashSet<(Name, SemaphoreKind)>,
}

impl LockSearch {
    /// Does the next step. Returns the locks that it found, in any order and maybe none, or `None`
    /// after the last step. No lock comes twice.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). The user needs the right to `SCAN`. After an
    /// error, and if the future is dropped, the next call does the same step.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn show(locks: bellwether::Locks) -> Result<(), bellwether::Error> {
    /// let mut search = locks.search();
    /// while let Some(found) = search.next().await? {
    ///     for lock in found {
    ///         println!("{lock}");
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Result<Option<Vec<ListedLock>>, Error> {
        let Some(from) = &self.from else { return Ok(None) };
        let space = &self.locks.space;
        let namespace = space.namespace.as_ref().map_err(Error::clone)?;
        let found = space.engine.backend.lock_names(namespace, from).await?;
        let found_now: HashSet<_> = found.locks.into_iter().collect();
        let new: Vec<_> = found_now.difference(&self.seen).cloned().collect();
        let listed = self.locks.look(&new).await?;
        self.seen.extend(new);
        self.from = found.next;
        Ok(Some(listed))
    }
}

impl fmt::Debug for LockSearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockSearch").field("found", &self.seen.len()).finish_non_exhaustive()
    }
}

impl ListedLock {
    /// Sorts locks: the one that most callers wait for comes first, and then the one that is held
    /// for longest.
    pub fn sort(locks: &mut [Self]) {
        locks.sort_by_cached_key(|Self { name, kind, held }| {
            (Reverse((held.waiting, held.held_for)), name.clone(), *kind)
        });
    }
}

impl fmt::Display for ListedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", Escaped(&self.name), self.kind, self.held)?;
        if self.kind == SemaphoreKind::Mutex && self.held.holders > 0 {
            f.write_str("; callers in the holder's process: not known")?;
        }
        Ok(())
    }
}
