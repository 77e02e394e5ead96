//! The layer for HTTP services.
//!
//! A request goes this way:
//!
//! - `service` chooses its way. `requests` decides whether the request takes part, and `key` under
//!   which key. If it does not take part, it goes to the inner service. If it does, it joins the
//!   flight of its response, and is answered when that has landed. Its head, and what it asks for,
//!   is in `question`.
//! - `variants` says where a response is stored: under the key of its resource, or below a marker.
//! - `load` calls the inner service for the flight that this caller leads. `responses` decides
//!   whether the response may be shared, and for how long. If it may, callers read its `body` while
//!   it arrives.
//! - `cached` is the response that is stored, and `status` the header that says how the cache
//!   answered, or why it did not.
//!
//! Beside that way, `fields` parses header fields and `uri` places, `marks` knows the keys whose
//! answers are not shared, and `invalidation` ends what an unsafe request outdates. `layer` and
//! `policy` hold what a user of the layer sets.
//!
//! [`ResponseBody`] is the body that callers receive, [`CachedResponse`] the response that is
//! stored, and [`InnerServiceError`] what waiters learn of a response that is a failure.

mod body;
mod cached;
mod fields;
mod invalidation;
mod key;
mod layer;
mod load;
mod marks;
mod policy;
mod question;
mod requests;
mod responses;
mod service;
mod status;
mod uri;
mod variants;

#[cfg(any(fuzzing, test))]
pub(crate) use self::fields::check_any_lines;
pub use self::{
    body::{BodyError, BodyErrorKind, ResponseBody},
    cached::{CachedResponse, ResponseCodec, http_cache},
    key::{Query, VaryBy},
    policy::Policy,
    responses::unavailable::InnerServiceError,
};

use std::sync::Arc;

use self::{layer::HttpSettings, question::Question};
use super::{BellwetherLayer, KeyFor};

/// Shares responses to `GET` and `HEAD` requests. The mode of [`BellwetherLayer::http`].
///
/// Clones share one cache and have the same settings.
///
/// [`BellwetherLayer::http`]: super::BellwetherLayer::http
#[derive(Clone)]
pub struct Http(Arc<HttpSettings>);
