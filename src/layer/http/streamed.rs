//! A response that is shared while its body arrives.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, Response, response::Parts};
use http_body::Body;
use tokio::time::Instant;

use super::{
    body::shared::{BodyLimits, Missed, NotCollected, Reader, SharedBody},
    cached::{CachedResponse, ResponseHead},
    fields::framing::content_length,
    responses::Freshness,
    status::Forward,
    variants::{Belongs, Marker},
};
use crate::{error::BoxError, time::after};

/// The head of a response, and its body as far as it has arrived.
pub(super) struct StreamedResponse {
    head: ResponseHead,
    body: Arc<SharedBody>,
    belongs: Belongs,
    /// Why the request was sent that it answers.
    forward: Forward,
    received: Instant,
    /// When the response is no longer fresh. `None` if it is for those only that ask meanwhile.
    fresh_until: Option<Instant>,
}

/// Why a caller does not read a response.
pub(super) enum Apart {
    /// Its request selects another response, below this marker.
    Varies(Marker),
    /// It came too late.
    Missed(Missed),
}

impl StreamedResponse {
    /// Shares a response whose headers allow it. At most `most` bytes are kept for slow readers.
    pub(super) fn new<B>(
        parts: &Parts,
        body: B,
        freshness: &Freshness,
        most: u64,
        belongs: Belongs,
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
            body: SharedBody::new(body, announced, most),
            belongs,
            forward,
            received,
            fresh_until: lifetime.map(|lifetime| after(received, lifetime)),
        })
    }

    pub(super) fn forward(&self) -> Forward {
        self.forward
    }

    /// Returns the response for the caller whose request it answers.
    pub(super) fn own(&self) -> Result<Response<Reader>, Missed> {
        Ok(self.head.response(self.body.reader(true)?, self.head.age()))
    }

    /// Returns the response for another caller, with these headers.
    pub(super) fn follow(&self, request: &HeaderMap) -> Result<Response<Reader>, Apart> {
        if let Belongs::Below(selected) = &self.belongs
            && let Some(marker) = selected.misses(request)
        {
            return Err(Apart::Varies(marker.clone()));
        }
        if self.fresh_until.is_some_and(|until| until <= Instant::now()) {
            return Err(Apart::Missed(Missed::Start));
        }
        let age = self.head.age().saturating_add(self.received.elapsed().as_secs());
        let reader = self.body.reader(false).map_err(Apart::Missed)?;
        Ok(self.head.response(reader, age))
    }

    /// Collects the body within its limits. The lifetime of the response began with its head.
    pub(super) async fn collect(
        &self,
        limits: &BodyLimits,
        freshness: Freshness,
    ) -> Result<(CachedResponse, Freshness), NotCollected> {
        let bytes = self.body.collect(limits).await?;
        let took = self.received.elapsed();
        let lifetime = freshness.lifetime.saturating_sub(took);
        let late = self.fresh_until.map_or(Duration::ZERO, |until| until.elapsed());
        let head = self.head.aged(took.as_secs()).late_by(late);
        Ok((CachedResponse::new(head, bytes), Freshness { lifetime, ..freshness }))
    }
}
