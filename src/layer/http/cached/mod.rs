//! A response that is stored, or shared without that.

mod codec;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header::AGE, response::Parts};

pub use self::codec::ResponseCodec;
use super::{
    fields::{dates, framing::strip},
    inner_error::InnerServiceErrorCodec,
};
use crate::{
    backend::Store,
    cache::{Builder, Cache, Loaded, Source},
};

/// Holds a response that is shared: its status, its headers and its whole body.
///
/// It has no headers of a single connection, no extensions and no HTTP version. It is cheap to
/// clone.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::{convert::Infallible, time::Duration};
/// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
/// use bytes::Bytes;
/// use http::{Request, Response, StatusCode};
/// use http_body_util::{Empty, Full};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// let cache = http_cache(MemoryBackend::new()).build()?;
/// let layer = BellwetherLayer::http(cache.clone()).default_lifetime(Duration::from_secs(5));
/// let service = layer.layer(service_fn(|_request: Request<Empty<Bytes>>| async {
///     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("product 42")))
/// }));
/// let request = Request::get("http://shop.example/products/42").body(Empty::new()).unwrap();
/// let (parts, body) = request.into_parts();
/// let key = layer.key(&parts).unwrap();
/// service.oneshot(Request::from_parts(parts, body)).await.unwrap();
///
/// let stored = cache.get(key).await?.unwrap();
/// assert_eq!(stored.status(), StatusCode::OK);
/// assert!(stored.headers().is_empty());
/// assert_eq!(stored.body(), "product 42");
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedResponse(Arc<ResponseData>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct ResponseData {
    head: ResponseHead,
    body: Bytes,
}

/// A response that is shared, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResponseHead {
    status: StatusCode,
    headers: HeaderMap,
    /// The age of the response when it was complete, in seconds.
    age: u64,
    /// Once it is no longer fresh, it may only be validated.
    only_validates: bool,
    /// For how long it had not been fresh any more when it was complete, in milliseconds.
    late: u32,
}

impl ResponseHead {
    pub(super) fn new(parts: &Parts, age: u64) -> Self {
        let mut headers = parts.headers.clone();
        strip(&mut headers);
        headers.remove(AGE);
        Self { status: parts.status, headers, age, only_validates: false, late: 0 }
    }

    /// Returns the head of a response that may only be validated once it is no longer fresh.
    pub(super) fn only_validating(self, only_validates: bool) -> Self {
        Self { only_validates, ..self }
    }

    /// Returns the head of a response that was complete so long after its lifetime.
    pub(super) fn late_by(self, late: Duration) -> Self {
        Self { late: late.as_millis().try_into().unwrap_or(u32::MAX), ..self }
    }

    /// Returns the age in seconds.
    pub(super) fn age(&self) -> u64 {
        self.age
    }

    /// Returns the head of the response when it is older by so many seconds.
    pub(super) fn aged(&self, seconds: u64) -> Self {
        Self { age: self.age.saturating_add(seconds), ..self.clone() }
    }

    /// Builds a response of this age, which has no `Age` if that is zero.
    pub(super) fn response<B>(&self, body: B, age: u64) -> Response<B> {
        self.clone().with_age(body, Some(age).filter(|age| *age > 0))
    }

    fn with_age<B>(self, body: B, age: Option<u64>) -> Response<B> {
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        if let Some(age) = age {
            response.headers_mut().insert(AGE, age.into());
        }
        response
    }
}

impl CachedResponse {
    /// Returns the status code.
    pub fn status(&self) -> StatusCode {
        self.0.head.status
    }

    /// Returns the headers, without `Age`.
    pub fn headers(&self) -> &HeaderMap {
        &self.0.head.headers
    }

    /// Returns the whole body.
    pub fn body(&self) -> &Bytes {
        &self.0.body
    }

    /// Returns whether a response is stored, or was fresh when a caller came that has waited so
    /// long for it.
    pub(super) fn is_in_time(loaded: &Loaded<Self>, waited: Duration) -> bool {
        let late = loaded.value().0.head.late;
        late == 0 || was_stored(loaded) || u128::from(late) <= waited.as_millis()
    }

    /// Returns whether the response may only be validated once it is no longer fresh.
    pub(super) fn only_validates(&self) -> bool {
        self.0.head.only_validates
    }

    /// Returns whether another response differs from this one by its dates at most. These are moved
    /// on when this one is served.
    pub(super) fn differs_by_dates(&self, newer: &Self) -> bool {
        let (stored, other) = (&*self.0, &*newer.0);
        let rest = |it: &ResponseHead| (it.status, it.only_validates, it.late);
        // A `Date` has no fractions, so the older of two equal ages may be a second higher.
        let is_as_old = stored.head.age.checked_sub(other.head.age).is_some_and(|more| more < 2);
        rest(&stored.head) == rest(&other.head)
            && is_as_old
            && stored.body == other.body
            && (stored.head.headers == other.head.headers
                || dates::differ_by_dates(&stored.head.headers, &other.head.headers))
    }

    pub(super) fn new(head: ResponseHead, body: Bytes) -> Self {
        Self(Arc::new(ResponseData { head, body }))
    }

    /// Builds the response for one caller, with its `Age`.
    pub(super) fn replay(loaded: Loaded<Self>) -> Response<Bytes> {
        let was_stored = was_stored(&loaded);
        let since = loaded.age();
        let kept = since.unwrap_or_default().as_secs();
        let response = loaded.into_value();
        let on_arrival = response.0.head.age;
        let age = on_arrival.saturating_add(kept);
        let mut response = response.with_age((was_stored || on_arrival > 0).then_some(age));
        if since.is_some() {
            dates::move_on(response.headers_mut(), age, SystemTime::now());
        }
        response
    }

    fn with_age(self, age: Option<u64>) -> Response<Bytes> {
        // A hit has the only reference to what it decoded.
        let ResponseData { head, body } = Arc::unwrap_or_clone(self.0);
        head.with_age(body, age)
    }
}

/// Returns whether a response is from the backend, or one that this process remembers.
fn was_stored(loaded: &Loaded<CachedResponse>) -> bool {
    match loaded.source() {
        Source::Hit | Source::Local | Source::Stale => true,
        Source::Degraded => loaded.age().is_some(),
        _ => false,
    }
}

/// Returns a builder of the cache for [`BellwetherLayer::http`](crate::BellwetherLayer::http).
///
/// The cache holds [`CachedResponse`]s and encodes them with the [`ResponseCodec`].
///
/// Over any backend but a [`MemoryBackend`](crate::MemoryBackend), the cache must have a
/// [`namespace`](Builder::namespace): the name of the service. The key of a request is its host and
/// path, so two services in one namespace would serve each other's responses. Without it,
/// [`build`](Builder::build) fails.
///
/// The [`ttl`](Builder::ttl) of the cache is a cap on the lifetime of each response. It does not
/// make a response cacheable.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{BellwetherLayer, MemoryBackend, http_cache};
///
/// let cache = http_cache(MemoryBackend::new())
///     .namespace("shop")
///     .ttl(Duration::from_secs(5))
///     .build()?;
/// let layer = BellwetherLayer::http(cache);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
pub fn http_cache<B: Store>(backend: B) -> Builder<CachedResponse, ResponseCodec> {
    Cache::builder(backend)
        .codec(ResponseCodec)
        .error_codec(InnerServiceErrorCodec)
        .needs_namespace()
}
