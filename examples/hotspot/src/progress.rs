//! The progress of the run on standard error.
//!
//! A terminal shows one line that moves. A log gets a new line every few seconds.

use std::{
    io::{self, IsTerminal, Write},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

const WIDTH: usize = 32;

/// The seconds between two lines of a log.
const LOG_EVERY: u64 = 3;

pub(crate) struct Progress {
    begun: Instant,
    length: Duration,
    terminal: bool,
    /// The second from which the next line of a log is due.
    next_line: AtomicU64,
}

impl Progress {
    pub(crate) fn new(length: Duration) -> Self {
        Self {
            begun: Instant::now(),
            length,
            terminal: io::stderr().is_terminal(),
            next_line: AtomicU64::new(LOG_EVERY),
        }
    }

    pub(crate) fn show(&self, message: &str) {
        // The run takes a little longer than planned, because the last answers are awaited.
        let elapsed = self.begun.elapsed().min(self.length);
        let time = format!("{}s of about {}s", elapsed.as_secs(), self.length.as_secs());
        if self.terminal {
            let share = elapsed.as_secs_f64() / self.length.as_secs_f64();
            let full = (share * WIDTH as f64) as usize;
            let bar = format!("{}{}", "█".repeat(full), "░".repeat(WIDTH - full));
            write(&format!("\r{message:<36} {bar} {time}\x1b[K"));
        } else if elapsed.as_secs() >= self.next_line.load(Ordering::Relaxed) {
            self.next_line.store(elapsed.as_secs() + LOG_EVERY, Ordering::Relaxed);
            write(&format!("{message}, {time}\n"));
        }
    }

    pub(crate) fn clear(&self) {
        if self.terminal {
            write("\r\x1b[K");
        }
    }
}

fn write(text: &str) {
    let mut out = io::stderr().lock();
    // A run whose progress cannot be shown is a run all the same.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
