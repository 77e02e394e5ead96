//! Distributed locks.
//!
//! [`Locks`] is the entry point. All lock types except the latch are kinds of [`Lock`] over the
//! engine in [`lease`](crate::lease). The guard of a lock wraps a [`Lease`](crate::lease::Lease).
//!
//! # What a lock promises
//!
//! There is no other holder until a guard's [`lost`](crate::lease::Lease::lost) completes. This
//! holds while this process runs and the server keeps its data and its clock.
//!
//! In other cases, the guard reports the loss at its first contact with the server, and only the
//! [fencing token](MutexGuard::fence) protects. These cases are a failover, a restart without the
//! data, an eviction, a [forced unlock](Mutex::force_unlock), and a suspended process. Pass the
//! token to the resource that the lock guards. The resource refuses a token smaller than the
//! greatest token that it has seen. [`ladder`] shows step by step why this takes more than `SETNX`.
//!
//! # One lock for each item
//!
//! A name is any text, and is created where the lock is acquired:
//! `locks.mutex(format!("order:{id}"))`. Names need no registration and no cleaning up. An unlocked
//! name keeps only its last fencing token, a key of about 165 bytes that ends after a day. So lock
//! one order by its id, not all orders by one name. [`Locks::several`] locks items that must change
//! together.
//!
//! A free lock costs two commands to Redis. One command renews up to a hundred leases of a process.
//! Of thousands of acquisitions at once, 128 are under way at a time, so a burst does not run into
//! time-outs.
//!
//! # Which locks of one name are one
//!
//! Within one namespace:
//!
//! - The [mutex](Locks::mutex), [fair](Mutex::fair) or not, and the
//!   [reentrant](Locks::reentrant_mutex) mutex of a name are one lock, and exclude each other. The
//!   same lock is part of [several](Locks::several) locks with that name, and the turns of a
//!   [job](Locks::once) of that name hold it.
//! - The [semaphore](Locks::semaphore) and the [permits](Locks::permits) of a name share their
//!   permits.
//! - These two groups, the [read-write lock](Locks::rw_lock), the [latch](Locks::latch) and the
//!   locks of a [`Redlock`] are independent of each other.
//!
//! # Dropped guards
//!
//! If a guard is dropped, a task on the runtime of the acquisition releases the lock. If that
//! runtime has ended, the lock ends with its lease. So before a program ends, it calls `unlock` or
//! `release`, or drops its guards and waits for [`Locks::shutdown`].
//!
//! The tasks that renew leases and keep queue entries serve all callers of the same [`Locks`]. Each
//! task runs in the runtime of one caller, and so do the connections of a backend. So if you use
//! several current-thread runtimes, drive each runtime while other runtimes use the locks or the
//! backend, or drop it. If a runtime stands still, leases are lost and calls get no answer.
//!
//! # Futures that are not polled
//!
//! An acquisition works while its caller polls it. A caller may poll the future once and keep it,
//! such as an arm of a loop around `select!`. A lease that is granted meanwhile is not renewed. If
//! the caller polls again before the lease ends, the caller has the lock. Otherwise the lease has
//! ended by itself, and the acquisition tries again within its wait limit. So such a future delays
//! other callers for its lease at most, or for 2 s after a handover. The future fails at the next
//! poll after its wait limit, or one try later.
//!
//! # Errors and cancel safety
//!
//! All calls of locks and guards have these errors. The docs of a call add its own errors.
//!
//! - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer, or if the name holds
//!   data of another kind. The change may or may not have happened. A call that waits returns the
//!   error of its last try.
//! - [`InvalidKey`](crate::ErrorKind::InvalidKey) for a name outside its range.
//! - [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a setting outside its range, or without
//!   effect on this lock.
//! - [`NotAcquired`](crate::ErrorKind::NotAcquired) if the wait limit or the retry strategy ended
//!   the wait. The `try_` methods return `None` instead.
//! - [`Panicked`](crate::ErrorKind::Panicked) if the retry strategy panicked.
//! - [`ShutDown`](crate::ErrorKind::ShutDown) for an acquisition after [`Locks::shutdown`].
//!
//! If the future of an acquisition is dropped, a task releases the lock that it may have acquired.
//! A release that was polled once, or whose guard is dropped, goes on. Any other change may or may
//! not have happened. A call that only reads changes nothing.

// rustdoc shows the methods of `Lock` and `Guard` in the order of these modules.
mod locks;
mod redlock;

mod guard;

mod mutex;
mod reentrant;

mod read_write;
mod semaphore;
mod several;

mod leader;

mod jobs;

mod builder;
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
