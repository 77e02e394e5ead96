use std::sync::LazyLock;

use redis::Cmd;

use crate::key::Name;

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
    acquire: ["prelude"],
    acquire_all: ["prelude", "shared"],
    acquire_queued: ["acquire_free", "prelude", "shared"],
    acquire_read: ["prelude", "shared"],
    acquire_permit: ["prelude", "shared"],
    renew: ["prelude", "shared"],
    release: ["prelude"],
    release_queued: ["release_unwaited", "prelude", "shared"],
    release_permit: ["prelude", "shared"],
    pass: ["prelude"],
    upgrade: ["prelude", "shared"],
    downgrade: ["prelude", "shared"],
    holder: ["prelude", "shared"],
    clear: ["prelude"],
    set_latch: ["prelude", "latch"],
    count_down: ["prelude", "latch"],
    count_left: ["prelude", "latch"],
    commit: ["prelude"],
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

/// One call of a script.
pub(super) struct Call<'a> {
    script: &'a Script,
    key_count: usize,
    /// The keys and the arguments, one behind the other, and where each ends.
    data: Vec<u8>,
    ends: Vec<usize>,
}

impl<'a> Call<'a> {
    pub(super) fn new(script: &'a Script) -> Self {
        Self { script, key_count: 0, data: Vec::with_capacity(256), ends: Vec::with_capacity(8) }
    }

    /// Adds a key. All keys come before the first argument.
    pub(super) fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.key_count += 1;
        self.arg(key)
    }

    /// Adds the keys of a name with these suffixes.
    pub(super) fn keys(mut self, name: &Name, suffixes: &[&str]) -> Self {
        for suffix in suffixes {
            self.key_count += 1;
            self.data.extend_from_slice(name.prefix().as_bytes());
            self = self.arg(suffix);
        }
        self
    }

    pub(super) fn arg(mut self, argument: impl AsRef<[u8]>) -> Self {
        self.data.extend_from_slice(argument.as_ref());
        self.ends.push(self.data.len());
        self
    }

    /// What the slot of a cluster is found by: all keys of a call are of one name.
    pub(super) fn first_key(&self) -> &[u8] {
        self.ends.first().and_then(|end| self.data.get(..*end)).unwrap_or_default()
    }

    /// The command that names the script by its digest.
    pub(super) fn by_digest(&self) -> Cmd {
        self.command("EVALSHA", &self.script.digest)
    }

    /// The command that brings the script along, for a server that has forgotten it.
    pub(super) fn with_source(&self) -> Cmd {
        self.command("EVAL", &self.script.source)
    }

    fn command(&self, verb: &str, script: &str) -> Cmd {
        let size = verb.len() + script.len() + 4 + self.data.len();
        let mut command = Cmd::with_capacity(3 + self.ends.len(), size);
        command.arg(verb).arg(script).arg(self.key_count);
        let mut start = 0;
        for end in &self.ends {
            command.arg(&self.data[start..*end]);
            start = *end;
        }
        command
    }
}
