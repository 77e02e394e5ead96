//! A rule is given a harness: a backend, and the passing of time.

use std::{future::Future, time::Duration};

use bellwether::{
    Key, MemoryBackend,
    backend::{
        Acquired, Change, Changes, Claim, Claimed, Entry, Failure, Grant, Handover, Latches,
        Leases, Mode, Occupied, Store,
    },
    key::{Family, Name, Namespace},
    lock::Majority,
};
use bytes::Bytes;
use testkit::LIMIT;
use tokio::time::timeout;

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

    fn start() -> impl Future<Output = Self>;

    /// Returns the backend as one more process of the fleet has it, with connections of its own.
    fn backend(&self) -> Self::Backend;

    /// Lets time pass for everything that is kept.
    ///
    /// Memory uses the paused time of tokio. Redis makes every key older by as much, so that
    /// nothing depends on the load of the machine. `tests/redis/scripts.rs` tests that the clock of
    /// the server ends leases.
    fn pass(&self, time: Duration) -> impl Future<Output = ()>;

    /// Makes the backend forget the last fence of a name, as an eviction does.
    fn forget_fence(&self, name: &Name) -> impl Future<Output = ()>;

    /// Checks that no listener is left.
    fn no_listener_is_left(&self) -> impl Future<Output = ()>;

    /// Returns the present keys after checking that each has an end. A backend without keys returns
    /// none.
    fn keys(&self) -> impl Future<Output = Vec<String>>;

    /// Checks the conditions that hold after every rule.
    fn finish(self) -> impl Future<Output = ()> {
        async move {
            self.no_listener_is_left().await;
            self.keys().await;
        }
    }
}

/// A harness of a backend that keeps entries and latches, and has every mode.
pub trait FullHarness: Harness<Backend: Store + Latches> {}

impl<H: Harness<Backend: Store + Latches>> FullHarness for H {}

/// Checks that a fence is greater than an earlier one.
pub fn assert_newer(fence: u64, earlier: u64) {
    assert!(fence > earlier, "{fence} is not greater than {earlier}");
}

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

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }

    async fn forget_fence(&self, _: &Name) {
        // Memory evicts no fence, so the fence must end by its time.
        self.pass(FENCE_LIFE).await;
    }

    async fn no_listener_is_left(&self) {}

    async fn keys(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Three memory backends, of which a majority holds a lease.
///
/// The backends of one harness are those of one process. Only the process that acquired a lease of
/// a majority knows the owners at the servers.
pub struct OverMemory(Majority);

impl Harness for OverMemory {
    type Backend = Majority;

    async fn start() -> Self {
        Self(
            Majority::new([(); 3].map(|()| MemoryBackend::new()), LIMIT)
                .expect("there are servers"),
        )
    }

    fn backend(&self) -> Majority {
        self.0.clone()
    }

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }

    async fn forget_fence(&self, _: &Name) {
        self.pass(FENCE_LIFE).await;
    }

    async fn no_listener_is_left(&self) {}

    async fn keys(&self) -> Vec<String> {
        Vec::new()
    }
}

pub use self::over_redis::{Clustered, OverRedis, Redis};

mod over_redis {
    use bellwether::backend::{RedisBackend, RedisBackendBuilder};

    use super::*;
    use std::sync::{Mutex, PoisonError};

    use futures_util::future::join_all;
    use testkit::{Cluster, RedisServer, comes_true, eventually};

    pub struct Redis(RedisServer);

    impl Harness for Redis {
        type Backend = RedisBackend;

        async fn start() -> Self {
            Self(RedisServer::start().await)
        }

        fn backend(&self) -> RedisBackend {
            builder().server(self.0.url()).build().expect("the URL of a test server is valid")
        }

        async fn pass(&self, time: Duration) {
            self.0.raw().await.age(time).await;
        }

        async fn forget_fence(&self, name: &Name) {
            let deleted: u32 = self.0.raw().await.run(&["DEL", &name.suffixed("f")]).await;
            assert_eq!(deleted, 1, "the backend had no fence to forget");
        }

        async fn no_listener_is_left(&self) {
            let raw = self.0.raw().await;
            let silent = || {
                let mut raw = raw.clone();
                async move { raw.pubsub_channels().await.is_empty() }
            };
            assert!(eventually(LIMIT, silent).await, "a subscription is left behind");
        }

        async fn keys(&self) -> Vec<String> {
            let mut raw = self.0.raw().await;
            let keys = raw.keys("*").await;
            for key in &keys {
                assert_ne!(raw.pttl(key).await, -1, "{key} never ends");
            }
            keys
        }
    }

    fn builder() -> RedisBackendBuilder {
        testkit::builder()
    }

    /// Three servers, of which a majority holds a lease.
    pub struct OverRedis {
        servers: Vec<RedisServer>,
        majority: Majority,
    }

    impl Harness for OverRedis {
        type Backend = Majority;

        async fn start() -> Self {
            let servers = join_all((0..3).map(|_| RedisServer::start())).await;
            let backends = servers.iter().map(|server| {
                builder().server(server.url()).build().expect("the URL of a test server is valid")
            });
            let majority = Majority::new(backends, LIMIT).expect("there are servers");
            Self { servers, majority }
        }

        fn backend(&self) -> Majority {
            self.majority.clone()
        }

        async fn pass(&self, time: Duration) {
            for server in &self.servers {
                server.raw().await.age(time).await;
            }
        }

        async fn forget_fence(&self, name: &Name) {
            for server in &self.servers {
                server.raw().await.run::<u32>(&["DEL", &name.suffixed("f")]).await;
            }
        }

        async fn no_listener_is_left(&self) {
            for server in &self.servers {
                let mut raw = server.raw().await;
                let silent = async || raw.pubsub_channels().await.is_empty();
                assert!(comes_true(LIMIT, silent).await, "a subscription is left behind");
            }
        }

        async fn keys(&self) -> Vec<String> {
            let mut all = Vec::new();
            for server in &self.servers {
                let mut raw = server.raw().await;
                for key in raw.keys("*").await {
                    assert_ne!(raw.pttl(&key).await, -1, "{key} never ends");
                    all.push(key);
                }
            }
            all
        }
    }

    /// A cluster of three masters, or `None` once it was given back.
    pub struct Clustered(Option<Cluster>);

    /// Empty clusters that wait for the next test. The start of a cluster takes seconds.
    static IDLE: Mutex<Vec<Cluster>> = Mutex::new(Vec::new());

    impl Clustered {
        fn cluster(&self) -> &Cluster {
            self.0.as_ref().expect("the cluster was given back before the end of the test")
        }
    }

    impl Harness for Clustered {
        type Backend = RedisBackend;

        async fn start() -> Self {
            let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let cluster = match idle {
                Some(cluster) => cluster,
                None => Cluster::start(3, 0).await,
            };
            Self(Some(cluster))
        }

        fn backend(&self) -> RedisBackend {
            let urls = self.cluster().urls();
            builder().cluster(urls).build().expect("the URLs of a test cluster are valid")
        }

        async fn pass(&self, time: Duration) {
            for node in &self.cluster().nodes {
                node.raw().await.age(time).await;
            }
        }

        async fn forget_fence(&self, name: &Name) {
            let key = name.suffixed("f");
            let owner = self.cluster().owner(&key).await;
            let deleted: u32 = self.cluster().nodes[owner].raw().await.run(&["DEL", &key]).await;
            assert_eq!(deleted, 1, "the backend had no fence to forget");
        }

        async fn no_listener_is_left(&self) {
            for node in &self.cluster().nodes {
                let mut raw = node.raw().await;
                let silent = async || raw.shard_channels().await.is_empty();
                assert!(comes_true(LIMIT, silent).await, "a subscription is left behind");
                assert!(
                    raw.pubsub_channels().await.is_empty(),
                    "a subscription concerns the whole cluster"
                );
            }
        }

        async fn keys(&self) -> Vec<String> {
            let mut all = Vec::new();
            for node in &self.cluster().nodes {
                let mut raw = node.raw().await;
                let keys = raw.keys("*").await;
                for key in &keys {
                    assert_ne!(raw.pttl(key).await, -1, "{key} never ends");
                }
                all.extend(keys);
            }
            all.sort();
            all
        }

        async fn finish(mut self) {
            self.no_listener_is_left().await;
            self.keys().await;
            for node in &self.cluster().nodes {
                node.raw().await.run::<()>(&["FLUSHALL"]).await;
            }
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).extend(self.0.take());
        }
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
    Claim::new(name.clone(), Mode::Exclusive, LEASE, FENCE_LIFE)
}

/// Returns a claim that does not enter the queue.
pub fn hasty(name: &Name) -> Claim {
    let mut claim = claim(name);
    claim.waits = false;
    claim
}

/// Returns a claim in a mode, with a new owner.
pub fn claim_in(mode: Mode, name: &Name) -> Claim {
    Claim::new(name.clone(), mode, LEASE, FENCE_LIFE)
}

/// Returns the claim as one of another process, which no claim of this one keeps in the queue.
pub fn elsewhere(mut claim: Claim) -> Claim {
    let text = claim.owner.to_string();
    let (process, own) = text.split_at(16);
    claim.owner = format!("{own}{process}").parse().expect("an owner is hexadecimal digits");
    claim
}

/// Returns the changes of a mutex that were pushed so far, but for wake-ups. Clears the mutex.
pub async fn pushed(backend: &impl Leases, changes: &mut Changes, name: &Name) -> Vec<Change> {
    // The `Wake` of the clear follows all of them, but a turn may arrive on another channel.
    backend.clear(name, Mode::Exclusive).await.expect("the clear failed");
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

pub fn value(text: &str) -> Entry {
    Entry::value(7, Duration::from_millis(5), Bytes::copy_from_slice(text.as_bytes()))
}

/// Returns the text of an entry of [`value`].
pub fn text(entry: &Entry) -> &str {
    std::str::from_utf8(&entry.payload).expect("the payload is a text")
}

/// Returns a failure as it arrives from another process.
pub fn failure(fence: u64, message: &str) -> Failure {
    match Change::decode(&Bytes::from(format!("f{fence:016}l{:016}{message}", 0))) {
        Change::Failed(failure) => failure,
        other => panic!("the bytes were not decoded as a failure: {other:?}"),
    }
}

pub async fn granted(backend: &impl Leases, claim: &Claim) -> Grant {
    match backend.acquire(claim).await {
        Ok(Acquired::Granted(grant)) => grant,
        other => panic!("{claim:?} was not granted: {other:?}"),
    }
}

pub async fn held(backend: &impl Leases, claim: &Claim) -> Occupied {
    match backend.acquire(claim).await {
        Ok(Acquired::Occupied(occupied)) => occupied,
        other => panic!("{claim:?} was not refused: {other:?}"),
    }
}

/// Waits for the handover of the lease to a claim.
pub async fn handed_over(changes: &mut Changes, to: &Claim) -> Handover {
    match next(changes).await {
        Change::Granted(handover) if handover.owner == to.owner => handover,
        other => panic!("the lease was not handed over to {to:?}: {other:?}"),
    }
}

/// Claims a load, which must be granted.
pub async fn begun(backend: &impl Store, claim: &Claim) -> Grant {
    match backend.claim(claim, 0).await {
        Ok(Claimed::Granted(grant)) => grant,
        other => panic!("{claim:?} was not granted: {other:?}"),
    }
}

/// Stores a value by a load of its own, and returns its fence.
pub async fn stored(backend: &impl Store, name: &Name, text: &str) -> u64 {
    let claim = claim(name);
    let grant = match backend.claim(&claim, u64::MAX).await {
        Ok(Claimed::Granted(grant)) => grant,
        other => panic!("{claim:?} was not granted: {other:?}"),
    };
    let outcome = backend.commit(&claim, &grant, &value(text), Some(TTL)).await;
    assert!(matches!(outcome, Ok(bellwether::backend::Committed::Stored)), "{outcome:?}");
    grant.fence()
}

/// Returns the text of the present entry.
pub async fn read(backend: &impl Store, name: &Name) -> Option<String> {
    backend.get(name).await.expect("the get failed").map(|entry| text(&entry).to_owned())
}

pub async fn listen(backend: &impl Leases, name: &Name) -> Changes {
    backend.changes(name).await.expect("the subscription failed")
}

pub async fn next(changes: &mut Changes) -> Change {
    timeout(LIMIT, changes.next()).await.expect("no change was pushed in time")
}
