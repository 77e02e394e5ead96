use tokio::time::Instant;

use super::trusted;
use crate::{
    backend::{HANDOVER_LIFE, Handover},
    time::after,
};

/// A queue entry at the backend, as far as its waiter knows of it.
///
/// A release may hand the lease over to the first waiter in the queue. The push says when that
/// lease ends, counted from the time at which the entry was taken. The waiter knows since when it
/// waits, so it knows until when it has the lease, and need not ask.
///
/// The invariant is that of the renewals: the count begins at a monotonic time *before* the first
/// request that may have taken the entry. So a late push tells of a lease that has ended. A push
/// that is older than a holder that was in the way is not trusted either.
#[derive(Default)]
pub(super) struct HandoverCheck {
    /// A time before the first request.
    since: Option<Instant>,
    /// The greatest fence that was in the way, once another holder was.
    met: Option<u64>,
}

impl HandoverCheck {
    /// Notes a request that may take the entry, sent at `sent`.
    pub(super) fn asked(&mut self, sent: Instant) {
        self.since.get_or_insert(sent);
    }

    /// Notes that a holder with this fence was in the way, so that the entry was taken or kept.
    pub(super) fn met(&mut self, fence: u64) {
        self.met = self.met.max(Some(fence));
    }

    /// Returns whether another holder was in the way.
    pub(super) fn has_met_holder(&self) -> bool {
        self.met.is_some()
    }

    /// Returns until when a lease that was handed over is held. Returns `None` if the handover
    /// cannot be trusted or is nearly over; the waiter then asks the backend.
    pub(super) fn trusts(&self, handover: &Handover) -> Option<Instant> {
        let now = Instant::now();
        // Never longer than a push without delay is trusted. The clock of the server may be set
        // forward during the wait, and the clock of this process may stand still.
        let until = after(self.since?, trusted(handover.ends)).min(now + trusted(HANDOVER_LIFE));
        let left = until.saturating_duration_since(now);
        let is_newer = self.met.is_none_or(|met| handover.fence > met);
        (left >= HANDOVER_LIFE / 2 && is_newer).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::Owner;

    fn handover(fence: u64, ends: Duration) -> Handover {
        Handover { owner: Owner::fresh(), fence, ends }
    }

    /// The answer to the first request is late, and so is the push.
    #[tokio::test(start_paused = true)]
    async fn a_handover_is_counted_from_before_the_first_request() {
        let mut check = HandoverCheck::default();
        assert_eq!(check.trusts(&handover(8, HANDOVER_LIFE)), None);
        let sent = Instant::now();
        check.asked(sent);
        tokio::time::sleep(HANDOVER_LIFE / 4).await;
        check.met(7);
        assert!(check.has_met_holder());
        // A second request keeps the entry.
        check.asked(Instant::now());
        let until = check.trusts(&handover(8, HANDOVER_LIFE)).unwrap();
        assert!(until < sent + HANDOVER_LIFE);
        assert_eq!(check.trusts(&handover(7, HANDOVER_LIFE)), None, "that one was met");
        tokio::time::sleep(HANDOVER_LIFE / 2).await;
        assert_eq!(check.trusts(&handover(8, HANDOVER_LIFE)), None, "too little is left");
        let until = check.trusts(&handover(9, 2 * HANDOVER_LIFE)).unwrap();
        assert!(until < sent + 2 * HANDOVER_LIFE && until > sent + HANDOVER_LIFE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handover_is_trusted_no_longer_than_it_lasts() {
        let mut check = HandoverCheck::default();
        check.asked(Instant::now());
        check.met(7);
        let now = Instant::now();
        for ends in [2 * HANDOVER_LIFE, Duration::from_secs(3600), Duration::MAX] {
            let until = check.trusts(&handover(8, ends)).unwrap();
            assert!(until < now + HANDOVER_LIFE && until > now + HANDOVER_LIFE / 2);
        }
    }

    /// Two clocks that both count the wait run apart by up to a hundredth of it.
    #[tokio::test(start_paused = true)]
    async fn after_a_long_wait_the_waiter_asks() {
        let mut check = HandoverCheck::default();
        check.asked(Instant::now());
        check.met(7);
        let long = 110 * HANDOVER_LIFE / 2;
        tokio::time::sleep(long).await;
        assert_eq!(check.trusts(&handover(8, long + HANDOVER_LIFE)), None);
        assert!(check.trusts(&handover(8, long + 2 * HANDOVER_LIFE)).is_some());
    }
}
