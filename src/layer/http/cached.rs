use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header::AGE, response::Parts,
};
use thiserror::Error;

use super::rules;
use crate::{
    backend::Store,
    cache::{Builder, Cache, Codec, Source},
    error::BoxError,
};

/// An answer that is shared: its status, its headers and its whole body. Cheap to clone.
///
/// Headers that belong to one connection are not part of it, nor are extensions and the HTTP version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedResponse(Arc<Inner>);

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// How old it was when it was received, in seconds.
    age: u64,
    /// When it was received: milliseconds of wall-clock time, since 1970. It only tells clients about how
    /// old the answer is, and decides nothing here.
    received: u64,
}

impl CachedResponse {
    /// The status code.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// The headers, without `Age`.
    pub fn headers(&self) -> &HeaderMap {
        &self.0.headers
    }

    /// The whole body.
    pub fn body(&self) -> &Bytes {
        &self.0.body
    }

    /// None, if the body is not as long as the headers say.
    pub(super) fn new(parts: &Parts, body: Bytes, age: u64) -> Option<Self> {
        let mut headers = parts.headers.clone();
        match rules::content_length(&headers) {
            Ok(said) if said.is_none_or(|said| said == body.len() as u64) => {}
            _ => return None,
        }
        rules::strip(&mut headers);
        headers.remove(AGE);
        Some(Self(Arc::new(Inner { status: parts.status, headers, body, age, received: now() })))
    }

    /// The answer for one caller.
    pub(super) fn replay(&self, source: Source) -> Response<Bytes> {
        let inner = &self.0;
        let mut response = Response::new(inner.body.clone());
        *response.status_mut() = inner.status;
        *response.headers_mut() = inner.headers.clone();
        if inner.age > 0 || source == Source::Hit {
            let stored = Duration::from_millis(now().saturating_sub(inner.received));
            let age = inner.age.saturating_add(stored.as_secs());
            response.headers_mut().insert(AGE, age.into());
        }
        response
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Begins to build the cache for [`BellwetherLayer::http`](crate::BellwetherLayer::http): one of
/// [`CachedResponse`]s, with the [`ResponseCodec`].
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
    Cache::builder(backend).codec(ResponseCodec)
}

/// HTTP answers to bytes and back.
///
/// A version, status, age and time of receipt, the number of headers, each header with the length of its
/// name and of its value, and the body up to the end. Numbers are big-endian.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseCodec;

const VERSION: u8 = 1;

/// The bytes are not an answer of this version.
#[derive(Debug, Error)]
#[error("the bytes are not an HTTP answer in a format that this version reads")]
struct Undecodable;

impl Codec<CachedResponse> for ResponseCodec {
    fn tag(&self) -> u16 {
        4
    }

    fn encode(&self, value: &CachedResponse) -> Result<Bytes, BoxError> {
        let inner = &value.0;
        let headers: usize =
            inner.headers.iter().map(|(name, value)| 6 + name.as_str().len() + value.len()).sum();
        let mut bytes = BytesMut::with_capacity(23 + headers + inner.body.len());
        bytes.put_u8(VERSION);
        bytes.put_u16(inner.status.as_u16());
        bytes.put_u64(inner.age);
        bytes.put_u64(inner.received);
        bytes.put_u32(u32::try_from(inner.headers.len())?);
        for (name, value) in &inner.headers {
            bytes.put_u16(u16::try_from(name.as_str().len())?);
            bytes.put_slice(name.as_str().as_bytes());
            bytes.put_u32(u32::try_from(value.len())?);
            bytes.put_slice(value.as_bytes());
        }
        bytes.put_slice(&inner.body);
        Ok(bytes.freeze())
    }

    fn decode(&self, mut rest: Bytes) -> Result<CachedResponse, BoxError> {
        if rest.try_get_u8()? != VERSION {
            return Err(Undecodable.into());
        }
        let status = StatusCode::from_u16(rest.try_get_u16()?)?;
        let age = rest.try_get_u64()?;
        let received = rest.try_get_u64()?;
        let count = rest.try_get_u32()?;
        let mut headers = HeaderMap::new();
        for _ in 0..count {
            let length = rest.try_get_u16()?.into();
            let name = HeaderName::from_bytes(&take(&mut rest, length)?)?;
            let length = usize::try_from(rest.try_get_u32()?)?;
            let value = HeaderValue::from_maybe_shared(take(&mut rest, length)?)?;
            headers.try_append(name, value)?;
        }
        Ok(CachedResponse(Arc::new(Inner { status, headers, body: rest, age, received })))
    }
}

fn take(rest: &mut Bytes, length: usize) -> Result<Bytes, Undecodable> {
    match length <= rest.len() {
        true => Ok(rest.split_to(length)),
        false => Err(Undecodable),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn headers() -> impl Strategy<Value = HeaderMap> {
        // Any value that a header may have, text or not; few names, so that some are repeated.
        let value = vec(prop_oneof![Just(b'\t'), 32..127_u8, 128..=255_u8], 0..40);
        vec(("[a-c]|[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}", value), 0..12).prop_map(|headers| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
                map.append(name, HeaderValue::from_bytes(&value).unwrap());
            }
            map
        })
    }

    fn response() -> impl Strategy<Value = CachedResponse> {
        let body = vec(any::<u8>(), 0..200);
        (100..1000_u16, headers(), body, any::<u64>(), any::<u64>()).prop_map(
            |(status, headers, body, age, received)| {
                let status = StatusCode::from_u16(status).unwrap();
                let body = body.into();
                CachedResponse(Arc::new(Inner { status, headers, body, age, received }))
            },
        )
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(response in response()) {
            let bytes = ResponseCodec.encode(&response).unwrap();
            prop_assert_eq!(ResponseCodec.decode(bytes).unwrap(), response);
        }

        #[test]
        fn any_bytes_are_an_answer_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
            let _ = ResponseCodec.decode(bytes.into());
        }

        #[test]
        fn damaged_bytes_are_an_answer_or_an_error(
            response in response(),
            cut in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let bytes = ResponseCodec.encode(&response).unwrap();
            let _ = ResponseCodec.decode(bytes.slice(..cut.index(bytes.len())));
            let mut damaged = bytes.to_vec();
            let at = at.index(damaged.len());
            damaged[at] = byte;
            if let Ok(response) = ResponseCodec.decode(damaged.into()) {
                // What it says can be said to a client.
                let _ = response.replay(Source::Hit);
            }
        }

        #[test]
        fn different_answers_have_different_bytes(one in response(), other in response()) {
            prop_assume!(one != other);
            prop_assert_ne!(ResponseCodec.encode(&one).unwrap(), ResponseCodec.encode(&other).unwrap());
        }
    }

    #[test]
    fn a_header_count_beyond_all_bounds_is_an_error() {
        let mut bytes = BytesMut::from(&[VERSION, 0, 200][..]);
        bytes.put_bytes(0, 16);
        bytes.put_u32(u32::MAX);
        for _ in 0..40_000 {
            bytes.put_slice(b"\0\x01a\0\0\0\0");
        }
        assert!(ResponseCodec.decode(bytes.freeze()).is_err());
    }
}
