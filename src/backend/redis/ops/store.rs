//! The [`Store`] of a Redis backend.
//!
//! A read is a `GET`. If the age matters, a `TIME` goes before the `GET` in the same write, and the
//! time that the answer takes counts as age. A writer stages an entry that is too large for a push:
//! it sends a plain `SET` to a separate key, and the script behind the `SET` moves the entry to its
//! key.

use std::{
    io::Write,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use redis::{Cmd, Pipeline, RedisWrite, Value};
use tokio::time::Instant;

use super::{super::RedisBackend, millis, replies};
use crate::{
    backend::{
        BackOff, Change, Claim, Claimed, Committed, Countdown, Edit, Entry, EntryAnswers, Failure,
        Grant, Owner, Store, TAG_LIFE, TagEnd, TagEnds, Tap,
        redis::{
            keys,
            scripts::{Call, SCRIPTS, write_key},
        },
    },
    error::{BackendError, BackendErrorKind},
    key::Name,
    time::micros,
};

/// How long a staged entry lasts if its script does not come, in milliseconds.
const STAGE_LIFE: u64 = 10_000;

#[async_trait]
impl Store for RedisBackend {
    async fn read(&self, name: &Name, aged: bool) -> Result<Option<Entry>, BackendError> {
        if aged {
            return self.read_aged(name).await;
        }
        // The prefix is enough to find the slot in a cluster.
        let value = self.0.servers.run(&get(name), &name.prefix).await?;
        let answer = self.entry(value);
        if lacks_age(&answer) { self.read_aged(name).await } else { answer }
    }

    /// Sends one command if that is possible, and otherwise one read for each name.
    async fn get_many(&self, names: &[Name], aged: bool) -> Result<EntryAnswers, BackendError> {
        if self.0.servers.is_single() && !names.is_empty() && !aged {
            match self.read_all(names).await {
                // The user has no right to `MGET`.
                Err(error) if error.kind() == BackendErrorKind::Refused => {}
                Ok(all) if all.iter().any(lacks_age) => {}
                answers => return answers,
            }
        }
        Ok(join_all(names.iter().map(|name| self.read(name, aged))).await)
    }

    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        let entry = claim.name.entry_suffix();
        let keys = [keys::LEASE, keys::FENCE, &entry, keys::FAILURE];
        let call = Call::new(&SCRIPTS.claim, &claim.name, &keys)
            .owner(claim.owner)
            .arg(millis(claim.lease))
            .arg(millis(claim.fence_life))
            .arg(seen)
            .arg(if claim.listens { &self.0.channel_names.id } else { "" });
        let mut claimed = self.claimed(claim, &call).await?;
        if let Claimed::Granted(grant) = &mut claimed {
            // The script returns an entry that the caller had not seen. So if the caller had seen
            // no entry, the name has no entry.
            grant.has_no_entry = seen == 0;
        }
        Ok(claimed)
    }

    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let name = &claim.name;
        let entry = entry.clone().with_fence(grant.fence());
        let suffix = name.entry_suffix();
        let staged = self.staged(&entry, claim.owner);
        let mut keys = vec![keys::LEASE, keys::FENCE, &suffix, self.channel(), keys::FAILURE];
        keys.extend(staged.as_deref());
        let is_new = grant.has_no_entry;
        let tiers = if is_new { String::new() } else { self.0.channel_names.of_tiers(name) };
        let call =
            Call::new(&SCRIPTS.commit, name, &keys).owner(claim.owner).arg(entry.fence).arg(tiers);
        let head = Entry::STORED_AT.start;
        let call = with_entry(call, name, &entry, head, ttl, staged.as_deref());
        let (outcome, is_refused) = self.run(&call, replies::committed).await?;
        self.note_refusal(is_refused);
        Ok(outcome)
    }

    async fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError> {
        self.release_entry(claim, Change::Failed(failure.clone()).encode(), back_off).await
    }

    async fn edit(
        &self,
        name: &Name,
        edit: &Edit,
        fence_life: Duration,
    ) -> Result<u64, BackendError> {
        let suffix = name.entry_suffix();
        let [before, after] = [-1_i16, 1].map(|step| {
            let schema = name.schema.wrapping_add_signed(step);
            let name = name.clone().with_schema(schema);
            name.entry_suffix()
        });
        let staged = match edit {
            Edit::Put(entry, _) => self.staged(entry, Owner::fresh()),
            _ => None,
        };
        let mut keys = vec![keys::LEASE, keys::FENCE, &suffix, self.channel(), keys::FAILURE];
        keys.extend([&*before, &*after]);
        keys.extend(staged.as_deref());
        let word = match edit {
            Edit::Put(..) => "put",
            Edit::Touch { .. } => "touch",
            Edit::Expire => "expire",
            Edit::Supersede => "supersede",
            Edit::Invalidate => "invalidate",
        };
        let mut call = Call::new(&SCRIPTS.change, name, &keys)
            .arg(word)
            .arg(millis(fence_life))
            .arg(self.0.channel_names.of_tiers(name));
        match edit {
            Edit::Put(entry, ttl) => {
                let head = Entry::FENCE.start;
                call = with_entry(call, name, entry, head, Some(*ttl), staged.as_deref());
            }
            Edit::Touch { windows, seen } => {
                let windows = windows.in_range();
                call = call.arg(windows.encoded()).arg(millis(windows.kept())).arg(*seen);
            }
            Edit::Expire | Edit::Supersede | Edit::Invalidate => {}
        }
        self.run(&call, replies::fence).await
    }

    fn tap(&self, tier: Weak<dyn Tap>, every: Duration) -> bool {
        self.0.servers.events.channels.add_tap(tier);
        self.0.heartbeat.shorten(every);
        self.0.servers.is_single()
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
        let call = Call::new(&SCRIPTS.end_tag, tags, &[keys::TAG_NUMBER]).arg(millis(TAG_LIFE));
        self.run(&call, replies::fence).await
    }

    async fn tag_ends(
        &self,
        tags: &Name,
        which: &[Arc<str>],
    ) -> Result<Vec<TagEnds>, BackendError> {
        let mut read = redis::cmd("MGET");
        for tag in which {
            write_key(&mut read, tags, &keys::tag(tag));
        }
        let values = self.values(&read, tags, which.len()).await?;
        let mut ends = Vec::with_capacity(values.len());
        for value in values {
            ends.push(match value {
                // Numbers that cannot be read may be an invalidation.
                Value::BulkString(text) => {
                    TagEnds::decode(&text).unwrap_or(TagEnds { ended: u64::MAX, expired: 0 })
                }
                _ => TagEnds::default(),
            });
        }
        Ok(ends)
    }

    async fn end_tag(&self, tags: &Name, tag: &str, end: TagEnd) -> Result<u64, BackendError> {
        let call = Call::new(&SCRIPTS.end_tag, tags, &[keys::TAG_NUMBER, &keys::tag(tag)])
            .arg(millis(TAG_LIFE))
            .arg(u8::from(end == TagEnd::Expired))
            .arg(self.0.channel_names.of_tags(tags))
            .arg(format!("{}i", tags.prefix_of_sibling(tag)));
        self.run(&call, replies::fence).await
    }

    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        let call = self.latch_call(name, id, count).arg(millis(ttl));
        self.run(&call, replies::flag).await
    }

    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError> {
        let call = self.latch_call(name, id, by).arg("");
        let (countdown, flags) = self.run(&call, replies::countdown).await?;
        self.note_refusal(flags.has(replies::REFUSED));
        Ok(countdown)
    }

    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError> {
        // A latch has no queue, so its own key takes the places of the keys of a queue.
        let keys = [self.channel(), keys::LATCH, keys::LATCH, keys::LATCH];
        let call = Call::new(&SCRIPTS.clear, name, &keys).arg(0);
        self.run(&call, replies::flag).await
    }
}

impl RedisBackend {
    /// Returns the call that sets a latch or counts it down. The last argument is missing: the time
    /// to live of a latch to be set, or nothing.
    fn latch_call(&self, name: &Name, id: Owner, count: u32) -> Call<'static> {
        let keys = [keys::LATCH, self.channel()];
        Call::new(&SCRIPTS.latch, name, &keys).owner(id).arg(count)
    }

    /// Reads the entries of some names by one command, without their ages.
    async fn read_all(&self, names: &[Name]) -> Result<EntryAnswers, BackendError> {
        let mut get = Cmd::with_capacity(names.len() + 1, names.len() * 64);
        get.arg("MGET");
        for name in names {
            write_key(&mut get, name, &name.entry_suffix());
        }
        let values = self.values(&get, &names[0], names.len()).await?;
        let answers = values.into_iter().map(|value| self.entry(value));
        Ok(answers.collect())
    }

    /// Runs a command whose reply is this many values. The name decides the slot in a cluster.
    async fn values(&self, get: &Cmd, at: &Name, count: usize) -> Result<Vec<Value>, BackendError> {
        match self.0.servers.run(get, &at.prefix).await? {
            Value::Array(values) if values.len() == count => Ok(values),
            other => self.checked(Err(replies::unreadable(&other))),
        }
    }

    /// Reads an entry with its age.
    async fn read_aged(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        let mut reads = Pipeline::with_capacity(2);
        reads.cmd("TIME").add_command(get(name));
        let sent = Instant::now();
        let replies = self.0.servers.run_all(&reads, &name.prefix).await?;
        let [time, value] = <[Value; 2]>::try_from(replies)
            .map_err(|replies| replies::unreadable(Value::Array(replies)))?;
        let server_time = self.checked(replies::micros(time))?;
        let now = server_time.saturating_add(micros(sent.elapsed()));
        let entry = self.entry(value)?;
        Ok(entry.map(|entry| entry.read_at(now)))
    }

    /// Reads the entry in the reply to a `GET`.
    fn entry(&self, reply: Value) -> Result<Option<Entry>, BackendError> {
        match reply {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => Ok(Some(Entry::decode(bytes.into())?)),
            other => self.checked(Err(replies::unreadable(&other))),
        }
    }

    /// Returns the suffix of the key at which to stage an entry that is too large for a push.
    fn staged(&self, entry: &Entry, writer: Owner) -> Option<String> {
        let is_large = entry.weight() > self.0.servers.config.push_limit;
        if is_large { Some(format!("{}{writer}", keys::STAGED)) } else { None }
    }
}

/// Returns whether an entry that was read without its age has windows that need it.
fn lacks_age(answer: &Result<Option<Entry>, BackendError>) -> bool {
    matches!(answer, Ok(Some(Entry { windows: Some(windows), .. })) if !windows.is_fresh_only())
}

/// Returns the command that reads the entry of a name.
fn get(name: &Name) -> Cmd {
    let mut get = Cmd::with_capacity(2, name.prefix.len() + 40);
    get.arg("GET");
    write_key(&mut get, name, &name.entry_suffix());
    get
}

/// Adds an entry to a call that has all other arguments: the bytes before `head`, the bytes behind
/// the time, the size, and the life of the entry. The script writes the missing bytes in between:
/// the time at which it stores the entry and, if `head` is before the fence, the fence.
///
/// With a key to be `staged` at, a command before the script writes the entry to that key, and the
/// call carries no bytes. A server copies each argument of a script several times, and never copies
/// the value of a key.
fn with_entry<'a>(
    call: Call<'a>,
    name: &Name,
    entry: &Entry,
    head: usize,
    ttl: Option<Duration>,
    staged: Option<&str>,
) -> Call<'a> {
    let bytes = if staged.is_some() { Bytes::new() } else { entry.encode() };
    let call = call
        .arg(bytes.get(..head).unwrap_or_default())
        .arg(bytes.get(Entry::STORED_AT.end..).unwrap_or_default())
        .arg(entry.weight())
        .arg(ttl.map_or(0, millis));
    // Without a time to live, the entry is not written, and it is too large for a push.
    let (Some(suffix), Some(_)) = (staged, ttl) else { return call };
    let mut set = Cmd::with_capacity(5, entry.weight() + 512);
    set.arg("SET");
    write_key(&mut set, name, suffix);
    let mut value = set.writer_for_next_arg();
    // Writes to memory do not fail.
    let _ = value.write_all(entry.header().as_bytes());
    let _ = value.write_all(&entry.payload);
    drop(value);
    set.arg("PX").arg(STAGE_LIFE);
    call.behind(set)
}
