//! One timer for the time-outs of many commands.
//!
//! A timer for each command costs more than all else that we add to a hit. But all commands have the same
//! time, so it is told in rounds: a command ends with the round that comes [`ROUNDS`] after the one in which it
//! began, and so is given all of its time but for a sixteenth.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{
    sync::{Notify, futures::Notified},
    time::{Instant, sleep_until},
};

use crate::time::after;

/// As many rounds are in the time of a command.
const ROUNDS: usize = 16;

pub(super) struct Patience {
    limit: Duration,
    /// How many rounds there were.
    round: AtomicUsize,
    /// For the commands that began in each round, told when their time is over.
    over: [Notify; ROUNDS + 1],
    /// A command has begun since the last round.
    used: AtomicBool,
    /// No rounds are told; whoever begins has to ask for them.
    rests: AtomicBool,
    asked: Notify,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            round: AtomicUsize::new(0),
            over: std::array::from_fn(|_| Notify::new()),
            used: AtomicBool::new(false),
            rests: AtomicBool::new(false),
            asked: Notify::new(),
        }
    }

    /// Completes when the time of a command that begins now is over. To be polled soon, and only while the
    /// rounds are [told](Self::tell).
    pub(super) fn over(&self) -> Notified<'_> {
        let over = self.over[self.round.load(Ordering::SeqCst) % (ROUNDS + 1)].notified();
        // Who reads that it was used is seen by the next round, as it was.
        if !self.used.load(Ordering::SeqCst) {
            self.used.store(true, Ordering::SeqCst);
        }
        if self.rests.load(Ordering::SeqCst) && self.rests.swap(false, Ordering::SeqCst) {
            self.asked.notify_one();
        }
        over
    }

    /// Tells the rounds while there are commands, and rests while there are none.
    pub(super) async fn tell(&self) {
        loop {
            self.rest().await;
            let mut quiet = 0;
            let step = self.limit / ROUNDS as u32;
            let mut next = Instant::now();
            while quiet <= ROUNDS {
                // After a standstill the rounds that were missed are not made up for: that would end commands
                // that have just begun.
                if next.elapsed() > step {
                    next = Instant::now();
                }
                next = after(next, step);
                sleep_until(next).await;
                let round = self.round.fetch_add(1, Ordering::SeqCst) + 1;
                self.over[(round + 1) % (ROUNDS + 1)].notify_waiters();
                match self.used.swap(false, Ordering::SeqCst) {
                    true => quiet = 0,
                    false => quiet += 1,
                }
            }
        }
    }

    async fn rest(&self) {
        self.rests.store(true, Ordering::SeqCst);
        // Looked at after that: who began before it saw no reason to ask.
        if !self.used.load(Ordering::SeqCst) {
            self.asked.notified().await;
        }
        self.rests.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(160);

    /// In every phase of the rounds, and after a rest of any length.
    #[tokio::test(start_paused = true)]
    async fn a_command_is_given_its_time_but_for_a_sixteenth() {
        let patience = Arc::new(Patience::new(LIMIT));
        let told = patience.clone();
        tokio::spawn(async move { told.tell().await });
        for pause in [0, 3, 10, 17, 155, 170, 400, 1003] {
            tokio::time::sleep(Duration::from_millis(pause)).await;
            let begun = Instant::now();
            patience.over().await;
            let took = begun.elapsed();
            let tick = Duration::from_millis(1);
            assert!(
                took >= LIMIT * 15 / 16 - tick && took <= LIMIT + tick,
                "{took:?} after {pause} ms"
            );
        }
    }

    /// A process that was suspended sends its first commands when the rounds are far behind.
    #[tokio::test(start_paused = true)]
    async fn a_standstill_does_not_shorten_the_time_of_what_begins_after_it() {
        let patience = Arc::new(Patience::new(LIMIT));
        let told = patience.clone();
        tokio::spawn(async move { told.tell().await });
        let early = patience.over();
        tokio::task::yield_now().await;
        tokio::time::advance(LIMIT * 10).await;
        let begun = Instant::now();
        patience.over().await;
        assert!(begun.elapsed() >= LIMIT * 14 / 16, "{:?}", begun.elapsed());
        early.await;
    }

    #[tokio::test(start_paused = true)]
    async fn many_commands_end_each_in_its_time() {
        let patience = Arc::new(Patience::new(LIMIT));
        let told = patience.clone();
        tokio::spawn(async move { told.tell().await });
        let commands = (0..200).map(|n| {
            let patience = patience.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(n * 3)).await;
                let begun = Instant::now();
                patience.over().await;
                begun.elapsed()
            })
        });
        for command in commands.collect::<Vec<_>>() {
            let took = command.await.unwrap_or_default();
            assert!(took >= LIMIT * 14 / 16 && took <= LIMIT * 17 / 16, "{took:?}");
        }
    }
}
