//! The [`Store`] of a Redis backend.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use redis::Value;

use super::{
    super::RedisBackend,
    PART,
    entries::{staged_suffix, with_stage},
    millis,
    replies::{self, CommitReply},
};
use crate::{
    backend::{
        Announcement, BackOff, Change, Claim, Claimed, Committed, Entry, EntryAnswers, Failure,
        Grant, Owner, Store, TAG_LIFE, TagEnd, TagEnds, Tap, Windows,
        redis::{
            keys,
            scripts::{Call, SCRIPTS, write_key},
        },
    },
    error::BackendError,
    key::Name,
};

#[async_trait]
impl Store for RedisBackend {
    async fn get(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        self.read(name, false).await
    }

    async fn get_aged(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        self.read(name, true).await
    }

    async fn get_many(&self, names: &[Name], aged: bool) -> Result<EntryAnswers, BackendError> {
        self.read_many(names, aged).await
    }

    async fn fetch(&self, name: &Name, _: &Announcement) -> Result<Option<Entry>, BackendError> {
        self.read(name, false).await
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
        let is_staged = self.is_staged(&entry, ttl);
        let tiers = if grant.has_no_entry() { String::new() } else { self.tiers(&claim.name) };
        let mut reply = self.commit_once(claim, &entry, ttl, is_staged, &tiers).await?;
        if let CommitReply::Unstaged = reply {
            // A full server takes no staged entry, but it pushes what it cannot store.
            reply = Box::pin(self.commit_once(claim, &entry, ttl, false, &tiers)).await?;
        }
        self.outcome(&claim.name, reply).await
    }

    async fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError> {
        self.release_entry(claim, Change::Failed(failure.clone()).encode(), back_off).await
    }

    async fn put(
        &self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
    ) -> Result<u64, BackendError> {
        let staged = self.is_staged(entry, Some(ttl)).then(|| staged_suffix(Owner::fresh()));
        let bytes = if staged.is_some() { Bytes::new() } else { entry.encode() };
        let mut call = self
            .change("put", name, staged.as_deref(), fence_life)
            .arg(bytes.get(..Entry::FENCE.start).unwrap_or_default())
            .arg(bytes.get(Entry::STORED_AT.end..).unwrap_or_default())
            .arg(entry.weight())
            .arg(millis(ttl))
            .arg(self.0.config.push_limit);
        if let Some(suffix) = &staged {
            call = with_stage(call, name, suffix, entry);
        }
        Ok(self.changed(call).await?.0)
    }

    async fn touch(
        &self,
        name: &Name,
        windows: Windows,
        fence_life: Duration,
    ) -> Result<Option<u64>, BackendError> {
        let call = self
            .change("touch", name, None, fence_life)
            .arg(windows.encoded())
            .arg(millis(windows.in_range().kept()));
        let (fence, is_there) = self.changed(call).await?;
        Ok(is_there.then_some(fence))
    }

    async fn expire(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        Ok(self.changed(self.change("expire", name, None, fence_life)).await?.0)
    }

    async fn invalidate(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        Ok(self.changed(self.change("invalidate", name, None, fence_life)).await?.0)
    }

    async fn supersede(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        Ok(self.changed(self.change("supersede", name, None, fence_life)).await?.0)
    }

    fn tap(&self, tier: Weak<dyn Tap>, every: Duration) -> bool {
        self.0.servers.channels().add_tap(tier);
        self.tell_at_intervals(every)
    }

    fn hears(&self, name: &Name, begins: bool) -> bool {
        self.hears_of(name, begins)
    }

    async fn tag_number(&self, tags: &Name) -> Result<u64, BackendError> {
        let key = tags.suffixed(keys::TAG_NUMBER);
        let last = self.0.servers.run(redis::cmd("GET").arg(&key), &key).await?;
        if let Ok(number) = redis::from_redis_value(last) {
            return Ok(number);
        }
        let call =
            Call::new(&SCRIPTS.end_tag, 1).keys(tags, &[keys::TAG_NUMBER]).arg(millis(TAG_LIFE));
        self.checked(replies::fence(self.0.servers.call(call).await?))
    }

    async fn tag_ends(
        &self,
        tags: &Name,
        which: &[Arc<str>],
    ) -> Result<Vec<TagEnds>, BackendError> {
        let mut read = redis::cmd("MGET");
        which.iter().for_each(|tag| write_key(&mut read, tags, &keys::tag(tag)));
        // A number that cannot be read may be an end.
        let unread = TagEnds { ended: u64::MAX, expired: 0 };
        let ends = |value: &Value| match value {
            Value::BulkString(text) => TagEnds::decode(text).unwrap_or(unread),
            _ => TagEnds::default(),
        };
        match self.0.servers.run(&read, tags.prefix()).await? {
            Value::Array(values) if values.len() == which.len() => {
                Ok(values.iter().map(ends).collect())
            }
            other => self.checked(Err(replies::unreadable(&other))),
        }
    }

    async fn end_tag(&self, tags: &Name, tag: &str, end: TagEnd) -> Result<u64, BackendError> {
        let tiers = self.0.process_channels.as_ref().map(|own| own.of_tags(tags));
        let call = Call::new(&SCRIPTS.end_tag, 2)
            .keys(tags, &[keys::TAG_NUMBER, &keys::tag(tag)])
            .arg(millis(TAG_LIFE))
            .arg(u8::from(end == TagEnd::Expired))
            .arg(tiers.unwrap_or_default())
            .arg(format!("{}i", tags.prefix_of_sibling(tag)));
        self.checked(replies::fence(self.0.servers.call(call).await?))
    }
}

impl RedisBackend {
    /// Returns a call of the script that changes an entry without a load.
    fn change(
        &self,
        what: &str,
        name: &Name,
        staged: Option<&str>,
        fence_life: Duration,
    ) -> Call<'static> {
        let [before, after] = name.neighbours();
        let mut call = Call::new(&SCRIPTS.change, 7 + usize::from(staged.is_some()))
            .keys(name, &[keys::LEASE, keys::FENCE, &name.entry_suffix(), self.channel()])
            .keys(name, &[keys::FAILURE])
            .arg(before)
            .arg(after);
        if let Some(staged) = staged {
            call = call.keys(name, &[staged]);
        }
        call.arg(what).arg(millis(fence_life)).arg(self.tiers(name))
    }

    /// Sends a change. Returns the fence, and whether the entry is there.
    async fn changed(&self, call: Call<'_>) -> Result<(u64, bool), BackendError> {
        self.checked(replies::changed(self.0.servers.call(call).await?))
    }

    /// Commits an entry that is staged, or an argument of the script.
    async fn commit_once(
        &self,
        claim: &Claim,
        entry: &Entry,
        ttl: Option<Duration>,
        is_staged: bool,
        tiers: &str,
    ) -> Result<CommitReply, BackendError> {
        let name = &claim.name;
        let suffix = is_staged.then(|| staged_suffix(claim.owner));
        let mut call = Call::new(&SCRIPTS.commit, 5 + usize::from(is_staged))
            .keys(name, &[keys::LEASE, keys::FENCE, &name.entry_suffix(), self.channel()])
            .keys(name, &[keys::FAILURE]);
        let bytes = if is_staged { Bytes::new() } else { entry.encode() };
        if let Some(suffix) = &suffix {
            call = call.keys(name, &[suffix]);
        }
        call = call
            .owner(claim.owner)
            .arg(entry.fence)
            .arg(bytes.get(..Entry::STORED_AT.start).unwrap_or_default())
            .arg(bytes.get(Entry::STORED_AT.end..).unwrap_or_default())
            .arg(entry.weight())
            .arg(ttl.map_or(0, millis))
            .arg(self.0.config.push_limit)
            .arg(PART)
            .arg(self.0.process_channels.as_ref().map_or(String::new(), |own| own.start(name)))
            .arg(tiers);
        if let (Some(suffix), Some(_)) = (&suffix, ttl) {
            call = with_stage(call, name, suffix, entry);
        }
        self.send_commit(call).await
    }

    async fn send_commit(&self, call: Call<'_>) -> Result<CommitReply, BackendError> {
        let call = call.answered_last(self.0.is_awaited.load(Ordering::Relaxed));
        let reply = replies::committed(self.0.servers.call(call).await?);
        let (reply, push) = self.checked(reply)?;
        self.record_publish_refused(push.publish_refused);
        if let Some(awaited) = push.awaited {
            self.0.is_awaited.store(awaited, Ordering::Relaxed);
        }
        Ok(reply)
    }

    async fn outcome(&self, name: &Name, reply: CommitReply) -> Result<Committed, BackendError> {
        match reply {
            CommitReply::Done(outcome) => Ok(outcome),
            // The newer entry may be gone by now.
            CommitReply::PartOfNewer => {
                let newer = Box::pin(self.read(name, false)).await?;
                Ok(newer.map_or(Committed::Refused, Committed::Newer))
            }
            CommitReply::Unstaged => self.checked(Err(replies::unreadable(reply))),
        }
    }
}
