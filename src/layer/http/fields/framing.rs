//! The fields of a message about its connection and its length.

use http::{
    HeaderMap, HeaderName,
    header::{
        CONNECTION, CONTENT_LENGTH, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
        TRANSFER_ENCODING, UPGRADE,
    },
};

use super::{directives::seconds, vary::listed};

/// Parses the header names in `Connection`. Returns `None` if one is not a header name.
pub(crate) fn connection(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    listed(headers, &CONNECTION)
}

/// Returns whether `Connection` names no field that a response may depend on, nor an upgrade.
///
/// A service that is a proxy removes the fields that it names (RFC 9110, section 7.6.1). Its origin
/// then sees another request than the one whose key the response would have.
pub(crate) fn names_no_field(headers: &HeaderMap) -> bool {
    let is_option =
        |name: &HeaderName| *name == TE || ["close", "keep-alive"].contains(&name.as_str());
    connection(headers).is_some_and(|names| names.iter().all(is_option))
}

/// The header is there twice, or is not a number.
pub(crate) struct Contradiction;

/// Returns the length of the body if the headers have it.
pub(crate) fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Contradiction> {
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(None),
        (Some(length), None) => {
            length.to_str().ok().and_then(seconds).map(Some).ok_or(Contradiction)
        }
        _ => Err(Contradiction),
    }
}

/// Removes the headers that belong to one connection.
pub(crate) fn strip(headers: &mut HeaderMap) {
    for name in connection(headers).unwrap_or_default() {
        headers.remove(name);
    }
    let hop_by_hop = [
        CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ];
    for name in hop_by_hop {
        headers.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "proxy-authentication-info"] {
        headers.remove(name);
    }
}
