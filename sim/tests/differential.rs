//! The simulated server and a real one do the same: replies and keys are equal.
//!
//! The clock of the real server stands still, and is set before each command. So times, fences and
//! lives of keys are equal, too. One test sends random commands. The other one takes all that the
//! real client sent in a schedule, its scripts among them, and sends it to the real server again,
//! each connection by a connection.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::BTreeMap,
    env,
    io::{BufReader, Write},
    net::TcpStream,
    path::PathBuf,
    sync::Arc,
};

use bellwether_sim::{
    oracle::worker::quiet_planned_panics,
    plan::{Class, Fault, Plan},
    play::play,
    server::{Exchange, Nowhere, Server, Step, reply::Reply},
};
use fastrand::Rng;
use redis::{Parser, PushKind, Value};
use tempfile::TempDir;
use testkit::RedisServer;

/// The first second of the year 2100, at which the simulated clock begins.
const EPOCH: i64 = 4_102_444_800_000_000;

/// A clock that stands still until it is set.
struct StillClock(TempDir);

impl StillClock {
    fn new() -> Self {
        let clock = Self(TempDir::new().unwrap());
        clock.set(EPOCH);
        clock
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("time")
    }

    /// Sets the clock to a time in microseconds. A half more hides how the fraction is rounded.
    fn set(&self, at: i64) {
        let seconds = at.div_euclid(1_000_000);
        let micros = at.rem_euclid(1_000_000);
        let of_day = (seconds - EPOCH / 1_000_000).rem_euclid(86_400);
        let day = (seconds - EPOCH / 1_000_000).div_euclid(86_400);
        // A step of the clock is shorter than a month.
        let date = match day {
            0.. => format!("2100-01-{:02}", day + 1),
            _ => format!("2099-12-{:02}", 32 + day),
        };
        let hour = of_day / 3600;
        let minute = of_day / 60 % 60;
        let second = of_day % 60;
        let text = format!("{date} {hour:02}:{minute:02}:{second:02}.{micros:06}5\n");
        let new = self.0.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("TZ", "UTC".to_owned()),
            // The allocator of the C library comes before that of the server, which would ask for
            // the time before there is one.
            ("LD_PRELOAD", format!("{} libc.so.6", library().display())),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}

/// Returns the library that makes a process believe another time.
fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let beside = folders.map(|folder| folder.path().join("faketime"));
    let known = ["/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"];
    let places = known.map(PathBuf::from).into_iter().chain(beside);
    let mut libraries = places.map(|place| place.join("libfaketimeMT.so.1"));
    libraries.find(|library| library.is_file()).expect("libfaketime is not installed")
}

/// A connection to the real server.
struct Real {
    stream: BufReader<TcpStream>,
    parser: Parser,
}

impl Real {
    fn connect(url: &str) -> Self {
        let address = url.trim_start_matches("redis://").split('/').next();
        let stream = TcpStream::connect(address.unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream), parser: Parser::new() }
    }

    /// Sends a command, and returns its reply. Messages before it are thrown away.
    fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Value {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.as_ref().len()).as_bytes());
            bytes.extend_from_slice(word.as_ref());
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&bytes).unwrap();
        loop {
            match self.parser.parse_value(&mut self.stream).unwrap() {
                Value::Push { kind: PushKind::Message, .. } => {}
                value => return value,
            }
        }
    }
}

fn parsed(reply: &Reply, version: u8) -> Value {
    let mut bytes = Vec::new();
    reply.encode(version, &mut bytes);
    redis::parse_redis_value(&bytes).unwrap()
}

/// Returns the text of a reply that both servers give.
///
/// The place in a script is left out, and maps and keys are sorted.
fn told(value: Value) -> String {
    let value = match value {
        Value::Array(mut items) if items.iter().all(is_key) => {
            items.sort_by_key(|item| format!("{item:?}"));
            Value::Array(items)
        }
        Value::Map(mut pairs) => {
            pairs.sort_by_key(|pair| format!("{pair:?}"));
            Value::Map(pairs)
        }
        value => value,
    };
    let text = format!("{value:?}");
    match text.split_once(" script: ") {
        Some((before, _)) => before.to_owned(),
        None => text,
    }
}

/// Returns the reply to `HGETALL` as a map.
fn by_field(value: Value) -> Value {
    match value {
        Value::Array(words) => {
            let pairs = words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone()));
            Value::Map(pairs.collect())
        }
        value => value,
    }
}

/// Returns whether a value looks like a key of the crate, as in the reply to `KEYS`.
fn is_key(value: &Value) -> bool {
    matches!(value, Value::BulkString(text) if text.windows(2).any(|pair| pair == b"}:"))
}

async fn start(clock: &StillClock) -> RedisServer {
    let environment = clock.environment();
    let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, &**value)).collect();
    RedisServer::start_in(&[], &environment).await
}

/// Checks that both servers have the same keys with the same values and lives.
fn compare_keys(real: &mut Real, mut simulated: impl FnMut(&[&str]) -> Value, context: &str) {
    let sorted = |value: Value| {
        let Value::Array(keys) = value else { panic!("{value:?}") };
        let mut keys: Vec<String> =
            keys.iter().map(|key| redis::from_redis_value(key.clone()).unwrap()).collect();
        keys.sort();
        keys
    };
    let keys = sorted(real.ask(&["KEYS", "*"]));
    assert_eq!(sorted(simulated(&["KEYS", "*"])), keys, "{context}");
    for key in keys {
        let kind = real.ask(&["TYPE", &key]);
        let read: Vec<&str> = match told(kind.clone()).as_str() {
            "simple-string(\"string\")" => vec!["GET", &key],
            "simple-string(\"hash\")" => vec!["HGETALL", &key],
            _ => vec!["ZRANGE", &key, "0", "-1", "WITHSCORES"],
        };
        for words in [vec!["TYPE", &key], vec!["PTTL", &key], read] {
            let values = [real.ask(&words), simulated(&words)];
            let [there, here] = values.map(|value| match words[0] {
                "HGETALL" => told(by_field(value)),
                _ => told(value),
            });
            assert_eq!(here, there, "{words:?}, {context}");
        }
    }
}

fn variable(name: &str, usual: u64) -> u64 {
    env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[tokio::test]
async fn random_commands_have_the_same_replies_and_effects() {
    let clock = StillClock::new();
    let server = start(&clock).await;
    let first = variable("BELLWETHER_SEED", fastrand::u64(..1_000_000_000));
    println!("BELLWETHER_SEED={first}");
    for seed in first..first + variable("BELLWETHER_ROUNDS", 40) {
        let mut rng = Rng::with_seed(seed);
        let mut real = Real::connect(&server.url());
        let version = if rng.bool() { "3" } else { "2" };
        let mut simulated = Server::new(None);
        let client = simulated.connect(Arc::new(Nowhere));
        let mut now = EPOCH + i64::from(rng.u32(..2_000_000));
        for words in [vec!["HELLO", version], vec!["FLUSHALL"]] {
            real.ask(&words);
            simulated.handle(client, &owned(&words));
        }
        for step in 0..200 {
            now += [0, 0, 1, 500, 20_000][rng.usize(0..5)];
            clock.set(now);
            simulated.set_time(now);
            let words = random_command(&mut rng);
            let there = told(real.ask(&words));
            let reply = simulated.handle(client, &words);
            let here = told(parsed(&reply, if version == "3" { 3 } else { 2 }));
            let shown: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
            assert_eq!(here, there, "seed {seed}, step {step}: {shown:?}");
        }
        let ask = |words: &[&str]| {
            let reply = simulated.handle(client, &owned(words));
            parsed(&reply, if version == "3" { 3 } else { 2 })
        };
        compare_keys(&mut real, ask, &format!("seed {seed}"));
    }
}

fn owned(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// Returns a random command on a few keys. Some are wrong.
fn random_command(rng: &mut Rng) -> Vec<Vec<u8>> {
    let key = |rng: &mut Rng| ["k1", "k2", "k3", "z1", "z2", "h1"][rng.usize(0..6)].to_owned();
    let number = |rng: &mut Rng| match rng.u8(0..8) {
        0 => "0".to_owned(),
        1 => "-1".to_owned(),
        2 => "no".to_owned(),
        3 => format!("{}", rng.u32(..100_000)),
        _ => format!("{}", rng.u32(..40)),
    };
    let score = |rng: &mut Rng| match rng.u8(0..6) {
        0 => format!("{}.5", rng.u32(..10)),
        1 => format!("{}", 4_102_444_800_000.0 + f64::from(rng.u32(..2048)) / 2048.0),
        2 => "x".to_owned(),
        _ => format!("{}", rng.u32(..10)),
    };
    let bound = |rng: &mut Rng| match rng.u8(0..5) {
        0 => "-inf".to_owned(),
        1 => "+inf".to_owned(),
        2 => format!("({}", rng.u32(..10)),
        _ => format!("{}", rng.u32(..10)),
    };
    let member = |rng: &mut Rng| format!("m{}", rng.u8(0..6));
    let mut words = vec![];
    match rng.u8(0..20) {
        0 => words.extend(["GET".to_owned(), key(rng)]),
        1..4 => {
            words.extend(["SET".to_owned(), key(rng), number(rng)]);
            for option in ["PX", "KEEPTTL", "NX", "XX", "GET"] {
                if rng.u8(0..4) == 0 {
                    words.push(option.to_owned());
                    if option == "PX" {
                        words.push(number(rng));
                    }
                }
            }
        }
        4 => words.extend(["DEL".to_owned(), key(rng), key(rng)]),
        5 => words.extend(["PEXPIRE".to_owned(), key(rng), number(rng)]),
        6 => words.extend(["PTTL".to_owned(), key(rng)]),
        7 => words.extend(["EXISTS".to_owned(), key(rng), key(rng)]),
        8 => words.extend(["APPEND".to_owned(), key(rng), number(rng)]),
        9 => words.extend(["GETRANGE".to_owned(), key(rng), number(rng), number(rng)]),
        10 => {
            let at = format!("{}", rng.i32(-1..20));
            words.extend(["SETRANGE".to_owned(), key(rng), at, number(rng)]);
        }
        11 => words.extend(["RENAME".to_owned(), key(rng), key(rng)]),
        12 => words.extend(["HSET".to_owned(), key(rng), member(rng), number(rng)]),
        13 => words.extend(["HMGET".to_owned(), key(rng), member(rng), member(rng)]),
        14 | 15 => {
            words.extend(["ZADD".to_owned(), key(rng)]);
            for option in ["NX", "XX", "CH"] {
                if rng.u8(0..5) == 0 {
                    words.push(option.to_owned());
                }
            }
            for _ in 0..rng.u8(1..3) {
                words.extend([score(rng), member(rng)]);
            }
        }
        16 => words.extend(["ZREM".to_owned(), key(rng), member(rng)]),
        17 => words.extend(["ZSCORE".to_owned(), key(rng), member(rng)]),
        18 => words.extend(["ZCOUNT".to_owned(), key(rng), bound(rng), bound(rng)]),
        _ => {
            words.extend(["ZRANGE".to_owned(), key(rng)]);
            if rng.bool() {
                words.extend([bound(rng), bound(rng), "BYSCORE".to_owned()]);
                if rng.bool() {
                    words.extend(["LIMIT".to_owned(), "0".to_owned(), "2".to_owned()]);
                }
            } else {
                words.extend([format!("{}", rng.i32(-4..4)), format!("{}", rng.i32(-4..4))]);
            }
            if rng.bool() {
                words.push("WITHSCORES".to_owned());
            }
        }
    }
    words.into_iter().map(String::into_bytes).collect()
}

#[tokio::test]
async fn what_the_client_sent_in_a_schedule_has_the_same_replies_and_effects() {
    quiet_planned_panics();
    let clock = StillClock::new();
    let server = start(&clock).await;
    let first = variable("BELLWETHER_SEED", fastrand::u64(..1_000_000_000));
    println!("BELLWETHER_SEED={first}");
    let mut commands = 0;
    let mut scripts = 0;
    for seed in first..first + variable("BELLWETHER_ROUNDS", 30) {
        let mut plan = Plan::new(seed);
        if matches!(plan.class, Class::Restarts | Class::Failovers) {
            continue;
        }
        plan.faults.retain(|planned| {
            !matches!(planned.fault, Fault::RefuseWrites(_) | Fault::ForgetScripts)
        });
        let exchanges = play(&plan, None, true).exchanges;
        let (sent, of_scripts) = replay(&clock, &server, &exchanges, seed);
        commands += sent;
        scripts += of_scripts;
    }
    println!("{commands} commands had the same replies, {scripts} of them scripts");
}

/// Sends all that clients did to the real server, and compares the replies. Returns how many
/// commands there were, and how many of them were scripts.
fn replay(
    clock: &StillClock,
    server: &RedisServer,
    exchanges: &[Exchange],
    seed: u64,
) -> (usize, usize) {
    let mut control = Real::connect(&server.url());
    control.ask(&["FLUSHALL"]);
    control.ask(&["SCRIPT", "FLUSH"]);
    let mut connections: BTreeMap<u64, (Real, i64)> = BTreeMap::new();
    let mut now = 0;
    let mut commands = 0;
    let mut scripts = 0;
    for (step, exchange) in exchanges.iter().enumerate() {
        if exchange.at != now {
            now = exchange.at;
            clock.set(now);
        }
        let (words, reply) = match &exchange.step {
            Step::Command(words, reply) => (words, reply),
            Step::Left => {
                if let Some((_, id)) = connections.remove(&exchange.client) {
                    control.ask(&["CLIENT", "KILL", "ID", &id.to_string()]);
                }
                continue;
            }
        };
        let (real, _) = connections.entry(exchange.client).or_insert_with(|| {
            let mut real = Real::connect(&server.url());
            let Value::Int(id) = real.ask(&["CLIENT", "ID"]) else { panic!("a client has an id") };
            (real, id)
        });
        let name = String::from_utf8_lossy(&words[0]).to_uppercase();
        let there = real.ask(words);
        if ["CLIENT", "HELLO", "INFO", "ROLE", "SUBSCRIBE", "UNSUBSCRIBE"].contains(&name.as_str())
        {
            continue;
        }
        commands += 1;
        scripts += usize::from(name.starts_with("EVAL"));
        let here = redis::parse_redis_value(reply).unwrap();
        let [here, there] = [here, there].map(|value| match name.as_str() {
            "HGETALL" => told(by_field(value)),
            _ => told(value),
        });
        let shown: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word)).collect();
        assert_eq!(here, there, "seed {seed}, step {step}: {shown:?}");
    }
    (commands, scripts)
}
