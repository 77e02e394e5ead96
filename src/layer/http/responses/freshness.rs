//! How long a response is fresh and how old it is (RFC 9111, section 4.2), and for how long it may
//! be served stale (RFC 5861).

use std::time::{Duration, SystemTime};

use http::{
    HeaderMap, HeaderName,
    header::{AGE, DATE, EXPIRES, LAST_MODIFIED},
    response::Parts,
};

use super::validation::has_validator;
use crate::{
    cache::{Cache, Lead, Request},
    layer::http::{
        CachedResponse,
        fields::{Controls, Directives, date, seconds},
    },
};

/// How long a response may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freshness {
    /// The remaining time. Zero if only those may have it that wait for it.
    pub(crate) lifetime: Duration,
    /// For how long it may be served stale after that.
    pub(crate) stale: StaleWindows,
    /// The age of the response when it arrived, in seconds.
    pub(crate) age: u64,
}

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
}

/// For how long a response may be served stale after its lifetime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StaleWindows {
    pub(crate) while_revalidate: Duration,
    pub(crate) if_error: Duration,
    /// For how long it is kept for its validation, and may not be served. Zero if it has one of
    /// the other windows.
    pub(crate) validation: Duration,
}

impl StaleRules {
    /// Returns the settings of a cache.
    pub(crate) fn of(cache: &Cache<CachedResponse>) -> Self {
        let options = &cache.settings().options;
        let (while_revalidate, if_error) = (options.stale_while_revalidate, options.stale_if_error);
        let windows = StaleWindows { while_revalidate, if_error, validation: VALIDATION };
        Self { windows, limit: LIMIT }
    }

    /// Returns the windows of a response with these directives.
    pub(super) fn windows(&self, parts: &Parts, directives: &Directives) -> StaleWindows {
        let windows = self.serving(directives);
        match windows.while_revalidate.max(windows.if_error).is_zero() && has_validator(parts) {
            true => StaleWindows { validation: self.windows.validation, ..windows },
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

/// The lifetime that a response names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// This long from the origin on.
    For(Duration),
    /// A date that has to be compared with the clock of this process.
    Until(SystemTime),
}

/// Returns the lifetime that a response names (section 4.2.1). Invalid freshness is stale.
pub(super) fn named(controls: &Controls, headers: &HeaderMap) -> Option<Named> {
    let directives = &controls.directives;
    if let Some(seconds) = directives.s_maxage.or(directives.max_age) {
        return Some(Named::For(Duration::from_secs(seconds)));
    }
    if controls.is_targeted || !headers.contains_key(EXPIRES) {
        return None;
    }
    Some(match (date(headers, EXPIRES), date(headers, DATE)) {
        (None, _) => Named::For(Duration::ZERO),
        (Some(expires), None) => Named::Until(expires),
        (Some(expires), Some(sent)) => Named::For(expires.duration_since(sent).unwrap_or_default()),
    })
}

/// Returns a lifetime of a tenth of the time since the last change (section 4.2.2).
pub(super) fn heuristic(
    headers: &HeaderMap,
    received: SystemTime,
    limit: Duration,
) -> Option<Duration> {
    let changed = date(headers, LAST_MODIFIED)?;
    let sent = date(headers, DATE).unwrap_or(received);
    Some((sent.duration_since(changed).ok()? / 10).min(limit))
}

/// Returns the age of a response at its arrival, in seconds (section 4.2.3).
///
/// `took` is the time since its request was sent. A response without an `Age` comes from the
/// service itself, which made it at the end of that time. So does one with an invalid `Age`, which
/// is ignored (section 5.1). Of a list the first member counts.
pub(super) fn age(headers: &HeaderMap, received: SystemTime, took: Duration) -> u64 {
    let first = headers.get(AGE).and_then(|line| line.as_bytes().split(|it| *it == b',').next());
    let told = first.and_then(|age| seconds(str::from_utf8(age.trim_ascii()).ok()?));
    let told = told.map_or(0, |age| age.saturating_add(took.as_secs()));
    let apparent = date(headers, DATE).and_then(|sent| received.duration_since(sent).ok());
    told.max(apparent.unwrap_or_default().as_secs())
}

/// Returns the time from the `Date` of a response to the date in another header.
pub(super) fn until(headers: &HeaderMap, name: HeaderName) -> Option<Duration> {
    date(headers, name)?.duration_since(date(headers, DATE)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    /// 14 November 2023, 22:13:20.
    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
    }

    /// Returns headers in which `+9` and `-9` stand for dates around now.
    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let offset = value.strip_prefix('@').map(|offset| offset.parse::<i64>().unwrap());
            let value = match offset {
                Some(offset) if offset < 0 => {
                    httpdate::fmt_http_date(now() - Duration::from_secs(offset.unsigned_abs()))
                }
                Some(offset) => {
                    httpdate::fmt_http_date(now() + Duration::from_secs(offset.unsigned_abs()))
                }
                None => (*value).to_owned(),
            };
            headers.append(*name, HeaderValue::from_str(&value).unwrap());
        }
        headers
    }

    /// RFC 9111, sections 4.2.1 and 5.3.
    #[test]
    fn the_first_of_the_lifetimes_counts() {
        let named_for = |seconds| Some(Named::For(Duration::from_secs(seconds)));
        let until = Some(Named::Until(now() + Duration::from_secs(9)));
        for (fields, expected) in [
            (&[][..], None),
            (&[("cache-control", "max-age=5, s-maxage=8"), ("expires", "@9")], named_for(8)),
            (&[("cache-control", "max-age=5"), ("expires", "@9"), ("date", "@0")], named_for(5)),
            (&[("expires", "@9"), ("date", "@-5")], named_for(14)),
            (&[("expires", "@9"), ("date", "@10")], named_for(0)),
            (&[("expires", "0"), ("date", "@0")], named_for(0)),
            (&[("expires", "@9"), ("expires", "@9"), ("date", "@0")], named_for(0)),
            (&[("expires", "Tuesday, 14-Nov-23 22:13:29 GMT"), ("date", "@0")], named_for(9)),
            (&[("expires", "@9")], until),
            (&[("expires", "@9"), ("date", "x")], until),
            (&[("cdn-cache-control", "public"), ("expires", "@9")], None),
            (&[("cdn-cache-control", "max-age=1"), ("expires", "@9")], named_for(1)),
        ] {
            let headers = headers(fields);
            let controls = Controls::of(&headers).unwrap();
            assert_eq!(named(&controls, &headers), expected, "{fields:?}");
        }
    }

    /// RFC 9111, section 4.2.2.
    #[test]
    fn a_tenth_of_the_time_since_the_last_change_is_the_heuristic() {
        let limit = Duration::from_secs(50);
        for (fields, expected) in [
            (&[][..], None),
            (&[("last-modified", "@-100"), ("date", "@0")], Some(10)),
            (&[("last-modified", "@-100"), ("date", "@100")], Some(20)),
            (&[("last-modified", "@-100")], Some(10)),
            (&[("last-modified", "@-5000")], Some(50)),
            (&[("last-modified", "@5")], None),
            (&[("last-modified", "yesterday")], None),
        ] {
            let found = heuristic(&headers(fields), now(), limit);
            assert_eq!(found, expected.map(Duration::from_secs), "{fields:?}");
        }
    }

    /// RFC 9111, sections 4.2.3 and 5.1.
    #[test]
    fn the_age_is_the_greater_of_what_is_told_and_what_is_apparent() {
        let took = Duration::from_millis(2900);
        for (fields, expected) in [
            (&[][..], 0),
            (&[("age", "7")], 9),
            (&[("age", "7"), ("date", "@-3")], 9),
            (&[("age", "7"), ("date", "@-30")], 30),
            (&[("date", "@30")], 0),
            (&[("date", "x")], 0),
            (&[("age", "99999999999999999999")], u64::MAX),
            // Of a list the first counts.
            (&[("age", "7"), ("age", "99")], 9),
            (&[("age", "99"), ("age", "7")], 101),
            (&[("age", "7,99")], 9),
            (&[("age", " 7 , \u{e4}"), ("age", "x")], 9),
            // An invalid one is ignored.
            (&[("age", "")], 0),
            (&[("age", ", 7")], 0),
            (&[("age", "-7")], 0),
            (&[("age", "+7")], 0),
            (&[("age", "7.0")], 0),
            (&[("age", "7s")], 0),
            (&[("age", "7;x=y")], 0),
            (&[("age", "\"7\"")], 0),
            (&[("age", "x, 7")], 0),
            (&[("age", "x"), ("age", "7")], 0),
            (&[("age", "\u{e4}")], 0),
            (&[("age", "x"), ("date", "@-30")], 30),
            (&[("age", "7"), ("date", "x")], 9),
            (&[("age", "7"), ("date", "@-30"), ("date", "@-30")], 9),
        ] {
            assert_eq!(age(&headers(fields), now(), took), expected, "{fields:?}");
        }
    }
}
