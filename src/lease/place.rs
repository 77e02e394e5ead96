use tokio::time::Instant;

use super::{Claim, Upkeep, drift};
use crate::time::after;

/// A place in a queue at the backend, as far as who waits in it knows of it.
///
/// A release may grant the lease to whoever is first in the queue, until his place would have ended. So he who knows
/// until when his place is kept, knows until when the lease is his, and need not ask for it.
///
/// The invariant is that of the watchdog: `until` is a monotonic time taken *before* the request was sent that kept
/// the place, plus the time for which a place is kept, less the drift. And the place was kept all the time: if it may
/// have ended in between, so may a grant, and word of that may be on its way still. Nor is a grant believed that is
/// older than a holder who was met.
#[derive(Default)]
pub(super) struct Place {
    until: Option<Instant>,
    /// It may have ended once.
    lapsed: bool,
    /// The greatest fence that was in the way.
    met: u64,
}

impl Place {
    /// The place is taken or kept, by a request sent at `sent` that met a holder with this fence.
    pub(super) fn keep(&mut self, claim: &Claim, sent: Instant, met: u64) {
        self.met = self.met.max(met);
        self.lapsed |= self.until.is_some_and(|until| until <= Instant::now());
        let life = claim.place_life();
        self.until = Some(after(sent, life.saturating_sub(drift(life))));
    }

    pub(super) fn is_taken(&self) -> bool {
        self.until.is_some()
    }

    /// Until when a lease that was granted to the place with this fence is held without another question; none, if
    /// there must be one, for it is not worth it or not safe.
    pub(super) fn grants(&self, claim: &Claim, upkeep: Upkeep, fence: u64) -> Option<Instant> {
        let life = claim.place_life();
        let left = |until: &Instant| until.saturating_duration_since(Instant::now());
        let worth = |until: &Instant| upkeep.refresh.is_some() && left(until) >= life / 2;
        let safe = claim.mode.is_ordered() && !self.lapsed && fence > self.met;
        self.until.filter(worth).filter(|_| safe)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        key::{Family, Key, Name, Namespace},
        lease::{Mode, PLACE_LIFE},
    };

    const UPKEEP: Upkeep =
        Upkeep { refresh: Some(Duration::from_secs(10)), max_hold: Duration::MAX };

    fn claim(mode: Mode, lease: Duration) -> Claim {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512).unwrap();
        Claim::new(name, mode, lease, lease)
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_lasts_no_longer_than_the_place_that_was_asked_for() {
        let fair = claim(Mode::Fair, 2 * PLACE_LIFE);
        let mut place = Place::default();
        assert_eq!(place.grants(&fair, UPKEEP, 8), None);
        let sent = Instant::now();
        // The answer comes late.
        tokio::time::sleep(PLACE_LIFE / 4).await;
        place.keep(&fair, sent, 7);
        let until = place.grants(&fair, UPKEEP, 8).unwrap();
        assert!(until < sent + PLACE_LIFE);
        assert_eq!(place.grants(&fair, UPKEEP, 7), None, "that one was met");
        tokio::time::sleep(PLACE_LIFE / 2).await;
        assert_eq!(place.grants(&fair, UPKEEP, 8), None, "too little is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_may_have_ended_grants_nothing_any_more() {
        let fair = claim(Mode::Fair, 2 * PLACE_LIFE);
        let mut place = Place::default();
        place.keep(&fair, Instant::now(), 7);
        tokio::time::sleep(PLACE_LIFE / 3).await;
        place.keep(&fair, Instant::now(), 7);
        assert!(place.grants(&fair, UPKEEP, 8).is_some());
        tokio::time::sleep(PLACE_LIFE).await;
        place.keep(&fair, Instant::now(), 7);
        assert_eq!(place.grants(&fair, UPKEEP, 8), None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_renewed_or_only_called_asks() {
        let mut place = Place::default();
        let now = Instant::now();
        let fair = claim(Mode::Fair, PLACE_LIFE);
        place.keep(&fair, now, 7);
        assert!(place.grants(&fair, UPKEEP, 8).is_some());
        assert_eq!(place.grants(&fair, Upkeep { refresh: None, ..UPKEEP }, 8), None);
        assert_eq!(place.grants(&claim(Mode::Exclusive, 3 * PLACE_LIFE), UPKEEP, 8), None);
    }
}
