//! The layer for HTTP services.
//!
//! `layer` and `sharing` are the settings, with what they promise; `settings` holds them. `service`
//! handles one request, from its arrival to its response. It uses:
//!
//! - `requests`, the requests that take part, with the names of `credentials` and `cookies`;
//! - `responses`, the responses that may be shared, and `stale`, for how long they may be stale;
//! - `policy`, what both follow, `subject`, the request that a response is judged by, and
//!   `lifetime`, how long that is fresh;
//! - `targeted`, the field that controls this cache, by the parsers in `directives` and
//!   `structured`;
//! - `key`, the key of a request, and `query`, what of its query is in it;
//! - `asked`, what a request asks of a shared response, with its `conditions` and its `range`;
//! - `vary`, what selects among the variants of a resource, `varied`, where a response is stored,
//!   and `variants`, which limits their number;
//! - `validation`, by which the service renews a stale response;
//! - `invalidation`, by which unsafe requests end responses;
//! - `status`, the header that says how the cache answered;
//! - `exchange`, the state that a caller shares with the flight that it may lead;
//! - `produce`, the call of the inner service for a flight, and what becomes of its answer;
//! - `streamed`, a response that is shared while its body arrives: `shared` is that body, `buffer`
//!   its bytes, `board` and `seats` the state of its readers, and `collect` reads it to its end;
//! - `pass`, the way of a request without the cache, for a `reason`, and the `watch` over its body;
//! - `recent`, how the answers of each key turned out lately.
//!
//! [`ResponseBody`] is the body that callers receive, [`CachedResponse`] the response that is
//! stored.

mod asked;
mod board;
mod body;
mod body_error;
mod buffer;
mod cached;
mod collect;
mod conditions;
mod cookies;
mod credentials;
mod directives;
mod exchange;
mod invalidation;
mod key;
mod layer;
mod lifetime;
mod pass;
mod policy;
mod produce;
mod query;
mod range;
mod reason;
mod recent;
mod requests;
mod responses;
mod seats;
mod service;
mod settings;
mod shared;
mod sharing;
mod stale;
mod status;
mod streamed;
mod streaming;
mod structured;
mod subject;
mod targeted;
mod validation;
mod variants;
mod varied;
mod vary;
mod watch;

#[cfg(any(fuzzing, test))]
pub(crate) use self::targeted::check_any_lines;
pub use self::{
    body::ResponseBody,
    body_error::{BodyError, BodyErrorKind},
    cached::{CachedResponse, ResponseCodec, http_cache},
    policy::Policy,
    requests::RequestDirectives,
    settings::{Http, Overload},
};

use super::{BellwetherLayer, KeyFor};
