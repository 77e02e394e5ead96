//! The patience of a caller with a load, while there is an old value.
//!
//! Each caller has its own. When it is over, the caller leaves the flight and looks for the value
//! that is stored. All that do so at once share one look.

use std::{sync::Arc, time::Duration};

use futures_util::future::Either;
use tokio::time::{Instant, timeout_at};
use tracing::Span;

use super::{
    Loaded, Source,
    core::{Core, Decision},
    freshness::Rules,
    outcome::Outcome,
    run::look::stored,
    settings::Options,
};
use crate::{
    flight::{Follower, Joined, Leader, Waited},
    key::{Key, Name},
    spans,
    time::after,
};

/// How many looks of callers with other rules a caller waits for, before it looks for itself.
const MOST_OTHERS: u8 = 3;

/// Until when a caller waits, and which stored values it accepts after that.
pub(super) struct Patience {
    until: Instant,
    rules: Rules,
}

/// Waits for the end of a flight, as long as the patience of its caller lasts. A caller that leads
/// has the span of its load, and no other.
pub(super) fn wait<V: Clone + Send + Sync + 'static>(
    patience: Option<&Patience>,
    core: &Arc<Core<V>>,
    key: &Key,
    follower: &mut Follower<Outcome<V>>,
    leads: bool,
) -> impl Future<Output = Waited<Outcome<V>>> {
    let span = if leads { Span::none() } else { spans::load(key) };
    let waited = patiently(patience, core, key, follower);
    if span.is_disabled() {
        return Either::Left(waited);
    }
    let ends = |waited: &Waited<Outcome<V>>, span: &Span| {
        if let Waited::Outcome(outcome) = waited {
            outcome.ends(span, false);
        }
    };
    // In a box, which callers need only where spans are collected.
    Either::Right(Box::pin(spans::within(span, waited, ends)))
}

async fn patiently<V: Clone + Send + Sync + 'static>(
    patience: Option<&Patience>,
    core: &Arc<Core<V>>,
    key: &Key,
    follower: &mut Follower<Outcome<V>>,
) -> Waited<Outcome<V>> {
    match patience {
        None => follower.wait().await,
        // In a box, which most callers do not need.
        Some(patience) => Box::pin(patience.wait(core, key, follower)).await,
    }
}

impl Patience {
    /// Begins the patience of a caller, if it has a limit.
    pub(super) fn of(options: &Options) -> Option<Box<Self>> {
        let limit: Duration = options.serve_stale_after?;
        Some(Box::new(Self { until: after(Instant::now(), limit), rules: options.rules }))
    }

    /// Waits for a flight, and after the limit takes the stored value, if one may be served.
    pub(super) async fn wait<V: Clone + Send + Sync + 'static>(
        &self,
        core: &Arc<Core<V>>,
        key: &Key,
        follower: &mut Follower<Outcome<V>>,
    ) -> Waited<Outcome<V>> {
        // A look that is slow has a limit of its own. A second one would ask the same server.
        follower.carry().await;
        if let Ok(waited) = timeout_at(self.until, follower.wait()).await {
            return waited;
        }
        let old = tokio::select! {
            biased;
            waited = follower.wait() => return waited,
            old = self.old(core, key) => old,
        };
        let Some(old) = old else { return follower.wait().await };
        tracing::debug!("the stale value is served, because the load is slow");
        follower.leave_behind();
        core.counters.slow.add();
        Waited::Outcome(Outcome::Value(old))
    }

    /// Looks for the stored value, together with other callers.
    async fn old<V: Clone + Send + Sync + 'static>(
        &self,
        core: &Arc<Core<V>>,
        key: &Key,
    ) -> Option<Loaded<V>> {
        let name = core.name(key).ok()?;
        let mut others = 0;
        loop {
            let Joined { mut follower, leader } = core.looks.join(key).ok()?;
            if let Some(leader) = leader {
                let look =
                    look_for_all(Arc::clone(core), leader, key.clone(), name.clone(), self.rules);
                follower.lead(Box::pin(look));
            }
            match follower.wait().await {
                Waited::Outcome((rules, old)) if rules == self.rules => return old,
                // The look was for callers that accept other values. The next one may be for these.
                Waited::Outcome(_) if others < MOST_OTHERS => others += 1,
                Waited::Outcome(_) => return look(core, key, &name, &self.rules).await,
                Waited::JoinAgain => {}
            }
        }
    }
}

/// Looks for the callers that have joined, and once more for those that join meanwhile.
async fn look_for_all<V: Clone + Send + Sync + 'static>(
    core: Arc<Core<V>>,
    leader: Leader<(Rules, Option<Loaded<V>>)>,
    key: Key,
    name: Name,
    rules: Rules,
) {
    let look = async || (rules, look(&core, &key, &name, &rules).await);
    let epoch = leader.begin_epoch();
    if let Some(late) = leader.land(look().await, epoch) {
        late.land(Some(look().await));
    }
}

async fn look<V: Clone + Send + Sync + 'static>(
    core: &Core<V>,
    key: &Key,
    name: &Name,
    rules: &Rules,
) -> Option<Loaded<V>> {
    let shard = core.shard(name);
    let remembered = || {
        let decision = core.recall(key, name, rules, shard.breaker.outage()?)?;
        served(decision).map(|old| Loaded { source: Source::Degraded, ..old })
    };
    // To ask a silent server takes as long as its time-out, so the memory comes first.
    if shard.breaker.is_silent()
        && let Some(old) = remembered()
    {
        return Some(old);
    }
    match stored(core, &shard, key, name, rules).await {
        Decision::Unanswered(_) => remembered(),
        decision => served(decision),
    }
}

/// Returns the value of a decision that may stand in for a slow load.
fn served<V: Clone + 'static>(decision: Decision<V>) -> Option<Loaded<V>> {
    let (value, record, source) = match decision {
        Decision::Old(known) => (known.in_place_of_failure()?, known.record, known.source),
        decision => decision.value()?,
    };
    Some(Loaded { value, source, record })
}
