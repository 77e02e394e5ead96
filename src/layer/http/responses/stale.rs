//! For how long a response may be served stale (RFC 5861).

use std::time::Duration;

use http::response::Parts;

use super::{Freshness, validation::has_validator};
use crate::{
    cache::{Cache, Lead, Request},
    layer::http::{BellwetherLayer, CachedResponse, Http, fields::directives::Directives},
};

/// The limit of both windows, unless the user sets another one.
const LIMIT: Duration = Duration::from_secs(86_400);

/// For how long a response is kept for its validation, unless the user sets another time.
const VALIDATION: Duration = Duration::from_secs(600);

/// The settings that decide about stale responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StaleRules {
    /// The windows of a response that has none of its own.
    windows: StaleWindows,
    /// The longest window of any response.
    pub(crate) limit: Duration,
    /// For how long a response without windows is kept for its validation.
    validation: Duration,
}

/// For how long a response may be served stale after its lifetime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StaleWindows {
    while_revalidate: Duration,
    if_error: Duration,
    /// For how long it is kept for its validation, and may not be served. Zero if it has one of
    /// the other windows.
    validation: Duration,
}

impl StaleRules {
    /// Returns the settings of a cache.
    pub(crate) fn of(cache: &Cache<CachedResponse>) -> Self {
        let while_revalidate = cache.stale_while_revalidate();
        let if_error = cache.stale_if_error();
        let windows = StaleWindows { while_revalidate, if_error, validation: Duration::ZERO };
        Self { windows, limit: LIMIT, validation: VALIDATION }
    }

    /// Returns the windows of a response with these directives.
    pub(super) fn windows(&self, parts: &Parts, directives: &Directives) -> StaleWindows {
        let windows = self.serving(directives);
        match windows.while_revalidate.max(windows.if_error).is_zero() && has_validator(parts) {
            true => StaleWindows { validation: self.validation, ..windows },
            false => windows,
        }
    }

    /// Returns the windows in which a response with these directives may be served.
    fn serving(&self, directives: &Directives) -> StaleWindows {
        if directives.revalidates() {
            return StaleWindows::default();
        }
        let window = |named: Option<u64>, setting: Duration| match named {
            Some(seconds) => Duration::from_secs(seconds).min(self.limit),
            // It implies `proxy-revalidate` (RFC 9111, section 5.2.2.10).
            None if directives.s_maxage.is_some() => Duration::ZERO,
            None => setting.min(self.limit),
        };
        StaleWindows {
            while_revalidate: window(
                directives.stale_while_revalidate,
                self.windows.while_revalidate,
            ),
            if_error: window(directives.stale_if_error, self.windows.if_error),
            validation: Duration::ZERO,
        }
    }
}

impl StaleWindows {
    /// Returns whether the response may only be validated once it is no longer fresh.
    pub(crate) fn only_validates(&self) -> bool {
        !self.validation.is_zero()
    }

    /// Returns for how long the response is kept in case of a failure, or for its validation.
    fn kept(&self) -> Duration {
        self.if_error.max(self.validation)
    }
}

impl Freshness {
    /// Returns the same freshness with a lifetime of this at most.
    pub(crate) fn capped(self, cap: Duration) -> Self {
        Self { lifetime: self.lifetime.min(cap), ..self }
    }

    /// Returns how long the response is of use.
    pub(crate) fn total(&self) -> Duration {
        let stale = self.stale.while_revalidate.max(self.stale.kept());
        self.lifetime.saturating_add(stale)
    }

    /// Sets how long a response is kept that is stored without a load.
    pub(crate) fn kept(&self, request: Request<CachedResponse>) -> Request<CachedResponse> {
        request
            .ttl(self.lifetime)
            .stale_while_revalidate(self.stale.while_revalidate)
            .stale_if_error(self.stale.kept())
    }

    /// Sets how long the response is kept.
    pub(crate) fn keep(&self, lead: &Lead<CachedResponse>) {
        if self.lifetime.is_zero() {
            return lead.do_not_store();
        }
        lead.expire_after(self.lifetime);
        lead.stale_while_revalidate(self.stale.while_revalidate);
        lead.stale_if_error(self.stale.kept());
    }
}

impl BellwetherLayer<Http> {
    /// Sets for how long a response is served stale while it is refreshed, if it does not name that
    /// time itself. Defaults to the [setting](crate::cache::Builder::stale_while_revalidate) of the
    /// cache, which is zero unless it is set.
    ///
    /// The `stale-while-revalidate` of a response takes precedence. The docs of
    /// [`http`](Self::http) say more.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache)
    ///     .stale_while_revalidate(Duration::from_secs(30))
    ///     .stale_if_error(Duration::from_secs(600))
    ///     .keep_for_validation(Duration::from_secs(60))
    ///     .max_stale(Duration::from_secs(3600));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.settings().stale.windows.while_revalidate = window;
        self
    }

    /// Sets for how long a response is kept to be served if the service fails. It applies if the
    /// response does not name that time itself. Defaults to the
    /// [setting](crate::cache::Builder::stale_if_error) of the cache, which is zero unless it is
    /// set.
    ///
    /// The `stale-if-error` of a response takes precedence. The docs of
    /// [`http`](Self::http) say more.
    pub fn stale_if_error(mut self, window: Duration) -> Self {
        self.settings().stale.windows.if_error = window;
        self
    }

    /// Sets for how long a response with a validator is kept for its validation, if it may not be
    /// served stale. Zero keeps none. Defaults to 10 minutes.
    ///
    /// An `ETag` and a `Last-Modified` are validators. The next load asks the service whether the
    /// response has changed. No caller is served it before the service has answered `304`.
    pub fn keep_for_validation(mut self, time: Duration) -> Self {
        self.settings().stale.validation = time;
        self
    }

    /// Sets for how long a response may be served stale at most, whatever it names itself. Zero
    /// serves no stale response. Defaults to a day.
    pub fn max_stale(mut self, limit: Duration) -> Self {
        self.settings().stale.limit = limit;
        self
    }
}
