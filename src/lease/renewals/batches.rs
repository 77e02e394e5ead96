//! The renewals that one request carries.
//!
//! A batch is small enough not to keep a server busy for long, and few are under way at a time. So
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
    backend::{ANSWER_LIMIT, DynLeases, Renewal},
    error::Chain,
};

/// The number of leases in a batch: a script of some hundred microseconds.
pub(super) const BATCH: usize = 100;
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
                let some = group.waiting.len().min(BATCH);
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
        let answer = timeout(self.limit(), backend.renew(&claims)).await;
        let each = match answer {
            Ok(Ok(each)) => Some(each),
            Ok(Err(error)) => {
                debug!(error = %Chain(&error), leases = claims.len(), "renewal failed");
                None
            }
            Err(_elapsed) => None,
        };
        (self, BatchAnswer { sent, each })
    }

    /// The time that a backend has that does not bound its own operations. It leaves time for a
    /// second try.
    fn limit(&self) -> Duration {
        let leases = self.records.iter().map(|record| record.claim().lease);
        leases.min().unwrap_or_default().min(2 * ANSWER_LIMIT) / 2
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
