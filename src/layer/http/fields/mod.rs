//! The header fields of a message: parsers without any state, and the classes of fields.
//!
//! - `directives` parses `Cache-Control`. By it, `targeted` finds the directives for this cache,
//!   and `lifetime` how long a response is fresh.
//! - `framing` has the fields about connection and length. `vary` has those that list fields, and
//!   the names of those by which a response varies.
//! - `location` resolves the places that a response names.
//! - `credentials` knows the fields and the cookies that speak for a user.

pub(super) mod credentials;
pub(super) mod directives;
pub(super) mod framing;
pub(super) mod lifetime;
pub(super) mod location;
pub(super) mod targeted;
pub(super) mod vary;
