//! What follows a response that says that the inner service fails.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header::RETRY_AFTER, response::Parts};

use super::ResponseRules;
use crate::{
    cache::{AfterFailure, Lead, Produced},
    error::{Error, ErrorKind},
    layer::http::{
        BellwetherLayer, CachedResponse, Http, InnerServiceError,
        fields::{directives::seconds, lifetime},
        inner_error::is_failure,
    },
};

/// The longest pause that a `Retry-After` may ask for. A wrong one must not block a key for long.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Short, because the next request may find the service well, and any caller may have led.
pub(crate) const UNAVAILABLE: AfterFailure =
    AfterFailure::BackOff { first: Duration::from_millis(100), longest: Duration::from_secs(1) };

impl ResponseRules {
    /// Returns what a flight lands with, whose response is a failure or another error. A stale one
    /// may stand in for a failure (RFC 5861, section 4), or others are told of it. Tells the lead
    /// what is to follow.
    pub(crate) fn failing(
        &self,
        parts: &Parts,
        lead: &Lead<CachedResponse>,
    ) -> Produced<CachedResponse> {
        lead.do_not_store();
        let status = parts.status;
        if !is_failure(status) {
            return Produced::Uncacheable;
        }
        let concerns_all = !self.subject.is_authorized;
        if concerns_all {
            self.tell_what_follows(parts, lead);
        } else if !lead.has_stand_in() {
            return Produced::Reserved;
        }
        let words = "the inner service failed";
        let failure = InnerServiceError::new(status);
        Produced::Failing(Error::with_source(ErrorKind::Load, words, failure))
    }

    fn tell_what_follows(&self, parts: &Parts, lead: &Lead<CachedResponse>) {
        if let (StatusCode::SERVICE_UNAVAILABLE, Some(time)) =
            (parts.status, retry_after(&parts.headers))
        {
            lead.after_failure(AfterFailure::RetryAfter(time.min(LONGEST_PAUSE)));
        }
        // A `500` may say something of the request alone.
        if parts.status != StatusCode::INTERNAL_SERVER_ERROR {
            lead.after_common_failure(self.unavailable);
        }
    }
}

/// Returns the time of a `Retry-After`. A date counts from the `Date` of the response, because the
/// clock of this process may be wrong.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let mut values = headers.get_all(RETRY_AFTER).iter();
    let (value, second) = (values.next()?, values.next());
    let in_seconds = || seconds(value.to_str().ok()?).map(Duration::from_secs);
    let time = match second {
        None => in_seconds().or_else(|| lifetime::until(headers, &RETRY_AFTER))?,
        Some(_) => return None,
    };
    (!time.is_zero()).then_some(time)
}

impl BellwetherLayer<Http> {
    /// Sets what follows a `502`, `503` or `504` of the inner service, if no [stale
    /// response](Self::http) is served in its place.
    ///
    /// Such a response says that the service fails, whatever the request. Its caller receives it.
    /// The callers that wait for it receive a `503` of this layer, in every process. So do those
    /// that come while the key backs off, and the service is not called. The `Retry-After` of a
    /// `503` sets that time, up to a minute. This rule holds for responses without one. The first
    /// response that is no failure ends it.
    ///
    /// Defaults to a [`BackOff`](AfterFailure::BackOff) of up to 100 ms, and after further failures
    /// of up to 1 s. With [`BackOffFromSecond`](AfterFailure::BackOffFromSecond), the callers that
    /// wait for the first failure receive its status, and the next caller may find the service
    /// well. With [`LoadAgain`](AfterFailure::LoadAgain), the callers that wait send their own
    /// requests, and no key backs off.
    ///
    /// A [rule](crate::cache::Builder::after_failure) and a
    /// [policy](crate::cache::Builder::failure_policy) of the cache take precedence. Where the key
    /// backs off, a `Retry-After` says for how long. Requests that pass change nothing. Nor do
    /// failures of requests with `Authorization`, if no stale response is served in their place.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use bellwether::{BellwetherLayer, MemoryBackend, cache::AfterFailure, http_cache};
    ///
    /// let cache = http_cache(MemoryBackend::new()).build()?;
    /// let layer = BellwetherLayer::http(cache).when_unavailable(AfterFailure::BackOff {
    ///     first: Duration::from_millis(20),
    ///     longest: Duration::from_secs(5),
    /// });
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn when_unavailable(mut self, rule: AfterFailure) -> Self {
        self.settings().unavailable = rule;
        self
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_retry_after_is_in_seconds_or_a_date_by_the_clock_of_the_service() {
        let (sent, later) = ("Tue, 14 Nov 2023 22:13:20 GMT", "Tue, 14 Nov 2023 22:13:29 GMT");
        for (fields, expected) in [
            (&[][..], None),
            (&[("retry-after", "7")], Some(7)),
            (&[("retry-after", "0")], None),
            (&[("retry-after", "-7")], None),
            (&[("retry-after", "soon")], None),
            (&[("retry-after", "7"), ("retry-after", "7")], None),
            (&[("retry-after", later), ("date", sent)], Some(9)),
            (&[("retry-after", sent), ("date", later)], None),
            (&[("retry-after", later)], None),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            let expected = expected.map(Duration::from_secs);
            assert_eq!(retry_after(&headers), expected, "{fields:?}");
        }
    }
}
