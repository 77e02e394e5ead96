//! Properties that hold for any name, any bytes and any order of callers that come and go.
//!
//! A failing case is made small and written to `tests/memory/properties.proptest-regressions`. It
//! is tried first from then on. Commit it with the repair. `PROPTEST_CASES` sets the number of
//! cases of each property, 256 by default.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Debug,
    future::{Future, poll_fn},
    panic,
    pin::pin,
    sync::Once,
    task::Poll,
};

use bellwether::{
    backend::{Change, Entry, Windows},
    cache::{Codec, Json, Postcard, Raw},
    lease::{Retry, RetryStrategy},
};
use bytes::Bytes;
use proptest::{
    prelude::*,
    test_runner::{FailurePersistence, FileFailurePersistence},
};
use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// Returns the configuration, which tries earlier failures first.
fn config() -> ProptestConfig {
    let regressions = FileFailurePersistence::WithSource("proptest-regressions");
    let failure_persistence: Option<Box<dyn FailurePersistence>> = Some(Box::new(regressions));
    ProptestConfig { failure_persistence, ..ProptestConfig::default() }
}

/// Generates keys, many of them made of characters with a meaning in names.
fn key() -> impl Strategy<Value = String> {
    let tricky =
        prop::sample::select(vec!["{", "}", "%", "%7B", "%25", "7", "B", "D", ":", "e", "\0", "é"]);
    prop_oneof![
        any::<String>(),
        prop::collection::vec(tricky, 1..8).prop_map(|parts| parts.concat()),
    ]
    .prop_filter("a key is not empty", |key| !key.is_empty())
}

fn name(key: &str) -> Name {
    name_of(Family::Cache, key)
}

fn name_of(family: Family, key: &str) -> Name {
    Name::new(&Namespace::standard(), family, &Key::from(key), usize::MAX).unwrap()
}

/// Returns the part of a key that a Redis Cluster hashes.
fn hash_tag(key: &str) -> &str {
    let (_, rest) = key.split_once('{').expect("a brace");
    let (tag, _) = rest.split_once('}').expect("the tag has no closing brace");
    tag
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_name_has_one_hash_tag_and_all_keys_of_it_share_that(key in key(), schema: u16) {
        let name = name(&key).with_schema(schema);
        let mut keys = vec![name.prefix().to_string(), name.entry(), name.suffixed("l")];
        keys.extend([1, u16::MAX].map(|schema| name.clone().with_schema(schema).entry()));
        for key in &keys {
            prop_assert_eq!(key.matches('{').count(), 1);
            prop_assert_eq!(key.matches('}').count(), 1);
            prop_assert!(!hash_tag(key).is_empty());
            prop_assert_eq!(hash_tag(key), hash_tag(&keys[0]));
        }
        let distinct: HashSet<_> = keys.iter().collect();
        prop_assert_eq!(distinct.len(), keys.len());
    }

    /// A name that can be read back belongs to one key only.
    #[test]
    fn a_name_can_be_read_back(key in key()) {
        let name = name(&key);
        let escaped = hash_tag(name.prefix());
        let read = escaped.replace("%7B", "{").replace("%7D", "}").replace("%25", "%");
        prop_assert_eq!(read, key);
    }

    #[test]
    fn two_keys_never_share_a_name(one in key(), two in key()) {
        prop_assert_eq!(one == two, name(&one) == name(&two));
        prop_assert_eq!(one == two, name(&one).entry() == name(&two).entry());
        let (lock, cache) = (name_of(Family::Lock, &one), name(&two));
        prop_assert_ne!(lock.prefix(), cache.prefix());
    }

    #[test]
    fn a_key_may_be_as_long_as_its_limit(key in key(), limit in 0_usize..40) {
        let name = Name::new(&Namespace::standard(), Family::Cache, &Key::from(&key), limit);
        prop_assert_eq!(name.is_ok(), key.len() <= limit);
    }
}

fn entry() -> impl Strategy<Value = Entry> {
    // Sixteen digits: microseconds until the year 2286.
    let fence = 0..10_u64.pow(16);
    let payload = prop::collection::vec(any::<u8>(), 0..64);
    let windows = prop::option::of(prop::array::uniform3(0..1_u64 << 42));
    (any::<bool>(), fence, any::<u32>(), any::<u32>(), windows, payload).prop_map(
        |(value, fence, tag, cost, windows, payload)| {
            let cost = Duration::from_millis(u64::from(cost));
            let entry = match value {
                true => Entry::value(tag, cost, payload.into()),
                false => Entry::uncacheable(cost),
            };
            let entry = entry.with_fence(fence);
            match windows.map(|windows| windows.map(Duration::from_millis)) {
                Some([fresh, stale, error]) => {
                    entry.with_windows(Windows::fresh(fresh).stale(stale).error(error))
                }
                None => entry,
            }
        },
    )
}

/// Generates bytes, many of them nearly an entry or a message.
fn bytes() -> impl Strategy<Value = Bytes> {
    let letters = prop::sample::select(b"wefix".to_vec());
    let broken = (
        entry(),
        prop::option::of(letters),
        any::<prop::sample::Index>(),
        any::<u8>(),
        0..160_usize,
    )
        .prop_map(|(entry, letter, at, byte, cut)| {
            let mut bytes: Vec<u8> = letter.into_iter().chain(entry.encode()).collect();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(cut);
            bytes
        });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..80), broken].prop_map(Bytes::from)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn an_entry_is_read_as_it_was_written(entry in entry()) {
        prop_assert_eq!(Entry::decode(entry.encode()), Ok(entry.clone()));
        let change = Change::Entry(entry);
        prop_assert_eq!(Change::decode(&change.encode()), change);
    }

    #[test]
    fn an_invalidation_is_read_as_it_was_written(fence in 0..10_u64.pow(16)) {
        let change = Change::Invalidated(fence);
        prop_assert_eq!(Change::decode(&change.encode()), change);
    }
}

/// A value with fields of many kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Product {
    name: String,
    prices: Vec<i64>,
    parts: BTreeMap<String, Option<Part>>,
    picture: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Part {
    Screw,
    Sheet { width: u32, letter: char },
    Several(Vec<Part>),
}

fn product() -> impl Strategy<Value = Product> {
    let leaf = prop_oneof![
        Just(Part::Screw),
        (any::<u32>(), any::<char>()).prop_map(|(width, letter)| Part::Sheet { width, letter }),
    ];
    let part = leaf.prop_recursive(3, 12, 4, |inner| {
        prop::collection::vec(inner, 0..4).prop_map(Part::Several)
    });
    let parts = prop::collection::btree_map(any::<String>(), prop::option::of(part), 0..4);
    let picture = prop::collection::vec(any::<u8>(), 0..16);
    (any::<String>(), prop::collection::vec(any::<i64>(), 0..6), parts, picture)
        .prop_map(|(name, prices, parts, picture)| Product { name, prices, parts, picture })
}

/// Checks that an encoded value is decoded, and that other bytes are an error or some value.
fn round_trip<V: Clone + Debug + PartialEq, C: Codec<V>>(
    codec: &C,
    value: &V,
    damage: Option<(prop::sample::Index, u8)>,
) -> Result<(), TestCaseError> {
    let encoded = codec.encode(value).unwrap();
    prop_assert_eq!(&codec.decode(encoded.clone()).unwrap(), value);
    let mut damaged = encoded.to_vec();
    if let Some((at, byte)) = damage
        && !damaged.is_empty()
    {
        let at = at.index(damaged.len());
        damaged[at] = byte;
        let _ = codec.decode(damaged.clone().into());
        damaged.truncate(at);
        let _ = codec.decode(damaged.into());
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn values_survive_their_codec(product in product(), damage: Option<(prop::sample::Index, u8)>) {
        round_trip::<Product, _>(&Json, &product, damage)?;
        round_trip::<Product, _>(&Postcard, &product, damage)?;
        round_trip::<Vec<u8>, _>(&Raw, &product.picture, damage)?;
        round_trip::<Bytes, _>(&Raw, &product.picture.into(), damage)?;
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error(bytes in bytes(), brackets in 0..2000_usize) {
        let _ = Codec::<Product>::decode(&Json, bytes.clone());
        let _ = Codec::<Product>::decode(&Postcard, bytes.clone());
        prop_assert_eq!(&Codec::<Bytes>::decode(&Raw, bytes.clone()).unwrap(), &bytes);
        let _ = Codec::<Part>::decode(&Postcard, vec![2; brackets].into());
        let nested = Bytes::from("[".repeat(brackets));
        prop_assert!(Codec::<serde_json::Value>::decode(&Json, nested).is_err());
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn waits_stay_within_their_bounds(
        base: Duration,
        cap: Duration,
        times in prop::option::of(0..40_usize),
        within: Option<Duration>,
        exponential: bool,
    ) {
        let mut retry = match exponential {
            true => Retry::exponential(base, cap),
            false => Retry::fixed(base),
        };
        if let Some(times) = times {
            retry = retry.times(times);
        }
        if let Some(within) = within {
            retry = retry.within(within);
        }
        let waits: Vec<_> = retry.waits().take(100).collect();
        prop_assert!(waits.len() <= times.unwrap_or(usize::MAX));
        let mut sum = Duration::ZERO;
        for (turn, wait) in (0_u32..).zip(&waits) {
            let bound = match exponential {
                true => base.saturating_mul(1 << turn.min(31)).min(cap),
                false => base,
            };
            prop_assert!(*wait <= bound);
            sum = sum.saturating_add(*wait);
        }
        if let Some(within) = within {
            prop_assert!(sum <= within);
            if !exponential && times.is_none() && !base.is_zero() && waits.len() < 100 {
                prop_assert_eq!(sum, within);
            }
        }
    }
}

const LOAD_LIMIT: Duration = Duration::from_secs(1);
const PLANNED: &str = "as planned";

/// One act of a caller.
#[derive(Clone, Debug)]
struct Step {
    at: u32,
    process: usize,
    key: usize,
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    Ask { leaves: Leaves, takes: u32, end: End },
    Invalidate,
    Insert,
}

/// The time at which a caller goes away.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Never,
    AfterPolls(usize),
    After(u32),
}

#[derive(Clone, Copy, Debug)]
enum End {
    Value,
    Unstored,
    Fails,
    Panics,
    Hangs,
}

fn step() -> impl Strategy<Value = Step> {
    let leaves = prop_oneof![
        3 => Just(Leaves::Never),
        2 => (0..4_usize).prop_map(Leaves::AfterPolls),
        2 => (0..300_u32).prop_map(Leaves::After),
    ];
    let end = prop_oneof![
        6 => Just(End::Value),
        1 => Just(End::Unstored),
        1 => Just(End::Fails),
        1 => Just(End::Panics),
        1 => Just(End::Hangs),
    ];
    let ask = (leaves, 0..250_u32, end).prop_map(|(leaves, takes, end)| Action::Ask {
        leaves,
        takes,
        end,
    });
    let action = prop_oneof![8 => ask, 1 => Just(Action::Invalidate), 1 => Just(Action::Insert)];
    (0..600_u32, 0..PROCESSES, 0..2_usize, action).prop_map(|(at, process, key, action)| Step {
        at,
        process,
        key,
        action,
    })
}

const PROCESSES: usize = 2;

/// The faults of the backend.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// Each operation takes its time.
    Slow,
    /// In addition, some operations fail or stay unanswered, and for a while all fail.
    Wild,
}

/// An event. Its position in the log is its time.
#[derive(Clone, Debug)]
enum Event {
    Asked { caller: usize },
    Served { caller: usize, load: usize, degraded: bool },
    Began { load: usize, key: usize, process: usize, leased: bool },
    Lost { load: usize },
    Ended { load: usize },
    Writing { write: usize, key: usize, process: usize },
    Written { write: usize, done: bool },
}

/// The events so far. Values are numbers, and loads and inserts share one sequence.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<(Vec<Event>, usize)>>);

impl Log {
    fn tell(&self, event: Event) {
        self.0.lock().unwrap().0.push(event);
    }

    fn number(&self) -> usize {
        let mut log = self.0.lock().unwrap();
        log.1 += 1;
        log.1
    }
}

struct Ended(Log, usize);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.tell(Event::Ended { load: self.1 });
    }
}

/// Polls a future a number of times, and drops it then.
async fn polled<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = times;
    poll_fn(move |context| match left {
        0 => Poll::Ready(None),
        _ => {
            left -= 1;
            future.as_mut().poll(context).map(Some)
        }
    })
    .await
}

#[derive(Clone)]
struct Play {
    caches: Vec<Cache<usize>>,
    log: Log,
}

impl Play {
    async fn ask(&self, step: Step, caller: usize) -> Result<(), TestCaseError> {
        let Action::Ask { leaves, takes, end } = step.action else { unreachable!() };
        let log = self.log.clone();
        let loader = move |lead: Lead<_>| async move {
            let load = log.number();
            let leased = lead.fence().is_some();
            log.tell(Event::Began { load, key: step.key, process: step.process, leased });
            let _ended = Ended(log.clone(), load);
            let hangs = matches!(end, End::Hangs);
            let mut working = pin!(sleep(if hangs { 2 * LOAD_LIMIT } else { takes * MS }));
            tokio::select! {
                () = &mut working => {}
                () = lead.lost() => {
                    log.tell(Event::Lost { load });
                    working.await;
                }
            }
            match end {
                End::Value | End::Hangs => Ok(load),
                End::Unstored => {
                    lead.do_not_store();
                    Ok(load)
                }
                End::Fails => Err(BoxError::from(PLANNED)),
                End::Panics => panic::panic_any(PLANNED),
            }
        };
        self.log.tell(Event::Asked { caller });
        let begun = Instant::now();
        let asking = self.caches[step.process].request(format!("k{}", step.key)).load(loader);
        let answer = match leaves {
            Leaves::Never => Some(asking.await),
            Leaves::AfterPolls(times) => polled(asking, times).await,
            Leaves::After(wait) => timeout(wait * MS, asking).await.ok(),
        };
        // The limit covers failing or hanging loads one after the other, a wait for another process
        // and an own load.
        let limit = 8 * LOAD_LIMIT;
        prop_assert!(begun.elapsed() <= limit, "caller {} waited {:?}", caller, begun.elapsed());
        match answer {
            None => {}
            Some(Ok(loaded)) => {
                let degraded = loaded.source() == Source::Degraded;
                self.log.tell(Event::Served { caller, load: loaded.into_value(), degraded });
            }
            Some(Err(error)) => prop_assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Load | ErrorKind::Panicked | ErrorKind::LoadTimeout
                ),
                "caller {}: {:?}",
                caller,
                error
            ),
        }
        Ok(())
    }

    async fn write(&self, step: &Step) {
        let write = self.log.number();
        let key = format!("k{}", step.key);
        self.log.tell(Event::Writing { write, key: step.key, process: step.process });
        let cache = &self.caches[step.process];
        let done = match step.action {
            Action::Insert => cache.insert(key, &write).await.is_ok(),
            _ => cache.invalidate(key).await.is_ok(),
        };
        self.log.tell(Event::Written { write, done });
    }
}

/// Plays steps over two caches of one backend in paused time, and checks the log.
fn play(
    steps: Vec<Step>,
    abandoned: Abandoned,
    trouble: Trouble,
    seed: u64,
) -> Result<(), TestCaseError> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if panic.payload().downcast_ref() != Some(&PLANNED) {
                usual(panic);
            }
        }));
    });
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(async {
        let mut rng = fastrand::Rng::with_seed(seed);
        let memory = MemoryBackend::new();
        // For a while the backend may fail altogether.
        let begun = Instant::now();
        let from = rng.u32(0..600) * MS;
        let out = from..from + rng.u32(0..400) * MS;
        let faulty = Faulty::over(memory.clone(), move |_op| match (trouble, rng.u8(0..60)) {
            (Trouble::Wild, _) if out.contains(&begun.elapsed()) => Some(Fault::Refuse),
            (_, 0..20) => None,
            (Trouble::Wild, 20) => Some(Fault::Refuse),
            (Trouble::Wild, 21) => Some(Fault::Hang),
            (Trouble::Wild, 22) => Some(Fault::LoseReply),
            (Trouble::Wild, 23) => Some(Fault::Double),
            _ => Some(Fault::Late(rng.u32(0..60) * MS)),
        });
        let cache = || {
            Cache::builder(faulty.clone(), "bellwether")
                .ttl(120 * MS)
                .lease(400 * MS)
                .load_limit(LOAD_LIMIT)
                .wait_limit(2 * LOAD_LIMIT)
                .when_abandoned(abandoned)
                .build()
                .unwrap()
        };
        let caches: Vec<_> = (0..PROCESSES).map(|_| cache()).collect();
        let play = Play { caches, log: Log::default() };
        let steps = steps.into_iter().enumerate().map(|(caller, step)| {
            let play = play.clone();
            tokio::spawn(async move {
                sleep(step.at * MS).await;
                match step.action {
                    Action::Ask { .. } => play.ask(step, caller).await,
                    _ => {
                        // A real backend bounds its own waits, and this one may hang.
                        let _ = timeout(LOAD_LIMIT, play.write(&step)).await;
                        Ok(())
                    }
                }
            })
        });
        for step in steps.collect::<Vec<_>>() {
            step.await.expect("a step panicked")?;
        }
        // Loads without callers end within their limits as well.
        sleep(10 * LOAD_LIMIT).await;
        for cache in &play.caches {
            prop_assert_eq!(cache.stats().flights, 0);
        }
        for key in ["k0", "k1"] {
            let holder = memory.holder(&name(key), Mode::Exclusive).await.unwrap();
            prop_assert!(holder.is_none(), "{} is still held: {:?}", key, holder);
        }
        let log = play.log.0.lock().unwrap().0.clone();
        holds(&log, trouble).map_err(|broken| TestCaseError::fail(format!("{broken}: {log:#?}")))
    })
}

/// Checks that the log keeps the promises.
fn holds(log: &[Event], trouble: Trouble) -> Result<(), String> {
    let place = |wanted: &dyn Fn(&Event) -> bool| log.iter().position(wanted);
    // The writes: key, process, beginning, end, and whether the write succeeded.
    let mut writes = Vec::new();
    for (from, event) in log.iter().enumerate() {
        if let Event::Writing { write, key, process } = event {
            let ended =
                |event: &Event| matches!(event, Event::Written { write: w, .. } if w == write);
            let to = place(&ended);
            let done = to.is_some_and(|to| matches!(log[to], Event::Written { done: true, .. }));
            writes.push((*key, *process, from, to, done));
        }
    }
    let mut running: Vec<(usize, usize, usize, usize)> = Vec::new();
    for (at, event) in log.iter().enumerate() {
        match event {
            Event::Began { load, key, process, leased } => {
                if !leased {
                    if let Trouble::Slow = trouble {
                        return Err(format!("load {load} ran without a lease"));
                    }
                    continue;
                }
                for (other, of, began, _) in running.iter().filter(|other| other.1 == *key) {
                    // An unanswered write may happen at any time.
                    let written = writes.iter().any(|(key, _, from, to, _)| {
                        key == of && *from < at && to.is_none_or(|to| to > *began)
                    });
                    if !written {
                        return Err(format!("loads {other} and {load} ran at the same time"));
                    }
                }
                running.push((*load, *key, at, *process));
            }
            Event::Lost { load } | Event::Ended { load } => {
                running.retain(|other| other.0 != *load)
            }
            Event::Served { caller, load, degraded } => {
                let asked =
                    |event: &Event| matches!(event, Event::Asked { caller: c } if c == caller);
                let asked = place(&asked).expect("a served caller has not asked");
                let made = |event: &Event| match event {
                    Event::Began { load: l, .. } => l == load,
                    Event::Writing { write, .. } => write == load,
                    _ => false,
                };
                let made = place(&made).ok_or(format!("value {load} was never made"))?;
                let (of, inserted) = match &log[made] {
                    Event::Began { key, .. } => (*key, false),
                    Event::Writing { key, .. } => (*key, true),
                    _ => unreachable!(),
                };
                let by = |at: usize| match &log[at] {
                    Event::Began { process, .. } | Event::Writing { process, .. } => *process,
                    _ => unreachable!(),
                };
                for (key, process, from, to, done) in &writes {
                    let before = *key == of && to.is_some_and(|to| to < asked);
                    // A load without a lease knows nothing of other processes.
                    let known = if *degraded { *process == by(made) } else { *done };
                    // An insert has happened when it is answered.
                    let older = match inserted {
                        false => made < *from,
                        true => writes.iter().any(|(_, _, began, ended, done)| {
                            *began == made && *done && ended.is_some_and(|ended| ended < *from)
                        }),
                    };
                    if before && known && older {
                        return Err(format!(
                            "caller {caller} was served {load}, which is older than a write"
                        ));
                    }
                }
            }
            Event::Asked { .. } | Event::Writing { .. } | Event::Written { .. } => {}
        }
    }
    Ok(())
}

fn abandoned() -> impl Strategy<Value = Abandoned> {
    prop_oneof![Just(Abandoned::Finish), Just(Abandoned::Cancel)]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn callers_may_come_and_go(
        steps in prop::collection::vec(step(), 1..24),
        abandoned in abandoned(),
        seed: u64,
    ) {
        play(steps, abandoned, Trouble::Slow, seed)?;
    }

    #[test]
    fn callers_may_come_and_go_over_a_backend_that_fails(
        steps in prop::collection::vec(step(), 1..24),
        abandoned in abandoned(),
        seed: u64,
    ) {
        play(steps, abandoned, Trouble::Wild, seed)?;
    }
}
