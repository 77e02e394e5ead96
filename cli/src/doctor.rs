//! Checks a server: each finding has a verdict, and what to do.

use std::{
    collections::HashMap,
    time::{Duration, Instant, SystemTime},
};

use bellwether::{Cache, RedisBackend};
use redis::{Client, RedisResult, aio::MultiplexedConnection};
use serde_json::{Value, json};

use crate::{
    Exit, Failure, Server, address, in_full,
    show::{self, size, time},
};

/// How long a connection and each answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// How many pings are timed.
const PINGS: usize = 21;
/// Round trips from which waits and hits suffer, and from which the default time-outs are too
/// short.
const SLOW: Duration = Duration::from_millis(5);
const TOO_SLOW: Duration = Duration::from_millis(100);
/// How far the clock of the server may be from the local clock. Only ticks of jobs depend on the
/// difference.
const SKEW: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    Fair,
    Bad,
}

struct Finding {
    verdict: Verdict,
    what: &'static str,
    found: String,
    /// What to do, unless all is well.
    advice: String,
}

fn good(what: &'static str, found: impl Into<String>) -> Finding {
    Finding { verdict: Verdict::Good, what, found: found.into(), advice: String::new() }
}

fn fair(what: &'static str, found: impl Into<String>, advice: &str) -> Finding {
    Finding { verdict: Verdict::Fair, what, found: found.into(), advice: advice.to_owned() }
}

fn bad(what: &'static str, found: impl Into<String>, advice: &str) -> Finding {
    Finding { verdict: Verdict::Bad, ..fair(what, found, advice) }
}

/// Checks each server that was given, and prints what was found.
pub(crate) async fn examine(server: &Server, json: bool) -> Result<Exit, Failure> {
    let mut all = Vec::new();
    let mut is_bad = false;
    for url in &server.urls()? {
        let findings = match connect(url).await {
            Ok(connection) => check(server, connection).await,
            Err(failure) => vec![unreachable(&*failure)],
        };
        is_bad |= findings.iter().any(|finding| finding.verdict == Verdict::Bad);
        if json {
            all.extend(findings.iter().map(|finding| finding.json(url)));
        } else {
            show::print(&text(url, &findings))?;
        }
    }
    if json {
        show::print_json(&Value::Array(all))?;
    }
    Ok(if is_bad { Exit::Bad } else { Exit::Well })
}

/// Connects to a server, which may still refuse the first command.
pub(crate) async fn connect(url: &str) -> Result<MultiplexedConnection, Failure> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    Ok(Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await?)
}

fn unreachable(failure: &(dyn std::error::Error + 'static)) -> Finding {
    let words = in_full(failure);
    let lower = words.to_lowercase();
    let advice = if lower.contains("authentication failed") || lower.contains("wrongpass") {
        "mend the user or the password in the URL; write special characters percent-encoded"
    } else if lower.contains("certificate") {
        "name the file of the CA of the server in the variable `SSL_CERT_FILE`"
    } else {
        "check that the server runs, and its address, user, password and TLS"
    };
    bad("connection", words, advice)
}

async fn check(server: &Server, mut connection: MultiplexedConnection) -> Vec<Finding> {
    let info = match info(&mut connection).await {
        Ok(info) => info,
        Err(refused) if refused.code() == Some("NOAUTH") => {
            let advice = "give it in the URL: `redis://[user]:password@host`";
            return vec![bad("connection", "the server asks for a password", advice)];
        }
        Err(refused) if refused.code() == Some("NOPERM") => Info::default(),
        Err(failed) => return vec![unreachable(&failed)],
    };
    let mut findings = vec![version(&info)];
    if findings[0].verdict == Verdict::Bad {
        // All further checks would fail for the same reason.
        return findings;
    }
    if let Some(too_old) = protocol(&mut connection).await {
        findings.push(too_old);
        return findings;
    }
    if info.field("redis_mode") == Some("sentinel") {
        findings.push(sentinel(server, &mut connection).await);
        return findings;
    }
    findings.push(role(server, &info));
    let has_role = findings[1].verdict != Verdict::Bad;
    if info.is_cluster() {
        findings.push(cluster(&mut connection).await);
    }
    findings.push(policy(&info));
    findings.push(memory(&info));
    findings.push(lua(&mut connection).await);
    findings.push(latency(&mut connection).await);
    findings.push(clock(&mut connection).await);
    findings.push(search(server, &mut connection).await);
    if has_role {
        findings.extend(rights(server).await);
    } else {
        findings.push(fair("rights", "not tried", "mend the role first"));
    }
    findings
}

/// The answer of `INFO`, which has no field if an ACL forbids the command.
#[derive(Default)]
struct Info {
    fields: HashMap<String, String>,
}

impl Info {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    fn is_cluster(&self) -> bool {
        self.field("cluster_enabled") == Some("1")
    }
}

async fn info(connection: &mut MultiplexedConnection) -> RedisResult<Info> {
    let text: String = redis::cmd("INFO").query_async(connection).await?;
    let mut info = Info::default();
    for line in text.lines() {
        if let Some((name, value)) = line.trim().split_once(':') {
            info.fields.insert(name.to_owned(), value.to_owned());
        }
    }
    Ok(info)
}

/// Returns what is wrong if the server does not speak RESP3.
async fn protocol(connection: &mut MultiplexedConnection) -> Option<Finding> {
    let answer = redis::cmd("HELLO").query_async::<redis::Value>(connection).await;
    let error = answer.err()?;
    if !error.detail().is_some_and(|text| text.contains("unknown command")) {
        return None;
    }
    let found = "the server is older than Redis 6, or HELLO is renamed";
    Some(bad("protocol", found, "update the server to Redis 6.2 or later, or Valkey 8"))
}

/// Tries the search that `locks` and `top` need. Services do not.
async fn search(server: &Server, connection: &mut MultiplexedConnection) -> Finding {
    let pattern = format!("{}:l:*", server.namespace);
    let mut scan = redis::cmd("SCAN");
    scan.arg(0).arg(&["MATCH", &pattern]).arg(&["COUNT", "1"]);
    match scan.query_async::<redis::Value>(connection).await {
        Ok(_) => good("search", "`locks` and `top` may search for locks"),
        Err(error) => {
            let advice = "permit `+scan`, for those who run `locks` and `top`: docs/redis.md has \
                          the rule for operators";
            fair("search", in_full(&error), advice)
        }
    }
}

fn version(info: &Info) -> Finding {
    let Some(redis) = info.field("redis_version") else {
        let advice = "permit `+info`, so that this check and the warning about eviction work";
        return fair("version", "not known: the user may not run INFO", advice);
    };
    let name = match info.field("valkey_version") {
        Some(valkey) => format!("Valkey {valkey}"),
        None => format!("Redis {redis}"),
    };
    let mut numbers = redis.split('.').map(|part| part.parse::<u32>().ok());
    let major = numbers.next().flatten();
    let minor = numbers.next().flatten();
    match (major, minor) {
        (Some(major), Some(minor)) if (major, minor) < (6, 2) => {
            bad("version", name, "update the server to Redis 6.2 or later, or Valkey 8")
        }
        (Some(..7), _) if info.is_cluster() => {
            let advice = "update the cluster to version 7, because waiters poll before it";
            fair("version", name, advice)
        }
        _ => good("version", name),
    }
}

fn role(server: &Server, info: &Info) -> Finding {
    let replicas = info.field("connected_slaves").unwrap_or("0");
    match (info.field("role"), info.is_cluster()) {
        (Some(_), _) if server.master.is_some() => {
            let mode = info.field("redis_mode").unwrap_or("plain");
            let advice = "give the URLs of the sentinels, or leave `--master` out";
            bad("role", format!("no sentinel, but a {mode} server"), advice)
        }
        (Some("slave"), _) => {
            let advice = "give the URL of the master, or of the sentinels with `--master`";
            bad("role", "a replica, which refuses writes", advice)
        }
        (_, true) if !server.cluster => {
            bad("role", "a node of a cluster", "give `--cluster`, and `cluster` to the builder")
        }
        (_, false) if server.cluster => {
            bad("role", "no node of a cluster", "leave `--cluster` out")
        }
        (Some(role), _) => good("role", format!("{role} with {replicas} replicas")),
        (None, _) => fair("role", "not known", "permit `+info`, for this check"),
    }
}

/// Asks a sentinel for the address of a master.
pub(crate) async fn master_of(
    name: &str,
    sentinel: &mut MultiplexedConnection,
) -> RedisResult<Option<(String, u16)>> {
    let mut ask = redis::cmd("SENTINEL");
    ask.arg("get-master-addr-by-name").arg(name);
    ask.query_async(sentinel).await
}

async fn sentinel(server: &Server, connection: &mut MultiplexedConnection) -> Finding {
    let Some(name) = &server.master else {
        let advice = "name its master by `--master`, or give the URL of the master";
        return bad("role", "a sentinel", advice);
    };
    match master_of(name, connection).await {
        Ok(Some((host, port))) => {
            let found = format!("a sentinel; the master {name} is {host}:{port}");
            fair("role", found, "run `doctor` for the master as well")
        }
        Ok(None) => bad("role", "a sentinel", "it watches no master of this name"),
        Err(error) => bad("role", in_full(&error), "permit `+sentinel|get-master-addr-by-name`"),
    }
}

async fn cluster(connection: &mut MultiplexedConnection) -> Finding {
    let text: Result<String, _> = redis::cmd("CLUSTER").arg("INFO").query_async(connection).await;
    let Ok(text) = text else {
        return fair("cluster", "not known", "permit `+cluster|info`, for this check alone");
    };
    let state = field_after(&text, "cluster_state:");
    let masters = field_after(&text, "cluster_size:");
    let slots = field_after(&text, "cluster_slots_ok:");
    let found = format!("{state}, {masters} masters, {slots} of 16384 slots");
    if state == "ok" && slots == "16384" {
        good("cluster", found)
    } else {
        bad("cluster", found, "mend the cluster: names of the other slots fail")
    }
}

fn field_after<'a>(text: &'a str, name: &str) -> &'a str {
    let mut lines = text.lines();
    let field = lines.find_map(|line| line.trim().strip_prefix(name));
    field.unwrap_or("?")
}

fn policy(info: &Info) -> Finding {
    let advice = "set `maxmemory-policy noeviction`: an evicted lease lets a second holder in";
    let has_limit = info.field("maxmemory").is_some_and(|limit| limit != "0");
    match info.field("maxmemory_policy") {
        Some("noeviction") => good("eviction", "noeviction"),
        Some(policy) if has_limit => bad("eviction", policy, advice),
        Some(policy) => fair("eviction", format!("{policy}, and no `maxmemory`"), advice),
        None => fair("eviction", "not known", "permit `+info`, or look up `maxmemory-policy`"),
    }
}

fn memory(info: &Info) -> Finding {
    let limit = match info.number("maxmemory") {
        // No limit but the memory of the machine.
        Some(0) => info.number("total_system_memory"),
        limit => limit,
    };
    let limit = limit.filter(|limit| *limit > 0);
    let (Some(used), Some(limit)) = (info.number("used_memory"), limit) else {
        return fair("memory", "not known", "permit `+info`, for this check");
    };
    let share = used.saturating_mul(100) / limit;
    let found = format!("{} of {}, {share} %", size(used), size(limit));
    match share {
        ..75 => good("memory", found),
        75..90 => fair("memory", found, "raise `maxmemory`, or shorten the times to live"),
        _ => bad("memory", found, "raise `maxmemory`: a full server grants no lease"),
    }
}

async fn lua(connection: &mut MultiplexedConnection) -> Finding {
    let mut script = redis::cmd("EVAL");
    script.arg("return redis.call('TIME')[1]").arg(0);
    match script.query_async::<String>(connection).await {
        Ok(_) => good("scripts", "run"),
        Err(error) => {
            let advice = "permit `+eval +evalsha +script|load +time`: each operation is a script";
            bad("scripts", in_full(&error), advice)
        }
    }
}

async fn latency(connection: &mut MultiplexedConnection) -> Finding {
    let mut times = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let begun = Instant::now();
        if let Err(error) = redis::cmd("PING").query_async::<()>(connection).await {
            return bad("latency", in_full(&error), "permit `+ping`, or look at the network");
        }
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let median = times[PINGS / 2];
    let worst = times[PINGS - 1];
    let found = format!("{} in the middle, {} at worst", time(median), time(worst));
    // A single late answer is never a bad finding.
    if median >= TOO_SLOW {
        return bad("latency", found, "raise `command_timeout`, or look at the network");
    }
    if median < SLOW && worst < TOO_SLOW {
        return good("latency", found);
    }
    fair("latency", found, "look at `SLOWLOG GET`; run the server nearer to the service")
}

async fn clock(connection: &mut MultiplexedConnection) -> Finding {
    let begun = Instant::now();
    let here = SystemTime::now();
    let reply = redis::cmd("TIME").query_async::<(u64, u64)>(connection).await;
    let Ok((seconds, micros)) = reply else {
        return bad("clock", "not known", "permit `+time`, which scripts need");
    };
    let there = Duration::from_secs(seconds) + Duration::from_micros(micros);
    let here = here.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let apart = there.abs_diff(here + begun.elapsed() / 2);
    let found = format!("{} from the clock of this machine", time(apart));
    let advice = "run NTP on both: ticks of jobs, and fences after a failover, follow the server";
    if apart < SKEW { good("clock", found) } else { fair("clock", found, advice) }
}

/// Tries what caches and locks need, in the namespace. The tries leave fences, which end within
/// seconds.
async fn rights(server: &Server) -> Vec<Finding> {
    let backend = match server.backend() {
        Ok(backend) => backend,
        Err(failure) => return vec![bad("rights", in_full(&*failure), "mend the URL")],
    };
    let advice = "give the user the rule of docs/redis.md, \"Permissions\"";
    let rights = backend.ready().await.map_err(Failure::from);
    let caches = try_cache(server, &backend).await;
    let locks = try_lock(server, &backend).await;
    let mut findings = Vec::new();
    for (what, outcome) in [("rights", rights), ("for caches", caches), ("for locks", locks)] {
        findings.push(match outcome {
            Ok(()) => good(what, format!("work in the namespace {}", server.namespace)),
            Err(failure) => bad(what, in_full(&*failure), advice),
        });
    }
    findings
}

async fn try_cache(server: &Server, backend: &RedisBackend) -> Result<(), Failure> {
    let cache: Cache<u64> = Cache::builder(backend.clone(), &server.namespace).build()?;
    let key = unique();
    let request = cache.request(&key).ttl(PATIENCE);
    request.insert(&1).await?;
    cache.invalidate(&key).await?;
    Ok(())
}

async fn try_lock(server: &Server, backend: &RedisBackend) -> Result<(), Failure> {
    let locks = bellwether::Locks::new(backend.clone(), &server.namespace);
    let mutex = locks.mutex("bellwether-doctor");
    let mutex = mutex.lease(PATIENCE).wait_limit(PATIENCE);
    let guard = mutex.lock().await?;
    guard.unlock().await?;
    Ok(())
}

/// Returns a key that nobody uses.
fn unique() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("bellwether-doctor-{}-{}", std::process::id(), since.as_nanos())
}

impl Finding {
    fn json(&self, url: &str) -> Value {
        let verdict = self.verdict.word();
        json!({
            "server": address::shown(url),
            "what": self.what,
            "verdict": verdict,
            "found": self.found,
            "advice": self.advice,
        })
    }
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Fair => "fair",
            Self::Bad => "BAD",
        }
    }
}

fn text(url: &str, findings: &[Finding]) -> String {
    let mut rows = Vec::new();
    for finding in findings {
        let verdict = format!("  {}", finding.verdict.word());
        rows.push([verdict, finding.what.to_owned(), finding.found.clone()]);
        if !finding.advice.is_empty() {
            rows.push([String::new(), String::new(), format!("-> {}", finding.advice)]);
        }
    }
    format!("{}\n{}", address::shown(url), show::table(&rows))
}
