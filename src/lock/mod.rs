//! Distributed locks.
//!
//! [`Locks`] is the entry point. Each lock type but the latch is a kind of [`Lock`] over the engine
//! in [`lease`](crate::lease), and its guard wraps a [`Lease`](crate::lease::Lease).
//!
//! # What a lock promises
//!
//! There is no other holder until a guard's [`lost`](crate::lease::Lease::lost) completes. This
//! holds while this process runs and the server keeps its data and its clock.
//!
//! Otherwise the guard reports the loss at its first contact with the server, and only the [fencing
//! token](MutexGuard::fence) protects. This is so after a failover, a restart without the data, an
//! eviction, a [forced unlock](Mutex::force_unlock), or while this process is suspended. Pass the
//! token to the resource that the lock guards, which refuses one smaller than the greatest it has
//! seen. [`ladder`] shows step by step why this takes more than `SETNX`.
//!
//! # One lock for each item
//!
//! A name is any text, and is made where the lock is acquired:
//! `locks.mutex(format!("order:{id}"))`. Names need no registration and no cleaning up. A free lock
//! is at most its last fencing token, a key of about 165 bytes that ends after a day. So lock the
//! order, not the orders. Items that must change together are locked by [`Locks::several`].
//!
//! A free lock costs two commands to Redis. The leases of a process are renewed a hundred in one
//! command. Of thousands of acquisitions at once, 128 are under way at a time, so a burst does not
//! meet its time-outs.
//!
//! # Which locks of one name are one
//!
//! Within one namespace:
//!
//! - The [mutex](Locks::mutex), [fair](Mutex::fair) or not, and the
//!   [reentrant](Locks::reentrant_mutex) mutex of a name are one lock, and exclude each other. So
//!   do [several](Locks::several) locks with that name among theirs, and the turns of
//!   [jobs](Locks::once).
//! - The [semaphore](Locks::semaphore) and the [permits](Locks::permits) of a name share their
//!   permits.
//! - These two groups, the [read-write lock](Locks::rw_lock), the [latch](Locks::latch) and the
//!   locks of a [`Redlock`] are independent of each other.
//!
//! # Dropped guards
//!
//! A guard that is dropped releases its lock in a task on the runtime of the acquisition. If that
//! runs no more, the lock ends with its lease. So before it ends, a program calls `unlock` or
//! `release`, or drops its guards and waits for [`Locks::shutdown`].
//!
//! The tasks that renew leases and keep places in queues serve all callers of the same [`Locks`],
//! and run in a runtime of one of them, as the connections of a backend do. So drive each runtime
//! of the current thread while others use the locks or the backend, or drop it. Behind one that
//! stands still, leases are lost, and calls get no answer.
//!
//! # Futures that are not polled
//!
//! An acquisition works while its caller polls it. A caller may poll the future once and keep it,
//! such as an arm of a loop around `select!`. What it was granted meanwhile is not renewed. If the
//! caller polls again before the lease ends, it has its lock. Otherwise the lease has ended by
//! itself, and the acquisition asks again within its wait limit. So such a future delays others for
//! its lease at most, or for 2 s after a lock was handed over to it. It fails at the next poll
//! after its wait limit, or one try later.
//!
//! # Errors and cancel safety
//!
//! These hold for all calls of locks and guards. The docs of a call add what is its own.
//!
//! - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer, or if the name holds
//!   data of another kind. What was to be changed may or may not have been changed. A call that
//!   waits has it from its last try.
//! - [`InvalidKey`](crate::ErrorKind::InvalidKey) for a name outside its range.
//! - [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a setting outside its range.
//! - [`NotAcquired`](crate::ErrorKind::NotAcquired) if a wait was ended by its limit or by the
//!   retry strategy. The `try_` methods return `None` instead.
//! - [`Panicked`](crate::ErrorKind::Panicked) if the retry strategy panicked.
//! - [`ShutDown`](crate::ErrorKind::ShutDown) for an acquisition after [`Locks::shutdown`].
//!
//! If the future of an acquisition is dropped, what it may have acquired is released. A release
//! that was polled once, or whose guard is dropped, goes on. Any other change may or may not have
//! happened. A call that looks changes nothing.

// rustdoc shows the methods of `Lock` and `Guard` in the order of these modules.
mod locks;
mod redlock;

mod mutex;
mod reentrant;

mod read_write;
mod semaphore;
mod several;

mod leader;

mod jobs;

mod builder;
mod guard;
mod latch;
mod listing;
mod majority;
mod space;
mod traits;
mod waiting_callers;

pub mod kind {
    //! The kinds of a [`Lock`](super::Lock), the ways to hold a lock, and the traits that say which
    //! methods each of them has.
    //!
    //! A program rarely names these types, because each lock and each guard has an alias, such as
    //! [`Mutex`](super::Mutex) and [`MutexGuard`](super::MutexGuard).

    pub use super::{
        guard::{ReadHold, WriteHold},
        jobs::{EachTick, OneTick, Scheduled},
        leader::Elected,
        mutex::{Exclusive, MutexHold},
        read_write::ReadWrite,
        reentrant::Reentrant,
        semaphore::{Counted, Identified},
        several::Grouped,
        space::OneServer,
        traits::{Fenced, Inspected, Renewed},
    };
}

pub mod ladder {
    #![doc = include_str!("../../docs/ladder.md")]
}

/// For the tests of the rules that every backend keeps.
#[doc(hidden)]
pub use self::majority::Majority;
pub use self::{
    builder::Lock,
    guard::{Guard, ReadGuard, Upgrade, WriteGuard},
    jobs::{Job, JobMark, PreviousTick, Ticks, Turn},
    latch::Latch,
    leader::{Candidate, Term},
    listing::{ListedLock, LockSearch},
    locks::Locks,
    mutex::{Mutex, MutexGuard, RedlockMutex},
    read_write::RwLock,
    redlock::Redlock,
    reentrant::ReentrantMutex,
    semaphore::{PermitId, Permits, Semaphore, SemaphorePermit},
    several::{Several, SeveralGuard},
};
pub use crate::observe::LockStats;
