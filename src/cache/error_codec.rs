//! How the errors of loaders become bytes, so that other processes get the same error.

use std::{error::Error as StdError, marker::PhantomData, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::Codec;
use crate::{
    backend::{BackOff, Failure},
    error::{BoxError, Error, ErrorKind},
};

/// The codec of a cache for the errors of its loaders, without its type.
pub(super) trait ErrorCodec: Send + Sync {
    /// Returns the bytes of the error that a loader returned. Returns `None` if it is of another
    /// type, or has no encoding.
    fn encode(&self, error: &Error) -> Option<Bytes>;

    /// Returns the error that [`encode`](Self::encode) read in another process.
    fn decode(&self, bytes: Bytes) -> Option<BoxError>;
}

/// The codec `C` for errors of the type `E`.
pub(super) struct Of<E, C> {
    codec: C,
    error: PhantomData<fn() -> E>,
}

impl<E, C> Of<E, C> {
    pub(super) fn new(codec: C) -> Self {
        Self { codec, error: PhantomData }
    }
}

impl<E, C> ErrorCodec for Of<E, C>
where
    E: StdError + Send + Sync + 'static,
    C: Codec<E>,
{
    fn encode(&self, error: &Error) -> Option<Bytes> {
        let encoded = self.codec.encode(error.load_ref::<E>()?).ok()?;
        let mut bytes = BytesMut::with_capacity(2 + encoded.len());
        bytes.put_u16(self.codec.tag());
        bytes.put_slice(&encoded);
        Some(bytes.freeze())
    }

    fn decode(&self, mut bytes: Bytes) -> Option<BoxError> {
        if bytes.try_get_u16().ok()? != self.codec.tag() {
            return None;
        }
        Some(Box::new(self.codec.decode(bytes).ok()?))
    }
}

/// Returns the failure of a load, as other processes are told of it.
pub(super) fn failure(
    codec: Option<&dyn ErrorCodec>,
    fence: u64,
    error: &Error,
    back_off: Option<BackOff>,
) -> Failure {
    let wait = back_off.map_or(Duration::ZERO, |back_off| back_off.wait);
    let failure = Failure::new(fence, error).with_wait(wait);
    match codec.and_then(|codec| codec.encode(error)) {
        Some(encoded) => failure.with_encoded(encoded),
        None => failure,
    }
}

/// Returns the error of a load that failed in another process.
pub(super) fn error(codec: Option<&dyn ErrorCodec>, failure: Failure) -> Error {
    let wait = failure.wait();
    let error = match decoded(codec, &failure) {
        Some(error) => {
            Error::with_source(ErrorKind::Load, "the load failed in another process", error)
        }
        None => failure.into_error(),
    };
    match wait {
        Some(wait) => error.with_retry_after(wait),
        None => error,
    }
}

/// Returns the error of a key that backs off for this time after a failure.
pub(super) fn backing_off(
    codec: Option<&dyn ErrorCodec>,
    failure: &Failure,
    wait: Duration,
) -> Error {
    let words = "the load failed, and its key backs off";
    let (kind, source) = match decoded(codec, failure) {
        Some(error) => (ErrorKind::Load, error),
        None => (ErrorKind::BackingOff, failure.message().into()),
    };
    Error::with_source(kind, words, source).with_retry_after(wait)
}

fn decoded(codec: Option<&dyn ErrorCodec>, failure: &Failure) -> Option<BoxError> {
    codec.and_then(|codec| codec.decode(failure.encoded().clone()))
}
