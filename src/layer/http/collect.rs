use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::body::{Begun, in_bytes};

/// How the collecting of a body ended.
pub(super) enum Collected<B: Body> {
    /// Here it is.
    Whole(Bytes),
    /// It is too large or too slow, or it has trailers.
    Unfit(Begun<B>),
    /// It failed on the way; the error is what comes next.
    Failed(Begun<B>),
}

/// Collects a body of at most `limit` bytes that is complete in time. What was read of another one is
/// not lost.
pub(super) async fn collect<B: Body>(body: B, limit: u64, until: Instant) -> Collected<B> {
    let mut body = Box::pin(body);
    let mut collected = BytesMut::new();
    loop {
        let next = match timeout_at(until, body.frame()).await {
            Ok(Some(Ok(frame))) => match in_bytes(frame).into_data() {
                Ok(data) if (collected.len() as u64).saturating_add(data.len() as u64) <= limit => {
                    append(&mut collected, data);
                    continue;
                }
                Ok(data) => Some(Ok(http_body::Frame::data(data))),
                Err(trailers) => Some(Ok(trailers)),
            },
            Ok(Some(Err(error))) => Some(Err(error)),
            Ok(None) => return Collected::Whole(collected.freeze()),
            Err(_too_slow) => None,
        };
        let failed = matches!(next, Some(Err(_)));
        let begun = Begun { collected: collected.freeze(), next, rest: Some(body) };
        return match failed {
            true => Collected::Failed(begun),
            false => Collected::Unfit(begun),
        };
    }
}

/// One piece, so that many small ones do not take many times their size.
fn append(collected: &mut BytesMut, data: Bytes) {
    match data.try_into_mut() {
        Ok(data) if collected.is_empty() => *collected = data,
        Ok(data) => collected.extend_from_slice(&data),
        Err(data) => collected.extend_from_slice(&data),
    }
}
