use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::body::{PartialBody, in_bytes};

/// How the collection of a body ended.
pub(super) enum Collected<B: Body> {
    /// The body is complete.
    Whole(Bytes),
    /// The body is too large or too slow, or it has trailers.
    Unfit(PartialBody<B>),
    /// The body failed. Its error is the next item of the partial body.
    Failed(PartialBody<B>),
}

/// Collects a body of at most `limit` bytes that is complete by `deadline`.
///
/// A partial body keeps every byte that was read.
pub(super) async fn collect<B: Body>(body: B, limit: u64, deadline: Instant) -> Collected<B> {
    let mut body = Box::pin(body);
    let mut collected = BytesMut::new();
    let next = loop {
        let frame = match timeout_at(deadline, body.frame()).await {
            Ok(Some(Ok(frame))) => in_bytes(frame),
            Ok(Some(Err(error))) => break Some(Err(error)),
            Ok(None) => return Collected::Whole(collected.freeze()),
            Err(_elapsed) => break None,
        };
        match frame.into_data() {
            Ok(data) if (collected.len() as u64).saturating_add(data.len() as u64) <= limit => {
                append(&mut collected, data);
            }
            Ok(data) => break Some(Ok(Frame::data(data))),
            Err(trailers) => break Some(Ok(trailers)),
        }
    };
    let failed = matches!(next, Some(Err(_)));
    let partial = PartialBody { collected: collected.freeze(), next, rest: Some(body) };
    match failed {
        true => Collected::Failed(partial),
        false => Collected::Unfit(partial),
    }
}

/// Appends to one contiguous buffer. A list of small `Bytes` would take many times their size.
fn append(collected: &mut BytesMut, data: Bytes) {
    match data.try_into_mut() {
        Ok(data) if collected.is_empty() => *collected = data,
        Ok(data) => collected.extend_from_slice(&data),
        Err(data) => collected.extend_from_slice(&data),
    }
}
