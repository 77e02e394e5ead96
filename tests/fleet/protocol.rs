//! What a test and its workers say to each other.

use std::{
    collections::BTreeMap,
    ops::Range,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// The variable that makes a process a worker; it holds a [`Setup`].
pub const VARIABLE: &str = "BELLWETHER_FLEET_WORKER";

/// How a worker begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Setup {
    pub url: String,
    pub lease_ms: u64,
    pub wait_ms: u64,
    pub max_loads: usize,
}

impl Setup {
    pub fn new(url: String) -> Self {
        Self { url, lease_ms: 5_000, wait_ms: 30_000, max_loads: 1024 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Command {
    Round(Round),
    /// Requests to an axum router under the layer, all at once.
    Requests(Requests),
    Shutdown {
        deadline_ms: u64,
    },
    /// Drops the runtime with everything that runs on it.
    DropRuntime,
    /// Tasks that each add one to a number, so many times, with a read and a write under a lock.
    Count {
        name: String,
        tasks: usize,
        times: usize,
    },
    /// Takes one of a pair, or its rival, and keeps it.
    Hold {
        name: String,
        pair: String,
        rival: bool,
        lease_ms: u64,
    },
    /// Callers who wait for a latch.
    Await {
        name: String,
        callers: usize,
    },
    /// Counts a latch down, one after the other.
    CountDown {
        name: String,
        times: usize,
    },
    /// Gives back what is held.
    Unlock {
        name: String,
    },
}

/// Callers who ask all at once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Round {
    /// A `#` in it stands for the number of the caller.
    pub key: String,
    pub callers: usize,
    pub load: Load,
    /// Aborts the caller whose loader runs, in the middle of the load.
    pub abort_leader: bool,
    /// When they ask, in the clock of [`now`].
    pub at: u64,
}

/// What a loader does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Load {
    Value {
        ms: u64,
    },
    Fail {
        ms: u64,
        text: String,
    },
    Panic {
        ms: u64,
        text: String,
    },
    /// Asks for another key, in the same way.
    Ask {
        ms: u64,
        key: String,
        then: Box<Load>,
    },
}

impl Round {
    pub fn new(key: impl Into<String>, callers: usize, load: Load) -> Self {
        Self { key: key.into(), callers, load, abort_leader: false, at: 0 }
    }
}

/// Users who send the same request, each with a number in a header.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Requests {
    pub path: String,
    /// The numbers of the users.
    pub users: Range<usize>,
    pub answer: Answer,
    pub ms: u64,
    pub at: u64,
}

/// What the router answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The same to everyone.
    Common,
    /// The user's number, with a cookie.
    Cookie,
    /// The user's number, and more than may be stored.
    Large,
    /// The same without saying at the beginning how much it is.
    LargeStream,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    Ready,
    LoadBegun {
        key: String,
        at: u64,
    },
    LoadEnded {
        key: String,
        at: u64,
    },
    Report(Report),
    Done,
    Held {
        name: String,
        fence: u64,
        at: u64,
    },
    Lost {
        name: String,
        at: u64,
    },
    /// One more caller waits no longer.
    Awaited {
        error: Option<String>,
        at: u64,
    },
    Counted {
        left: u32,
        at: u64,
    },
    Unlocked {
        was_lost: bool,
        error: Option<String>,
    },
}

/// How a round went in one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// When the first caller asked, and when the last one had his answer.
    pub began: u64,
    pub ended: u64,
    pub sources: BTreeMap<String, usize>,
    pub values: BTreeMap<String, usize>,
    pub errors: BTreeMap<String, usize>,
    pub aborted: usize,
    /// How many loads ran without a lease so far.
    pub degraded: u64,
    /// All that the cache has counted so far.
    pub stats: String,
}

/// Microseconds on the clock that the processes of one machine share.
pub fn now() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    u64::try_from(time.as_micros()).expect("a clock before the year 500,000")
}
