//! The [`Leases`] of a Redis backend.

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use redis::Value;
use tokio::sync::watch;

use super::{super::RedisBackend, acquire::lock_call, millis, replies};
use crate::{
    backend::{
        Acquired, Change, Changes, Claim, Claimed, Grant, Holding, Kept, Leases, Marked, Mode,
        Need, Renewal, SemaphoreKind, Tick, TickStep, no_pass,
        redis::{
            client::Confirmation,
            keys,
            scripts::{Call, SCRIPTS},
        },
    },
    error::BackendError,
    key::{Family, Name, Namespace},
};

#[async_trait]
impl Leases for RedisBackend {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        match self.acquire_lock(claim).await? {
            Claimed::Granted(grant) => Ok(Acquired::Granted(grant)),
            Claimed::Occupied(occupied) => Ok(Acquired::Occupied(occupied)),
            Claimed::Newer(_) | Claimed::BacksOff(..) => {
                Err(replies::unreadable("an entry in reply to an acquire"))
            }
        }
    }

    /// Each script has an outcome of its own.
    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        let batches = renewal_batches(claims, self.0.servers.renew_batch());
        let calls: Vec<_> = batches.iter().copied().map(renewal).collect();
        let replies = self.0.servers.renew(&calls).await;
        let mut renewed = Vec::with_capacity(claims.len());
        let mut failure = None;
        for (batch, reply) in batches.into_iter().zip(replies) {
            match self.renewed(batch, reply) {
                Ok(held) => renewed.extend(held.into_iter().map(Renewal::from)),
                Err(error) => {
                    renewed.extend(batch.iter().map(|_| Renewal::Unknown));
                    failure = Some(error);
                }
            }
        }
        let is_any_known = renewed.iter().any(|renewal| *renewal != Renewal::Unknown);
        failure.filter(|_| !is_any_known).map_or(Ok(renewed), Err)
    }

    async fn keep(&self, claims: &[Claim], life: Duration) -> Result<Kept, BackendError> {
        self.keep_entries(claims, life).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        // The claims of entries have no queue.
        if claim.name.family() == Family::Cache && !claim.waits && claim.mode == Mode::Exclusive {
            return self.release_entry(claim, Change::Wake.encode(), None).await;
        }
        self.release_and_hand_over(claim).await
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        if !from.mode.passes_to(to.mode) {
            return Err(no_pass(from, to));
        }
        let units = match from.mode.need() {
            Need::Sole => String::new(),
            Need::Units { count, .. } => count.to_string(),
        };
        let call = lock_call(&SCRIPTS.convert, to, &[self.channel()]).owner(from.owner).arg(units);
        let (reply, confirmation) = loop {
            let (reply, confirmation) = self.0.servers.grant(&call).await?;
            if !replies::is_again(&reply) {
                break (reply, confirmation);
            }
        };
        let passed = self.checked(replies::passed(reply))?;
        if let (Err(unconfirmed), Some(_)) = (confirmation, &passed) {
            self.give_back(to).await;
            return Err(unconfirmed);
        }
        Ok(passed)
    }

    async fn pass_with_fence(
        &self,
        from: &Claim,
        to: &Claim,
        fence: u64,
    ) -> Result<Option<Grant>, BackendError> {
        let call = Call::new(&SCRIPTS.pass_with_fence, 2)
            .keys(&from.name, &[keys::LEASE, keys::FENCE])
            .owner(from.owner)
            .owner(to.owner)
            .arg(millis(to.lease))
            .arg(millis(to.fence_life))
            .arg(format!("{fence:016}"));
        let (reply, confirmation) = self.0.servers.grant(&call).await?;
        let passed = self.checked(replies::passed(reply))?;
        confirmation.map(|()| passed)
    }

    async fn mark(&self, claim: &Claim, tick: Tick) -> Result<Marked, BackendError> {
        let step = match tick.step {
            TickStep::Begin => "begin",
            TickStep::BeginAgain => "again",
            TickStep::Done => "done",
        };
        let call = Call::new(&SCRIPTS.mark, 2)
            .keys(&claim.name, &[keys::LEASE, keys::MARK])
            .owner(claim.owner)
            .arg(format!("{:016}", tick.at))
            .arg(step)
            .arg(millis(tick.kept));
        let (reply, confirmation) = self.0.servers.grant(&call).await?;
        let marked = self.checked(replies::marked(reply))?;
        confirmation.map(|()| marked)
    }

    async fn inspect(&self, name: &Name, kind: SemaphoreKind) -> Result<Holding, BackendError> {
        let (keys, is_entry) = (keys::semaphore(kind), name.family() == Family::Cache);
        let call = Call::new(&SCRIPTS.inspect, 4)
            .keys(name, &[keys.sole, keys.shared, keys.queue, keys::FAILURE])
            .arg(u8::from(is_entry));
        self.checked(replies::held(self.0.servers.call(&call).await?))
    }

    async fn lock_names(
        &self,
        namespace: &Namespace,
    ) -> Result<Vec<(Name, SemaphoreKind)>, BackendError> {
        let keys = self.0.servers.scan(&format!("{}:l:{{*", namespace.as_str())).await?;
        let named =
            |(prefix, kind)| Some((Name::from_prefix(namespace, Family::Lock, prefix)?, kind));
        Ok(keys.iter().filter_map(|key| keys::lock_at(key)).filter_map(named).collect())
    }

    async fn answer(&self, name: &Name, text: &str) -> Result<(), BackendError> {
        let channel = name.suffixed(keys::ANSWERS);
        let mut publish = redis::cmd("PUBLISH");
        self.0.servers.run(publish.arg(&channel).arg(text), &channel).await.map(drop)
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        let keys = keys::semaphore(mode.into());
        let call = Call::new(&SCRIPTS.clear, 5)
            .keys(name, &[self.channel(), keys.deadlines, keys.sole, keys.shared, keys.queue])
            .arg(1);
        self.checked(replies::flag(self.0.servers.call(&call).await?))
    }

    fn listen(&self, name: &Name, claim: Option<&Claim>) -> Changes {
        self.register(name, claim)
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        self.confirmed(name).await
    }

    /// The scripts of one renewal are sent at once, so that they share one command time-out.
    fn time_limit(&self) -> Option<Duration> {
        let give_back = u32::from(self.0.config.replicas.is_some());
        Some(self.0.config.command_timeout.saturating_mul(1 + give_back))
    }

    fn shard(&self, name: &Name) -> usize {
        self.0.servers.shard(name)
    }

    fn new_connections(&self) -> Option<watch::Receiver<()>> {
        Some(self.0.servers.new_connections())
    }
}

impl RedisBackend {
    /// Reads which leases of a batch were renewed.
    fn renewed(
        &self,
        batch: &[Claim],
        reply: Result<(Value, Confirmation), BackendError>,
    ) -> Result<Vec<bool>, BackendError> {
        let (reply, confirmation) = reply?;
        let held = self.checked(replies::flags(reply, batch.len()))?;
        confirmation.map(|()| held)
    }
}

/// The number of permits that cost a server as much as one lease. It renews each permit by itself.
const PERMITS_A_LEASE: usize = 4;

/// Splits claims into those that one script renews each, at a cost of at most `budget` leases.
fn renewal_batches(claims: &[Claim], budget: usize) -> Vec<&[Claim]> {
    let mut spent = 0;
    let cost = |claim: &Claim| match claim.mode {
        Mode::Permit { count, .. } => 1 + count as usize / PERMITS_A_LEASE,
        _ => 1,
    };
    let fits = |last: &Claim, next: &Claim| {
        let with_next = if spent == 0 { cost(last) } else { spent } + cost(next);
        spent = if with_next <= budget { with_next } else { 0 };
        spent > 0
    };
    claims.chunk_by(fits).collect()
}

/// Returns the call that renews a batch of leases.
fn renewal(batch: &[Claim]) -> Call<'static> {
    let is_fence_due = |claim: &Claim| claim.mode.is_fenced() && extends_fence(claim);
    let fences: Vec<_> =
        batch.iter().enumerate().filter(|(_, claim)| is_fence_due(claim)).collect();
    let mut call = Call::new(&SCRIPTS.renew, batch.len() + fences.len());
    for claim in batch {
        let keys = keys::semaphore(claim.mode.into());
        let is_sole = claim.mode.need() == Need::Sole;
        call = call.keys(&claim.name, &[if is_sole { keys.sole } else { keys.shared }]);
    }
    for (_, claim) in &fences {
        call = call.keys(&claim.name, &[keys::FENCE]);
    }
    call = call.arg(batch.len());
    for claim in batch {
        let members = match claim.mode.need() {
            Need::Sole => 0,
            Need::Units { count, .. } => count,
        };
        call = call.owner(claim.owner).arg(millis(claim.lease)).arg(members);
    }
    for (at, claim) in fences {
        call = call.arg(at + 1).arg(millis(claim.fence_life));
    }
    call
}

/// Returns whether a renewal now makes the fence last its full time as well.
///
/// This is so once in each eighth of the life of the fence, as two renewals lie less than a lease
/// apart. So three quarters of its life are left after each renewal, for a command less.
fn extends_fence(claim: &Claim) -> bool {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let window = claim.fence_life / 8;
    if claim.lease >= window / 2 {
        return true;
    }
    let now = START.elapsed();
    let number = |time: Duration| time.as_nanos() / window.as_nanos();
    number(now) != number(now.saturating_sub(claim.lease))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::RENEWAL_BATCH,
        key::{Key, Namespace},
    };

    /// A hundred leases of 1,000 permits each were one script, which kept a server busy for 200 ms.
    #[test]
    fn a_batch_is_bounded_by_its_permits() -> Result<(), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let lease = Duration::from_secs(60);
        let claims = |count: usize, permits| {
            let mode = Mode::Permit { limit: 1000, count: permits };
            vec![Claim::new(name.clone(), mode, lease, lease); count]
        };
        let claims = [claims(2, 1000), claims(50, 1), claims(60, 3)].concat();
        let sizes = |budget| renewal_batches(&claims, budget).into_iter().map(<[_]>::len);
        assert_eq!(sizes(RENEWAL_BATCH).collect::<Vec<_>>(), [1, 1, 100, 10]);
        assert!(sizes(1).all(|size| size == 1));
        Ok(())
    }
}
