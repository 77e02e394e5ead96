//! The settings of a cache and of its requests: their defaults and their ranges.

use std::{fmt, ops::RangeBounds, sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use super::{EarlyRefresh, freshness::Rules, lead::Keeping, member::Member};
use crate::{
    advice,
    backend::{Tagged, Windows},
    error::{Error, ErrorKind},
    flight::Limits,
    key::Namespace,
    lease::{Retry, RetryStrategy},
};

const MILLISECOND: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(86_400);
/// A tier of less weight would keep no copy, because a copy takes at most a quarter of the weight.
const LEAST_WEIGHT: usize = 2 << 10;
/// How far a local tier may be behind the backend, in all versions of this crate.
pub(super) const GREATEST_STALENESS: Duration = Duration::from_secs(2);

/// The settings that a request may change.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) windows: Windows,
    /// The windows that the request has set itself.
    pub(super) own: OwnWindows,
    pub(super) rules: Rules,
    pub(super) serve_stale_after: Option<Duration>,
    pub(super) wait_limit: Duration,
    pub(super) sharing: Sharing,
    /// Set if the request is part of a call for many keys.
    pub(super) batch: Option<Arc<Member>>,
    /// The tags that the caller gives the value. The tag number is from before the value was read
    /// from the origin, or 0 if it is not known.
    pub(super) tagged: Tagged,
}

/// The windows that a request has set.
#[derive(Clone, Copy, Default)]
pub(super) struct OwnWindows {
    pub(super) fresh: Option<Duration>,
    pub(super) stale: Option<Duration>,
    pub(super) error: Option<Duration>,
}

impl Options {
    /// Returns the windows that a value which is inserted or touched gets in place of the negative
    /// time to live, if the value means "not found". Any other value gets the same windows anyway.
    ///
    /// The stale windows of a request also say which stale values the request accepts. So they do
    /// not replace the negative time to live, unless the request sets a time to live, too.
    pub(super) fn keeping(&self) -> Keeping {
        if self.own.fresh.is_none() {
            return Keeping::default();
        }
        Keeping {
            ttl: self.own.fresh,
            stale_while_revalidate: self.own.stale,
            stale_if_error: self.own.error,
            ..Keeping::default()
        }
    }

    /// Marks the key of a call for many keys as decided, because its caller waits for another load.
    pub(super) fn will_wait(&self) {
        if let Some(member) = &self.batch {
            member.decided();
        }
    }
}

/// How long a key is remembered as uncacheable. With a longer time, a key that has become cacheable
/// is shared later. With a shorter time, more callers wait for each other in vain.
pub(crate) const UNCACHEABLE_LIFE: Duration = Duration::from_secs(10);

/// How the callers of a flight share its load. The default is how the callers of a loader do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sharing {
    /// Each caller loads for itself while the key is remembered as uncacheable. By default, the
    /// callers of this process share one load then.
    pub(crate) passes_uncacheable: bool,
    /// The key is loaded as if no process remembered it as uncacheable.
    pub(crate) claims_uncacheable: bool,
    /// A load beyond the limit of loads does not queue. By default, the load queues for as long as
    /// the wait limit.
    pub(crate) never_queues: bool,
    /// Each caller of a load beyond the limit of loads loads for itself, without a flight. By
    /// default, these callers get an error.
    pub(crate) passes_full: bool,
    /// The flight waits for one load of another process, and not for the next load after it.
    pub(crate) waits_once: bool,
    /// The callers take the head of a value whose rest is on its way.
    pub(crate) takes_heads: bool,
    /// How long the rest of such a value may take after the load.
    pub(crate) rest_limit: Duration,
    /// The key belongs to this process alone. Its load takes no lease, and stores nothing.
    pub(crate) is_local: bool,
    /// A failed load decides nothing for other callers, unless a rule of the cache says so. By
    /// default, its key does not back off, and the next refresh may begin.
    pub(crate) fails_alone: bool,
    /// The value only leads to other keys, so its load is not counted.
    pub(crate) is_uncounted: bool,
}

/// Returns whether a value means that there is nothing.
pub(super) type IsNegative<V> = dyn Fn(&V) -> bool + Send + Sync;

/// Each field is a setting of [`Builder`](super::Builder).
pub(crate) struct Settings {
    pub(super) namespace: Namespace,
    pub(super) schema: u16,
    pub(crate) options: Arc<Options>,
    /// The greatest fraction by which a time to live is shortened.
    pub(super) ttl_jitter: f64,
    pub(super) negative_ttl: Duration,
    pub(super) load_limit: Duration,
    pub(super) lease: Duration,
    pub(super) retry: Arc<dyn RetryStrategy>,
    pub(super) max_loads: usize,
    pub(super) max_waiters: Limits,
    pub(crate) max_key: usize,
    pub(crate) max_value: usize,
    /// A load ends when its last caller leaves.
    pub(crate) cancels_abandoned: bool,
    /// `None` is the default, which depends on the backend.
    pub(super) outage_memory: Option<usize>,
    pub(super) local: Option<LocalTier>,
    /// The limit of values of a cache for one process.
    pub(super) in_process: Option<usize>,
    pub(crate) has_tags: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            windows: Windows::fresh(Duration::from_secs(60)),
            own: OwnWindows::default(),
            rules: Rules::ALL,
            serve_stale_after: None,
            wait_limit: Duration::from_secs(30),
            sharing: Sharing::default(),
            batch: None,
            tagged: Tagged::default(),
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: Namespace::standard(),
            schema: 0,
            options: Arc::default(),
            ttl_jitter: 0.0,
            negative_ttl: Duration::MAX,
            load_limit: Duration::from_secs(30),
            lease: Duration::from_secs(5),
            retry: Arc::new(Retry::on_demand()),
            max_loads: 1024,
            max_waiters: Limits { per_flight: 10_000, in_all: 100_000 },
            max_key: 512,
            max_value: 8 << 20,
            cancels_abandoned: false,
            outage_memory: None,
            local: None,
            in_process: None,
            has_tags: false,
        }
    }
}

impl Settings {
    /// Warns of settings that do not have the effect that they seem to have.
    pub(super) fn advise(&self, is_shared: bool) {
        let Options { windows, rules, serve_stale_after, .. } = &*self.options;
        let half = windows.fresh / 2;
        let is_too_early = match rules.early {
            EarlyRefresh::Off => false,
            EarlyRefresh::Within(time) => time > half,
            EarlyRefresh::LastPart(part) => part > 0.5,
        };
        if is_too_early {
            advice::too_early(&self.namespace, windows.fresh);
        }
        if self.local.is_some() && !is_shared {
            advice::tier_in_process(&self.namespace);
        }
        if serve_stale_after.is_some() && windows.error.is_zero() {
            advice::nothing_stands_in(&self.namespace);
        }
    }

    /// Checks that each setting is in its range.
    pub(super) fn check(&self) -> Result<(), Error> {
        in_range("ttl", self.options.windows.fresh, MILLISECOND..)?;
        in_range("ttl_jitter", self.ttl_jitter, 0.0..=1.0)?;
        in_range("negative_ttl", self.negative_ttl, MILLISECOND..)?;
        in_range("lease", self.lease, 20 * MILLISECOND..=DAY)?;
        in_range("load_limit", self.load_limit, MILLISECOND..)?;
        if let EarlyRefresh::LastPart(part) = self.options.rules.early {
            in_range("early_refresh", part, 0.0..=1.0)?;
        }
        if let Some(values) = self.in_process {
            in_range("in_process", values, 1..)?;
        }
        in_range("max_loads", self.max_loads, 1..=Semaphore::MAX_PERMITS)?;
        in_range("max_waiters", self.max_waiters.in_all, 1..)?;
        in_range("max_waiters_per_key", self.max_waiters.per_flight, 1..)?;
        self.local.iter().try_for_each(LocalTier::check)?;
        if let Some(bytes) = self.outage_memory
            && (1..LEAST_WEIGHT).contains(&bytes)
        {
            let words = format!(
                "`outage_memory` is {bytes}, and keeps no value; set 0, which switches it off, or \
                 at least {LEAST_WEIGHT}"
            );
            return Err(Error::new(ErrorKind::InvalidConfig, words));
        }
        in_range("max_key", self.max_key, 1..)?;
        in_range("max_value", self.max_value, 1..)
    }
}

/// The settings of a [local tier](super::Builder::local): how much it keeps, and how far it may be
/// behind the backend. The [guide](crate::guide) has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTier {
    pub(super) weight: usize,
    pub(super) max_age: Duration,
    pub(super) max_staleness: Duration,
}

impl Default for LocalTier {
    /// A tier of 64 MiB.
    fn default() -> Self {
        Self::weight(64 << 20)
    }
}

impl LocalTier {
    /// Creates settings with the greatest weight of all copies, in bytes; at least 2 KiB. The
    /// weight of a copy is its encoded value, its key, and 470 bytes. A copy that takes more than a
    /// quarter of the weight is not kept. The tier needs 0.25 MiB more to keep track of changes.
    pub fn weight(bytes: usize) -> Self {
        Self {
            weight: bytes,
            max_age: Duration::from_secs(10),
            max_staleness: Duration::from_secs(1),
        }
    }

    /// Sets how long a copy is served before the backend is asked again. Defaults to 10 s; at least
    /// 1 ms.
    ///
    /// This age is the bound for changes without a message: a foreign write, an eviction, a
    /// `FLUSHALL`, a step of the server's clock. So it is for a process that may not publish.
    pub fn max_age(mut self, time: Duration) -> Self {
        self.max_age = time;
        self
    }

    /// Sets how far a copy may be behind the backend. Defaults to 1 s; from 100 ms to 2 s.
    ///
    /// In this time, each process with a tier sends itself four messages over the backend.
    pub fn max_staleness(mut self, time: Duration) -> Self {
        self.max_staleness = time;
        self
    }

    fn check(&self) -> Result<(), Error> {
        in_range("local.weight", self.weight, LEAST_WEIGHT..)?;
        in_range("local.max_age", self.max_age, MILLISECOND..)?;
        let staleness = 100 * MILLISECOND..=GREATEST_STALENESS;
        in_range("local.max_staleness", self.max_staleness, staleness)
    }
}

/// Checks a setting.
fn in_range<T: PartialOrd + fmt::Debug>(
    setting: &str,
    given: T,
    range: impl RangeBounds<T> + fmt::Debug,
) -> Result<(), Error> {
    if range.contains(&given) {
        return Ok(());
    }
    let words = format!("`{setting}` is {given:?}; set one of {range:?}");
    Err(Error::new(ErrorKind::InvalidConfig, words))
}
