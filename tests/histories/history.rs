//! The events that a history records.

use serde::{Deserialize, Serialize};

/// Microseconds on the monotonic clock, which all processes of a machine share and which is never
/// set.
pub type Time = u64;

pub fn now() -> Time {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000 + u64::try_from(time.tv_nsec).unwrap() / 1_000
}

/// One life of a worker. A worker that is killed and started again is another process.
pub type Process = u32;

/// A unique value: the process that made the value, and a number within that process. A load has
/// the number of the value that the load makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Value {
    pub by: Process,
    pub number: u64,
    /// The beginning of the load or the insert.
    pub began: Time,
}

/// One line of the output of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    pub at: Time,
    pub event: Event,
}

/// An observation of a process. A process writes the line of an act before the act, if the act can
/// affect other processes. The line of an answer follows the answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Event {
    Ready,
    // The process did not run, from then until the line was written.
    Paused { from: Time },

    // A caller of `get` or of `request().load()` that asked at `asked` got an answer now. With
    // `patience`, the caller waits so long for a load before it takes a stale value.
    Read { key: String, asked: Time, patience: Option<Time>, answer: Answer },
    // The process is about to write, or to end the tag of a key.
    WriteAsked { write: u64, act: Act, key: String, tag: Option<String>, value: Option<Value> },
    // A refresh was answered with this value.
    Refreshed { write: u64, value: Value },
    // The write returned, with or without an error. The process repeats a deferred write.
    WriteAnswered { write: u64, error: Option<String>, deferred: bool },

    LoadBegan { key: String, value: Value, fence: Option<u64> },
    Load { number: u64, step: LoadStep },

    // The backend granted a lease for a claim that was sent at `sent`.
    Granted { family: Family, key: String, owner: String, fence: u64, sent: Time },
    // The backend has done a write under a fence. A touch gives the entry a new fence. A refresh
    // ends all earlier loads, and leaves the entry unchanged.
    Written { act: Act, key: String, fence: u64, value: Option<Value>, sent: Time },
    // The backend has ended a tag.
    TagEnded { tag: String, expires: bool, sent: Time },
    // The backend has written a loaded value under a fence.
    Stored { key: String, fence: u64, sent: Time },
    // The backend has refused a claim, or a loaded value under this fence.
    Refused { key: String, fence: Option<u64> },
    // The backend has noted a failed load, after which no process loads for a time.
    BackedOff { key: String, wait: Time, sent: Time },
    // A value was seen under a fence for the first time in this process.
    Seen { key: String, value: Value, fence: u64 },

    // A caller that asked at `asked` has acquired a lock. The fence is zero for a kind of lock that
    // several processes hold together.
    Locked { hold: u64, name: String, kind: Kind, fence: u64, asked: Time },
    Lock { hold: u64, step: LockStep },

    Latch { name: String, step: LatchStep },

    // The step of a turn of a job, for the tick at so many microseconds since 1970.
    Turn { job: String, tick: u64, fence: u64, step: TurnStep },

    // All callers have answers. `stats` says how much work there was.
    Done { stats: String },
}

/// The effect of a write on the value that stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    Insert,
    Invalidate,
    Expire,
    Touch,
    Refresh,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum LoadStep {
    // `Lead::lost` has said that the lease is lost.
    Lost,
    // The loader failed or panicked.
    Failed,
    // The loader says that the stored value is still right.
    Unchanged(Value),
    // The loader says that the value is not to be stored.
    Unstored,
    // The loader returned, failed, panicked or was cancelled.
    Ended,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum LockStep {
    // The guard has said that the lock is lost.
    Lost,
    // The lock is about to be released, or turned into a hold of another kind.
    Unlocking,
    // `unlock` returned, and says whether the lock was held to the end, if that is known.
    Unlocked(Option<bool>),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum LatchStep {
    // The latch is set. `did` says whether this process has set the latch.
    Set { did: bool },
    // The latch is about to be counted down by one.
    Begins,
    // A step was answered with the number of steps that are left.
    Left(u32),
    // The wait for the latch has returned.
    Done,
    // A call was answered with the error that there is no such latch.
    Missing { asked: Time },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum TurnStep {
    // A caller has the turn.
    Began,
    // The server has noted that the tick is done.
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    // There is no entry.
    Nothing,
    Value { value: Value, source: Source },
    // The load failed as planned.
    Failed,
    // An error that must not happen.
    Error(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The value was loaded under a lease, or received from the leader of such a load.
    Shared,
    /// The value was read from the store within its fresh window.
    Hit,
    /// The value was read from the store after its fresh window.
    Stale,
    /// The value was read from the store by a `get`, which does not say in which window.
    Stored,
    /// The value was a copy of the local tier, or may have been a copy.
    Local,
    Degraded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Family {
    Cache,
    Lock,
}

/// The kind of a hold, which decides which other holds there may be meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    Mutex,
    /// The term of a leader, which excludes no mutex of the same name.
    Leader,
    Reader,
    Writer,
    /// A number of permits.
    Permits(u32),
}

/// The count to which each latch is set.
pub const COUNT: u32 = 5;

/// The jobs. The ticks of the first two are asked for by callers, and those of the others follow an
/// interval.
pub const JOBS: [&str; 4] = ["j0", "j1", "j2", "j3"];

/// Returns whether a tick of a job may be begun again until it is done.
pub fn runs_again(job: &str) -> bool {
    matches!(job, "j1" | "j3")
}

/// The number of permits of the semaphore.
pub const PERMITS: u32 = 3;

/// The windows of all values of a round. The two windows of stale values begin together, when the
/// fresh window ends.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    pub fresh: Time,
    pub stale: Time,
    pub error: Time,
    /// How far the clock of a reader may be behind that of the server.
    pub slack: Time,
    /// Values are refreshed in the background.
    pub refreshes: bool,
    /// Values have tags. The end of a tag ends the flights of all keys in the process that ends the
    /// tag.
    pub tags: bool,
}

/// All events of one round, as the parent of the processes has collected the lines.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub windows: Option<Windows>,
    pub lines: Vec<(Process, Line)>,
    /// The killed processes, each with two times. The process may have stopped after the first
    /// time, and did nothing after the second time.
    pub killed: Vec<(Process, Time, Time)>,
    /// The leases that were deleted from outside, each with the times before and after the
    /// deletion.
    pub evicted: Vec<(Family, String, Time, Time)>,
    /// How long after such a deletion the holder may not know of it, if that is bounded.
    pub loss_known: Option<Time>,
    /// When the server lost all its data.
    pub data_lost: Vec<Time>,
    /// The processes that still owed answers when the round was over.
    pub hanging: Vec<Process>,
}
