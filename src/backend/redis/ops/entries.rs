//! Reads of entries, and the staging of large ones.
//!
//! A read is a `GET`. Where the age matters, a `TIME` goes before it in the same write. The header
//! says when the entry was stored. The time that the answer takes counts as age.
//!
//! A writer sends a large entry by a plain `SET` to a key of its own. A server copies each argument
//! of a script several times. The script behind it moves the entry to its place, and reads it only
//! if a waiter is to get it.

use std::{
    array,
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use redis::{Cmd, Pipeline, RedisWrite, Value};
use tokio::time::Instant;

use super::{super::RedisBackend, replies};
use crate::{
    backend::{
        Entry, EntryAnswers, Owner,
        redis::{
            keys,
            scripts::{Call, write_key},
        },
    },
    error::{BackendError, BackendErrorKind},
    key::Name,
};

/// A smaller entry costs less as an argument of its script.
const STAGE_FROM: usize = 16 << 10;
/// How long a staged entry lasts if its script does not come, in milliseconds.
const STAGE_LIFE: u64 = 10_000;

/// The namespaces whose entries have windows, so reads ask for the age. Those of one hash share a
/// place, and then ask in vain.
pub(in super::super) struct AgedNamespaces([AtomicBool; 256]);

impl Default for AgedNamespaces {
    fn default() -> Self {
        Self(array::from_fn(|_| AtomicBool::new(false)))
    }
}

impl AgedNamespaces {
    fn of(&self, name: &Name) -> &AtomicBool {
        let namespace = name.prefix().bytes().take_while(|byte| *byte != b'{');
        let hash = namespace.fold(0u8, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte));
        &self.0[usize::from(hash)]
    }
}

impl RedisBackend {
    /// Reads an entry, with its age if that is asked for or if the entry has windows.
    pub(super) async fn read(
        &self,
        name: &Name,
        aged: bool,
    ) -> Result<Option<Entry>, BackendError> {
        if aged || self.0.aged.of(name).load(Ordering::Relaxed) {
            return self.read_aged(name).await;
        }
        // The prefix is enough to find the slot in a cluster.
        let value = self.0.servers.run(&of_entry("GET", name), name.prefix()).await?;
        let answer = self.entry(value);
        match self.lacks_age(name, &answer) {
            true => Box::pin(self.read_aged(name)).await,
            false => answer,
        }
    }

    /// Reads some entries as [`read`](Self::read) does, with one command if that is possible.
    pub(super) async fn read_many(
        &self,
        names: &[Name],
        aged: bool,
    ) -> Result<EntryAnswers, BackendError> {
        let is_aged = |name| aged || self.0.aged.of(name).load(Ordering::Relaxed);
        if self.0.servers.is_single() && !names.is_empty() && !names.iter().any(is_aged) {
            match self.read_all(names).await {
                // The user has no right to `MGET`.
                Err(error) if error.kind() == BackendErrorKind::Refused => {}
                answers => return answers,
            }
        }
        Ok(join_all(names.iter().map(|name| self.read(name, aged))).await)
    }

    async fn read_all(&self, names: &[Name]) -> Result<EntryAnswers, BackendError> {
        let mut get = Cmd::with_capacity(names.len() + 1, names.len() * 64);
        get.arg("MGET");
        names.iter().for_each(|name| write_key(&mut get, name, &name.entry_suffix()));
        let values = match self.0.servers.run(&get, names[0].prefix()).await? {
            Value::Array(values) if values.len() == names.len() => values,
            other => return self.checked(Err(replies::unreadable(&other))),
        };
        let mut answers: EntryAnswers = values.into_iter().map(|value| self.entry(value)).collect();
        // Few have windows that were not known of, and these are read again together.
        let places = 0..names.len();
        let lacking: Vec<_> =
            places.filter(|at| self.lacks_age(&names[*at], &answers[*at])).collect();
        let aged = join_all(lacking.iter().map(|at| self.read_aged(&names[*at]))).await;
        for (at, answer) in lacking.into_iter().zip(aged) {
            answers[at] = answer;
        }
        Ok(answers)
    }

    /// Returns whether an entry that was read without its age has windows. The next reads in its
    /// namespace ask for the age.
    fn lacks_age(&self, name: &Name, answer: &Result<Option<Entry>, BackendError>) -> bool {
        let Ok(Some(Entry { windows: Some(windows), .. })) = answer else { return false };
        if windows.is_fresh_only() {
            return false;
        }
        self.0.aged.of(name).store(true, Ordering::Relaxed);
        true
    }

    async fn read_aged(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        let mut reads = Pipeline::with_capacity(2);
        reads.cmd("TIME").add_command(of_entry("GET", name));
        let asked = Instant::now();
        let [time, value] = self.0.servers.run_both(&reads, name.prefix()).await?;
        let way = u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX);
        let now = self.checked(replies::micros(time))?.saturating_add(way);
        Ok(self.entry(value)?.map(|entry| entry.read_at(now)))
    }

    fn entry(&self, reply: Value) -> Result<Option<Entry>, BackendError> {
        match reply {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => replies::entry(bytes).map(Some),
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

/// Returns a command about the key of an entry.
fn of_entry(word: &str, name: &Name) -> Cmd {
    let mut command = Cmd::with_capacity(2, name.prefix().len() + 40);
    command.arg(word);
    write_key(&mut command, name, &name.entry_suffix());
    command
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
    call.with_stage(set)
}
