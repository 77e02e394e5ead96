//! A lock over several servers that know nothing of each other: `majority` makes one backend of them, and
//! everything else is the engine that one server has, too.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Mutex, ReentrantMutex, Unfenced,
    majority::{Majority, SERVER_LIMIT},
    scope::Scope,
};
use crate::{
    backend::{Leases, Mode},
    error::Error,
    key::{Family, Key},
    time::after,
};

/// Locks that are held at a majority of independent servers, so that no single one of them is needed.
/// Clones are the same.
///
/// This is the Redlock algorithm of S. Sanfilippo ("Distributed Locks with Redis", redis.io). All servers are
/// asked at once. What a majority of them grants, in less time than the lease lasts, is held; what is not a
/// majority is given back, what is not answered is undone as soon as it can be, and again until one lease (at most a minute) has passed.
/// While a guard lives it is renewed at all of them, and is lost when no majority can have it any more: told
/// by its holder's own clock, before anyone else can have a majority.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{MemoryBackend, Redlock};
///
/// // Each a `RedisBackend::open(url)?` on a machine of its own.
/// let servers = [MemoryBackend::new(), MemoryBackend::new(), MemoryBackend::new()];
/// let redlock = Redlock::new(servers)?;
/// let guard = redlock.mutex("nightly-report").lock().await?;
/// tokio::select! {
///     () = async { /* write the report */ } => {}
///     () = guard.lost() => { /* stop: someone else may hold the lock by now */ }
/// }
/// guard.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
///
/// # How many servers
///
/// Three, of which one may be away, or five, of which two may. An even number needs one more for its majority
/// and stands no more failures than the odd one below it. They must be masters of their own: a replica that is
/// promoted has not seen the last grants. Everyone must name the same servers; and no two of the names may
/// lead to the same one, which cannot be noticed here.
///
/// # There is no fence
///
/// Its guards have no `fence()`: they are [`Unfenced`]. A fence is a number that grows from holder to holder, and the servers
/// have no such number in common: each counts for itself, and two holders may have been counted by different
/// majorities. M. Kleppmann showed what follows ("How to do distributed locking", 2016): a holder that stands
/// still for longer than its lease, by a suspended process or a network that delays its writes, cannot be told
/// from its successor by what it writes to. S. Sanfilippo answered ("Is Redlock safe?", 2016) that the time
/// check after the acquisition leaves only pauses after it, that every lock with a lease has those, and that a
/// unique token is enough where the store can compare and set. Both are right. So:
///
/// - Where two holders at once would be a nuisance (work done twice), this lock is fine.
/// - Where they would do damage, the lock must not be what prevents it: have the store refuse the second, or
///   use [`Locks`](crate::Locks) over one server and hand its [fence](super::MutexGuard::fence) along.
///
/// Like all leases, these depend on clocks that run at nearly the same pace (a hundredth is allowed for), here
/// on those of a majority of the servers.
///
/// # A server that lost its data
///
/// A server that crashes and comes back empty has forgotten what it granted, and may grant it again: with one
/// more it makes a second majority. So keep it away for as long as the longest lease that is in use before it
/// is started again (or have it write each command to its disk, `appendfsync always`).
///
/// A lock that is held at a majority of the others goes on, and the second renewal from then on takes it at that
/// server, too, as it does where a server was away when the lock was taken. So servers can be restarted one after
/// another, with two renewals in between (a lease, unless their interval is set), and what is renewed stays held.
///
/// # Only mutexes
///
/// Two majorities have a server in common, and that one says no: this is all there is, and it is enough for
/// one holder at a time. It is not for counting. With three permits at each of five servers, five holders can
/// have three servers each; and a latch that is counted down at different majorities has as many counts as
/// servers, and may never reach zero at any majority. So there is no semaphore and no latch here.
///
/// # Waiting
///
/// Of the callers of one process only the first contends, as with [`Locks`](crate::Locks). He is woken when a majority of
/// the servers pushes that the lock is free, and by timers where they do not; and those of several processes
/// spread their tries over some milliseconds, for if all ask at once, none may get a majority.
#[derive(Clone)]
pub struct Redlock {
    scope: Scope,
    majority: Majority,
}

impl Redlock {
    /// Locks over so many servers, in the namespace `bellwether`. Nothing is asked of them yet.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if there is no server.
    pub fn new<B: Leases>(servers: impl IntoIterator<Item = B>) -> Result<Self, Error> {
        Self::with_answer_limit(servers, SERVER_LIMIT)
    }

    /// As [`new`](Self::new), with a limit for one server to answer before it is passed over: 50 ms unless set.
    ///
    /// Short against the lease, for it is spent from it, and each acquisition and each unlock waits so long
    /// for a server that hangs; long against a round trip. It is the limit for the answer to a batch of
    /// renewals, too. The [`try_limit`](crate::lease::RetryStrategy::try_limit) of the retry strategy bounds
    /// the whole try, so set that higher where this is.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_answer_limit<B: Leases>(
        servers: impl IntoIterator<Item = B>,
        limit: Duration,
    ) -> Result<Self, Error> {
        let majority = Majority::new(servers)?.answer_limit(limit);
        Ok(Self { scope: Scope::over(Arc::new(majority.clone()), Family::Redlock), majority })
    }

    /// The locks of another namespace over the same servers.
    ///
    /// One to 64 letters, digits, `.`, `_` or `-`. Whatever is asked of these locks with another one is
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig).
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.scope = self.scope.namespace(namespace.into());
        self
    }

    /// The longest name, in bytes: 512 unless set.
    pub fn max_name(mut self, bytes: usize) -> Self {
        self.scope.max_name = bytes;
        self
    }

    /// A lock that one holder has at a time. Nothing is asked of the servers yet.
    ///
    /// It is no relation of the locks that [`Locks`](crate::Locks) has under the same name at one of the servers.
    pub fn mutex(&self, name: impl Into<Key>) -> Mutex<Unfenced> {
        Mutex::new(self.scope.clone(), name.into(), Mode::Exclusive)
    }

    /// A lock that one holder has at a time, as often as he likes: the same lock as the
    /// [mutex](Self::mutex) of that name. Nothing is asked of the servers yet.
    pub fn reentrant_mutex(&self, name: impl Into<Key>) -> ReentrantMutex<Unfenced> {
        ReentrantMutex::new(self.scope.clone(), name.into())
    }

    /// Ends the work of these locks: no acquisition starts any more, waiting ones fail, and releases that
    /// are under way may end until `deadline` has passed. Guards keep what they hold, until they are dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, no acquisition starts all the same; call it again to
    /// wait.
    pub async fn shutdown(&self, deadline: Duration) {
        let end = after(Instant::now(), deadline);
        // The undos at each server end last, since the releases above start more of them.
        self.scope.engine.shutdown(deadline).await;
        self.majority.shutdown(end.saturating_duration_since(Instant::now())).await;
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redlock")
            .field("majority", &self.majority)
            .field("namespace", &self.scope.namespace)
            .finish_non_exhaustive()
    }
}
