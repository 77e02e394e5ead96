//! Calls of the scripts that grant leases, end them and keep queue entries.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{super::RedisBackend, PART, millis, replies};
use crate::{
    backend::{
        BackOff, Claim, Claimed, Kept, Leases, Mode, Need, Occupied,
        redis::{
            keys,
            scripts::{Call, SCRIPTS, Script},
        },
    },
    error::BackendError,
    key::Family,
};

impl RedisBackend {
    /// Runs a script that may grant a claim. A grant that too few replicas confirm is given back.
    ///
    /// A script that has to remove more entries of dead processes than it may is called again,
    /// while the time for one command lasts.
    ///
    /// Returns `None` for a newer entry of which the reply has only a part.
    async fn granted_or_part(
        &self,
        claim: &Claim,
        call: Call<'_>,
    ) -> Result<Option<Claimed>, BackendError> {
        let end = Instant::now() + self.0.config.command_timeout;
        let (reply, confirmation) = loop {
            let (reply, confirmation) = self.0.servers.grant(&call).await?;
            if !replies::is_again(&reply) {
                break (reply, confirmation);
            }
            if Instant::now() >= end {
                let occupied = Occupied { fence: 0, remaining: Duration::ZERO, holders: 0 };
                return Ok(Some(Claimed::Occupied(occupied)));
            }
        };
        let reply = self.checked(replies::claimed(reply))?;
        if let (Err(unconfirmed), Some(Claimed::Granted(_))) = (confirmation, &reply) {
            Box::pin(self.give_back(claim)).await;
            return Err(unconfirmed);
        }
        Ok(reply)
    }

    /// Gives back a grant that too few replicas confirmed.
    pub(super) async fn give_back(&self, claim: &Claim) {
        // If this fails as well, the caller that claimed the lease undoes it.
        let _ = self.release(claim).await;
    }

    /// Acquires the lease of an entry, unless an entry stands whose fence is greater than `seen`.
    pub(super) async fn acquire_entry(
        &self,
        claim: &Claim,
        seen: u64,
    ) -> Result<Claimed, BackendError> {
        loop {
            let entry = claim.name.entry_suffix();
            let call = Call::new(&SCRIPTS.acquire, 4)
                .keys(&claim.name, &[keys::LEASE, keys::FENCE, &entry, keys::FAILURE])
                .owner(claim.owner)
                .arg(millis(claim.lease))
                .arg(millis(claim.fence_life))
                .arg(seen)
                .arg(PART)
                .arg(if claim.listens { self.registration() } else { "" });
            match self.granted_or_part(claim, call).await? {
                // An entry that this caller had not seen would have been the answer.
                Some(Claimed::Granted(grant)) if seen == 0 => {
                    return Ok(Claimed::Granted(grant.without_entry()));
                }
                Some(claimed) => return Ok(claimed),
                None => {}
            }
            let newer = Box::pin(self.read(&claim.name, false)).await?;
            if let Some(entry) = newer.filter(|entry| entry.fence > seen) {
                return Ok(Claimed::Newer(entry));
            }
            // The entry has gone meanwhile.
        }
    }

    pub(super) async fn acquire_lock(&self, claim: &Claim) -> Result<Claimed, BackendError> {
        let entry_life = if claim.waits { millis(claim.queue_entry_life()) } else { 0 };
        let call = lock_call(&SCRIPTS.acquire_lock, claim, &[]).arg(entry_life);
        let reply = self.granted_or_part(claim, call).await?;
        self.checked(reply.ok_or_else(|| replies::unreadable("an entry in reply to an acquire")))
    }

    /// Ends the lease of an entry, and pushes the reason. The name may back off after it.
    pub(super) async fn release_entry(
        &self,
        claim: &Claim,
        message: Bytes,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError> {
        let mut call = Call::new(&SCRIPTS.release, 2 + usize::from(back_off.is_some()))
            .keys(&claim.name, &[keys::LEASE, self.channel()]);
        if back_off.is_some() {
            call = call.keys(&claim.name, &[keys::FAILURE]);
        }
        call = call.owner(claim.owner).arg(&message[..]);
        if let Some(back_off) = back_off {
            call = call.arg(millis(back_off.wait)).arg(millis(back_off.remembered()));
            call = call.arg(back_off.failures);
        }
        self.released(call).await
    }

    /// Ends a lease and its queue entry, and hands over what is free then.
    ///
    /// A script that has more to do than it may says so, and is called again. If this process ends
    /// before that, the next script of any waiter goes on.
    pub(super) async fn release_and_hand_over(&self, claim: &Claim) -> Result<bool, BackendError> {
        // Waiters for an entry, and those for a majority, have no queue. All are woken.
        let is_mutex = matches!(claim.mode, Mode::Exclusive | Mode::Fair);
        let has_no_queue = matches!(claim.name.family(), Family::Cache | Family::Redlock);
        let wakes_all = u8::from(is_mutex && has_no_queue);
        let call = lock_call(&SCRIPTS.release_lock, claim, &[self.channel()]).arg(wakes_all);
        // If this process waits for the name, other processes are likely to wait as well. The
        // server writes to them before it answers this caller. For a fair mutex each release would
        // be two commands.
        let is_contended = claim.mode == Mode::Exclusive && self.is_waited_for(&claim.name);
        self.released(call.answered_last(is_contended)).await
    }

    async fn released(&self, call: Call<'_>) -> Result<bool, BackendError> {
        let mut was_held = false;
        loop {
            let reply = replies::released(self.0.servers.call(&call).await?);
            let (held, told) = self.checked(reply)?;
            was_held |= held;
            self.record_publish_refused(told.publish_refused);
            if !told.again {
                return Ok(was_held);
            }
        }
    }

    /// Keeps the queue entries of a process in one queue.
    ///
    /// A script that has more to do than it may says so, and is called again.
    pub(super) async fn keep_entries(
        &self,
        claims: &[Claim],
        life: Duration,
    ) -> Result<Kept, BackendError> {
        let Some(first) = claims.first() else { return Ok(Kept::nothing()) };
        let mut call = semaphore_keys(&SCRIPTS.keep_lock, first, &[self.channel()])
            .arg(millis(first.fence_life))
            .arg(millis(life));
        for claim in claims {
            call = call.arg(queue_entry(claim));
        }
        loop {
            let reply = self.0.servers.call(&call).await?;
            let (mut kept, told) = self.checked(replies::kept(reply, claims.len()))?;
            self.record_publish_refused(told.publish_refused);
            if !told.again {
                // No push tells them that the lease is free, so they ask.
                kept.has_lapsed |= told.publish_refused == Some(true);
                return Ok(kept);
            }
        }
    }
}

/// Returns a call about a claim, with the keys of its semaphore. Further keys follow those.
pub(super) fn lock_call<'a>(script: &'a Script, claim: &Claim, further: &[&str]) -> Call<'a> {
    semaphore_keys(script, claim, further).arg(queue_entry(claim)).arg(millis(claim.fence_life))
}

pub(super) fn semaphore_keys<'a>(script: &'a Script, claim: &Claim, further: &[&str]) -> Call<'a> {
    let keys = keys::semaphore(claim.mode.into());
    Call::new(script, 5 + further.len())
        .keys(&claim.name, &[keys.sole, keys.shared, keys::FENCE, keys.queue, keys.deadlines])
        .keys(&claim.name, further)
}

/// Returns a claim as `read_entry` in `scripts/lib/queues.lua` reads it.
pub(super) fn queue_entry(claim: &Claim) -> String {
    let (need, limit) = match claim.mode.need() {
        Need::Units { count, limit } => (count.to_string(), limit),
        Need::Sole if claim.mode == Mode::Exclusive => ("x".to_owned(), 0),
        Need::Sole => ("f".to_owned(), 0),
    };
    let label = claim.label.as_deref().unwrap_or_default();
    format!("{}:{need}:{limit}:{}:{label}", claim.owner, millis(claim.lease))
}
