//! The command line.

use std::{
    ffi::OsString,
    fmt::Display,
    ops::{Range, RangeInclusive},
    path::PathBuf,
    process,
    str::FromStr,
    time::Duration,
};

use lexopt::Arg::{Long, Short, Value};

use crate::{Failure, replica::Way};

const HELP: &str = "\
See a cache stampede happen, and see it stopped.

Starts a slow database and several replicas of a service on loopback. Clients ask for a few hot
keys that expire again and again, at a fixed rate, in seven ways: without protection, with
bellwether in each replica alone, and with bellwether over a store that the replicas share, where
the requests at an expiry wait, where they get the old value meanwhile, where the value is refreshed
before it expires, where each replica keeps copies, too, and where the store goes away. Prints a
table and draws a chart, or serves a page on which you choose your own numbers.

Usage: hotspot [OPTIONS]

Options:
      --replicas <N>       Replicas of the service, 1 to 32 [default: 16]
      --rate <N>           Requests a second in all, 1 to 5000 [default: 1000]
      --keys <N>           Hot keys, 1 to 1000 [default: 4]
      --seconds <SECONDS>  How long each of the ways runs, 1 to 3600 [default: 4]
      --ttl <TIME>         How long a value is kept, such as `1s` or `750ms` [default: 1s]
      --load-time <TIME>   How long one query takes while the database keeps up [default: 150ms]
      --lease <TIME>       How long the fleet waits for a replica that died while it was loading
                           [default: 5s, or 1s with --kill-leader]
      --redis <URL>        Share entries and leases through this Redis or Valkey server
      --processes <N>      Run 1 to 32 replicas as processes of their own, in place of --replicas;
                           needs --redis
      --origin-fails <TIME>
                           Let all queries fail for so long, in runs that are longer by that; the
                           ways with old values serve them in place of failures
      --away <TIME>        How long the store is away in the last way [default: 5s]
      --kill-leader        Kill the leader in the middle of a load, and report the takeover
      --web                Serve the demo as a page on loopback, until Ctrl-C
      --port <N>           The port of that page, 0 to 65535 [default: 0, a free one]
      --json               Print one JSON document, and no table
      --replay <FILE>      Show the run of such a document, and run nothing
      --chart <PATH>       Where to write the chart [default: hotspot.svg]
  -h, --help               Print this help
";

/// The settings of a run.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) replicas: u16,
    /// Requests a second, for all replicas together.
    pub(crate) rate: u16,
    pub(crate) keys: u16,
    pub(crate) seconds: u64,
    pub(crate) ttl: Duration,
    pub(crate) load_time: Duration,
    pub(crate) lease: Option<Duration>,
    /// For how long an old value may be served, and a copy of the local tier.
    pub(crate) stale: Duration,
    pub(crate) copies: Duration,
    pub(crate) redis: Option<String>,
    pub(crate) processes: Option<u16>,
    pub(crate) origin_fails: Option<Duration>,
    /// For how long the store is away in the last way.
    pub(crate) away: Duration,
    pub(crate) kill_leader: bool,
    pub(crate) web: bool,
    pub(crate) port: u16,
    pub(crate) json: bool,
    pub(crate) replay: Option<PathBuf>,
    pub(crate) chart: PathBuf,
}

/// What this process is.
pub(crate) enum Role {
    /// The process that the user started.
    Main(Box<Options>),
    /// One replica, with its settings on the first line of its standard input.
    Replica,
}

impl Role {
    /// Reads the command line. `--help` is printed, and ends the process.
    pub(crate) fn read() -> Result<Self, Failure> {
        let mut parser = lexopt::Parser::from_env();
        let mut options = Options::standard();
        let mut replicas = None;
        while let Some(argument) = parser.next()? {
            let name = match argument {
                Long(name) => name.to_owned(),
                Short('h') => "help".to_owned(),
                Value(role) if role == "replica" => return Ok(Self::Replica),
                other => return Err(other.unexpected().into()),
            };
            let mut value = || parser.value();
            match name.as_str() {
                "replicas" => replicas = Some(number(&name, value()?, 1..=32)?),
                "rate" => options.rate = number(&name, value()?, 1..=5000)?,
                "keys" => options.keys = number(&name, value()?, 1..=1000)?,
                "seconds" => options.seconds = number(&name, value()?, 1..=3600)?,
                "ttl" => options.ttl = time(&name, value()?)?,
                "load-time" => options.load_time = time(&name, value()?)?,
                "lease" => options.lease = Some(time(&name, value()?)?),
                "redis" => options.redis = Some(text(&name, value()?)?),
                "processes" => options.processes = Some(number(&name, value()?, 1..=32)?),
                "origin-fails" => options.origin_fails = Some(time(&name, value()?)?),
                "away" => options.away = time(&name, value()?)?,
                "kill-leader" => options.kill_leader = true,
                "web" => options.web = true,
                "port" => options.port = number(&name, value()?, 0..=u16::MAX)?,
                "json" => options.json = true,
                "replay" => options.replay = Some(value()?.into()),
                "chart" => options.chart = value()?.into(),
                "help" => {
                    print!("{HELP}");
                    process::exit(0);
                }
                _ => return Err(format!("there is no option --{name}; see --help").into()),
            }
        }
        if replicas.is_some() && options.processes.is_some() {
            return Err("--replicas and --processes exclude each other".into());
        }
        options.replicas = replicas.unwrap_or(options.replicas);
        options.check()?;
        Ok(Self::Main(Box::new(options)))
    }
}

impl Options {
    pub(crate) fn standard() -> Self {
        Self {
            replicas: 16,
            rate: 1000,
            keys: 4,
            seconds: 4,
            ttl: Duration::from_secs(1),
            load_time: Duration::from_millis(150),
            lease: None,
            stale: Duration::from_secs(60),
            copies: Duration::from_secs(10),
            redis: None,
            processes: None,
            origin_fails: None,
            away: Duration::from_secs(5),
            kill_leader: false,
            web: false,
            port: 0,
            json: false,
            replay: None,
            chart: "hotspot.svg".into(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.processes.is_some() && self.redis.is_none() {
            return Err("--processes needs --redis, for processes share no memory".into());
        }
        if self.kill_leader && self.fleet_size() < 2 {
            return Err(
                "--kill-leader needs at least two replicas, so that one can take over".into()
            );
        }
        if self.kill_leader && self.origin_fails.is_some() {
            return Err("--kill-leader and --origin-fails exclude each other".into());
        }
        if self.lease() < Duration::from_millis(20) {
            return Err("--lease is under 20ms".into());
        }
        if self.load_time > Duration::from_secs(5) {
            return Err("--load-time is over 5s, and clients wait for 10s at most".into());
        }
        Ok(())
    }

    /// Returns how many replicas there are, in this process or as processes.
    pub(crate) fn fleet_size(&self) -> u16 {
        self.processes.unwrap_or(self.replicas)
    }

    /// Returns the lease of a load.
    pub(crate) fn lease(&self) -> Duration {
        let standard = Duration::from_secs(if self.kill_leader { 1 } else { 5 });
        self.lease.unwrap_or(standard)
    }

    /// Returns how long a way runs.
    pub(crate) fn length(&self, way: Way) -> Duration {
        let length = Duration::from_secs(self.seconds) + self.origin_fails.unwrap_or_default();
        if way == Way::StoreAway { length + self.away } else { length }
    }

    /// Returns how long all ways run.
    pub(crate) fn length_of_all(&self) -> Duration {
        Way::ALL.into_iter().map(|way| self.length(way)).sum()
    }

    /// Returns when the database fails, since the start of a way.
    pub(crate) fn failing(&self) -> Option<Range<Duration>> {
        let from = Duration::from_secs(self.seconds).mul_f64(0.3);
        Some(from..from + self.origin_fails?)
    }

    /// Returns when the store is away, since the start of a way, if the way has that.
    pub(crate) fn away_in(&self, way: Way) -> Option<Range<Duration>> {
        if way != Way::StoreAway {
            return None;
        }
        let from = Duration::from_secs(self.seconds).mul_f64(0.3);
        Some(from..from + self.away)
    }

    /// Returns the name of the store that the replicas share.
    pub(crate) fn store_name(&self) -> &'static str {
        if self.redis.is_some() { "Redis" } else { "the store" }
    }
}

fn text(name: &str, value: OsString) -> Result<String, Failure> {
    value.into_string().map_err(|value| format!("--{name}: {value:?} is not text").into())
}

fn number<T>(name: &str, value: OsString, range: RangeInclusive<T>) -> Result<T, Failure>
where
    T: FromStr + PartialOrd + Display,
{
    let text = text(name, value)?;
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => {
            let (start, end) = range.into_inner();
            Err(format!("--{name} takes a number from {start} to {end}, not {text:?}").into())
        }
    }
}

/// Reads a time with its unit.
fn time(name: &str, value: OsString) -> Result<Duration, Failure> {
    let text = text(name, value)?;
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 0.001),
        (None, Some(number)) => (number, 1.0),
        (None, None) => ("", 1.0),
    };
    match number.parse::<f64>().map(|number| number * unit) {
        Ok(seconds) if (0.001..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => {
            let what = "a time from 1ms to 3600s with its unit, such as 750ms or 1.5s";
            Err(format!("--{name} takes {what}, not {text:?}").into())
        }
    }
}
