//! The failed loads of a cache: what follows them, and what this process knows of them.
//!
//! The backend keeps the failures of loads under a lease, for the whole fleet. This process keeps
//! those of loads without one, and asks for them only where it would load without a lease again.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lru::LruCache;
use tokio::time::Instant;

use super::{AfterFailure, quiet::QuietKeys};
use crate::{backend::BackOff, error::Error, key::Key, observe::Rarely, sync::lock, time::after};

/// Decides what follows an error, or leaves it to the settings.
pub(super) type FailurePolicy = Arc<dyn Fn(&Error) -> Option<AfterFailure> + Send + Sync>;

pub(super) struct Failures {
    policy: Option<FailurePolicy>,
    /// Entries that are served in place of a load, because their keys back off.
    quiet: OnceLock<QuietKeys>,
    alone: Mutex<LruCache<Key, FailedAlone>>,
    /// There is something in `alone`. Otherwise no load needs the lock, which all share.
    any_alone: AtomicBool,
    /// Limits the warnings of failed loads.
    pub(super) warned: Rarely,
}

/// The last of some loads in a row that failed in this process without a lease.
struct FailedAlone {
    error: Error,
    back_off: BackOff,
    /// Until when the key backs off.
    until: Instant,
}

/// The number of keys whose failures without a lease are remembered.
const KEYS: usize = 1024;

impl Failures {
    pub(super) fn new(policy: Option<FailurePolicy>) -> Self {
        Self {
            policy,
            quiet: OnceLock::new(),
            alone: Mutex::new(LruCache::unbounded()),
            any_alone: AtomicBool::new(false),
            warned: Rarely::default(),
        }
    }

    /// Returns what follows this error by the policy of the cache.
    pub(super) fn policy(&self, error: &Error) -> Option<AfterFailure> {
        self.policy.as_ref().and_then(|policy| policy(error))
    }

    /// Serves the entry of a key with this fence for a time, without asking whether the key still
    /// backs off. An act that ends it replaces the fence.
    pub(super) fn silence(&self, key: &Key, fence: u64, time: Duration) {
        self.quiet.get_or_init(QuietKeys::default).add(key, fence, time);
    }

    pub(super) fn is_quiet(&self, key: &Key, fence: u64) -> bool {
        self.quiet.get().is_some_and(|quiet| quiet.contain(key, fence))
    }

    /// Returns the error of the last load without a lease, while the key backs off after it.
    pub(super) fn backs_off_alone(&self, key: &Key) -> Option<Error> {
        let mut alone = self.alone()?;
        let failed = alone.get(key)?;
        let left = failed.until.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then(|| failed.error.again_after(left))
    }

    /// Returns how many loads of a key have failed in a row without a lease.
    pub(super) fn failed_alone(&self, key: &Key) -> u32 {
        let Some(mut alone) = self.alone() else { return 0 };
        let failed = alone
            .get(key)
            .filter(|failed| Instant::now() < after(failed.until, failed.back_off.remembered()));
        failed.map_or(0, |failed| failed.back_off.failures)
    }

    /// Notes a load that failed without a lease, or whose failure the backend may not know of.
    pub(super) fn fail_alone(&self, key: &Key, error: &Error, back_off: BackOff) {
        let until = after(Instant::now(), back_off.wait);
        let mut alone = lock(&self.alone);
        alone.put(key.clone(), FailedAlone { error: error.clone(), back_off, until });
        if alone.len() > KEYS {
            alone.pop_lru();
        }
        self.any_alone.store(true, Ordering::Release);
    }

    /// Forgets the failures of a key without a lease.
    pub(super) fn forget(&self, key: &Key) {
        let Some(mut alone) = self.alone() else { return };
        alone.pop(key);
        self.any_alone.store(!alone.is_empty(), Ordering::Release);
    }

    fn alone(&self) -> Option<MutexGuard<'_, LruCache<Key, FailedAlone>>> {
        self.any_alone.load(Ordering::Acquire).then(|| lock(&self.alone))
    }
}
