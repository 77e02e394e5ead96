//! The layer for HTTP services.
//!
//! A request goes this way:
//!
//! - `service` chooses the way. `request` decides whether the request takes part, and `key` under
//!   which key. If the request takes no part, or if there is nothing to share, `pass` leaves the
//!   request to the inner service. Otherwise the request joins the flight of its response. When the
//!   flight has landed, `conditions` makes the answer to the [question](question::Question).
//! - `variants` says where a response is stored: under the key of its resource, or below a marker.
//! - `load` makes the `call` of the inner service for the flight that this caller leads.
//!   **`response` decides whether the answer may be shared** ([`Http::judge`]), and `lifetime` for
//!   how long. A shared answer is `streamed`: callers read its `body` while the body arrives.
//!   `validation` renews a stale response, and `unavailable` treats failures.
//! - `cached` is the response that is stored. `status` is the header that says how the cache
//!   answered, or why the cache did not. `counts` counts the caller.
//!
//! Beside that way, `fields` parses header fields, `marks` knows the keys whose answers are not
//! shared, and `invalidation` ends what an unsafe request outdates. `passed_headers` says which
//! header keeps most requests away. A user of the layer sets what `layer` and `policy` offer, and
//! `settings` holds that. `errors` has the error of a failed answer, and the answer to an error.
//!
//! All that the layer uses of the cache beside its public methods is in `cache::shared_load`.

mod body;
mod cached;
mod call;
mod conditions;
mod counts;
mod errors;
mod fields;
mod header_names;
mod invalidation;
mod key;
mod layer;
mod lifetime;
mod load;
mod marks;
mod pass;
mod passed_headers;
mod policy;
mod question;
mod request;
mod response;
mod service;
mod settings;
mod status;
mod streamed;
mod unavailable;
mod validation;
mod variants;

#[cfg(any(fuzzing, test))]
pub(crate) use self::fields::check_any_lines;
pub use self::{
    body::{BodyError, ResponseBody},
    cached::{CachedResponse, ResponseCodec, http_cache},
    errors::InnerServiceError,
    key::Query,
    pass::HttpPass,
    policy::Policy,
};

use std::sync::Arc;

use self::settings::HttpSettings;
use super::BellwetherLayer;

/// Shares responses to `GET` and `HEAD` requests. The mode of [`BellwetherLayer::http`].
///
/// Clones share one cache and have the same settings.
///
/// [`BellwetherLayer::http`]: super::BellwetherLayer::http
#[derive(Clone)]
pub struct Http(Arc<HttpSettings>);
