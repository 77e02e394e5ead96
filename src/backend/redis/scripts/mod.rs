//! The scripts, and calls of them.
//!
//! Each operation is one file, with the functions of `lib/` that it names. A server learns a script
//! once, and each call names it by its digest.

mod assemble;

use std::{io::Write, sync::LazyLock};

use redis::{Arg, Cmd, Pipeline, RedisWrite, ToRedisArgs};

use crate::{backend::Owner, key::Name};

/// Names each script and each file of `lib/` once.
macro_rules! scripts {
    (lib: $($topic:ident)+; scripts: $($name:ident)+) => {
        const LIB: &[&str] = &[$(include_str!(concat!("lib/", stringify!($topic), ".lua"))),+];

        pub(super) struct Scripts {
            $(pub(super) $name: Script,)+
        }

        pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
            $($name: Script::new(include_str!(concat!(stringify!($name), ".lua"))),)+
        });

        impl Scripts {
            fn all(&self) -> impl Iterator<Item = &Script> {
                [$(&self.$name),+].into_iter()
            }
        }
    };
}

scripts! {
    lib: basics entries fences holds leases pushes queues;
    scripts:
        acquire beat change claim clear commit convert end_load end_tag inspect
        keep latch mark release renew rights set_fence
}

/// The source of a script, and the digest under which a server knows it.
pub(super) struct Script {
    source: String,
    digest: String,
}

impl Script {
    fn new(file: &str) -> Self {
        let source = assemble::assemble(file, LIB);
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { source, digest }
    }
}

impl Scripts {
    pub(super) fn load(&self) -> redis::Pipeline {
        let mut pipeline = redis::pipe();
        for script in self.all() {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.source).ignore();
        }
        pipeline
    }
}

/// One call of a script by its digest.
pub(super) struct Call<'a> {
    script: &'a Script,
    /// The `EVALSHA` command.
    pub(super) by_digest: Cmd,
    /// Another command, and the script behind it. They are kept together, because a copy of a large
    /// command costs as much as its transfer.
    pub(super) with_first: Option<Pipeline>,
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
        Self::over(script, suffixes.iter().map(|suffix| (name, *suffix)))
    }

    /// Creates a call with keys of several names, each by its suffix.
    pub(super) fn over<'k>(
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

    /// Sets whether the server replies to this caller after it has notified the waiters. All
    /// arguments must be there.
    ///
    /// Redis flushes replies in the reverse order in which clients became writable. A `PING` sent
    /// first puts this client at the end.
    pub(super) fn answered_last(self, answered_last: bool) -> Self {
        if answered_last { self.behind(redis::cmd("PING")) } else { self }
    }

    /// Sets a command that is sent just before the script. All arguments of the script must be
    /// there.
    pub(super) fn behind(self, first: Cmd) -> Self {
        let mut both = Pipeline::with_capacity(2);
        both.add_command(first).add_command(self.by_digest.clone());
        Self { with_first: Some(both), ..self }
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
        command.arg(&self.script.source);
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
    use super::{
        assemble::{blocks, names},
        *,
    };

    #[test]
    fn each_part_is_used() {
        let sources: String = SCRIPTS.all().map(|script| &*script.source).collect();
        for part in LIB.iter().flat_map(|file| blocks(file)) {
            assert!(sources.contains(part) == names(part).next().is_some(), "{part}");
        }
    }

    #[test]
    fn the_usual_case_comes_before_the_parts_that_it_does_not_need() {
        let acquire = &SCRIPTS.acquire.source;
        let [usual, part] = ["The usual case", "function lease_at"].map(|it| acquire.find(it));
        assert!(usual.is_some() && usual < part);
        assert_eq!(acquire.matches("function time_text").count(), 1);
    }
}
