//! The scripts about leases.

use bytes::Bytes;
use redis::Value;
use tokio::time::timeout;

use super::{
    RedisBackend, fence, lease, millis, reply,
    script::{Call, SCRIPTS},
};
use crate::{
    backend::{Acquired, Change, Changes, Claimed, Leases},
    error::{BackendError, BackendErrorKind},
    key::Name,
    lease::{Claim, Grant, Occupied},
};

/// As many leases are renewed by one script: few enough not to hold the server up.
const RENEW_BATCH: usize = 100;

impl RedisBackend {
    pub(super) async fn release_with(
        &self,
        claim: &Claim,
        message: Bytes,
    ) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.release)
            .key(lease(&claim.name))
            .key(self.channel(&claim.name))
            .arg(claim.holder.to_string())
            .arg(message);
        self.understood(reply::flag(self.0.commands.call(call).await?))
    }

    pub(super) async fn acquire_with(
        &self,
        claim: &Claim,
        seen: Option<u64>,
    ) -> Result<Value, BackendError> {
        let mut call = Call::new(&SCRIPTS.acquire).key(lease(&claim.name)).key(fence(&claim.name));
        if seen.is_some() {
            call = call.key(claim.name.entry());
        }
        call = call
            .arg(claim.holder.to_string())
            .arg(millis(claim.lease))
            .arg(millis(claim.fence_life));
        if let Some(seen) = seen {
            call = call.arg(seen.to_string());
        }
        self.0.commands.call(call).await
    }
}

impl Leases for RedisBackend {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        match self.understood(reply::claimed(self.acquire_with(claim, None).await?))? {
            Claimed::Granted(grant) => Ok(Acquired::Granted(grant)),
            Claimed::Held(occupied) => Ok(Acquired::Held(occupied)),
            Claimed::Newer(_) => Err(reply::unreadable("an entry in answer to an acquire")),
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<bool>, BackendError> {
        let batches = claims.chunks(RENEW_BATCH).map(async |batch| {
            let mut call = Call::new(&SCRIPTS.renew);
            for claim in batch {
                call = call.key(lease(&claim.name)).key(fence(&claim.name));
            }
            for claim in batch {
                call = call
                    .arg(claim.holder.to_string())
                    .arg(millis(claim.lease))
                    .arg(millis(claim.fence_life));
            }
            self.understood(reply::flags(self.0.commands.call(call).await?, batch.len()))
        });
        let renewed = futures_util::future::try_join_all(batches).await?;
        Ok(renewed.concat())
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        self.release_with(claim, Change::Wake.encode()).await
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        let call = Call::new(&SCRIPTS.pass)
            .key(lease(&from.name))
            .key(fence(&from.name))
            .arg(from.holder.to_string())
            .arg(to.holder.to_string())
            .arg(millis(to.lease))
            .arg(millis(to.fence_life));
        reply::passed(self.0.commands.call(call).await?)
    }

    async fn holder(&self, name: &Name) -> Result<Option<Occupied>, BackendError> {
        let call = Call::new(&SCRIPTS.holder).key(lease(name));
        reply::holder(self.0.commands.call(call).await?)
    }

    async fn clear(&self, name: &Name) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.clear).key(lease(name)).key(self.channel(name));
        reply::flag(self.0.commands.call(call).await?)
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        let push = &self.0.push;
        if push.channels().is_mute() {
            let why = "the server refuses to publish";
            return Err(BackendError::new(BackendErrorKind::Refused, why));
        }
        push.start();
        if push.is_down() {
            let why = "the last attempt to connect failed";
            return Err(BackendError::new(BackendErrorKind::Unavailable, why));
        }
        let mut changes = push.channels().listen(&self.channel(name).into());
        match timeout(self.0.options.command_timeout, changes.confirmed()).await {
            Ok(answer) => answer.map(|()| changes),
            Err(elapsed) => Err(BackendError::new(BackendErrorKind::Unavailable, elapsed)),
        }
    }

    fn apart(&self) -> Option<Self> {
        Some(Self::over(self.0.client.clone(), self.0.options.clone()))
    }
}
