use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, RETRY_AFTER},
    request::Parts,
};
use http_body::Body;
use tokio::time::Instant;

use super::{
    CachedResponse, Http, InnerServiceError, KeyFor,
    asked::Asked,
    body::shared::BodyLimits,
    marks::{Marks, Whose},
    policy::Policy,
    requests::{
        RequestRules,
        key::{self, KeyPart},
        query::Query,
    },
    responses::{ResponseRules, stale::StaleRules, subject::Subject, unavailable::UNAVAILABLE},
    status::Reason,
    variants::{KEY_LENGTH, Place, Variants},
};
use crate::{
    cache::{Abandoned, AfterFailure, Cache, OnFull, Request},
    error::{Error, ErrorKind},
    key::Key,
};

/// A body that is silent for longer is a stream, or its sender has gone away.
const IDLE: Duration = Duration::from_secs(10);
/// A body within the size limit that takes longer is a stream.
const TOTAL: Duration = Duration::from_secs(60);
/// Most responses are complete by then, in any process.
const WAIT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(super) struct HttpSettings {
    pub(super) cache: Cache<CachedResponse>,
    pub(super) marks: Arc<Marks>,
    pub(super) variants: Arc<Variants>,
    pub(super) requests: RequestRules,
    pub(super) policy: Policy,
    pub(super) key_parts: Vec<KeyPart>,
    pub(super) query: Query,
    pub(super) max_body: u64,
    pub(super) default_lifetime: Option<Duration>,
    pub(super) stale: StaleRules,
    pub(super) unavailable: AfterFailure,
    pub(super) overload: Overload,
    /// How long a body that is shared may make no progress.
    pub(super) body_idle: Duration,
    /// How long a body that is shared may take in all.
    pub(super) body_total: Duration,
    /// How long a request waits for the response of another process.
    pub(super) wait: Duration,
    pub(super) tells_status: bool,
    pub(super) purge: Option<Check>,
    pub(super) surrogate_keys: bool,
    pub(super) on_error: OnError,
}

/// Decides about a request.
pub(super) type Check = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

pub(super) type OnError = Arc<dyn Fn(&Error) -> Response<Bytes> + Send + Sync>;

/// Decides about a request that needs a load beyond the [cap on loads] of the cache.
///
/// [cap on loads]: crate::cache::Builder::max_loads
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overload {
    /// The request goes to the inner service at once, as if the layer were not there.
    #[default]
    Pass,
    /// The request is refused at once, with the response to an
    /// [`Overloaded`](ErrorKind::Overloaded) error.
    Refuse,
}

impl HttpSettings {
    pub(super) fn new(cache: Cache<CachedResponse>) -> Self {
        Self {
            marks: Arc::new(Marks::new(cache.uncacheable_ttl())),
            variants: Arc::new(Variants::new()),
            stale: StaleRules::of(&cache),
            unavailable: UNAVAILABLE,
            cache,
            requests: RequestRules::default(),
            policy: Policy::careful(),
            key_parts: Vec::new(),
            query: Query::default(),
            max_body: 1 << 20,
            default_lifetime: None,
            overload: Overload::Pass,
            body_idle: IDLE,
            body_total: TOTAL,
            wait: WAIT,
            tells_status: false,
            purge: None,
            surrogate_keys: false,
            on_error: Arc::new(error_response),
        }
    }

    /// Returns the place of a request that takes part, and what it asks for.
    pub(super) fn admit(&self, parts: &Parts, body: &impl Body) -> Result<(Place, Asked), Reason> {
        self.requests.check(parts, body, &self.policy)?;
        let key = self.key(parts).ok_or(Reason::Key)?;
        let texts = match self.key_parts.is_empty() || self.policy.coalesces {
            true => None,
            false if self.cache.key_limit() < KEY_LENGTH => return Err(Reason::Key),
            false => Some(key::texts(parts, &self.key_parts).ok_or(Reason::Key)?),
        };
        Ok((Place::new(key, texts), Asked::of(parts)))
    }

    /// Returns whether the answer to a request is expected to belong to its caller.
    pub(super) fn goes_alone(&self, key: &Key, asked: &Asked) -> bool {
        let is_reserved = || asked.is_authorized && self.marks.has(key, Whose::Authorized);
        self.marks.has(key, Whose::All) || is_reserved()
    }

    /// Returns the key of the resource of a request. It is the same for all values of the parts.
    pub(super) fn key(&self, parts: &Parts) -> Option<Key> {
        self.key_with(parts, key::scheme(parts))
    }

    /// Returns the keys of a resource, whether the target of a request names its scheme or not.
    pub(super) fn keys(&self, parts: &Parts) -> impl Iterator<Item = Key> {
        let schemes = ["", "http", "https", key::scheme(parts)];
        schemes.into_iter().filter_map(|scheme| self.key_with(parts, scheme))
    }

    fn key_with(&self, parts: &Parts, scheme: &str) -> Option<Key> {
        let (verb, fields) = match self.policy.coalesces {
            true => ("COALESCE", key::texts(parts, &self.key_parts)?),
            false => ("GET", " *".repeat(self.key_parts.len())),
        };
        key::key(parts, verb, scheme, &fields, &self.query, self.cache.key_limit())
    }

    /// Returns the rules for the response to a request.
    pub(super) fn response_rules<B>(&self, request: &http::Request<B>) -> ResponseRules {
        ResponseRules {
            policy: self.policy.clone(),
            subject: Subject::new(request, &self.query),
            sent: Instant::now(),
            max_body: self.body_size_limit(),
            default_lifetime: self.default_lifetime,
            stale: self.stale,
            unavailable: self.unavailable,
        }
    }

    pub(super) fn body_limits(&self) -> BodyLimits {
        let finish_unread = self.cache.abandoned() == Abandoned::Finish;
        let (size, idle, total) = (self.body_size_limit(), self.body_idle, self.body_total);
        BodyLimits { size, idle, total, finish_unread }
    }

    /// Returns a request to the cache, with the limits of the layer.
    pub(super) fn request(&self, key: &Key) -> Request<CachedResponse> {
        self.cache.request(key).rest_limit(self.body_total).wait_limit_below(self.wait)
    }

    fn body_size_limit(&self) -> u64 {
        self.max_body.min(self.cache.value_limit() as u64)
    }

    pub(super) fn on_full(&self) -> OnFull {
        match self.overload {
            Overload::Pass => OnFull::Pass,
            Overload::Refuse => OnFull::Refuse,
        }
    }
}

impl KeyFor<Parts> for Http {
    fn key_for(&self, parts: &Parts) -> Option<Key> {
        self.0.key(parts)
    }
}

/// The default response to callers whose load failed.
fn error_response(error: &Error) -> Response<Bytes> {
    let status = match error.kind() {
        ErrorKind::LoadTimeout => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::BackingOff
        | ErrorKind::Overloaded
        | ErrorKind::Cancelled
        | ErrorKind::ShutDown => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Load if error.retry_after().is_some() => StatusCode::SERVICE_UNAVAILABLE,
        _ => error
            .load_ref()
            .map_or(StatusCode::BAD_GATEWAY, |failed: &InnerServiceError| failed.status()),
    };
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(wait) = error.retry_after() {
        // No client is to come too early.
        let begun = u64::from(wait.subsec_nanos() > 0);
        headers.insert(RETRY_AFTER, wait.as_secs().saturating_add(begun).into());
    }
    response
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("cache", &self.0.cache)
            .field("max_body", &self.0.max_body)
            .field("default_lifetime", &self.0.default_lifetime)
            .finish_non_exhaustive()
    }
}
