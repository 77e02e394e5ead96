//! A small server in memory, with the commands and the Lua that the crate uses.
//!
//! `commands` runs them on the `keyspace`, in the words of Redis 7.0, and `script` runs Lua over
//! them. `Server` has what a connection needs beside: the protocol, subscriptions and the questions
//! of the client. Nothing here waits, and no time passes while a command runs.

mod commands;
pub mod data;
mod keyspace;
pub mod reply;
mod script;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::{
    data::{Client, ClientId, Data, Outlet},
    keyspace::Keyspace,
    reply::Reply,
    script::Scripts,
};
use crate::planted::Planted;

pub struct Server {
    data: Arc<Mutex<Data>>,
    scripts: Scripts,
    next_client: ClientId,
    /// All that clients did, if it is kept.
    exchanges: Option<Vec<Exchange>>,
}

/// What a client did.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub client: ClientId,
    /// The time of the server's clock in microseconds.
    pub at: i64,
    pub step: Step,
}

#[derive(Clone, Debug)]
pub enum Step {
    /// A command, and its reply in the version of the client.
    Command(Vec<Vec<u8>>, Vec<u8>),
    Left,
}

/// The bytes for a client that reads none.
pub struct Nowhere;

impl Outlet for Nowhere {
    fn send(&self, _bytes: Vec<u8>) {}
}

/// A copy of all keys of a server.
#[derive(Clone)]
pub struct Snapshot(Keyspace);

impl Server {
    /// Starts an empty server. A fault is planted into each script that it learns.
    pub fn new(planted: Option<&'static Planted>) -> Self {
        let scripts = Scripts::new(planted);
        Self { data: scripts.data(), scripts, next_client: 1, exchanges: None }
    }

    pub fn data(&self) -> MutexGuard<'_, Data> {
        self.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the clock, in microseconds since 1970.
    pub fn set_time(&self, now: i64) {
        self.data().now = now;
    }

    pub fn connect(&mut self, outlet: Arc<dyn Outlet>) -> ClientId {
        let id = self.next_client;
        self.next_client += 1;
        let client = Client { outlet, version: 2, channels: Default::default() };
        self.data().clients.insert(id, client);
        id
    }

    pub fn disconnect(&mut self, client: ClientId) {
        self.data().clients.remove(&client);
        self.keep(client, || Step::Left);
    }

    /// Keeps what clients do from now on.
    pub fn keep_exchanges(&mut self) {
        self.exchanges = Some(Vec::new());
    }

    pub fn take_exchanges(&mut self) -> Vec<Exchange> {
        self.exchanges.take().unwrap_or_default()
    }

    fn keep(&mut self, client: ClientId, step: impl FnOnce() -> Step) {
        let at = self.data().now;
        if let Some(exchanges) = &mut self.exchanges {
            exchanges.push(Exchange { client, at, step: step() });
        }
    }

    /// Removes a key. Returns whether it stood.
    pub fn delete(&self, key: &str) -> bool {
        let mut data = self.data();
        let now = data.millis();
        data.keys.remove(key.as_bytes(), now)
    }

    /// Returns the channels of names that have a subscriber. Those of processes stay open.
    pub fn channels_of_names(&self) -> Vec<String> {
        let channels = self.data().channels().into_iter();
        let texts = channels.map(|channel| String::from_utf8_lossy(&channel).into_owned());
        texts.filter(|channel| channel.contains('{')).collect()
    }

    /// Returns all keys, and whether each has an end.
    pub fn keys(&self) -> Vec<(String, bool)> {
        let data = self.data();
        let all = data.keys.all(data.millis());
        let shown = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
        all.map(|(key, stored)| (shown(key), stored.expires.is_some())).collect()
    }

    /// Returns how many commands wrote so far.
    pub fn writes(&self) -> u64 {
        self.data().writes
    }

    pub fn refuse_writes(&self, refuses: bool) {
        self.data().refuses_writes = refuses;
    }

    pub fn forget_scripts(&mut self) {
        self.scripts.forget();
    }

    pub fn end_connections(&self) {
        self.data().clients.clear();
    }

    /// Ends all connections, and forgets all keys and scripts.
    pub fn restart_empty(&mut self) {
        self.scripts.forget();
        let mut data = self.data();
        data.clients.clear();
        data.keys.clear();
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot(self.data().keys.clone())
    }

    /// Ends all connections, and goes on with keys of a time before: a replica that became the
    /// master. It knows no scripts, as a replica that has not been asked for any.
    pub fn fail_over_to(&mut self, snapshot: Snapshot) {
        self.scripts.forget();
        let mut data = self.data();
        data.clients.clear();
        data.keys = snapshot.0;
    }

    /// Runs a command of a client, and sends it the reply.
    pub fn handle(&mut self, client: ClientId, words: &[Vec<u8>]) -> Reply {
        let reply = self.reply(client, words);
        let mut version = 2;
        if let Some(client) = self.data().clients.get(&client) {
            client.send(&reply);
            version = client.version;
        }
        self.keep(client, || {
            let mut bytes = Vec::new();
            reply.encode(version, &mut bytes);
            Step::Command(words.to_vec(), bytes)
        });
        reply
    }

    /// Reads all keys by a client of its own, so that they are among the exchanges.
    pub fn read_all(&mut self) {
        let client = self.connect(Arc::new(Nowhere));
        let ask = |server: &mut Self, words: &[&[u8]]| {
            let words: Vec<_> = words.iter().map(|word| word.to_vec()).collect();
            server.handle(client, &words)
        };
        let Reply::Array(keys) = ask(self, &[b"KEYS", b"*"]) else { return };
        for key in keys {
            let Reply::Bulk(key) = key else { continue };
            ask(self, &[b"PTTL", &key]);
            match ask(self, &[b"TYPE", &key]) {
                Reply::Status("string") => ask(self, &[b"GET", &key]),
                Reply::Status("hash") => ask(self, &[b"HGETALL", &key]),
                _ => ask(self, &[b"ZRANGE", &key, b"0", b"-1", b"WITHSCORES"]),
            };
        }
    }

    fn reply(&mut self, client: ClientId, words: &[Vec<u8>]) -> Reply {
        let name = words.first().map(|word| String::from_utf8_lossy(word).to_uppercase());
        match name.unwrap_or_default().as_str() {
            "PING" => Reply::Status("PONG"),
            "HELLO" => self.hello(client, words),
            "CLIENT" | "SELECT" | "CONFIG" => self.setting(words),
            "INFO" => Reply::text("redis_version:7.0.15\r\nmaxmemory_policy:noeviction\r\n"),
            "ROLE" => {
                Reply::Array(vec![Reply::text("master"), Reply::Int(0), Reply::Array(Vec::new())])
            }
            "SUBSCRIBE" => self.subscribe(client, &words[1..], true),
            "UNSUBSCRIBE" => self.subscribe(client, &words[1..], false),
            "PUBSUB" => Reply::Array(self.data().channels().iter().map(Reply::text).collect()),
            "SCRIPT" => self.script(&words[1..]),
            "EVAL" => match words.get(1).map(|source| self.scripts.learn(source)) {
                Some(Ok(digest)) => self.evaluate(&digest, &words[2..]),
                Some(Err(reply)) => reply,
                None => Reply::error("ERR wrong number of arguments for 'eval' command"),
            },
            "EVALSHA" => match words.get(1).map(|digest| String::from_utf8_lossy(digest)) {
                Some(digest) => self.evaluate(&digest.to_lowercase(), &words[2..]),
                None => Reply::error("ERR wrong number of arguments for 'evalsha' command"),
            },
            _ => commands::run(&mut self.data(), words),
        }
    }

    fn hello(&mut self, client: ClientId, words: &[Vec<u8>]) -> Reply {
        let version = match words.get(1).map(Vec::as_slice) {
            Some(b"3") => 3,
            _ => 2,
        };
        if let Some(client) = self.data().clients.get_mut(&client) {
            client.version = version;
        }
        let pair = |name: &str, value: Reply| (Reply::text(name), value);
        Reply::Map(vec![
            pair("server", Reply::text("redis")),
            pair("version", Reply::text("7.0.15")),
            pair("proto", Reply::Int(i64::from(version))),
            pair("id", Reply::Int(client as i64)),
            pair("mode", Reply::text("standalone")),
            pair("role", Reply::text("master")),
            pair("modules", Reply::Array(Vec::new())),
        ])
    }

    fn setting(&self, words: &[Vec<u8>]) -> Reply {
        match words.get(1).map(|word| word.to_ascii_uppercase()).as_deref() {
            Some(b"ID") => Reply::Int(1),
            _ => Reply::ok(),
        }
    }

    fn subscribe(&mut self, client: ClientId, channels: &[Vec<u8>], begins: bool) -> Reply {
        let mut data = self.data();
        let Some(client) = data.clients.get_mut(&client) else { return Reply::Written };
        for channel in channels {
            let word = if begins { "subscribe" } else { "unsubscribe" };
            if begins {
                client.channels.insert(channel.clone());
            } else {
                client.channels.remove(channel);
            }
            let count = Reply::Int(client.channels.len() as i64);
            client.send(&Reply::Push(vec![Reply::text(word), Reply::text(channel), count]));
        }
        Reply::Written
    }

    fn script(&mut self, words: &[Vec<u8>]) -> Reply {
        match words.first().map(|word| word.to_ascii_uppercase()).as_deref() {
            Some(b"LOAD") if words.len() == 2 => match self.scripts.learn(&words[1]) {
                Ok(digest) => Reply::text(digest),
                Err(reply) => reply,
            },
            Some(b"FLUSH") => {
                self.scripts.forget();
                Reply::ok()
            }
            Some(b"EXISTS") => {
                let knows = |digest: &Vec<u8>| self.scripts.knows(&String::from_utf8_lossy(digest));
                Reply::Array(words[1..].iter().map(|digest| Reply::flag(knows(digest))).collect())
            }
            _ => Reply::error("ERR unknown subcommand of 'script'"),
        }
    }

    fn evaluate(&self, digest: &str, words: &[Vec<u8>]) -> Reply {
        let count = words.first().and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
        let Some(count) = count.filter(|count: &usize| *count < words.len()) else {
            return Reply::error("ERR value is not an integer or out of range");
        };
        let (keys, arguments) = words[1..].split_at(count);
        self.scripts.run(digest, keys, arguments)
    }
}
