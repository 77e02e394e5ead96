//! The [`Store`] of a Redis backend.

use std::time::Duration;

use super::{
    super::RedisBackend,
    PART,
    large::{stage, staged_suffix},
    millis, replies,
};
use crate::{
    backend::{
        Announcement, Change, Claim, Claimed, Committed, Entry, Failure, Grant, Owner, Store,
        Windows,
        redis::{
            keys,
            scripts::{Call, SCRIPTS, Script},
        },
    },
    error::BackendError,
    key::Name,
};

impl Store for RedisBackend {
    async fn get(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        self.read(name, false).await
    }

    async fn get_aged(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        self.read(name, true).await
    }

    async fn fetch(
        &self,
        name: &Name,
        announced: &Announcement,
    ) -> Result<Option<Entry>, BackendError> {
        match announced.bytes > PART {
            true => self.read_whole(name, false).await,
            false => self.read(name, false).await,
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
        let entry = entry.clone().with_fence(grant.fence()).encode();
        let is_staged = self.is_staged(&entry);
        let name = &claim.name;
        let mut call = Call::new(&SCRIPTS.commit, 5 + usize::from(is_staged))
            .keys(name, &[keys::LEASE, keys::FENCE, &name.entry_suffix(), self.channel()])
            .keys(name, &[keys::PROCESSES]);
        if is_staged {
            let suffix = staged_suffix(claim.owner);
            call = call.keys(name, &[&suffix]).staged(ttl.map(|_| stage(name, &suffix, &entry)));
        }
        let (head, rest): (&[u8], &[u8]) = match is_staged {
            true => (&[], &[]),
            false => (&entry[..Entry::STORED_AT.start], &entry[Entry::STORED_AT.end..]),
        };
        let call = call
            .owner(claim.owner)
            .arg(grant.fence())
            .arg(head)
            .arg(rest)
            .arg(entry.len())
            .arg(ttl.map_or(0, millis))
            .arg(self.0.config.push_limit)
            .arg(PART);
        let reply = replies::committed(self.0.servers.call(call).await?);
        let (outcome, publish_refused) = self.checked(reply)?;
        self.record_publish_refused(publish_refused);
        match outcome {
            Some(outcome) => Ok(outcome),
            // The newer entry may be gone by now.
            None => {
                let newer = Box::pin(self.read_whole(name, false)).await?;
                Ok(newer.map_or(Committed::Refused, Committed::Newer))
            }
        }
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
        let entry = entry.encode();
        let is_staged = self.is_staged(&entry);
        let mut call = write(&SCRIPTS.put, name, self.channel(), usize::from(is_staged));
        if is_staged {
            let suffix = staged_suffix(Owner::fresh());
            call = call.keys(name, &[&suffix]).staged(Some(stage(name, &suffix, &entry)));
        }
        let rest: &[u8] = if is_staged { &[] } else { &entry[Entry::STORED_AT.end..] };
        let call = call
            .arg(&entry[..Entry::FENCE.start])
            .arg(rest)
            .arg(entry.len())
            .arg(millis(ttl))
            .arg(millis(fence_life))
            .arg(self.0.config.push_limit);
        self.checked(replies::fence(self.0.servers.call(call).await?))
    }

    async fn touch(
        &self,
        name: &Name,
        windows: Windows,
        fence_life: Duration,
    ) -> Result<Option<u64>, BackendError> {
        let call = write(&SCRIPTS.rewindow, name, self.channel(), 0)
            .arg(millis(fence_life))
            .arg(windows.encoded())
            .arg(millis(windows.in_range().kept()));
        let (fence, is_there) =
            self.checked(replies::rewindowed(self.0.servers.call(call).await?))?;
        Ok(is_there.then_some(fence))
    }

    async fn expire(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        let call = write(&SCRIPTS.rewindow, name, self.channel(), 0)
            .arg(millis(fence_life))
            .arg("")
            .arg(0);
        Ok(self.checked(replies::rewindowed(self.0.servers.call(call).await?))?.0)
    }

    async fn invalidate(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        let trash = staged_suffix(Owner::fresh());
        let call = write(&SCRIPTS.invalidate, name, self.channel(), 1)
            .keys(name, &[&trash])
            .arg(millis(fence_life));
        let (burnt, is_moved) =
            self.checked(replies::invalidated(self.0.servers.call(call).await?))?;
        if is_moved {
            self.remove_soon(name.suffixed(&trash));
        }
        Ok(burnt)
    }
}

/// Returns a call of a script that writes without a load, with the keys that it touches, but for
/// this many more.
fn write<'a>(script: &'a Script, name: &Name, channel: &str, more: usize) -> Call<'a> {
    let [before, after] = name.neighbours();
    Call::new(script, 7 + more)
        .keys(name, &[keys::LEASE, keys::FENCE, &name.entry_suffix(), channel, keys::PROCESSES])
        .arg(before)
        .arg(after)
}
