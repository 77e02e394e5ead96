//! The [`Leases`] of a Redis backend.

use std::{
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use redis::Value;
use tokio::sync::watch;

use super::{super::RedisBackend, acquire::held_at, millis, replies};
use crate::{
    backend::{
        Acquired, Change, Changes, Claim, Claimed, Erased, ErasedLeases, Grant, Kept, Leases, Mode,
        Occupied, Renewal, RoundTrip, no_pass,
        redis::{
            client::Confirmation,
            keys,
            scripts::{Call, SCRIPTS},
        },
        renewed_together,
    },
    error::BackendError,
    key::{Family, Name},
};

impl Leases for RedisBackend {
    #[inline(never)]
    fn erase_leases(self: Arc<Self>) -> ErasedLeases {
        Erased(self)
    }

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

    async fn keep(&self, claims: &[Claim]) -> Result<Kept, BackendError> {
        if claims.is_empty() {
            return Ok(Kept::nothing());
        }
        self.keep_entries(claims).await
    }

    async fn keep_each(
        &self,
        queues: &[Vec<Claim>],
    ) -> Result<Vec<Result<Kept, BackendError>>, BackendError> {
        Ok(self.keep_queues(queues).await)
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        // The claims of entries have no queue.
        if claim.name.family() == Family::Cache && !claim.waits && claim.mode == Mode::Exclusive {
            return self.release_entry(claim, Change::Wake.encode(), None).await;
        }
        self.release_and_hand_over(claim).await
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        let name = &from.name;
        let call = match (from.mode, to.mode) {
            (Mode::Exclusive | Mode::Fair, Mode::Exclusive | Mode::Fair) => {
                let keys = [keys::LEASE, keys::FENCE, keys::QUEUE, keys::UNORDERED];
                Call::new(&SCRIPTS.pass, keys.len()).keys(name, &keys)
            }
            (Mode::Read, Mode::Write) => Call::new(&SCRIPTS.upgrade, 3)
                .keys(name, &[keys::WRITER, keys::FENCE, keys::READERS]),
            (Mode::Write, Mode::Read) => {
                let keys = self.keys_of_queue(to.mode);
                Call::new(&SCRIPTS.downgrade, keys.len()).keys(name, &keys)
            }
            _ => return Err(no_pass(from, to)),
        };
        let call = call.owner(from.owner).owner(to.owner).arg(millis(to.lease));
        let call = match to.mode {
            Mode::Read => self.with_terms(to, call),
            _ => call.arg(millis(to.fence_life)),
        };
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

    async fn holder(&self, name: &Name, mode: Mode) -> Result<Option<Occupied>, BackendError> {
        let (suffix, is_set) = held_at(mode);
        let call = Call::new(&SCRIPTS.holder, 1).keys(name, &[suffix]).arg(u8::from(is_set));
        self.checked(replies::holder(self.0.servers.call(&call).await?))
    }

    async fn introduce(&self, name: &Name, label: &str) -> Result<(), BackendError> {
        self.set_label(name, label).await
    }

    async fn holder_label(&self, name: &Name, mode: Mode) -> Result<Option<String>, BackendError> {
        self.label_of_holder(name, mode).await
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        let queue: &[_] = match mode {
            Mode::Exclusive | Mode::Fair => {
                &[keys::DEADLINES, keys::LEASE, keys::QUEUE, keys::UNORDERED]
            }
            Mode::Read | Mode::Write => &[
                keys::RW_DEADLINES,
                keys::WRITER,
                keys::RW_QUEUE,
                keys::READERS,
                keys::WAITING_WRITERS,
            ],
            Mode::Permit { .. } => &[keys::PERMIT_DEADLINES, keys::PERMITS, keys::PERMIT_QUEUE],
        };
        let has_processes = usize::from(name.family() == Family::Cache);
        let call = Call::new(&SCRIPTS.clear, 1 + queue.len() + has_processes)
            .keys(name, &[self.channel(), queue[0]])
            .keys(name, &queue[1..])
            .keys(name, &[keys::PROCESSES][..has_processes])
            .arg(1)
            .arg(has_processes * (2 + queue.len()));
        self.checked(replies::flag(self.0.servers.call(&call).await?))
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        self.subscribe(name).await
    }

    async fn changes_for(&self, claim: &Claim) -> Result<Changes, BackendError> {
        self.subscribe_for(claim).await
    }

    fn missed_pushes(&self, claim: &Claim) -> u64 {
        self.missed_by(claim)
    }

    fn changes_since(&self, claim: &Claim, missed: u64) -> Option<Changes> {
        self.subscribed_since(claim, missed)
    }

    /// The scripts of one renewal are sent at once, so that they share one command time-out.
    fn time_limit(&self) -> Option<Duration> {
        let give_back = u32::from(self.0.config.replicas.is_some());
        Some(self.0.config.command_timeout.saturating_mul(1 + give_back))
    }

    fn round_trip(&self) -> RoundTrip {
        self.0.servers.round_trip().map_or(RoundTrip::Unmeasured, RoundTrip::Measured)
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

/// Splits claims into those that one script renews each.
fn renewal_batches(mut claims: &[Claim], budget: usize) -> Vec<&[Claim]> {
    let mut batches = Vec::with_capacity(claims.len().div_ceil(budget));
    while !claims.is_empty() {
        let (batch, rest) = claims.split_at(renewed_together(claims.iter(), budget));
        batches.push(batch);
        claims = rest;
    }
    batches
}

/// Returns the call that renews a batch of leases.
fn renewal(batch: &[Claim]) -> Call<'static> {
    let is_fence_due = |claim: &Claim| claim.mode.is_fenced() && extends_fence(claim);
    let fences: Vec<_> =
        batch.iter().enumerate().filter(|(_, claim)| is_fence_due(claim)).collect();
    let mut call = Call::new(&SCRIPTS.renew, batch.len() + fences.len());
    for claim in batch {
        call = call.keys(&claim.name, &[held_at(claim.mode).0]);
    }
    for (_, claim) in &fences {
        call = call.keys(&claim.name, &[keys::FENCE]);
    }
    call = call.arg(batch.len());
    for claim in batch {
        let members = match claim.mode {
            Mode::Exclusive | Mode::Fair | Mode::Write => 0,
            Mode::Read => 1,
            Mode::Permit { count, .. } => count,
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
