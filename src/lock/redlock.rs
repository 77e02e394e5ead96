//! Locks over several independent servers.
//!
//! [`Majority`] makes one backend of the servers, and the engine is the same as over one server.

use std::{sync::Arc, time::Duration};

use super::{
    locks::Locks,
    majority::{ANSWER_LIMIT, Majority},
    space::LockSpace,
};
use crate::{
    backend::Leases,
    error::Error,
    key::{Family, Key},
};

/// Locks that are held at a majority of independent servers, so that they survive the loss of a
/// server. Clones share the engine, as with [`Locks`].
///
/// This is the Redlock algorithm of S. Sanfilippo ("Distributed Locks with Redis", redis.io), with
/// a [fencing token](#the-fencing-token). An acquisition sends its request to all servers at once.
/// The lock is held if a majority grants it in less time than the lease lasts. Otherwise the grants
/// are released. The guard reports a loss by the clock of its process, before another holder can
/// have a majority.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{MemoryBackend, Redlock};
///
/// # async fn write_report() {}
/// // Each is a `RedisBackend::open(url)?` on a machine of its own.
/// let servers = [MemoryBackend::new(), MemoryBackend::new(), MemoryBackend::new()];
/// let redlock = Redlock::over(servers.clone(), "reports")?.max_name(100);
/// redlock.ready().await?;
///
/// let guard = redlock.mutex("nightly").lock().await?;
/// guard.run(write_report()).await?;
/// guard.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
///
/// # The servers
///
/// Use three servers, of which one may fail, or five servers, of which two may fail. Each server
/// must be a master of its own, because a replica that is promoted has not seen the last grants.
/// All processes must name the same servers. No two names may lead to the same server. This crate
/// cannot detect that.
///
/// Each server has 50 ms for an answer. With round trips above 12 ms, set [another
/// limit](Self::with_answer_limit); [`ready`](Self::ready) says so. One server that is far away or
/// hangs costs each acquisition and each unlock the limit, and no more.
///
/// # The fencing token
///
/// Redlock as published has no [fencing token](super::MutexGuard::fence), since each server counts
/// for itself. Here the token is the greatest token that a server has granted. The token is written
/// to a majority before the guard is returned, which costs one more round trip. The majority of the
/// next holder shares a server with this majority, and that server grants a greater token. So
/// tokens grow as long as no majority consists of servers that lost their data within a day.
///
/// # A server that lost its data
///
/// A server that comes back empty may grant its last grants again. Together with a server that had
/// not granted, the empty server can form a second majority, and the order of the tokens can break.
/// So start such a server only after the longest lease in use has passed, or set `appendfsync
/// always`.
///
/// A lock that the other servers hold goes on, and its next renewal acquires it at the empty server
/// too. So a lock survives servers that restart one after another, with a renewal in between.
///
/// # Only mutexes
///
/// Two majorities have a server in common, which refuses the second holder. This is enough for one
/// holder at a time, and not for counting: with three permits at each of five servers, five holders
/// can have three servers each. So there is no semaphore and no latch.
///
/// # What operators see
///
/// A lock that a `Redlock` holds is a key at each of the servers, and no server knows whether a
/// majority has that key. So [`Locks::list`], [`Locks::explain`] and the command line (`locks`,
/// `explain`, `unlock`) neither show nor end any of these locks. The program itself calls
/// [`holder`](super::Mutex::holder) and [`force_unlock`](super::Mutex::force_unlock). A program of
/// the operator can call both as well.
///
/// # Waiting
///
/// There is no queue at the servers. A release wakes the first waiter of each process, which sends
/// its request after a random pause of up to 8 ms. If several waiters send at the same moment and
/// none gets a majority, each waiter tries again, up to three times. Then the waiters sleep until
/// the next release, for 0.7 s at most. So processes have about even shares of a contended lock, in
/// no order.
pub type Redlock = Locks<Majority>;

impl Redlock {
    /// Creates the locks of a [namespace](crate::Locks::new) over these servers. The call sends
    /// nothing.
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

    /// Creates locks as [`over`](Self::over) does, with this limit in place of 50 ms for the answer
    /// of one server.
    ///
    /// Set at least four round trips to the servers, so that a busy moment is no outage. The limit
    /// must be short against the lease, because the time of a late answer is lost for the lease. A
    /// [`try_limit`](crate::lease::RetryStrategy::try_limit) of the retry strategy must leave room
    /// for four answers, one after the other.
    ///
    /// # Errors
    ///
    /// As for [`over`](Self::over), and if the limit is zero.
    pub fn with_answer_limit<B: Leases>(
        servers: impl IntoIterator<Item = B>,
        namespace: impl Into<String>,
        limit: Duration,
    ) -> Result<Self, Error> {
        let servers = Majority::new(servers, limit)?;
        let space = LockSpace::new(Arc::new(servers.clone()), Family::Redlock, &namespace.into());
        Ok(Self { space, servers })
    }

    /// Connects to the servers, and checks that a majority answers in a quarter of the [answer
    /// limit](Self::with_answer_limit).
    ///
    /// Without this call, the first request may fail because its connections are not made yet. Then
    /// `lock` tries again. Wrong passwords and missing rights are reported by
    /// [`ready`](crate::RedisBackend::ready) of each server.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). `InvalidConfig` also if the round trip is
    /// longer. The message says how long the limit must be.
    pub async fn ready(&self) -> Result<(), Error> {
        let name = self.space.name(&Key::from("ready"))?;
        self.servers.ready(&name).await
    }
}
