//! The spans of what takes time: a load, a refresh, and the wait for a lock.
//!
//! Each begins where a caller begins to wait, so a hit has none. Their words for `result` are those
//! of the metrics.

use futures_util::FutureExt;
use tracing::{Instrument, Span, debug_span, field, level_filters::LevelFilter};

use crate::{error::Error, key::Key};

/// Returns the span of the caller. It costs nothing where nobody collects spans.
pub(crate) fn current() -> Span {
    match LevelFilter::current() {
        LevelFilter::OFF => Span::none(),
        _ => Span::current(),
    }
}

/// Begins the span of a caller that waits for a load, or of the load itself.
pub(crate) fn load(key: &Key) -> Span {
    debug_span!("load", %key, result = field::Empty, "error.type" = field::Empty)
}

/// Begins the span of a refresh that its caller waits for.
pub(crate) fn refresh(key: &Key) -> Span {
    debug_span!("refresh", %key, result = field::Empty, "error.type" = field::Empty)
}

/// Begins the span of a refresh in the background. It is no part of its caller's span, which would
/// end as late.
pub(crate) fn refresh_behind(key: &Key) -> Span {
    let (result, error) = (field::Empty, field::Empty);
    let span = debug_span!(parent: None, "refresh", %key, result, "error.type" = error);
    if !span.is_disabled() {
        span.follows_from(Span::current());
    }
    span
}

/// Awaits an acquisition in a span of its own.
pub(crate) fn lock<T>(
    name: &Key,
    acquiring: impl Future<Output = Result<T, Error>>,
) -> impl Future<Output = Result<T, Error>> {
    let span = debug_span!("lock", %name, result = field::Empty, "error.type" = field::Empty);
    acquiring.instrument(span.clone()).inspect(move |acquired| match acquired {
        Ok(_) => ended(&span, "acquired", None),
        Err(error) => ended(&span, "error", Some(error)),
    })
}

/// Notes how a span has ended.
pub(crate) fn ended(span: &Span, result: &'static str, error: Option<&Error>) {
    span.record("result", result);
    if let Some(error) = error {
        span.record("error.type", field::debug(error.kind()));
    }
}
