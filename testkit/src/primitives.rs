//! The lock primitives behind one interface.

use std::time::Duration;

use bellwether::{
    Error, Locks, RedisBackend,
    lease::Lease,
    lock::{MutexGuard, PermitId, Permits, ReadGuard, SemaphorePermit, SeveralGuard, WriteGuard},
};
use futures_util::future::BoxFuture;

/// The wait limit of the primitives, which is longer than any test waits.
pub const WAIT: Duration = Duration::from_secs(60);

/// How a primitive is acquired.
#[derive(Clone, Debug)]
pub struct Asked {
    pub locks: Locks,
    pub name: String,
    pub lease: Duration,
    pub wait: Duration,
}

impl Asked {
    pub fn new(url: &str, name: &str, lease: Duration) -> Self {
        Self::of(crate::open(url), name, lease)
    }

    pub fn of(backend: RedisBackend, name: &str, lease: Duration) -> Self {
        Self { locks: Locks::new(backend, "bellwether"), name: name.to_owned(), lease, wait: WAIT }
    }

    pub fn within(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

pub type Taken = BoxFuture<'static, Result<Guard, Error>>;
pub type Tried = BoxFuture<'static, Result<Option<Guard>, Error>>;

/// A primitive, acquired with a wait or tried once.
#[derive(Clone, Copy)]
pub struct Primitive {
    pub take: fn(Asked) -> Taken,
    pub attempt: fn(Asked) -> Tried,
}

/// A primitive, and a rival that cannot be held at the same time.
#[derive(Clone, Copy)]
pub struct Pair {
    pub one: Primitive,
    pub rival: Primitive,
    /// The suffix of the Redis key that exists while the primitive is held.
    pub key: &'static str,
}

#[derive(Debug)]
pub enum Guard {
    Mutex(MutexGuard),
    /// Held twice by one holder.
    Twice(MutexGuard, MutexGuard),
    Several(SeveralGuard),
    Reader(ReadGuard),
    Writer(WriteGuard),
    Permit(SemaphorePermit),
    Id(Permits, PermitId),
}

impl Guard {
    /// Returns whether the guard renews its lease and reports its loss.
    pub fn is_watched(&self) -> bool {
        !matches!(self, Self::Id(..))
    }

    /// Returns the lease, if there is one.
    fn lease(&self) -> Option<&Lease> {
        match self {
            Self::Mutex(guard) => Some(guard),
            Self::Twice(guard, _) => Some(guard),
            Self::Reader(guard) => Some(guard),
            Self::Writer(guard) => Some(guard),
            Self::Permit(guard) => Some(guard),
            Self::Several(_) | Self::Id(..) => None,
        }
    }

    pub fn is_lost(&self) -> bool {
        match self {
            Self::Twice(one, two) => one.is_lost() && two.is_lost(),
            Self::Several(guard) => guard.iter().any(|(_, held)| held.is_lost()),
            other => other.lease().is_some_and(Lease::is_lost),
        }
    }

    /// Completes when the loss is reported. It never completes if the lease is not renewed.
    pub async fn lost(&self) {
        match (self, self.lease()) {
            (Self::Twice(one, two), _) => {
                one.lost().await;
                two.lost().await;
            }
            (Self::Several(guard), _) => guard.lost().await,
            (_, Some(lease)) => lease.lost().await,
            (_, None) => std::future::pending().await,
        }
    }

    /// Returns the fence, if the primitive has one.
    pub fn fence(&self) -> Option<u64> {
        match self {
            Self::Mutex(guard) => Some(guard.fence()),
            Self::Twice(guard, _) => Some(guard.fence()),
            // The middle name is shared with the rival.
            Self::Several(guard) => guard.get(1).map(|(_, held)| held.fence()),
            Self::Writer(guard) => Some(guard.fence()),
            Self::Reader(_) | Self::Permit(_) | Self::Id(..) => None,
        }
    }

    pub async fn renew(&self) -> Result<(), Error> {
        match (self, self.lease()) {
            (Self::Several(guard), _) => {
                for (_, held) in guard.iter() {
                    held.renew().await?;
                }
                Ok(())
            }
            (Self::Id(permits, id), _) => permits.renew(*id).await,
            (_, Some(lease)) => lease.renew().await,
            (_, None) => Ok(()),
        }
    }

    pub async fn give_back(self) -> Result<(), Error> {
        match self {
            Self::Mutex(guard) => guard.unlock().await,
            Self::Twice(one, two) => {
                one.unlock().await?;
                two.unlock().await
            }
            Self::Several(guard) => guard.unlock().await,
            Self::Reader(guard) => guard.unlock().await,
            Self::Writer(guard) => guard.unlock().await,
            Self::Permit(guard) => guard.unlock().await,
            Self::Id(permits, id) => {
                if permits.release(id).await? {
                    return Ok(());
                }
                // The error is the one that a guard returns.
                permits.renew(id).await
            }
        }
    }
}

/// Declares a primitive by its front, and how the front waits and tries.
macro_rules! primitive {
    ($guard:expr, $asked:ident => $front:expr, $take:ident($($argument:expr)?), $attempt:ident) => {
        Primitive {
            take: |$asked| Box::pin(async move {
                let front = $front.lease($asked.lease).wait_limit($asked.wait);
                Ok($guard(front.$take($($argument)?).await?))
            }),
            attempt: |$asked| Box::pin(async move {
                let front = $front.lease($asked.lease).wait_limit($asked.wait);
                Ok(front.$attempt($($argument)?).await?.map($guard))
            }),
        }
    };
}

const LOCKED: Primitive =
    primitive!(Guard::Mutex, asked => asked.locks.mutex(asked.name.as_str()), lock(), try_lock);
const FAIRLY: Primitive = primitive!(
    Guard::Mutex, asked => asked.locks.mutex(asked.name.as_str()).fair(), lock(), try_lock
);
/// Acquires the lock twice with one holder.
const TWICE: Primitive = Primitive {
    take: |asked| {
        Box::pin(async move {
            let holder = asked.locks.reentrant_mutex(asked.name.as_str());
            let holder = holder.lease(asked.lease).wait_limit(asked.wait);
            Ok(Guard::Twice(holder.lock().await?, holder.lock().await?))
        })
    },
    attempt: |asked| {
        Box::pin(async move {
            let holder = asked.locks.reentrant_mutex(asked.name.as_str());
            let holder = holder.lease(asked.lease).wait_limit(asked.wait);
            let Some(guard) = holder.try_lock().await? else { return Ok(None) };
            Ok(holder.try_lock().await?.map(|again| Guard::Twice(guard, again)))
        })
    },
};
/// Acquires three locks. The lock of the test is in the middle of their order.
const TOGETHER: Primitive = primitive!(
    Guard::Several, asked => asked.locks.several(together(&asked.name)), lock(), try_lock
);

fn together(name: &str) -> [String; 3] {
    [format!("{name}-z"), name.to_owned(), format!("a-{name}")]
}

const READ: Primitive =
    primitive!(Guard::Reader, asked => asked.locks.rw_lock(asked.name.as_str()), read(), try_read);
const WRITTEN: Primitive = primitive!(
    Guard::Writer, asked => asked.locks.rw_lock(asked.name.as_str()), write(), try_write
);
const ONLY: Primitive = primitive!(
    Guard::Permit, asked => asked.locks.semaphore(asked.name.as_str(), 1), acquire(), try_acquire
);
const SOME: Primitive = primitive!(
    Guard::Permit, asked => asked.locks.semaphore(asked.name.as_str(), 5), acquire_many(3),
    try_acquire_many
);
const BY_ID: Primitive = Primitive {
    take: |asked| {
        Box::pin(async move {
            let permits = asked.locks.permits(asked.name.as_str(), 1).lease(asked.lease);
            let permits = permits.wait_limit(asked.wait);
            Ok(Guard::Id(permits.clone(), permits.acquire().await?))
        })
    },
    attempt: |asked| {
        Box::pin(async move {
            let permits = asked.locks.permits(asked.name.as_str(), 1).lease(asked.lease);
            Ok(permits.try_acquire().await?.map(|id| Guard::Id(permits.clone(), id)))
        })
    },
};
const SOME_BY_ID: Primitive = Primitive {
    take: |asked| {
        Box::pin(async move {
            let permits = asked.locks.permits(asked.name.as_str(), 5).lease(asked.lease);
            let permits = permits.wait_limit(asked.wait);
            Ok(Guard::Id(permits.clone(), permits.acquire_many(3).await?))
        })
    },
    attempt: |asked| {
        Box::pin(async move {
            let permits = asked.locks.permits(asked.name.as_str(), 5).lease(asked.lease);
            Ok(permits.try_acquire_many(3).await?.map(|id| Guard::Id(permits.clone(), id)))
        })
    },
};

pub const MUTEX: Pair = Pair { one: LOCKED, rival: LOCKED, key: "l" };
pub const FAIR: Pair = Pair { one: FAIRLY, rival: FAIRLY, key: "l" };
pub const REENTRANT: Pair = Pair { one: TWICE, rival: TWICE, key: "l" };
pub const NOT_REENTRANT: Pair = Pair { one: TWICE, rival: LOCKED, key: "l" };
pub const SEVERAL: Pair = Pair { one: TOGETHER, rival: TOGETHER, key: "l" };
pub const ONE_OF_THEM: Pair = Pair { one: TOGETHER, rival: LOCKED, key: "l" };
pub const ALL_WITH_IT: Pair = Pair { one: LOCKED, rival: TOGETHER, key: "l" };
pub const READER: Pair = Pair { one: READ, rival: WRITTEN, key: "r" };
pub const WRITER: Pair = Pair { one: WRITTEN, rival: READ, key: "w" };
pub const WRITERS: Pair = Pair { one: WRITTEN, rival: WRITTEN, key: "w" };
pub const SEMAPHORE: Pair = Pair { one: ONLY, rival: ONLY, key: "p" };
pub const MANY: Pair = Pair { one: SOME, rival: SOME, key: "p" };
pub const PERMITS: Pair = Pair { one: BY_ID, rival: BY_ID, key: "p" };
pub const MANY_PERMITS: Pair = Pair { one: SOME_BY_ID, rival: SOME_BY_ID, key: "p" };

/// All pairs, by name.
pub const PAIRS: [(&str, Pair); 14] = [
    ("mutex", MUTEX),
    ("fair", FAIR),
    ("reentrant", REENTRANT),
    ("not_reentrant", NOT_REENTRANT),
    ("several", SEVERAL),
    ("one_of_them", ONE_OF_THEM),
    ("all_with_it", ALL_WITH_IT),
    ("reader", READER),
    ("writer", WRITER),
    ("writers", WRITERS),
    ("semaphore", SEMAPHORE),
    ("many", MANY),
    ("permits", PERMITS),
    ("many_permits", MANY_PERMITS),
];

/// Returns whether the guards of both primitives of this pair have fences.
pub fn is_fenced(name: &str) -> bool {
    let together = matches!(name, "several" | "one_of_them" | "all_with_it");
    together || matches!(name, "mutex" | "fair" | "reentrant" | "not_reentrant" | "writers")
}

/// Returns whether the guards of this pair are renewed and report their loss.
pub fn is_watched(name: &str) -> bool {
    !matches!(name, "permits" | "many_permits")
}

/// Returns the pair of this name.
pub fn pair(name: &str) -> Pair {
    let pair = PAIRS.iter().find(|(known, _)| *known == name);
    let (_, pair) = pair.expect("a pair of the tests");
    *pair
}
