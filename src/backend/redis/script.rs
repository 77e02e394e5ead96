use std::sync::LazyLock;

use redis::Cmd;

/// The scripts, each with the prelude in front.
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) renew: Script,
    pub(super) release: Script,
    pub(super) pass: Script,
    pub(super) holder: Script,
    pub(super) clear: Script,
    pub(super) commit: Script,
    pub(super) put: Script,
    pub(super) invalidate: Script,
}

pub(super) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    acquire: script(include_str!("lua/acquire.lua")),
    renew: script(include_str!("lua/renew.lua")),
    release: script(include_str!("lua/release.lua")),
    pass: script(include_str!("lua/pass.lua")),
    holder: script(include_str!("lua/holder.lua")),
    clear: script(include_str!("lua/clear.lua")),
    commit: script(include_str!("lua/commit.lua")),
    put: script(include_str!("lua/put.lua")),
    invalidate: script(include_str!("lua/invalidate.lua")),
});

/// The source of a script and the digest under which a server knows it.
pub(super) struct Script {
    source: String,
    digest: String,
}

fn script(body: &str) -> Script {
    let source = format!("{}\n{body}", include_str!("lua/prelude.lua"));
    let digest = redis::Script::new(&source).get_hash().to_owned();
    Script { source, digest }
}

impl Scripts {
    /// The commands that make the server know them all.
    pub(super) fn load(&self) -> redis::Pipeline {
        let mut pipeline = redis::pipe();
        for script in [
            &self.acquire,
            &self.renew,
            &self.release,
            &self.pass,
            &self.holder,
            &self.clear,
            &self.commit,
            &self.put,
            &self.invalidate,
        ] {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(&script.source).ignore();
        }
        pipeline
    }
}

/// One call of a script.
pub(super) struct Call<'a> {
    script: &'a Script,
    keys: usize,
    arguments: Vec<Vec<u8>>,
}

impl<'a> Call<'a> {
    pub(super) fn new(script: &'a Script) -> Self {
        Self { script, keys: 0, arguments: Vec::new() }
    }

    /// Adds a key. All keys come before the first argument.
    pub(super) fn key(mut self, key: String) -> Self {
        self.keys += 1;
        self.arguments.push(key.into_bytes());
        self
    }

    pub(super) fn arg(mut self, argument: impl Into<Vec<u8>>) -> Self {
        self.arguments.push(argument.into());
        self
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
        let mut command = redis::cmd(verb);
        command.arg(script).arg(self.keys);
        for argument in &self.arguments {
            command.arg(argument.as_slice());
        }
        command
    }
}
