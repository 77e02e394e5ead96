//! Calls of the scripts that grant a lease.

use std::time::Duration;

use tokio::time::Instant;

use super::{super::RedisBackend, PART, millis, replies};
use crate::{
    backend::{
        Claim, Claimed, Leases, Mode, Occupied,
        redis::{
            keys,
            scripts::{Call, SCRIPTS},
        },
    },
    error::BackendError,
};

/// The bit of a ticket whose claim takes no handover: see `scripts/lib/turn_only.lua`.
const TURN_ONLY: u8 = 1;

/// Returns the suffix of the key that holds what is granted in a mode, and whether it is a sorted
/// set.
pub(super) fn held_at(mode: Mode) -> (&'static str, bool) {
    match mode {
        Mode::Exclusive | Mode::Fair => (keys::LEASE, false),
        Mode::Write => (keys::WRITER, false),
        Mode::Read => (keys::READERS, true),
        Mode::Permit { .. } => (keys::PERMITS, true),
    }
}

/// Returns the suffix of the key that holds until when processes keep their queue entries.
pub(super) fn deadlines_at(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive | Mode::Fair => keys::DEADLINES,
        Mode::Read | Mode::Write => keys::RW_DEADLINES,
        Mode::Permit { .. } => keys::PERMIT_DEADLINES,
    }
}

/// Returns for how many milliseconds the queue entry of a claim is kept, or zero if it takes none.
pub(super) fn entry_life(claim: &Claim) -> u64 {
    if claim.waits { millis(claim.queue_entry_life()) } else { 0 }
}

fn ticket_bits(claim: &Claim) -> u8 {
    if claim.takes_handover { 0 } else { TURN_ONLY }
}

impl RedisBackend {
    /// Runs a script that may grant a lock.
    async fn granted(&self, claim: &Claim, call: Call<'_>) -> Result<Claimed, BackendError> {
        let reply = self.granted_or_part(claim, call).await?;
        self.checked(reply.ok_or_else(|| replies::unreadable("an entry in reply to an acquire")))
    }

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
            let call = Call::new(&SCRIPTS.acquire, 5)
                .keys(&claim.name, &[keys::LEASE, keys::FENCE, &entry, keys::PROCESSES])
                .keys(&claim.name, &[keys::FAILURE])
                .owner(claim.owner)
                .arg(millis(claim.lease))
                .arg(millis(claim.fence_life))
                .arg(seen)
                .arg(PART)
                .arg(if claim.listens { self.registration() } else { "" });
            if let Some(claimed) = self.granted_or_part(claim, call).await? {
                return Ok(claimed);
            }
            let newer = Box::pin(self.read_whole(&claim.name, false)).await?;
            if let Some(entry) = newer.filter(|entry| entry.fence > seen) {
                return Ok(Claimed::Newer(entry));
            }
            // The entry has gone meanwhile.
        }
    }

    pub(super) async fn acquire_lock(&self, claim: &Claim) -> Result<Claimed, BackendError> {
        let (queue, rest) = match claim.mode {
            Mode::Exclusive => (keys::UNORDERED, &[][..]),
            Mode::Fair => (keys::QUEUE, &[][..]),
            Mode::Write => (keys::RW_QUEUE, &[keys::READERS, keys::WAITING_WRITERS][..]),
            Mode::Read => return self.acquire_read(claim).await,
            Mode::Permit { limit, count } => return self.acquire_permit(claim, limit, count).await,
        };
        let deadlines = deadlines_at(claim.mode);
        let keys = [held_at(claim.mode).0, keys::FENCE, queue, deadlines];
        let call = Call::new(&SCRIPTS.acquire_queued, keys.len() + rest.len())
            .keys(&claim.name, &keys)
            .keys(&claim.name, rest)
            .owner(claim.owner)
            .arg(millis(claim.lease))
            .arg(millis(claim.fence_life))
            .arg(u8::from(claim.mode.is_ordered()))
            .arg(entry_life(claim))
            .arg(ticket_bits(claim));
        self.granted(claim, call).await
    }

    async fn acquire_read(&self, claim: &Claim) -> Result<Claimed, BackendError> {
        let keys = [
            keys::WRITER,
            keys::RW_QUEUE,
            keys::RW_DEADLINES,
            keys::READERS,
            keys::WAITING_WRITERS,
        ];
        let call = Call::new(&SCRIPTS.acquire_read, keys.len())
            .keys(&claim.name, &keys)
            .owner(claim.owner)
            .arg(millis(claim.lease))
            .arg(entry_life(claim))
            .arg(ticket_bits(claim));
        self.granted(claim, call).await
    }

    async fn acquire_permit(
        &self,
        claim: &Claim,
        limit: u32,
        count: u32,
    ) -> Result<Claimed, BackendError> {
        let keys = [keys::PERMITS, keys::PERMIT_QUEUE, keys::PERMIT_DEADLINES];
        let call = Call::new(&SCRIPTS.acquire_permit, keys.len())
            .keys(&claim.name, &keys)
            .owner(claim.owner)
            .arg(millis(claim.lease))
            .arg(entry_life(claim))
            .arg(ticket_bits(claim))
            .arg(limit)
            .arg(count);
        self.granted(claim, call).await
    }
}
