//! All settings of a layer for HTTP services, and their defaults.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderName, Response,
    header::{AUTHORIZATION, COOKIE, HOST, IF_RANGE, RANGE},
    request::Parts,
};

use super::{
    CachedResponse, Policy, Query, body::Backlog, errors::error_response, key::KeyPart,
    marks::Marks, passed_headers::PassedHeaders,
};
use crate::{
    cache::{Cache, shared_load::CacheTerms},
    error::Error,
};

#[derive(Clone)]
pub(super) struct HttpSettings {
    pub(super) cache: Cache<CachedResponse>,
    /// The settings of the cache that the rules of HTTP depend on.
    pub(super) terms: CacheTerms,
    pub(super) marks: Arc<Marks>,
    pub(super) policy: Policy,
    pub(super) key_parts: Vec<KeyPart>,
    pub(super) query: Query,
    /// Headers that look like credentials, and that are in the key or declared harmless.
    pub(super) known_headers: Vec<String>,
    /// Headers that are in the key.
    pub(super) keyed_headers: Vec<HeaderName>,
    /// If set, a load sends only these headers, and the headers that are always sent.
    pub(super) forwarded: Option<Vec<HeaderName>>,
    /// What makes the normal form of a header.
    pub(super) normal_forms: Vec<(HeaderName, NormalForm)>,
    /// The names of cookies that no response depends on. A `*` ends the beginning of names.
    pub(super) ignored_cookies: Vec<String>,
    pub(super) ignores_reloads: bool,
    pub(super) default_lifetime: Option<Duration>,
    pub(super) kept_for_validation: Duration,
    pub(super) max_stale: Duration,
    pub(super) body_limit: Duration,
    /// What is kept for slow readers, of all services of the layer.
    pub(super) backlog: Arc<Backlog>,
    pub(super) refuses_overload: bool,
    /// While this flag is set, each request passes.
    pub(super) switch: Option<Arc<AtomicBool>>,
    pub(super) passed_headers: Arc<PassedHeaders>,
    pub(super) tells_status: bool,
    pub(super) purge: Option<Check>,
    pub(super) surrogate_keys: bool,
    pub(super) on_error: OnError,
}

/// Decides about a request.
pub(super) type Check = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;

/// Makes the normal form of the value of a header, if there is one.
pub(super) type NormalForm = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

pub(super) type OnError = Arc<dyn Fn(&Error) -> Response<Bytes> + Send + Sync>;

impl HttpSettings {
    pub(super) fn new(cache: Cache<CachedResponse>) -> Self {
        Self {
            terms: cache.terms(),
            cache,
            marks: Arc::new(Marks::new()),
            policy: Policy::default(),
            key_parts: Vec::new(),
            query: Query::default(),
            known_headers: Vec::new(),
            keyed_headers: Vec::new(),
            forwarded: None,
            normal_forms: Vec::new(),
            ignored_cookies: Vec::new(),
            ignores_reloads: false,
            default_lifetime: None,
            kept_for_validation: Duration::from_secs(600),
            max_stale: Duration::from_secs(86_400),
            // A body within the size limit that takes longer is a stream.
            body_limit: Duration::from_secs(60),
            backlog: Arc::new(Backlog::new(8 << 20, 64 << 20)),
            refuses_overload: false,
            switch: None,
            passed_headers: Arc::default(),
            tells_status: false,
            purge: None,
            surrogate_keys: false,
            on_error: Arc::new(error_response),
        }
    }

    /// Returns whether the service receives this header with a load.
    pub(super) fn forwards(&self, name: &HeaderName) -> bool {
        let Some(forwarded) = &self.forwarded else { return true };
        ALWAYS_SENT.contains(name) || self.keyed_headers.contains(name) || forwarded.contains(name)
    }
}

/// What the service receives with a load, whatever is [set](crate::BellwetherLayer::forward_only).
const ALWAYS_SENT: [HeaderName; 5] = [HOST, COOKIE, AUTHORIZATION, RANGE, IF_RANGE];
