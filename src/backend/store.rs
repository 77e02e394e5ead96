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

/// What one server keeps beside leases: entries, with the lease under which each is rebuilt, and
/// count-down latches. A majority of servers keeps none of it.
///
/// [`read`](Self::read) returns [`BackendErrorKind::Foreign`] if the name holds something that is
/// not an entry. A commit or a put replaces it.
///
/// A latch is set once, counted down by many, and waited for by many. It ends with its time,
/// whether it was counted down or not. A latch at zero stands for that time once more, so that a
/// late waiter sees zero. The error is [`BackendErrorKind::Foreign`] if the name holds something
/// that is not a latch, which is left alone.
#[async_trait]
pub trait Store: Leases {
    /// Returns the entry, if there is one. It comes with its [age](Entry::age) if it is to be
    /// `aged`, or if it has [windows](Windows) in which it is stale.
    async fn read(&self, name: &Name, aged: bool) -> Result<Option<Entry>, BackendError>;

    /// Returns the entry, without its age if that is not needed.
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

    /// Writes an entry, ends the lease and pushes the entry to the waiters, all at once. It does so
    /// only if the fence of the grant is still the last one of the name. The entry gets that fence,
    /// and the time of the backend.
    ///
    /// The backend drops the entry after `ttl`. Without one, or if the server is too full to write,
    /// the entry is handed to the waiters without its windows, and not written. The failures before
    /// it are forgotten.
    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError>;

    /// Ends the lease and pushes a failure to the present waiters. Returns whether the claim had
    /// the lease; if not, nothing changes.
    ///
    /// With a back-off, the name backs off for its time: a claim is told of that and of the
    /// failure. The failure is [remembered](BackOff::remembered) a while longer. A commit or an
    /// [edit](Self::edit) ends both.
    async fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError>;

    /// Changes an entry without a load. Ends the lease of a load that is under way, which is then
    /// not stored, and the back-off. Returns the fence that was burnt, or zero if nothing changed.
    async fn edit(
        &self,
        name: &Name,
        edit: &Edit,
        fence_life: Duration,
    ) -> Result<u64, BackendError>;

    /// Returns the last number of the tags of a namespace. Each later [end](Self::end_tag) of a
    /// tag has a greater one.
    ///
    /// `tags` is the name under which the namespace keeps its tags.
    async fn tag_number(&self, tags: &Name) -> Result<u64, BackendError>;

    /// Returns when some tags ended last, in their order.
    async fn tag_ends(&self, tags: &Name, which: &[Arc<str>])
    -> Result<Vec<TagEnds>, BackendError>;

    /// Gives a tag the next number, which is remembered for 30 days at least. Returns the number.
    async fn end_tag(&self, tags: &Name, tag: &str, end: TagEnd) -> Result<u64, BackendError>;

    /// Tells a local tier of the changes of entries from now on. Returns whether the backend also
    /// says, at these intervals, [up to when](Tap::complete_until) the tier has heard of all.
    ///
    /// The default is for a backend that tells nothing.
    fn tap(&self, _tier: Weak<dyn Tap>, _every: Duration) -> bool {
        false
    }

    /// Returns whether the local tiers of this backend are told of the changes of a name. If
    /// `begins`, they soon are.
    fn hears(&self, _name: &Name, _begins: bool) -> bool {
        true
    }

    /// Sets a latch to `count`, for `ttl`, unless one stands. Returns whether one stands that was
    /// set under this `id`, so that a setting that is sent twice is recognised.
    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError>;

    /// Counts a latch down, to zero at most. Returns what the step left, or `None` if no latch
    /// stands. A step by 0 under a fresh id only reads it.
    ///
    /// A step under an `id` is counted once. If it is sent again, it is told the count that it
    /// left, also after the latch is done. A step that finds the latch done counts nothing, and is
    /// told zero. Listeners are told of zero, and not of the steps before.
    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError>;

    /// Returns what is left of a latch, or `None` if no latch stands.
    async fn latch(&self, name: &Name) -> Result<Option<Countdown>, BackendError> {
        self.count_down(name, Owner::fresh(), 0).await
    }

    /// Removes a latch, or whatever stands in its place, and wakes the waiters. Returns whether
    /// something was there.
    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError>;
}

/// A change of an entry without a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// Writes an entry for this long. Without room for it, it is refused, and nothing changes.
    Put(Entry, Duration),
    /// Sets the windows of an entry from now on. Changes nothing without an entry, or if it
    /// [expired](Self::Expire).
    Touch {
        /// How long the entry is of use.
        windows: Windows,
        /// The fence of the entry that is meant: another one is left as it is. Zero means
        /// whatever stands.
        seen: u64,
    },
    /// Ends the fresh and the stale window. The entry is kept for failures to the end of its error
    /// window, counted from now, but not longer than it would have been. Without that window it is
    /// removed.
    Expire,
    /// Leaves the entry as it is.
    Supersede,
    /// Removes the entry.
    Invalidate,
}

/// The answer to [`Store::get_many`] for each name.
pub type EntryAnswers = Vec<Result<Option<Entry>, BackendError>>;

/// The answer to [`Store::claim`]. The one to [`Leases::acquire`] is a grant, or occupied.
#[derive(Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The lease is held now.
    Granted(Grant),
    /// An entry that the caller had not seen makes the load needless.
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
    /// The entry was pushed to the waiters and not written: it had no `ttl`, or there was no room.
    Pushed,
    /// A newer entry stands.
    Newer(Entry),
    /// The fence was burnt by an invalidation, or the lease was lost and another load is under way.
    Refused,
}

/// The progress of a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Countdown {
    /// The steps that are left; zero if it is done.
    pub left: u32,
    /// After how long the latch ends.
    pub remaining: Duration,
}
