//! A response that is stored, or shared without that.

use std::{sync::Arc, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header::AGE, response::Parts,
};

use super::{InnerServiceError, body::LayerBody, fields::strip};
use crate::{
    backend::Store,
    cache::{Builder, Cache, Codec, Json},
    error::BoxError,
};

/// Holds a response that is shared: its status, its headers and its whole body.
///
/// The response has no headers of a single connection, no extensions and no HTTP version. A clone
/// is cheap. [`BellwetherLayer::key`](crate::BellwetherLayer::key) returns the key of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedResponse {
    pub(super) head: Arc<ResponseHead>,
    pub(super) body: Bytes,
    /// The age of the response when the response was complete, in seconds.
    pub(super) age: u64,
    /// For how long the complete response had not been fresh any more, in milliseconds.
    pub(super) late: u32,
}

/// A response that is shared, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResponseHead {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Once the response is no longer fresh, it may only be validated.
    pub(super) only_validates: bool,
}

impl ResponseHead {
    pub(super) fn new(parts: Parts, only_validates: bool) -> Self {
        let Parts { status, mut headers, .. } = parts;
        strip(&mut headers);
        headers.remove(AGE);
        Self { status, headers, only_validates }
    }

    /// Builds a response, with this age if there is one.
    pub(super) fn with_age(
        self: Arc<Self>,
        body: LayerBody,
        age: Option<u64>,
    ) -> Response<LayerBody> {
        // A hit has the only reference to the head, which it has just decoded.
        let head = Arc::unwrap_or_clone(self);
        let mut response = Response::new(body);
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        if let Some(age) = age {
            response.headers_mut().insert(AGE, age.into());
        }
        response
    }
}

impl CachedResponse {
    /// Returns the status code.
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// Returns the headers, without `Age`.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Returns the whole body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }
}

/// Returns a builder of the cache for [`BellwetherLayer::http`](crate::BellwetherLayer::http).
///
/// The cache holds [`CachedResponse`]s. All settings of a cache apply, and these have a meaning or
/// a default of their own:
///
/// | setting | default | meaning |
/// |---|---|---|
/// | [`ttl`](Builder::ttl) | 60 s | a cap on the lifetime of each response |
/// | [`max_value`](Builder::max_value) | 1 MiB and 64 KiB | the largest response with its headers |
/// | [`wait_limit`](Builder::wait_limit) | 10 s | the wait for a body that another process loads |
///
/// After the wait limit, a process sends the request to its service, at most once for all callers.
///
/// The key of a request is its host and path, so two services in one namespace would serve each
/// other's responses.
pub fn http_cache<B: Store>(
    backend: B,
    namespace: impl Into<String>,
) -> Builder<CachedResponse, ResponseCodec> {
    Cache::builder(backend, namespace)
        // 1 MiB of body, and room for its headers.
        .max_value((1 << 20) + (64 << 10))
        // Most responses are complete by then. The body of another response may have no end.
        .wait_limit(Duration::from_secs(10))
        .codec(ResponseCodec)
        .error_codec::<InnerServiceError>(Json)
}

/// Encodes [`CachedResponse`]s as bytes, and decodes them.
///
/// All numbers are big-endian:
///
/// | field | type |
/// |---|---|
/// | version of this format | `u8` |
/// | whether it may only be validated once it is no longer fresh | `u8`, 0 or 1 |
/// | status | `u16` |
/// | age on arrival, in seconds | `u64` |
/// | time from the end of its lifetime to its arrival, in milliseconds | `u32` |
/// | number of headers | `u32` |
/// | each header: length of its name, the name, length of its value, the value | `u16`, `u32` |
/// | body | the remaining bytes |
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseCodec;

const VERSION: u8 = 4;

/// The bytes of a header with a name of one byte and no value.
const SHORTEST_HEADER: usize = 7;

const UNREADABLE: &str = "the bytes are not an HTTP response in a format that this version reads";

/// Returns how many bytes of an encoded response are not its body.
pub(super) fn encoded_head_len(headers: &HeaderMap) -> usize {
    let mut length = 20;
    for (name, value) in headers {
        length += 6 + name.as_str().len() + value.len();
    }
    length
}

impl Codec<CachedResponse> for ResponseCodec {
    fn tag(&self) -> u16 {
        4
    }

    fn encode(&self, value: &CachedResponse) -> Result<Bytes, BoxError> {
        let CachedResponse { head, body, age, late } = value;
        let mut bytes = BytesMut::with_capacity(encoded_head_len(&head.headers) + body.len());
        bytes.put_u8(VERSION);
        bytes.put_u8(head.only_validates.into());
        bytes.put_u16(head.status.as_u16());
        bytes.put_u64(*age);
        bytes.put_u32(*late);
        bytes.put_u32(u32::try_from(head.headers.len())?);
        for (name, value) in &head.headers {
            bytes.put_u16(u16::try_from(name.as_str().len())?);
            bytes.put_slice(name.as_str().as_bytes());
            bytes.put_u32(u32::try_from(value.len())?);
            bytes.put_slice(value.as_bytes());
        }
        bytes.put_slice(body);
        Ok(bytes.freeze())
    }

    fn decode(&self, mut rest: Bytes) -> Result<CachedResponse, BoxError> {
        if rest.try_get_u8()? != VERSION {
            return Err(UNREADABLE.into());
        }
        let only_validates = rest.try_get_u8()? == 1;
        let status = StatusCode::from_u16(rest.try_get_u16()?)?;
        let age = rest.try_get_u64()?;
        let late = rest.try_get_u32()?;
        let count = usize::try_from(rest.try_get_u32()?)?;
        if count > rest.len() / SHORTEST_HEADER {
            return Err(UNREADABLE.into());
        }
        // Room for an `Age`, too.
        let mut headers = HeaderMap::try_with_capacity(count + 1)?;
        for _ in 0..count {
            let length = rest.try_get_u16()?.into();
            let name = HeaderName::from_bytes(rest.get(..length).ok_or(UNREADABLE)?)?;
            rest.advance(length);
            let length = usize::try_from(rest.try_get_u32()?)?;
            if length > rest.len() {
                return Err(UNREADABLE.into());
            }
            let value = HeaderValue::from_maybe_shared(rest.split_to(length))?;
            headers.try_append(name, value)?;
        }
        let head = Arc::new(ResponseHead { status, headers, only_validates });
        Ok(CachedResponse { head, body: rest, age, late })
    }

    fn is_for_loader_only(&self, bytes: &[u8]) -> bool {
        matches!(bytes, [VERSION, 1, ..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excessive_header_count_is_an_error() {
        let mut bytes = BytesMut::from(&[VERSION, 0, 0, 200][..]);
        bytes.put_bytes(0, 12);
        bytes.put_u32(u32::MAX);
        for _ in 0..40_000 {
            bytes.put_slice(b"\0\x01a\0\0\0\0");
        }
        assert!(ResponseCodec.decode(bytes.freeze()).is_err());
    }
}
