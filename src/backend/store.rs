//! The trait of a server that stores entries and latches, and the answers of its methods.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;

use super::{
    BackOff, Claim, Entry, Failure, Grant, Leases, Occupied, Owner, TagEnd, TagEnds, Tap, Windows,
};
#[cfg(doc)]
use crate::error::BackendErrorKind;
use crate::{error::BackendError, key::Name};

/// A server that stores entries and count-down latches, beside leases. Each entry has a lease under
/// which a process rebuilds it. A majority of servers stores neither.
///
/// [`read`](Self::read) returns [`BackendErrorKind::Foreign`] if the name holds something that is
/// not an entry. A commit or a put replaces it.
///
/// A latch is set once, counted down by many, and waited for by many. A latch ends with its time to
/// live, whether it was counted down or not. A latch at zero stands for that time once more, so
/// that a late waiter sees zero. The error is [`BackendErrorKind::Foreign`] if the name holds
/// something that is not a latch, which stays as it is.
#[async_trait]
pub trait Store: Leases {
    /// Returns the entry, if there is an entry. The entry has its [age](Entry::age) if the caller
    /// wants it `aged`, or if the entry has [windows](Windows) in which it is stale.
    async fn read(&self, name: &Name, aged: bool) -> Result<Option<Entry>, BackendError>;

    /// Returns the entry, without its age if the entry does not need an age.
    async fn get(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        self.read(name, false).await
    }

    /// Returns the entries of some names, each as [`read`](Self::read) returns it, in their order.
    ///
    /// The default sends one request for each name, all at the same time.
    async fn get_many(&self, names: &[Name], aged: bool) -> Result<EntryAnswers, BackendError> {
        Ok(join_all(names.iter().map(|name| self.read(name, aged))).await)
    }

    /// Acquires the lease, unless an entry stands with a greater fence than `seen`, or the name
    /// [backs off](Self::fail). The grant tells [how many loads](Grant::failures) have failed.
    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError>;

    /// Writes an entry, ends the lease and pushes the entry to the waiters, in one step. The step
    /// happens only if the fence of the grant is still the last fence of the name. The entry gets
    /// that fence, and the time of the backend.
    ///
    /// The backend drops the entry after `ttl`. Without a `ttl`, or if the server is too full to
    /// write, the entry is pushed to the waiters without its windows, and not written. The backend
    /// forgets earlier failures of the name.
    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError>;

    /// Ends the lease and pushes a failure to the present waiters. Returns whether the claim had
    /// the lease. Otherwise nothing changes.
    ///
    /// With a back-off, the name backs off for a time: the answer to a claim is the back-off with
    /// the failure. The failure is [remembered](BackOff::remembered) a while longer. A commit or an
    /// [edit](Self::edit) ends both.
    async fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError>;

    /// Changes an entry without a load. Ends the back-off, and the lease of a load that is under
    /// way, so that the load cannot commit. Returns the fence of the edit, or zero if nothing
    /// changed.
    async fn edit(
        &self,
        name: &Name,
        edit: &Edit,
        fence_life: Duration,
    ) -> Result<u64, BackendError>;

    /// Returns the last tag number of a namespace. Each later [end](Self::end_tag) of a tag has a
    /// greater number.
    ///
    /// `tags` is the name under which the namespace keeps its tags.
    async fn tag_number(&self, tags: &Name) -> Result<u64, BackendError>;

    /// Returns the ends of some tags, in the order of the tags.
    async fn tag_ends(&self, tags: &Name, which: &[Arc<str>])
    -> Result<Vec<TagEnds>, BackendError>;

    /// Gives a tag the next number, which is remembered for 30 days at least. Returns the number.
    async fn end_tag(&self, tags: &Name, tag: &str, end: TagEnd) -> Result<u64, BackendError>;

    /// Notifies a local tier of the changes of entries from now on. Returns whether the backend
    /// also says, at these intervals, [up to when](Tap::complete_until) the tier has received all
    /// changes.
    ///
    /// The default is for a backend that notifies no tier.
    fn tap(&self, _tier: Weak<dyn Tap>, _every: Duration) -> bool {
        false
    }

    /// Returns whether the local tiers of this backend receive the changes of a name. With
    /// `begins`, the backend subscribes to these changes.
    fn hears(&self, _name: &Name, _begins: bool) -> bool {
        true
    }

    /// Sets a latch to `count`, for `ttl`, unless a latch stands. Returns whether the latch that
    /// now stands was set under this `id`. So a request that is sent twice gets the same answer.
    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError>;

    /// Counts a latch down, to zero at most. Returns the count that the step left, or `None` if no
    /// latch stands. A step by 0 under a fresh id only reads the latch.
    ///
    /// A step under an `id` counts once. If the step is sent again, the answer is the count that
    /// the step left the first time, also after the latch is done. A step that finds the latch done
    /// counts nothing, and its answer is zero. Waiters receive a push at zero only.
    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError>;

    /// Returns the progress of a latch, or `None` if no latch stands.
    async fn latch(&self, name: &Name) -> Result<Option<Countdown>, BackendError> {
        self.count_down(name, Owner::fresh(), 0).await
    }

    /// Removes a latch, or the foreign data in its place, and wakes the waiters. Returns whether
    /// there was something to remove.
    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError>;
}

/// A change of an entry without a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Writes an entry for this long. Without room for the entry, the edit is refused, and nothing
    /// changes.
    Put(Entry, Duration),
    /// Sets the windows of a value from now on. Changes nothing without an entry, if the entry has
    /// [expired](Self::Expire), or if the entry says that the name is
    /// [uncacheable](super::EntryKind::Uncacheable).
    Touch {
        /// How long the entry is of use.
        windows: Windows,
        /// The fence of the entry to change. An entry with another fence stays as it is. Zero
        /// stands for any fence.
        seen: u64,
    },
    /// Ends the fresh and the stale window. The entry is kept for failures to the end of its error
    /// window, counted from now, but not longer than before. An entry without an error window is
    /// removed.
    Expire,
    /// Leaves the entry as it is.
    Supersede,
    /// Removes the entry.
    Invalidate,
}

/// The answer to [`Store::get_many`] for each name.
pub type EntryAnswers = Vec<Result<Option<Entry>, BackendError>>;

/// The answer to [`Store::claim`]. The answer to [`Leases::acquire`] is granted or occupied.
#[derive(Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The claim has the lease now.
    Granted(Grant),
    /// An entry that the caller had not seen. So no load is needed.
    Newer(Entry),
    /// Another holder is in the way.
    Occupied(Occupied),
    /// The name backs off after this failure.
    BacksOff(BackOff, Failure),
}

/// The answer to [`Store::commit`].
#[derive(Debug, PartialEq, Eq)]
pub enum Committed {
    /// The entry was written, or was written already by this grant.
    Stored,
    /// The entry was pushed to the waiters and not written, because it had no `ttl` or there was no
    /// room.
    Pushed,
    /// A newer entry stands.
    Newer(Entry),
    /// Nothing was written: the name was invalidated, or the lease was lost and another load is
    /// under way.
    Refused,
}

/// The progress of a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Countdown {
    /// The steps that are left. Zero if the latch is done.
    pub left: u32,
    /// After how long the latch ends.
    pub remaining: Duration,
}
