//! The scripts, and the calls of scripts.
//!
//! Each operation is one script. A server receives the source of a script once, and each call names
//! the script by its digest.

mod sources;

use std::{io::Write, sync::LazyLock};

use redis::{Arg, Cmd, Pipeline, RedisWrite, ToRedisArgs};

use self::sources::Scripts;
use crate::{backend::Owner, key::Name};

pub(super) static SCRIPTS: LazyLock<Scripts<Script>> =
    LazyLock::new(|| Scripts::from_sources(Script::new));

/// The source of a script, and the digest by which a server finds the script.
pub(super) struct Script {
    source: &'static str,
    digest: String,
}

impl Script {
    fn new(source: &'static str) -> Self {
        let digest = redis::Script::new(source).get_hash().to_owned();
        Self { source, digest }
    }
}

impl Scripts<Script> {
    pub(super) fn load(&self) -> redis::Pipeline {
        let mut pipeline = redis::pipe();
        for (_, script) in self.all() {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(script.source).ignore();
        }
        pipeline
    }
}

/// One call of a script by its digest.
pub(super) struct Call<'a> {
    script: &'a Script,
    /// The `EVALSHA` command.
    pub(super) by_digest: Cmd,
    /// Another command, and the script behind it. Both are kept in one pipeline, because a copy of
    /// a large command costs as much as its transfer. In a box, because few calls have one, and a
    /// call is moved for each argument.
    pub(super) with_first: Option<Box<Pipeline>>,
}

pub(super) fn write_key(command: &mut Cmd, name: &Name, suffix: &str) {
    let mut key = command.writer_for_next_arg();
    // Writes to memory do not fail.
    let _ = key.write_all(name.prefix.as_bytes());
    let _ = key.write_all(suffix.as_bytes());
}

/// The number of words before the first key: `EVALSHA`, the digest, and the number of keys.
const WORDS_BEFORE_KEYS: usize = 3;

impl<'a> Call<'a> {
    /// Creates a call with the keys of a name that have these suffixes.
    pub(super) fn new(script: &'a Script, name: &Name, suffixes: &[&str]) -> Self {
        Self::with_keys(script, suffixes.iter().map(|suffix| (name, *suffix)))
    }

    /// Creates a call with keys of several names, each by its suffix.
    pub(super) fn with_keys<'k>(
        script: &'a Script,
        keys: impl ExactSizeIterator<Item = (&'k Name, &'k str)>,
    ) -> Self {
        let mut by_digest = Cmd::with_capacity(16, 512);
        by_digest.arg("EVALSHA").arg(&script.digest).arg(keys.len());
        // One buffer, because writing each key in two parts into the command costs twice as much.
        let mut key = Vec::with_capacity(96);
        for (name, suffix) in keys {
            key.clear();
            key.extend_from_slice(name.prefix.as_bytes());
            key.extend_from_slice(suffix.as_bytes());
            by_digest.arg(&key[..]);
        }
        Self { script, by_digest, with_first: None }
    }

    /// Sets whether the server replies to this caller after it has notified the waiters. The call
    /// must have all its arguments.
    ///
    /// Redis flushes replies in the reverse order in which clients became writable. A `PING` that
    /// is sent first puts this client at the end.
    pub(super) fn answered_last(self, answered_last: bool) -> Self {
        if answered_last { self.behind(redis::cmd("PING")) } else { self }
    }

    /// Sets a command that is sent just before the script. The call must have all its arguments.
    pub(super) fn behind(self, first: Cmd) -> Self {
        let mut both = Pipeline::with_capacity(2);
        both.add_command(first).add_command(self.by_digest.clone());
        Self { with_first: Some(Box::new(both)), ..self }
    }

    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.by_digest.arg(argument);
        self
    }

    pub(super) fn owner(mut self, owner: Owner) -> Self {
        self.by_digest.arg(&owner.digits()[..]);
        self
    }

    /// Returns the first key, which decides the slot in a cluster.
    pub(super) fn first_key(&self) -> &[u8] {
        match self.by_digest.args_iter().nth(WORDS_BEFORE_KEYS) {
            Some(Arg::Simple(key)) => key,
            _ => &[],
        }
    }

    /// Returns an `EVAL` command with the source, for a server that does not know the script.
    pub(super) fn with_source(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.script.source);
        for word in self.by_digest.args_iter().skip(2) {
            if let Arg::Simple(word) = word {
                command.arg(word);
            }
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn functions(source: &str) -> impl Iterator<Item = &str> {
        let lines = source.lines();
        lines.filter_map(|line| line.strip_prefix("local function ")?.split('(').next())
    }

    /// Returns how often a function is called or defined.
    fn uses(source: &str, function: &str) -> usize {
        let word = format!("{function}(");
        let is_own = |line: &str, at: usize| {
            let before = line[..at].chars().next_back().unwrap_or(' ');
            !before.is_ascii_alphanumeric() && before != '_' && before != '.'
        };
        let mut count = 0;
        for line in source.lines().filter(|line| !line.trim_start().starts_with("--")) {
            count += line.match_indices(&word).filter(|(at, _)| is_own(line, *at)).count();
        }
        count
    }

    #[test]
    fn each_script_carries_what_it_uses() {
        let all = Scripts::from_sources(|source| source);
        let of_all: Vec<_> = all.all().flat_map(|(_, source)| functions(source)).collect();
        for (name, source) in all.all() {
            for function in &of_all {
                let is_defined = source.contains(&format!("local function {function}("));
                let uses = uses(source, function);
                let is_as_needed = if is_defined { uses > 1 } else { uses == 0 };
                assert!(is_as_needed, "{name}: {function} stands there {uses} times");
            }
        }
    }

    #[test]
    fn the_usual_case_creates_no_function() {
        let all = Scripts::from_sources(|source| source);
        for script in [all.acquire, all.claim, all.commit, all.convert, all.release, all.renew] {
            let before = script.split("local function").next().unwrap_or_default();
            let usual = before.split("-- The usual case").nth(1).unwrap_or_default();
            assert!(usual.contains("return "), "{before}");
        }
    }
}
