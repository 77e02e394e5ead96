//! The look of a leader into the backend, and what it decides.

use std::pin::pin;

use tokio::sync::SemaphorePermit;

use super::{EpochOutcome, Run, Step, silence};
use crate::{
    cache::{
        Loaded, Source,
        breaker::RequestKind,
        core::{Core, Decision},
        freshness::Rules,
        outcome::{Alone, Outcome, Record},
        settings::OnUncacheable,
        shard::Shard,
        tags::Answered,
        uses::CountedUses,
    },
    error::Error,
    flight::Epoch,
    key::{Key, Name},
    sync::lock,
};

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Asks the backend for the entry.
    pub(super) async fn look(&self) -> Step<V> {
        let _turn = match self.shard.at_once.try_acquire() {
            Ok(turn) => Some(turn),
            // In a box, which most looks do not need.
            Err(_) => Box::pin(self.turn_to_look()).await,
        };
        // Pinned here, since a future holds its arguments twice.
        let stored = pin!(self.stored(&self.options().rules));
        match self.leader.ask(stored).await {
            (Some(Decision::Served(value, source, record)), epoch) => {
                Step::Land((found(value, source, record), epoch))
            }
            (Some(Decision::Refresh(value, source, known)), epoch) => {
                let landing = (found(value, source, known.record), epoch);
                Step::LandAndRefresh(landing, known)
            }
            (Some(decision), epoch) => self.decided(decision, epoch),
            (None, _) => self.away(),
        }
    }

    async fn turn_to_look(&self) -> Option<SemaphorePermit<'_>> {
        // A caller may stop polling the look, and would block the queue for all.
        self.leader.own_task().await;
        self.shard.turn().await
    }

    /// Asks for the entry that a refresh is to replace, and has none if there is no answer. The
    /// load needs a lease with a greater fence.
    pub(super) async fn look_for_old(&self, fence: u64) -> Step<V> {
        let turn = self.shard.turn().await;
        let epoch = self.leader.begin_epoch();
        let rules = Rules { replaces: true, ..self.options().rules };
        let old = match self.stored(&rules).await {
            Decision::Refresh(_, _, known) | Decision::Old(known) => Some(known),
            _ => None,
        };
        drop(turn);
        *lock(&self.known) = old.map(|known| (known, epoch));
        Step::Claim { seen: fence }
    }

    /// Returns the step that follows a decision.
    fn decided(&self, decision: Decision<V>, epoch: Epoch) -> Step<V> {
        match decision {
            // Another process has just made it.
            Decision::Served(value, _, record) => {
                Step::Land((found(value, Source::Received, record), epoch))
            }
            Decision::Refresh(value, _, known) => {
                Step::Land((found(value, Source::Received, known.record), epoch))
            }
            Decision::Old(known) => {
                if let Some(landing) = self.while_backing_off(&known, epoch) {
                    return Step::Land(landing);
                }
                let seen = known.fence;
                *lock(&self.known) = Some((known, epoch));
                Step::Claim { seen }
            }
            Decision::Miss { seen } => self.missed(seen),
            Decision::Unanswered(_) => self.away(),
            Decision::Uncacheable { seen } => match self.options().sharing.on_uncacheable {
                OnUncacheable::Coalesce => Step::LoadAlone(None),
                OnUncacheable::Pass => Step::Land(uncacheable()),
                OnUncacheable::Claim => Step::Claim { seen },
            },
        }
    }

    /// Returns the step that follows a miss.
    pub(super) fn missed(&self, seen: u64) -> Step<V> {
        let uses = self.options().min_uses.as_ref();
        match uses.is_none_or(CountedUses::count) {
            true => Step::Claim { seen },
            false => Step::LoadRare,
        }
    }

    /// Returns the step that follows an entry of another process, whose tags were asked for.
    pub(super) fn received(&self, answer: Answered, epoch: Epoch) -> Step<V> {
        // A push may be of an entry that is not stored, so it is not remembered.
        self.forget();
        let decision = self.core.decide(&self.name, &self.options().rules, answer);
        self.decided(decision, epoch)
    }

    /// Asks the backend for the entry.
    pub(super) fn stored(&self, rules: &Rules) -> impl Future<Output = Decision<V>> {
        stored(&self.core, &self.shard, self.leader.key(), &self.name, rules)
    }

    /// Looks once more, where this process may not load: another process may have loaded meanwhile.
    pub(super) async fn look_instead(&self, error: Error) -> EpochOutcome<V> {
        let _turn = self.shard.turn().await;
        let epoch = self.leader.begin_epoch();
        let decision = self.stored(&self.options().rules).await;
        match decision.value() {
            Some((value, record, Source::Hit)) => (found(value, Source::Received, record), epoch),
            Some((value, record, source)) => (found(value, source, record), epoch),
            None => self.full(error),
        }
    }
}

/// Returns the outcome with a value of an entry.
pub(super) fn found<V>(value: V, source: Source, record: Option<Record>) -> Outcome<V> {
    Outcome::Value(Loaded { value, source, record })
}

/// Returns the landing with a load that cannot be shared.
pub(super) fn uncacheable<V>() -> EpochOutcome<V> {
    (Outcome::Alone(Alone::Uncacheable), Epoch::END)
}

/// Asks the backend for an entry, unless it has not answered lately.
pub(in crate::cache) async fn stored<V: Clone + Send + Sync + 'static>(
    core: &Core<V>,
    shard: &Shard,
    key: &Key,
    name: &Name,
    rules: &Rules,
) -> Decision<V> {
    let breaker = &shard.breaker;
    if breaker.is_troubled() && !breaker.admits() {
        return Decision::Unanswered(silence());
    }
    let decision = core.read(key, name, rules).await;
    match &decision {
        Decision::Unanswered(error) => breaker.failed(error, &core.counters),
        _ if breaker.is_troubled() => breaker.answered(RequestKind::Read, &core.counters),
        _ => {}
    }
    decision
}
