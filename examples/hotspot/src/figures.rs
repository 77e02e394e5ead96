//! The result of one way.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    clients::Tally,
    options::Options,
    origin::{Load, Origin},
    replica::Way,
    takeover::Takeover,
};

/// The width of a bar of the chart.
pub(crate) const BAR: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    pub way: Way,
    /// Loads at the origin.
    pub loads: usize,
    /// How often a key expired, the first load of each included.
    pub expiries: usize,
    pub loads_per_expiry: f64,
    /// The most loads that one expiry cost.
    pub worst_expiry: usize,
    /// The most loads that ran or queued at the origin at one time.
    pub origin_busiest: usize,
    pub requests: u64,
    pub errors: u64,
    /// The share of the clients' time at whose end an error came.
    pub failing_percent: f64,
    pub requests_per_second: f64,
    /// Answers that took half a load or longer.
    pub waited: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub worst_ms: f64,
    /// Reads that local tiers served. All others asked the shared store, or waited for a load.
    pub local: u64,
    /// The greatest age of a value that a client got, since the origin read it.
    pub oldest_ms: f64,
    /// Loads in each tenth of a second.
    pub loads_per_100ms: Vec<u32>,
    /// Requests that waited for a load in some part of each tenth of a second.
    pub waiting_per_100ms: Vec<u32>,
    /// Clients that got an error next, in each tenth of a second.
    pub failing_per_100ms: Vec<f64>,
    pub takeover: Option<Takeover>,
}

impl Figures {
    pub(crate) fn new(
        options: &Options,
        way: Way,
        begun: Instant,
        origin: &Origin,
        tally: &Tally,
        takeover: Option<Takeover>,
    ) -> Self {
        let took = begun.elapsed();
        let loads = origin.loads(begun);
        let expiries = expiries(&loads, way.shortest_life(options.ttl));
        let requests = tally.latency.len();
        let milliseconds = |micros: u64| micros as f64 / 1e3;
        Self {
            way,
            loads: loads.len(),
            expiries: expiries.len(),
            loads_per_expiry: loads.len() as f64 / expiries.len().max(1) as f64,
            worst_expiry: expiries.iter().copied().max().unwrap_or(0),
            origin_busiest: origin.busiest(),
            requests,
            errors: tally.errors,
            failing_percent: 100.0 * tally.failing_time.div_duration_f64(tally.time),
            requests_per_second: requests as f64 / took.as_secs_f64(),
            waited: tally.waited,
            p50_ms: milliseconds(tally.latency.value_at_quantile(0.5)),
            p99_ms: milliseconds(tally.latency.value_at_quantile(0.99)),
            worst_ms: milliseconds(tally.latency.max()),
            local: 0,
            oldest_ms: tally.oldest.as_secs_f64() * 1e3,
            loads_per_100ms: bars(&loads, begun, options),
            waiting_per_100ms: tally.waiting.clone(),
            failing_per_100ms: tally.failing.clone(),
            takeover,
        }
    }
}

/// Returns how many loads each expiry cost.
///
/// The loads of a key that begin within the life of a value after the first of them belong to one
/// expiry, because the value of the first one cannot be due before.
fn expiries(loads: &[Load], life: Duration) -> Vec<usize> {
    let mut expiries = Vec::new();
    // The time of the last expiry of each key, and the index of its count.
    let mut last: BTreeMap<u16, (Instant, usize)> = BTreeMap::new();
    for load in loads {
        match last.get(&load.key) {
            Some((first, index)) if load.at < *first + life => expiries[*index] += 1,
            _ => {
                last.insert(load.key, (load.at, expiries.len()));
                expiries.push(1);
            }
        }
    }
    expiries
}

/// Returns an empty bar for each tenth of a second.
pub(crate) fn no_bars(options: &Options) -> Vec<u32> {
    vec![0; bar_of(options.length())]
}

/// Returns the bar of a time since the start.
pub(crate) fn bar_of(time: Duration) -> usize {
    usize::try_from(time.as_millis() / BAR.as_millis()).unwrap_or(usize::MAX)
}

pub(crate) fn bars(loads: &[Load], begun: Instant, options: &Options) -> Vec<u32> {
    let mut bars = no_bars(options);
    for load in loads {
        if let Some(bar) = bars.get_mut(bar_of(load.at - begun)) {
            *bar += 1;
        }
    }
    bars
}
