//! The methods that several lock types have in common.
//!
//! They are macros and no trait, so that users need no import and rustdoc shows each method with
//! its type.

/// The settings of a type that has a `front`.
macro_rules! settings {
    (lease) => {
        /// Sets how long the lease lasts unless it is renewed. Defaults to 10 s; from 20 ms to 24
        /// h.
        ///
        /// This is also how long the waiters wait for a holder that died.
        pub fn lease(mut self, lease: std::time::Duration) -> Self {
            self.front.lease = lease;
            self
        }
    };
    (acquisition) => {
        settings!(lease);

        /// Sets how long an acquisition may wait for other holders. Defaults to 30 s.
        ///
        /// A try that is under way at the limit may add up to its
        /// [`try_limit`](crate::lease::RetryStrategy::try_limit), by default 250 ms. For a
        /// [`Redlock`](crate::Redlock), it adds up to four answers of a server.
        pub fn wait_limit(mut self, limit: std::time::Duration) -> Self {
            self.front.wait_limit = limit;
            self
        }

        /// Sets when an acquisition tries again. Defaults to
        /// [on demand](crate::lease::Retry::on_demand).
        pub fn retry(mut self, strategy: impl crate::lease::RetryStrategy) -> Self {
            self.front.retry = std::sync::Arc::new(strategy);
            self
        }
    };
    (renewal) => {
        /// Sets how often the lease is renewed while its guard lives. From 1 ms to less than the
        /// lease.
        ///
        /// Defaults to a third of the lease, so that two renewals may fail before the lease is
        /// lost.
        pub fn renew_every(mut self, interval: std::time::Duration) -> Self {
            self.front.renewal = crate::lock::front::RenewalPace::Every(interval);
            self
        }

        /// Turns renewal off: the lease ends by itself after the lease time, and is lost then.
        pub fn fixed_lease(mut self) -> Self {
            self.front.renewal = crate::lock::front::RenewalPace::Never;
            self
        }

        /// Sets how long one guard may hold in all. Defaults to no limit; at least the lease.
        ///
        /// At the limit the lease is lost, so that a holder that is stuck does not keep it for
        /// ever.
        pub fn max_hold(mut self, limit: std::time::Duration) -> Self {
            self.front.max_hold = limit;
            self
        }
    };
}

/// The methods of a guard that has a lease as `held`.
macro_rules! guard {
    (lease) => {
        /// Completes when the lease is lost: it could not be renewed in time, or the server no
        /// longer has it. From then on, others may hold the lock.
        ///
        /// # Cancel safety
        ///
        /// Dropping the future changes nothing. It can be asked for again.
        ///
        /// # Examples
        ///
        /// ```
        /// # use std::time::Duration;
        /// # use bellwether::{Error, Locks};
        /// # async fn write(_stock: u32, _fence: u64) {}
        /// async fn change_stock(locks: &Locks) -> Result<(), Error> {
        ///     let guard = locks.mutex("stock:42").lock().await?;
        ///     tokio::select! {
        ///         // The store refuses a write with a smaller fencing token than it has seen.
        ///         () = write(7, guard.fence()) => {}
        ///         () = guard.lost() => println!("another holder may have the lock"),
        ///     }
        ///     if !guard.is_lost() && guard.remaining() < Duration::from_secs(8) {
        ///         guard.renew().await?;
        ///     }
        ///     guard.unlock().await
        /// }
        /// ```
        pub async fn lost(&self) {
            self.held.lost().await;
        }

        /// Returns `true` if the lease is lost.
        pub fn is_lost(&self) -> bool {
            self.held.is_lost()
        }

        /// Runs a future until it completes or the lease is [lost](Self::lost), and returns its
        /// output.
        ///
        /// At a loss the future is dropped where it waits. Code that does not wait runs on until it
        /// does, so a write that must not come late needs a fencing token as well.
        ///
        /// # Errors
        ///
        /// [`Lost`](crate::ErrorKind::Lost) if the lease was lost before the future completed.
        ///
        /// # Cancel safety
        ///
        /// Dropping the returned future drops the one that it runs. The lock stays held.
        ///
        /// # Examples
        ///
        /// ```
        /// # use bellwether::{Error, Locks};
        /// # async fn import(_: &str) -> u32 { 3 }
        /// async fn nightly(locks: &Locks) -> Result<u32, Error> {
        ///     let guard = locks.mutex("import").lock().await?;
        ///     let imported = guard.run(import("products.csv")).await?;
        ///     guard.unlock().await?;
        ///     Ok(imported)
        /// }
        /// ```
        pub async fn run<Work: Future>(&self, work: Work) -> Result<Work::Output, crate::Error> {
            crate::lock::front::run_until(self.lost(), work)
                .await
                .ok_or_else(|| self.held.lost_error())
        }

        /// Returns how long the lease is certain to last if no renewal succeeds. Zero if it is
        /// lost.
        pub fn remaining(&self) -> std::time::Duration {
            self.held.remaining()
        }

        /// Renews the lease now, instead of when its time comes.
        ///
        /// # Errors and cancel safety
        ///
        /// As [all locks](crate::lock#errors-and-cancel-safety), and:
        ///
        /// - [`Lost`](crate::ErrorKind::Lost) if the lease is no longer held.
        /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer. The lease is
        ///   then still held for the time that [remains](Self::remaining).
        pub async fn renew(&self) -> Result<(), crate::Error> {
            self.held.renew().await
        }
    };
    (fence) => {
        /// Returns the fencing token, a number that grows with each holder of this lock.
        ///
        /// The idea is from M. Kleppmann, "How to do distributed locking" (2016). The resource that
        /// the lock guards remembers the greatest token it has seen, and refuses smaller ones.
        pub fn fence(&self) -> u64 {
            self.held.fence()
        }
    };
    (unlock) => {
        guard!(unlock = crate::lease::LeaseGuard::release, "Releases the lock.");
    };
    (unlock shared) => {
        guard!(
            unlock = crate::lock::front::release_one,
            "Releases the lock, if this is the last guard of its lease. \
            Each guard of a lost lease reports the loss."
        );
    };
    (unlock = $release:path, $what:literal) => {
        #[doc = $what]
        ///
        /// # Errors and cancel safety
        ///
        /// As [all locks](crate::lock#errors-and-cancel-safety), and:
        ///
        /// - [`Lost`](crate::ErrorKind::Lost) if the lock was no longer held. Another holder may
        ///   have worked at the same time.
        /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer. The release is
        ///   then repeated in the background, and the lease ends by itself at the latest.
        pub async fn unlock(self) -> Result<(), crate::Error> {
            $release(self.held).await
        }
    };
}

/// The methods by which any process looks up the holders of a lock, and ends their leases.
macro_rules! inspection {
    ($this:ident => $mode:expr) => {
        /// Returns who holds it, and how many wait. Returns `None` if there is no holder.
        ///
        /// # Errors and cancel safety
        ///
        /// As [all locks](crate::lock#errors-and-cancel-safety).
        ///
        /// # Examples
        ///
        /// ```
        /// # let mut runtime = tokio::runtime::Builder::new_current_thread();
        /// # runtime.enable_time().build().unwrap().block_on(async {
        /// use bellwether::{Locks, MemoryBackend};
        ///
        /// let locks = Locks::new(MemoryBackend::new(), "shop").owner("worker-3");
        /// let guard = locks.mutex("nightly").lock().await?;
        /// let holder = locks.mutex("nightly").holder().await?.expect("it is held");
        /// assert_eq!(holder.owner.as_deref(), Some("worker-3"));
        /// assert_eq!(holder.fence, guard.fence());
        /// let readers = locks.rw_lock("prices").holder().await?.map_or(0, |held| held.holders);
        /// assert_eq!(readers, 0);
        /// # Ok::<_, bellwether::Error>(()) }).unwrap();
        /// ```
        pub async fn holder(&$this) -> Result<Option<crate::backend::Holding>, crate::Error> {
            let held = $this.front.held($mode).await?;
            Ok((held.holders > 0).then_some(held))
        }

        /// Ends the leases of all holders, or removes the foreign data in their place. Returns
        /// `true` if there was something to remove.
        ///
        /// Locks [of another kind](crate::lock#which-locks-of-one-name-are-one) under the name
        /// stay. A holder learns of the loss at its next renewal, and with a [fixed
        /// lease](Self::fixed_lease) at its end. Until then, more may hold than there is room for,
        /// and only a fencing token protects.
        ///
        /// # Errors and cancel safety
        ///
        /// As [all locks](crate::lock#errors-and-cancel-safety).
        pub async fn force_unlock(&$this) -> Result<bool, crate::Error> {
            $this.front.clear($mode).await
        }
    };
}

/// The settings that `Locks` and `Redlock` have in common.
macro_rules! name_settings {
    () => {
        /// Sets the longest name, in bytes. Defaults to 512.
        ///
        /// A longer name is [`InvalidKey`](crate::ErrorKind::InvalidKey).
        pub fn max_name(mut self, bytes: usize) -> Self {
            self.space.max_name = bytes;
            self
        }
    };
}

pub(super) use {guard, inspection, name_settings, settings};
