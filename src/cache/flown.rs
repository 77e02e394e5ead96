//! The end of a request, as its caller sees it.

use std::sync::Arc;

use super::{
    Loaded, Source,
    core::Core,
    outcome::{Alone, Head, Outcome},
};
use crate::{
    error::{Error, ErrorKind},
    flight::{Edge, Follower, Waited},
    observe::Counters,
};

/// How a request ended that may end without a value.
pub(crate) enum Flown<V> {
    /// With a value. Its caller counts once it is [served](Counters::served).
    Loaded(Loaded<V>),
    /// With the head of a value, for a request that [takes it](super::Sharing::takes_heads).
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Head(Box<Offer<V>>),
    /// Each caller loads for itself.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Alone(Alone),
}

impl<V> Flown<V> {
    /// Returns the value, and counts its caller. A loader that a user wrote makes no other answer.
    pub(super) fn shared(self, core: &Core<V>) -> Result<Loaded<V>, Error> {
        match self {
            Self::Loaded(loaded) => {
                core.counters.served(loaded.source);
                Ok(loaded)
            }
            Self::Head(_) | Self::Alone(_) => {
                Err(Error::new(ErrorKind::Cancelled, "the value was not shared"))
            }
        }
    }
}

/// The head of a value, which its caller takes, or declines to wait for the whole load.
pub(crate) struct Offer<V> {
    core: Arc<Core<V>>,
    head: Head,
    /// The source of the value for this caller.
    source: Source,
    follower: Option<FlightPlace<V>>,
}

/// The place of a caller in a flight, and its wait if it is a loader.
pub(super) type FlightPlace<V> = (Follower<Outcome<V>>, Option<Edge>);

#[cfg_attr(not(feature = "http"), allow(dead_code))]
impl<V: Clone + Send + Sync + 'static> Offer<V> {
    /// Returns the head.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Counts a caller that is served the value.
    pub(crate) fn take(self) {
        self.core.counters.served(self.source);
    }

    /// Waits for the outcome of the load. Returns `None` if the caller has to ask again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the flight, which goes on for the others.
    pub(crate) async fn decline(self) -> Option<Result<Flown<V>, Error>> {
        let (mut follower, _edge) = self.follower?;
        follower.leave_first();
        match follower.wait().await {
            Waited::JoinAgain | Waited::Outcome(Outcome::Unanswered(_)) => None,
            Waited::Outcome(outcome) => Some(ended(&self.core, outcome, false, None)),
        }
    }
}

/// Returns what a flight ended with, for one of its callers.
///
/// A caller that is served a head keeps its place in the flight, if there is a flight.
pub(super) fn ended<V>(
    core: &Arc<Core<V>>,
    outcome: Outcome<V>,
    leads: bool,
    follower: Option<FlightPlace<V>>,
) -> Result<Flown<V>, Error> {
    match outcome {
        Outcome::Value(loaded) => {
            let source = loaded.source.for_caller(leads);
            Ok(Flown::Loaded(Loaded { source, ..loaded }))
        }
        Outcome::Head(head, source) => {
            let (core, source) = (Arc::clone(core), source.for_caller(leads));
            Ok(Flown::Head(Box::new(Offer { core, head, source, follower })))
        }
        Outcome::Alone(why) => Ok(Flown::Alone(why)),
        Outcome::Failed(error) => Err(failed(core, error)),
        Outcome::Unanswered(_) => Err(failed(core, cut_off())),
    }
}

impl Counters {
    /// Counts a caller that is served a value of this source.
    pub(crate) fn served(&self, source: Source) {
        let counter = match source {
            Source::Hit => &self.hits,
            Source::Local => return self.local.add(),
            Source::Stale => &self.stale,
            Source::Led => &self.led,
            Source::Followed => &self.followed,
            Source::Received => &self.received,
            Source::Degraded => &self.degraded,
        };
        counter.add();
    }
}

/// Counts a caller that gets an error.
pub(super) fn failed<V>(core: &Core<V>, error: Error) -> Error {
    core.counters.failed.add();
    error
}

pub(super) fn cut_off() -> Error {
    Error::new(ErrorKind::Cancelled, "the load was cut off, because its runtime was shut down")
}
