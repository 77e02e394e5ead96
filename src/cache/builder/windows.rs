//! The settings for the windows of an entry.

use std::time::Duration;

use super::Builder;
use crate::cache::EarlyRefresh;
#[cfg(doc)]
use crate::cache::Source;

impl<V: Clone + Send + Sync + 'static, C> Builder<V, C> {
    /// Sets how long a value is kept. Defaults to 60 s; at least 1 ms.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.options.ttl = ttl;
        self
    }

    /// Sets by which part of it the [`ttl`](Self::ttl) of each value is shortened at most. Defaults
    /// to 0; from 0 to 1.
    ///
    /// The part is random for each value, so that values which are stored together do not end
    /// together. The process that stores a value chooses it, and the entry carries the result.
    pub fn ttl_jitter(mut self, part: f64) -> Self {
        self.settings.options.ttl_jitter = part;
        self
    }

    /// Sets how long a value is still served after its [`ttl`](Self::ttl), while it is refreshed in
    /// the background. Defaults to zero.
    ///
    /// In this window no caller waits for a load. The first caller that finds the value stale lets
    /// its loader refresh it, and one process of the fleet does that at a time. All of them are
    /// served the stale value at once, as [`Source::Stale`].
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.settings.options.stale_while_revalidate = window;
        self
    }

    /// Sets how long a value is kept after its [`ttl`](Self::ttl) for the case that its load fails.
    /// Defaults to zero.
    ///
    /// In this window a caller waits for the load. If the load fails, panics or takes too long, the
    /// caller is served the old value, as [`Source::Stale`]. The window runs
    /// beside that of [`stale_while_revalidate`](Self::stale_while_revalidate).
    pub fn stale_if_error(mut self, window: Duration) -> Self {
        self.settings.options.stale_if_error = window;
        self
    }

    /// Sets how long a caller waits for a load while a value is kept [for
    /// failures](Self::stale_if_error). Defaults to no limit but that of the load.
    ///
    /// After it the caller is served the old value, as [`Source::Stale`]. The
    /// load goes on, also if no caller waits for it any more. Its own limit is still the
    /// [`load_limit`](Self::load_limit).
    ///
    /// In the window of [`stale_while_revalidate`](Self::stale_while_revalidate) no caller waits in
    /// any case.
    pub fn serve_stale_after(mut self, limit: Duration) -> Self {
        self.settings.options.serve_stale_after = Some(limit);
        self
    }

    /// Sets when a value is refreshed before its [`ttl`](Self::ttl) is over. Defaults to
    /// [`Off`](EarlyRefresh::Off).
    pub fn early_refresh(mut self, early: EarlyRefresh) -> Self {
        self.settings.options.rules.early = early;
        self
    }
}
