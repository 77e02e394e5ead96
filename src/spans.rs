//! The tracing spans of operations that take time: a load, a refresh, and the wait for a lock.
//!
//! A span begins where a caller begins to wait, so a hit has no span. The field `result` has the
//! same values as the label of the metrics.

use tracing::{Span, debug_span, field};

use crate::{error::Error, key::Key};

/// Begins the span of a caller that waits for a load, or of the load itself.
pub(crate) fn load(key: &Key) -> Span {
    debug_span!("load", %key, result = field::Empty, "error.type" = field::Empty)
}

/// Begins the span of a refresh that its caller waits for.
pub(crate) fn refresh(key: &Key) -> Span {
    debug_span!("refresh", %key, result = field::Empty, "error.type" = field::Empty)
}

/// Begins the span of a refresh in the background. The span is no child of its caller's span,
/// because the caller's span would then end as late.
pub(crate) fn refresh_behind(key: &Key) -> Span {
    let span = debug_span!(
        parent: None, "refresh", %key, result = field::Empty, "error.type" = field::Empty
    );
    span.follows_from(Span::current());
    span
}

/// Begins the span of an acquisition.
pub(crate) fn lock(name: &Key) -> Span {
    debug_span!("lock", %name, result = field::Empty, "error.type" = field::Empty)
}

/// Notes how a span has ended.
pub(crate) fn ended(span: &Span, result: &'static str, error: Option<&Error>) {
    span.record("result", result);
    if let Some(error) = error {
        span.record("error.type", field::debug(error.kind()));
    }
}
