//! The end of the leader's way: run the loader, under the lease or alone, and commit what it made.

use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::{debug, warn};

use super::{
    Decision, Lead, Source,
    breaker::Answered,
    load::{self, Produced},
    path::{Landing, Outcome, Path, second_try, silence},
};
use crate::{
    backend::{Committed, Entry, Failure, Grant, in_time},
    error::{BackendError, BackendErrorKind, Error},
    flight::Epoch,
    lease::LeaseGuard,
};

impl<V: Clone + Send + Sync + 'static> Path<V> {
    /// Loads under the lease, and commits.
    pub(super) async fn load<F, Fut>(&self, work: F, held: LeaseGuard, granted: Epoch) -> Landing<V>
    where
        F: FnOnce(Lead) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        let lead = Lead::new(Some(held.record().clone()));
        let begun = Instant::now();
        self.inner.counters.loads.add();
        let limit = self.options.load_limit;
        let produced = load::run(work, lead.clone(), limit, Some(self.leader.id())).await;
        let cost = begun.elapsed();
        // The lease is renewed until it is our turn.
        let _turn = self.shard.turn().await;
        held.closing();
        let settings = &self.inner.settings;
        match produced {
            Ok(Produced::Value(value)) => {
                let keeping = lead.keeping();
                let ttl = keeping.ttl.unwrap_or(self.options.ttl);
                let (entry, ttl) = match self.inner.encode(&value, cost) {
                    Ok(entry) if keeping.do_not_store => (entry, None),
                    Ok(entry) => (entry, Some(ttl)),
                    Err(error) => {
                        match self.inner.unstorable.first() {
                            true => {
                                warn!(error = %crate::error::Chain(&error), "a value is returned and not stored")
                            }
                            false => {
                                debug!(error = %crate::error::Chain(&error), "a value is returned and not stored")
                            }
                        }
                        self.inner.counters.unstorable.add();
                        let ttl = (!keeping.do_not_store).then_some(settings.uncacheable_ttl);
                        (Entry::uncacheable(cost), ttl)
                    }
                };
                self.commit(held, entry, ttl, value, granted).await
            }
            Ok(Produced::Uncacheable) => {
                let verdict = Entry::uncacheable(cost);
                let grant = Grant::new(held.fence());
                let remembered = !lead.keeping().do_not_store;
                let ttl = remembered.then_some(settings.uncacheable_ttl);
                let told = self.try_commit(&held, &grant, &verdict, ttl).await;
                if let Ok(Committed::Stored | Committed::HandedOver) = told {
                    held.settled();
                }
                (Outcome::Uncacheable, Epoch::END)
            }
            Err(error) => {
                self.inner.counters.failures.add();
                let failure = Failure::new(held.fence(), &error);
                let told = timeout(
                    settings.retry.try_limit(),
                    self.inner.store.fail(held.claim(), &failure),
                );
                if let Ok(Ok(_)) = told.await {
                    held.settled();
                }
                (Outcome::Failed(error), Epoch::END)
            }
        }
    }

    async fn commit(
        &self,
        held: LeaseGuard,
        entry: Entry,
        ttl: Option<Duration>,
        value: V,
        granted: Epoch,
    ) -> Landing<V> {
        let counters = &self.inner.counters;
        let grant = Grant::new(held.fence());
        // Whoever joins from here on is sent to look at what stands there then.
        let epoch = self.leader.begin_epoch();
        match self.try_commit(&held, &grant, &entry, ttl).await {
            Ok(Committed::Stored) => {
                held.settled();
                counters.stored.add();
                (Outcome::Value(value, Source::Led), epoch)
            }
            Ok(Committed::HandedOver) => {
                held.settled();
                if ttl.is_some() {
                    counters.unstored.add();
                }
                (Outcome::Value(value, Source::Led), epoch)
            }
            Ok(Committed::Newer(entry)) => {
                counters.refused.add();
                debug!(fence = entry.fence, "commit refused: a newer entry stands");
                match self.inner.decide(entry) {
                    Decision::Fresh(newer) => (Outcome::Value(newer, Source::HandedOver), epoch),
                    _ => (Outcome::Value(value, Source::Led), granted),
                }
            }
            Ok(Committed::Refused) => {
                // Invalidated, or the lease was lost: only for those who asked before the load began.
                counters.refused.add();
                debug!("commit refused: invalidated, or the lease was lost");
                (Outcome::Value(value, Source::Led), granted)
            }
            Err(error) => {
                counters.unstored.add();
                self.shard.breaker.failed(&error);
                // It may have been refused, for an invalidation that those who joined later know of.
                let late = Outcome::Value(value.clone(), Source::Degraded);
                let _ = self.for_late.set(late);
                (Outcome::Value(value, Source::Led), granted)
            }
        }
    }

    /// Commits, and again if the answer was lost: the second recognises the first.
    async fn try_commit(
        &self,
        held: &LeaseGuard,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let commit = |limit| async move {
            let commit = self.inner.store.commit(held.claim(), grant, entry, ttl);
            let answer = in_time(limit, commit).await;
            if answer.is_ok() {
                self.shard.breaker.answered(Answered::Write);
            }
            self.inner.counted(answer)
        };
        let (first, limit) = (Instant::now(), self.inner.settings.retry.try_limit());
        match commit(limit).await {
            Err(error) if error.kind() == BackendErrorKind::Unknown => {
                tokio::select! {
                    biased;
                    answer = commit(second_try(first, limit)) => answer,
                    () = self.shard.breaker.opened() => Err(silence()),
                }
            }
            answer => answer,
        }
    }

    /// Loads without a lease, for everyone in this process who waits.
    pub(super) async fn alone<F, Fut>(&self, work: F) -> Landing<V>
    where
        F: FnOnce(Lead) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        self.inner.counters.loads.add();
        let limit = self.options.load_limit;
        let produced = load::run(work, Lead::new(None), limit, Some(self.leader.id())).await;
        let outcome = match produced {
            Ok(Produced::Value(value)) => Outcome::Value(value, Source::Degraded),
            Ok(Produced::Uncacheable) => Outcome::Uncacheable,
            Err(error) => {
                self.inner.counters.failures.add();
                Outcome::Failed(error)
            }
        };
        (outcome, Epoch::END)
    }
}
