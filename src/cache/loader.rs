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
    /// An answer for its caller alone, which has it already.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Uncacheable,
    /// An answer for its caller alone, which says that the origin fails with this error. It is a
    /// failed load if there is a stale value for this case, or a setting of what follows.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Failing(Error),
}

/// Makes a loader of one that a user wrote, with errors of any type.
pub(super) async fn shared<V, E, Fut>(loader: Fut) -> Result<Produced<V>, Error>
where
    Fut: Future<Output = Result<V, E>>,
    E: Into<BoxError>,
{
    loader.await.map(Produced::Value).map_err(Error::load)
}

/// Runs a loader within its time limit, for the flight or load of this number, if there is one.
pub(super) async fn run<V, F, Fut>(
    work: F,
    lead: Lead<V>,
    limit: Duration,
    number: Option<u64>,
) -> Result<Produced<V>, Error>
where
    F: FnOnce(Lead<V>) -> Fut,
    Fut: Future<Output = Result<Produced<V>, Error>>,
{
    // The loader may also panic before it returns its future.
    let loader = AssertUnwindSafe(async move { work(lead).await }).catch_unwind();
    let limited = timeout(limit, loader);
    let ended = match number {
        Some(number) => flight::within(number, limited).await,
        None => limited.await,
    };
    match ended {
        Ok(Ok(produced)) => produced,
        Ok(Err(panic)) => Err(panicked(panic.as_ref())),
        Err(_) => {
            let words = format!("the load took longer than its `load_limit` of {limit:?}");
            Err(Error::new(ErrorKind::LoadTimeout, words))
        }
    }
}

/// Returns the error that a panic is to the waiters.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> Error {
    let words = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(words), _) => words,
        (_, Some(words)) => words.as_str(),
        _ => "with a payload that is not text",
    };
    Error::new(ErrorKind::Panicked, format!("the load panicked: {words}"))
}
