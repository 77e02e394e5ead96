//! In-process singleflight: of all callers that ask for one key at once, one leads and the others
//! follow.
//!
//! [`Flights::join`] makes a caller the leader of a new flight or a follower of the one under way.
//! A [`Leader`] is an obligation: it lands its flight with an outcome. If it is dropped instead,
//! that is an outcome too: a panic, an abort, a runtime that goes away. A [`Follower`] waits, and
//! may leave at any time without an effect on the others.
//!
//! # Epochs
//!
//! A caller must not be served what was read before it asked, because it may know of a change
//! since. So the leader begins an epoch *before* each question to the backend. An outcome goes to
//! the callers that joined before its epoch. The leader asks once more for all late joiners
//! together. If each joined anew, the first would ask before the second had joined, and so on, one
//! by one.

mod cycle;
#[allow(clippy::module_inception)]
mod flight;
#[cfg(all(test, loom))]
#[path = "../../loom/flight.rs"]
mod loom;
mod wakers;

pub(crate) use self::{
    cycle::{Edge, current, nested, within},
    flight::{
        Accepted, Epoch, Flights, Follower, Joined, Leader, Limits, Notice, Refused, next_id,
    },
};
