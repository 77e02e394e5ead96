//! Calls of the scripts that grant a lease.

use std::time::Duration;

use tokio::time::Instant;

use super::{super::RedisBackend, PART, millis, replies};
use crate::{
    backend::{
        Claim, Claimed, Leases, Mode, Need, Occupied,
        redis::{
            keys,
            scripts::{Call, SCRIPTS, Script},
        },
    },
    error::BackendError,
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
            let newer = Box::pin(self.read_whole(&claim.name, false)).await?;
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
