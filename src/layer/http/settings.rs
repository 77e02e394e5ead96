use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::{CACHE_CONTROL, RETRY_AFTER},
    request::Parts,
};
use http_body::Body;
use tokio::time::Instant;

use super::{
    CachedResponse, Http, InnerServiceError, KeyFor,
    asked::Asked,
    body::collect::BodyLimits,
    generation::{GENERATION_LENGTH, OwnGenerations},
    marks::{Marks, Whose},
    policy::{Policy, PolicyKind},
    reason::Reason,
    requests::{
        RequestRules,
        key::{self, KeyPart},
        query::QueryRules,
    },
    responses::{ResponseRules, stale::StaleRules, subject::Subject, unavailable::UNAVAILABLE},
    streaming::Streaming,
    variants::limit::Variants,
};
use crate::{
    cache::{AfterFailure, Cache, OnFull},
    error::{Error, ErrorKind},
    key::Key,
};

#[derive(Clone)]
pub(super) struct HttpSettings {
    pub(super) cache: Cache<CachedResponse>,
    pub(super) marks: Arc<Marks>,
    pub(super) variants: Arc<Variants>,
    pub(super) requests: RequestRules,
    pub(super) policy: Policy,
    pub(super) key_parts: Vec<KeyPart>,
    pub(super) own_generations: Arc<OwnGenerations>,
    pub(super) query: QueryRules,
    pub(super) max_body: u64,
    pub(super) default_lifetime: Option<Duration>,
    pub(super) stale: StaleRules,
    pub(super) unavailable: AfterFailure,
    pub(super) coalesce_only: bool,
    pub(super) overload: Overload,
    pub(super) explain: bool,
    pub(super) streaming: Streaming,
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
            requests: RequestRules::new(PolicyKind::Careful),
            policy: Policy::careful(),
            key_parts: Vec::new(),
            own_generations: Arc::new(OwnGenerations::new()),
            query: QueryRules::default(),
            max_body: 1 << 20,
            default_lifetime: None,
            coalesce_only: false,
            overload: Overload::Pass,
            explain: false,
            streaming: Streaming::default(),
            tells_status: false,
            purge: None,
            surrogate_keys: false,
            on_error: Arc::new(error_response),
        }
    }

    /// Returns the key of a request that takes part, and what it asks for.
    pub(super) fn admit(&self, parts: &Parts, body: &impl Body) -> Result<(Key, Asked), Reason> {
        let mut asked = self.requests.check(parts, body, self.coalesce_only)?;
        asked.since = Some(Instant::now());
        asked.is_respelled = key::is_respelled(parts);
        let resource = self.key(parts).ok_or(Reason::Key)?;
        if !self.has_generations() {
            return Ok((resource, asked));
        }
        asked.resource = Some(resource);
        let texts = key::texts(parts, &self.key_parts).ok_or(Reason::Key)?;
        let limit = self.cache.key_limit().saturating_sub(GENERATION_LENGTH);
        let key = key::key(parts, "GET", key::scheme(parts), &texts, &self.query, limit);
        Ok((key.ok_or(Reason::Key)?, asked))
    }

    /// Returns whether the key of a response contains the generation of its resource.
    pub(super) fn has_generations(&self) -> bool {
        !self.key_parts.is_empty() && !self.coalesce_only
    }

    /// Returns whether the answer to a request is expected to belong to its caller.
    pub(super) fn goes_alone(&self, key: &Key, asked: &Asked) -> bool {
        let is_reserved = || asked.is_authorized && self.marks.has(key, Whose::Authorized);
        self.marks.has(key, Whose::All) || is_reserved()
    }

    /// Returns the key of the resource of a request.
    pub(super) fn key(&self, parts: &Parts) -> Option<Key> {
        self.key_with(parts, key::scheme(parts))
    }

    /// Returns the keys of a resource, whether the target of a request names its scheme or not.
    pub(super) fn keys(&self, parts: &Parts) -> impl Iterator<Item = Key> {
        let schemes = ["", "http", "https", key::scheme(parts)];
        schemes.into_iter().filter_map(|scheme| self.key_with(parts, scheme))
    }

    fn key_with(&self, parts: &Parts, scheme: &str) -> Option<Key> {
        let (verb, fields) = match self.coalesce_only {
            true => ("COALESCE", key::texts(parts, &self.key_parts)?),
            false => ("GET", " *".repeat(self.key_parts.len())),
        };
        key::key(parts, verb, scheme, &fields, &self.query, self.cache.key_limit())
    }

    /// Returns the rules for the response to a request.
    pub(super) fn response_rules<B>(&self, request: &Request<B>) -> ResponseRules {
        ResponseRules {
            policy: self.policy.clone(),
            subject: Subject::new(request, &self.query),
            sent: Instant::now(),
            max_body: self.body_size_limit(),
            default_lifetime: self.default_lifetime,
            coalesce_only: self.coalesce_only,
            stale: self.stale,
            unavailable: self.unavailable,
        }
    }

    pub(super) fn body_limits(&self) -> BodyLimits {
        self.streaming.limits(self.body_size_limit(), &self.cache)
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
