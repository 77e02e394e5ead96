//! Locks over several independent servers.
//!
//! [`Majority`] makes one backend of the servers, and the engine is the same as over one server.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Candidate, Majority, Mutex, ReentrantMutex, front::LockSpace, macros::name_settings,
    majority::ANSWER_LIMIT,
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
/// It adds a [fencing token](#the-fencing-token), which costs an acquisition one more round trip.
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
/// # The fencing token
///
/// M. Kleppmann showed why a lock with a lease needs a token ("How to do distributed locking",
/// 2016). A holder may pause for longer than its lease: its process is suspended, or the network
/// delays its writes. Only a resource that refuses a token smaller than the greatest it has seen
/// can tell it from its successor. Redlock as published has no token that grows from holder to
/// holder, since each server counts for itself.
///
/// Here the token is the greatest of those that the majority has granted. It is written to a
/// majority before the guard is returned. Two majorities have a server in common, and that server
/// grants a greater token to the next holder.
///
/// So tokens grow while every majority has a server that kept its data for the [fence
/// life](Mutex::fence_life). A server that comes back empty can break the order of the tokens, as
/// it can break the exclusion: see [below](#a-server-that-lost-its-data). If two holders at once do
/// damage, let the resource check the token, and have the servers keep their data.
///
/// Like all leases, these need clocks that run at nearly the same pace, at a majority of the
/// servers. A difference of a hundredth is allowed for.
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
/// Each server has 50 ms for an answer. Servers with round trips above 10 ms need [another
/// limit](Self::with_answer_limit): four round trips, so that a busy moment is no outage. The
/// server that completes a majority counts: of three servers, the second fastest. One server that
/// is far away or hangs costs each acquisition and each unlock the limit, and no more.
///
/// # The start of a service
///
/// [`ready`](Self::ready) connects, measures the round trip, and says so if the limit is too short
/// for it. Without it, the first request may fail because its connections are not made yet; `lock`
/// asks again. [`ready_for_locks`](crate::RedisBackend::ready_for_locks) of each server reports
/// wrong passwords and missing rights.
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
/// As with [`Locks`](crate::Locks), only the first waiter of a process contends, and there is no
/// queue at the servers. A release wakes the waiter of each process. If several ask at the same
/// moment and none has a majority, they pause at random and ask again, up to three times. Then they
/// sleep until the next release, for 0.7 s at most.
///
/// A process that had to wait passes the lock to each of its waiters once. While several processes
/// want it, each asks after a random pause of up to 8 ms, and the one that had it last after a
/// longer one. So processes have about even shares of a contended lock, and not in the order in
/// which they came.
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
        Self::with_answer_limit(servers, ANSWER_LIMIT)
    }

    /// Creates locks as [`new`](Self::new) does, with another limit for the answer of one server.
    /// The limit of `new` is 50 ms.
    ///
    /// Set at least four round trips to the servers, and more if they are busy.
    ///
    /// The limit must be short against the lease, because a late answer is spent from it. Each
    /// acquisition and each unlock waits that long for a server that hangs. It also limits the
    /// answer to a batch of renewals. A try asks the servers up to four times, one after the other.
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
        let majority = Majority::new(servers, limit)?;
        Ok(Self { space: LockSpace::over(Arc::new(majority.clone()), Family::Redlock), majority })
    }

    /// Returns a lock that one holder has at a time. Sends nothing to the servers yet.
    ///
    /// It is independent of the locks of [`Locks`](crate::Locks) under the same name at one of the
    /// servers.
    pub fn mutex(&self, name: impl Into<Key>) -> Mutex {
        Mutex::new(self.space.clone(), name.into(), Mode::Exclusive)
    }

    /// Returns a lock that one holder has at a time, any number of times. Sends nothing to the
    /// servers yet.
    ///
    /// It is the same lock as the [mutex](Self::mutex) of that name.
    pub fn reentrant_mutex(&self, name: impl Into<Key>) -> ReentrantMutex {
        ReentrantMutex::new(self.space.clone(), name.into())
    }

    /// Returns a candidate for work that one process does at a time, for as long as it can. It is
    /// the [mutex](Self::mutex) of that name with a loop around it.
    pub fn leader(&self, name: impl Into<Key>) -> Candidate {
        Candidate::new(self.space.clone(), name.into(), Mode::Exclusive)
    }

    /// Checks that a majority of the servers answers, in a quarter of the [answer
    /// limit](Self::with_answer_limit). Makes the connections to them.
    ///
    /// # Errors
    ///
    /// - [`Backend`](crate::ErrorKind::Backend) if no majority answers.
    /// - [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if the round trip is longer, and for a
    ///   namespace outside its range. The message says how long the limit must be.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn start() -> Result<(), bellwether::Error> {
    /// use bellwether::{RedisBackend, Redlock};
    ///
    /// let urls = ["redis://one/", "redis://two/", "redis://three/"];
    /// let servers = urls.map(RedisBackend::open);
    /// let redlock = Redlock::new(servers.into_iter().collect::<Result<Vec<_>, _>>()?)?;
    /// redlock.ready().await?;
    /// # Ok(()) }
    /// ```
    pub async fn ready(&self) -> Result<(), Error> {
        self.majority.ready(&self.space.name(&Key::from("ready"))?).await
    }

    name_settings!();

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
