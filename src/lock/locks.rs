//! The entry point to the locks over one backend.

use std::{fmt, sync::Arc, time::Duration};

use tokio::sync::Mutex as AsyncMutex;

use super::front::LockSpace;
use crate::{backend::Store, key::Family, observe::LockStats};

/// The locks of a namespace over one backend.
///
/// Clones share the engine: local queues, renewals, and the [end](Self::shutdown). So create one
/// for the process, and clone it. The methods that return a lock do no I/O.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend};
///
/// # async fn change_stock(fence: u64) {}
/// let locks = Locks::new(MemoryBackend::new(), "shop").max_name(100);
///
/// let guard = locks.mutex("stock:42").lease(Duration::from_secs(5)).lock().await?;
/// // If the lock is lost, the work is dropped.
/// guard.run(change_stock(guard.fence())).await?;
/// guard.unlock().await?;
///
/// locks.shutdown(Duration::from_secs(1)).await;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Locks<Servers = OneServer> {
    pub(super) space: LockSpace,
    pub(super) servers: Servers,
}

/// The part of [`Locks`] over one backend, with the kinds that a [`Redlock`](super::Redlock) lacks.
#[derive(Clone)]
pub struct OneServer {
    pub(super) latches: Arc<dyn Store>,
    /// Held by the one task that answers, so that callers are counted once.
    pub(super) answering: Arc<AsyncMutex<()>>,
}

impl Locks {
    /// Creates the locks of a namespace over a backend.
    ///
    /// The namespace is the first part of all names: 1 to 64 letters, digits, `.`, `_` or `-`. With
    /// another one, every call to a lock is an error.
    pub fn new<B: Store>(backend: B, namespace: impl Into<String>) -> Self {
        let (backend, namespace) = (Arc::new(backend), namespace.into());
        let space = LockSpace::over(backend.clone(), Family::Lock, &namespace);
        Self { space, servers: OneServer { latches: backend, answering: Arc::default() } }
    }

    /// Sets a label for this process, such as the name of its pod.
    ///
    /// [`Mutex::holder`](super::Mutex::holder) tells any process the label of the holder. So does a
    /// [`NotAcquired`](crate::ErrorKind::NotAcquired) error of one lock, if these locks have a
    /// label themselves. The label stands in the lease, so a short one is best.
    pub fn owner(mut self, label: impl Into<String>) -> Self {
        self.space.label = Some(label.into().into());
        self
    }
}

impl<Servers> Locks<Servers> {
    /// Sets the longest name, in bytes. Defaults to 512.
    ///
    /// A longer name is [`InvalidKey`](crate::ErrorKind::InvalidKey).
    pub fn max_name(mut self, bytes: usize) -> Self {
        self.space.max_name = bytes;
        self
    }

    /// Returns the counters of these locks and their clones, and the number of leases held now.
    ///
    /// A future that is dropped before its end is counted nowhere.
    pub fn stats(&self) -> LockStats {
        self.space.engine.stats()
    }

    /// Publishes the [counters](Self::stats) of these locks and their clones, and the times of
    /// waits and holds, to the recorder of the crate [`metrics`]. `name` is their label `locks`.
    ///
    /// Spawn the future that this returns. It publishes once a second, and ends with the last
    /// clone. A second name for the same locks has no effect.
    ///
    /// ```
    /// # fn publish(locks: bellwether::Locks) {
    /// tokio::spawn(locks.publish_metrics("shop"));
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, counters stay as they were published, and times are still
    /// published. Call this again to go on.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn publish_metrics<N: Into<String>>(
        &self,
        name: N,
    ) -> impl Future<Output = ()> + Send + 'static + use<N, Servers>
    where
        Servers: 'static,
    {
        let engine = &self.space.engine;
        crate::meter::publish(&engine.renewals.meter, "locks", name.into(), engine, |it| {
            it.reading()
        })
    }

    /// Shuts these locks and their clones down.
    ///
    /// No acquisition starts any more, and those that wait fail as
    /// [`ShutDown`](crate::ErrorKind::ShutDown). Releases that are under way may end until the
    /// deadline passes. Guards keep their leases until they are dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, call it again to wait.
    pub async fn shutdown(&self, deadline: Duration) {
        self.space.engine.shutdown(deadline).await;
    }
}

impl<Servers> fmt::Debug for Locks<Servers> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = &self.space.namespace;
        f.debug_struct("Locks").field("namespace", namespace).finish_non_exhaustive()
    }
}
