//! One rebuild in the whole fleet.
#![forbid(unsafe_code)]

pub mod backend;
pub mod entry;
pub mod error;
pub mod key;
pub mod lease;

pub use self::{
    backend::MemoryBackend,
    error::{BoxError, Error, ErrorKind},
    key::Key,
};
