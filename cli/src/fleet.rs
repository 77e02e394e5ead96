//! What the processes of a fleet say of their caches and locks.

use std::collections::{BTreeMap, HashMap, HashSet};

use bellwether::lock::ListedLock;
use serde_json::Value;
use tokio::time::{Duration, Instant};

/// A cache without an answer for this time has ended. If no answer has come for this time, no
/// process answers.
pub(crate) const GONE: Duration = Duration::from_secs(3);

/// What the caches and locks of the fleet have answered.
#[derive(Default)]
pub(crate) struct Fleet {
    caches: HashMap<String, Answered>,
    /// The last answer of each `Locks`, and when the answer came.
    locks: HashMap<String, (Value, Instant)>,
    /// Since when the server takes the questions, so that answers would arrive.
    asked_since: Option<Instant>,
}

/// The last two answers of a cache, each with the time at which it came.
struct Answered {
    at: Instant,
    last: Value,
    before: Option<(Value, Instant)>,
}

/// What the fleet did in a second.
#[derive(Default)]
pub(crate) struct Second {
    /// How many processes answer. `None` while that is not known.
    pub(crate) processes: Option<usize>,
    /// Whether any cache answers.
    pub(crate) has_caches: bool,
    /// The answers of locks.
    lock_answers: Vec<Value>,
    pub(crate) flights: u64,
    /// `None` until a cache has answered twice.
    pub(crate) rates: Option<Rates>,
    /// The keys with their requests a second, the busiest key first.
    pub(crate) keys: Vec<(String, f64)>,
}

/// How many callers wait for a lock, in the processes that answer.
pub(crate) struct Callers {
    pub(crate) count: u64,
    /// There may be more callers: the process of the holder does not answer, or its answer had no
    /// place for this lock.
    pub(crate) is_least: bool,
}

/// How often something happened in a second.
#[derive(Default)]
pub(crate) struct Rates {
    pub(crate) hits: f64,
    pub(crate) loads: f64,
    pub(crate) failures: f64,
    pub(crate) waited: f64,
    pub(crate) degraded: f64,
}

impl Fleet {
    /// Takes in an answer. An answer that cannot be read may be from a later version, and has no
    /// effect.
    pub(crate) fn hear(&mut self, payload: &[u8]) {
        let Ok(last) = serde_json::from_slice::<Value>(payload) else { return };
        if let Some(locks) = last["locks"].as_str() {
            self.locks.insert(locks.to_owned(), (last, Instant::now()));
            return;
        }
        let Some(cache) = last["cache"].as_str().map(str::to_owned) else { return };
        let before = self.caches.remove(&cache).map(|answered| (answered.last, answered.at));
        self.caches.insert(cache, Answered { at: Instant::now(), last, before });
    }

    /// Notes whether the server took the last question, so that answers would arrive.
    pub(crate) fn asked(&mut self, is_taken: bool) {
        if !is_taken {
            self.asked_since = None;
        } else if self.asked_since.is_none() {
            self.asked_since = Some(Instant::now());
        }
    }

    /// Returns what the fleet did in the last second, and forgets caches and locks that have ended.
    pub(crate) fn second(&mut self) -> Second {
        self.caches.retain(|_, answered| answered.at.elapsed() < GONE);
        self.locks.retain(|_, (_, at)| at.elapsed() < GONE);
        let mut processes = HashSet::new();
        for answered in self.caches.values() {
            processes.insert(answered.last["process"].as_str());
        }
        for (answer, _) in self.locks.values() {
            processes.insert(answer["process"].as_str());
        }
        // A process that has just begun may not have answered yet.
        let has_waited = self.asked_since.is_some_and(|since| since.elapsed() >= GONE);
        let is_known = !processes.is_empty() || has_waited;
        let mut second = Second {
            processes: is_known.then_some(processes.len()),
            has_caches: !self.caches.is_empty(),
            lock_answers: self.locks.values().map(|(answer, _)| answer.clone()).collect(),
            ..Second::default()
        };
        let mut keys = BTreeMap::new();
        for answered in self.caches.values() {
            answered.add_to(&mut second, &mut keys);
        }
        second.keys = keys.into_iter().collect();
        second.keys.sort_by(|one, other| other.1.total_cmp(&one.1));
        second
    }
}

impl Second {
    /// Returns how many callers wait for a lock. `None` if that is not known.
    pub(crate) fn callers(&self, lock: &ListedLock) -> Option<Callers> {
        if self.lock_answers.is_empty() {
            return None;
        }
        let mut callers = Callers { count: 0, is_least: false };
        let mut has_holder = lock.held.process.is_none();
        for answer in &self.lock_answers {
            match callers_in(answer, lock) {
                Some(count) => callers.count += count,
                None if answer["left_out"] != 0 => callers.is_least = true,
                None => {}
            }
            has_holder |= answer["holds_as"].as_str() == lock.held.process.as_deref();
        }
        callers.is_least |= !has_holder;
        // "No caller or more" says nothing.
        if callers.count == 0 && callers.is_least {
            return None;
        }
        Some(callers)
    }
}

/// Returns how many callers wait for a lock according to one answer, if the answer names the lock.
fn callers_in(answer: &Value, lock: &ListedLock) -> Option<u64> {
    let kind = lock.kind.to_string();
    let named = answer["callers"].as_array()?;
    let callers = named.iter().find(|callers| callers[0] == *lock.name && callers[1] == *kind)?;
    callers[2].as_u64()
}

impl Answered {
    /// Adds the flights, the rates and the keys of this cache.
    fn add_to(&self, second: &mut Second, keys: &mut BTreeMap<String, f64>) {
        second.flights += self.last["stats"]["flights"].as_u64().unwrap_or(0);
        let Some((before, since)) = &self.before else { return };
        let between = self.at.duration_since(*since);
        let seconds = between.as_secs_f64().max(0.1);
        let rates = second.rates.get_or_insert_default();
        rates.hits += self.growth(before, &["hits", "local", "stale"]) / seconds;
        rates.loads += self.growth(before, &["loads"]) / seconds;
        rates.failures += self.growth(before, &["failures"]) / seconds;
        rates.waited += self.growth(before, &["followed", "received"]) / seconds;
        rates.degraded += self.growth(before, &["degraded"]) / seconds;
        let Some(pairs) = self.last["keys"].as_array() else { return };
        for pair in pairs {
            if let (Some(key), Some(count)) = (pair[0].as_str(), pair[1].as_f64()) {
                *keys.entry(key.to_owned()).or_default() += count / seconds;
            }
        }
    }

    /// Returns by how much the sum of some counters has grown since the answer before.
    fn growth(&self, before: &Value, counters: &[&str]) -> f64 {
        let now = sum(&self.last, counters);
        now.saturating_sub(sum(before, counters)) as f64
    }
}

fn sum(answer: &Value, counters: &[&str]) -> u64 {
    let stats = &answer["stats"];
    counters.iter().filter_map(|counter| stats[counter].as_u64()).sum()
}
