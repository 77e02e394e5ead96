//! The scripts about entries.

use std::time::Duration;

use redis::{Cmd, Value};

use super::{
    RedisBackend, millis, reply,
    script::{Call, SCRIPTS, Script, write_key},
};
use crate::{
    backend::{Change, Claim, Claimed, Committed, Entry, Failure, Grant, Store},
    error::BackendError,
    key::Name,
};

impl RedisBackend {
    /// A write without a load, with the keys that it touches.
    fn write<'a>(&self, script: &'a Script, name: &Name) -> Call<'a> {
        let [before, after] = name.neighbours();
        Call::new(script, 6)
            .keys(name, &["l", "f", &name.entry_suffix(), self.channel()])
            .arg(before)
            .arg(after)
    }
}

impl Store for RedisBackend {
    async fn get(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        let mut get = Cmd::with_capacity(2, name.prefix().len() + 16);
        get.arg("GET");
        write_key(&mut get, name, &name.entry_suffix());
        // (The slot of a cluster is found by the prefix as well.)
        match self.0.servers.run(&get, name.prefix()).await? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => reply::entry(bytes).map(Some),
            other => self.understood(Err(reply::unreadable(&other))),
        }
    }

    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        self.acquire_with(claim, seen).await
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
            .keys(&claim.name, &["l", "f", &claim.name.entry_suffix(), self.channel()])
            .token(claim.owner)
            .arg(grant.fence())
            .arg(&entry.encode()[..])
            .arg(ttl.map_or(0, millis))
            .arg(self.0.options.push_limit);
        let answer = reply::committed(self.0.servers.call(call).await?);
        let (outcome, muted) = self.understood(answer)?;
        if let Some(muted) = muted {
            self.mute(muted);
        }
        Ok(outcome)
    }

    async fn fail(&self, claim: &Claim, failure: &Failure) -> Result<bool, BackendError> {
        self.release_with(claim, Change::Failed(failure.clone()).encode()).await
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
            .arg(self.0.options.push_limit);
        self.understood(reply::fence(self.0.servers.call(call).await?))
    }

    async fn invalidate(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        let call = self.write(&SCRIPTS.invalidate, name).arg(millis(fence_life));
        self.understood(reply::fence(self.0.servers.call(call).await?))
    }
}
