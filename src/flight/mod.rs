//! In-process singleflight: of all callers that ask for one key and [accept](Accepted) the same
//! values, one leads and the others follow.
//!
//! A caller whose key no other caller asks for looks for the value [alone](lone). A hit ends there.
//! Else [`Flights::join`] makes the caller the leader of a new flight, or a follower of the one
//! under way. The work of a leader runs in a task of its own from its first poll.
//! A [`Leader`] is an obligation: the leader lands its flight with an outcome. If the leader is
//! dropped instead, by a panic, an abort or a runtime that goes away, the followers join anew. A
//! [`Follower`] waits, and may leave at any time without an effect on the others.
//!
//! # Epochs
//!
//! A caller must not be served what was read before it asked, because it may know of a change
//! since. So the leader begins an epoch *before* each question to the backend. An outcome goes to
//! the callers that joined before its epoch. The leader asks once more for all late joiners
//! together. If each joined anew, the first would ask before the second had joined, and so on, one
//! by one.

mod cycle;
mod flights;
mod lone;
#[cfg(all(test, loom))]
#[path = "../../loom/flight.rs"]
mod loom;
mod state;
mod wakers;

pub(crate) use self::{
    cycle::{Edge, current, nested, within},
    flights::{Accepted, Flights, Follower, Joined, Leader, Limits, Refused, next_id},
    lone::KeyUse,
    state::{Epoch, Landing},
};
