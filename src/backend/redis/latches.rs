//! The scripts about latches.

use std::time::Duration;

use super::{
    RedisBackend, millis, reply,
    script::{Call, SCRIPTS},
};
use crate::{
    backend::{Countdown, Latches, Owner},
    error::BackendError,
    key::Name,
};

impl RedisBackend {
    /// How far a latch is; and takes over whether anyone can be told.
    async fn countdown(&self, call: Call<'_>) -> Result<Option<Countdown>, BackendError> {
        let answer = reply::countdown(self.0.servers.call(call).await?);
        let (countdown, muted) = self.understood(answer)?;
        if let Some(muted) = muted {
            self.mute(muted);
        }
        Ok(countdown)
    }
}

impl Latches for RedisBackend {
    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.set_latch, 1)
            .keys(name, &["n"])
            .token(id)
            .arg(count)
            .arg(millis(ttl));
        self.understood(reply::flag(self.0.servers.call(call).await?))
    }

    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError> {
        let call =
            Call::new(&SCRIPTS.count_down, 2).keys(name, &["n", self.channel()]).token(id).arg(by);
        self.countdown(call).await
    }

    async fn latch(&self, name: &Name) -> Result<Option<Countdown>, BackendError> {
        let call = Call::new(&SCRIPTS.count_left, 1).keys(name, &["n"]);
        self.countdown(call).await
    }

    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.clear, 2).keys(name, &[self.channel(), "n"]);
        self.understood(reply::flag(self.0.servers.call(call).await?))
    }
}
