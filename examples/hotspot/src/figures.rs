//! The result of one way.

use std::{
    collections::BTreeMap,
    ops::Range,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    clients::Tally,
    options::Options,
    origin::{Load, Origin},
    replica::Way,
    takeover::Takeover,
};

/// The width of a bar of the chart.
pub(crate) const BAR: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) way: Way,
    /// How long the way ran.
    pub(crate) seconds: f64,
    /// Queries that reached the database in this time, failures included.
    pub(crate) queries: usize,
    /// How often a key expired, the first query of each included.
    pub(crate) expiries: usize,
    pub(crate) queries_per_expiry: f64,
    /// The most queries that one expiry cost.
    pub(crate) worst_expiry: usize,
    /// The most queries that ran or queued at the database at one time.
    pub(crate) database_busiest: usize,
    pub(crate) requests: u64,
    /// Answers that took half a load or longer.
    pub(crate) waited: u64,
    pub(crate) waited_percent: f64,
    /// Requests without an answer, or with another status than 200.
    pub(crate) failed: u64,
    pub(crate) failed_percent: f64,
    /// Times of answers. A request that fails has none.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) slowest_ms: f64,
    /// Reads that local tiers served. All others asked the shared store, or waited for a load.
    pub(crate) local: u64,
    /// The greatest age of a value that a client got, since the database read it.
    pub(crate) oldest_ms: f64,
    /// One request in a hundred was sent at least so late. On a quiet machine it is a few
    /// milliseconds.
    pub(crate) late_ms: f64,
    /// Queries in each tenth of a second.
    pub(crate) queries_per_100ms: Vec<u32>,
    /// Requests that waited for a load in some part of each tenth of a second.
    pub(crate) waiting_per_100ms: Vec<u32>,
    /// Requests that failed in each tenth of a second.
    pub(crate) failing_per_100ms: Vec<u32>,
    pub(crate) takeover: Option<Takeover>,
    pub(crate) away: Option<Away>,
}

/// What happened while the store was away.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Away {
    /// The seconds of the way.
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    pub(crate) slowest_ms: f64,
    pub(crate) queries: usize,
}

impl Away {
    pub(crate) fn new(time: Range<Duration>) -> Self {
        Self {
            from: time.start.as_secs_f64(),
            to: time.end.as_secs_f64(),
            requests: 0,
            failed: 0,
            slowest_ms: 0.0,
            queries: 0,
        }
    }

    fn contains(&self, time: Duration) -> bool {
        (self.from..self.to).contains(&time.as_secs_f64())
    }

    /// Counts a request, if it was sent while the store was away.
    pub(crate) fn record(&mut self, sent: Duration, took: Duration, has_answer: bool) {
        if !self.contains(sent) {
            return;
        }
        self.requests += 1;
        if has_answer {
            self.slowest_ms = self.slowest_ms.max(took.as_secs_f64() * 1e3);
        } else {
            self.failed += 1;
        }
    }
}

impl Figures {
    pub(crate) fn new(
        options: &Options,
        way: Way,
        begun: Instant,
        origin: &Origin,
        tally: Tally,
        takeover: Option<Takeover>,
    ) -> Self {
        let length = options.length(way);
        // A load after the end is in no bar of the chart, so no sum has it either.
        let mut loads = origin.loads(begun);
        loads.retain(|load| load.at - begun < length);
        let expiries = expiries(&loads, way.shortest_life(options.ttl));
        let mut away = tally.away;
        if let Some(away) = &mut away {
            away.queries = loads.iter().filter(|load| away.contains(load.at - begun)).count();
        }
        let milliseconds = |micros: u64| micros as f64 / 1e3;
        Self {
            way,
            seconds: length.as_secs_f64(),
            queries: loads.len(),
            expiries: expiries.len(),
            queries_per_expiry: loads.len() as f64 / expiries.len().max(1) as f64,
            worst_expiry: expiries.iter().copied().max().unwrap_or(0),
            database_busiest: origin.busiest(),
            requests: tally.requests,
            waited: tally.waited,
            waited_percent: percent(tally.waited, tally.requests),
            failed: tally.failed,
            failed_percent: percent(tally.failed, tally.requests),
            p50_ms: milliseconds(tally.latency.value_at_quantile(0.5)),
            p99_ms: milliseconds(tally.latency.value_at_quantile(0.99)),
            slowest_ms: milliseconds(tally.latency.max()),
            local: 0,
            oldest_ms: tally.oldest.as_secs_f64() * 1e3,
            late_ms: milliseconds(tally.lateness.value_at_quantile(0.99)),
            queries_per_100ms: bars(&loads, begun, options, way),
            waiting_per_100ms: tally.waiting,
            failing_per_100ms: tally.failing,
            takeover,
            away,
        }
    }
}

fn percent(count: u64, all: u64) -> f64 {
    100.0 * count as f64 / all.max(1) as f64
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
pub(crate) fn no_bars(options: &Options, way: Way) -> Vec<u32> {
    vec![0; bar_of(options.length(way))]
}

/// Returns the bar of a time since the start.
pub(crate) fn bar_of(time: Duration) -> usize {
    usize::try_from(time.as_millis() / BAR.as_millis()).unwrap_or(usize::MAX)
}

pub(crate) fn bars(loads: &[Load], begun: Instant, options: &Options, way: Way) -> Vec<u32> {
    let mut bars = no_bars(options, way);
    for load in loads {
        if let Some(bar) = bars.get_mut(bar_of(load.at - begun)) {
            *bar += 1;
        }
    }
    bars
}
