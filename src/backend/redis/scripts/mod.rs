//! The scripts, and calls of them.
//!
//! A script is one file per operation, behind those parts of `lib/` that it uses. A server learns it once,
//! and each call names it by its digest.

use std::{io::Write, sync::LazyLock};

use redis::{Arg, Cmd, RedisWrite, ToRedisArgs};

use crate::{backend::Owner, key::Name};

/// Names each script once: the files in front of it, and its own file.
macro_rules! scripts {
    ($($name:ident: [$($front:literal),+],)+) => {
        pub(super) struct Scripts {
            $(pub(super) $name: Script,)+
        }

        pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
            $($name: Script::new(&[
                $(include_str!(concat!($front, ".lua")),)+
                include_str!(concat!(stringify!($name), ".lua")),
            ]),)+
        });

        impl Scripts {
            fn all(&self) -> impl Iterator<Item = &Script> {
                [$(&self.$name),+].into_iter()
            }
        }
    };
}

scripts! {
    acquire: ["acquire_at_once", "lib/prelude"],
    acquire_all: ["lib/prelude", "lib/shared"],
    acquire_queued: ["acquire_at_once", "lib/prelude", "lib/shared"],
    acquire_read: ["lib/prelude", "lib/shared"],
    acquire_permit: ["lib/prelude", "lib/shared"],
    renew: ["lib/prelude", "lib/shared"],
    release: ["lib/prelude"],
    release_queued: ["release_at_once", "lib/prelude", "lib/shared"],
    release_permit: ["lib/prelude", "lib/shared"],
    pass: ["lib/prelude"],
    upgrade: ["lib/prelude", "lib/shared"],
    downgrade: ["lib/prelude", "lib/shared"],
    holder: ["lib/prelude", "lib/shared"],
    clear: ["lib/prelude"],
    set_latch: ["lib/prelude", "lib/latch"],
    count_down: ["lib/prelude", "lib/latch"],
    count_left: ["lib/prelude", "lib/latch"],
    commit: ["commit_at_once", "lib/prelude"],
    put: ["lib/prelude"],
    invalidate: ["lib/prelude"],
}

/// The source of a script, and the digest under which a server knows it.
pub(super) struct Script {
    source: String,
    digest: String,
}

impl Script {
    fn new(parts: &[&str]) -> Self {
        let source = parts.join("\n");
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { source, digest }
    }
}

impl Scripts {
    /// Returns the commands that load all scripts into a server.
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
    by_digest: Cmd,
    answered_last: bool,
}

/// Adds a key of a name to a command.
pub(super) fn write_key(command: &mut Cmd, name: &Name, suffix: &str) {
    let mut key = command.writer_for_next_arg();
    // Writes to memory do not fail.
    let _ = key.write_all(name.prefix().as_bytes());
    let _ = key.write_all(suffix.as_bytes());
}

/// The number of words before the first key: `EVALSHA`, the digest, and the number of keys.
const WORDS_BEFORE_KEYS: usize = 3;

impl<'a> Call<'a> {
    /// Creates a call with this many keys, to be added before the first argument.
    pub(super) fn new(script: &'a Script, keys: usize) -> Self {
        let mut by_digest = Cmd::with_capacity(16, 512);
        by_digest.arg("EVALSHA").arg(&script.digest).arg(keys);
        Self { script, by_digest, answered_last: false }
    }

    /// Sets whether the server replies to this caller after it has notified the waiters.
    pub(super) fn answered_last(self, answered_last: bool) -> Self {
        Self { answered_last, ..self }
    }

    pub(super) fn is_answered_last(&self) -> bool {
        self.answered_last
    }

    /// Adds a key, or an argument.
    pub(super) fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.by_digest.arg(argument);
        self
    }

    /// Adds the keys of a name with these suffixes.
    pub(super) fn keys(mut self, name: &Name, suffixes: &[&str]) -> Self {
        let prefix = name.prefix().as_bytes();
        // One buffer, because writing each key in two parts into the command costs twice as much.
        let mut key = Vec::with_capacity(prefix.len() + 16);
        key.extend_from_slice(prefix);
        for suffix in suffixes {
            key.truncate(prefix.len());
            key.extend_from_slice(suffix.as_bytes());
            self.by_digest.arg(&key[..]);
        }
        self
    }

    /// Adds the id of an owner.
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

    /// Returns the `EVALSHA` command.
    pub(super) fn by_digest(&self) -> &Cmd {
        &self.by_digest
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
