//! The bytes of a body that several readers read, each at its own pace. They are here once.

use std::{collections::VecDeque, mem};

use bytes::{Bytes, BytesMut};

/// A piece from this size on is kept as it came. Smaller ones are joined, because a list of small
/// `Bytes` takes many times their size.
const WORTH_KEEPING: usize = 4 << 10;
/// The size up to which small pieces are joined.
const JOINED: usize = 64 << 10;

/// The bytes of a body that are kept: from [`start`](Self::start) to [`received`](Self::received).
#[derive(Default)]
pub(super) struct Buffer {
    chunks: VecDeque<Chunk>,
    /// Small pieces that follow the chunks. A reader copies what it needs of them.
    tail: BytesMut,
    received: u64,
}

struct Chunk {
    start: u64,
    bytes: Bytes,
}

/// The bytes at a place of the body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Data(Bytes),
    /// The place is the end of what was received.
    Nothing,
    /// The bytes at this place are no longer kept.
    Gone,
}

impl Buffer {
    /// Returns how many bytes were received.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Returns the place of the first byte that is kept.
    pub(super) fn start(&self) -> u64 {
        self.chunks.front().map_or_else(|| self.tail_start(), |chunk| chunk.start)
    }

    /// Returns the end of the oldest bytes that are freed together.
    pub(super) fn first_end(&self) -> u64 {
        self.chunks.front().map_or(self.received, Chunk::end)
    }

    /// Returns how many bytes are kept.
    pub(super) fn held(&self) -> u64 {
        self.received - self.start()
    }

    pub(super) fn push(&mut self, data: Bytes) {
        let is_first = self.received == 0;
        let length = data.len() as u64;
        if is_first || data.len() >= WORTH_KEEPING {
            self.seal();
            self.keep(data);
        } else {
            self.tail.extend_from_slice(&data);
        }
        self.received += length;
        if self.tail.len() >= JOINED {
            self.seal();
        }
    }

    /// Returns the bytes from a place on, as far as they lie together.
    pub(super) fn at(&self, place: u64) -> Piece {
        if place >= self.received {
            return Piece::Nothing;
        }
        if place < self.start() {
            return Piece::Gone;
        }
        let tail = self.tail_start();
        if place >= tail {
            return Piece::Data(Bytes::copy_from_slice(&self.tail[(place - tail) as usize..]));
        }
        let after = self.chunks.partition_point(|chunk| chunk.start <= place);
        match after.checked_sub(1).and_then(|at| self.chunks.get(at)) {
            Some(chunk) => Piece::Data(chunk.bytes.slice((place - chunk.start) as usize..)),
            None => Piece::Gone,
        }
    }

    /// Frees the chunks that end at this place or before.
    pub(super) fn free_to(&mut self, place: u64) {
        while let Some(chunk) = self.chunks.front()
            && chunk.end() <= place
        {
            self.chunks.pop_front();
        }
        if place >= self.received {
            // As bytes of its own, because others are taken from the rest of its memory.
            self.tail = BytesMut::new();
        }
    }

    /// Frees the oldest chunks, until at most `limit` bytes and one chunk are kept.
    pub(super) fn shrink_to(&mut self, limit: u64) {
        while self.held() > limit && !self.chunks.is_empty() {
            self.chunks.pop_front();
        }
    }

    /// Returns the whole body, and keeps it as one piece. `None` if its start is no longer kept.
    pub(super) fn whole(&mut self) -> Option<Bytes> {
        if self.start() > 0 {
            return None;
        }
        self.seal();
        if self.chunks.len() > 1 {
            let mut joined = BytesMut::with_capacity(usize::try_from(self.received).ok()?);
            self.chunks.iter().for_each(|chunk| joined.extend_from_slice(&chunk.bytes));
            self.chunks.clear();
            self.keep_at(0, joined.freeze());
        }
        Some(self.chunks.front().map(|chunk| chunk.bytes.clone()).unwrap_or_default())
    }

    fn tail_start(&self) -> u64 {
        self.received - self.tail.len() as u64
    }

    /// Turns the small pieces into a chunk.
    fn seal(&mut self) {
        let (start, bytes) = (self.tail_start(), mem::take(&mut self.tail));
        self.keep_at(start, bytes.freeze());
    }

    fn keep(&mut self, bytes: Bytes) {
        self.keep_at(self.received, bytes);
    }

    fn keep_at(&mut self, start: u64, bytes: Bytes) {
        if !bytes.is_empty() {
            self.chunks.push_back(Chunk { start, bytes });
        }
    }
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn rest(buffer: &Buffer, mut place: u64) -> Vec<u8> {
        let mut read = Vec::new();
        while let Piece::Data(data) = buffer.at(place) {
            assert!(!data.is_empty());
            place += data.len() as u64;
            read.extend_from_slice(&data);
        }
        assert_eq!(buffer.at(place), Piece::Nothing);
        read
    }

    proptest! {
        #[test]
        fn each_reader_reads_the_same_bytes(
            sizes in vec(prop_oneof![0..40_usize, 3000..6000_usize], 0..60),
            from in any::<prop::sample::Index>(),
        ) {
            let all: Vec<u8> = (0..sizes.iter().sum::<usize>()).map(|at| (at * 31) as u8).collect();
            let (mut buffer, mut given) = (Buffer::default(), 0);
            for size in sizes {
                buffer.push(Bytes::copy_from_slice(&all[given..given + size]));
                given += size;
                prop_assert_eq!(buffer.received(), given as u64);
            }
            let from = from.index(all.len() + 1);
            prop_assert_eq!(rest(&buffer, from as u64), &all[from..]);
            prop_assert_eq!(buffer.whole().unwrap(), &all);
            prop_assert_eq!(rest(&buffer, from as u64), &all[from..]);
            buffer.free_to(from as u64);
            prop_assert_eq!(rest(&buffer, from as u64), &all[from..]);
        }
    }

    #[test]
    fn many_small_pieces_are_few_chunks() {
        let mut buffer = Buffer::default();
        (0..1 << 20).for_each(|_| buffer.push(Bytes::from_static(b"x")));
        assert!(buffer.chunks.len() <= 17, "{}", buffer.chunks.len());
        assert_eq!(buffer.held(), 1 << 20);
    }

    #[test]
    fn what_was_freed_is_gone() {
        let mut buffer = Buffer::default();
        let chunk = Bytes::from(vec![7; WORTH_KEEPING]);
        (0..4).for_each(|_| buffer.push(chunk.clone()));
        let size = WORTH_KEEPING as u64;
        buffer.free_to(2 * size - 1);
        assert_eq!((buffer.start(), buffer.held()), (size, 3 * size));
        buffer.shrink_to(2 * size);
        assert_eq!((buffer.at(size), buffer.at(2 * size)), (Piece::Gone, Piece::Data(chunk)));
        assert_eq!((buffer.whole(), buffer.at(4 * size)), (None, Piece::Nothing));
        buffer.free_to(4 * size);
        assert_eq!((buffer.held(), buffer.received()), (0, 4 * size));
    }
}
