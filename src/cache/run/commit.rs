//! The commit of what a load made, which ends its lease.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::debug;

use super::{
    Landing, Run,
    look::{found, uncacheable},
    second_try, silence,
};
use crate::{
    backend::{Committed, Entry, Grant, answered_by},
    cache::{
        Loaded, Source,
        breaker::Answered,
        error_codec,
        outcome::{Outcome, Record},
    },
    error::{BackendError, BackendErrorKind, Error},
    flight::Epoch,
    lease::LeaseGuard,
};

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Commits a value that was loaded under a lease, granted in this epoch.
    pub(super) async fn commit(
        &self,
        guard: LeaseGuard,
        entry: Entry,
        ttl: Option<Duration>,
        value: V,
        granted: Epoch,
    ) -> Landing<V> {
        let counters = &self.core.counters;
        // Callers that join from here on get a look of their own.
        let committed = self.leader.begin_epoch();
        let answer = self.try_commit(&guard, &entry, ttl).await;
        let is_stored = matches!(answer, Ok(Committed::Stored));
        let record = Record::written(guard.fence(), &entry).map(|it| it.if_stored(is_stored));
        let led = |value| Loaded { value, source: Source::Led, record };
        match answer {
            Ok(Committed::Stored | Committed::Pushed) => {
                guard.settled();
                match is_stored {
                    true => counters.stored.add(),
                    false if ttl.is_some() => counters.unstored.add(),
                    false => {}
                }
                (Outcome::Value(led(value)), committed)
            }
            Ok(Committed::Newer(entry)) => {
                counters.refused.add();
                debug!(fence = entry.fence, "commit refused: a newer entry is stored");
                let newer = self.core.decide(&self.name, &self.options().rules, Ok(Some(entry)));
                match newer.value() {
                    Some((newer, record, _)) => (found(newer, Source::Received, record), committed),
                    None => (Outcome::Value(led(value)), granted),
                }
            }
            // Only for callers that asked before the load began.
            Ok(Committed::Refused) => {
                counters.refused.add();
                debug!("commit refused: the key was invalidated, or the lease lost");
                (Outcome::Value(led(value)), granted)
            }
            Err(error) => {
                counters.unstored.add();
                self.shard.breaker.failed(&error);
                // The commit may have been refused, for an invalidation that late joiners know of.
                let _ = self.for_late.set(Outcome::Value(Loaded::degraded(value.clone())));
                (Outcome::Value(led(value)), granted)
            }
        }
    }

    /// Commits that the load cannot be shared, and remembers it for this time.
    pub(super) async fn commit_uncacheable(
        &self,
        guard: LeaseGuard,
        cost: Duration,
        ttl: Option<Duration>,
    ) -> Landing<V> {
        let answer = self.try_commit(&guard, &Entry::uncacheable(cost), ttl).await;
        if let Ok(Committed::Stored | Committed::Pushed) = answer {
            guard.settled();
        }
        uncacheable()
    }

    /// Tells the processes that wait that the load failed.
    pub(super) async fn tell_failure(&self, guard: LeaseGuard, error: &Error) {
        let codec = self.core.error_codec.as_deref();
        let failure = error_codec::failure(codec, guard.fence(), error);
        let told = self.core.store.fail(guard.claim(), &failure);
        if let Ok(Ok(_)) = timeout(self.core.try_limit, told).await {
            guard.settled();
        }
    }

    /// Commits, and again if there was no answer. The backend recognises the second commit.
    async fn try_commit(
        &self,
        guard: &LeaseGuard,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let grant = Grant::new(guard.fence());
        let (core, breaker) = (&self.core, &self.shard.breaker);
        let backend = core.engine.backend().as_ref();
        let commit = |limit| {
            let committed = core.store.commit(guard.claim(), &grant, entry, ttl);
            async move {
                let answer = answered_by(backend, limit, committed).await;
                if answer.is_ok() {
                    breaker.answered(Answered::Write);
                }
                core.counted(answer)
            }
        };
        let (first, limit) = (Instant::now(), core.try_limit);
        match commit(limit).await {
            Err(error) if error.kind() == BackendErrorKind::Unknown => {
                tokio::select! {
                    biased;
                    answer = commit(second_try(first, limit)) => answer,
                    () = breaker.opened() => Err(silence()),
                }
            }
            answer => answer,
        }
    }
}
