//! The operations of a backend as values, so that a hook can delay, repeat or drop them.

use std::{sync::Arc, time::Duration};

#[cfg(doc)]
use crate::backend::Leases;
use crate::{
    backend::{
        Acquired, BackOff, Changes, Claim, Claimed, Committed, Countdown, Edit, Entry, Failure,
        Grant, Holding, Kept, Latches, Marked, Mode, Owner, Renewal, SemaphoreKind, Store, TagEnd,
        TagEnds, Tick,
    },
    error::BackendError,
    key::{Name, Namespace},
};

/// Declares the operations of a backend: name, arguments, answer, and how each is performed.
macro_rules! operations {
    ($backend:ident; $(
        $(#[$doc:meta])*
        $op:ident { $($argument:ident: $kind:ty),+ } -> $answer:ty = $perform:expr;
    )+) => {
        /// Names an operation of a backend.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Op {
            $($(#[$doc])* $op,)+
        }

        /// An operation of a backend, with the arguments of its method.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        #[allow(missing_docs)]
        pub enum Operation {
            $($(#[$doc])* $op { $($argument: $kind),+ },)+
        }

        /// The answer to the [`Operation`] of the same name.
        #[derive(Debug)]
        #[non_exhaustive]
        pub enum Answer {
            $($(#[$doc])* $op($answer),)+
        }

        impl Operation {
            /// Returns which operation this is.
            pub fn op(&self) -> Op {
                match self {
                    $(Self::$op { .. } => Op::$op,)+
                }
            }

            /// Performs the operation on a backend. It may be performed more than once.
            ///
            /// # Errors
            ///
            /// As the method of the backend.
            ///
            /// # Cancel safety
            ///
            /// As the method of the backend.
            pub async fn perform<B: Store + Latches>(
                &self,
                backend: &B,
            ) -> Result<Answer, BackendError> {
                let $backend = backend;
                match self {
                    $(Self::$op { $($argument),+ } => $perform.await.map(Answer::$op),)+
                }
            }
        }
    };
}

operations! {
    backend;
    /// Takes the lease of a lock: [`Leases::acquire`].
    Acquire { claim: Claim } -> Acquired = backend.acquire(claim);
    /// Renews leases: [`Leases::renew`].
    Renew { claims: Vec<Claim> } -> Vec<Renewal> = backend.renew(claims);
    /// Keeps places in the queue of a lock: [`Leases::keep`].
    Keep { claims: Vec<Claim>, life: Duration } -> Kept = backend.keep(claims, *life);
    /// Ends a lease: [`Leases::release`].
    Release { claim: Claim } -> bool = backend.release(claim);
    /// Passes a lease on: [`Leases::pass`].
    Pass { from: Claim, to: Claim } -> Option<Grant> = backend.pass(from, to);
    /// Gives the lease of a [`Redlock`](crate::Redlock) a fence: [`Leases::set_fence`].
    SetFence { claim: Claim, fence: u64 } -> bool = backend.set_fence(claim, *fence);
    /// Marks the tick of a job: [`Leases::mark`].
    Mark { claim: Claim, tick: Tick } -> Marked = backend.mark(claim, *tick);
    /// Looks into a lock or a load: [`Leases::inspect`].
    Inspect { name: Name, kind: SemaphoreKind } -> Holding = backend.inspect(name, *kind);
    /// Lists locks: [`Leases::lock_names`].
    LockNames { namespace: Namespace } -> Vec<(Name, SemaphoreKind)> =
        backend.lock_names(namespace);
    /// Ends a lease by force: [`Leases::clear`].
    Clear { name: Name, mode: Mode } -> bool = backend.clear(name, *mode);
    /// Registers a waiter for pushes: [`Leases::listen`] and [`Leases::changes`].
    Changes { name: Name } -> Changes = backend.changes(name);
    /// Reads an entry: [`Store::get`]. A hit of a cache is this, or the next one if the cache needs
    /// the age.
    Get { name: Name } -> Option<Entry> = backend.get(name);
    /// Reads an entry with its age: [`Store::get_aged`].
    GetAged { name: Name } -> Option<Entry> = backend.get_aged(name);
    /// Takes the lease of a load: [`Store::claim`].
    Claim { claim: Claim, seen: u64 } -> Claimed = backend.claim(claim, *seen);
    /// Stores a loaded value: [`Store::commit`].
    Commit { claim: Claim, fence: u64, entry: Entry, ttl: Option<Duration> } -> Committed =
        async { backend.commit(claim, &Grant::new(*fence), entry, *ttl).await };
    /// Tells the waiters that a load failed: [`Store::fail`].
    Fail { claim: Claim, failure: Failure, back_off: Option<BackOff> } -> bool =
        backend.fail(claim, failure, *back_off);
    /// Changes an entry without a load: [`Store::edit`].
    Edit { name: Name, edit: Edit, fence_life: Duration } -> u64 =
        backend.edit(name, edit, *fence_life);
    /// Reads the last number of the tags: [`Store::tag_number`].
    TagNumber { tags: Name } -> u64 = backend.tag_number(tags);
    /// Reads when tags ended: [`Store::tag_ends`].
    TagEnds { tags: Name, which: Vec<Arc<str>> } -> Vec<TagEnds> =
        backend.tag_ends(tags, which);
    /// Ends a tag: [`Store::end_tag`].
    EndTag { tags: Name, tag: String, end: TagEnd } -> u64 = backend.end_tag(tags, tag, *end);
    /// Sets a latch: [`Latches::set_latch`].
    SetLatch { name: Name, id: Owner, count: u32, ttl: Duration } -> bool =
        backend.set_latch(name, *id, *count, *ttl);
    /// Counts a latch down: [`Latches::count_down`].
    CountDown { name: Name, id: Owner, by: u32 } -> Option<Countdown> =
        backend.count_down(name, *id, *by);
    /// Reads a latch: [`Latches::latch`].
    Latch { name: Name } -> Option<Countdown> = backend.latch(name);
    /// Removes a latch: [`Latches::clear_latch`].
    ClearLatch { name: Name } -> bool = backend.clear_latch(name);
}
