//! What is recorded: the words of a history.

use serde::{Deserialize, Serialize};

/// Microseconds on the monotonic clock, which all processes of a machine share and nobody steps.
pub type Time = u64;

pub fn now() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000 + u64::try_from(time.tv_nsec).unwrap() / 1_000
}

/// One life of a worker: a worker that is killed and started again is another process.
pub type Process = u32;

/// A value that exists once: which process made it, and its number there. A load has the number of the
/// value that it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Value {
    pub by: Process,
    pub number: u64,
    /// When its load, or the insert, began.
    pub began: Time,
}

/// One line of what a process tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    pub at: Time,
    pub event: Event,
}

/// Something that a process saw. What can have an effect on others is told before it can; what was
/// answered, after.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    Ready,
    /// The process did not run, from then until the line was written.
    Paused {
        from: Time,
    },

    /// What a caller of `get` or of `request().load()` was answered, asking from `asked` until now.
    Read {
        key: String,
        asked: Time,
        answer: Answer,
    },
    /// An insert, or an invalidation if there is no value, is about to be asked for.
    WriteAsked {
        write: u64,
        key: String,
        value: Option<Value>,
    },
    /// It returned, with or without an error.
    WriteAnswered {
        write: u64,
        error: Option<String>,
    },

    LoadBegan {
        key: String,
        value: Value,
        fence: Option<u64>,
    },
    /// Its loader was told that the lease is lost.
    LoadLost {
        number: u64,
    },
    /// It returned, failed, panicked or was cancelled.
    LoadEnded {
        number: u64,
    },

    /// The backend granted a lease on a claim that was sent at `sent`.
    Granted {
        family: Family,
        key: String,
        token: String,
        fence: u64,
        sent: Time,
    },
    /// The backend has inserted or invalidated.
    Burnt {
        key: String,
        fence: u64,
        value: Option<Value>,
        sent: Time,
    },
    /// The backend has written what was loaded under a fence.
    Stored {
        key: String,
        fence: u64,
        sent: Time,
    },
    /// A value was seen under a fence for the first time in this process.
    Seen {
        key: String,
        value: Value,
        fence: u64,
    },

    /// A lock was taken that was asked for at `asked`.
    Locked {
        hold: u64,
        name: String,
        kind: Kind,
        /// Zero, where several hold together.
        fence: u64,
        asked: Time,
    },
    /// The guard was told that the lock is lost.
    LockLost {
        hold: u64,
    },
    /// It is about to be given back, or turned into a hold of another kind.
    Unlocking {
        hold: u64,
    },
    /// `unlock` returned: whether the lock was held to the end, if that is known.
    Unlocked {
        hold: u64,
        held: Option<bool>,
    },

    /// A latch is set: by who says so, or by another before.
    LatchSet {
        name: String,
        did: bool,
    },
    /// A latch is about to be counted down by one.
    CountingDown {
        name: String,
    },
    /// That was answered with what is left.
    CountedDown {
        name: String,
        left: u32,
    },
    /// Who waited for a latch was told that it is done.
    LatchDone {
        name: String,
    },
    /// What was asked at `asked` was answered that there is no such latch.
    LatchMissing {
        name: String,
        asked: Time,
    },

    /// Everyone has their answer, after this much work.
    Done {
        stats: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// There is none.
    Nothing,
    Value {
        value: Value,
        source: Source,
    },
    /// The load failed, as its plan was.
    Failed,
    /// Something that has no right to happen.
    Error(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// From the store, through a lease, or handed over by who had it.
    Shared,
    Degraded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Family {
    Cache,
    Lock,
}

/// How a lock is held, and beside whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    Mutex,
    Reader,
    Writer,
    /// So many of them.
    Permits(u32),
}

/// What a latch is set to.
pub const COUNT: u32 = 5;

/// How many permits there are.
pub const PERMITS: u32 = 3;

/// All that happened in one round, as the one who started the processes collected it.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub lines: Vec<(Process, Line)>,
    /// When each killed process was killed at the latest: it did nothing after the second time, and
    /// possibly nothing after the first.
    pub killed: Vec<(Process, Time, Time)>,
    /// Which leases were deleted behind everyone's back, and between which times.
    pub evicted: Vec<(Family, String, Time, Time)>,
    /// Who still owed answers when the round was over.
    pub hanging: Vec<Process>,
}
