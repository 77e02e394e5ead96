//! The tag number of a namespace, and when its tags ended.

use tokio::time::Instant;

use super::{Data, Expiry};
use crate::{
    backend::{TAG_LIFE, TagEnd, TagEnds},
    key::Name,
    time::after,
};

impl Data {
    /// Returns the last tag number. The first one is the time, so that it exceeds those of an
    /// earlier life of the process.
    pub(in super::super) fn tag_number(&mut self, tags: &Name, now: Instant) -> u64 {
        let clock = self.clock(now);
        *self.tag_numbers.entry(tags.prefix().clone()).or_insert(clock)
    }

    pub(in super::super) fn tag_ends(&mut self, tags: &Name, tag: &str, now: Instant) -> TagEnds {
        self.expire(now);
        let key = (tags.prefix().clone(), tag.into());
        self.tag_ends.get(&key).map_or(TagEnds::default(), |(ends, _)| *ends)
    }

    /// Gives a tag the next number, and returns it.
    pub(in super::super) fn end_tag(
        &mut self,
        tags: &Name,
        tag: &str,
        end: TagEnd,
        now: Instant,
    ) -> u64 {
        let number = self.clock(now).max(self.tag_number(tags, now) + 1);
        let ends = self.tag_ends(tags, tag, now).with(end, number);
        self.tag_numbers.insert(tags.prefix().clone(), number);
        let (key, forgotten) = ((tags.prefix().clone(), tag.into()), after(now, TAG_LIFE));
        if let Some((_, before)) = self.tag_ends.insert(Clone::clone(&key), (ends, forgotten)) {
            self.expiries.remove(&(before, Expiry::Tag(Clone::clone(&key))));
        }
        self.expiries.insert((forgotten, Expiry::Tag(key)));
        number
    }
}
