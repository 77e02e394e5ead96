//! The refreshes of a cache, which run in the background.
//!
//! A refresh is a flight of a group of its own, so there is one for each key at most. Its callers
//! do not wait for it: they have been served. A refresh that a caller asks for is apart from the
//! others, because what they read from the origin may be older. A refresh of the background claims
//! the lease without waiting. If another process has it, the key is quiet in this process until
//! that lease ends. The lots of the processes keep most of them from claiming at all.

use std::{sync::OnceLock, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{outcome::Outcome, quiet::QuietKeys};
use crate::{
    flight::{Abandoned, Follower, Group, Joined, Leader, Limits},
    key::Key,
};

pub(super) struct Refreshes<V> {
    flights: Group<Outcome<V>>,
    quiet: OnceLock<QuietKeys>,
    /// Cancelled when the cache is shut down.
    stop: CancellationToken,
}

/// The caller of a refresh, and its duty to land it.
type Begun<V> = (Follower<Outcome<V>>, Leader<Outcome<V>>);

impl<V> Default for Refreshes<V> {
    fn default() -> Self {
        Self {
            // No caller follows a refresh.
            flights: Group::new(Abandoned::Finish, Limits::NONE),
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

    /// Begins a refresh that a caller has asked for, apart from those that are under way. Returns
    /// `None` if the cache is shut down.
    pub(super) fn begin_anew(&self, key: &Key) -> Option<Begun<V>> {
        loop {
            self.flights.detach(key);
            if let Joined { follower, leader: Some(leader) } = self.flights.join(key).ok()? {
                return Some((follower, leader));
            }
        }
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
