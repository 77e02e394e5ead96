//! The search for keys, which takes the server little of its time.

use std::time::Duration;

use redis::{Cmd, from_redis_value};
use tokio::time::{Instant, sleep};

use super::{
    Servers,
    commands::Before,
    link::{CommandDeadline, Link},
    settings::RedisConfig,
};
use crate::error::{BackendError, BackendErrorKind};

/// How many keys the server looks at in one step.
const STEP: u32 = 100;
/// The least time that a step takes the server. More is measured.
const STEP_TIME: Duration = Duration::from_micros(100);
/// The pause after a step, in times of the step: the server spends a hundredth of its time.
const PAUSE: u32 = 100;

impl Servers {
    /// Returns the keys that match a pattern, of each server. A key may come twice.
    pub(in super::super) async fn scan(&self, pattern: &str) -> Result<Vec<String>, BackendError> {
        let found = self.at_each(|connection, _| scan_one(connection, &self.config, pattern));
        Ok(found.await?.concat())
    }
}

async fn scan_one(
    connection: Link,
    config: &RedisConfig,
    pattern: &str,
) -> Result<Vec<String>, BackendError> {
    let run = async |command: &Cmd| {
        let begun = Instant::now();
        let deadline = CommandDeadline::from_now(config);
        let reply = connection.run(command, Before::default(), deadline).await?;
        Ok::<_, BackendError>((reply, begun.elapsed()))
    };
    let (_, way) = run(&redis::cmd("PING")).await?;
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
        let (reply, time) = run(&scan).await?;
        let keys: Vec<Vec<u8>>;
        (cursor, keys) = from_redis_value(reply)
            .map_err(|error| BackendError::new(BackendErrorKind::Unknown, error))?;
        found.extend(keys.into_iter().filter_map(|key| String::from_utf8(key).ok()));
        if cursor == "0" {
            return Ok(found);
        }
        sleep(time.saturating_sub(way).max(STEP_TIME) * PAUSE).await;
    }
}
