//! Large entries, which have a connection of their own.
//!
//! A reader cannot know how large an entry is, so it asks for the first part. If there is more, the
//! reader asks for the whole on the other connection. It remembers the name, and then asks there at
//! once. A part costs a third more than a whole. So after many reads without a large entry, a
//! reader asks for the whole until it meets one.
//!
//! A writer sends a large entry by a plain `SET` to a key of its own. A server copies each argument
//! of a script several times. The script behind it moves the entry to its place, and reads it only
//! if a waiter is to get it.

use std::{
    hash::BuildHasher,
    io::Write,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use futures_util::{FutureExt, future::join_all};
use hashbrown::DefaultHashBuilder;
use redis::{Cmd, Pipeline, RedisWrite, Value};

use super::{super::RedisBackend, PART, replies};
use crate::{
    backend::{
        Entry, EntryAnswers, Owner,
        redis::{
            client::Timed,
            keys,
            scripts::{Call, write_key},
        },
    },
    error::{BackendError, BackendErrorKind},
    key::Name,
};

/// A smaller entry costs less as an argument of its script.
const STAGE_FROM: usize = 16 << 10;
/// When the key of an entry that was moved away is removed. A server that has few keys has done so
/// by then.
const REMOVE_AFTER: Duration = Duration::from_millis(200);
/// How long a staged entry lasts if its script does not come, in milliseconds.
const STAGE_LIFE: u64 = 10_000;
/// How many reads after the last large entry ask for a part.
const PART_READS: u32 = 10_000;

/// The names whose entries were large when they were last read, with a few mistakes.
///
/// A mistake costs one read on the other connection, or one read too many.
pub(in super::super) struct LargeNames {
    hasher: DefaultHashBuilder,
    /// The hash of the last name that fell into each place, or 0.
    places: Box<[AtomicU64]>,
    is_used: AtomicBool,
    /// How many of the next reads ask for a part.
    part_reads: AtomicU32,
    /// The server forbids `MGET`.
    is_forbidden: AtomicBool,
}

/// The reply about one of some entries.
type EntryReply = Result<Value, BackendError>;

/// The replies about some entries, each with whether it is of a part, and the time of the server.
type AllReplies = Option<(Vec<(EntryReply, bool)>, Option<u64>)>;

impl Default for LargeNames {
    fn default() -> Self {
        let places = (0..1024).map(|_| AtomicU64::new(0)).collect();
        let (is_used, part_reads) = (AtomicBool::new(false), AtomicU32::new(PART_READS));
        let is_forbidden = AtomicBool::new(false);
        Self { hasher: DefaultHashBuilder::default(), places, is_used, part_reads, is_forbidden }
    }
}

impl LargeNames {
    fn place(&self, name: &Name) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(name.prefix()) | 1;
        (&self.places[(hash >> 32) as usize % self.places.len()], hash)
    }

    fn contain(&self, name: &Name) -> bool {
        self.is_used.load(Ordering::Relaxed) && {
            let (place, hash) = self.place(name);
            place.load(Ordering::Relaxed) == hash
        }
    }

    /// Returns whether the next reads may be one command for whole entries.
    fn takes_whole(&self) -> bool {
        self.part_reads.load(Ordering::Relaxed) == 0 && !self.is_forbidden.load(Ordering::Relaxed)
    }

    /// Returns whether the next read is to ask for a part, and counts it.
    fn may_come(&self) -> bool {
        let left = self.part_reads.load(Ordering::Relaxed);
        if left > 0 {
            // Of two reads at once, one may not be counted.
            self.part_reads.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    fn set(&self, name: &Name, is_large: bool) {
        let (place, hash) = self.place(name);
        if is_large {
            self.part_reads.store(PART_READS, Ordering::Relaxed);
            self.is_used.store(true, Ordering::Relaxed);
            place.store(hash, Ordering::Relaxed);
        } else {
            let _ = place.compare_exchange(hash, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl RedisBackend {
    /// Reads an entry, with its age if that is asked for or if the entry has windows.
    pub(super) async fn read(
        &self,
        name: &Name,
        aged: bool,
    ) -> Result<Option<Entry>, BackendError> {
        if self.0.large.contain(name) {
            return Box::pin(self.read_whole(name, aged)).await;
        }
        let (get, asks_for_part) = self.read_command(name);
        let timed = aged || self.0.timed.load(Ordering::Relaxed);
        // The prefix is enough to find the slot in a cluster.
        let answer = self.0.servers.read(&get, name.prefix(), timed).await?;
        self.entry_of(name, answer, asks_for_part, aged).await
    }

    /// Reads some entries as [`read`](Self::read) does, in one write if that is possible.
    pub(super) async fn read_many(
        &self,
        names: &[Name],
        aged: bool,
    ) -> Result<EntryAnswers, BackendError> {
        let is_large = |name: &Name| self.0.large.contain(name);
        let is_one_question = self.0.servers.is_single() && !names.is_empty();
        if !is_one_question || names.iter().any(is_large) {
            return Ok(join_all(names.iter().map(|name| self.read(name, aged))).await);
        }
        let timed = aged || self.0.timed.load(Ordering::Relaxed);
        let all =
            if self.0.large.takes_whole() { self.read_all(names, timed).await? } else { None };
        let (answers, time) = match all {
            Some(all) => all,
            None => self.read_each(names, timed).await?,
        };
        let each = names.iter().zip(answers);
        let mut answers = Vec::with_capacity(names.len());
        // Few entries need another question, such as the large ones, and these are asked together.
        let mut unread = Vec::new();
        for (name, (value, asks_for_part)) in each {
            let read = async move {
                self.entry_of(name, Timed { value: value?, time }, asks_for_part, aged).await
            };
            let mut read = Box::pin(read);
            match (&mut read).now_or_never() {
                Some(answer) => answers.push(answer),
                None => {
                    unread.push((answers.len(), read));
                    answers.push(Ok(None));
                }
            }
        }
        let (places, reads): (Vec<_>, Vec<_>) = unread.into_iter().unzip();
        for (at, answer) in places.into_iter().zip(join_all(reads).await) {
            answers[at] = answer;
        }
        Ok(answers)
    }

    /// Reads whole entries with one command. Returns `None` if the server forbids it.
    async fn read_all(&self, names: &[Name], timed: bool) -> Result<AllReplies, BackendError> {
        let mut get = Cmd::with_capacity(names.len() + 1, names.len() * 64);
        get.arg("MGET");
        names.iter().for_each(|name| write_key(&mut get, name, &name.entry_suffix()));
        match self.0.servers.read(&get, names[0].prefix(), timed).await {
            Ok(Timed { value: Value::Array(values), time }) if values.len() == names.len() => {
                Ok(Some((values.into_iter().map(|value| (Ok(value), false)).collect(), time)))
            }
            Ok(Timed { value, .. }) => self.checked(Err(replies::unreadable(&value))),
            Err(error) if error.kind() == BackendErrorKind::Refused => {
                self.0.large.is_forbidden.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Reads entries with a command for each, in one write.
    async fn read_each(
        &self,
        names: &[Name],
        timed: bool,
    ) -> Result<(Vec<(EntryReply, bool)>, Option<u64>), BackendError> {
        let mut reads = Pipeline::with_capacity(names.len() + 1);
        let mut parts = Vec::with_capacity(names.len());
        for name in names {
            let (get, asks_for_part) = self.read_command(name);
            reads.add_command(get);
            parts.push(asks_for_part);
        }
        let (values, time) = self.0.servers.read_together(reads, timed).await?;
        Ok((values.into_iter().zip(parts).collect(), time))
    }

    /// Returns the command that reads an entry, and whether it asks for a part only.
    fn read_command(&self, name: &Name) -> (Cmd, bool) {
        let asks_for_part = self.0.large.may_come();
        let mut get = Cmd::with_capacity(4, name.prefix().len() + 40);
        get.arg(if asks_for_part { "GETRANGE" } else { "GET" });
        write_key(&mut get, name, &name.entry_suffix());
        if asks_for_part {
            get.arg(0).arg(PART - 1);
        }
        (get, asks_for_part)
    }

    /// Returns the entry of an answer to a read.
    async fn entry_of(
        &self,
        name: &Name,
        Timed { value, time }: Timed,
        asks_for_part: bool,
        aged: bool,
    ) -> Result<Option<Entry>, BackendError> {
        let bytes = self.bytes(value)?;
        match bytes.len() {
            0 => Ok(None),
            PART.. if asks_for_part => Box::pin(self.read_whole(name, aged)).await,
            length => {
                if length >= PART {
                    self.0.large.set(name, true);
                }
                self.aged(name, replies::entry(bytes)?, aged, time).await.map(Some)
            }
        }
    }

    /// Reads an entry on the connection for large ones.
    pub(super) async fn read_whole(
        &self,
        name: &Name,
        aged: bool,
    ) -> Result<Option<Entry>, BackendError> {
        let mut get = redis::cmd("GET");
        write_key(&mut get, name, &name.entry_suffix());
        let timed = aged || self.0.timed.load(Ordering::Relaxed);
        let Timed { value, time } = self.0.servers.read_bulk(&get, name.prefix(), timed).await?;
        let bytes = self.bytes(value)?;
        self.0.large.set(name, bytes.len() >= PART);
        if bytes.is_empty() {
            return Ok(None);
        }
        self.aged(name, replies::entry(bytes)?, aged, time).await.map(Some)
    }

    /// Returns an entry with its age, if that is needed. Asks for the time if it is not known.
    async fn aged(
        &self,
        name: &Name,
        entry: Entry,
        aged: bool,
        time: Option<u64>,
    ) -> Result<Entry, BackendError> {
        let has_windows = entry.windows.is_some_and(|windows| !windows.is_fresh_only());
        if !has_windows && !aged {
            return Ok(entry);
        }
        if has_windows && !self.0.timed.load(Ordering::Relaxed) {
            self.0.timed.store(true, Ordering::Relaxed);
        }
        if let Some(time) = time {
            return Ok(entry.read_at(time));
        }
        let reply = Box::pin(self.0.servers.run(&redis::cmd("TIME"), name.prefix())).await?;
        Ok(entry.read_at(self.checked(replies::micros(reply))?))
    }

    fn bytes(&self, reply: Value) -> Result<Vec<u8>, BackendError> {
        match reply {
            Value::Nil => Ok(Vec::new()),
            Value::BulkString(bytes) => Ok(bytes),
            other => self.checked(Err(replies::unreadable(&other))),
        }
    }

    /// Returns whether an entry with this time to live is staged, and not an argument of its
    /// script. An entry that is only pushed is no argument either if it is too large for a push.
    pub(super) fn is_staged(&self, entry: &Entry, ttl: Option<Duration>) -> bool {
        let bytes = entry.weight();
        bytes > STAGE_FROM && (ttl.is_some() || bytes > self.0.config.push_limit)
    }
}

impl RedisBackend {
    /// Removes an entry that was moved away and has ended. A server with many keys may not come
    /// across it for long.
    pub(super) fn remove_soon(&self, key: String) {
        let backend = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(REMOVE_AFTER).await;
            // Without an answer, the server comes across it at last.
            let _ = backend.0.servers.run(Cmd::new().arg("DEL").arg(&key), &key).await;
        });
    }
}

/// Returns the suffix of the key under which an entry is staged.
pub(super) fn staged_suffix(writer: Owner) -> String {
    format!("{}{writer}", keys::STAGED)
}

/// Adds the command that stages an entry to a call with all its arguments.
pub(super) fn with_stage<'a>(call: Call<'a>, name: &Name, suffix: &str, entry: &Entry) -> Call<'a> {
    let mut set = Cmd::with_capacity(5, entry.weight() + 512);
    set.arg("SET");
    write_key(&mut set, name, suffix);
    let mut value = set.writer_for_next_arg();
    // Writes to memory do not fail.
    let _ = value.write_all(entry.header().as_bytes());
    let _ = value.write_all(&entry.payload);
    drop(value);
    set.arg("PX").arg(STAGE_LIFE);
    call.with_stage(set, entry.weight() > PART)
}
