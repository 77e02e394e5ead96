//! The counters of a layer. Each request counts in one of nine results: one of the seven
//! [sources](Source) of a shared response, `failed`, or `passed`. A request that passes counts when
//! the layer sends it. Any other request counts when its caller gets the head of the answer, and
//! does not count if the caller leaves before that. A `PURGE` that the layer answers counts
//! nowhere.
//!
//! The cache itself counts loads, and no callers.

use super::{Http, status::Forward};
use crate::cache::Source;

impl Http {
    /// Counts a caller that is served from this source, and why no stored response did for it.
    pub(super) fn count_served(&self, source: Source, forward: &Forward) {
        let counters = self.0.cache.counters();
        counters.served(source);
        match (source, forward) {
            (Source::Hit | Source::Local | Source::Stale, _) => {}
            (_, Forward::VaryMiss) => counters.missed_variant.add(),
            (_, Forward::Stale) => counters.missed_stale.add(),
            _ => {}
        }
    }

    /// Counts a caller that receives an error: of the service, or a response of this layer to one.
    pub(super) fn count_failed(&self) {
        self.0.cache.counters().failed.add();
    }

    /// Counts a request that passes to the inner service.
    pub(super) fn count_passed(&self, why: &Forward) {
        let counters = self.0.cache.counters();
        counters.passed.add();
        match why {
            Forward::Method => counters.passed_method.add(),
            Forward::Body => counters.passed_body.add(),
            Forward::Key => counters.passed_key.add(),
            Forward::Switched => counters.passed_switched.add(),
            Forward::Header(name) => {
                counters.passed_header.add();
                self.0.passed_headers.count(name);
            }
            Forward::Uncacheable(_) => counters.passed_uncacheable.add(),
            Forward::Full => counters.passed_overloaded.add(),
            // A request with one of these reasons does not pass.
            Forward::Miss | Forward::VaryMiss | Forward::Stale | Forward::BackingOff => {}
        }
    }

    /// Counts a request that passed, and to which the inner service returned a `5xx` or an error.
    pub(super) fn count_failed_pass(&self) {
        self.0.cache.counters().passed_failed.add();
    }

    /// Counts a load that was answered with a `5xx`, but did not fail. The cache counts failures.
    pub(super) fn count_failed_load(&self) {
        self.0.cache.counters().failures.add();
    }
}
