//! One rebuild in the whole fleet.
#![forbid(unsafe_code)]

pub mod backend;
pub mod cache;
pub mod entry;
pub mod error;
mod flight;
pub mod key;
pub mod lease;
pub mod lock;
mod observe;
mod time;

#[cfg(feature = "redis")]
pub use self::backend::RedisBackend;
pub use self::{
    backend::MemoryBackend,
    cache::Cache,
    error::{BoxError, Error, ErrorKind},
    key::Key,
    lock::Locks,
};
