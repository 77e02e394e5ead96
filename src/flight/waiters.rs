//! The callers that wait for something to happen, such as the landing of a flight.
//!
//! Their wakers lie side by side, so that waking them is a walk through an array. `Notify` keeps
//! its list in the memory of the waiters: with thousands of them, each step is a miss of the
//! processor's cache.

use std::{
    future::poll_fn,
    mem,
    task::{Context, Poll, Waker},
};

use crate::sync::checked::{Mutex, lock};

#[derive(Default)]
pub(super) struct Waiters(Mutex<Slots>);

#[derive(Default)]
struct Slots {
    wakers: Vec<Option<Waker>>,
    free: Vec<u32>,
    /// How often all waiters were woken. A slot that was taken before the last time is gone.
    woken: u32,
}

/// The place of a waiter's waker.
#[derive(Clone, Copy)]
struct Slot {
    at: u32,
    woken: u32,
}

/// A waiter, which gives its slot back when it is dropped.
struct Waiter<'a> {
    waiters: &'a Waiters,
    slot: Option<Slot>,
}

impl Waiters {
    /// Waits until `look` finds something. To be [woken](Self::wake) each time after it may.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the slot back.
    pub(super) fn until<T>(&self, look: impl Fn() -> Option<T>) -> impl Future<Output = T> {
        let mut waiter = Waiter { waiters: self, slot: None };
        // Not an async function, whose future would hold its arguments twice.
        poll_fn(move |cx| {
            let found = match look() {
                Some(found) => Poll::Ready(found),
                None => waiter.poll(cx, &look),
            };
            if found.is_ready() {
                // The slot is gone with the wake-up that has come, or is about to.
                waiter.slot = None;
            }
            found
        })
    }

    /// Wakes all waiters.
    pub(super) fn wake(&self) {
        let wakers = {
            let mut slots = lock(&self.0);
            slots.woken = slots.woken.wrapping_add(1);
            slots.free.clear();
            mem::take(&mut slots.wakers)
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Waiter<'_> {
    fn poll<T>(&mut self, cx: &Context<'_>, look: impl Fn() -> Option<T>) -> Poll<T> {
        let mut slots = lock(&self.waiters.0);
        // Under the lock, because the wake-up takes the wakers under it afterwards.
        if let Some(found) = look() {
            return Poll::Ready(found);
        }
        let kept = self.slot.filter(|slot| slot.woken == slots.woken);
        match kept.and_then(|slot| slots.wakers.get_mut(slot.at as usize)) {
            Some(Some(waker)) if waker.will_wake(cx.waker()) => {}
            Some(waker) => {
                let last = waker.replace(cx.waker().clone());
                // Without the lock, because the last reference to a task may drop a waiter.
                drop(slots);
                drop(last);
            }
            None => self.slot = Some(slots.take(cx.waker().clone())),
        }
        Poll::Pending
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let mut slots = lock(&self.waiters.0);
        if slot.woken == slots.woken {
            let waker = slots.wakers.get_mut(slot.at as usize).and_then(Option::take);
            slots.free.push(slot.at);
            drop(slots);
            drop(waker);
        }
    }
}

impl Slots {
    fn take(&mut self, waker: Waker) -> Slot {
        let at = match self.free.pop() {
            Some(at) => {
                self.wakers[at as usize] = Some(waker);
                at
            }
            None => {
                self.wakers.push(Some(waker));
                self.wakers.len() as u32 - 1
            }
        };
        Slot { at, woken: self.woken }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn wait(waiter: &mut Waiter<'_>, count: &Arc<Count>) -> Poll<()> {
        let waker = Waker::from(count.clone());
        waiter.poll(&Context::from_waker(&waker), || None)
    }

    #[test]
    fn each_waiter_is_woken_once_unless_it_left() {
        let waiters = Waiters::default();
        let waiter = || Waiter { waiters: &waiters, slot: None };
        let counts: Vec<_> = (0..5).map(|_| Arc::new(Count::default())).collect();
        let mut waiting: Vec<_> = counts.iter().map(|_| waiter()).collect();
        for _ in 0..2 {
            for (waiter, count) in waiting.iter_mut().zip(&counts) {
                assert!(wait(waiter, count).is_pending());
            }
        }
        drop(waiting.remove(2));
        // The slot is free for another waiter.
        let late = Arc::new(Count::default());
        let mut next = waiter();
        assert!(wait(&mut next, &late).is_pending());
        assert_eq!(next.slot.map(|slot| slot.at), Some(2));
        waiters.wake();
        let woken: Vec<_> = counts.iter().map(|count| count.0.load(Ordering::SeqCst)).collect();
        assert_eq!((woken, late.0.load(Ordering::SeqCst)), (vec![1, 1, 0, 1, 1], 1));
        // Leaving a slot from before a wake-up takes no slot from a waiter that came after it.
        let mut again = waiter();
        assert!(wait(&mut again, &late).is_pending());
        drop(waiting.remove(0));
        waiters.wake();
        assert_eq!(late.0.load(Ordering::SeqCst), 2);
        assert!(counts.iter().all(|count| Arc::strong_count(count) == 1), "a waker was kept");
    }

    /// A waiter that looks before the outcome is there, and registers after the wake-up, would
    /// sleep for ever.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_waiter_sleeps_through_the_wake_up() {
        for _ in 0..2_000 {
            let shared = Arc::new((Waiters::default(), AtomicBool::new(false)));
            let theirs = shared.clone();
            let waiting = tokio::spawn(async move {
                let look = || theirs.1.load(Ordering::SeqCst).then_some(());
                theirs.0.until(look).await;
            });
            shared.1.store(true, Ordering::SeqCst);
            shared.0.wake();
            waiting.await.unwrap();
        }
    }
}
