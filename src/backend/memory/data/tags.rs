//! The ends of tags. Each has the prefix of a name for its namespace and its tag.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Data, Expiry};
use crate::{
    backend::{TAG_LIFE, TagEnd, TagEnds},
    time::after,
};

impl Data {
    pub(in super::super) fn tag_ends(&mut self, tag: &str, now: Instant) -> TagEnds {
        self.expire(now);
        self.tag_ends.get(tag).map_or(TagEnds::default(), |(ends, _)| *ends)
    }

    /// Gives a tag the next number, and returns it.
    pub(in super::super) fn end_tag(&mut self, tag: Arc<str>, end: TagEnd, now: Instant) -> u64 {
        self.tag_number = self.clock(now).max(self.tag_number + 1);
        let ends = self.tag_ends(&tag, now).with(end, self.tag_number);
        let forgotten = after(now, TAG_LIFE);
        if let Some((_, before)) = self.tag_ends.insert(tag.clone(), (ends, forgotten)) {
            self.expiries.remove(&(before, Expiry::Tag(tag.clone())));
        }
        self.expiries.insert((forgotten, Expiry::Tag(tag)));
        self.tag_number
    }
}
