//! The releases of late, in case their server is replaced by one that does not know of them.
//!
//! A server replicates after it has replied. So a replica that is promoted may still have the lease
//! of an owner that was released, and its queue entry. No caller of that owner is left. The lease
//! would stand until its end, and each entry would be handed the lock in vain. An owner is not used
//! again once it was released, so each such release can safely be repeated at the new server.
//!
//! Only the time before the last release counts. A server may have been away for long before
//! another one takes its place.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use futures_util::{StreamExt, stream};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::debug;

use crate::{
    backend::{
        Claim, Leases,
        redis::{
            RedisBackend, RedisInner,
            client::{OnDemandTask, Replaced},
        },
    },
    error::Chain,
    key::{Family, Name},
    sync::lock,
    time::after,
};

/// A release is repeated if it came this long before the last one, or later.
const WINDOW: Duration = Duration::from_secs(1);
/// The most releases that are kept.
const MOST: usize = 1024;
/// How many releases are repeated at once.
const AT_ONCE: usize = 32;
/// How long after a replacement the releases are repeated. Other processes leave the old server in
/// this time. Until then it goes on granting, and the lease that stands at the new one keeps a
/// second holder out.
const GRACE: Duration = Duration::from_millis(250);
/// The pause after repetitions of which some failed. It doubles up to the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The releases of one backend, and the task that repeats them.
#[derive(Default)]
pub(in super::super) struct RecentReleases {
    kept: Mutex<KeptReleases>,
    task: OnDemandTask,
}

/// The last releases, the oldest first.
#[derive(Default)]
struct KeptReleases {
    releases: VecDeque<RecentRelease>,
    /// The number of the next one.
    next: u64,
}

struct RecentRelease {
    number: u64,
    claim: Claim,
    /// When it was answered.
    at: Instant,
    /// The server that answered, or `None` if that may be one that was replaced meanwhile.
    server: Option<usize>,
}

/// A release that the server of its name may not know of.
struct Repetition {
    number: u64,
    claim: Claim,
    /// The server that is to know of it.
    server: usize,
}

impl KeptReleases {
    /// Adds a release, and forgets old ones that the present server of their name knows of.
    fn note(&mut self, claim: Claim, server: Option<usize>, server_of: impl Fn(&Name) -> usize) {
        let now = Instant::now();
        while let Some(oldest) = self.releases.front()
            && (self.releases.len() >= MOST
                || now - oldest.at > WINDOW && oldest.is_known(&server_of))
        {
            self.releases.pop_front();
        }
        self.releases.push_back(RecentRelease { number: self.next, claim, at: now, server });
        self.next += 1;
    }

    /// Returns the releases to repeat. Forgets those whose leases have ended by themselves.
    fn due(&mut self, server_of: impl Fn(&Name) -> usize) -> Vec<Repetition> {
        let now = Instant::now();
        self.releases.retain(|release| release.is_known(&server_of) || release.stands_at(now));
        let unknown = self.releases.iter().filter(|release| !release.is_known(&server_of));
        let each = unknown.map(|release| Repetition {
            number: release.number,
            claim: release.claim.clone(),
            server: server_of(&release.claim.name),
        });
        // While no server serves a name, there is nothing to ask.
        each.filter(|repetition| repetition.server != 0).collect()
    }

    /// Notes that a release was repeated.
    fn repeated(&mut self, repetition: &Repetition) {
        let found = self.releases.binary_search_by_key(&repetition.number, |one| one.number);
        if let Some(release) = found.ok().and_then(|at| self.releases.get_mut(at)) {
            release.server = Some(repetition.server);
        }
    }
}

impl RecentRelease {
    fn is_known(&self, server_of: impl Fn(&Name) -> usize) -> bool {
        self.server == Some(server_of(&self.claim.name))
    }

    /// Returns whether its lease or its queue entry may still stand somewhere.
    fn stands_at(&self, now: Instant) -> bool {
        now < after(self.at, self.claim.lease.max(self.claim.queue_entry_life()))
    }
}

impl RedisBackend {
    /// Keeps a release that took so long, unless the server is a fixed one.
    pub(super) fn note_release(&self, claim: &Claim, took: Duration) {
        let servers = &self.0.servers;
        let Some(replacements) = servers.replacements() else { return };
        // A majority asks again under an owner that has left the queue.
        if claim.name.family() == Family::Redlock {
            return;
        }
        let now = Instant::now();
        let sent = now.checked_sub(took).unwrap_or(now);
        let server = servers.server_of(&claim.name);
        // The answer may be that of the server before.
        let known = (!replacements.came_after(sent)).then_some(server);
        let recent = &self.0.recent;
        lock(&recent.kept).note(claim.clone(), known, |name| servers.server_of(name));
        let start = || keep_repeating(Arc::downgrade(&self.0), replacements.watch());
        recent.task.start(start);
        if known != Some(servers.server_of(&claim.name)) {
            replacements.wake();
        }
    }

    /// Repeats the releases that their servers may not know of. Returns whether none is left.
    async fn repeat_releases(&self) -> bool {
        let servers = &self.0.servers;
        let due = lock(&self.0.recent.kept).due(|name| servers.server_of(name));
        let count = due.len();
        let repetitions = stream::iter(due).map(async |repetition| {
            let answer = self.release(&repetition.claim).await;
            match &answer {
                Ok(_) => lock(&self.0.recent.kept).repeated(&repetition),
                Err(error) => debug!(error = %Chain(error), "a release was not repeated"),
            }
            answer.is_ok()
        });
        let answers: Vec<_> = repetitions.buffer_unordered(AT_ONCE).collect().await;
        if count > 0 {
            debug!(count, "the server was replaced, and the last releases were repeated");
        }
        answers.into_iter().all(|is_answered| is_answered)
    }
}

/// Repeats the last releases whenever a server was replaced.
async fn keep_repeating(backend: Weak<RedisInner>, mut replaced: watch::Receiver<Replaced>) {
    let mut pause = FIRST_PAUSE;
    loop {
        replaced.mark_unchanged();
        let Some(inner) = backend.upgrade() else { return };
        if !RedisBackend(inner).repeat_releases().await {
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            continue;
        }
        pause = FIRST_PAUSE;
        if replaced.changed().await.is_err() {
            return;
        }
        sleep(GRACE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::Mode,
        error::Error,
        key::{Key, Namespace},
    };

    const MS: Duration = Duration::from_millis(1);
    const LEASE: Duration = Duration::from_secs(30);

    fn claim() -> Result<Claim, Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        Ok(Claim::new(name, Mode::Exclusive, LEASE, LEASE))
    }

    fn owners(kept: &KeptReleases) -> Vec<u64> {
        kept.releases.iter().map(|release| release.number).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_releases_of_the_last_second_are_kept() -> Result<(), Error> {
        let mut kept = KeptReleases::default();
        for _ in 0..8 {
            kept.note(claim()?, Some(1), |_| 1);
            sleep(400 * MS).await;
        }
        assert_eq!(owners(&kept), [5, 6, 7]);
        // However long the server was away, they are those before the last one.
        sleep(LEASE / 2).await;
        assert_eq!(kept.due(|_| 2).len(), 3);
        kept.note(claim()?, Some(2), |_| 2);
        assert_eq!(owners(&kept), [5, 6, 7, 8], "those that are not repeated yet stay");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_releases_is_bounded() -> Result<(), Error> {
        let mut kept = KeptReleases::default();
        for _ in 0..3 * MOST {
            kept.note(claim()?, Some(1), |_| 2);
        }
        assert_eq!(kept.releases.len(), MOST);
        assert_eq!(kept.due(|_| 2).first().map(|first| first.number), Some(2 * MOST as u64));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn each_release_is_repeated_once_at_each_further_server() -> Result<(), Error> {
        let mut kept = KeptReleases::default();
        kept.note(claim()?, Some(1), |_| 1);
        assert!(kept.due(|_| 1).is_empty(), "its server knows of it");
        assert!(kept.due(|_| 0).is_empty(), "no server serves the name");
        for server in [2, 3] {
            let due = kept.due(|_| server);
            assert_eq!(due.len(), 1);
            due.iter().for_each(|repetition| kept.repeated(repetition));
            assert!(kept.due(|_| server).is_empty());
        }
        // The server was replaced before the answer came, so it may be that of the server before.
        kept.note(claim()?, None, |_| 3);
        let due = kept.due(|_| 3);
        assert_eq!(due.iter().map(|repetition| repetition.number).collect::<Vec<_>>(), [1]);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_is_not_repeated_after_the_end_of_its_lease() -> Result<(), Error> {
        let mut kept = KeptReleases::default();
        kept.note(claim()?, Some(1), |_| 1);
        sleep(LEASE + MS).await;
        assert!(kept.due(|_| 2).is_empty());
        assert_eq!(owners(&kept), [0; 0]);
        Ok(())
    }
}
