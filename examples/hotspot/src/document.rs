//! A run as one JSON document, from which the same report, chart and page can be made again.

use std::{fs, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Failure, figures::Figures, options::Options, report};

/// A run: its setting, its figures and its summary.
#[derive(Serialize, Deserialize)]
pub(crate) struct Document {
    setting: Setting,
    pub(crate) ways: Vec<Figures>,
    summary: String,
}

/// The options of a run that its report depends on. The URL of Redis may have a password, so it is
/// not among them.
#[derive(Serialize, Deserialize)]
struct Setting {
    replicas: u16,
    as_processes: bool,
    over_redis: bool,
    rate: u16,
    keys: u16,
    seconds: u64,
    ttl_ms: f64,
    load_time_ms: f64,
    lease_ms: f64,
    stale_ms: f64,
    copies_ms: f64,
    away_ms: f64,
    origin_fails_ms: Option<f64>,
    kill_leader: bool,
}

impl Document {
    pub(crate) fn new(options: &Options, ways: &[Figures]) -> Self {
        let setting = Setting {
            replicas: options.fleet_size(),
            as_processes: options.processes.is_some(),
            over_redis: options.redis.is_some(),
            rate: options.rate,
            keys: options.keys,
            seconds: options.seconds,
            ttl_ms: to_ms(options.ttl),
            load_time_ms: to_ms(options.load_time),
            lease_ms: to_ms(options.lease()),
            stale_ms: to_ms(options.stale),
            copies_ms: to_ms(options.copies),
            away_ms: to_ms(options.away),
            origin_fails_ms: options.origin_fails.map(to_ms),
            kill_leader: options.kill_leader,
        };
        Self { setting, ways: ways.to_vec(), summary: report::sentences(options, ways) }
    }

    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = fs::read(path).map_err(|error| wrong(&error))?;
        Ok(serde_json::from_slice(&text).map_err(|error| wrong(&error))?)
    }

    /// Returns the options of the run. Where and how to show it comes from the present ones.
    pub(crate) fn options(&self, shown: &Options) -> Options {
        let setting = &self.setting;
        Options {
            replicas: setting.replicas,
            processes: setting.as_processes.then_some(setting.replicas),
            redis: setting.over_redis.then(String::new),
            rate: setting.rate,
            keys: setting.keys,
            seconds: setting.seconds,
            ttl: from_ms(setting.ttl_ms),
            load_time: from_ms(setting.load_time_ms),
            lease: Some(from_ms(setting.lease_ms)),
            stale: from_ms(setting.stale_ms),
            copies: from_ms(setting.copies_ms),
            away: from_ms(setting.away_ms),
            origin_fails: setting.origin_fails_ms.map(from_ms),
            kill_leader: setting.kill_leader,
            ..shown.clone()
        }
    }
}

fn to_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn from_ms(milliseconds: f64) -> Duration {
    Duration::from_secs_f64(milliseconds / 1e3)
}
