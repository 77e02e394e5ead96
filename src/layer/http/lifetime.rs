//! How long a response is fresh and how old it is (RFC 9111, section 4.2), and for how long it may
//! be served stale (RFC 5861).

use std::time::{Duration, SystemTime};

use http::{
    HeaderMap, StatusCode,
    header::{AGE, DATE, EXPIRES, LAST_MODIFIED},
};

use super::{
    fields::{Directives, date, seconds},
    settings::HttpSettings,
    validation::VALIDATORS,
};
use crate::cache::shared_load::Windows;

/// The longest lifetime by a heuristic.
const HEURISTIC_LIMIT: Duration = Duration::from_secs(86_400);

/// A response that has just arrived.
pub(super) struct Arrived<'a> {
    pub(super) settings: &'a HttpSettings,
    pub(super) status: StatusCode,
    pub(super) headers: &'a HeaderMap,
    pub(super) directives: &'a Directives,
    pub(super) received: SystemTime,
    /// The time since the request was sent.
    pub(super) took: Duration,
}

/// For how long a response may be shared from its arrival on.
pub(super) struct Freshness {
    /// The lifetime that is left, and what follows that. All windows are zero if only the callers
    /// may have the response that wait for it.
    pub(super) windows: Windows,
    /// For how long after the head callers may join the body.
    pub(super) joined_for: Duration,
    /// Once the response is no longer fresh, it may only be validated, and not be served.
    pub(super) only_validates: bool,
    /// The age of the response when it arrived, in seconds.
    pub(super) age: u64,
}

impl Arrived<'_> {
    /// Returns for how long the response may be shared. `None` if the response is not fresh.
    pub(super) fn freshness(&self) -> Option<Freshness> {
        let age = self.age();
        if self.settings.policy.coalesces {
            return self.freshness_unstored(age);
        }
        let default = self.settings.terms.windows;
        let directives = self.directives;
        let fresh = self.left(age)?.min(default.fresh);
        let mut windows = Windows {
            fresh,
            stale: self.stale_window(directives.stale_while_revalidate, default.stale),
            error: self.stale_window(directives.stale_if_error, default.error),
        };
        let has_validator = VALIDATORS.iter().any(|name| self.headers.contains_key(name));
        let only_validates =
            windows.is_fresh_only() && self.status == StatusCode::OK && has_validator;
        if only_validates {
            windows.error = self.settings.kept_for_validation;
        }
        Some(Freshness { windows, joined_for: fresh, only_validates, age })
    }

    /// Returns for how long a response may be shared that is not stored.
    ///
    /// Requests to a careful layer have nothing of their users. Requests to a layer by RFC 9111 may
    /// have credentials, so there only a response that may be reused answers them (RFC 9111,
    /// section 4).
    fn freshness_unstored(&self, age: u64) -> Option<Freshness> {
        let joined_for =
            if self.settings.policy.is_rfc9111 { self.left(age)? } else { Duration::MAX };
        let windows = Windows::fresh(Duration::ZERO);
        Some(Freshness { windows, joined_for, only_validates: false, age })
    }

    /// Returns the time for which the response is still fresh. `None` if there is none left.
    fn left(&self, age: u64) -> Option<Duration> {
        let left = self.lifetime()?.checked_sub(Duration::from_secs(age))?;
        if left.is_zero() { None } else { Some(left) }
    }

    /// Returns a window in which the response may be served stale (RFC 5861): as long as the
    /// response says in seconds, or as long as is set.
    fn stale_window(&self, named: Option<u64>, set: Duration) -> Duration {
        let directives = self.directives;
        // RFC 9111, sections 5.2.2.2 and 5.2.2.8.
        if directives.must_revalidate || directives.proxy_revalidate {
            return Duration::ZERO;
        }
        let limit = self.settings.max_stale;
        if let Some(seconds) = named {
            return Duration::from_secs(seconds).min(limit);
        }
        // `s-maxage` implies `proxy-revalidate` (RFC 9111, section 5.2.2.10).
        if directives.s_maxage.is_some() { Duration::ZERO } else { set.min(limit) }
    }

    /// Returns how long the response is fresh from its origin on (RFC 9111, section 4.2.1). Invalid
    /// freshness is stale.
    fn lifetime(&self) -> Option<Duration> {
        let directives = self.directives;
        let is_careful = !self.settings.policy.is_rfc9111;
        if is_careful && directives.max_age == Some(0) {
            // `max-age=0` forbids sharing, even next to a larger `s-maxage`.
            return None;
        }
        if directives.is_garbled {
            return Some(Duration::ZERO);
        }
        if let Some(seconds) = directives.s_maxage.or(directives.max_age) {
            return Some(Duration::from_secs(seconds));
        }
        if !directives.is_targeted && self.headers.contains_key(EXPIRES) {
            return Some(self.until_expiry());
        }
        let lifetime = self.lifetime_by_settings().or_else(|| self.heuristic_lifetime())?;
        if lifetime.is_zero() { None } else { Some(lifetime) }
    }

    /// Returns the time from the `Date` of the response to its `Expires` (RFC 9111, section 5.3).
    fn until_expiry(&self) -> Duration {
        let sent = match date(self.headers, DATE) {
            Some(sent) => sent,
            None if self.settings.policy.is_rfc9111 => self.received,
            // The clock of this process may be wrong, so the careful policy wants a date.
            None => return Duration::ZERO,
        };
        let Some(expires) = date(self.headers, EXPIRES) else { return Duration::ZERO };
        expires.duration_since(sent).unwrap_or_default()
    }

    /// Returns the lifetime that a user of the layer has set for responses without any.
    fn lifetime_by_settings(&self) -> Option<Duration> {
        if let Some(lifetime) = self.settings.policy.statuses.get(&self.status) {
            return Some(*lifetime);
        }
        if self.status == StatusCode::OK { self.settings.default_lifetime } else { None }
    }

    /// Returns the lifetime that RFC 9111 permits to a response without any: a tenth of the time
    /// since its last change (section 4.2.2).
    fn heuristic_lifetime(&self) -> Option<Duration> {
        if !self.settings.policy.is_rfc9111 {
            return None;
        }
        if !is_heuristically_cacheable(self.status) && !self.directives.public {
            return None;
        }
        let sent = date(self.headers, DATE).unwrap_or(self.received);
        let changed = date(self.headers, LAST_MODIFIED)?;
        let unchanged = sent.duration_since(changed).ok()?;
        Some((unchanged / 10).min(HEURISTIC_LIMIT))
    }

    /// Returns the age of the response at its arrival, in seconds (RFC 9111, section 4.2.3).
    ///
    /// A response without an `Age` comes from the service itself, which made the response at the
    /// end of the time that its request took. So does a response with an invalid `Age`, which is
    /// ignored (section 5.1). Of a list the first member counts.
    fn age(&self) -> u64 {
        let told = match told_age(self.headers) {
            Some(age) => age.saturating_add(self.took.as_secs()),
            None => 0,
        };
        let sent = date(self.headers, DATE).unwrap_or(self.received);
        let apparent = self.received.duration_since(sent).unwrap_or_default();
        told.max(apparent.as_secs())
    }
}

/// Returns the seconds in the `Age` of a response.
fn told_age(headers: &HeaderMap) -> Option<u64> {
    let line = headers.get(AGE)?.as_bytes();
    let first = line.split(|byte| *byte == b',').next()?;
    let text = str::from_utf8(first.trim_ascii()).ok()?;
    seconds(text)
}

/// Returns whether a response with this status may have a lifetime by a heuristic (RFC 9110,
/// section 15.1).
pub(super) fn is_heuristically_cacheable(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 300 | 301 | 308 | 404 | 405 | 410 | 414 | 501)
}
