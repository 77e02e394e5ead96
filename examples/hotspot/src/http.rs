//! A small HTTP client that keeps its connections alive.

use axum::{
    body::Body,
    http::{HeaderValue, Request, StatusCode, header},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper_util::{
    client::legacy::{Client as Pool, connect::HttpConnector},
    rt::TokioExecutor,
};

use crate::Failure;

#[derive(Clone)]
pub(crate) struct Client {
    pool: Pool<HttpConnector, Body>,
}

impl Client {
    pub(crate) fn new() -> Self {
        Self { pool: Pool::builder(TokioExecutor::new()).build_http() }
    }

    /// Sends a `GET` and reads the whole answer. Any status but 200 is a failure.
    pub(crate) async fn get(
        &self,
        url: &str,
        host: Option<&'static str>,
    ) -> Result<Bytes, Failure> {
        let mut request = Request::get(url);
        if let Some(host) = host {
            request = request.header(header::HOST, HeaderValue::from_static(host));
        }
        let answer = self.pool.request(request.body(Body::empty())?).await?;
        match answer.status() {
            StatusCode::OK => Ok(answer.into_body().collect().await?.to_bytes()),
            status => Err(format!("{url} answered {status}").into()),
        }
    }
}
