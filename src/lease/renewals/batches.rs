//! The renewals that one request carries.
//!
//! A batch is cheap enough not to keep a server busy for long, and few are under way at a time. So
//! the commands of others go in between, and a time-out counts from when a batch is really sent. A
//! batch has one shard: a shard that does not answer costs the others nothing. Its leases are about
//! equally long, so that a short one does not bound the time of long ones.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, timeout};
use tracing::debug;

use super::super::record::LeaseRecord;
use crate::{
    backend::{ANSWER_LIMIT, DynLeases, RENEWAL_BATCH, Renewal, renewed_together},
    error::Chain,
    observe::Rarely,
};

/// How many batches of a group are under way.
const AT_ONCE: usize = 4;
/// How many of them are under way if the leases are renewed too late, as over a slow link.
const AT_ONCE_IF_LATE: usize = 32;

/// The leases that are due, in groups.
#[derive(Default)]
pub(super) struct Batches(BTreeMap<GroupKey, LeaseGroup>);

/// The shard, and the power of two next below the milliseconds of the lease.
type GroupKey = (usize, u32);

#[derive(Default)]
struct LeaseGroup {
    waiting: VecDeque<Arc<LeaseRecord>>,
    under_way: usize,
}

/// Leases that are renewed in one request.
pub(super) struct RenewalBatch {
    group: GroupKey,
    pub(super) records: Vec<Arc<LeaseRecord>>,
}

/// The answer to a batch.
pub(super) struct BatchAnswer {
    /// A time before the request was sent.
    pub(super) sent: Instant,
    each: Option<Vec<Renewal>>,
}

impl Batches {
    pub(super) fn add(&mut self, shard: usize, record: Arc<LeaseRecord>) {
        let length = record.claim().lease.as_millis().max(1).ilog2();
        self.0.entry((shard, length)).or_default().waiting.push_back(record);
    }

    /// Takes a batch that may be sent now. Leases that were released meanwhile are left out.
    pub(super) fn next(&mut self, is_held: impl Fn(&LeaseRecord) -> bool) -> Option<RenewalBatch> {
        for (key, group) in &mut self.0 {
            while group.may_send() {
                let claims = group.waiting.iter().map(|record| record.claim());
                let some = renewed_together(claims, RENEWAL_BATCH);
                let records: Vec<_> =
                    group.waiting.drain(..some).filter(|record| is_held(record)).collect();
                if !records.is_empty() {
                    group.under_way += 1;
                    return Some(RenewalBatch { group: *key, records });
                }
            }
        }
        None
    }

    /// Notes that a batch is no longer under way.
    pub(super) fn ended(&mut self, batch: &RenewalBatch) {
        if let Some(group) = self.0.get_mut(&batch.group) {
            group.under_way -= 1;
            if group.under_way == 0 && group.waiting.is_empty() {
                self.0.remove(&batch.group);
            }
        }
    }
}

impl LeaseGroup {
    fn may_send(&self) -> bool {
        let Some(first) = self.waiting.front() else { return false };
        let is_late = first.remaining() < first.claim().lease / 2;
        self.under_way < if is_late { AT_ONCE_IF_LATE } else { AT_ONCE }
    }
}

impl RenewalBatch {
    /// Renews the leases.
    pub(super) async fn renew(self, backend: Arc<dyn DynLeases>) -> (Self, BatchAnswer) {
        let sent = Instant::now();
        let claims: Vec<_> = self.records.iter().map(|record| record.claim().clone()).collect();
        let answer = timeout(self.limit(backend.as_ref()), backend.renew(&claims)).await;
        let each = match answer {
            Ok(Ok(each)) => Some(each),
            Ok(Err(error)) => {
                static SAID: Rarely = Rarely::once_in(1);
                if SAID.first() {
                    debug!(error = %Chain(&error), leases = claims.len(), "renewal failed");
                }
                None
            }
            Err(_elapsed) => None,
        };
        (self, BatchAnswer { sent, each })
    }

    /// The time that a backend has. It leaves time for a second try.
    fn limit(&self, backend: &dyn DynLeases) -> Duration {
        let limit = backend.time_limit().unwrap_or_default().max(ANSWER_LIMIT);
        let leases = self.records.iter().map(|record| record.claim().lease);
        limit.min(leases.min().unwrap_or_default() / 2)
    }
}

impl BatchAnswer {
    /// Returns the answer for one lease. An answer with too few parts says of the rest that it is
    /// not held.
    pub(super) fn of(&self, at: usize) -> Renewal {
        match &self.each {
            Some(each) => each.get(at).copied().unwrap_or(Renewal::NotHeld),
            None => Renewal::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::{Claim, Mode},
        key::{Family, Key, Name, Namespace},
        lease::{Upkeep, record::Granted},
    };

    const LEASE: Duration = Duration::from_secs(60);

    fn record(mode: Mode) -> Result<Arc<LeaseRecord>, crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let granted = Granted {
            claim: Claim::new(name, mode, LEASE, LEASE),
            upkeep: Upkeep { renew_every: Some(LEASE / 3), max_hold: Duration::MAX },
            runtime: tokio::runtime::Handle::current(),
            fence: 0,
            since: Instant::now(),
            until: None,
            outcome_unknown: false,
            slot: None,
        };
        Ok(Arc::new(LeaseRecord::new(granted, Arc::default())))
    }

    /// A hundred leases of 1,000 permits each were one batch, which kept a server busy for 200 ms.
    #[tokio::test]
    async fn a_batch_is_bounded_by_its_permits() -> Result<(), crate::Error> {
        let mut batches = Batches::default();
        let mut add = |count, mode| {
            (0..count).try_for_each(|_| {
                batches.add(0, record(mode)?);
                Ok::<_, crate::Error>(())
            })
        };
        let permits = |count| Mode::Permit { limit: 1000, count };
        add(2, permits(1000))?;
        add(50, permits(1))?;
        add(60, Mode::Exclusive)?;
        let sizes = std::iter::from_fn(|| batches.next(|_| true)).map(|batch| batch.records.len());
        assert_eq!(sizes.collect::<Vec<_>>(), [1, 1, 100, 10]);
        Ok(())
    }
}
