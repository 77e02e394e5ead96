//! Scripts: the Lua 5.1 that a server has, with `redis.call` and what belongs to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use mlua::{
    Error as LuaError, Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value as LuaValue,
};

use super::{
    commands,
    data::Data,
    reply::{Reply, number_text},
};
use crate::planted::Planted;

/// The scripts that a server knows, by their digests.
pub struct Scripts {
    known: BTreeSet<String>,
    engine: Arc<Engine>,
}

/// A Lua state, with the data of the server that uses it and with all that it has compiled so far.
///
/// A state is used by one server after another, because most of the time of a short schedule would
/// go into compiling the same scripts. Scripts set no globals, so nothing of a schedule stays.
struct Engine {
    lua: Lua,
    data: Arc<Mutex<Data>>,
    /// Runs a function, and returns whether it succeeded, and its value or its error.
    protected: Function,
    /// What was compiled, by the digests of the sound scripts.
    compiled: Mutex<BTreeMap<String, Function>>,
    /// The sources of the sound scripts, each with its digest, which takes long to calculate.
    digests: Mutex<Vec<(Vec<u8>, String)>>,
    /// The fault in each script that is compiled here.
    planted: Option<&'static Planted>,
}

/// The engines that no server uses.
static IDLE: Mutex<Vec<Arc<Engine>>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The names that scripts have in Redis, as far as ours use them.
const PRELUDE: &str = "
local command = ...
redis = {}
function redis.pcall(...) return command(...) end
function redis.call(...)
  local reply = command(...)
  if type(reply) == 'table' and reply.err then error(reply, 0) end
  return reply
end
function redis.error_reply(text) return { err = (string.gsub(text, '^-', '')) } end
function redis.status_reply(text) return { ok = text } end
-- The error value of a script may be a table.
return pcall
";

impl Scripts {
    /// Returns the scripts of a server that has just started: none.
    pub fn new(planted: Option<&'static Planted>) -> Self {
        let name = |planted: Option<&Planted>| planted.map(|planted| planted.name);
        let idle = {
            let mut idle = lock(&IDLE);
            let at = idle.iter().position(|engine| name(engine.planted) == name(planted));
            at.map(|at| idle.swap_remove(at))
        };
        let engine = idle.unwrap_or_else(|| Arc::new(Engine::new(planted)));
        *lock(&engine.data) = Data::default();
        Self { known: BTreeSet::new(), engine }
    }

    /// Returns the data that the scripts read and change.
    pub fn data(&self) -> Arc<Mutex<Data>> {
        self.engine.data.clone()
    }

    pub fn knows(&self, digest: &str) -> bool {
        self.known.contains(digest)
    }

    pub fn forget(&mut self) {
        self.known.clear();
    }

    /// Learns a script, and returns its digest.
    pub fn learn(&mut self, source: &[u8]) -> Result<String, Reply> {
        let digest = self.engine.digest(source);
        if !self.knows(&digest) {
            self.engine.compile(&digest, source)?;
            self.known.insert(digest.clone());
        }
        Ok(digest)
    }

    /// Runs a script with its keys and its arguments.
    pub fn run(&self, digest: &str, keys: &[Vec<u8>], arguments: &[Vec<u8>]) -> Reply {
        let compiled = lock(&self.engine.compiled).get(digest).cloned();
        let Some(function) = compiled.filter(|_| self.knows(digest)) else {
            return Reply::error("NOSCRIPT No matching script. Please use EVAL.");
        };
        match self.engine.call(&function, keys, arguments) {
            Ok((true, value)) => from_lua(&value),
            Ok((false, error)) => failure(&error, digest),
            Err(error) => Reply::error(format!("ERR {error}")),
        }
    }
}

impl Drop for Scripts {
    fn drop(&mut self) {
        lock(&IDLE).push(self.engine.clone());
    }
}

impl Engine {
    fn new(planted: Option<&'static Planted>) -> Self {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::default()).expect("Lua starts");
        let data: Arc<Mutex<Data>> = Arc::default();
        let of_commands = data.clone();
        let command = lua.create_function(move |lua, words: MultiValue| {
            let words: Option<Vec<_>> = words.into_iter().map(|word| argument(&word)).collect();
            let Some(words) = words.filter(|words| !words.is_empty()) else {
                let why = "ERR Lua redis lib command arguments must be strings or integers";
                return to_lua(lua, &Reply::error(why));
            };
            let reply = commands::run(&mut lock(&of_commands), &words);
            to_lua(lua, &in_script(reply))
        });
        let command = command.expect("Lua has room for a function");
        let protected = lua.load(PRELUDE).call(command).expect("the prelude runs");
        Self {
            lua,
            data,
            protected,
            compiled: Mutex::default(),
            digests: Mutex::default(),
            planted,
        }
    }

    fn digest(&self, source: &[u8]) -> String {
        let mut digests = lock(&self.digests);
        if let Some((_, digest)) = digests.iter().find(|(other, _)| other == source) {
            return digest.clone();
        }
        let digest = sha1_smol::Sha1::from(source).digest().to_string();
        digests.push((source.to_vec(), digest.clone()));
        digest
    }

    fn compile(&self, digest: &str, source: &[u8]) -> Result<(), Reply> {
        let mut compiled = lock(&self.compiled);
        if compiled.contains_key(digest) {
            return Ok(());
        }
        let text = match self.planted {
            Some(planted) => planted.plant(&String::from_utf8_lossy(source)).into_bytes(),
            None => source.to_vec(),
        };
        let function = self.lua.load(text).set_name("@user_script").into_function();
        let function = function.map_err(|error| {
            Reply::error(format!("ERR Error compiling script (new function): {error}"))
        })?;
        compiled.insert(digest.to_owned(), function);
        Ok(())
    }

    fn call(
        &self,
        function: &Function,
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> Result<(bool, LuaValue), LuaError> {
        let globals = self.lua.globals();
        for (name, words) in [("KEYS", keys), ("ARGV", arguments)] {
            let texts: Result<Vec<_>, _> =
                words.iter().map(|word| self.lua.create_string(word)).collect();
            globals.set(name, self.lua.create_sequence_from(texts?)?)?;
        }
        self.protected.call(function)
    }
}

/// Returns the bytes of an argument of `redis.call`.
fn argument(word: &LuaValue) -> Option<Vec<u8>> {
    match word {
        LuaValue::String(text) => Some(text.as_bytes().to_vec()),
        LuaValue::Integer(number) => Some(number.to_string().into_bytes()),
        LuaValue::Number(number) => Some(number_text(*number).into_bytes()),
        _ => None,
    }
}

/// Returns a reply as the second version of the protocol has it, which scripts see.
fn in_script(reply: Reply) -> Reply {
    match reply {
        Reply::Score(score) => Reply::text(number_text(score)),
        Reply::Scored(members) => {
            let words = members.into_iter();
            let words = words.flat_map(|(member, score)| [member, number_text(score).into_bytes()]);
            Reply::Array(words.map(Reply::Bulk).collect())
        }
        Reply::Map(pairs) => {
            Reply::Array(pairs.into_iter().flat_map(|(key, value)| [key, value]).collect())
        }
        reply => reply,
    }
}

fn to_lua(lua: &Lua, reply: &Reply) -> Result<LuaValue, LuaError> {
    let field = |name: &str, text: &str| -> Result<LuaValue, LuaError> {
        let table = lua.create_table()?;
        table.set(name, text)?;
        Ok(LuaValue::Table(table))
    };
    match reply {
        Reply::Int(number) => Ok(LuaValue::Number(*number as f64)),
        Reply::Bulk(bytes) => Ok(LuaValue::String(lua.create_string(bytes)?)),
        Reply::Status(text) => field("ok", text),
        Reply::Error(text) => field("err", text),
        Reply::Array(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for (at, item) in items.iter().enumerate() {
                table.raw_set(at + 1, to_lua(lua, item)?)?;
            }
            Ok(LuaValue::Table(table))
        }
        _ => Ok(LuaValue::Boolean(false)),
    }
}

/// Returns the reply for what a script returns.
fn from_lua(value: &LuaValue) -> Reply {
    match value {
        LuaValue::Integer(number) => Reply::Int(*number),
        // Redis drops the fraction.
        LuaValue::Number(number) => Reply::Int(*number as i64),
        LuaValue::String(text) => Reply::text(text.as_bytes()),
        LuaValue::Boolean(true) => Reply::Int(1),
        LuaValue::Table(table) => from_table(table),
        _ => Reply::Nil,
    }
}

fn from_table(table: &Table) -> Reply {
    if let Ok(Some(text)) = table.raw_get::<Option<String>>("err") {
        return Reply::Error(text);
    }
    if let Ok(Some(text)) = table.raw_get::<Option<String>>("ok") {
        return Reply::text(text);
    }
    let mut items = Vec::new();
    for at in 1.. {
        match table.raw_get::<LuaValue>(at) {
            Ok(LuaValue::Nil) | Err(_) => break,
            Ok(item) => items.push(from_lua(&item)),
        }
    }
    Reply::Array(items)
}

/// Returns the reply for a script that failed, in the words of Redis 7.0.
fn failure(error: &LuaValue, digest: &str) -> Reply {
    let text = match error {
        LuaValue::Table(table) => table.raw_get("err").unwrap_or_default(),
        LuaValue::String(text) => format!("ERR {}", text.to_string_lossy()),
        LuaValue::Error(error) => format!("ERR {error}"),
        other => format!("ERR {other:?}"),
    };
    Reply::error(format!("{text} script: {digest}, on @user_script:1."))
}
