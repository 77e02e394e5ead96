//! Which header keeps most requests away from the cache.
//!
//! A hit ratio of zero has one cause more often than any other: a header that each client sends.
//! Its name is a line of the log, once a minute while requests pass by headers.

use std::{collections::HashMap, sync::Mutex};

use http::HeaderName;
use tracing::info;

use crate::{observe::Rarely, sync::lock};

/// So many names are counted. A client may send any name.
const MOST_NAMES: usize = 64;

#[derive(Default)]
pub(super) struct PassedHeaders {
    counts: Mutex<HashMap<HeaderName, u64>>,
    told: Rarely,
}

impl PassedHeaders {
    /// Counts a request that passed because of a header.
    pub(super) fn count(&self, name: &HeaderName) {
        let mut counts = lock(&self.counts);
        if counts.len() < MOST_NAMES || counts.contains_key(name) {
            *counts.entry(name.clone()).or_default() += 1;
        }
        if !self.told.first() {
            return;
        }
        let passed: u64 = counts.values().sum();
        let most = counts.drain().max_by_key(|(_, count)| *count);
        if let Some((header, count)) = most {
            info!(
                %header, count, passed,
                "requests pass the cache because of a header; this one is in most of them"
            );
        }
    }
}
