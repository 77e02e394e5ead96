//! The list of the locks of a namespace, with their holders.

use std::{cmp::Reverse, collections::HashSet, fmt};

use super::{
    Locks,
    front::{Lock, Looks},
};
use crate::{
    backend::{Claim, Holding, Mode, SemaphoreKind},
    error::Error,
    key::{Key, Name},
    lease::Release,
};

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
    /// It searches all keys of the server, step by step, so that the server spends about 1 % of its
    /// time on the search. That takes about 1 s for 10,000 keys, and two minutes for a million.
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
        let namespace = self.space.namespace.as_ref().map_err(Error::clone)?;
        // A lock has several keys.
        let found: HashSet<_> =
            self.space.engine.backend.lock_names(namespace).await?.into_iter().collect();
        let mut listed = self.look(found).await?;
        listed.sort_by_cached_key(|ListedLock { name, kind, held }| {
            (Reverse((held.waiting, held.held_for)), name.clone(), *kind)
        });
        Ok(listed)
    }

    /// Returns the locks of this name that are held or waited for: at most one of each kind. It
    /// does not see the lock of a [`Redlock`](super::Redlock).
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn explain(&self, name: impl Into<Key>) -> Result<Vec<ListedLock>, Error> {
        let name = self.space.name(&name.into())?;
        self.look(SemaphoreKind::ALL.map(|kind| (name.clone(), kind))).await
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
    async fn look(
        &self,
        locks: impl IntoIterator<Item = (Name, SemaphoreKind)>,
    ) -> Result<Vec<ListedLock>, Error> {
        let mut listed = Vec::new();
        for (name, kind) in locks {
            let held = self.space.engine.backend.inspect(&name, kind).await?;
            let name = name.key().into_owned();
            listed.extend((!held.is_idle()).then_some(ListedLock { name, kind, held }));
        }
        Ok(listed)
    }
}

impl fmt::Display for ListedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name, self.kind, self.held)?;
        if self.kind == SemaphoreKind::Mutex && self.held.holders > 0 {
            f.write_str("; callers in the holder's process: not known")?;
        }
        Ok(())
    }
}
