//! Locks over several independent servers.
//!
//! [`Majority`] makes one backend of the servers, and the engine is the same as over one server.

use std::{sync::Arc, time::Duration};

use super::{Locks, Majority, front::LockSpace, majority::ANSWER_LIMIT};
use crate::{
    backend::Leases,
    error::Error,
    key::{Family, Key},
};

/// Locks that are held at a majority of independent servers, so that they survive the loss of a
/// server.
///
/// Clones share the engine, as with [`Locks`]. So create one for the process, and clone it.
///
/// This is the Redlock algorithm of S. Sanfilippo ("Distributed Locks with Redis", redis.io), with
/// a [fencing token](#the-fencing-token). All servers are asked at once. A lock is held if a
/// majority grants it in less time than the lease lasts. Otherwise the grants are released.
///
/// While a guard lives, its lease is renewed at all servers. The guard reports the loss by its own
/// clock, before another holder can have a majority.
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
/// let redlock = Redlock::over(servers.clone(), "reports")?.max_name(100);
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
/// let redlock = Redlock::with_answer_limit(servers, "shop", Duration::from_millis(100))?;
/// # drop(redlock);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
///
/// # The servers
///
/// Use three servers, of which one may fail, or five, of which two may fail. Each must be a master
/// of its own: a replica that is promoted has not seen the last grants. All processes must name the
/// same servers. No two of the names may lead to the same server, which cannot be detected here.
///
/// Each server has 50 ms for an answer. With round trips above 10 ms, set [another
/// limit](Self::with_answer_limit); [`ready`](Self::ready) says so. The server that completes a
/// majority counts: of three servers, the second fastest. One server that is far away or hangs
/// costs each acquisition and each unlock the limit, and no more.
///
/// # The fencing token
///
/// A holder may pause for longer than its lease: its process is suspended, or the network delays
/// its writes. Only a resource that refuses a token smaller than the greatest it has seen can tell
/// it from its successor (M. Kleppmann, "How to do distributed locking", 2016). Redlock as
/// published has no such token, since each server counts for itself.
///
/// Here the token is the greatest that a server has granted. It is written to a majority before the
/// guard is returned, which costs one more round trip. The next holder's majority shares a server
/// with that one, which grants a greater token. So tokens grow while every majority has a server
/// that kept its data for a day.
///
/// Like all leases, these need clocks that run at nearly the same pace, at a majority of the
/// servers. A difference of a hundredth is allowed for.
///
/// # A server that lost its data
///
/// A server that comes back empty has forgotten its grants, and may grant them again. With one more
/// server that makes a second majority, and the order of the tokens can break. So start it again
/// only after the longest lease in use has passed, or have it write each command to its disk with
/// `appendfsync always`.
///
/// A lock that a majority of the other servers holds goes on, and its second renewal takes it at
/// that server too. So a lock that is renewed survives servers that restart one after another, with
/// two renewals in between. With the default interval, one lease is time enough.
///
/// # Only mutexes
///
/// Two majorities have a server in common, and that server refuses the second one. This is enough
/// for one holder at a time, and not for counting. With three permits at each of five servers, five
/// holders can have three servers each. So there is no semaphore and no latch here.
///
/// # Waiting
///
/// As with [`Locks`](crate::Locks), only the first waiter of a process contends. There is no queue
/// at the servers. A release wakes the waiter of each process, which asks after a random pause of
/// up to 8 ms. The process that had the lock last pauses for longer. If several ask at the same
/// moment and none has a majority, they ask again, up to three times. Then they sleep until the
/// next release, for 0.7 s at most.
///
/// A process that had to wait passes the lock to each of its waiters once. So processes have about
/// even shares of a contended lock, and not in the order in which they came.
pub type Redlock = Locks<Majority>;

impl Redlock {
    /// Creates the locks of a [namespace](crate::Locks::new) over these servers. Sends nothing to
    /// them yet.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if there is no server.
    pub fn over<B: Leases>(
        servers: impl IntoIterator<Item = B>,
        namespace: impl Into<String>,
    ) -> Result<Self, Error> {
        Self::with_answer_limit(servers, namespace, ANSWER_LIMIT)
    }

    /// Creates locks as [`over`](Self::over) does, with another limit for the answer of one server,
    /// also to a batch of renewals. The limit of `over` is 50 ms.
    ///
    /// Set at least four round trips to the servers, so that a busy moment is no outage. It must be
    /// short against the lease, because a late answer is spent from it. A
    /// [`try_limit`](crate::lease::RetryStrategy::try_limit) of the retry strategy must leave room
    /// for four answers, one after the other.
    ///
    /// # Errors
    ///
    /// As [`over`](Self::over).
    pub fn with_answer_limit<B: Leases>(
        servers: impl IntoIterator<Item = B>,
        namespace: impl Into<String>,
        limit: Duration,
    ) -> Result<Self, Error> {
        let (servers, namespace) = (Majority::new(servers, limit)?, namespace.into());
        let space = LockSpace::over(Arc::new(servers.clone()), Family::Redlock, &namespace);
        Ok(Self { space, servers })
    }

    /// Connects to the servers, and checks that a majority answers in a quarter of the [answer
    /// limit](Self::with_answer_limit).
    ///
    /// Without it, the first request may fail because its connections are not made yet; `lock` asks
    /// again. Wrong passwords and missing rights are reported by
    /// [`ready`](crate::RedisBackend::ready) of each server.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety), and:
    ///
    /// - [`Backend`](crate::ErrorKind::Backend) if no majority answers.
    /// - [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if the round trip is longer, and for a
    ///   namespace outside its range. The message says how long the limit must be.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn start() -> Result<(), bellwether::Error> {
    /// use bellwether::{RedisBackend, Redlock};
    ///
    /// let urls = ["redis://one/", "redis://two/", "redis://three/"];
    /// let servers = urls.map(RedisBackend::open);
    /// let redlock = Redlock::over(servers.into_iter().collect::<Result<Vec<_>, _>>()?, "shop")?;
    /// redlock.ready().await?;
    /// # Ok(()) }
    /// ```
    pub async fn ready(&self) -> Result<(), Error> {
        self.servers.ready(&self.space.name(&Key::from("ready"))?).await
    }
}
