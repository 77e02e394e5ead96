//! Plays a plan to its end on a thread of its own, and judges what its processes saw.

use std::{
    collections::VecDeque,
    future::Future,
    hash::{DefaultHasher, Hash, Hasher},
    mem::swap,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, ready},
    thread,
    time::Duration,
};

use bellwether::RedisBackend;
use fastrand::Rng;
use testkit::handover_life;
use tokio::{
    runtime::{Builder, RngSeed},
    task::JoinSet,
    time::{Instant, Sleep, sleep, sleep_until, timeout_at},
};

use crate::{
    network::{Process, World},
    oracle::{
        checker::{Rule, Tally, check},
        history::{Event, Family, History, JOBS, Line, Time},
        recorder::{Log, Recorder, Shared},
        worker::{Setup, Worker},
    },
    plan::{Caller, Class, Fault, Plan},
    planted::Planted,
    server::Exchange,
    trace::Trace,
};

/// The longest time that a schedule may take on its own clock. No call waits for so long.
const LONGEST: Duration = Duration::from_secs(120);

/// How far the ages of values may be off: a timer has milliseconds.
const SLACK: u64 = 5_000;

/// A holder learns of a failover within this time if nothing else goes wrong: its process connects
/// again, and renews all leases at once.
const FAILOVER_KNOWN: Time = 300_000;

/// The server forgets the last fence of a name that is not used for so long, or a little longer.
/// If its clock has been set back, the next fence may then be smaller.
const FENCE_LIFE: Time = 5_000_000;

/// How many writes a failover may lose.
const SNAPSHOTS: usize = 32;

/// What came of a schedule.
pub struct Outcome {
    pub violations: Vec<(Option<Rule>, String)>,
    pub tally: Tally,
    /// The hash of all that happened, and how much that was.
    pub sum: (u64, u64),
    /// All that happened, if it was kept.
    pub texts: Vec<String>,
    /// All that clients did at the server, if it was kept.
    pub exchanges: Vec<Exchange>,
}

impl Outcome {
    /// Returns the rule that was broken first. `None` inside stands for a panic.
    pub fn broken(&self) -> Option<Option<Rule>> {
        self.violations.first().map(|(rule, _)| *rule)
    }
}

/// Plays a plan, and keeps the texts of all that happens if `keeps`.
pub fn play(plan: &Plan, planted: Option<&'static Planted>, keeps: bool) -> Outcome {
    let own = plan.clone();
    let played = thread::Builder::new().stack_size(4 << 20).spawn(move || {
        let seed = own.seed.to_le_bytes();
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).rng_seed(RngSeed::from_bytes(&seed));
        let runtime = runtime.build().expect("a runtime without input and output starts");
        let outcome = runtime.block_on(simulate(&own, planted, keeps));
        runtime.shutdown_background();
        outcome
    });
    played.expect("a thread starts").join().unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let violations = vec![(None, format!("a panic: {}", text.unwrap_or_default()))];
        Outcome {
            violations,
            tally: Tally::default(),
            sum: (0, 0),
            texts: Vec::new(),
            exchanges: Vec::new(),
        }
    })
}

/// The facts of a schedule that its faults make.
struct Damage {
    history: Mutex<History>,
    shared: Arc<Shared>,
}

async fn simulate(plan: &Plan, planted: Option<&'static Planted>, keeps: bool) -> Outcome {
    let trace = Trace::new(keeps);
    let shared = Shared::new();
    let snapshots = if plan.class == Class::Failovers { SNAPSHOTS } else { 0 };
    let world = World::new(plan.seed, plan.weather, trace.clone(), planted, snapshots);
    if keeps {
        world.server().keep_exchanges();
    }
    if let Some(planted) = planted {
        bellwether::sim::plant(planted.name);
    }
    let network = world.clone();
    bellwether::sim::begin(plan.seed, move |host| network.open(host));
    let windows = Some(plan.load.windows(SLACK));
    let loss_known = Some(loss_known(plan));
    let history = Mutex::new(History { windows, loss_known, ..History::default() });
    let damage = Damage { history, shared: shared.clone() };
    let workers: Vec<_> =
        (1..=plan.processes).map(|process| worker(plan, process, &shared)).collect();
    let mut callers: Vec<JoinSet<()>> = workers.iter().map(|_| JoinSet::new()).collect();
    for caller in &plan.callers {
        let at = caller.process as usize - 1;
        let calls = calls(workers[at].clone(), *caller);
        if caller.is_polled_late {
            callers[at].spawn(PolledLate::new(calls, *caller, &shared));
        } else {
            callers[at].spawn(calls);
        }
    }
    let callers = Mutex::new(callers);
    inject(plan, &world, &damage, &callers, &trace).await;
    let end = Instant::now() + LONGEST;
    let mut waiting = Vec::new();
    let all = callers.into_inner().expect("no holder of this lock panics");
    for (at, mut of_process) in all.into_iter().enumerate() {
        let process = at as Process + 1;
        while let Ok(Some(ended)) = timeout_at(end, of_process.join_next()).await {
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic());
            }
        }
        if !of_process.is_empty() {
            waiting.push(process);
        }
    }
    for (at, worker) in workers.iter().enumerate() {
        let process = at as Process + 1;
        let is_killed = {
            let history = damage.history.lock().expect("no holder of this lock panics");
            history.killed.iter().any(|(killed, ..)| *killed == process)
        };
        if !is_killed && timeout_at(end, worker.settled()).await.is_err() {
            waiting.push(process);
        }
    }
    let mut history = damage.history.into_inner().expect("no holder of this lock panics");
    history.hanging = waiting;
    let lines = shared.lines.lock().expect("no holder of this lock panics").clone();
    let killed = history.killed.clone();
    let lives = |process: Process, at: u64| {
        !killed.iter().any(|(other, killed_at, _)| *other == process && at > *killed_at)
    };
    // A caller that is killed while it naps has noticed nothing since.
    let is_nap = |line: &Line| matches!(line.event, Event::Paused { .. });
    let lines = lines.into_iter();
    history.lines =
        lines.filter(|(process, line)| lives(*process, line.at) || is_nap(line)).collect();
    let mut server = world.server();
    if keeps {
        server.read_all();
    }
    let exchanges = server.take_exchanges();
    // A client leads to the world and so back to the server, which would then never be dropped.
    server.end_connections();
    drop(server);
    Outcome { exchanges, ..judge(plan, &history, &trace) }
}

fn judge(plan: &Plan, history: &History, trace: &Trace) -> Outcome {
    let (violations, mut tally) = check(history);
    let last = history.lines.iter().map(|(_, line)| line.at).max().unwrap_or(0);
    let is_judged = |rule| {
        let may_forget = plan.class == Class::Clock && last > FENCE_LIFE;
        plan.class.judges(rule) && !(may_forget && rule.is_of_fences())
    };
    let judged = violations.into_iter().filter(|violation| is_judged(violation.rule));
    let violations = judged.map(|violation| (Some(violation.rule), violation.text)).collect();
    let mut texts = trace.texts();
    let (hash, count) = trace.sum();
    let mut hasher = DefaultHasher::new();
    hash.hash(&mut hasher);
    for (process, line) in &history.lines {
        let text = format!("{:>9} p{process} {:?}", line.at, line.event);
        text.hash(&mut hasher);
        if !texts.is_empty() {
            texts.push(text);
        }
    }
    texts.sort_by_key(|text| text[..9].trim().parse::<u64>().unwrap_or(0));
    tally.add("faults", plan.faults.len());
    tally.add("server and network events", count as usize);
    Outcome { violations, tally, sum: (hasher.finish(), count), texts, exchanges: Vec::new() }
}

fn worker(plan: &Plan, process: Process, shared: &Arc<Shared>) -> Worker {
    let log = Log::Memory(process, shared.clone());
    let backend = RedisBackend::builder().server(format!("redis://p{process}:6379"));
    let backend = backend.build().expect("the URL is valid");
    let backend = Recorder::over(backend, log.clone());
    let setup = Setup { url: String::new(), process, seed: plan.seed, load: plan.load.clone() };
    Worker::over(backend, log, setup)
}

/// Makes the calls of one caller.
async fn calls(worker: Worker, caller: Caller) {
    let mut rng = Rng::with_seed(caller.seed);
    sleep(Duration::from_millis(rng.u64(0..=caller.pause))).await;
    for _ in 0..caller.calls {
        if caller.locks {
            worker.lock(&mut rng).await;
        } else {
            worker.call("k", &mut rng).await;
        }
        sleep(Duration::from_millis(rng.u64(0..caller.pause))).await;
    }
}

/// Returns how long after the loss of a lease its holder may not know of the loss. The deadline of
/// the holder has passed a lease later.
fn loss_known(plan: &Plan) -> Time {
    if plan.is_planned_failover {
        return FAILOVER_KNOWN;
    }
    let longest = handover_life().max(Duration::from_millis(plan.load.lease_ms));
    u64::try_from(longest.as_micros()).unwrap_or(Time::MAX)
}

/// The calls of a caller. Now and then the caller does not poll them for a while, although they
/// were woken.
struct PolledLate<F> {
    calls: Pin<Box<F>>,
    rng: Rng,
    log: Log,
    /// Until when the calls are not polled, and since when.
    nap: Option<(Pin<Box<Sleep>>, Time)>,
}

impl<F> PolledLate<F> {
    fn new(calls: F, caller: Caller, shared: &Arc<Shared>) -> Self {
        let rng = Rng::with_seed(caller.seed ^ 1);
        let log = Log::Memory(caller.process, shared.clone());
        Self { calls: Box::pin(calls), rng, log, nap: None }
    }
}

impl<F: Future<Output = ()>> Future for PolledLate<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.nap.is_none() && self.rng.u8(0..16) == 0 {
            // Up to two seconds, with short times as likely as long ones.
            let long = Duration::from_millis(1 << self.rng.u32(0..12));
            self.nap = Some((Box::pin(sleep(long)), self.log.now()));
        }
        if let Some((nap, from)) = &mut self.nap {
            let from = *from;
            ready!(nap.as_mut().poll(cx));
            self.nap = None;
            // What the caller was to notice meanwhile, it notices now.
            self.log.tell(Event::Paused { from });
        }
        self.calls.as_mut().poll(cx)
    }
}

impl<F> Drop for PolledLate<F> {
    fn drop(&mut self) {
        if let Some((_, from)) = self.nap {
            self.log.tell(Event::Paused { from });
        }
    }
}

/// Has each fault happen at its time.
async fn inject(
    plan: &Plan,
    world: &World,
    damage: &Damage,
    callers: &Mutex<Vec<JoinSet<()>>>,
    trace: &Trace,
) {
    let begun = Instant::now();
    for planned in &plan.faults {
        sleep_until(begun + Duration::from_millis(planned.at)).await;
        let text = format!("fault: {:?}", planned.fault);
        trace.add(&text, || text.clone());
        match planned.fault {
            Fault::Cut(process) => world.cut(process),
            Fault::Hold(process, time) => world.hold(process, Duration::from_millis(time)),
            Fault::Swallow(process) => world.swallow(process),
            Fault::Stall(time) => world.stall(Duration::from_millis(time)),
            Fault::ForgetScripts => world.server().forget_scripts(),
            Fault::RefuseWrites(time) => {
                world.refuse_writes(Duration::from_millis(time));
            }
            Fault::Kill(process) => {
                damage.kill(process);
                world.kill(process);
                let mut killed = JoinSet::new();
                let at = process as usize - 1;
                swap(&mut killed, &mut callers.lock().expect("no holder of this lock panics")[at]);
                // Until the callers are dropped, because a caller that naps tells so by its drop.
                killed.shutdown().await;
            }
            Fault::Restart => {
                damage.lose_all(plan, Duration::ZERO);
                damage.lose_data();
                world.cut_all();
                world.server().restart_empty();
            }
            Fault::FailOver(writes) => {
                damage.lose_all(plan, Duration::ZERO);
                world.fail_over(writes);
            }
            Fault::Step(millis) => {
                // A lease that would have lasted longer than the step ends too early as well.
                damage.lose_all(plan, Duration::from_secs(5));
                world.step_clock(millis * 1000);
            }
        }
    }
}

impl Damage {
    fn now(&self) -> u64 {
        Log::Memory(0, self.shared.clone()).now()
    }

    fn kill(&self, process: Process) {
        let now = self.now();
        let mut history = self.history.lock().expect("no holder of this lock panics");
        if history.killed.iter().all(|(killed, ..)| *killed != process) {
            history.killed.push((process, now, now));
        }
    }

    fn lose_data(&self) {
        let now = self.now();
        self.history.lock().expect("no holder of this lock panics").data_lost.push(now);
    }

    /// Notes that each lease may end from now on, within this time.
    fn lose_all(&self, plan: &Plan, within: Duration) {
        let now = self.now();
        let end = now + u64::try_from(within.as_micros()).unwrap_or(0);
        let keys = (0..plan.load.keys).map(|key| (Family::Cache, format!("k{key}")));
        let names = ["m0", "m1", "w0", "s0"].into_iter().chain(JOBS);
        let locks = names.map(|name| (Family::Lock, name.to_owned()));
        let mut history = self.history.lock().expect("no holder of this lock panics");
        for (family, name) in keys.chain(locks) {
            history.evicted.push((family, name, now, end));
        }
    }
}

/// Returns the smallest plan that was found to break the same rule, and its outcome: each fault
/// and each caller is left out if the rule is broken without it.
pub fn shrink(plan: &Plan, planted: Option<&'static Planted>) -> (Plan, Outcome) {
    let mut best = (plan.clone(), play(plan, planted, true));
    let Some(broken) = best.1.broken() else { return best };
    loop {
        let before = best.0.callers.len() + best.0.faults.len();
        for smaller in candidates(&best.0) {
            let outcome = play(&smaller, planted, true);
            if outcome.broken() == Some(broken) {
                best = (smaller, outcome);
                break;
            }
        }
        if best.0.callers.len() + best.0.faults.len() == before {
            return fewer_calls(best, broken, planted);
        }
    }
}

/// Returns the plans without one fault or one caller.
fn candidates(plan: &Plan) -> VecDeque<Plan> {
    let mut all = VecDeque::new();
    for at in 0..plan.faults.len() {
        let mut smaller = plan.clone();
        smaller.faults.remove(at);
        all.push_back(smaller);
    }
    for at in 0..plan.callers.len() {
        let mut smaller = plan.clone();
        smaller.callers.remove(at);
        all.push_back(smaller);
    }
    all
}

/// Leaves out the last calls of each caller while the rule is broken without them.
fn fewer_calls(
    mut best: (Plan, Outcome),
    broken: Option<Rule>,
    planted: Option<&'static Planted>,
) -> (Plan, Outcome) {
    for at in 0..best.0.callers.len() {
        while best.0.callers[at].calls > 1 {
            let mut smaller = best.0.clone();
            smaller.callers[at].calls -= 1;
            let outcome = play(&smaller, planted, true);
            if outcome.broken() != Some(broken) {
                break;
            }
            best = (smaller, outcome);
        }
    }
    best
}
