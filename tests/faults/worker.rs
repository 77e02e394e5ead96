//! A process whose clock can be set.
//!
//! It is this test binary once more. It loads one key for three callers, and reports events in
//! lines that begin with `@`. A line on its input opens the gate of its loader.

use std::{
    io::{BufRead, Write},
    path::{Path, PathBuf},
    time::SystemTime,
};

use testkit::Process;
use tokio::sync::Notify;

use super::*;

const VARIABLE: &str = "BELLWETHER_FAULTS_WORKER";
const CALLERS: usize = 3;

/// Starts a process that loads the key `k` under leases of this length.
pub fn start(url: &str, lease: Duration, clock: &FakeClock) -> Process {
    let setup = (VARIABLE, format!("{} {url}", lease.as_millis()));
    Process::start("worker_process", clock.environment().into_iter().chain([setup]))
}

/// Returns the answers that the callers of the process got.
pub async fn answers(worker: &mut Process) -> Vec<String> {
    let mut answers = Vec::new();
    for _ in 0..CALLERS {
        answers.push(worker.says("@served ").await);
    }
    answers
}

fn say(words: impl std::fmt::Display) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "\n@{words}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Works, if this process is a worker.
pub fn work() {
    let Ok(setup) = std::env::var(VARIABLE) else { return };
    let (lease, url) = setup.split_once(' ').unwrap();
    let lease = Duration::from_millis(lease.parse().unwrap());
    let gate = Arc::new(Notify::new());
    // With one thread, all callers join the flight before the answer to its first question is read.
    // A late joiner is not served a value whose commit was refused.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.unwrap();
    let backend = testkit::open(url);
    let cache: Cache<String> = Cache::builder(backend.clone(), "t").lease(lease).build().unwrap();
    let opened = gate.clone();
    runtime.spawn(async move {
        while backend.ping().await.is_err() {}
        let mut callers = JoinSet::new();
        for _ in 0..CALLERS {
            let gate = opened.clone();
            callers.spawn(cache.request("k").load(|lead: Lead<_>| async move {
                say(format!("begun {}", lead.fence().unwrap_or(0)));
                gate.notified().await;
                Ok::<_, BoxError>("old".to_owned())
            }));
        }
        while let Some(served) = callers.join_next().await {
            let served = served.unwrap().unwrap();
            say(format!("served {} {:?}", served.value, served.source));
        }
    });
    for line in std::io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("open") => gate.notify_one(),
            Ok("time") => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
                say(format!("time {}", now.as_secs()));
            }
            _ => break,
        }
    }
    std::process::exit(0);
}

/// The clock that a process sees, which can be set while it runs.
pub struct FakeClock {
    directory: tempfile::TempDir,
    preload: PathBuf,
}

impl FakeClock {
    /// Creates a clock with the true time.
    ///
    /// # Panics
    ///
    /// Panics if `libfaketime` is not installed.
    pub fn right() -> Self {
        let clock = Self { directory: tempfile::TempDir::new().unwrap(), preload: library() };
        clock.set(0);
        clock
    }

    /// Sets the clock a number of seconds ahead of the true time.
    pub fn set(&self, ahead: i64) {
        self.write(&format!("{ahead:+}"));
    }

    /// Sets the clock behind the true time.
    pub fn set_back(&self, by: Duration) {
        self.write(&format!("-{:.3}", by.as_secs_f64()));
    }

    fn write(&self, offset: &str) {
        // The file is replaced in one step, because the process reads it all the time.
        let written = self.directory.path().join("new");
        std::fs::write(&written, offset).unwrap();
        std::fs::rename(written, self.file()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("clock")
    }

    pub fn environment(&self) -> [(&'static str, String); 4] {
        [
            // The allocator of the C library comes before that of the server. During the start of
            // libfaketime, jemalloc asks for the time, which needs memory.
            ("LD_PRELOAD", format!("{} libc.so.6", self.preload.display())),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}

fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let beside = folders.map(|folder| folder.path().join("faketime"));
    let known = ["/usr/lib/faketime", "/usr/lib64/faketime", "/usr/local/lib/faketime"];
    let places = known.iter().map(PathBuf::from).chain(beside);
    let libraries = places.map(|place| place.join("libfaketimeMT.so.1"));
    libraries.into_iter().find(|library| Path::exists(library)).expect(
        "libfaketime is missing, which sets the clock of a process: `apt-get install libfaketime`",
    )
}
