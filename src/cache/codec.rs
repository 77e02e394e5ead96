//! How values become bytes, and back.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::error::BoxError;

/// Turns values into the bytes that are stored, and back.
///
/// A loaded value is decoded from its bytes at once, and all callers get the decoded value. So the
/// leader, its followers and each hit get equal values, even if the codec is not exact.
///
/// Two processes that share a namespace must agree on the codec. If they differ, each process
/// recognizes the entries of the other by the tag, and counts them as missing.
///
/// The [guide](crate::guide#compressed-values) has an example.
pub trait Codec<V>: Send + Sync + 'static {
    /// Returns the number of the codec, which is part of each entry. The number must never change.
    /// Numbers under 256 are reserved for this crate.
    fn tag(&self) -> u16;

    /// Encodes a value.
    ///
    /// # Errors
    ///
    /// If the value has no encoding. The value is then returned to the callers and not stored, as a
    /// value that is [too large](super::Builder::max_value). The error goes to the log, and
    /// [`insert`](super::Cache::insert) returns it.
    fn encode(&self, value: &V) -> Result<Bytes, BoxError>;

    /// Decodes the bytes that [`encode`](Self::encode) made, in this process or another one.
    ///
    /// # Errors
    ///
    /// If the bytes are not a value. The entry then counts as missing. A loaded value whose own
    /// bytes cannot be decoded counts as a value without an encoding.
    fn decode(&self, bytes: Bytes) -> Result<V, BoxError>;

    /// Returns whether an encoded value that is no longer fresh is for the next loader alone. No
    /// caller is then served the stale value, not even in place of a failure. Defaults to false.
    #[doc(hidden)]
    fn is_for_loader_only(&self, _bytes: &[u8]) -> bool {
        false
    }
}

/// JSON, the default. JSON is readable in Redis, and tolerates fields that are added or removed.
///
/// Finite floats are exact. A `NaN`, an infinity and `Some(None)` become `null`. A `null` in an
/// `Option` is decoded as `None`. A `null` in a plain `f64` cannot be decoded, so such a value is
/// not stored.
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

/// Postcard. The encoding is small and fast, but each change of the type needs a new
/// [schema](super::Builder::schema).
///
/// The encoding does not name fields and variants. So it cannot decode a type with `#[serde(tag)]`,
/// `untagged`, `flatten` or `skip_serializing_if`.
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
        if !rest.is_empty() {
            return Err(format!("{} bytes are left over after the value", rest.len()).into());
        }
        Ok(value)
    }
}

/// Stores bytes as they are, such as `Bytes` or a `Vec<u8>`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl<V: Clone + Into<Bytes> + From<Bytes>> Codec<V> for Raw {
    fn tag(&self) -> u16 {
        3
    }

    fn encode(&self, value: &V) -> Result<Bytes, BoxError> {
        Ok(value.clone().into())
    }

    fn decode(&self, bytes: Bytes) -> Result<V, BoxError> {
        Ok(bytes.into())
    }
}
