//! The commit of a load: it stores the entry, ends the lease, and says what the callers get.

use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use super::{AskedKey, ForLate, Load, made::MadeValue, silence};
use crate::{
    backend::{Committed, Entry, EntryKind, answered_by},
    cache::{
        Loaded, Source,
        local::{CopiedEntry, Fill},
        outcome::{Alone, Record},
        refreshes::EntryNote,
        settings::UNCACHEABLE_LIFE,
    },
    error::BackendError,
};

/// What a commit leaves to the callers of its load.
pub(super) struct CommittedLoad<V> {
    pub(super) loaded: Loaded<V>,
    /// How the callers are served that joined after the lease was granted, if not by the value.
    pub(super) late: Option<ForLate>,
}

impl<V: Clone + Send + Sync + 'static> Load<V> {
    /// Commits a value that was loaded. Returns the value for the callers of the load.
    pub(super) async fn commit_value(self, made: MadeValue<V>) -> CommittedLoad<V> {
        let ended = Instant::now();
        let MadeValue { value, entry, ttl } = made;
        let Self { asked, lead, guard, begun, .. } = &self;
        let AskedKey { core, key, shard, .. } = asked;
        let mark = core.local.copies.as_ref().map(|copies| copies.order.fill(&asked.name, ended));
        let tagged = lead.keeping().tagged.clone();
        let (answer, are_current) =
            tokio::join!(self.commit_entry(&entry, ttl), core.are_current(&tagged));
        // A deferred write leaves the lease in place, so the backend may store the older value.
        let is_current =
            are_current && !core.backend.writes.holds_back(&asked.name, guard.granted.fence);
        let is_value = entry.kind == EntryKind::Value;
        if !is_value {
            core.counters.unstorable.add();
        }
        let is_stored = matches!(answer, Ok(Committed::Stored)) && is_current && is_value;
        let record = Record::written(guard.granted.fence, &entry, ended, is_stored);
        let led = Loaded { value, source: Source::Led, record };
        // Later callers may know of the invalidation that has ended the value.
        let late = if is_current { None } else { Some(ForLate::Look) };
        match answer {
            Ok(Committed::Stored) => {
                let mark = if is_current { mark } else { None };
                self.note_stored(mark, entry, &led.value);
                self.guard.settled();
                CommittedLoad { loaded: led, late }
            }
            Ok(Committed::Pushed) => {
                if ttl.is_some() {
                    core.counters.unstored.add();
                }
                core.local.drop_copy(key);
                self.guard.settled();
                CommittedLoad { loaded: led, late }
            }
            Ok(refused @ (Committed::Newer(_) | Committed::Refused)) => {
                match self.refused(refused).await {
                    Some(newer) => CommittedLoad { loaded: newer, late },
                    None => CommittedLoad { loaded: led, late: Some(ForLate::Look) },
                }
            }
            Err(error) => {
                core.counters.unstored.add();
                shard.breaker.failed(&error, &core.counters);
                asked.remember(&led.value, entry, *begun, lead, shard.breaker.outage());
                CommittedLoad { loaded: led, late: Some(ForLate::Degraded) }
            }
        }
    }

    /// Counts an entry that was stored, and keeps a copy of the entry in place of the last copy.
    /// Without a mark, drops the last copy.
    fn note_stored(&self, mark: Option<Fill>, entry: Entry, value: &V) {
        let AskedKey { core, key, options, .. } = &self.asked;
        if !options.sharing.is_uncounted {
            core.counters.stored.add();
        }
        if self.lead.keeping().is_unchanged {
            core.counters.unchanged.add();
        }
        let (Some(copies), Some(mark)) = (&core.local.copies, mark) else {
            return core.local.drop_copy(key);
        };
        let mut entry = entry.with_fence(self.guard.granted.fence);
        entry.age = Some(Duration::ZERO);
        let size = core.take_payload(&mut entry).len();
        let copied = CopiedEntry { entry, size };
        copies.note(mark, key, copied, value, false, &options.rules);
    }

    /// Notes a commit that was refused. Returns the value of the newer entry that the commit has
    /// found, if that value may be served.
    async fn refused(&self, answer: Committed) -> Option<Loaded<V>> {
        let AskedKey { core, key, name, options, .. } = &self.asked;
        debug!("commit refused: the lease was lost, or the key invalidated or replaced");
        core.counters.refused.add();
        core.local.drop_copy(key);
        let Committed::Newer(entry) = answer else { return None };
        let mut answer = Ok(Some(entry));
        core.judge(key, &mut answer).await;
        let newer = core.decide(name, &options.rules, &mut answer).value()?;
        Some(Loaded { source: Source::Received, ..newer })
    }

    /// Ends the lease of a load that cannot be shared. For an uncacheable name, commits an entry
    /// that says so. Otherwise the next process leads.
    pub(super) async fn end_alone(self, why: Alone) {
        if why != Alone::Uncacheable {
            // Without an answer, the lease is released late.
            let _ = self.guard.release().await;
            return;
        }
        let entry = Entry::uncacheable(self.begun.at.elapsed());
        let is_stored = !self.lead.keeping().do_not_store;
        let ttl = if is_stored { Some(UNCACHEABLE_LIFE) } else { None };
        let AskedKey { core, shard, options, .. } = &self.asked;
        match self.commit_entry(&entry, ttl).await {
            Ok(Committed::Stored) => {
                if !options.sharing.is_uncounted {
                    core.counters.stored.add();
                }
                self.guard.settled();
            }
            Ok(Committed::Pushed) => self.guard.settled(),
            Ok(Committed::Newer(_) | Committed::Refused) => {}
            Err(error) => shard.breaker.failed(&error, &core.counters),
        }
    }

    async fn commit_entry(
        &self,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        self.guard.close();
        let AskedKey { core, key, shard, name, .. } = &self.asked;
        let fence = self.guard.granted.fence;
        let first = Instant::now();
        let mut answer = self.try_commit(entry, ttl, core.backend.try_limit).await;
        if let Some(limit) = self.asked.second_try(first, &answer) {
            answer = tokio::select! {
                biased;
                answer = self.try_commit(entry, ttl, limit) => answer,
                () = shard.breaker.opened() => Err(silence()),
            };
        }
        core.local.committed(key, name, fence);
        if let Ok(committed) = &answer {
            let is_made = matches!(committed, Committed::Stored | Committed::Pushed);
            shard.breaker.answered(is_made, &core.counters);
            if matches!(committed, Committed::Stored) {
                core.loads.refreshes.note(EntryNote::Stored, name, fence, Duration::MAX);
            }
        }
        answer
    }

    async fn try_commit(
        &self,
        entry: &Entry,
        ttl: Option<Duration>,
        limit: Duration,
    ) -> Result<Committed, BackendError> {
        let core = &self.asked.core;
        let committed =
            core.backend.store.commit(&self.guard.release.claim, &self.grant, entry, ttl);
        core.counted(answered_by(core.backend.store.as_ref(), limit, committed).await)
    }
}
