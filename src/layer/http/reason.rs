use std::fmt::{self, Display};

use http::HeaderName;

use crate::cache::Alone;

/// Why a request is answered without the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Its method is neither `GET` nor `HEAD`.
    Method,
    /// It has a body.
    Body,
    /// It has this header.
    Header(HeaderName),
    /// It has no key: its host is not clear, or a part of the key excludes it.
    Key,
    /// The answers of its key belong to their callers.
    Uncacheable,
    /// Its resource has too many variants.
    Variants,
    /// Too many loads are under way.
    Full,
    /// The layer answers itself, because the key backs off.
    BackingOff,
}

/// Writes the parameters of a `Cache-Status` header (RFC 9211).
impl Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Method => "fwd=method",
            Self::Body => "fwd=bypass; detail=body",
            Self::Header(name) => return write!(f, "fwd=bypass; detail=\"{name}\""),
            Self::Key => "fwd=bypass; detail=key",
            Self::Uncacheable => "fwd=uri-miss; detail=uncacheable",
            Self::Variants => "fwd=vary-miss; detail=variants",
            Self::Full => "fwd=uri-miss; detail=overloaded",
            Self::BackingOff => "detail=backing-off",
        })
    }
}

impl From<Alone> for Reason {
    fn from(why: Alone) -> Self {
        match why {
            Alone::Uncacheable | Alone::Reserved => Self::Uncacheable,
            Alone::Full => Self::Full,
        }
    }
}
