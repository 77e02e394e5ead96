//! The layer for HTTP services.
//!
//! A request goes this way:
//!
//! - `service` chooses its way.
//! - `requests` decides whether the request takes part, and under which key. If it does not,
//!   `pass` takes it to the inner service, for a `reason`.
//! - `generation` is a part of that key, in a layer that adds parts of its own.
//! - `join` takes it to the flight of its response, and answers it when that has landed.
//! - `asked` is what the request asks of a shared response: its conditions and its range.
//! - `variants` finds the response of a resource that the request selects.
//! - `produce` calls the inner service for the flight that this caller leads. `exchange` is what
//!   the flight and its caller share.
//! - `responses` decides whether the response may be shared, and for how long.
//! - `streamed` is a response that is shared while its body arrives, and `body` is that body.
//! - `cached` is the response that is stored, and `status` the header that says how the cache
//!   answered.
//!
//! Beside that way, `fields` parses header fields, `marks` knows the keys whose answers are not
//! shared, and `invalidation` ends what an unsafe request outdates. `settings` holds
//! what a user of the layer sets, in `layer`, `sharing`, `streaming` and `policy`.
//!
//! [`ResponseBody`] is the body that callers receive, [`CachedResponse`] the response that is
//! stored, and [`InnerServiceError`] what waiters learn of a response that is a failure.

mod asked;
mod body;
mod cached;
mod exchange;
mod fields;
mod generation;
mod groups;
mod inner_error;
mod invalidation;
mod join;
mod layer;
mod marks;
mod pass;
mod policy;
mod produce;
mod reason;
mod requests;
mod responses;
mod service;
mod settings;
mod sharing;
mod status;
mod streamed;
mod streaming;
mod variants;

#[cfg(any(fuzzing, test))]
pub(crate) use self::fields::targeted::check_any_lines;
pub use self::{
    body::{
        ResponseBody,
        error::{BodyError, BodyErrorKind},
    },
    cached::{CachedResponse, ResponseCodec, http_cache},
    inner_error::InnerServiceError,
    policy::Policy,
    requests::RequestDirectives,
    settings::Overload,
};

use std::sync::Arc;

use self::settings::HttpSettings;
use super::{BellwetherLayer, KeyFor};

/// Shares responses to `GET` and `HEAD` requests. The mode of [`BellwetherLayer::http`].
///
/// Clones share one cache and have the same settings.
///
/// [`BellwetherLayer::http`]: super::BellwetherLayer::http
#[derive(Clone)]
pub struct Http(Arc<HttpSettings>);
