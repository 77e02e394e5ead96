//! Values that say that there is none, which are kept for a time of their own.

use std::time::Duration;

use super::settings;
use crate::{backend::Windows, error::Error};

pub(super) struct Negative<V> {
    ttl: Duration,
    is_negative: Box<dyn Fn(&V) -> bool + Send + Sync>,
}

impl<V> Negative<V> {
    pub(super) fn new(
        ttl: Duration,
        is_negative: impl Fn(&V) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { ttl, is_negative: Box::new(is_negative) }
    }

    /// Returns the windows of a value, if it is negative.
    pub(super) fn windows(&self, value: &V) -> Option<Windows> {
        (self.is_negative)(value).then(|| Windows::fresh(self.ttl))
    }

    /// Checks that the time is in its range.
    pub(super) fn check(&self) -> Result<(), Error> {
        settings::at_least("negative_ttl", self.ttl, Duration::from_millis(1))
    }
}
