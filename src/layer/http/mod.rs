//! The layer for HTTP services.
//!
//! A request goes this way:
//!
//! - `service` chooses its way. `request` decides whether the request takes part, and `key` under
//!   which key. If it does not take part, or if there is nothing to share, `pass` leaves it to the
//!   inner service. If it takes part, it joins the flight of its response. When that has landed,
//!   `conditions` makes the answer.
//! - `variants` says where a response is stored: under the key of its resource, or below a marker.
//! - `load` calls the inner service for the flight that this caller leads. `response` decides
//!   whether the answer may be shared, and for how long. If it may, callers read its `body` while
//!   it arrives. `validation` renews a stale response, and `unavailable` treats failures.
//! - `cached` is the response that is stored, and `status` the header that says how the cache
//!   answered, or why it did not.
//!
//! Beside that way, `fields` parses header fields, `marks` knows the keys whose answers are not
//! shared, and `invalidation` ends what an unsafe request outdates. `passed_headers` says which
//! header keeps most requests away. `layer` and `policy` hold what a user of the layer sets.

mod body;
mod cached;
mod conditions;
mod fields;
mod header_names;
mod invalidation;
mod key;
mod layer;
mod load;
mod marks;
mod pass;
mod passed_headers;
mod policy;
mod request;
mod response;
mod service;
mod status;
mod unavailable;
mod validation;
mod variants;

#[cfg(any(fuzzing, test))]
pub(crate) use self::fields::check_any_lines;
pub use self::{
    body::{BodyError, ResponseBody},
    cached::{CachedResponse, ResponseCodec, http_cache},
    key::Query,
    pass::HttpPass,
    policy::Policy,
    unavailable::InnerServiceError,
};

use std::sync::Arc;

use self::{layer::HttpSettings, request::Question};
use super::BellwetherLayer;

/// Shares responses to `GET` and `HEAD` requests. The mode of [`BellwetherLayer::http`].
///
/// Clones share one cache and have the same settings.
///
/// [`BellwetherLayer::http`]: super::BellwetherLayer::http
#[derive(Clone)]
pub struct Http(Arc<HttpSettings>);
