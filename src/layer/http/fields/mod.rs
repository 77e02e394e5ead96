//! The header fields of a message: parsers without any state, and the classes of fields.
//!
//! - `directives` parses `Cache-Control`, and `structured` the fields of RFC 9651.
//! - By both, `targeted` finds the directives for this cache, and `lifetime` how long a response is
//!   fresh. `dates` moves the dates of a validated response on.
//! - `framing` has the fields about connection and length, and `names` those that list fields.
//!   `vary` has the names of those by which a response varies.
//! - `location` resolves the places that a response names.
//! - `credentials` and `cookies` know the fields that speak for a user.

pub(super) mod cookies;
pub(super) mod credentials;
pub(super) mod dates;
pub(super) mod directives;
pub(super) mod framing;
pub(super) mod lifetime;
pub(super) mod location;
pub(super) mod names;
pub(super) mod structured;
pub(super) mod targeted;
pub(super) mod vary;
