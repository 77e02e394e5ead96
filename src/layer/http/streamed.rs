//! A response that is shared while its body arrives.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, Response, response::Parts};
use http_body::Body;
use tokio::time::Instant;

use super::{
    BodyError,
    body::{
        board::Missed,
        collect::{BodyLimits, Collected, collect},
        shared::{Reader, SharedBody},
    },
    cached::{CachedResponse, ResponseHead},
    fields::framing::content_length,
    responses::Freshness,
    status::Forward,
    variants::{Readers, selector::Selector},
};
use crate::{error::BoxError, time::after};

/// The head of a response, and its body as far as it has arrived.
pub(super) struct StreamedResponse {
    head: ResponseHead,
    body: Arc<SharedBody>,
    readers: Readers,
    /// Why the request was sent that it answers.
    forward: Forward,
    received: Instant,
    /// When the response is no longer fresh. `None` if it is for those only that ask meanwhile.
    fresh_until: Option<Instant>,
}

/// Why a caller does not read a response.
pub(super) enum Apart {
    /// Its request selects another variant.
    Varies(Selector),
    /// It came too late.
    Missed(Missed),
}

/// The end of a streamed response.
pub(super) enum Streamed {
    Whole(CachedResponse, Freshness),
    Unfit,
    Unread,
    Broken(BodyError),
}

impl StreamedResponse {
    /// Shares a response whose headers allow it.
    pub(super) fn new<B>(
        parts: &Parts,
        body: B,
        freshness: &Freshness,
        limit: u64,
        readers: Readers,
        forward: Forward,
    ) -> Arc<Self>
    where
        B: Body + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let received = Instant::now();
        let announced = content_length(&parts.headers).unwrap_or_default();
        let lifetime = Some(freshness.lifetime).filter(|lifetime| !lifetime.is_zero());
        Arc::new(Self {
            head: ResponseHead::new(parts, freshness.age)
                .only_validating(freshness.stale.only_validates()),
            body: SharedBody::new(body, announced, limit),
            readers,
            forward,
            received,
            fresh_until: lifetime.map(|lifetime| after(received, lifetime)),
        })
    }

    /// Returns whether it takes the place of a stored response that is no longer fresh.
    pub(super) fn replaces_stale(&self) -> bool {
        self.forward == Forward::Stale
    }

    /// Returns the response for the caller whose request it answers.
    pub(super) fn own(&self) -> Result<Response<Reader>, Missed> {
        Ok(self.head.response(self.body.reader(true)?, self.head.age()))
    }

    /// Returns the response for another caller, with these headers.
    pub(super) fn follow(&self, request: &HeaderMap) -> Result<Response<Reader>, Apart> {
        match &self.readers {
            Readers::All => {}
            Readers::Selecting { resource, selector, variant } => {
                if selector.key(resource, request) != *variant {
                    return Err(Apart::Varies(selector.clone()));
                }
            }
            Readers::Own => return Err(Apart::Missed(Missed::Start)),
        }
        let now = Instant::now();
        if self.fresh_until.is_some_and(|until| until <= now) {
            return Err(Apart::Missed(Missed::Start));
        }
        let age = self.head.age().saturating_add(self.received.elapsed().as_secs());
        let reader = self.body.reader(false).map_err(Apart::Missed)?;
        Ok(self.head.response(reader, age))
    }

    /// Collects the body within its limits. The lifetime of the response began with its head.
    pub(super) async fn collect(&self, limits: &BodyLimits, freshness: Freshness) -> Streamed {
        let bytes = match collect(&self.body, limits).await {
            Collected::Whole(bytes) => bytes,
            Collected::Unfit => return Streamed::Unfit,
            Collected::Unread => return Streamed::Unread,
            Collected::Broken(error) => return Streamed::Broken(error),
        };
        let took = self.received.elapsed();
        let lifetime = freshness.lifetime.saturating_sub(took);
        let late = self.fresh_until.map_or(Duration::ZERO, |until| until.elapsed());
        let head = self.head.aged(took.as_secs()).late_by(late);
        Streamed::Whole(CachedResponse::new(head, bytes), Freshness { lifetime, ..freshness })
    }
}
