//! The [`Store`] of a Redis backend.

use std::time::Duration;

use redis::{Cmd, Value};

use super::{super::RedisBackend, millis, replies};
use crate::{
    backend::{
        Change, Claim, Claimed, Committed, Entry, Failure, Grant, Store,
        redis::{
            keys,
            scripts::{Call, SCRIPTS, Script, write_key},
        },
    },
    error::BackendError,
    key::Name,
};

impl RedisBackend {
    /// Returns a call of a script that writes without a load, with the keys that it touches.
    fn write<'a>(&self, script: &'a Script, name: &Name) -> Call<'a> {
        let [before, after] = name.neighbours();
        Call::new(script, 6)
            .keys(name, &[keys::LEASE, keys::FENCE, &name.entry_suffix(), self.channel()])
            .arg(before)
            .arg(after)
    }
}

impl Store for RedisBackend {
    async fn get(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        let mut get = Cmd::with_capacity(2, name.prefix().len() + 16);
        get.arg("GET");
        write_key(&mut get, name, &name.entry_suffix());
        // The prefix is enough to find the slot in a cluster.
        match self.0.servers.run(&get, name.prefix()).await? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => replies::entry(bytes).map(Some),
            other => self.checked(Err(replies::unreadable(&other))),
        }
    }

    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        self.acquire_entry(claim, seen).await
    }

    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let entry = entry.clone().with_fence(grant.fence());
        let call = Call::new(&SCRIPTS.commit, 4)
            .keys(
                &claim.name,
                &[keys::LEASE, keys::FENCE, &claim.name.entry_suffix(), self.channel()],
            )
            .owner(claim.owner)
            .arg(grant.fence())
            .arg(&entry.encode()[..])
            .arg(ttl.map_or(0, millis))
            .arg(self.0.config.push_limit);
        let reply = replies::committed(self.0.servers.call(call).await?);
        let (outcome, publish_refused) = self.checked(reply)?;
        self.record_publish_refused(publish_refused);
        Ok(outcome)
    }

    async fn fail(&self, claim: &Claim, failure: &Failure) -> Result<bool, BackendError> {
        self.release_entry(claim, Change::Failed(failure.clone()).encode()).await
    }

    async fn put(
        &self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
    ) -> Result<u64, BackendError> {
        let call = self
            .write(&SCRIPTS.put, name)
            .arg(&entry.encode()[..])
            .arg(millis(ttl))
            .arg(millis(fence_life))
            .arg(self.0.config.push_limit);
        self.checked(replies::fence(self.0.servers.call(call).await?))
    }

    async fn invalidate(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        let call = self.write(&SCRIPTS.invalidate, name).arg(millis(fence_life));
        self.checked(replies::fence(self.0.servers.call(call).await?))
    }
}
