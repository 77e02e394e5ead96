//! The [`Leases`] of a Redis backend, and the channels of their waiters.
//!
//! In a cluster, a script publishes only in the slot of its name. So a process has a channel for
//! each name for which it waits. At a single server, a process keeps one channel for all names, so
//! a wait costs no subscription.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt, future::join_all};
use tokio::sync::watch;

use super::{
    super::RedisBackend,
    millis,
    replies::{self, AGAIN, Flags, HELD, REFUSED},
};
use crate::{
    backend::{
        BackOff, Change, Changes, Claim, Claimed, Connections, FoundLocks, Grant, Holders, Holding,
        Kept, Leases, Mark, Marked, Mode, Need, Owner, ProcessId, QUEUE_ENTRY_LIFE, RENEWAL_BATCH,
        Renewal, SearchFrom, SemaphoreKind, Tick, TickStep, in_time,
        redis::{
            keys,
            scripts::{Call, SCRIPTS, Script},
        },
    },
    error::BackendError,
    key::{Family, Name, Namespace},
};

#[async_trait]
impl Leases for RedisBackend {
    fn process(&self) -> ProcessId {
        self.0.process
    }

    async fn acquire(&self, claim: &Claim) -> Result<Claimed, BackendError> {
        let entry_life = if claim.waits { millis(QUEUE_ENTRY_LIFE) } else { 0 };
        let call = lock_call(&SCRIPTS.acquire, claim, None).arg(entry_life);
        let call = with_need(call, claim);
        match self.claimed(claim, &call).await? {
            answer @ (Claimed::Granted(_) | Claimed::Occupied(_)) => Ok(answer),
            _ => self.checked(Err(replies::unreadable("an entry in reply to an acquire"))),
        }
    }

    /// Sends several scripts at once. If a script has no answer, only its leases are unknown.
    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        // In a cluster, two leases rarely share a slot, and a slot that moves would block the
        // leases of other slots.
        let budget = if self.0.servers.is_single() { RENEWAL_BATCH } else { 1 };
        let batches = renewal_batches(claims, budget);
        let answers = join_all(batches.iter().map(|batch| self.renew_batch(batch))).await;
        let mut renewals = Vec::with_capacity(claims.len());
        let mut failure = None;
        for (batch, answer) in batches.into_iter().zip(answers) {
            match answer {
                Ok(held) => renewals.extend(held.into_iter().map(Renewal::from)),
                Err(error) => {
                    renewals.extend(batch.iter().map(|_| Renewal::Unknown));
                    failure = Some(error);
                }
            }
        }
        let is_all_unknown = renewals.iter().all(|renewal| *renewal == Renewal::Unknown);
        match failure {
            Some(error) if is_all_unknown => Err(error),
            _ => Ok(renewals),
        }
    }

    async fn keep(&self, claims: &[Claim], life: Duration) -> Result<Kept, BackendError> {
        let Some(first) = claims.first() else { return Ok(Kept::default()) };
        let mut call = semaphore_call(&SCRIPTS.keep, first, Some(self.channel()))
            .arg(millis(first.fence_life))
            .arg(millis(life));
        for claim in claims {
            call = call.arg(queue_entry(claim));
        }
        let mut has_lapsed = false;
        loop {
            let (mut kept, flags) =
                self.run(&call, |reply| replies::kept(reply, claims.len())).await?;
            self.note_refusal(flags.has(REFUSED));
            // The server has refused the push of a free lease, so all waiters send their claims
            // again.
            has_lapsed |= kept.has_lapsed || flags.has(REFUSED);
            if !flags.has(AGAIN) {
                kept.has_lapsed = has_lapsed;
                return Ok(kept);
            }
        }
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        // This claim is for the load of an entry. Such a claim has no queue.
        if claim.name.family == Family::Cache && !claim.waits && claim.mode == Mode::Exclusive {
            return self.release_entry(claim, Change::Wake.encode(), None).await;
        }
        let call = lock_call(&SCRIPTS.release, claim, Some(self.channel()));
        let call = with_need(call.arg(u8::from(claim.wakes_all())), claim);
        // If this process waits for the name, other processes are likely to wait too, and get their
        // push before this answer. So the script answers after the pushes. A fair mutex is left
        // out, because each of its releases would become two commands.
        let is_contended = claim.mode == Mode::Exclusive
            && self.0.servers.events.channels.has_waiters(&claim.name.prefix);
        self.released(&call.answered_last(is_contended)).await
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        let call = lock_call(&SCRIPTS.convert, to, Some(self.channel()))
            .owner(from.owner)
            .arg(from.mode.need().units());
        let call = with_need(call, to);
        match self.grant(&call, replies::passed).await? {
            (Some(_), Err(error)) => self.give_back(to, error).await,
            (passed, _) => Ok(passed),
        }
    }

    async fn set_fence(&self, claim: &Claim, fence: u64) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.set_fence, &claim.name, &[keys::LEASE, keys::FENCE])
            .owner(claim.owner)
            .arg(millis(claim.lease))
            .arg(millis(claim.fence_life))
            .arg(format!("{fence:016}"));
        let (is_held, confirmation) = self.grant(&call, replies::flag).await?;
        confirmation.map(|()| is_held)
    }

    async fn mark(&self, claim: &Claim, tick: Tick) -> Result<Marked, BackendError> {
        let step = match tick.step {
            TickStep::Begin => "begin",
            TickStep::BeginAgain => "again",
            TickStep::Done => "done",
            TickStep::Forget(_) => "forget",
        };
        let seen = match tick.step {
            TickStep::Forget(Some(mark)) => mark_text(mark),
            _ => String::new(),
        };
        let call = Call::new(&SCRIPTS.mark, &claim.name, &[keys::LEASE, keys::MARK])
            .owner(claim.owner)
            .arg(format!("{:016}", tick.at))
            .arg(step)
            .arg(millis(tick.kept))
            .arg(seen);
        let (marked, confirmation) = self.grant(&call, replies::marked).await?;
        confirmation.map(|()| marked)
    }

    async fn inspect(&self, name: &Name, kind: SemaphoreKind) -> Result<Holding, BackendError> {
        let [sole, shared, queue, _] = keys::semaphore(kind);
        let call = Call::new(&SCRIPTS.inspect, name, &[sole, shared, queue, keys::FAILURE])
            .arg(u8::from(name.family == Family::Cache));
        self.run(&call, replies::holding).await
    }

    async fn lock_names(
        &self,
        namespace: &Namespace,
        from: &SearchFrom,
    ) -> Result<FoundLocks, BackendError> {
        let pattern = format!("{}:l:{{*", namespace.as_str());
        let (keys, next) = self.0.servers.scan(&pattern, from).await?;
        let mut locks = Vec::new();
        for key in &keys {
            let Some((prefix, kind)) = keys::lock_at(key) else { continue };
            if let Some(name) = Name::from_prefix(namespace, Family::Lock, prefix) {
                locks.push((name, kind));
            }
        }
        Ok(FoundLocks { locks, next })
    }

    async fn answer(&self, name: &Name, text: &str) -> Result<(), BackendError> {
        let channel = name.suffixed(keys::ANSWERS);
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&channel).arg(text);
        self.0.servers.run(&publish, &channel).await?;
        Ok(())
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        let [sole, shared, queue, deadlines] = keys::semaphore(mode.into());
        let keys = [self.channel(), deadlines, sole, shared, queue];
        let call = Call::new(&SCRIPTS.clear, name, &keys).arg(1);
        self.run(&call, replies::flag).await
    }

    /// In a cluster, only a process that waits for the name receives the push.
    async fn tell_ended(&self, name: &Name, owner: Owner) -> Result<(), BackendError> {
        let channel = self.0.channel_names.queued(name, owner.process());
        let mut message = Vec::new();
        let mut publish = redis::cmd("SPUBLISH");
        if self.0.servers.is_single() {
            // The channel of a process is for all names of a scope.
            message.extend(name.prefix.as_bytes());
            publish = redis::cmd("PUBLISH");
        }
        message.extend(Change::Ended(owner).encode());
        publish.arg(&*channel).arg(message);
        self.0.servers.run(&publish, &channel).await?;
        Ok(())
    }

    fn watch(&self, holders: Weak<dyn Holders>) {
        self.0.servers.events.channels.add_holders(holders);
    }

    fn listen(&self, name: &Name, claim: Option<&Claim>) -> Changes {
        let channels = self.channels_of(name, claim);
        let owner = claim.map(|claim| claim.owner);
        self.0.servers.events.channels.register(&name.prefix, channels, owner)
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        let mut changes = self.listen(name, None);
        changes.subscribe();
        self.0.servers.until_connected(&name.suffixed(self.channel())).await?;
        in_time(self.0.servers.config.command_timeout, changes.confirmed().map(Ok)).await?;
        Ok(changes)
    }

    /// A renewal sends its scripts at once, so all its scripts share one command time-out.
    fn time_limit(&self) -> Option<Duration> {
        let give_back = u32::from(self.0.servers.config.replicas.is_some());
        Some(self.0.servers.config.command_timeout.saturating_mul(1 + give_back))
    }

    fn connections(&self) -> Connections {
        self.0.servers.events.standing.connections()
    }

    fn shard(&self, name: &Name) -> usize {
        self.0.servers.shard(name)
    }

    fn new_connections(&self) -> watch::Receiver<()> {
        self.0.servers.events.new_connections.subscribe()
    }
}

impl RedisBackend {
    pub(super) async fn claimed(
        &self,
        claim: &Claim,
        call: &Call<'_>,
    ) -> Result<Claimed, BackendError> {
        match self.grant(call, replies::claimed).await? {
            (Claimed::Granted(_), Err(error)) => self.give_back(claim, error).await,
            (claimed, _) => Ok(claimed),
        }
    }

    /// Gives back a grant that too few replicas confirmed. If the release fails as well, the caller
    /// that claimed the lease undoes the claim.
    async fn give_back<T>(&self, claim: &Claim, why: BackendError) -> Result<T, BackendError> {
        let _ = self.release(claim).await;
        Err(why)
    }

    /// Ends the lease of an entry, and pushes the reason. With a back-off, the name then backs off.
    pub(super) async fn release_entry(
        &self,
        claim: &Claim,
        message: Bytes,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError> {
        let keys = [keys::LEASE, self.channel(), keys::FAILURE];
        let keys = if back_off.is_some() { &keys[..] } else { &keys[..2] };
        let mut call =
            Call::new(&SCRIPTS.end_load, &claim.name, keys).owner(claim.owner).arg(&message[..]);
        if let Some(back_off) = back_off {
            call = call.arg(millis(back_off.wait)).arg(millis(back_off.remembered()));
            call = call.arg(back_off.failures);
        }
        self.released(&call).await
    }

    async fn renew_batch(&self, batch: &[Claim]) -> Result<Vec<bool>, BackendError> {
        let is_single = self.0.servers.is_single();
        let call = renewal(batch, is_single);
        let fenced_apart = batch.iter().filter(|claim| !is_single && claim.mode.is_fenced());
        let (answer, _) = tokio::join!(
            self.grant(&call, |reply| replies::flags(reply, batch.len())),
            join_all(fenced_apart.map(|claim| self.extend_fence(claim))),
        );
        let (held, confirmation) = answer?;
        confirmation.map(|()| held)
    }

    /// Makes a fence last its full time. If the command fails, the next renewal repeats it.
    async fn extend_fence(&self, claim: &Claim) {
        let key = claim.name.suffixed(keys::FENCE);
        let mut extend = redis::cmd("PEXPIRE");
        extend.arg(&key).arg(millis(claim.fence_life));
        let _ = self.0.servers.run(&extend, &key).await;
    }

    /// Runs a script that releases. A script that could not do all its work in one run is called
    /// again. If this process ends before that, or a later run gets no answer, the next script of
    /// any waiter does the rest.
    async fn released(&self, call: &Call<'_>) -> Result<bool, BackendError> {
        let mut was_held = false;
        loop {
            let flags = match self.run(call, Flags::read).await {
                Ok(flags) => flags,
                Err(_) if was_held => return Ok(true),
                Err(error) => return Err(error),
            };
            was_held |= flags.has(HELD);
            self.note_refusal(flags.has(REFUSED));
            if !flags.has(AGAIN) {
                return Ok(was_held);
            }
        }
    }

    /// Returns the channels that carry all pushes for a waiter. Opens the channel of this process,
    /// if that channel is enough. It then stays open.
    fn channels_of(&self, name: &Name, claim: Option<&Claim>) -> Vec<Arc<str>> {
        let waits = claim.is_none_or(|claim| claim.waits);
        let process = claim.map_or_else(|| self.process(), |claim| claim.owner.process());
        let is_enough = claim.is_some() && (waits || name.family == Family::Cache);
        if is_enough && self.0.servers.is_single() {
            return vec![self.staying_channel(name, waits, process)];
        }
        let mut channels = vec![name.suffixed(self.channel()).into()];
        if waits {
            // Grants to claims in the queue come on a channel of the process.
            channels.push(self.0.channel_names.queued(name, process));
        }
        channels
    }

    /// Returns the channel of a process, which stays open. The name of the channel is built once
    /// for all names of a scope.
    fn staying_channel(&self, name: &Name, waits: bool, process: ProcessId) -> Arc<str> {
        let is_own = process == self.process();
        let open = if waits { &self.0.staying.queued } else { &self.0.staying.registered };
        if is_own && let Some(channel) = open.get(name.scope()) {
            return channel.clone();
        }
        let names = &self.0.channel_names;
        let channel = if waits { names.queued(name, process) } else { names.registered(name) };
        self.0.servers.events.channels.open(&channel);
        if is_own {
            open.insert(name.scope().to_owned(), channel.clone());
        }
        channel
    }
}

/// Returns a call about a claim, which [`with_need`] completes.
fn lock_call<'a>(script: &'a Script, claim: &Claim, channel: Option<&str>) -> Call<'a> {
    semaphore_call(script, claim, channel)
        .owner(claim.owner)
        .arg(millis(claim.lease))
        .arg(millis(claim.fence_life))
}

/// Adds the last arguments of a call about a claim: the need, the limit and the label. A script
/// knows the usual values, so each of these arguments is left out if the others behind it are, too.
fn with_need<'a>(call: Call<'a>, claim: &Claim) -> Call<'a> {
    let label = claim.label.as_deref().unwrap_or_default();
    let call = match claim.mode.need() {
        Need::Units { count, limit } => call.arg(count).arg(limit),
        Need::Sole if !label.is_empty() => call.arg(sole_need(claim)).arg(0),
        Need::Sole if claim.mode == Mode::Exclusive => return call,
        Need::Sole => call.arg(sole_need(claim)),
    };
    if label.is_empty() { call } else { call.arg(label) }
}

/// Returns the letter for how a claim for a sole hold waits, as `scripts/lib/read_entry.lua`
/// explains.
fn sole_need(claim: &Claim) -> &'static str {
    if claim.mode == Mode::Exclusive { "x" } else { "f" }
}

/// Returns a call with the keys of a claim's semaphore, and the channel of the name behind them, if
/// the script publishes.
fn semaphore_call<'a>(script: &'a Script, claim: &Claim, channel: Option<&str>) -> Call<'a> {
    let [sole, shared, queue, deadlines] = keys::semaphore(claim.mode.into());
    let keys = [sole, shared, keys::FENCE, queue, deadlines, channel.unwrap_or_default()];
    let count = if channel.is_some() { keys.len() } else { keys.len() - 1 };
    Call::new(script, &claim.name, &keys[..count])
}

/// Returns a claim as `scripts/lib/read_entry.lua` reads it.
fn queue_entry(claim: &Claim) -> String {
    let owner = claim.owner;
    let lease = millis(claim.lease);
    let label = claim.label.as_deref().unwrap_or_default();
    match claim.mode.need() {
        Need::Units { count, limit } => format!("{owner}:{count}:{limit}:{lease}:{label}"),
        Need::Sole => format!("{owner}:{}:0:{lease}:{label}", sole_need(claim)),
    }
}

/// Returns the text of a mark, as the script stores it.
fn mark_text(mark: Mark) -> String {
    let tick = mark.tick;
    match mark.begun_by {
        Some(owner) => format!("{tick:016}:{owner}"),
        None => format!("{tick:016}"),
    }
}

/// The number of permits that cost a server as much as one lease, because the server renews each
/// permit by itself.
const PERMITS_A_LEASE: usize = 4;

/// Splits claims into batches, each for one script that costs at most as much as `budget` leases. A
/// claim that costs more is a batch of its own.
fn renewal_batches(claims: &[Claim], budget: usize) -> Vec<&[Claim]> {
    let mut batches = Vec::new();
    let mut first = 0;
    let mut cost = 0;
    for (at, claim) in claims.iter().enumerate() {
        let claim_cost = 1 + claim.mode.need().units() as usize / PERMITS_A_LEASE;
        if at > first && cost + claim_cost > budget {
            batches.push(&claims[first..at]);
            first = at;
            cost = 0;
        }
        cost += claim_cost;
    }
    if first < claims.len() {
        batches.push(&claims[first..]);
    }
    batches
}

/// Returns the call that renews a batch of leases, with the fences or without.
///
/// While a slot is on its way to another node of a cluster, a call with two different keys must
/// wait, maybe for longer than a lease lasts. So in a cluster, another command extends the fence.
fn renewal(batch: &[Claim], with_fences: bool) -> Call<'static> {
    let mut keys = Vec::with_capacity(2 * batch.len());
    for claim in batch {
        let [sole, shared, ..] = keys::semaphore(claim.mode.into());
        let is_fenced = claim.mode.is_fenced();
        let lease = if is_fenced { sole } else { shared };
        let fence = if is_fenced && with_fences { keys::FENCE } else { lease };
        keys.push((&claim.name, lease));
        keys.push((&claim.name, fence));
    }
    let mut call = Call::with_keys(&SCRIPTS.renew, keys.into_iter());
    for claim in batch {
        call = call
            .owner(claim.owner)
            .arg(millis(claim.lease))
            .arg(millis(claim.fence_life))
            .arg(claim.mode.need().units());
    }
    call
}
