//! The locks of a namespace that are held or waited for, with their holders.

use std::{cmp::Reverse, collections::HashSet, fmt, time::Duration};

use futures_util::future::try_join_all;

use super::space::LockSpace;
use crate::{
    backend::{Holding, Mode, SearchFrom, SemaphoreKind},
    error::{BackendErrorKind, Error},
    escape::Escaped,
    key::Name,
    lease::Release,
};

/// How many locks are inspected in one write. The server takes some 30 us for each lock, and no
/// other client is to wait for long.
const INSPECTED_AT_ONCE: usize = 12;
/// The lease of the claims that release what another process holds. It bounds how long a release
/// without an answer is repeated.
const LEASE: Duration = Duration::from_secs(10);

/// A lock that is held or waited for, as any process sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedLock {
    /// The name of the lock.
    pub name: String,
    /// Which of the locks of that name.
    pub kind: SemaphoreKind,
    /// The holder, and how many wait at the server.
    pub held: Holding,
}

/// Returns the locks that are held or waited for, out of these locks.
pub(super) async fn inspect(
    space: &LockSpace,
    locks: &[(Name, SemaphoreKind)],
) -> Result<Vec<ListedLock>, Error> {
    let backend = &space.engine.backend;
    let mut listed = Vec::new();
    for batch in locks.chunks(INSPECTED_AT_ONCE) {
        let inspections = batch.iter().map(async |(name, kind)| {
            match backend.inspect(name, *kind).await {
                // A name with foreign data must not hide all other locks.
                Err(error) if error.kind() == BackendErrorKind::Foreign => {
                    Ok(Holding { is_foreign: true, ..Holding::default() })
                }
                answer => answer,
            }
        });
        let holdings = try_join_all(inspections).await?;
        for ((name, kind), held) in batch.iter().zip(holdings) {
            if !held.is_idle() {
                listed.push(ListedLock { name: name.key().into_owned(), kind: *kind, held });
            }
        }
    }
    Ok(listed)
}

/// Ends the leases of a lock, if its holder is still the listed holder. Returns whether that was
/// so.
pub(super) async fn end(space: &LockSpace, lock: &ListedLock) -> Result<bool, Error> {
    let mode = match lock.kind {
        SemaphoreKind::Mutex => Mode::Exclusive,
        SemaphoreKind::ReadWrite => Mode::Write,
        SemaphoreKind::Permits => Mode::Permit { limit: 1, count: 1 },
    };
    let name = space.name(&lock.name.as_str().into())?;
    let Some(holder) = lock.held.holder else { return space.force_unlock(&name, mode).await };
    let claim = space.claim(holder, name.clone(), mode, LEASE);
    let was_held = Release::new(&space.engine.janitor, claim).send().await?;
    if was_held {
        // Best effort: without the push, the holder notices the loss at its next renewal.
        let _ = space.engine.backend.tell_ended(&name, holder).await;
    }
    Ok(was_held)
}

/// A search for the locks of a namespace. [`Locks::search`](super::Locks::search) begins it.
#[must_use = "a search does nothing until `next` is called"]
pub struct LockSearch {
    space: LockSpace,
    /// `None` after the last step.
    from: Option<SearchFrom>,
    /// The locks that were found. A lock has several keys, so the server finds it several times.
    seen: HashSet<(Name, SemaphoreKind)>,
}

impl LockSearch {
    pub(super) fn new(space: &LockSpace) -> Self {
        Self { space: space.clone(), from: Some(SearchFrom::default()), seen: HashSet::new() }
    }

    /// Does the next step. Returns the locks that this step found, in any order and maybe none.
    /// Returns `None` after the last step. No lock comes twice.
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
        let space = &self.space;
        let namespace = space.namespace.as_ref().map_err(Error::clone)?;
        let found = space.engine.backend.lock_names(namespace, from).await?;
        let found_now: HashSet<_> = found.locks.into_iter().collect();
        let new: Vec<_> = found_now.difference(&self.seen).cloned().collect();
        let listed = inspect(space, &new).await?;
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
    /// Sorts locks: the lock that most callers wait for comes first. Of locks with equally many
    /// waiters, the lock that is held for longest comes first.
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
