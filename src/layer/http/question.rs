//! What a request wants of the response to it.

use http::{
    HeaderMap, HeaderName, Method,
    header::{IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE},
    request::Parts,
};
use tokio::time::Instant;

use super::fields::sole;

/// The headers of a request that a shared response answers: its conditions and its range.
/// `If-Match` and `If-Unmodified-Since` are for the inner service.
pub(super) const TERMS: [HeaderName; 4] = [IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE];

/// The terms that are about a range.
pub(super) const RANGE_TERMS: [HeaderName; 2] = [IF_RANGE, RANGE];

/// The head of a request. Most requests want the whole response, as it is stored.
#[derive(Clone)]
pub(super) struct Question {
    pub(super) head: Parts,
    /// All headers as they came, if the head has the normal form of some.
    pub(super) as_sent: Option<HeaderMap>,
    /// When the request came.
    pub(super) since: Instant,
    /// The request has an `Authorization`, so its answer may be for its user alone.
    pub(super) is_authorized: bool,
}

impl Question {
    /// Returns the head of a request for the whole response, from which every caller is answered.
    /// The range may stay.
    pub(super) fn for_all(&self, keeps_range: bool) -> Parts {
        let mut head = self.head.clone();
        head.method = Method::GET;
        for name in TERMS {
            let is_kept = keeps_range && RANGE_TERMS.contains(&name);
            if !is_kept {
                head.headers.remove(name);
            }
        }
        head
    }

    /// Returns the head as it came.
    pub(super) fn into_sent(self) -> Parts {
        let mut head = self.head;
        if let Some(headers) = self.as_sent {
            head.headers = headers;
        }
        head
    }

    /// Returns whether the request is for a part of the response. A `HEAD` is for none (RFC 9110,
    /// section 14.2).
    pub(super) fn wants_part(&self) -> bool {
        let headers = &self.head.headers;
        if self.head.method != Method::GET || !headers.contains_key(RANGE) {
            return false;
        }
        // Several lines are no range that this layer can read, so the service decides.
        let Some(range) = sole(headers, RANGE) else { return true };
        // Players and download managers begin so. It is all of the response.
        range.as_bytes().trim_ascii() != b"bytes=0-"
    }
}
