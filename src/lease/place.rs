use std::time::Duration;

use tokio::time::Instant;

use super::{HANDOVER_LIFE, drift};
use crate::{backend::Handover, time::after};

/// A place in a queue at the backend, as far as who waits in it knows of it.
///
/// A release may hand the lease over to whoever is first in the queue. It says when that ends, counted from when the place
/// was taken: so he who knows since when he waits, knows until when the lease is his, and need not ask for it.
///
/// The invariant is that of the watchdog: what is counted from is a monotonic time taken *before* the first request was
/// sent that may have taken the place. So a push that is late tells of a lease that has ended. Nor is one believed that
/// is older than a holder who was met.
#[derive(Default)]
pub(super) struct Place {
    /// When it was first asked for.
    since: Option<Instant>,
    /// A request found someone in the way.
    taken: bool,
    /// The greatest fence that was in the way.
    met: u64,
}

impl Place {
    /// A request is sent that may take the place.
    pub(super) fn asked(&mut self, sent: Instant) {
        self.since.get_or_insert(sent);
    }

    /// A request met a holder with this fence, and has taken or kept the place.
    pub(super) fn keep(&mut self, met: u64) {
        self.taken = true;
        self.met = self.met.max(met);
    }

    pub(super) fn is_taken(&self) -> bool {
        self.taken
    }

    /// Until when a lease that was handed over is held without another question; none, if there must be one, for it is
    /// not worth it or not safe.
    pub(super) fn handed(&self, handover: &Handover) -> Option<Instant> {
        let trusted = |time: Duration| time.saturating_sub(drift(time));
        let now = Instant::now();
        // Never for longer than what comes without delay, should the server's clock be set forward while he waits, or his
        // own stand still.
        let until = after(self.since?, trusted(handover.ends)).min(now + trusted(HANDOVER_LIFE));
        let left = until.saturating_duration_since(now);
        (left >= HANDOVER_LIFE / 2 && handover.fence > self.met).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Owner;

    fn handover(fence: u64, ends: Duration) -> Handover {
        Handover { owner: Owner::fresh(), fence, ends }
    }

    /// He asks, and is answered late; he is first in the queue after a while, and the push is late as well.
    #[tokio::test(start_paused = true)]
    async fn a_handover_is_counted_from_before_the_first_question() {
        let mut place = Place::default();
        assert_eq!(place.handed(&handover(8, HANDOVER_LIFE)), None);
        let sent = Instant::now();
        place.asked(sent);
        tokio::time::sleep(HANDOVER_LIFE / 4).await;
        place.keep(7);
        assert!(place.is_taken());
        // He asks again, which keeps the place.
        place.asked(Instant::now());
        let until = place.handed(&handover(8, HANDOVER_LIFE)).unwrap();
        assert!(until < sent + HANDOVER_LIFE);
        assert_eq!(place.handed(&handover(7, HANDOVER_LIFE)), None, "that one was met");
        tokio::time::sleep(HANDOVER_LIFE / 2).await;
        assert_eq!(place.handed(&handover(8, HANDOVER_LIFE)), None, "too little is left");
        let until = place.handed(&handover(9, 2 * HANDOVER_LIFE)).unwrap();
        assert!(until < sent + 2 * HANDOVER_LIFE && until > sent + HANDOVER_LIFE);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_trusted_for_no_longer_than_it_lasts() {
        let mut place = Place::default();
        place.asked(Instant::now());
        place.keep(7);
        let now = Instant::now();
        for ends in [2 * HANDOVER_LIFE, Duration::from_secs(3600), Duration::MAX] {
            let until = place.handed(&handover(8, ends)).unwrap();
            assert!(until < now + HANDOVER_LIFE && until > now + HANDOVER_LIFE / 2);
        }
    }

    /// Two clocks that both count the wait run apart by up to a hundredth of it.
    #[tokio::test(start_paused = true)]
    async fn after_a_long_wait_he_asks() {
        let mut place = Place::default();
        place.asked(Instant::now());
        place.keep(7);
        let long = 110 * HANDOVER_LIFE / 2;
        tokio::time::sleep(long).await;
        assert_eq!(place.handed(&handover(8, long + HANDOVER_LIFE)), None);
        assert!(place.handed(&handover(8, long + 2 * HANDOVER_LIFE)).is_some());
    }
}
