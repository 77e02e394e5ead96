//! The [`Latches`] of a Redis backend.

use std::time::Duration;

use async_trait::async_trait;

use super::{super::RedisBackend, millis, replies};
use crate::{
    backend::{
        Countdown, Latches, Owner,
        redis::{
            keys,
            scripts::{Call, SCRIPTS},
        },
    },
    error::BackendError,
    key::Name,
};

impl RedisBackend {
    /// Counts down, or only reads what is left if that is by 0.
    async fn count(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError> {
        let call = Call::new(&SCRIPTS.latch, 2)
            .keys(name, &[keys::LATCH, self.channel()])
            .owner(id)
            .arg(by)
            .arg("");
        let reply = replies::countdown(self.0.servers.call(call).await?);
        let (countdown, publish_refused) = self.checked(reply)?;
        self.record_publish_refused(publish_refused);
        Ok(countdown)
    }
}

#[async_trait]
impl Latches for RedisBackend {
    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.latch, 2)
            .keys(name, &[keys::LATCH, self.channel()])
            .owner(id)
            .arg(count)
            .arg(millis(ttl));
        self.checked(replies::flag(self.0.servers.call(call).await?))
    }

    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError> {
        self.count(name, id, by).await
    }

    async fn latch(&self, name: &Name) -> Result<Option<Countdown>, BackendError> {
        self.count(name, Owner::fresh(), 0).await
    }

    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError> {
        // A latch has no queue, and its own key stands in.
        let keys = [self.channel(), keys::LATCH, keys::LATCH, keys::LATCH];
        let call = Call::new(&SCRIPTS.clear, keys.len()).keys(name, &keys).arg(0);
        self.checked(replies::flag(self.0.servers.call(call).await?))
    }
}
