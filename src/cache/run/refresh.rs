//! The refresh of an entry in the background, while its callers are served.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU32},
    },
    time::Duration,
};

use futures_util::FutureExt;
use tracing::{Instrument, Span, debug};

use super::{Run, Step};
use crate::{
    cache::{Lead, known::Known, loader::Produced, outcome::Outcome},
    error::Error,
    flight::{Epoch, Leader},
    spans,
};

/// How long a process does not refresh a key that does not back off, after a refresh made no value.
const PAUSE: Duration = Duration::from_secs(1);

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Begins to refresh an entry, unless that is under way or not to be tried now.
    pub(super) fn begin_refresh<F, Fut>(&self, work: F, known: Arc<Known<V>>)
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Produced<V>, Error>> + Send + 'static,
    {
        let key = self.leader.key();
        let Some(leader) = self.core.refreshes.begin(key, known.fence) else { return };
        let (refresh, span) = (self.refresh(leader, known), spans::refresh_behind(key));
        tokio::spawn(refresh.run_in_background(work, span.clone()).instrument(span));
    }

    /// Returns the run of a refresh.
    fn refresh(&self, leader: Leader<Outcome<V>>, known: Arc<Known<V>>) -> Self {
        Self {
            core: Arc::clone(&self.core),
            name: self.name.clone(),
            shard: Arc::clone(&self.shard),
            own: self.own.clone(),
            leader,
            for_late: OnceLock::new(),
            is_alone: false,
            waits: false,
            failures: AtomicU32::new(0),
            has_no_entry: AtomicBool::new(false),
            known: Mutex::new(Some((known, Epoch::END))),
            stood_in: OnceLock::new(),
            supersedes: None,
        }
    }

    async fn run_in_background<F, Fut>(self, work: F, span: Span)
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        // A panic of a codec ends the refresh, and nothing else.
        let rebuild = AssertUnwindSafe(self.rebuild(work)).catch_unwind();
        tokio::select! {
            biased;
            () = self.core.refreshes.stopped() => debug!("refresh cancelled by the shutdown"),
            rebuilt = rebuild => match rebuilt {
                Ok(Some(outcome)) => outcome.ends(&span, true),
                Ok(None) => spans::ended(&span, "not_begun", None),
                Err(_) => spans::ended(&span, "error", None),
            }
        }
    }

    /// Rebuilds the entry under the lease, if the process gets the lease and a permit at once.
    /// Returns `None` if it does not.
    async fn rebuild<F, Fut>(&self, work: F) -> Option<Outcome<V>>
    where
        F: FnOnce(Lead<V>) -> Fut,
        Fut: Future<Output = Result<Produced<V>, Error>>,
    {
        let Some(granted) = self.core.try_permit(self.options()) else {
            debug!("no refresh: too many loads are under way");
            return None;
        };
        let mut permit = Some(granted);
        let seen = self.known().map_or(0, |(known, _)| known.fence);
        let step = self.claim(seen, &mut permit).await;
        let Step::Load(guard, granted) = step else { return None };
        self.core.counters.refreshes.add();
        let (outcome, _) = self.load(work, guard, granted).await;
        let is_settled = match &outcome {
            Outcome::Value(_) => true,
            // The key backs off.
            Outcome::Failed(error) => error.retry_after().is_some(),
            _ => false,
        };
        if !is_settled {
            self.core.refreshes.silence(self.leader.key(), seen, PAUSE);
        }
        Some(outcome)
    }
}
