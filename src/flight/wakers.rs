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

impl Wakers {
    /// Registers a waker, or keeps its registration. Returns the one that it replaces, to be
    /// dropped without a lock.
    pub(super) fn register(
        &mut self,
        registration: &mut Option<Registration>,
        waker: &Waker,
    ) -> Option<Waker> {
        if let Some(Registration { at, woken }) = *registration
            && woken == self.woken
            && let Some(place) = self.places.get_mut(at as usize)
        {
            return match place {
                Some(last) if last.will_wake(waker) => None,
                _ => place.replace(waker.clone()),
            };
        }
        let at = self.free_place();
        self.places[at as usize] = Some(waker.clone());
        *registration = Some(Registration { at, woken: self.woken });
        None
    }

    /// Returns a place without a waker.
    fn free_place(&mut self) -> u32 {
        if let Some(at) = self.free.pop() {
            return at;
        }
        self.places.push(None);
        self.places.len() as u32 - 1
    }

    /// Ends a registration. Returns its waker, to be dropped without a lock.
    pub(super) fn leave(&mut self, Registration { at, woken }: Registration) -> Option<Waker> {
        if woken != self.woken {
            return None;
        }
        self.free.push(at);
        self.places.get_mut(at as usize)?.take()
    }

    /// Ends all registrations. Returns their wakers, to be woken without a lock.
    pub(super) fn take(&mut self) -> Vec<Option<Waker>> {
        self.woken = self.woken.wrapping_add(1);
        self.free.clear();
        mem::take(&mut self.places)
    }
}
