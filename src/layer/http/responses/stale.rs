//! For how long a response may be served stale (RFC 5861).

use std::time::Duration;

use http::response::Parts;

use super::{Freshness, validation::has_validator};
use crate::{
    cache::{Cache, Lead, Request},
    layer::http::{CachedResponse, fields::directives::Directives},
};

/// The limit of both windows, unless the user sets another one.
const LIMIT: Duration = Duration::from_secs(86_400);

/// For how long a response is kept for its validation, unless the user sets another time.
const VALIDATION: Duration = Duration::from_secs(600);

/// The settings that decide about stale responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StaleRules {
    /// The windows of a response that has none of its own.
    pub(crate) windows: StaleWindows,
    /// The longest window of any response.
    pub(crate) limit: Duration,
    /// For how long a response without windows is kept for its validation.
    pub(crate) validation: Duration,
}

/// For how long a response may be served stale after its lifetime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StaleWindows {
    pub(crate) while_revalidate: Duration,
    pub(crate) if_error: Duration,
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
