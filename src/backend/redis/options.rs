//! The settings of a backend in a configuration file.

use std::{fmt, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{RedisBackendBuilder, client::Replicas};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BackendConfig {
    server: Option<Secret<String>>,
    sentinels: Option<Secret<Vec<String>>>,
    master: Option<Secret<String>>,
    cluster: Option<Secret<Vec<String>>>,
    command_timeout: Option<Time>,
    connect_timeout: Option<Time>,
    push_limit: Option<usize>,
    replicas: Option<ReplicasConfig>,
    client_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplicasConfig {
    count: u32,
    within: Time,
}

struct Time(Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let why = "a time is a text with its unit, such as \"250ms\" or \"5s\"";
        let time = String::deserialize(from).ok().as_deref().and_then(time_of);
        time.map(Self).ok_or_else(|| Error::custom(why))
    }
}

/// Reads a whole number with its unit. A number without a unit is refused, because configuration
/// files disagree about its meaning.
fn time_of(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|it: char| !it.is_ascii_digit())?);
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(millis).map(Duration::from_millis)
}

/// A URL or a password. The error of a format would show it.
struct Secret<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Secret<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let why = "a URL or a password must be a text in quotes, and several URLs a list of texts";
        T::deserialize(from).map(Self).map_err(|_shows_it| Error::custom(why))
    }
}

/// Reads the settings from a configuration file. They have the names of the methods.
///
/// One of `server`, `sentinels` with `master`, and `cluster` must be given. A time is a text such
/// as `250ms`: a whole number with the unit `ms`, `s`, `m` or `h`.
///
/// An error does not show a URL or a password. Some formats add the line of the mistake to it, as
/// TOML does.
///
/// ```
/// # use bellwether::backend::RedisBackendBuilder;
/// let text = r#"{
///     "sentinels": ["redis://10.0.0.1:26379"],
///     "master": "mymaster",
///     "command_timeout": "500ms",
///     "replicas": { "count": 1, "within": "50ms" }
/// }"#;
/// let builder: RedisBackendBuilder = serde_json::from_str(text).unwrap();
/// # builder.build().unwrap();
/// ```
impl<'de> Deserialize<'de> for RedisBackendBuilder {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(SettingsVisitor)
    }
}

/// Reads a map of settings. The error of a format would show a URL in its place.
struct SettingsVisitor;

impl<'de> Visitor<'de> for SettingsVisitor {
    type Value = RedisBackendBuilder;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of settings")
    }

    fn visit_str<E: Error>(self, _url: &str) -> Result<Self::Value, E> {
        Err(E::custom("a text stands where a map of settings is expected"))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let config = BackendConfig::deserialize(MapAccessDeserializer::new(map))?;
        config.builder().map_err(A::Error::custom)
    }
}

impl BackendConfig {
    fn builder(self) -> Result<RedisBackendBuilder, &'static str> {
        let builder = RedisBackendBuilder::default();
        let mut builder = match (self.server, self.sentinels, self.master, self.cluster) {
            (Some(Secret(url)), None, None, None) => builder.server(url),
            (None, Some(Secret(urls)), Some(Secret(master)), None) => {
                builder.sentinels(urls, master)
            }
            (None, None, None, Some(Secret(urls))) => builder.cluster(urls),
            _ => return Err("give one of `server`, `sentinels` with `master`, and `cluster`"),
        };
        let config = &mut builder.config;
        config.command_timeout = self.command_timeout.map_or(config.command_timeout, |it| it.0);
        config.connect_timeout = self.connect_timeout.map(|it| it.0);
        config.push_limit = self.push_limit.unwrap_or(config.push_limit);
        config.client_name = self.client_name;
        config.replicas = self.replicas.map(|it| Replicas { count: it.count, within: it.within.0 });
        Ok(builder)
    }
}
