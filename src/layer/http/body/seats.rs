//! The places of the readers of a shared body.

use std::task::Waker;

#[derive(Default)]
pub(super) struct Seats(Vec<Option<Seat>>);

struct Seat {
    /// How many bytes the reader has read.
    place: u64,
    /// The reader, if it waits.
    waker: Option<Waker>,
}

impl Seats {
    /// Returns the seat of a new reader at the start.
    pub(super) fn take(&mut self) -> usize {
        let seat = Some(Seat { place: 0, waker: None });
        match self.0.iter().position(Option::is_none) {
            Some(free) => {
                self.0[free] = seat;
                free
            }
            None => {
                self.0.push(seat);
                self.0.len() - 1
            }
        }
    }

    /// Frees a seat, and returns the waker of its reader.
    pub(super) fn free(&mut self, seat: usize) -> Option<Waker> {
        self.0.get_mut(seat)?.take()?.waker
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    pub(super) fn place(&self, seat: usize) -> u64 {
        self.0.get(seat).and_then(Option::as_ref).map_or(u64::MAX, |seat| seat.place)
    }

    pub(super) fn go_to(&mut self, seat: usize, place: u64) {
        if let Some(Some(seat)) = self.0.get_mut(seat) {
            seat.place = place;
        }
    }

    /// Returns the place of the slowest reader.
    pub(super) fn slowest(&self) -> Option<u64> {
        self.0.iter().flatten().map(|seat| seat.place).min()
    }

    /// Lets a reader wait, and returns its last waker if that is another one.
    pub(super) fn wait(&mut self, seat: usize, waker: &Waker) -> Option<Waker> {
        let last = &mut self.0.get_mut(seat)?.as_mut()?.waker;
        match last {
            Some(last) if last.will_wake(waker) => None,
            last => last.replace(waker.clone()),
        }
    }

    /// Takes the wakers of all readers that wait.
    pub(super) fn wakers(&mut self) -> Vec<Waker> {
        self.0.iter_mut().flatten().filter_map(|seat| seat.waker.take()).collect()
    }
}
