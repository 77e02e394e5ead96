//! What the command line says.

use std::{path::PathBuf, process, time::Duration};

use clap::{Parser, Subcommand};

use crate::Failure;

/// See a cache stampede happen, and see it stopped.
///
/// Starts a slow origin and several replicas of a service on loopback, and lets clients ask for a few hot
/// keys that expire again and again: first without protection, then with bellwether in each replica alone,
/// then with bellwether over a store that the replicas share. Prints a table and draws a chart.
#[derive(Clone, Debug, Parser)]
#[command(name = "hotspot", args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    /// Replicas of the service.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    pub(crate) replicas: u16,

    /// Clients; each sends its next request a moment after its last one was answered, and needs up to six
    /// open files.
    #[arg(long, value_name = "N", default_value_t = 120, value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub clients: u16,

    /// Hot keys.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) keys: u16,

    /// How long each of the three ways runs, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,

    /// How long a value is kept, such as `1s` or `750ms`.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub ttl: Duration,

    /// How long one load takes while the origin is not overloaded.
    #[arg(long, value_name = "TIME", default_value = "150ms", value_parser = duration)]
    pub load_time: Duration,

    /// How long the fleet waits for a replica that died while it was loading [default: 5s, or 1s with
    /// --kill-leader].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub lease: Option<Duration>,

    /// Share entries and leases through this Redis or Valkey server, rather than through memory.
    #[arg(long, value_name = "URL")]
    pub redis: Option<String>,

    /// Run so many replicas as processes of their own; needs --redis.
    #[arg(long, value_name = "N", conflicts_with = "replicas", value_parser = clap::value_parser!(u16).range(1..=32))]
    pub processes: Option<u16>,

    /// Kill the replica that leads, in the middle of a load, and tell who took over and when.
    #[arg(long)]
    pub kill_leader: bool,

    /// Print one JSON document rather than the table.
    #[arg(long)]
    pub json: bool,

    /// Where to write the chart.
    #[arg(long, value_name = "PATH", default_value = "hotspot.svg")]
    pub chart: PathBuf,

    #[command(subcommand)]
    pub role: Option<Role>,
}

/// What this process is, if it is not the one that the user started.
#[derive(Clone, Copy, Debug, Subcommand)]
pub(crate) enum Role {
    /// One replica, with its settings on the first line of its standard input.
    #[command(hide = true)]
    Replica,
}

impl Options {
    /// Reads the command line. `--help` is printed, and ends the process.
    pub(crate) fn read() -> Result<Self, Failure> {
        let options = match Self::try_parse() {
            Ok(options) => options,
            Err(help) if !help.use_stderr() => {
                print!("{help}");
                process::exit(0);
            }
            Err(error) => return Err(in_one_line(&error.to_string()).into()),
        };
        options.check()?;
        Ok(options)
    }

    fn check(&self) -> Result<(), Failure> {
        if self.processes.is_some() && self.redis.is_none() {
            return Err("--processes needs --redis, for processes share no memory".into());
        }
        if self.kill_leader && self.fleet_size() < 2 {
            return Err("--kill-leader needs two replicas at least, or nobody can take over".into());
        }
        if self.lease() < Duration::from_millis(20) {
            return Err("--lease is under 20ms".into());
        }
        if self.load_time > Duration::from_secs(5) {
            return Err("--load-time is over 5s, and clients wait for 10s at most".into());
        }
        Ok(())
    }

    /// How many replicas there are, in this process or as processes.
    pub(crate) fn fleet_size(&self) -> u16 {
        self.processes.unwrap_or(self.replicas)
    }

    /// The lease of a load.
    pub(crate) fn lease(&self) -> Duration {
        let standard = Duration::from_secs(if self.kill_leader { 1 } else { 5 });
        self.lease.unwrap_or(standard)
    }

    /// How long each way runs.
    pub(crate) fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

/// A time with its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 0.001),
        (None, Some(number)) => (number, 1.0),
        (None, None) => return Err("a time needs a unit, such as 750ms or 1.5s".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
    let seconds = number * unit;
    if !(0.001..=3600.0).contains(&seconds) {
        return Err("a time is between 1ms and 3600s".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Clap's message without its usage notes.
fn in_one_line(message: &str) -> String {
    let head = message.split("\n\n").next().unwrap_or(message);
    let words: Vec<&str> = head.trim_start_matches("error: ").split_whitespace().collect();
    words.join(" ")
}
