//! The plan of a schedule: who calls what, the weather, and the faults. A seed makes all of it.

use fastrand::Rng;

use crate::{
    network::{Process, Weather},
    oracle::{checker::Rule, worker::Workload},
};

/// A process without a local tier.
const WITHOUT_TIER: Process = 3;

/// What may go wrong in a schedule, and so which rules hold in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Delays only.
    Calm,
    /// Connections are cut, held up and swallowed, the server stalls and refuses writes, and
    /// processes are killed.
    Network,
    /// The server also loses all of its data.
    Restarts,
    /// The server also continues with the data of some commands ago. In a third of these
    /// schedules, nothing else goes wrong.
    Failovers,
    /// The server's clock is set.
    Clock,
}

impl Class {
    pub const ALL: [Self; 5] =
        [Self::Calm, Self::Network, Self::Restarts, Self::Failovers, Self::Clock];

    /// Returns whether a rule holds in such a schedule.
    pub fn judges(self, rule: Rule) -> bool {
        match self {
            Self::Calm | Self::Network => true,
            // What is lost with the data: who holds, what backs off, the count of a latch, and
            // which ticks were begun.
            Self::Restarts => !matches!(rule, Rule::BackOff | Rule::Latch | Rule::Ticks),
            // What was acknowledged may be lost. What is left is the promises of one process, and
            // that a holder learns in time that its lease is lost.
            Self::Failovers => matches!(
                rule,
                Rule::Origin
                    | Rule::Answered
                    | Rule::Refreshed
                    | Rule::OneFlight
                    | Rule::OneHolder
                    | Rule::NoneBesideWriter
                    | Rule::Limit
            ),
            // Ages, back-offs and the leases of dead processes are times of the server. After a
            // step back, a waiter waits for longer than the schedule. An entry is fresh again, and
            // may be older than a value that was loaded meanwhile and not stored.
            Self::Clock => !matches!(
                rule,
                Rule::BackOff
                    | Rule::Windows
                    | Rule::Remembered
                    | Rule::Latch
                    | Rule::Answered
                    | Rule::NeverBack
            ),
        }
    }
}

/// Something that goes wrong at a time.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    Cut(Process),
    /// The bytes of a process are held back for so many milliseconds.
    Hold(Process, u64),
    Swallow(Process),
    /// The server runs no command for so many milliseconds.
    Stall(u64),
    /// The server refuses writes for so many milliseconds.
    RefuseWrites(u64),
    Kill(Process),
    Restart,
    /// The data are those of so many writes ago.
    FailOver(usize),
    /// The server's clock is set by so many milliseconds.
    Step(i64),
    ForgetScripts,
}

#[derive(Clone, Copy, Debug)]
pub struct PlannedFault {
    pub at: u64,
    pub fault: Fault,
}

/// One caller of a process, which makes one call after another.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    pub process: Process,
    pub seed: u64,
    pub calls: u32,
    /// It takes locks. Otherwise it uses the cache.
    pub locks: bool,
    /// The longest pause between two calls, in milliseconds.
    pub pause: u64,
    /// Its future is polled late now and then, as one of a `select!` loop that is busy elsewhere.
    pub is_polled_late: bool,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub class: Class,
    /// Nothing but failovers goes wrong.
    pub is_planned_failover: bool,
    pub weather: Weather,
    pub load: Workload,
    pub processes: u32,
    pub callers: Vec<Caller>,
    pub faults: Vec<PlannedFault>,
}

impl Plan {
    /// Makes the plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let class = Class::ALL[(seed % 5) as usize];
        let mut processes = rng.u32(2..=4);
        let mut load = workload(&mut rng);
        let is_planned_failover = class == Class::Failovers && rng.u8(0..3) == 0;
        // In some schedules, the process without a local tier gets no answers for longer than it
        // waits, and remembers values for longer.
        let may_have_outages = class != Class::Calm && !is_planned_failover;
        let has_outages = may_have_outages && rng.u8(0..6) == 0;
        if has_outages {
            processes = processes.max(WITHOUT_TIER);
            load.keys = 2;
            load.error_ms = 2_000;
        }
        let usual_ms = [0, 2, 2, 8][rng.usize(0..4)];
        let late_per_mille = [0, 5, 20][rng.usize(0..3)];
        let longest_ms = [50, 200, 400][rng.usize(0..3)];
        let mut weather = Weather { usual_ms, longest_ms, late_per_mille };
        let mut callers = Vec::new();
        let uses = rng.u8(0..3);
        for process in 1..=processes {
            for _ in 0..rng.u32(1..=3) {
                let locks = match uses {
                    _ if has_outages && process == WITHOUT_TIER => false,
                    0 => false,
                    1 => true,
                    _ => rng.bool(),
                };
                callers.push(Caller {
                    process,
                    seed: rng.u64(..),
                    calls: rng.u32(3..12),
                    locks,
                    pause: [5, 40, 200][rng.usize(0..3)],
                    is_polled_late: false,
                });
            }
        }
        let mut faults = faults(class, has_outages, processes, &mut rng);
        if is_planned_failover {
            faults.retain(|planned| matches!(planned.fault, Fault::FailOver(_)));
            weather.late_per_mille = 0;
        } else if rng.u8(0..4) == 0 {
            for caller in &mut callers {
                caller.is_polled_late = rng.bool();
            }
        }
        Self { seed, class, is_planned_failover, weather, load, processes, callers, faults }
    }
}

fn workload(rng: &mut Rng) -> Workload {
    Workload {
        keys: rng.usize(1..=2),
        locks: 2,
        callers: 0,
        lockers: 0,
        writes: [50, 200, 400][rng.usize(0..3)],
        lease_ms: [100, 600][rng.usize(0..2)],
        ttl_ms: [20, 60, 300][rng.usize(0..3)],
        stale_ms: [0, 50, 300][rng.usize(0..3)],
        error_ms: [0, 200, 500][rng.usize(0..3)],
        early: rng.bool(),
        cancel: rng.bool(),
        backs_off: rng.bool(),
        tags: rng.bool(),
    }
}

fn faults(class: Class, has_outages: bool, processes: u32, rng: &mut Rng) -> Vec<PlannedFault> {
    if class == Class::Calm {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for _ in 0..rng.u32(1..8) {
        let process = rng.u32(1..=processes);
        let fault = match rng.u8(0..20) {
            0..10 if has_outages => Fault::Hold(WITHOUT_TIER, rng.u64(260..1200)),
            0..6 => Fault::Cut(process),
            6..10 => Fault::Hold(process, rng.u64(1..800)),
            10..13 => Fault::Swallow(process),
            13..16 => Fault::Stall(rng.u64(1..500)),
            16..18 => Fault::RefuseWrites(rng.u64(1..400)),
            18 => Fault::Kill(process),
            _ => Fault::ForgetScripts,
        };
        faults.push(PlannedFault { at: rng.u64(0..1500), fault });
    }
    let own = match class {
        Class::Restarts => rng.u32(1..3),
        Class::Failovers => rng.u32(1..3),
        Class::Clock => rng.u32(1..4),
        Class::Calm | Class::Network => 0,
    };
    for _ in 0..own {
        let fault = match class {
            Class::Restarts => Fault::Restart,
            Class::Failovers => Fault::FailOver(rng.usize(0..30)),
            _ => Fault::Step(step(rng)),
        };
        faults.push(PlannedFault { at: rng.u64(0..1500), fault });
    }
    faults.sort_by_key(|planned| planned.at);
    faults
}

/// Returns a step of the clock in milliseconds, with short ones as likely as long ones. A step
/// forward ends no fence: the next one may then be smaller, as docs/decisions/fences-and-commits.md
/// says.
fn step(rng: &mut Rng) -> i64 {
    if rng.bool() { 1 << rng.u32(0..11) } else { -(1 << rng.u32(0..22)) }
}
