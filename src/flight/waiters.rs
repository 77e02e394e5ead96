//! The callers who wait for a flight to land.
//!
//! Their wakers lie side by side, so that to wake them is to walk through an array. (`Notify` keeps its list in
//! the memory of those who wait: with thousands of them, every step of it is a miss of the cache.)

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

#[derive(Default)]
pub(super) struct Waiters(Mutex<Slots>);

#[derive(Default)]
struct Slots {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
    /// How often all were woken. Slots that were taken before are gone.
    woken: u32,
}

/// Where the waker of one who waits lies.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    at: usize,
    woken: u32,
}

impl Waiters {
    /// Looks for what is waited for, and if it is not there has the caller woken when it may be.
    pub(super) fn poll<T>(
        &self,
        slot: &mut Option<Slot>,
        cx: &mut Context<'_>,
        look: impl FnOnce() -> Option<T>,
    ) -> Poll<T> {
        let mut slots = self.slots();
        // Under the lock: whoever brings it takes the wakers under it afterwards.
        if let Some(found) = look() {
            return Poll::Ready(found);
        }
        let kept = slot.filter(|slot| slot.woken == slots.woken);
        match kept.and_then(|slot| slots.wakers.get_mut(slot.at)) {
            Some(Some(waker)) if waker.will_wake(cx.waker()) => {}
            Some(waker) => {
                let last = waker.replace(cx.waker().clone());
                // Without the lock, for it may be all that is left of a task that holds a follower.
                drop(slots);
                drop(last);
            }
            None => *slot = Some(slots.take(cx.waker().clone())),
        }
        Poll::Pending
    }

    /// One who waits no longer.
    pub(super) fn leave(&self, slot: Slot) {
        let mut slots = self.slots();
        if slot.woken == slots.woken {
            let waker = slots.wakers.get_mut(slot.at).and_then(Option::take);
            slots.free.push(slot.at);
            drop(slots);
            drop(waker);
        }
    }

    /// Wakes all who wait.
    pub(super) fn wake(&self) {
        let wakers = {
            let mut slots = self.slots();
            slots.woken = slots.woken.wrapping_add(1);
            slots.free.clear();
            std::mem::take(&mut slots.wakers)
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn take(&mut self, waker: Waker) -> Slot {
        let at = match self.free.pop() {
            Some(at) => {
                self.wakers[at] = Some(waker);
                at
            }
            None => {
                self.wakers.push(Some(waker));
                self.wakers.len() - 1
            }
        };
        Slot { at, woken: self.woken }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
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

    fn wait(waiters: &Waiters, slot: &mut Option<Slot>, count: &Arc<Count>) -> Poll<()> {
        let waker = Waker::from(count.clone());
        waiters.poll(slot, &mut Context::from_waker(&waker), || None)
    }

    #[test]
    fn each_who_waits_is_woken_once_and_who_left_is_not() {
        let waiters = Waiters::default();
        let counts: Vec<_> = (0..5).map(|_| Arc::new(Count::default())).collect();
        let mut slots = [None; 5];
        for _ in 0..2 {
            for (slot, count) in slots.iter_mut().zip(&counts) {
                assert!(wait(&waiters, slot, count).is_pending());
            }
        }
        waiters.leave(slots[2].take().unwrap());
        // His slot is another's now.
        let late = Arc::new(Count::default());
        let mut slot = None;
        assert!(wait(&waiters, &mut slot, &late).is_pending());
        assert_eq!(slot.map(|slot| slot.at), Some(2));
        waiters.wake();
        let woken: Vec<_> = counts.iter().map(|count| count.0.load(Ordering::SeqCst)).collect();
        assert_eq!((woken, late.0.load(Ordering::SeqCst)), (vec![1, 1, 0, 1, 1], 1));
        // A slot from before a wake-up is nobody's, and to leave it costs nobody his.
        let mut again = None;
        assert!(wait(&waiters, &mut again, &late).is_pending());
        waiters.leave(slots[0].take().unwrap());
        waiters.wake();
        assert_eq!(late.0.load(Ordering::SeqCst), 2);
        assert!(counts.iter().all(|count| Arc::strong_count(count) == 1), "a waker was kept");
    }

    /// Whoever looks before the outcome is there, and is put down after the wake-up, would sleep for ever.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nobody_sleeps_through_the_landing() {
        for _ in 0..2_000 {
            let shared = Arc::new((Waiters::default(), AtomicBool::new(false)));
            let theirs = shared.clone();
            let waiting = tokio::spawn(async move {
                let mut slot = None;
                let look = || theirs.1.load(Ordering::SeqCst).then_some(());
                poll_fn(|cx| theirs.0.poll(&mut slot, cx, look)).await;
            });
            shared.1.store(true, Ordering::SeqCst);
            shared.0.wake();
            waiting.await.unwrap();
        }
    }
}
