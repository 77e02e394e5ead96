//! The times at which a server does not answer.

use std::thread::{self, JoinHandle};

use tokio::runtime::Builder;

use super::*;

/// A longer time between two answers may cost a request its time-out.
const SILENCE: Duration = Duration::from_millis(150);

/// The beginning and the end of a time at which a server did not answer.
pub type Silence = (Instant, Instant);

/// Pings a server beside a test, in a thread of its own.
pub struct Pings {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Silence>>,
}

impl Pings {
    pub fn start(url: String) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(ping(&url, &over))
        });
        Self { is_over, thread }
    }

    /// Stops, and returns the times at which the server did not answer.
    pub fn silences(self) -> Vec<Silence> {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

async fn ping(url: &str, is_over: &AtomicBool) -> Vec<Silence> {
    let mut silences = Vec::new();
    let mut connection = testkit::patient(url).await.unwrap();
    let mut last = Instant::now();
    while !is_over.load(Ordering::SeqCst) {
        // The server may end before the pings.
        if redis::cmd("PING").exec_async(&mut connection).await.is_err() {
            break;
        }
        let now = Instant::now();
        if now - last > SILENCE {
            silences.push((last, now));
        }
        last = now;
        sleep(10 * MS).await;
    }
    silences
}
