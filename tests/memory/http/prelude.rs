//! What most tests of the HTTP layer use.

pub(crate) use axum::body::Body;
pub(crate) use bellwether::{
    BellwetherLayer, http_cache,
    layer::{CachedResponse, Http, Policy},
};
pub(crate) use bytes::Bytes;
pub(crate) use http::{HeaderMap, Request, Response, StatusCode};
pub(crate) use http_body_util::BodyExt;
pub(crate) use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};

pub(crate) use super::origin::*;
pub(crate) use crate::prelude::*;
