//! Bounds on the time that a backend has for an answer.

use std::time::Duration;

use tokio::time::timeout;

use super::DynLeases;
use crate::error::BackendError;

/// The limit for a backend that does not bound its own operations.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Waits for the answer to an operation; the outcome is unknown if the limit passes first.
pub(crate) async fn in_time<T>(
    limit: Duration,
    operation: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    timeout(limit, operation).await.unwrap_or_else(|elapsed| Err(BackendError::timed_out(elapsed)))
}

/// Waits for the answer to an operation that has no limit of its own.
pub(crate) async fn answered<T>(
    backend: &dyn DynLeases,
    operation: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let limit = backend.time_limit().unwrap_or_default().max(ANSWER_LIMIT);
    answered_by(backend, limit, operation).await
}

/// Like [`in_time`], without a timer where the backend keeps the limit by itself.
pub(crate) async fn answered_by<T>(
    backend: &dyn DynLeases,
    limit: Duration,
    operation: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    match backend.time_limit() {
        Some(own) if own <= limit => operation.await,
        _ => in_time(limit, operation).await,
    }
}
