//! The wakers of the followers that wait.
//!
//! They lie side by side, so that waking them is a walk through an array. `Notify` keeps its list
//! in the memory of the waiters: with thousands of them, each step is a miss of the processor's
//! cache.

use std::{mem, task::Waker};

#[derive(Default)]
pub(super) struct Wakers {
    places: Vec<Option<Waker>>,
    free: Vec<u32>,
    /// How often all were woken. An older registration is gone.
    woken: u32,
}

/// Where a waker is, and since which wake-up.
#[derive(Clone, Copy)]
pub(super) struct Registration {
    at: u32,
    woken: u32,
}

/// Wakers that were taken out. They are woken without the lock that they were under.
pub(super) struct Taken(Vec<Option<Waker>>);

impl Wakers {
    /// Registers a waker, or keeps its registration. Returns the one that it replaces, to be
    /// dropped without a lock.
    pub(super) fn register(
        &mut self,
        registration: &mut Option<Registration>,
        waker: &Waker,
    ) -> Option<Waker> {
        let kept = registration.filter(|it| it.woken == self.woken);
        match kept.and_then(|it| self.places.get_mut(it.at as usize)) {
            Some(Some(last)) if last.will_wake(waker) => None,
            Some(place) => place.replace(waker.clone()),
            None => {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.places.push(None);
                    self.places.len() as u32 - 1
                });
                self.places[at as usize] = Some(waker.clone());
                *registration = Some(Registration { at, woken: self.woken });
                None
            }
        }
    }

    /// Ends a registration, if there is one. Returns its waker, to be dropped without a lock.
    pub(super) fn leave(&mut self, registration: Option<Registration>) -> Option<Waker> {
        let Registration { at, .. } = registration.filter(|it| it.woken == self.woken)?;
        self.free.push(at);
        self.places.get_mut(at as usize)?.take()
    }

    pub(super) fn take(&mut self) -> Taken {
        self.woken = self.woken.wrapping_add(1);
        self.free.clear();
        Taken(mem::take(&mut self.places))
    }
}

impl Taken {
    /// Wakes them.
    ///
    /// The first one leads the next flight if this one had nothing for it. It is not the one that
    /// came right behind the leader: requests that come one after another are often alike.
    pub(super) fn wake(mut self) {
        // So the leaders of several flights in a row come from different parts of the crowd.
        let first = self.0.len() * 5 / 13;
        let (earlier, later) = self.0.split_at_mut(first);
        for waker in later.iter_mut().chain(earlier) {
            waker.take().into_iter().for_each(Waker::wake);
        }
    }
}
