//! The refreshes of a cache, which run in the background.
//!
//! A refresh is a flight of a group of its own, so there is one for each key at most. Its callers
//! do not wait for it: they have been served. It claims the lease without waiting. If another
//! process has it, the key is quiet in this process until that lease ends. So a hot key costs the
//! fleet one claim for each process and refresh.

use std::{sync::OnceLock, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{outcome::Outcome, quiet::QuietKeys};
use crate::{
    flight::{Abandoned, Group, Leader, Limits},
    key::Key,
};

pub(super) struct Refreshes<V> {
    flights: Group<Outcome<V>>,
    quiet: OnceLock<QuietKeys>,
    /// Cancelled when the cache is shut down.
    stop: CancellationToken,
}

impl<V> Default for Refreshes<V> {
    fn default() -> Self {
        // No caller follows a refresh.
        let limits = Limits { per_flight: usize::MAX, in_all: usize::MAX };
        Self {
            flights: Group::new(Abandoned::Finish, limits),
            quiet: OnceLock::new(),
            stop: CancellationToken::new(),
        }
    }
}

impl<V> Refreshes<V> {
    /// Begins a refresh of the entry with this fence. Returns `None` if one is under way, if the
    /// key is quiet, or if the cache is shut down.
    pub(super) fn begin(&self, key: &Key, fence: u64) -> Option<Leader<Outcome<V>>> {
        if self.quiet.get().is_some_and(|quiet| quiet.contain(key, fence)) {
            return None;
        }
        self.flights.join(key).ok()?.leader
    }

    /// Lets no refresh of the entry with this fence begin in this process for a time.
    pub(super) fn silence(&self, key: &Key, fence: u64, time: Duration) {
        self.quiet.get_or_init(QuietKeys::default).add(key, fence, time);
    }

    /// Completes when the refreshes are to end.
    pub(super) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Ends the refreshes, and lets none begin any more.
    pub(super) fn close(&self) {
        self.flights.close();
        self.stop.cancel();
    }

    /// Returns when no refresh is under way. The refreshes must be [closed](Self::close).
    pub(super) async fn idle(&self) {
        self.flights.idle().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_has_one_refresh_at_a_time_and_none_after_the_end() {
        let refreshes = Refreshes::<u64>::default();
        let key = Key::from("one");
        let leader = refreshes.begin(&key, 1);
        assert!(leader.is_some() && refreshes.begin(&key, 1).is_none());
        drop(leader);
        assert!(refreshes.begin(&key, 1).is_some());
        refreshes.close();
        refreshes.stopped().await;
        assert!(refreshes.begin(&key, 1).is_none());
        refreshes.idle().await;
    }
}
