//! The settings of a backend in a configuration file.

mod hidden;

use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::{RedisBackendBuilder, Replicas, SentinelMaster};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BackendConfig {
    #[serde(default, deserialize_with = "read::server")]
    server: Option<String>,
    #[serde(default, deserialize_with = "read::sentinels")]
    sentinels: Option<SentinelsConfig>,
    #[serde(default, deserialize_with = "read::cluster")]
    cluster: Option<Vec<String>>,
    #[serde(default, deserialize_with = "read::command_timeout")]
    command_timeout: Option<Time>,
    #[serde(default, deserialize_with = "read::connect_timeout")]
    connect_timeout: Option<Time>,
    #[serde(default, deserialize_with = "read::push_limit")]
    push_limit: Option<usize>,
    #[serde(default, deserialize_with = "read::replicas")]
    replicas: Option<Confirming>,
    #[serde(default, deserialize_with = "read::client_name")]
    client_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SentinelsConfig {
    #[serde(deserialize_with = "read::urls")]
    urls: Vec<String>,
    #[serde(deserialize_with = "read::master")]
    master: String,
    #[serde(default, deserialize_with = "read::username")]
    username: Option<String>,
    #[serde(default, deserialize_with = "read::password")]
    password: Option<String>,
    #[serde(default, deserialize_with = "read::database")]
    database: i64,
    #[serde(default, deserialize_with = "read::tls")]
    tls: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Confirming {
    #[serde(deserialize_with = "read::confirming")]
    confirming: u32,
    #[serde(default, deserialize_with = "read::within")]
    within: Option<Time>,
}

#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Time(Duration);

impl TryFrom<String> for Time {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        time_of(&text).map(Self).ok_or(TIME)
    }
}

/// The units of times, in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// Reads whole numbers, each with its unit, with or without spaces between them. A number without a
/// unit is refused, because configuration files disagree about its meaning.
fn time_of(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let (number, behind) = rest.split_at(rest.find(|it: char| !it.is_ascii_digit())?);
        let end = behind.find(|it: char| !it.is_ascii_alphabetic()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(end);
        let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
        sum = sum.checked_add(number.parse::<u64>().ok()?.checked_mul(*millis)?)?;
        rest = behind.trim_start();
    }
    (!text.trim().is_empty()).then(|| Duration::from_millis(sum))
}

const TIME: &str = "a duration with its unit, such as \"250ms\", \"5s\" or \"1h 30m\"";
const URLS: &str = "a list of texts with one URL each";

/// Reads each field, with errors that name it and what it must be.
mod read {
    use serde::{Deserialize, Deserializer};

    use super::{Confirming, SentinelsConfig, TIME, Time, URLS, hidden};

    macro_rules! values {
        ($($field:ident: $type:ty, $expected:expr;)*) => {$(
            pub(super) fn $field<'de, D: Deserializer<'de>>(from: D) -> Result<$type, D::Error> {
                hidden::value(from, concat!("`", stringify!($field), "`"), $expected)
            }
        )*};
    }

    macro_rules! maps {
        ($($field:ident: $type:ty, $expected:expr;)*) => {$(
            pub(super) fn $field<'de, D>(from: D) -> Result<Option<$type>, D::Error>
            where
                D: Deserializer<'de>,
            {
                struct Map($type);

                impl<'de> Deserialize<'de> for Map {
                    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                        let place = concat!("`", stringify!($field), "`");
                        hidden::fields(from, place, $expected).map(Self)
                    }
                }

                Ok(Option::<Map>::deserialize(from)?.map(|Map(given)| given))
            }
        )*};
    }

    maps! {
        sentinels: SentinelsConfig, "a map with `urls` and `master`";
        replicas: Confirming, "a map with `confirming`";
    }

    values! {
        server: Option<String>, "a text with one URL";
        cluster: Option<Vec<String>>, URLS;
        command_timeout: Option<Time>, TIME;
        connect_timeout: Option<Time>, TIME;
        push_limit: Option<usize>, "a number of bytes";
        client_name: Option<String>, "a text";
        urls: Vec<String>, URLS;
        master: String, "a text";
        username: Option<String>, "a text";
        password: Option<String>, "a text, in quotes if it is a number";
        database: i64, "a whole number";
        tls: bool, "`true` or `false`";
        confirming: u32, "a number of replicas";
        within: Option<Time>, TIME;
    }
}

/// Reads the settings from a configuration file. They have the names of the methods.
///
/// One of `server`, `sentinels` and `cluster` must be given. Times are text with units, such as
/// `250ms`, `5s` or `1h 30m`. The units are `ms`, `s`, `m`, `h` and `d`, each after a whole number.
///
/// An error names the setting and what it must be, and shows no value, which may be a password.
/// Some formats add the line of the mistake to it, as TOML does.
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
        let what = "the configuration of a Redis backend";
        let config: BackendConfig = hidden::fields(deserializer, what, "a map of settings")?;
        config.builder().map_err(serde::de::Error::custom)
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
    fn a_time_is_whole_numbers_with_units() {
        for (text, millis) in [
            ("250ms", 250),
            (" 1h 30m ", 5_400_000),
            ("1m30s", 90_000),
            ("2d", 172_800_000),
            ("0s", 0),
        ] {
            assert_eq!(time_of(text), Some(Duration::from_millis(millis)), "{text:?}");
        }
        let wrong = ["", "5", "s", "-5s", "1.5s", "5 s", "5S", "5s 3", "99999999999999999999s"];
        assert_eq!(wrong.map(time_of), [None; 9]);
        assert_eq!(time_of("99999999999999999d"), None);
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
            (r#"{"server": "redis://a", "server": "redis://:secret@a"}"#, "`server`"),
            (r#"{"sentinels": {"urls": [], "master": "m", "pasword": "secret"}}"#, "`pasword`"),
        ] {
            let told = read(text).err().unwrap_or_default();
            assert!(told.contains(said) && !told.contains("secret"), "{text}: {told}");
        }
    }

    const SECRETS: [&str; 5] = [
        r#""redis://:8675309@a""#,
        "8675309",
        "-8675309.5",
        r#"["redis://:8675309@a", 8675309]"#,
        r#"{"redis": {"8675309": "8675309"}}"#,
    ];

    /// A URL in place of a list of them was shown as a whole, and so was a password that a format
    /// took for a number.
    #[test]
    fn a_value_of_a_wrong_type_is_told_by_the_name_of_its_setting() {
        let number = &SECRETS[1..2];
        let text = &SECRETS[..1];
        for (fields, within, right) in [
            (&["server", "client_name"][..], ("", ""), text),
            (&["sentinels", "replicas"], ("", ""), &[]),
            (&["cluster", "command_timeout", "connect_timeout"], ("", ""), &[]),
            (&["push_limit"], ("", ""), number),
            (&["urls", "tls"], (r#""sentinels": {"#, "}"), &[]),
            (&["master", "username", "password"], (r#""sentinels": {"#, "}"), text),
            (&["database"], (r#""sentinels": {"#, "}"), number),
            (&["confirming"], (r#""replicas": {"#, "}"), number),
            (&["within"], (r#""replicas": {"#, "}"), &[]),
        ] {
            for (field, secret) in fields.iter().flat_map(|field| SECRETS.map(|one| (field, one))) {
                if right.contains(&secret) {
                    continue;
                }
                let (before, behind) = within;
                let text = format!(r#"{{{before}"{field}": {secret}{behind}}}"#);
                let told = read(&text).err().unwrap_or_default();
                assert!(!told.contains("8675309"), "{text}: {told}");
                // In a list or map, a part of the setting may be named.
                let part = ["`urls` must be", "`confirming` must be", "unknown field `redis`"];
                let is_named = told.contains(&format!("`{field}` must be"))
                    || fields[0] == "sentinels" && part.iter().any(|part| told.contains(part));
                assert!(is_named, "{text}: {told}");
                assert!(told.contains(" at line 1 column "), "{text}: {told}");
            }
        }
    }

    #[test]
    fn a_value_in_the_place_of_settings_or_of_a_url_is_not_shown() {
        for (secret, said) in [
            (SECRETS[0], "must be a map"),
            (SECRETS[1], "must be a map"),
            (SECRETS[3], "`sentinels`"),
            (r#"{"server": "redis://a", "cluster": "redis://:8675309@a"}"#, "a list of texts"),
            (r#"{"cluster": ["redis://a", ["redis://:8675309@a"]]}"#, "a list of texts"),
        ] {
            let told = read(secret).err().unwrap_or_default();
            assert!(told.contains(said) && !told.contains("8675309"), "{secret}: {told}");
        }
    }

    /// In a format without names, the fields are read by their order.
    #[cfg(feature = "postcard")]
    #[test]
    fn a_format_without_names_can_be_read() {
        let mut bytes = Vec::new();
        for text in [Some("redis://127.0.0.1:1"), None, None, Some("2s"), None, None] {
            bytes.extend(postcard::to_allocvec(&text).unwrap_or_default());
        }
        let replicas = postcard::to_allocvec(&Some((2_u32, Some("50ms"))));
        bytes.extend(replicas.unwrap_or_default());
        bytes.extend(postcard::to_allocvec(&Some("shop-7")).unwrap_or_default());
        let builder = postcard::from_bytes::<RedisBackendBuilder>(&bytes);
        let shown = format!("{:?}", builder.as_ref().ok());
        for expected in ["command_timeout: 2s", "count: 2", "within: 50ms", "shop-7"] {
            assert!(shown.contains(expected), "{shown}: {:?}", builder.err());
        }
    }
}
