//! The settings of a backend in a configuration file.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::{RedisBackendBuilder, Replicas, SentinelMaster};
use crate::config::duration;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BackendConfig {
    server: Option<String>,
    sentinels: Option<SentinelsConfig>,
    cluster: Option<Vec<String>>,
    command_timeout: Option<Time>,
    connect_timeout: Option<Time>,
    push_limit: Option<usize>,
    replicas: Option<Confirming>,
    client_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentinelsConfig {
    urls: Vec<String>,
    master: String,
    username: Option<String>,
    password: Option<String>,
    #[serde(default)]
    database: i64,
    #[serde(default)]
    tls: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Confirming {
    confirming: u32,
    within: Option<Time>,
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Time(#[serde(with = "duration")] Duration);

/// Reads the settings from a configuration file. Their names are those of the methods.
///
/// One of `server`, `sentinels` and `cluster` must be given. Times are text with a unit, as
/// [`duration`](crate::config::duration) reads them.
///
/// ```
/// use bellwether::backend::RedisBackendBuilder;
///
/// let builder: RedisBackendBuilder = serde_json::from_str(
///     r#"{
///         "sentinels": {
///             "urls": ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"],
///             "master": "mymaster",
///             "password": "secret"
///         },
///         "command_timeout": "500ms",
///         "replicas": { "confirming": 1, "within": "50ms" }
///     }"#,
/// )
/// .unwrap();
/// let backend = builder.build()?;
///
/// let builder: RedisBackendBuilder =
///     serde_json::from_str(r#"{ "server": "redis://127.0.0.1/" }"#).unwrap();
/// # Ok::<_, bellwether::Error>(())
/// ```
impl<'de> Deserialize<'de> for RedisBackendBuilder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BackendConfig::deserialize(deserializer)?.builder().map_err(serde::de::Error::custom)
    }
}

impl BackendConfig {
    fn builder(self) -> Result<RedisBackendBuilder, &'static str> {
        let mut builder = match (self.server, self.sentinels, self.cluster) {
            (Some(url), None, None) => RedisBackendBuilder::default().server(url),
            (None, Some(given), None) => {
                let master = given.master()?;
                RedisBackendBuilder::default().sentinels(given.urls, master)
            }
            (None, None, Some(urls)) => RedisBackendBuilder::default().cluster(urls),
            _ => return Err("give one of `server`, `sentinels` and `cluster`"),
        };
        if let Some(Time(time)) = self.command_timeout {
            builder = builder.command_timeout(time);
        }
        if let Some(Time(time)) = self.connect_timeout {
            builder = builder.connect_timeout(time);
        }
        if let Some(bytes) = self.push_limit {
            builder = builder.push_limit(bytes);
        }
        if let Some(name) = self.client_name {
            builder = builder.client_name(name);
        }
        if let Some(Confirming { confirming, within }) = self.replicas {
            let replicas = Replicas::confirming(confirming);
            builder = builder.replicas(match within {
                Some(Time(time)) => replicas.within(time),
                None => replicas,
            });
        }
        Ok(builder)
    }
}

impl SentinelsConfig {
    fn master(&self) -> Result<SentinelMaster, &'static str> {
        let mut master = SentinelMaster::named(&self.master).database(self.database);
        if let Some(username) = &self.username {
            master = master.username(username);
        }
        if let Some(password) = &self.password {
            master = master.password(password);
        }
        match self.tls {
            false => Ok(master),
            #[cfg(feature = "tls")]
            true => Ok(master.tls()),
            #[cfg(not(feature = "tls"))]
            true => Err("`tls` needs the feature `tls` of bellwether"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<RedisBackendBuilder, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn each_place_of_servers_can_be_read() {
        for text in [
            r#"{"server": "redis://127.0.0.1:1"}"#,
            r#"{"cluster": ["redis://127.0.0.1:1", "redis://127.0.0.1:2"], "push_limit": 10}"#,
            r#"{"sentinels": {"urls": ["redis://127.0.0.1:1"], "master": "m", "database": 3}}"#,
        ] {
            assert!(read(text).is_ok_and(|builder| builder.build().is_ok()), "{text}");
        }
        let text = r#"{"server": "redis://127.0.0.1:1", "command_timeout": "2s",
            "connect_timeout": "3s", "replicas": {"confirming": 2}}"#;
        let shown = format!("{:?}", read(text).ok());
        let expected = ["command_timeout: 2s", "connect_timeout: Some(3s)", "count: 2"];
        assert!(expected.iter().all(|expected| shown.contains(expected)), "{shown}");
    }

    #[test]
    fn a_mistake_is_told_without_a_password() {
        for (text, said) in [
            ("{}", "give one of"),
            (r#"{"server": "redis://:secret@a", "cluster": ["redis://b"]}"#, "give one of"),
            (r#"{"server": "redis://:secret@a", "comand_timeout": "2s"}"#, "`comand_timeout`"),
            (r#"{"server": "redis://:secret@a", "command_timeout": 250}"#, "\"250ms\""),
            (r#"{"server": "redis://:secret@a", "command_timeout": "2"}"#, "\"250ms\""),
            (r#"{"sentinels": {"urls": [], "password": "secret"}}"#, "`master`"),
        ] {
            let told = read(text).err().unwrap_or_default();
            assert!(told.contains(said) && !told.contains("secret"), "{text}: {told}");
        }
    }
}
