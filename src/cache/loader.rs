//! Runs a loader. A panic, a time limit and a cancellation are outcomes of the load.

use std::{any::Any, panic::AssertUnwindSafe};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::{Lead, core::Core, outcome::Alone};
use crate::{
    error::{BoxError, Error, ErrorKind, words_of},
    flight,
};

/// What a loader has made: a value to share. Or nothing, because the answer is for the loader's
/// caller alone, and that caller has the answer already.
pub(crate) struct Produced<V> {
    pub(super) shared: Result<V, Alone>,
}

impl<V> Produced<V> {
    pub(crate) fn value(value: V) -> Self {
        Self { shared: Ok(value) }
    }
}

/// A loader that a leader has yet to run. The box lets the code that runs it be compiled once for
/// each type of values.
pub(super) type Work<V> =
    Box<dyn FnOnce(Lead<V>) -> BoxFuture<'static, Result<Produced<V>, Error>> + Send>;

/// Boxes a loader.
pub(super) fn boxed<V, F, Fut>(work: F) -> Work<V>
where
    F: FnOnce(Lead<V>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Produced<V>, Error>> + Send + 'static,
{
    Box::new(move |lead| work(lead).boxed())
}

/// Runs a loader that a user wrote: its value is shared, and its error wrapped.
pub(super) async fn of_user<V, E: Into<BoxError>>(
    loader: impl Future<Output = Result<V, E>>,
) -> Result<Produced<V>, Error> {
    loader.await.map(Produced::value).map_err(Error::load)
}

/// Runs a loader until its limit, for the flight or load of this number. The limit ends when the
/// head of the value lands.
pub(super) async fn run<V>(
    core: &Core<V>,
    work: Work<V>,
    lead: Lead<V>,
    number: u64,
) -> Result<Produced<V>, Error> {
    let begun = Instant::now();
    let limit = core.settings.load_limit;
    let for_loader = lead.clone();
    // The loader may also panic before it returns its future.
    let loader = AssertUnwindSafe(async move { work(for_loader).await }).catch_unwind();
    // Ends at the limit, or never if the head has landed by then.
    let limit_without_head = async {
        sleep(limit).await;
        if lead.0.head.get().is_some() {
            std::future::pending().await
        }
    };
    let produced = tokio::select! {
        biased;
        ended = flight::within(number, loader) => {
            ended.unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
        }
        () = limit_without_head => {
            let words = format!("the load took longer than its `load_limit` of {limit:?}");
            Err(Error::new(ErrorKind::LoadTimeout, words))
        }
    };
    let error = produced.as_ref().err();
    let result = if error.is_some() { "error" } else { "value" };
    core.meter.ended("bellwether_load_seconds", begun, result);
    let took = begun.elapsed();
    match error {
        Some(error) => debug!(?took, outcome = %format_args!("{error:#}"), "a load has ended"),
        None => debug!(?took, outcome = "a value", "a load has ended"),
    }
    produced
}

/// Returns the error that the waiters get for a panic.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> Error {
    Error::new(ErrorKind::Panicked, format!("the load panicked: {}", words_of(panic)))
}
