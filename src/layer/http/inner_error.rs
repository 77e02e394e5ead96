use bytes::{Buf, Bytes};
use http::StatusCode;
use thiserror::Error;

use crate::{cache::Codec, error::BoxError};

/// The error of a load to which the inner service answered with a failure.
///
/// [`load_ref`](crate::Error::load_ref) returns it in every process, because the cache of
/// [`http_cache`](crate::http_cache) has an [error codec](crate::cache::Builder::error_codec) for
/// it. It has nothing but the status, because the response may be for one user only.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{
///     BellwetherLayer, MemoryBackend, cache::AfterFailure, http_cache, layer::InnerServiceError,
/// };
/// use http::StatusCode;
///
/// let cache = http_cache(MemoryBackend::new())
///     .failure_policy(|error| match error.load_ref::<InnerServiceError>()?.status() {
///         // The service has a pool of connections that fills once a second.
///         StatusCode::BAD_GATEWAY => Some(AfterFailure::RetryAfter(Duration::from_secs(1))),
///         _ => None,
///     })
///     .build()?;
/// let layer = BellwetherLayer::http(cache);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[error("the inner service answered {status}")]
pub struct InnerServiceError {
    status: StatusCode,
}

impl InnerServiceError {
    pub(super) fn new(status: StatusCode) -> Self {
        Self { status }
    }

    /// Returns the status of the response: `500`, `502`, `503` or `504`.
    pub fn status(&self) -> StatusCode {
        self.status
    }
}

/// Returns whether a status says that the inner service failed.
pub(super) fn is_failure(status: StatusCode) -> bool {
    matches!(status.as_u16(), 500 | 502 | 503 | 504)
}

/// Encodes an [`InnerServiceError`] as its status, a big-endian `u16`.
pub(super) struct InnerServiceErrorCodec;

impl Codec<InnerServiceError> for InnerServiceErrorCodec {
    fn tag(&self) -> u16 {
        5
    }

    fn encode(&self, error: &InnerServiceError) -> Result<Bytes, BoxError> {
        Ok(Bytes::copy_from_slice(&error.status.as_u16().to_be_bytes()))
    }

    fn decode(&self, mut bytes: Bytes) -> Result<InnerServiceError, BoxError> {
        match StatusCode::from_u16(bytes.try_get_u16()?)? {
            status if is_failure(status) => Ok(InnerServiceError::new(status)),
            status => Err(format!("{status} is no failure").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_status_of_a_failure_is_decoded() {
        let decode = |bytes: Vec<u8>| InnerServiceErrorCodec.decode(bytes.into());
        for status in [500, 502, 503, 504] {
            let error = InnerServiceError::new(StatusCode::from_u16(status).unwrap());
            let bytes = InnerServiceErrorCodec.encode(&error).unwrap();
            assert_eq!(decode(bytes.to_vec()).unwrap(), error);
        }
        for bytes in [&[][..], &[1], &[0, 200], &[0, 101], &[2, 0x57], &[0xff, 0xff]] {
            assert!(decode(bytes.to_vec()).is_err(), "{bytes:?}");
        }
    }
}
