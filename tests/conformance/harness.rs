//! A rule is given a harness: a backend, and the passing of time.

use std::sync::{Mutex, MutexGuard, PoisonError};
pub use std::time::Duration;

pub use bellwether::{
    ErrorKind, Key, Locks,
    backend::{
        BackOff, Change, Changes, Claim, Claimed, Committed, Edit, Entry, Failure, Grant, Handover,
        Leases, Mode, Renewal, SemaphoreKind, Store, Windows,
    },
    error::BackendErrorKind,
    key::{Family, Name, Namespace},
};
use bellwether::{MemoryBackend, RedisBackend, lock::Majority};
pub use bytes::Bytes;
pub use futures_util::future::join_all;
use testkit::{Cluster, RedisServer, comes_true};
pub use testkit::{
    LIMIT, handover_life,
    leases::{begun, begun_over, failure, granted, held, next, value},
    queue_entry_life,
};
pub use tokio::time::timeout;

/// The lease of the claims here. It is long, so that none ends by itself on a busy machine.
pub const LEASE: Duration = Duration::from_secs(60);
/// The time for which fences are remembered here.
pub const FENCE_LIFE: Duration = Duration::from_secs(600);
/// The life of the entries here.
pub const TTL: Duration = Duration::from_secs(120);
/// A duration longer than any command and shorter than any lease here.
pub const MOMENT: Duration = Duration::from_secs(20);

/// One empty backend, as a fleet sees it.
pub trait Harness: Sized {
    type Backend: Leases + Clone;

    /// How much later than its time something may happen on a busy machine.
    const BUSY: Duration = Duration::from_secs(1);

    /// Whether a push reaches the process of a holder that does not wait for the name. In a cluster
    /// a process listens to the names only for which it waits.
    const PUSHES_TO_HOLDERS: bool = true;

    /// The modes of the backend, each with one that cannot be held beside it.
    const PAIRS: &[[Mode; 2]] = &PAIRS;

    async fn start() -> Self;

    /// Returns the backend as one more process of the fleet has it, with connections of its own.
    fn backend(&self) -> Self::Backend;

    /// Returns the servers. A backend in memory has none.
    fn servers(&self) -> &[RedisServer] {
        &[]
    }

    /// Returns a process, and a name.
    fn one(&self) -> (Self::Backend, Name) {
        (self.backend(), name("k"))
    }

    /// Returns two processes, and a name.
    fn two(&self) -> (Self::Backend, Self::Backend, Name) {
        (self.backend(), self.backend(), name("k"))
    }

    /// Lets time pass for everything that is kept.
    ///
    /// Memory uses the paused time of tokio. Redis makes every key older by as much, so that
    /// nothing depends on the load of the machine. `tests/redis/scripts.rs` tests that the clock of
    /// the server ends leases.
    async fn pass(&self, time: Duration) {
        if self.servers().is_empty() {
            tokio::time::advance(time).await;
        }
        for server in self.servers() {
            server.raw().await.age(time).await;
        }
    }

    /// Makes the backend forget the last fence of a name, as an eviction does.
    async fn forget_fence(&self, name: &Name) {
        if self.servers().is_empty() {
            // Memory evicts no fence, so the fence must end by its time.
            return self.pass(FENCE_LIFE).await;
        }
        let mut deleted = 0;
        for server in self.servers() {
            // Of a cluster, one node serves the name.
            let answer = server.raw().await.try_run::<u32>(&["DEL", &name.suffixed("f")]).await;
            deleted += answer.unwrap_or(0);
        }
        assert!(deleted > 0, "the backend had no fence to forget");
    }

    /// Checks that no listener is left.
    async fn no_listener_is_left(&self) {
        for server in self.servers() {
            let mut raw = server.raw().await;
            let silent = async || raw.all_channels().await.is_empty();
            assert!(comes_true(LIMIT, silent).await, "a subscription is left behind");
        }
    }

    /// Returns the present keys after checking that each has an end. Memory has no keys.
    async fn keys(&self) -> Vec<String> {
        let mut all = Vec::new();
        for server in self.servers() {
            let mut raw = server.raw().await;
            for key in raw.keys("*").await {
                assert_ne!(raw.pttl(&key).await, -1, "{key} never ends");
                all.push(key);
            }
        }
        all
    }

    /// Checks the conditions that hold after every rule.
    async fn finish(self) {
        self.no_listener_is_left().await;
        self.keys().await;
    }
}

/// A semaphore with one permit.
pub const PERMIT: Mode = Mode::Permit { limit: 1, count: 1 };
/// The modes in which one claim holds at a time.
pub const ALONE: [Mode; 4] = [Mode::Exclusive, Mode::Fair, Mode::Write, PERMIT];
const MOST: Mode = Mode::Permit { limit: 3, count: 2 };
const PAIRS: [[Mode; 2]; 7] = [
    [Mode::Exclusive, Mode::Exclusive],
    [Mode::Fair, Mode::Fair],
    [Mode::Fair, Mode::Exclusive],
    [Mode::Read, Mode::Write],
    [Mode::Write, Mode::Read],
    [Mode::Write, Mode::Write],
    [MOST, MOST],
];

/// A harness of a backend that keeps entries and latches, and has every mode.
pub trait FullHarness: Harness<Backend: Store> {}

impl<H: Harness<Backend: Store>> FullHarness for H {}

pub struct Memory(MemoryBackend);

impl Harness for Memory {
    type Backend = MemoryBackend;

    const BUSY: Duration = Duration::ZERO;

    async fn start() -> Self {
        Self(MemoryBackend::new())
    }

    fn backend(&self) -> MemoryBackend {
        self.0.clone()
    }
}

/// Three backends, of which a majority holds a lease.
///
/// The backends of one harness are those of one process. Only the process that acquired a lease of
/// a majority knows the owners at the servers.
pub struct OverMemory(Majority);

impl Harness for OverMemory {
    type Backend = Majority;

    const PAIRS: &[[Mode; 2]] = &[[Mode::Exclusive; 2]];

    async fn start() -> Self {
        Self(majority([(); 3].map(|()| MemoryBackend::new())))
    }

    fn backend(&self) -> Majority {
        self.0.clone()
    }
}

fn majority<B: Leases + Clone>(backends: impl IntoIterator<Item = B>) -> Majority {
    Majority::new(backends, LIMIT).expect("there are servers")
}

pub struct Redis([RedisServer; 1]);

impl Harness for Redis {
    type Backend = RedisBackend;

    async fn start() -> Self {
        Self([RedisServer::start().await])
    }

    fn backend(&self) -> RedisBackend {
        testkit::open(self.0[0].url())
    }

    fn servers(&self) -> &[RedisServer] {
        &self.0
    }
}

/// The same as [`OverMemory`] over three servers.
pub struct OverRedis(Vec<RedisServer>, Majority);

impl Harness for OverRedis {
    type Backend = Majority;

    const PAIRS: &[[Mode; 2]] = OverMemory::PAIRS;

    async fn start() -> Self {
        let servers = join_all((0..3).map(|_| RedisServer::start())).await;
        let majority = majority(servers.iter().map(|server| testkit::open(server.url())));
        Self(servers, majority)
    }

    fn backend(&self) -> Majority {
        self.1.clone()
    }

    fn servers(&self) -> &[RedisServer] {
        &self.0
    }
}

/// A cluster of three masters, or `None` once it was given back.
pub struct Clustered(Option<Cluster>);

/// Empty clusters that wait for the next test. The start of a cluster takes seconds.
static IDLE: Mutex<Vec<Cluster>> = Mutex::new(Vec::new());

impl Clustered {
    fn idle() -> MutexGuard<'static, Vec<Cluster>> {
        IDLE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cluster(&self) -> &Cluster {
        self.0.as_ref().expect("the cluster was given back before the end of the test")
    }
}

impl Harness for Clustered {
    type Backend = RedisBackend;

    const PUSHES_TO_HOLDERS: bool = false;

    async fn start() -> Self {
        let idle = Self::idle().pop();
        let cluster = match idle {
            Some(cluster) => cluster,
            None => Cluster::start(3, 0).await,
        };
        Self(Some(cluster))
    }

    fn backend(&self) -> RedisBackend {
        let builder = testkit::builder().cluster(self.cluster().urls());
        builder.build().expect("the URLs of a test cluster are valid")
    }

    fn servers(&self) -> &[RedisServer] {
        &self.cluster().nodes
    }

    async fn finish(mut self) {
        self.no_listener_is_left().await;
        self.keys().await;
        for node in self.servers() {
            node.raw().await.run::<()>(&["FLUSHALL"]).await;
        }
        Self::idle().extend(self.0.take());
    }
}

/// The server in memory of the package `sim`, behind the real client.
#[cfg(bellwether_sim)]
pub struct Simulated(bellwether_sim::network::World);

#[cfg(bellwether_sim)]
impl Harness for Simulated {
    type Backend = RedisBackend;

    async fn start() -> Self {
        Self(bellwether_sim::network::World::calm())
    }

    fn backend(&self) -> RedisBackend {
        testkit::open("redis://p1")
    }

    async fn pass(&self, time: Duration) {
        // A key ends in the millisecond behind its last one.
        let micros = i64::try_from(time.as_micros()).expect("the time is short");
        self.0.step_clock(micros + 1000);
    }

    async fn forget_fence(&self, name: &Name) {
        // Time stands still but for this, and a fence is a time.
        self.0.step_clock(1);
        let is_deleted = self.0.server().delete(&name.suffixed("f"));
        assert!(is_deleted, "the server had no fence to forget");
    }

    async fn no_listener_is_left(&self) {
        let silent = async || self.0.server().channels_of_names().is_empty();
        assert!(comes_true(LIMIT, silent).await, "a subscription is left behind");
    }

    async fn keys(&self) -> Vec<String> {
        let all = self.0.server().keys();
        for (key, expires) in &all {
            assert!(*expires, "{key} never ends");
        }
        all.into_iter().map(|(key, _)| key).collect()
    }
}

pub fn name(key: &str) -> Name {
    name_in("conformance", Family::Cache, key)
}

pub fn name_in(namespace: &str, family: Family, key: &str) -> Name {
    let namespace = Namespace::new(namespace).expect("the namespace is valid");
    Name::new(&namespace, family, &Key::from(key), 512).expect("the name is valid")
}

/// Returns an exclusive claim with a new owner.
pub fn claim(name: &Name) -> Claim {
    claim_in(Mode::Exclusive, name)
}

/// Returns a claim in a mode, with a new owner.
pub fn claim_in(mode: Mode, name: &Name) -> Claim {
    Claim::new(name.clone(), mode, LEASE, FENCE_LIFE)
}

/// Returns claims in one mode.
pub fn claims<const N: usize>(mode: Mode, name: &Name) -> [Claim; N] {
    std::array::from_fn(|_| claim_in(mode, name))
}

/// Returns a claim that does not enter the queue.
pub fn hasty(name: &Name) -> Claim {
    hasty_in(Mode::Exclusive, name)
}

pub fn hasty_in(mode: Mode, name: &Name) -> Claim {
    let mut claim = claim_in(mode, name);
    claim.waits = false;
    claim
}

/// Returns the claim as one of another process, which no claim of this one keeps in the queue.
pub fn elsewhere(mut claim: Claim) -> Claim {
    let text = claim.owner.to_string();
    let (process, own) = text.split_at(16);
    claim.owner = format!("{own}{process}").parse().expect("an owner is hexadecimal digits");
    claim
}

/// Returns the changes that were pushed so far, but for wake-ups. Clears the lease of a claim.
pub async fn pushed(backend: &impl Leases, changes: &mut Changes, of: &Claim) -> Vec<Change> {
    // The `Wake` of the clear follows all of them, but a turn may arrive on another channel.
    backend.clear(&of.name, of.mode).await.expect("the clear failed");
    let mut all = vec![next(changes).await];
    while let Ok(change) = timeout(Duration::ZERO, changes.next()).await {
        all.push(change);
    }
    while !all.contains(&Change::Wake) {
        all.push(next(changes).await);
    }
    all.retain(|change| *change != Change::Wake);
    all
}

/// Returns the text of an entry of [`value`].
pub fn text(entry: &Entry) -> &str {
    std::str::from_utf8(&entry.payload).expect("the payload is a text")
}

/// Waits for the handover of the lease to a claim.
pub async fn handed_over(changes: &mut Changes, to: &Claim) -> Handover {
    match next(changes).await {
        Change::Granted(handover) if handover.owner == to.owner => handover,
        other => panic!("the lease was not handed over to {to:?}: {other:?}"),
    }
}

/// Renews the lease of a claim, and returns whether it was held.
pub async fn renewed(backend: &impl Leases, claim: &Claim) -> bool {
    let renewed = backend.renew(std::slice::from_ref(claim)).await.expect("the renewal failed");
    renewed == [Renewal::Held]
}

/// Stores a value by a load of its own, and returns its fence.
pub async fn stored(backend: &impl Store, name: &Name, text: &str) -> u64 {
    let claim = claim(name);
    let grant = begun_over(backend, &claim, u64::MAX).await;
    let outcome = backend.commit(&claim, &grant, &value(text), Some(TTL)).await;
    assert!(matches!(outcome, Ok(bellwether::backend::Committed::Stored)), "{outcome:?}");
    grant.fence()
}

/// Changes an entry, and returns the fence of the change.
pub async fn edit(backend: &impl Store, name: &Name, edit: &Edit) -> u64 {
    backend.edit(name, edit, FENCE_LIFE).await.expect("the edit failed")
}

pub async fn invalidated(backend: &impl Store, name: &Name) -> u64 {
    edit(backend, name, &Edit::Invalidate).await
}

/// Writes a value without a load, and returns its fence.
pub async fn put(backend: &impl Store, name: &Name, text: &str) -> u64 {
    edit(backend, name, &Edit::Put(value(text), TTL)).await
}

/// Returns the text of the present entry.
pub async fn read(backend: &impl Store, name: &Name) -> Option<String> {
    backend.get(name).await.expect("the get failed").map(|entry| text(&entry).to_owned())
}

pub async fn listen(backend: &impl Leases, name: &Name) -> Changes {
    backend.changes(name).await.expect("the subscription failed")
}
