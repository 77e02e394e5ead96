//! A response as bytes.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use thiserror::Error;

use super::{CachedResponse, ResponseData, ResponseHead};
use crate::{cache::Codec, error::BoxError};

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
#[derive(Clone, Copy, Debug, Default)]
pub struct ResponseCodec;

const VERSION: u8 = 4;

/// The bytes of a header with a name of one byte and no value.
const SHORTEST_HEADER: usize = 7;

/// The bytes are not a response of this version.
#[derive(Debug, Error)]
#[error("the bytes are not an HTTP response in a format that this version reads")]
struct UnreadableResponse;

impl Codec<CachedResponse> for ResponseCodec {
    fn tag(&self) -> u16 {
        4
    }

    fn encode(&self, value: &CachedResponse) -> Result<Bytes, BoxError> {
        let ResponseData { head: stored, body } = &*value.0;
        let headers: usize =
            stored.headers.iter().map(|(name, value)| 6 + name.as_str().len() + value.len()).sum();
        let mut bytes = BytesMut::with_capacity(20 + headers + body.len());
        bytes.put_u8(VERSION);
        bytes.put_u8(stored.only_validates.into());
        bytes.put_u16(stored.status.as_u16());
        bytes.put_u64(stored.age);
        bytes.put_u32(stored.late);
        bytes.put_u32(u32::try_from(stored.headers.len())?);
        for (name, value) in &stored.headers {
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
            return Err(UnreadableResponse.into());
        }
        let only_validates = match rest.try_get_u8()? {
            0 => false,
            1 => true,
            _ => return Err(UnreadableResponse.into()),
        };
        let status = StatusCode::from_u16(rest.try_get_u16()?)?;
        let age = rest.try_get_u64()?;
        let late = rest.try_get_u32()?;
        let count = usize::try_from(rest.try_get_u32()?)?;
        if count > rest.len() / SHORTEST_HEADER {
            return Err(UnreadableResponse.into());
        }
        // Room for an `Age`, too.
        let mut headers = HeaderMap::try_with_capacity(count + 1)?;
        for _ in 0..count {
            let length = rest.try_get_u16()?.into();
            let name = HeaderName::from_bytes(rest.get(..length).ok_or(UnreadableResponse)?)?;
            rest.advance(length);
            let length = usize::try_from(rest.try_get_u32()?)?;
            let value = HeaderValue::from_maybe_shared(take(&mut rest, length)?)?;
            headers.try_append(name, value)?;
        }
        let head = ResponseHead { status, headers, age, only_validates, late };
        Ok(CachedResponse::new(head, rest))
    }

    fn is_for_loader_only(&self, bytes: &[u8]) -> bool {
        matches!(bytes, [VERSION, 1, ..])
    }
}

fn take(rest: &mut Bytes, length: usize) -> Result<Bytes, UnreadableResponse> {
    match length <= rest.len() {
        true => Ok(rest.split_to(length)),
        false => Err(UnreadableResponse),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn headers() -> impl Strategy<Value = HeaderMap> {
        // Values are any bytes that a header may have. The short names make some headers repeat.
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
        let terms = (any::<u64>(), any::<bool>(), any::<u32>());
        let fields = (100..1000_u16, headers(), body, terms);
        fields.prop_map(|(status, headers, body, (age, only_validates, late))| {
            let status = StatusCode::from_u16(status).unwrap();
            let head = ResponseHead { status, headers, age, only_validates, late };
            CachedResponse::new(head, body.into())
        })
    }

    proptest! {
        #[test]
        fn an_encoded_response_is_decoded(response in response()) {
            let bytes = ResponseCodec.encode(&response).unwrap();
            prop_assert_eq!(ResponseCodec.is_for_loader_only(&bytes), response.only_validates());
            prop_assert_eq!(ResponseCodec.decode(bytes).unwrap(), response);
        }

        #[test]
        fn any_bytes_are_a_response_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
            let _ = ResponseCodec.decode(bytes.into());
        }

        #[test]
        fn damaged_bytes_are_a_response_or_an_error(
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
                // A decoded response can be sent to a client.
                let _ = response.with_age(Some(1));
            }
        }

        #[test]
        fn different_responses_have_different_bytes(one in response(), other in response()) {
            prop_assume!(one != other);
            let bytes = |response| ResponseCodec.encode(&response).unwrap();
            prop_assert_ne!(bytes(one), bytes(other));
        }
    }

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
