//! Locks over several independent servers.
//!
//! [`Majority`] makes one backend of the servers, and the engine is the same as over one server.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Majority, Mutex, ReentrantMutex, Unfenced, macros::name_settings, majority::SERVER_LIMIT,
    space::LockSpace,
};
use crate::{
    backend::{Leases, Mode},
    error::Error,
    key::{Family, Key},
    observe::LockStats,
    time::after,
};

/// Locks that are held at a majority of independent servers, so that they survive the loss of a
/// server.
///
/// Clones share the engine: their callers wait in common local queues, their leases are renewed
/// together, and they [shut down](Self::shutdown) together. So create one for the process, and
/// clone it.
///
/// This is the Redlock algorithm of S. Sanfilippo ("Distributed Locks with Redis", redis.io). All
/// servers are asked at once. A lock is held if a majority grants it in less time than the lease
/// lasts. Without a majority, the grants are released. A request without an answer is undone as
/// soon as possible. The undo is repeated until one lease has passed, at most for a minute.
///
/// While a guard lives, its lease is renewed at all servers. The guard reports the loss when no
/// majority can have the lease any more. It does so by the holder's own clock, before another
/// holder can have a majority.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{MemoryBackend, Redlock};
///
/// # async fn write_report() {}
/// // Each is a `RedisBackend::open(url)?` on a machine of its own.
/// let servers = [MemoryBackend::new(), MemoryBackend::new(), MemoryBackend::new()];
/// let redlock = Redlock::new(servers.clone())?.namespace("reports").max_name(100);
///
/// let guard = redlock.mutex("nightly").lock().await?;
/// tokio::select! {
///     () = write_report() => {}
///     () = guard.lost() => println!("another holder may have the lock"),
/// }
/// guard.unlock().await?;
/// redlock.reentrant_mutex("nightly").holder().lock().await?.unlock().await?;
/// redlock.shutdown(Duration::from_secs(1)).await;
///
/// // Servers of busy machines need more time to answer.
/// let redlock = Redlock::with_answer_limit(servers, Duration::from_millis(100))?;
/// # drop(redlock);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
///
/// # How many servers
///
/// Use three servers, of which one may fail, or five, of which two may fail. An even number needs
/// one more for its majority, and survives no more failures than the odd number below it.
///
/// Each server must be a master of its own: a replica that is promoted has not seen the last
/// grants. All processes must name the same servers. No two of the names may lead to the same
/// server, which cannot be detected here.
///
/// # There is no fencing token
///
/// The guards are [`Unfenced`] and have no `fence()`. A fencing token grows from holder to holder,
/// and the servers have no such number in common. Each server counts for itself, and two holders
/// may have been counted by different majorities.
///
/// M. Kleppmann showed the consequence ("How to do distributed locking", 2016). A holder may pause
/// for longer than its lease: its process is suspended, or the network delays its writes. The
/// resource that it writes to cannot tell it from its successor.
///
/// S. Sanfilippo answered ("Is Redlock safe?", 2016) that the time check after the acquisition
/// leaves only later pauses. Every lock with a lease has those. A unique token is enough where the
/// store can compare and set. Both are right. So:
///
/// - If two holders at once are only a nuisance, such as work that is done twice, this lock is
///   fine.
/// - If they do damage, the lock must not be what prevents it. Let the store refuse the second, or
///   use [`Locks`](crate::Locks) over one server and pass its [fence](super::MutexGuard::fence) on.
///
/// Like all leases, these need clocks that run at nearly the same pace, here those of a majority of
/// the servers. A difference of a hundredth is allowed for.
///
/// # A server that lost its data
///
/// A server that crashes and comes back empty has forgotten its grants, and may grant them again.
/// With one more server, that makes a second majority. So start it again only after the longest
/// lease in use has passed, or have it write each command to its disk with `appendfsync always`.
///
/// A lock that a majority of the other servers holds goes on. The second renewal after the restart
/// takes it at that server too. The same happens if a server was away when the lock was acquired.
/// So servers can be restarted one after another, with two renewals in between, and a lock that is
/// renewed stays held. With the default interval, one lease is time enough.
///
/// # Servers far away
///
/// Each server has 50 ms for an answer, or four round trips where those are longer. The round trip
/// is that of the server that completes a majority: of three servers, the second fastest. So one
/// server that is far away or hangs costs no more than that, and is not waited for any longer.
///
/// The round trips lengthen the time up to a quarter of the lease, because a late answer is spent
/// from it. A lease must last longer than four round trips. The error of an acquisition with a
/// shorter one says so.
///
/// The first request waits for the connections to a majority, for 2 s at most.
///
/// # The start of a service
///
/// [`ready_for_locks`](crate::RedisBackend::ready_for_locks) of each server tells of wrong
/// passwords and missing rights. A service that may start while some servers are away goes on if a
/// majority of them is ready.
///
/// # Only mutexes
///
/// Two majorities have a server in common, and that server refuses the second one. This is enough
/// for one holder at a time, and not for counting. With three permits at each of five servers, five
/// holders can have three servers each. A latch that is counted down at different majorities has as
/// many counts as servers, and may never reach zero at any majority. So there is no semaphore and
/// no latch here.
///
/// # Waiting
///
/// As with [`Locks`](crate::Locks), only the first waiter of a process contends. It enters the
/// queue of one server: the first of the list that answers and pushes. That server tells it of its
/// turn, and it asks all servers then. So list the servers in the same order in each process. In
/// another order the lock is as safe, but processes may have it out of turn.
///
/// A process that had to wait passes the lock to each of its waiters once, and then it is the turn
/// of the next process.
#[derive(Clone)]
pub struct Redlock {
    space: LockSpace,
    majority: Majority,
}

impl Redlock {
    /// Creates locks of the namespace `bellwether` over these servers. Sends nothing to them yet.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if there is no server.
    pub fn new<B: Leases>(servers: impl IntoIterator<Item = B>) -> Result<Self, Error> {
        Self::with_answer_limit(servers, SERVER_LIMIT)
    }

    /// Creates locks as [`new`](Self::new) does, with another limit for the answer of one server.
    /// The limit of `new` is 50 ms.
    ///
    /// Servers far away need no other limit: it is lengthened to four [round
    /// trips](Self#servers-far-away). A higher one is for servers that answer late for another
    /// reason, such as a busy machine. It raises all limits that belong together.
    ///
    /// The limit must be short against the lease, because a late answer is spent from it. Each
    /// acquisition and each unlock waits that long for a server that hangs. It also limits the
    /// answer to a batch of renewals. A try may ask the servers several times, one after the other.
    /// A [`try_limit`](crate::lease::RetryStrategy::try_limit) of the retry strategy bounds all of
    /// these requests, and must leave room for them.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_answer_limit<B: Leases>(
        servers: impl IntoIterator<Item = B>,
        limit: Duration,
    ) -> Result<Self, Error> {
        let majority = Majority::new(servers)?.answer_limit(limit);
        Ok(Self { space: LockSpace::over(Arc::new(majority.clone()), Family::Redlock), majority })
    }

    name_settings!();

    /// Returns a lock that one holder has at a time. Sends nothing to the servers yet.
    ///
    /// It is independent of the locks of [`Locks`](crate::Locks) under the same name at one of the
    /// servers.
    pub fn mutex(&self, name: impl Into<Key>) -> Mutex<Unfenced> {
        Mutex::new(self.space.clone(), name.into(), Mode::Exclusive)
    }

    /// Returns a lock that one holder has at a time, any number of times. Sends nothing to the
    /// servers yet.
    ///
    /// It is the same lock as the [mutex](Self::mutex) of that name.
    pub fn reentrant_mutex(&self, name: impl Into<Key>) -> ReentrantMutex<Unfenced> {
        ReentrantMutex::new(self.space.clone(), name.into())
    }

    /// Returns the counters of these locks and their clones, and the number of leases held now.
    ///
    /// A lease counts as held while its guard lives. A future that is dropped before its end is
    /// counted nowhere.
    pub fn stats(&self) -> LockStats {
        self.space.engine.stats()
    }

    /// Shuts these locks and their clones down.
    ///
    /// No acquisition starts any more, and those that wait fail as
    /// [`ShutDown`](crate::ErrorKind::ShutDown). Releases that are under way may end until the
    /// deadline passes. Guards keep their leases until they are dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, still no acquisition starts. Call it
    /// again to wait.
    pub async fn shutdown(&self, deadline: Duration) {
        let end = after(Instant::now(), deadline);
        // The undos at each server end last, since the releases above start more of them.
        self.space.engine.shutdown(deadline).await;
        self.majority.shutdown(end.saturating_duration_since(Instant::now())).await;
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock")
            .field("majority", &self.majority)
            .field("namespace", &self.space.namespace)
            .finish_non_exhaustive()
    }
}
