//! The patience of a caller with a load, while there is an old value.
//!
//! Each caller has its own. When it is over, the caller leaves the flight and reads the value that
//! is stored.

use std::sync::Arc;

use futures_util::future::Either;
use tokio::time::{Instant, timeout_at};
use tracing::Span;

use super::{
    Loaded, core::Core, freshness::Rules, outcome::Outcome, run::AskedKey, settings::Options,
};
use crate::{flight::Follower, key::Key, spans, time::after};

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
) -> impl Future<Output = Option<Outcome<V>>> {
    let span = if leads { Span::none() } else { spans::load(key) };
    let waited = patiently(patience, core, key, follower);
    if span.is_disabled() {
        return Either::Left(waited);
    }
    let ends = |waited: &Option<Outcome<V>>, span: &Span| {
        if let Some(outcome) = waited {
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
) -> Option<Outcome<V>> {
    match patience {
        None => follower.wait().await,
        // In a box, which most callers do not need.
        Some(patience) => Box::pin(patience.wait(core, key, follower)).await,
    }
}

impl Patience {
    /// Begins the patience of a caller, if it has a limit.
    pub(super) fn of(options: &Options) -> Option<Box<Self>> {
        let limit = options.serve_stale_after?;
        Some(Box::new(Self { until: after(Instant::now(), limit), rules: options.rules }))
    }

    /// Waits for a flight, and after the limit reads the stored value, if one may be served.
    async fn wait<V: Clone + Send + Sync + 'static>(
        &self,
        core: &Arc<Core<V>>,
        key: &Key,
        follower: &mut Follower<Outcome<V>>,
    ) -> Option<Outcome<V>> {
        // A look that is slow has a limit of its own. A second one would ask the same server.
        follower.carry().await;
        if let Ok(waited) = timeout_at(self.until, follower.wait()).await {
            return waited;
        }
        let old: Option<Loaded<V>> = tokio::select! {
            biased;
            waited = follower.wait() => return waited,
            old = async {
                AskedKey::new(core, key, None).ok()?.in_place_of_slow_load(&self.rules).await
            } => old,
        };
        let Some(old) = old else { return follower.wait().await };
        tracing::debug!("the stale value is served, because the load is slow");
        follower.leave_behind();
        core.counters.slow.add();
        Some(Outcome::Value(old))
    }
}
