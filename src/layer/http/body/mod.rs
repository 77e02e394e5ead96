//! The body that a caller receives. Several callers may read a body of the inner service while the
//! body arrives, each at its own pace.
//!
//! | part | what it does |
//! |---|---|
//! | [`Collector`] | **polls** the body of the inner service, and nothing else does |
//! | [`Reader`] | **reads** what has arrived, one for each caller |
//! | [`SharedBody`] | keeps what has arrived, and **frees** what all readers have read |
//! | [`Collector`], [`Backlog`] | **give up**: the body, or a reader that is too slow |
//!
//! At first the load collects the body, within [limits](BodyLimits), so that it can be stored
//! ([`Collector::collect`]). All bytes are kept meanwhile, and readers may join. Once the load
//! stops, a task polls the body as fast as the fastest reader wants, and bytes that all have read
//! are freed ([`Collector::serve`]).
//!
//! What is kept for slow readers then is the backlog. While the backlog of a body is full, the
//! other readers wait for the slowest reader, for no longer than they have read. So a slow reader
//! may hold the other readers to half of their pace. After that the slowest reader gets an error.
//! While the backlog of the layer is full, the reader gets an error that has taken nothing for
//! longest.

mod backlog;
mod collector;
mod error;
mod reader;
mod response_body;
mod service_body;
mod shared_body;

pub(super) use self::{
    backlog::Backlog,
    collector::{Collector, NotCollected},
    reader::NotJoined,
    response_body::LayerBody,
    service_body::ServiceBody,
    shared_body::{BodyLimits, SharedBody},
};
pub use self::{error::BodyError, response_body::ResponseBody};

#[cfg(doc)]
use self::reader::Reader;
