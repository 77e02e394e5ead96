use std::{io::Write, sync::LazyLock};

use redis::{Arg, Cmd, RedisWrite, ToRedisArgs};

use crate::{backend::Owner, key::Name};

/// Names each script once: what is put in front of it, and its file.
macro_rules! scripts {
    ($($name:ident: [$($front:literal),+],)+) => {
        pub(super) struct Scripts {
            $(pub(super) $name: Script,)+
        }

        pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
            $($name: Script::new(&[
                $(include_str!(concat!("lua/", $front, ".lua")),)+
                include_str!(concat!("lua/", stringify!($name), ".lua")),
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
    acquire: ["acquire_at_once", "prelude"],
    acquire_all: ["prelude", "shared"],
    acquire_queued: ["acquire_at_once", "prelude", "shared"],
    acquire_read: ["prelude", "shared"],
    acquire_permit: ["prelude", "shared"],
    renew: ["prelude", "shared"],
    release: ["prelude"],
    release_queued: ["release_at_once", "prelude", "shared"],
    release_permit: ["prelude", "shared"],
    pass: ["prelude"],
    upgrade: ["prelude", "shared"],
    downgrade: ["prelude", "shared"],
    holder: ["prelude", "shared"],
    clear: ["prelude"],
    set_latch: ["prelude", "latch"],
    count_down: ["prelude", "latch"],
    count_left: ["prelude", "latch"],
    commit: ["commit_at_once", "prelude"],
    put: ["prelude"],
    invalidate: ["prelude"],
}

/// The source of a script and the digest under which a server knows it.
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
    /// The commands that make the server know them all.
    pub(super) fn load(&self) -> redis::Pipeline {
        let mut pipeline = redis::pipe();
        for script in self.all() {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.source).ignore();
        }
        pipeline
    }
}

/// One call of a script, by the digest under which a server knows it.
pub(super) struct Call<'a> {
    script: &'a Script,
    by_digest: Cmd,
    answered_last: bool,
}

/// Adds a key of a name to a command.
pub(super) fn write_key(command: &mut Cmd, name: &Name, suffix: &str) {
    let mut key = command.writer_for_next_arg();
    // What is written to memory is written.
    let _ = key.write_all(name.prefix().as_bytes());
    let _ = key.write_all(suffix.as_bytes());
}

/// How many words stand before the first key.
const BEFORE_KEYS: usize = 3;

impl<'a> Call<'a> {
    /// A call with so many keys, which come before the first argument.
    pub(super) fn new(script: &'a Script, keys: usize) -> Self {
        let mut by_digest = Cmd::with_capacity(16, 512);
        by_digest.arg("EVALSHA").arg(&script.digest).arg(keys);
        Self { script, by_digest, answered_last: false }
    }

    /// The same call, whose caller can wait until those have heard whom it tells.
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
        // (To write each in its place, in two parts, costs twice as much.)
        let mut key = Vec::with_capacity(prefix.len() + 16);
        key.extend_from_slice(prefix);
        for suffix in suffixes {
            key.truncate(prefix.len());
            key.extend_from_slice(suffix.as_bytes());
            self.by_digest.arg(&key[..]);
        }
        self
    }

    /// Adds who asks, or for whom.
    pub(super) fn token(mut self, token: Owner) -> Self {
        self.by_digest.arg(&token.digits()[..]);
        self
    }

    /// What the slot of a cluster is found by: all keys of a call are of one name.
    pub(super) fn first_key(&self) -> &[u8] {
        match self.by_digest.args_iter().nth(BEFORE_KEYS) {
            Some(Arg::Simple(key)) => key,
            _ => &[],
        }
    }

    /// The command that names the script by its digest.
    pub(super) fn by_digest(&self) -> &Cmd {
        &self.by_digest
    }

    /// The command that brings the script along, for a server that has forgotten it.
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
