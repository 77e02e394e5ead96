use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::SetOnce,
    time::{Instant, sleep_until, timeout},
};

use super::{Engine, Release, Upkeep, queue::Slot, trusted};
use crate::{backend::Renewal, error::Error, sync::lock, time::after};

/// The least pause before a renewal that failed is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// A lease that is held: how long it lasts, and whether it is lost.
///
/// Each guard of one lock dereferences to its lease.
///
/// # Examples
///
/// ```
/// # use bellwether::{Error, Locks};
/// # async fn write(_stock: u32, _fence: u64) {}
/// # async fn import(_: &str) -> u32 { 3 }
/// async fn change_stock(locks: &Locks) -> Result<(), Error> {
///     let guard = locks.mutex("stock:42").lock().await?;
///     tokio::select! {
///         // The store refuses a write with a smaller fencing token than it has seen.
///         () = write(7, guard.fence()) => {}
///         () = guard.lost() => println!("another holder may have the lock"),
///     }
///     guard.renew().await?;
///     let imported = guard.run(import("products.csv")).await?;
/// #   let _ = imported;
///     guard.unlock().await
/// }
/// ```
pub struct Lease {
    pub(crate) engine: Arc<Engine>,
    pub(crate) release: Release,
    pub(crate) granted: Granted,
    pub(super) ends: Instant,
    pub(super) lost: SetOnce<()>,
    pub(super) times: Mutex<Times>,
    /// The holder's slot in the local queue. A loss gives it up, so that a stuck holder does not
    /// keep the next callers from contending. A fixed lease is told of no loss, and has no slot.
    pub(super) slot: Mutex<Option<Slot>>,
}

#[derive(Clone, Copy)]
pub(super) struct Times {
    /// When the lease counts as lost unless it is renewed before.
    pub(super) deadline: Instant,
    /// The timer that the renewals have set for it.
    pub(super) timer: Instant,
    pub(super) renewing: bool,
}

/// A grant: its fence, and since when the lease counts.
#[derive(Clone, Copy)]
pub(crate) struct Granted {
    pub(crate) upkeep: Upkeep,
    pub(crate) fence: u64,
    /// A time before the request that was granted.
    pub(crate) since: Instant,
    /// When the lease ends, if a holder handed it over for less than its full time.
    pub(crate) until: Option<Instant>,
}

impl Lease {
    /// Completes when the lease is lost: it could not be renewed in time, or the server no longer
    /// has it. From then on, others may hold the lock. Also completes when the lease is released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) {
        loop {
            let deadline = lock(&self.times).deadline;
            tokio::select! {
                _ = self.lost.wait() => return,
                () = sleep_until(deadline) => if self.is_lost() { return },
            }
        }
    }

    /// Returns `true` if the lease is lost or released.
    pub fn is_lost(&self) -> bool {
        self.lost.initialized() || lock(&self.times).deadline <= Instant::now()
    }

    /// Returns how long the lease is certain to last if no renewal succeeds. Zero if it is lost.
    ///
    /// This is less than at the server, by 1 % of the lease and 2 ms, because two clocks differ in
    /// their pace, and by the time since the request of the last renewal. So this process counts
    /// the lease as lost before the server grants it again.
    pub fn remaining(&self) -> Duration {
        let left = lock(&self.times).deadline.saturating_duration_since(Instant::now());
        if self.is_lost() { Duration::ZERO } else { left }
    }

    /// Runs a future until it completes or the lease is [lost](Self::lost), and returns its output.
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
    pub async fn run<Work: Future>(&self, work: Work) -> Result<Work::Output, Error> {
        run_until(self.lost(), work).await.ok_or_else(|| self.lost_error())
    }

    /// Renews the lease now, instead of when its time comes.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](crate::lock#errors-and-cancel-safety), and:
    ///
    /// - [`Lost`](crate::ErrorKind::Lost) if the lease is no longer held.
    /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer. The lease is then
    ///   still held for the time that [remains](Self::remaining).
    pub async fn renew(&self) -> Result<(), Error> {
        if self.is_lost() {
            return Err(self.lost_error());
        }
        let (sent, claims) = (Instant::now(), std::slice::from_ref(&self.release.claim));
        let renewal = self.engine.backend.renew(claims);
        if let Ok(answer) = timeout(self.remaining(), renewal).await {
            self.engine.renewed(&[self], sent, &answer);
            // A term may have ended meanwhile.
            if answer?.first() == Some(&Renewal::Held) && !self.is_lost() {
                return Ok(());
            }
        }
        Err(self.lost_error())
    }

    pub(crate) fn lost_error(&self) -> Error {
        Error::lost(&self.release.claim.name.key())
    }

    pub(super) fn tell_lost(&self) {
        if self.lost.set(()).is_ok() {
            self.engine.counters.lost.add();
        }
        let slot = lock(&self.slot).take();
        drop(slot);
    }

    /// Extends the lease, which a request sent at `sent` has granted or renewed. Returns when to
    /// look at it next.
    pub(super) fn extend(&self, sent: Instant) -> Instant {
        let deadline = after(sent, trusted(self.release.claim.lease)).min(self.ends);
        let mut times = lock(&self.times);
        times.deadline = times.deadline.max(deadline);
        match self.granted.upkeep.renew_every {
            Some(every) if after(sent, every) < self.ends => times.deadline.min(after(sent, every)),
            _ => times.deadline,
        }
    }

    /// When to try a renewal again that has failed. A lease that was handed over has less than its
    /// full time left.
    pub(super) fn next_try(&self) -> Instant {
        let (deadline, now) = (lock(&self.times).deadline, Instant::now());
        let pause = (self.release.claim.lease / 20).min((deadline - now) / 8).max(RETRY);
        deadline.min(now + pause)
    }
}

/// Runs a future until it completes, or returns `None` if the end comes first.
pub(crate) async fn run_until<Work: Future>(
    end: impl Future<Output = ()>,
    work: Work,
) -> Option<Work::Output> {
    tokio::select! {
        biased;
        () = end => None,
        output = work => Some(output),
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", &self.release.claim.name.key())
            .field("fence", &self.granted.fence)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
