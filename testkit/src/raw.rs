use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, RedisResult, aio::MultiplexedConnection,
};

use super::{LIMIT, comes_true};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A plain connection, to look at a server and to change it behind the crate's back.
#[derive(Clone)]
pub struct Raw(MultiplexedConnection);

impl Raw {
    pub(super) async fn connect(url: &str, own: &Arc<Mutex<HashSet<String>>>) -> RedisResult<Self> {
        // The client's own limit is half a second: a look through all keys takes longer on a busy machine.
        let config = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let client = Client::open(url)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        let mut raw = Self(connection);
        let info: String = raw.try_run(&["CLIENT", "INFO"]).await?;
        if let Some(address) = info.split(' ').find_map(|field| field.strip_prefix("addr=")) {
            own.lock().expect("no holder panics").insert(address.to_owned());
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

    /// Whether the server still reads what it kept; until then it refuses nearly everything.
    pub async fn is_loading(&mut self) -> bool {
        let info = self.try_run::<String>(&["INFO", "persistence"]).await;
        info.is_ok_and(|info| info.lines().any(|line| line == "loading:1"))
    }

    /// The keys of a pattern, in order.
    pub async fn keys(&mut self, pattern: &str) -> Vec<String> {
        let mut keys: Vec<String> = self.run(&["KEYS", pattern]).await;
        keys.sort();
        keys
    }

    /// Milliseconds until a key ends; -1 if it never does, -2 if it is not there.
    pub async fn pttl(&mut self, key: &str) -> i64 {
        self.run(&["PTTL", key]).await
    }

    /// The channels that somebody is subscribed to.
    pub async fn pubsub_channels(&mut self) -> Vec<String> {
        self.channels("CHANNELS").await
    }

    /// The channels of its shard that somebody is subscribed to, at a node of a cluster.
    pub async fn shard_channels(&mut self) -> Vec<String> {
        self.channels("SHARDCHANNELS").await
    }

    /// Of both kinds.
    pub async fn all_channels(&mut self) -> Vec<String> {
        let mut channels = self.pubsub_channels().await;
        channels.extend(self.shard_channels().await);
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

    /// Makes everything in this database so much older, and ends what ends within that: keys by their time,
    /// members of sorted sets by their scores.
    ///
    /// In place of waiting it out: a test that ages keys is exact where one that sleeps depends on how busy
    /// the machine is.
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

    /// Waits until as many replicas follow this server and have said so.
    ///
    /// The server sends nothing before it has heard from a replica, which may be a second after that is in step.
    pub async fn followed_by(&mut self, replicas: usize) {
        let all = async || {
            self.run::<()>(&["FLUSHALL"]).await;
            let info: String = self.run(&["INFO", "replication"]).await;
            let heard = |line: &&str| {
                line.starts_with("slave")
                    && line.contains("state=online")
                    && !line.contains("offset=0,")
            };
            info.lines().filter(heard).count() == replicas
        };
        assert!(comes_true(LIMIT, all).await, "not all replicas follow");
    }

    /// How often the server has answered with an error of this code.
    pub async fn errors(&mut self, code: &str) -> usize {
        let info: String = self.run(&["INFO", "errorstats"]).await;
        let start = format!("errorstat_{code}:count=");
        let count = info.lines().find_map(|line| line.strip_prefix(&start));
        count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    }

    /// The process id of the server.
    pub(super) async fn process(&mut self) -> Option<u32> {
        let info: String = self.try_run(&["INFO", "server"]).await.ok()?;
        info.lines().find_map(|line| line.strip_prefix("process_id:"))?.trim().parse().ok()
    }
}
