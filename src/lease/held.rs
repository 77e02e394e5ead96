//! A lease that is held: how long it lasts, and whether it is lost.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::SetOnce,
    time::{Instant, sleep_until},
};
use tracing::warn;

use super::{Acquisition, Granted, Release, Upkeep, acquisition::SOON, local_queue::Slot, trusted};
use crate::{
    backend::Renewal,
    error::{BackendError, Error},
    observe::LockCounters,
    sync::lock,
    time::after,
};

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
    pub(crate) release: Release,
    pub(crate) granted: Granted,
    pub(crate) upkeep: Upkeep,
    /// When the lease ends, because it may not be held for longer in all.
    ends: Instant,
    pub(super) lost: SetOnce<()>,
    pub(super) times: Mutex<Times>,
    /// The holder's slot in the local queue. The renewals give the slot up when the lease is lost,
    /// so that the next callers contend although the holder is stuck. A fixed lease has no slot,
    /// because it is never passed on.
    pub(super) slot: Mutex<Option<Slot>>,
    counters: Arc<LockCounters>,
}

#[derive(Clone, Copy)]
pub(super) struct Times {
    /// When the lease counts as lost unless it is renewed before.
    pub(super) deadline: Instant,
    /// The time by which the schedule of the renewals finds the lease.
    pub(super) timer: Instant,
    /// A renewal is under way.
    pub(super) is_renewing: bool,
    /// The lease is being converted to another mode. A renewal behind that request would be taken
    /// for a loss.
    pub(super) is_converting: bool,
    /// The backend may have ended the lease. A renewal finds out, also of a fixed lease.
    pub(super) is_in_doubt: bool,
}

impl Lease {
    /// Completes when the lease is lost: no renewal came in time, or the server no longer has the
    /// lease. From then on, another caller may hold the lock. Also completes when the lease is
    /// released.
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
        let is_over = self.is_over();
        // The first call after the deadline reports the loss, because no task may have seen it yet.
        // A loss that was reported is final: a late answer to a renewal does not undo the loss.
        if is_over && self.note_loss() && self.upkeep.renew_every.is_some() {
            let name = &self.release.claim.name;
            warn!(?name, "lease lost: it could not be renewed in time");
        }
        is_over
    }

    /// Returns how long the lease is certain to last if no renewal succeeds. Zero if the lease is
    /// lost.
    ///
    /// At the server, the lease lasts longer: by 1 % of the lease and 2 ms, because two clocks
    /// differ in their pace, and by the time that the last renewal took. So this process counts the
    /// lease as lost before the server grants it again.
    pub fn remaining(&self) -> Duration {
        let left = lock(&self.times).deadline.saturating_duration_since(Instant::now());
        if self.is_lost() { Duration::ZERO } else { left }
    }

    /// Runs a future until it completes or the lease is [lost](Self::lost), and returns its output.
    ///
    /// At a loss the future is dropped where it waits. Code that does not wait runs on until its
    /// next wait. So a write that must not come late needs a fencing token as well.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lease was lost before the future completed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops `work`. The lock stays held.
    pub async fn run<Work: Future>(&self, work: Work) -> Result<Work::Output, Error> {
        run_until(self.lost(), work).await.ok_or_else(|| self.lost_error())
    }

    /// Renews the lease now, before its next renewal is due.
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
        let sent = Instant::now();
        let claims = std::slice::from_ref(&self.release.claim);
        let answer = self.run(self.release.janitor.backend.renew(claims)).await?;
        let renewal = renewal_at(&answer, 0);
        self.renewed(sent, renewal);
        if renewal == Renewal::Held {
            // The holder has renewed the lease itself, so a fixed lease lasts longer as well.
            self.extend(sent);
        }
        answer?;
        // The lease may have been released meanwhile, such as the lease of a term.
        let is_held = renewal == Renewal::Held && !self.is_lost();
        if is_held { Ok(()) } else { Err(self.lost_error()) }
    }

    pub(crate) fn lost_error(&self) -> Error {
        Error::lost(&self.release.claim.name.key())
    }

    /// Creates the hold of a granted lease, and settles the acquisition. `slot` is the slot of the
    /// local queue, if the mode has a local queue. Returns `None` if the acquisition was granted
    /// nothing.
    pub(super) fn new(
        acquisition: &mut Acquisition,
        upkeep: Upkeep,
        mut slot: Option<Slot>,
        counters: Arc<LockCounters>,
    ) -> Option<Self> {
        let granted = acquisition.granted()?;
        let ends = after(granted.since, upkeep.max_hold);
        // This is for a moment only, because `first_check` sets the deadline of a full lease.
        let deadline = granted.ends_early.unwrap_or(granted.since).min(ends);
        if upkeep.renew_every.is_none() {
            slot = None;
        }
        if let Some(slot) = &slot {
            slot.note_guard();
        }
        let times = Times {
            deadline,
            timer: granted.since,
            is_renewing: false,
            is_converting: false,
            is_in_doubt: false,
        };
        Some(Self {
            release: acquisition.settle(),
            granted,
            upkeep,
            ends,
            lost: SetOnce::new(),
            times: Mutex::new(times),
            slot: Mutex::new(slot),
            counters,
        })
    }

    /// Begins the time of a new lease, and returns when the renewals check the lease first. A lease
    /// that was handed over is short, and is renewed soon.
    pub(super) fn first_check(&self) -> Instant {
        let Granted { since, ends_early, .. } = self.granted;
        if ends_early.is_none() {
            return self.extend(since);
        }
        let soon = self.upkeep.renew_every.map_or(SOON, |every| every.min(SOON));
        lock(&self.times).deadline.min(since + soon)
    }

    /// Notes the answer to a renewal that was sent at `sent`. Returns when the renewals check the
    /// lease next, or `None` if the lease is lost. A fixed lease is not extended, because its
    /// renewal only showed whether the server has the lease.
    pub(super) fn renewed(&self, sent: Instant, renewal: Renewal) -> Option<Instant> {
        match renewal {
            Renewal::Held if self.upkeep.renew_every.is_none() => Some(lock(&self.times).deadline),
            Renewal::Held => {
                self.counters.renewed.add();
                Some(self.extend(sent))
            }
            Renewal::NotHeld => {
                if self.note_loss() {
                    let name = &self.release.claim.name;
                    warn!(?name, "lease lost: the server no longer has it");
                }
                self.give_slot_up();
                None
            }
            Renewal::Unknown => {
                self.counters.unrenewed.add();
                Some(self.next_try())
            }
        }
    }

    /// Returns whether the lease was lost or released, or its deadline has passed. The method
    /// reports no loss, because the operation for which a lease was closed may have ended the lease
    /// in time.
    pub(super) fn is_over(&self) -> bool {
        self.lost.initialized() || lock(&self.times).deadline <= Instant::now()
    }

    /// Returns whether the lease may be renewed and held for longer.
    pub(super) fn is_renewable(&self, now: Instant) -> bool {
        self.upkeep.renew_every.is_some() && now < self.ends
    }

    /// Gives up the slot of a lost lease.
    pub(super) fn give_slot_up(&self) {
        let slot = lock(&self.slot).take();
        drop(slot);
    }

    /// Completes [`lost`](Self::lost). Returns whether this call did so.
    fn note_loss(&self) -> bool {
        let is_new = self.lost.set(()).is_ok();
        if is_new {
            self.counters.lost.add();
        }
        is_new
    }

    /// Extends the lease, which a request sent at `sent` has granted or renewed. Returns when the
    /// renewals check the lease next.
    fn extend(&self, sent: Instant) -> Instant {
        #[cfg(bellwether_sim)]
        let sent = if crate::sim::is_planted("late-deadline") { Instant::now() } else { sent };
        let deadline = after(sent, trusted(self.release.claim.lease)).min(self.ends);
        let mut times = lock(&self.times);
        times.deadline = times.deadline.max(deadline);
        let Some(every) = self.upkeep.renew_every else { return times.deadline };
        let renewal = after(sent, every);
        if renewal < self.ends { times.deadline.min(renewal) } else { times.deadline }
    }

    /// Returns when to repeat a renewal that has failed. A lease that was handed over has less than
    /// its full time left.
    pub(super) fn next_try(&self) -> Instant {
        let deadline = lock(&self.times).deadline;
        let now = Instant::now();
        let pause = (self.release.claim.lease / 20).min((deadline - now) / 8).max(RETRY);
        deadline.min(now + pause)
    }
}

/// Returns what the answer to a renewal says of the claim at this position. A claim beyond the end
/// of a short answer is not held.
pub(super) fn renewal_at(answer: &Result<Vec<Renewal>, BackendError>, at: usize) -> Renewal {
    match answer {
        Ok(renewals) => renewals.get(at).copied().unwrap_or(Renewal::NotHeld),
        Err(_) => Renewal::Unknown,
    }
}

/// Runs a future until it completes. Returns `None` if `end` completes first.
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
