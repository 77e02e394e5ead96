//! The scripts about leases.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::timeout;

use super::{
    RedisBackend, millis, reply,
    script::{Call, SCRIPTS},
};
use crate::{
    backend::{
        Acquired, AcquiredAll, CALL_LIFE, Changes, Claim, Claimed, Grant, HANDOVER_LIFE, Leases,
        Mode, Occupied, Owner, Renewal, acquire_in_order, no_pass, several,
    },
    error::{BackendError, BackendErrorKind},
    key::{Family, Name},
};

/// Where what is held in a mode stands: the suffix of its key, and whether it is a set of holds.
fn place(mode: Mode) -> (&'static str, bool) {
    match mode {
        Mode::Exclusive | Mode::Fair => ("l", false),
        Mode::Write => ("w", false),
        Mode::Read => ("r", true),
        Mode::Permit { .. } => ("p", true),
    }
}

/// The suffixes of a lease's queue, and of a read-write lock's queue, readers and waiting writers.
const QUEUE: &[&str] = &["q", "d"];
const READ_WRITE: &[&str] = &["rq", "rd", "r", "i"];

/// For how many milliseconds a claim keeps its place in a queue; none, if it takes none.
fn kept(claim: &Claim) -> u64 {
    if claim.waits { millis(claim.place_life()) } else { 0 }
}

/// How a claim waits, as the scripts know it by: 1 it is only to be called; 2 it is not held to the order.
fn how(claim: &Claim) -> u8 {
    u8::from(!claim.takes_handover) | u8::from(claim.mode == Mode::Exclusive) << 1
}

/// Whether one of those who wait is called by a channel of his process, so that the others need not wake. Of
/// those who wait for an entry, all want to know.
fn has_own_channels(name: &Name) -> bool {
    name.family() == Family::Lock
}

/// The channel of this process beside the one of all.
fn own_channel(channel: &str) -> Arc<str> {
    format!("{channel}:{}", Owner::process()).into()
}

impl RedisBackend {
    /// Runs a script that may grant a claim. Where too few replicas confirm that, it is given back.
    async fn granted(&self, claim: &Claim, call: Call<'_>) -> Result<Claimed, BackendError> {
        let (answer, confirmed) = self.0.servers.grant(call).await?;
        let answer = self.understood(reply::claimed(answer))?;
        if !confirmed && matches!(answer, Claimed::Granted(_)) {
            return Err(Box::pin(self.unconfirmed(claim)).await);
        }
        Ok(answer)
    }

    async fn unconfirmed(&self, claim: &Claim) -> BackendError {
        // If that fails, too, whoever claimed it undoes it.
        let _ = self.release(claim).await;
        unreplicated()
    }

    /// Ends an exclusive lease, and pushes why.
    pub(super) async fn release_with(
        &self,
        claim: &Claim,
        message: Bytes,
    ) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.release, 2)
            .keys(&claim.name, &["l", self.channel()])
            .token(claim.owner)
            .arg(&message[..]);
        self.released(call).await
    }

    /// Ends what a script ends, and takes over whether anyone can be told.
    async fn released(&self, call: Call<'_>) -> Result<bool, BackendError> {
        let answer = reply::released(self.0.servers.call(call).await?);
        let (held, muted) = self.understood(answer)?;
        if let Some(muted) = muted {
            self.mute(muted);
        }
        Ok(held)
    }

    /// Acquires the lease of an entry, unless one stands that was not seen.
    pub(super) async fn acquire_with(
        &self,
        claim: &Claim,
        seen: u64,
    ) -> Result<Claimed, BackendError> {
        let call = Call::new(&SCRIPTS.acquire, 3)
            .keys(&claim.name, &["l", "f", &claim.name.entry_suffix()])
            .token(claim.owner)
            .arg(millis(claim.lease))
            .arg(millis(claim.fence_life))
            .arg(seen);
        self.granted(claim, call).await
    }

    async fn acquire_queued(&self, claim: &Claim, keys: &[&str]) -> Result<Claimed, BackendError> {
        let call = Call::new(&SCRIPTS.acquire_queued, keys.len())
            .keys(&claim.name, keys)
            .token(claim.owner)
            .arg(millis(claim.lease))
            .arg(millis(claim.fence_life))
            .arg(kept(claim))
            .arg(how(claim));
        self.granted(claim, call).await
    }

    async fn acquire_read(&self, claim: &Claim) -> Result<Claimed, BackendError> {
        let call = Call::new(&SCRIPTS.acquire_read, 5)
            .keys(&claim.name, &["w", "rq", "rd", "r", "i"])
            .token(claim.owner)
            .arg(millis(claim.lease))
            .arg(kept(claim));
        self.granted(claim, call).await
    }

    async fn acquire_permit(
        &self,
        claim: &Claim,
        limit: u32,
        count: u32,
    ) -> Result<Claimed, BackendError> {
        let call = Call::new(&SCRIPTS.acquire_permit, 1)
            .keys(&claim.name, &["p"])
            .token(claim.owner)
            .arg(millis(claim.lease))
            .arg(limit)
            .arg(count);
        self.granted(claim, call).await
    }

    async fn release_queued(&self, claim: &Claim, keys: &[&str]) -> Result<bool, BackendError> {
        // What replicas are to confirm, its holder must ask for himself.
        let handed_over = if self.0.options.replicas.is_none() { millis(HANDOVER_LIFE) } else { 0 };
        let call = Call::new(&SCRIPTS.release_queued, keys.len())
            .keys(&claim.name, keys)
            .token(claim.owner)
            .arg(u8::from(has_own_channels(&claim.name)))
            .arg(millis(CALL_LIFE))
            .arg(handed_over)
            .arg(millis(claim.fence_life))
            .arg(millis(claim.place_life().saturating_sub(HANDOVER_LIFE)));
        // Where one of this process waited or waits, others do, too. (Of a fair one every release would be two commands.)
        let contended = claim.mode == Mode::Exclusive
            && self.0.servers.channels().wants(&claim.name.suffixed(self.channel()));
        self.released(call.answered_last(contended)).await
    }

    async fn release_permit(&self, claim: &Claim, count: u32) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.release_permit, 2)
            .keys(&claim.name, &["p", self.channel()])
            .token(claim.owner)
            .arg(count);
        self.released(call).await
    }
}

impl Leases for RedisBackend {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        let answer = match claim.mode {
            Mode::Exclusive | Mode::Fair => {
                self.acquire_queued(claim, &["l", "f", "q", "d"]).await?
            }
            Mode::Write => self.acquire_queued(claim, &["w", "f", "rq", "rd", "r", "i"]).await?,
            Mode::Read => self.acquire_read(claim).await?,
            Mode::Permit { limit, count } => self.acquire_permit(claim, limit, count).await?,
        };
        match answer {
            Claimed::Granted(grant) => Ok(Acquired::Granted(grant)),
            Claimed::Held(occupied) => Ok(Acquired::Held(occupied)),
            Claimed::Newer(_) => Err(reply::unreadable("an entry in answer to an acquire")),
        }
    }

    async fn acquire_all(&self, claims: &[Claim]) -> Result<AcquiredAll, BackendError> {
        several::check(claims)?;
        if !self.0.servers.serve_together(claims.iter().map(|claim| &claim.name)) {
            return acquire_in_order(self, claims).await;
        }
        let mut call = Call::new(&SCRIPTS.acquire_all, 4 * claims.len());
        for claim in claims {
            call = call.keys(&claim.name, &["l", "f"]).keys(&claim.name, QUEUE);
        }
        for claim in claims {
            call = call
                .token(claim.owner)
                .arg(millis(claim.lease))
                .arg(millis(claim.fence_life))
                .arg(kept(claim));
        }
        let (answer, confirmed) = self.0.servers.grant(call).await?;
        let answer = self.understood(reply::acquired_all(answer, claims.len()))?;
        if !confirmed && matches!(answer, AcquiredAll::Granted(_)) {
            join_all(claims.iter().map(|claim| self.release(claim))).await;
            return Err(unreplicated());
        }
        Ok(answer)
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        let batches = || claims.chunks(self.0.servers.renewed_together());
        let calls = batches().map(|batch| {
            let mut call = Call::new(&SCRIPTS.renew, 2 * batch.len());
            for claim in batch {
                // (A set of holds has no fence; and where a slot moves, of two keys either both must be there or none.)
                let (held, is_set) = place(claim.mode);
                call = call.keys(&claim.name, &[held, if is_set { held } else { "f" }]);
            }
            for claim in batch {
                let members = match claim.mode {
                    Mode::Exclusive | Mode::Fair | Mode::Write => 0,
                    Mode::Read => 1,
                    Mode::Permit { count, .. } => count,
                };
                call = call
                    .token(claim.owner)
                    .arg(millis(claim.lease))
                    .arg(millis(claim.fence_life))
                    .arg(members);
            }
            call
        });
        let calls: Vec<_> = calls.collect();
        let answers = self.0.servers.renew(&calls).await?;
        let mut renewed = Vec::with_capacity(claims.len());
        for (batch, (answer, confirmed)) in batches().zip(answers) {
            let held = self.understood(reply::flags(answer, batch.len()))?;
            renewed.extend(held.into_iter().map(Renewal::from));
            if !confirmed {
                return Err(unreplicated());
            }
        }
        Ok(renewed)
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        let channel = self.channel();
        match claim.mode {
            Mode::Exclusive | Mode::Fair => {
                self.release_queued(claim, &["l", channel, "q", "d", "f"]).await
            }
            Mode::Read | Mode::Write => {
                self.release_queued(claim, &["w", channel, "rq", "rd", "f", "r", "i"]).await
            }
            Mode::Permit { count, .. } => self.release_permit(claim, count).await,
        }
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        let name = &from.name;
        let call = match (from.mode, to.mode) {
            (Mode::Exclusive | Mode::Fair, Mode::Exclusive | Mode::Fair) => {
                Call::new(&SCRIPTS.pass, 2).keys(name, &["l", "f"])
            }
            (Mode::Read, Mode::Write) => {
                Call::new(&SCRIPTS.upgrade, 3).keys(name, &["w", "f", "r"])
            }
            (Mode::Write, Mode::Read) => Call::new(&SCRIPTS.downgrade, 2 + READ_WRITE.len())
                .keys(name, &["w", self.channel()])
                .keys(name, READ_WRITE),
            _ => return Err(no_pass(from, to)),
        };
        let call =
            call.token(from.owner).token(to.owner).arg(millis(to.lease)).arg(millis(to.fence_life));
        let (answer, confirmed) = self.0.servers.grant(call).await?;
        let passed = self.understood(reply::passed(answer))?;
        if !confirmed && passed.is_some() {
            return Err(self.unconfirmed(to).await);
        }
        Ok(passed)
    }

    async fn holder(&self, name: &Name, mode: Mode) -> Result<Option<Occupied>, BackendError> {
        let (suffix, is_set) = place(mode);
        let call = Call::new(&SCRIPTS.holder, 1).keys(name, &[suffix]).arg(u8::from(is_set));
        self.understood(reply::holder(self.0.servers.call(call).await?))
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        let (held, queue): (_, &[_]) = match mode {
            Mode::Exclusive | Mode::Fair => ("l", QUEUE),
            Mode::Read | Mode::Write => ("w", READ_WRITE),
            Mode::Permit { .. } => ("p", &[]),
        };
        let call = Call::new(&SCRIPTS.clear, 2 + queue.len())
            .keys(name, &[self.channel(), held])
            .keys(name, queue);
        self.understood(reply::flag(self.0.servers.call(call).await?))
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        let channels = self.0.servers.channels();
        if channels.is_mute() {
            let why = "the server refuses to publish";
            return Err(BackendError::new(BackendErrorKind::Refused, why));
        }
        let channel: Arc<str> = name.suffixed(self.channel()).into();
        let mut changes = match has_own_channels(name) {
            true => channels.listen_to_both(&channel, &own_channel(&channel)),
            false => channels.listen(&channel),
        };
        let subscribed = async {
            self.0.servers.attend(&channel).await?;
            changes.confirmed().await
        };
        match timeout(self.0.options.command_timeout, subscribed).await {
            Ok(answer) => answer.map(|()| changes),
            Err(elapsed) => Err(BackendError::new(BackendErrorKind::Unavailable, elapsed)),
        }
    }

    fn changes_along(&self, name: &Name) -> Option<Changes> {
        let channels = self.0.servers.channels();
        if channels.is_mute() || !has_own_channels(name) {
            return None;
        }
        let channel = name.suffixed(self.channel()).into();
        channels.listen_along(&channel, &own_channel(&channel))
    }

    /// (A renewal of many leases is several commands at once.)
    fn time_limit(&self) -> Option<Duration> {
        let give_back = u32::from(self.0.options.replicas.is_some());
        Some(self.0.options.command_timeout.saturating_mul(1 + give_back))
    }

    fn shard(&self, name: &Name) -> usize {
        self.0.servers.shard(name)
    }

    fn apart(&self) -> Option<Self> {
        let (origin, options) = (self.0.origin.clone(), self.0.options.clone());
        Some(Self::with_connections_of_its_own(origin, options))
    }
}

fn unreplicated() -> BackendError {
    let why = "too few replicas confirmed it in time";
    BackendError::new(BackendErrorKind::Unreplicated, why)
}
