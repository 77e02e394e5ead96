//! Running a loader: its panic, its time limit and its cancellation are outcomes.

use std::{any::Any, panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use tokio::time::timeout;

use super::Lead;
use crate::{
    error::{BoxError, Error, ErrorKind},
    flight,
};

/// What a loader made.
pub(crate) enum Produced<V> {
    /// A value to share.
    Value(V),
    /// An answer that belongs to its caller alone, who has it already.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Uncacheable,
}

/// A loader as users write it, with errors of any kind.
pub(super) async fn shared<V, E, Fut>(loader: Fut) -> Result<Produced<V>, Error>
where
    Fut: Future<Output = Result<V, E>>,
    E: Into<BoxError>,
{
    loader.await.map(Produced::Value).map_err(Error::load)
}

/// Runs a loader within its time limit, for a flight if there is one.
pub(super) async fn run<V, F, Fut>(
    work: F,
    lead: Lead,
    limit: Duration,
    flight: Option<u64>,
) -> Result<Produced<V>, Error>
where
    F: FnOnce(Lead) -> Fut,
    Fut: Future<Output = Result<Produced<V>, Error>>,
{
    // The loader may also panic before it returns its future.
    let loader = AssertUnwindSafe(async move { work(lead).await }).catch_unwind();
    let limited = timeout(limit, loader);
    let ended = match flight {
        Some(flight) => flight::within(flight, limited).await,
        None => limited.await,
    };
    match ended {
        Ok(Ok(produced)) => produced,
        Ok(Err(panic)) => Err(panicked(panic.as_ref())),
        Err(_) => Err(Error::new(
            ErrorKind::LoadTimeout,
            format!("the load took longer than its limit of {limit:?}"),
        )),
    }
}

/// The error that a panic is to those who wait.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> Error {
    Error::new(ErrorKind::Panicked, format!("the load panicked: {}", words(panic)))
}

fn words(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(words), _) => words,
        (_, Some(words)) => words,
        _ => "with something that is not text",
    }
}
