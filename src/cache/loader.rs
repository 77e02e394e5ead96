//! Running a loader: its panic, its time limit and its cancellation are outcomes.

use std::{any::Any, borrow::Cow, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::{Lead, core::Core, outcome::Made};
use crate::{
    error::{BoxError, Error, ErrorKind, words_of},
    flight,
    meter::Meter,
};

/// The outcome of a loader.
pub(crate) enum Produced<V> {
    /// A value to share.
    Value(Made<V>),
    /// An answer for its caller alone, which has it already. The name is marked as uncacheable.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Uncacheable,
    /// An answer for its caller alone, which has it already. It depends on this request, so the
    /// name is not marked.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Reserved,
    /// An answer for its caller alone, which says that the origin fails with this error. It is a
    /// failed load if there is a stale value for this case, or a rule of what follows.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Failing(Error),
}

/// Awaits a user's loader, and returns its outcome. Callers get the value as a hit decodes it.
pub(super) async fn of_user<V, E, Fut>(
    core: Arc<Core<V>>,
    lead: Lead<V>,
    loader: Fut,
) -> Result<Produced<V>, Error>
where
    V: Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<V, E>>,
    E: Into<BoxError>,
{
    loader.await.map(|value| produced(&core, &lead, value)).map_err(Error::load)
}

/// Returns the outcome of a loader that returned a value.
pub(super) fn produced<V>(core: &Core<V>, lead: &Lead<V>, value: V) -> Produced<V>
where
    V: Clone + Send + Sync + 'static,
{
    Produced::Value(made(core, lead, value))
}

/// Returns a value that was loaded, as its callers get it.
pub(super) fn made<V>(core: &Core<V>, lead: &Lead<V>, value: V) -> Made<V>
where
    V: Clone + Send + Sync + 'static,
{
    // An unchanged value was decoded before.
    let is_unchanged = lead.keeping().is_unchanged;
    if is_unchanged { value.into() } else { core.made(value) }
}

/// Runs a loader until its limit, for the flight or load of this number. The limit no longer
/// counts once the head of the value is announced.
pub(super) async fn run<V, F, Fut>(
    work: F,
    lead: Lead<V>,
    limit: Duration,
    (number, meter): (u64, &Meter),
) -> Result<Produced<V>, Error>
where
    F: FnOnce(Lead<V>) -> Fut,
    Fut: Future<Output = Result<Produced<V>, Error>>,
{
    let begun = Instant::now();
    let ended = flight::within(number, limited(work, lead, limit)).await;
    let produced = match ended {
        Some(Ok(produced)) => produced,
        Some(Err(panic)) => Err(panicked(panic.as_ref())),
        None => {
            let words = format!("the load took longer than its `load_limit` of {limit:?}");
            Err(Error::new(ErrorKind::LoadTimeout, words))
        }
    };
    let result = match &produced {
        Ok(Produced::Failing(_)) | Err(_) => "error",
        Ok(_) => "value",
    };
    meter.ended("bellwether_load_seconds", begun, result);
    debug!(took = ?begun.elapsed(), outcome = %outcome(&produced), "a load has ended");
    produced
}

/// Returns the words for the end of a load.
fn outcome<V>(produced: &Result<Produced<V>, Error>) -> Cow<'static, str> {
    match produced {
        Ok(Produced::Value(_)) => "a value".into(),
        Ok(Produced::Uncacheable) => "a value that is not shared".into(),
        Ok(Produced::Reserved) => "a value for its caller alone".into(),
        Ok(Produced::Failing(error)) | Err(error) => format!("{error:#}").into(),
    }
}

/// Returns what the loader made, its panic, or `None` at the limit.
async fn limited<V, F, Fut>(
    work: F,
    lead: Lead<V>,
    limit: Duration,
) -> Option<Result<Result<Produced<V>, Error>, Box<dyn Any + Send>>>
where
    F: FnOnce(Lead<V>) -> Fut,
    Fut: Future<Output = Result<Produced<V>, Error>>,
{
    let for_loader = lead.clone();
    // The loader may also panic before it returns its future.
    let loader = AssertUnwindSafe(async move { work(for_loader).await }).catch_unwind();
    let without_head = async {
        sleep(limit).await;
        if lead.head().is_some() {
            std::future::pending().await
        }
    };
    tokio::select! {
        biased;
        ended = loader => Some(ended),
        () = without_head => None,
    }
}

/// Returns the error that a panic is to the waiters.
pub(super) fn panicked(panic: &(dyn Any + Send)) -> Error {
    Error::new(ErrorKind::Panicked, format!("the load panicked: {}", words_of(panic)))
}
