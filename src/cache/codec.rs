//! Values to bytes and back.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::error::BoxError;

/// Turns values into the bytes that are stored, and back.
///
/// Two processes that share a namespace must agree on it; where they do not, the tag tells them apart and
/// each counts the other's entries as missing.
pub trait Codec<V>: Send + Sync + 'static {
    /// A number that stands in each entry. Those under 256 are taken by this crate.
    fn tag(&self) -> u16;

    /// The bytes of a value.
    ///
    /// # Errors
    ///
    /// If the value has no encoding; it is then returned to the callers and not stored, as one that is
    /// [too large](super::Builder::max_value).
    fn encode(&self, value: &V) -> Result<Bytes, BoxError>;

    /// The value of bytes that [`encode`](Self::encode) made, here or elsewhere.
    ///
    /// # Errors
    ///
    /// If the bytes are not a value; the entry then counts as missing.
    fn decode(&self, bytes: Bytes) -> Result<V, BoxError>;
}

/// JSON, the default: readable in Redis, and tolerant of fields that come and go.
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl<V: Serialize + DeserializeOwned> Codec<V> for Json {
    fn tag(&self) -> u16 {
        1
    }

    fn encode(&self, value: &V) -> Result<Bytes, BoxError> {
        Ok(serde_json::to_vec(value)?.into())
    }

    fn decode(&self, bytes: Bytes) -> Result<V, BoxError> {
        Ok(serde_json::from_slice(&bytes)?)
    }
}

/// Postcard: small and fast, but any change of the type is a new [schema](super::Builder::schema).
#[cfg(feature = "postcard")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Postcard;

#[cfg(feature = "postcard")]
impl<V: Serialize + DeserializeOwned> Codec<V> for Postcard {
    fn tag(&self) -> u16 {
        2
    }

    fn encode(&self, value: &V) -> Result<Bytes, BoxError> {
        Ok(postcard::to_stdvec(value)?.into())
    }

    fn decode(&self, bytes: Bytes) -> Result<V, BoxError> {
        let (value, rest) = postcard::take_from_bytes(&bytes)?;
        match rest.is_empty() {
            true => Ok(value),
            false => Err("bytes are left over".into()),
        }
    }
}

/// Bytes as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Codec<Bytes> for Raw {
    fn tag(&self) -> u16 {
        3
    }

    fn encode(&self, value: &Bytes) -> Result<Bytes, BoxError> {
        Ok(value.clone())
    }

    fn decode(&self, bytes: Bytes) -> Result<Bytes, BoxError> {
        Ok(bytes)
    }
}

impl Codec<Vec<u8>> for Raw {
    fn tag(&self) -> u16 {
        3
    }

    fn encode(&self, value: &Vec<u8>) -> Result<Bytes, BoxError> {
        Ok(Bytes::copy_from_slice(value))
    }

    fn decode(&self, bytes: Bytes) -> Result<Vec<u8>, BoxError> {
        Ok(bytes.into())
    }
}
