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
    fn latch_call(&self, name: &Name, id: Owner, count: u32) -> Call<'static> {
        let keys = [keys::LATCH, self.channel()];
        Call::new(&SCRIPTS.latch, name, &keys).owner(id).arg(count)
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
        self.run(&self.latch_call(name, id, count).arg(millis(ttl)), replies::flag).await
    }

    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError> {
        let call = self.latch_call(name, id, by).arg("");
        let (countdown, flags) = self.run(&call, replies::countdown).await?;
        self.note_refusal(flags.is_refused());
        Ok(countdown)
    }

    async fn latch(&self, name: &Name) -> Result<Option<Countdown>, BackendError> {
        self.count_down(name, Owner::fresh(), 0).await
    }

    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError> {
        // A latch has no queue, and its own key stands in.
        let keys = [self.channel(), keys::LATCH, keys::LATCH, keys::LATCH];
        self.run(&Call::new(&SCRIPTS.clear, name, &keys).arg(0), replies::flag).await
    }
}
