//! What the processes of a fleet say of their caches and locks.

use std::collections::{BTreeMap, HashMap, HashSet};

use bellwether::lock::ListedLock;
use serde_json::Value;
use tokio::time::{Duration, Instant};

/// A cache without an answer for so long has ended. Without any answer for so long, no process
/// answers.
pub(crate) const GONE: Duration = Duration::from_secs(3);

/// What the caches and locks of the fleet have answered.
#[derive(Default)]
pub(crate) struct Fleet {
    caches: HashMap<String, Answered>,
    /// The last answer of each, and when it came.
    locks: HashMap<String, (Value, Instant)>,
    /// Since when the questions are taken, and answers would be heard.
    asked_since: Option<Instant>,
}

/// The last two answers of a cache, and when each of them came.
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
    /// The keys that were asked for, with their requests a second: the busiest comes first.
    pub(crate) keys: Vec<(String, f64)>,
}

/// How many callers wait for a lock, in the processes that answer.
pub(crate) struct Callers {
    pub(crate) count: u64,
    /// There may be more: the process of the holder does not answer, or names other locks only.
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
    /// Takes in an answer. One that cannot be read is that of a later version.
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

    /// Notes whether a question was taken, and its answers would be heard.
    pub(crate) fn asked(&mut self, is_taken: bool) {
        match is_taken {
            true => self.asked_since = self.asked_since.or_else(|| Some(Instant::now())),
            false => self.asked_since = None,
        }
    }

    pub(crate) fn second(&mut self) -> Second {
        self.caches.retain(|_, answered| answered.at.elapsed() < GONE);
        self.locks.retain(|_, (_, at)| at.elapsed() < GONE);
        let of_caches = self.caches.values().map(|answered| &answered.last);
        let of_locks = self.locks.values().map(|(answer, _)| answer);
        let processes: HashSet<_> =
            of_caches.chain(of_locks.clone()).map(|answer| answer["process"].as_str()).collect();
        // A process that has just begun may not have answered yet.
        let has_waited = self.asked_since.is_some_and(|since| since.elapsed() >= GONE);
        let is_known = !processes.is_empty() || has_waited;
        let mut second = Second {
            processes: is_known.then_some(processes.len()),
            has_caches: !self.caches.is_empty(),
            lock_answers: of_locks.cloned().collect(),
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
        // None or more is not known.
        (callers.count > 0 || !callers.is_least).then_some(callers)
    }
}

/// Returns how many callers wait for a lock by one answer, if that names it.
fn callers_in(answer: &Value, lock: &ListedLock) -> Option<u64> {
    let kind = lock.kind.to_string();
    let named = answer["callers"].as_array()?;
    let callers = named.iter().find(|callers| callers[0] == *lock.name && callers[1] == *kind)?;
    callers[2].as_u64()
}

impl Answered {
    fn add_to(&self, second: &mut Second, keys: &mut BTreeMap<String, f64>) {
        second.flights += self.last["stats"]["flights"].as_u64().unwrap_or(0);
        let Some((before, since)) = &self.before else { return };
        let seconds = self.at.duration_since(*since).as_secs_f64().max(0.1);
        let rate = |fields: &[&str]| {
            let number = |answer: &Value| {
                fields.iter().filter_map(|field| answer["stats"][field].as_u64()).sum::<u64>()
            };
            number(&self.last).saturating_sub(number(before)) as f64 / seconds
        };
        let rates = second.rates.get_or_insert_default();
        rates.hits += rate(&["hits", "local", "stale"]);
        rates.loads += rate(&["loads"]);
        rates.failures += rate(&["failures"]);
        rates.waited += rate(&["followed", "received"]);
        rates.degraded += rate(&["degraded"]);
        for pair in self.last["keys"].as_array().into_iter().flatten() {
            if let (Some(key), Some(count)) = (pair[0].as_str(), pair[1].as_f64()) {
                *keys.entry(key.to_owned()).or_default() += count / seconds;
            }
        }
    }
}
