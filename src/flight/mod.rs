//! In-process singleflight: of all callers who ask for one key at once, one leads and the others follow.
//!
//! [`Group::join`] makes a caller the leader of a new flight or a follower of the one under way. A
//! [`Leader`] is an obligation: it lands its flight with an outcome, and if it is dropped instead (a panic,
//! an abort, a runtime that goes away) that is an outcome too. A [`Follower`] waits; leaving costs nobody
//! anything.
//!
//! # Who may have which outcome
//!
//! A caller must not be served what was read before he asked: what he knows may have changed it. So a
//! flight counts marks. Its leader sets one *before* each question to the backend, a follower remembers how
//! many there were when he joined, and an outcome says before which mark one must have joined to have it.
//! For those who joined too late the leader asks once more ([`Late`](leader::Late)), for all of them together; if each
//! joined anew, the first would ask before the second had joined, and so on, one by one.

mod cycle;
mod follower;
mod group;
mod leader;
mod map;
mod waiters;
mod work;

pub use self::group::Abandoned;
pub(crate) use self::{
    cycle::{current, nested, within},
    follower::{Follower, Waited},
    group::{Full, Group, Limits, next_id},
    leader::{Leader, Mark},
};
