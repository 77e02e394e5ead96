use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, RedisResult, aio::MultiplexedConnection,
};

use super::{LIMIT, comes_true, scripts::scripts};

/// The time limit of a connection, and of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A plain connection that inspects and changes a server without the crate.
#[derive(Clone)]
pub struct Raw(MultiplexedConnection);

/// Connects with limits that a busy machine does not reach. The defaults are a second for the
/// connection, and half a second for an answer, which a scan of all keys exceeds.
pub async fn patient(url: &str) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    Client::open(url)?.get_multiplexed_async_connection_with_config(&config).await
}

impl Raw {
    pub(super) async fn connect(url: &str, own: &Arc<Mutex<HashSet<String>>>) -> RedisResult<Self> {
        let mut raw = Self(patient(url).await?);
        let info: String = raw.try_run(&["CLIENT", "INFO"]).await?;
        if let Some(address) = info.split(' ').find_map(|field| field.strip_prefix("addr=")) {
            let mut own = own.lock().expect("no holder panics");
            own.insert(address.to_owned());
        }
        Ok(raw)
    }

    /// Runs a command.
    ///
    /// # Panics
    ///
    /// If the server answers with an error.
    pub async fn run<T: FromRedisValue>(&mut self, words: &[&str]) -> T {
        match self.try_run(words).await {
            Ok(answer) => answer,
            Err(error) => panic!("{words:?}: {error}"),
        }
    }

    pub async fn try_run<T: FromRedisValue>(&mut self, words: &[&str]) -> RedisResult<T> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut self.0).await
    }

    /// Returns whether the server still loads its data. Until then it refuses most commands.
    pub async fn is_loading(&mut self) -> bool {
        let info = self.try_run::<String>(&["INFO", "persistence"]).await;
        info.is_ok_and(|info| info.lines().any(|line| line == "loading:1"))
    }

    /// Returns the keys that match a pattern, sorted.
    pub async fn keys(&mut self, pattern: &str) -> Vec<String> {
        let mut keys: Vec<String> = self.run(&["KEYS", pattern]).await;
        keys.sort();
        keys
    }

    /// Returns the number of scripts that were called since the statistics began.
    pub async fn scripts_called(&mut self) -> u64 {
        self.calls("evalsha").await
    }

    /// Returns how often a command was called since the statistics began, also by scripts.
    pub async fn calls(&mut self, command: &str) -> u64 {
        self.number("commandstats", &format!("cmdstat_{command}:calls=")).await
    }

    /// Returns the number behind a text that begins a line of `INFO`, or 0 if there is none.
    pub async fn number(&mut self, section: &str, start: &str) -> u64 {
        let info: String = self.run(&["INFO", section]).await;
        let mut lines = info.lines();
        let rest = lines.find_map(|line| line.strip_prefix(start));
        let Some(number) = rest.and_then(|rest| rest.split(',').next()) else { return 0 };
        number.trim().parse().unwrap_or(0)
    }

    pub async fn reset_stats(&mut self) {
        self.run::<()>(&["CONFIG", "RESETSTAT"]).await;
    }

    /// Returns whether the server knows all scripts of the crate.
    pub async fn knows_all_scripts(&mut self) -> bool {
        self.number("memory", "number_of_cached_scripts:").await == scripts().len() as u64
    }

    /// Gives a user with the password `secret` the rights of a rule, and no others.
    pub async fn set_user(&mut self, user: &str, rule: &[&str]) {
        let words = [&["ACL", "SETUSER", user, "reset", "on", ">secret"][..], rule].concat();
        self.run::<()>(&words).await;
    }

    /// Ends the connections of a type: `normal` or `pubsub`.
    pub async fn kill_clients(&mut self, kind: &str) -> u32 {
        self.run(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).await
    }

    /// Returns the number of processes that wait for loads whose leases match a pattern. A lease
    /// lists some of its waiters, and a set has the rest.
    pub async fn registered(&mut self, leases: &str) -> usize {
        let mut count = 0;
        for lease in self.keys(leases).await {
            let listed: Option<String> = self.run(&["GET", &lease]).await;
            let others: usize = self.run(&["SCARD", &format!("{lease}p")]).await;
            count += listed.map_or(0, |listed| listed.matches(',').count()) + others;
        }
        count
    }

    /// Returns the milliseconds until a key expires: -1 if it never does, -2 if it is missing.
    pub async fn pttl(&mut self, key: &str) -> i64 {
        self.run(&["PTTL", key]).await
    }

    /// Returns the channels of names with a subscriber. The channels of processes are left out.
    pub async fn pubsub_channels(&mut self) -> Vec<String> {
        let mut channels = self.channels("CHANNELS").await;
        channels.retain(|channel| channel.contains('{'));
        channels
    }

    /// Returns the channels of processes with a subscriber.
    pub async fn process_channels(&mut self) -> Vec<String> {
        let mut channels = self.channels("CHANNELS").await;
        channels.retain(|channel| !channel.contains('{'));
        channels
    }

    /// Returns the shard channels with a subscriber, at a node of a cluster.
    pub async fn shard_channels(&mut self) -> Vec<String> {
        self.channels("SHARDCHANNELS").await
    }

    /// Returns the channels of both kinds. A server before version 7 has no shard channels.
    pub async fn all_channels(&mut self) -> Vec<String> {
        let mut channels = self.pubsub_channels().await;
        let of_shards = self.try_run::<Vec<String>>(&["PUBSUB", "SHARDCHANNELS"]).await;
        channels.extend(of_shards.unwrap_or_default());
        channels
    }

    async fn channels(&mut self, kind: &str) -> Vec<String> {
        let mut channels: Vec<String> = self.run(&["PUBSUB", kind]).await;
        channels.sort();
        channels
    }

    pub async fn config_set(&mut self, parameter: &str, value: &str) {
        self.run::<()>(&["CONFIG", "SET", parameter, value]).await;
    }

    /// Makes everything in this database older by this time. Keys age by their expiry, members of
    /// sorted sets by their scores, and entries by the time at which they were stored. Data that
    /// expires within this time is removed.
    ///
    /// A test that ages keys is exact. A test that sleeps depends on how busy the machine is.
    pub async fn age(&mut self, time: Duration) {
        const AGE: &str = "
            for _, key in ipairs(redis.call('KEYS', '*')) do
              if redis.call('TYPE', key).ok == 'zset' then
                local members = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
                for at = 1, #members, 2 do
                  -- A moment in milliseconds, or a ticket in microseconds.
                  local unit = tonumber(members[at + 1]) > 1e14 and 1000 or 1
                  redis.call('ZINCRBY', key, -ARGV[1] * unit, members[at])
                end
              elseif redis.pcall('GETRANGE', key, 0, 2) == 'bw1' then
                local stored_at = tonumber(redis.call('GETRANGE', key, 20, 35)) - ARGV[1] * 1000
                redis.call('SETRANGE', key, 20, string.format('%016.0f', stored_at))
              end
              local left = redis.call('PTTL', key)
              if left >= 0 and left <= tonumber(ARGV[1]) then
                redis.call('DEL', key)
              elseif left >= 0 then
                redis.call('PEXPIRE', key, left - ARGV[1])
              end
            end";
        self.run::<()>(&["EVAL", AGE, "0", &time.as_millis().to_string()]).await;
    }

    /// Waits until this many replicas follow the server and have acknowledged it.
    ///
    /// The first acknowledgement of a replica may come one second after it is in sync.
    pub async fn followed_by(&mut self, replicas: usize) {
        assert!(
            comes_true(LIMIT, async || self.followers_after_flush().await == replicas).await,
            "not all replicas follow"
        );
    }

    /// Changes the data, and returns how many replicas have acknowledged an earlier change.
    async fn followers_after_flush(&mut self) -> usize {
        self.run::<()>(&["FLUSHALL"]).await;
        let info: String = self.run(&["INFO", "replication"]).await;
        let mut followers = 0;
        for line in info.lines() {
            let is_online = line.starts_with("slave") && line.contains("state=online");
            if is_online && !line.contains("offset=0,") {
                followers += 1;
            }
        }
        followers
    }

    /// Returns how many errors with this code the server has answered.
    pub async fn errors(&mut self, code: &str) -> usize {
        self.number("errorstats", &format!("errorstat_{code}:count=")).await as usize
    }

    /// Returns the process id of the server.
    pub(super) async fn process(&mut self) -> Option<u32> {
        let info: String = self.try_run(&["INFO", "server"]).await.ok()?;
        let mut lines = info.lines();
        let id = lines.find_map(|line| line.strip_prefix("process_id:"))?;
        id.trim().parse().ok()
    }
}
