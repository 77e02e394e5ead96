//! A backend in front of another one, and a hook that meets each operation on its way.

use std::{
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use bellwether::{
    backend::{
        Acquired, Announcement, BackOff, Changes, Claim, Claimed, Committed, Countdown, Entry,
        Failure, Grant, Kept, Latches, Leases, Marked, Mode, Occupied, Owner, Renewal, Store,
        TagEnd, TagEnds, Tap, Tick, Windows,
    },
    error::BackendError,
    key::Name,
};

/// Declares the operations of a backend: name, arguments, answer, and how each is performed.
macro_rules! operations {
    ($backend:ident; $(
        $op:ident { $($argument:ident: $kind:ty),+ } -> $answer:ty = $perform:expr;
    )+) => {
        /// Names an operation.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Op {
            $($op,)+
        }

        /// An operation with its arguments.
        #[derive(Clone, Debug)]
        pub enum Operation {
            $($op { $($argument: $kind),+ },)+
        }

        /// The answer to the [`Operation`] of the same name.
        #[derive(Debug)]
        pub enum Answer {
            $($op($answer),)+
        }

        impl Operation {
            /// Returns which operation this is.
            pub fn op(&self) -> Op {
                match self {
                    $(Self::$op { .. } => Op::$op,)+
                }
            }

            /// Performs the operation on a backend. It may be performed more than once.
            pub async fn perform<B: Store + Latches>(
                &self,
                backend: &B,
            ) -> Result<Answer, BackendError> {
                let $backend = backend;
                match self {
                    $(Self::$op { $($argument),+ } => $perform.await.map(Answer::$op),)+
                }
            }
        }
    };
}

operations! {
    backend;
    Acquire { claim: Claim } -> Acquired = backend.acquire(claim);
    Renew { claims: Vec<Claim> } -> Vec<Renewal> = backend.renew(claims);
    Keep { claims: Vec<Claim>, life: Duration } -> Kept = backend.keep(claims, *life);
    Release { claim: Claim } -> bool = backend.release(claim);
    Pass { from: Claim, to: Claim } -> Option<Grant> = backend.pass(from, to);
    PassWithFence { from: Claim, to: Claim, fence: u64 } -> Option<Grant> =
        backend.pass_with_fence(from, to, *fence);
    Mark { claim: Claim, tick: Tick } -> Marked = backend.mark(claim, *tick);
    Holder { name: Name, mode: Mode } -> Option<Occupied> = backend.holder(name, *mode);
    Clear { name: Name, mode: Mode } -> bool = backend.clear(name, *mode);
    Changes { name: Name } -> Changes = backend.changes(name);
    Get { name: Name } -> Option<Entry> = backend.get(name);
    GetAged { name: Name } -> Option<Entry> = backend.get_aged(name);
    Fetch { name: Name, announced: Announcement } -> Option<Entry> =
        backend.fetch(name, announced);
    Claim { claim: Claim, seen: u64 } -> Claimed = backend.claim(claim, *seen);
    Commit { claim: Claim, fence: u64, entry: Entry, ttl: Option<Duration> } -> Committed =
        async { backend.commit(claim, &Grant::new(*fence), entry, *ttl).await };
    CommitUnchanged { claim: Claim, fence: u64, seen: u64, entry: Entry } -> Committed =
        async { backend.commit_unchanged(claim, &Grant::new(*fence), *seen, entry).await };
    Fail { claim: Claim, failure: Failure, back_off: Option<BackOff> } -> bool =
        backend.fail(claim, failure, *back_off);
    Put { name: Name, entry: Entry, ttl: Duration, fence_life: Duration } -> u64 =
        backend.put(name, entry, *ttl, *fence_life);
    Touch { name: Name, windows: Windows, fence_life: Duration } -> Option<u64> =
        backend.touch(name, *windows, *fence_life);
    Expire { name: Name, fence_life: Duration } -> u64 = backend.expire(name, *fence_life);
    Supersede { name: Name, fence_life: Duration } -> u64 =
        backend.supersede(name, *fence_life);
    Invalidate { name: Name, fence_life: Duration } -> u64 =
        backend.invalidate(name, *fence_life);
    TagNumber { tags: Name } -> u64 = backend.tag_number(tags);
    TagEnds { tags: Name, which: Vec<Arc<str>> } -> Vec<TagEnds> =
        backend.tag_ends(tags, which);
    EndTag { tags: Name, tag: String, end: TagEnd } -> u64 = backend.end_tag(tags, tag, *end);
    SetLatch { name: Name, id: Owner, count: u32, ttl: Duration } -> bool =
        backend.set_latch(name, *id, *count, *ttl);
    CountDown { name: Name, id: Owner, by: u32 } -> Option<Countdown> =
        backend.count_down(name, *id, *by);
    Latch { name: Name } -> Option<Countdown> = backend.latch(name);
    ClearLatch { name: Name } -> bool = backend.clear_latch(name);
}

/// Meets each operation of an [`Interceptor`].
pub trait Hook<B>: Clone + Send + Sync + 'static {
    /// Answers an operation.
    ///
    /// A hook that changes nothing [performs](Operation::perform) it on the backend.
    fn around(
        &self,
        backend: &B,
        operation: Operation,
    ) -> impl Future<Output = Result<Answer, BackendError>> + Send;

    /// Registers a waiter.
    fn listen(&self, backend: &B, name: &Name, claim: Option<&Claim>) -> Changes
    where
        B: Leases,
    {
        backend.listen(name, claim)
    }

    /// Has a local tier told of changes.
    fn tap(&self, backend: &B, tier: Weak<dyn Tap>, every: Duration) -> bool
    where
        B: Store,
    {
        backend.tap(tier, every)
    }

    /// Returns whether local tiers are told of the changes of a name.
    fn hears(&self, backend: &B, name: &Name, begins: bool) -> bool
    where
        B: Store,
    {
        backend.hears(name, begins)
    }
}

/// A backend that passes each operation to a hook.
///
/// The hook decides whether, when and where the operation is performed.
#[derive(Clone, Debug)]
pub struct Interceptor<B, H> {
    pub inner: B,
    pub hook: H,
}

/// Sends an operation to the hook of an interceptor.
macro_rules! ask {
    ($interceptor:ident, $op:ident { $($arguments:tt)* }) => {{
        let operation = Operation::$op { $($arguments)* };
        match $interceptor.hook.around(&$interceptor.inner, operation).await? {
            Answer::$op(answer) => Ok(answer),
            other => panic!("not an answer to {:?}: {other:?}", Op::$op),
        }
    }};
}

impl<B: Store + Latches, H: Hook<B>> Leases for Interceptor<B, H> {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        ask!(self, Acquire { claim: claim.clone() })
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        ask!(self, Renew { claims: claims.to_vec() })
    }

    async fn keep(&self, claims: &[Claim], life: Duration) -> Result<Kept, BackendError> {
        ask!(self, Keep { claims: claims.to_vec(), life })
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        ask!(self, Release { claim: claim.clone() })
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        ask!(self, Pass { from: from.clone(), to: to.clone() })
    }

    async fn pass_with_fence(
        &self,
        from: &Claim,
        to: &Claim,
        fence: u64,
    ) -> Result<Option<Grant>, BackendError> {
        ask!(self, PassWithFence { from: from.clone(), to: to.clone(), fence })
    }

    async fn mark(&self, claim: &Claim, tick: Tick) -> Result<Marked, BackendError> {
        ask!(self, Mark { claim: claim.clone(), tick })
    }

    async fn holder(&self, name: &Name, mode: Mode) -> Result<Option<Occupied>, BackendError> {
        ask!(self, Holder { name: name.clone(), mode })
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        ask!(self, Clear { name: name.clone(), mode })
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        ask!(self, Changes { name: name.clone() })
    }

    fn listen(&self, name: &Name, claim: Option<&Claim>) -> Changes {
        self.hook.listen(&self.inner, name, claim)
    }

    fn time_limit(&self) -> Option<Duration> {
        self.inner.time_limit()
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    fn shard(&self, name: &Name) -> usize {
        self.inner.shard(name)
    }

    fn new_connections(&self) -> Option<tokio::sync::watch::Receiver<()>> {
        self.inner.new_connections()
    }
}

impl<B: Store + Latches, H: Hook<B>> Store for Interceptor<B, H> {
    fn tap(&self, tier: Weak<dyn Tap>, every: Duration) -> bool {
        self.hook.tap(&self.inner, tier, every)
    }

    fn hears(&self, name: &Name, begins: bool) -> bool {
        self.hook.hears(&self.inner, name, begins)
    }

    async fn get(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        ask!(self, Get { name: name.clone() })
    }

    async fn get_aged(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        ask!(self, GetAged { name: name.clone() })
    }

    async fn fetch(
        &self,
        name: &Name,
        announced: &Announcement,
    ) -> Result<Option<Entry>, BackendError> {
        ask!(self, Fetch { name: name.clone(), announced: *announced })
    }

    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        ask!(self, Claim { claim: claim.clone(), seen })
    }

    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let (claim, entry) = (claim.clone(), entry.clone());
        ask!(self, Commit { claim, fence: grant.fence(), entry, ttl })
    }

    async fn commit_unchanged(
        &self,
        claim: &Claim,
        grant: &Grant,
        seen: u64,
        entry: &Entry,
    ) -> Result<Committed, BackendError> {
        let (claim, entry) = (claim.clone(), entry.clone());
        ask!(self, CommitUnchanged { claim, fence: grant.fence(), seen, entry })
    }

    async fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError> {
        ask!(self, Fail { claim: claim.clone(), failure: failure.clone(), back_off })
    }

    async fn put(
        &self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
    ) -> Result<u64, BackendError> {
        ask!(self, Put { name: name.clone(), entry: entry.clone(), ttl, fence_life })
    }

    async fn touch(
        &self,
        name: &Name,
        windows: Windows,
        fence_life: Duration,
    ) -> Result<Option<u64>, BackendError> {
        ask!(self, Touch { name: name.clone(), windows, fence_life })
    }

    async fn expire(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        ask!(self, Expire { name: name.clone(), fence_life })
    }

    async fn supersede(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        ask!(self, Supersede { name: name.clone(), fence_life })
    }

    async fn invalidate(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        ask!(self, Invalidate { name: name.clone(), fence_life })
    }

    async fn tag_number(&self, tags: &Name) -> Result<u64, BackendError> {
        ask!(self, TagNumber { tags: tags.clone() })
    }

    async fn tag_ends(
        &self,
        tags: &Name,
        which: &[Arc<str>],
    ) -> Result<Vec<TagEnds>, BackendError> {
        ask!(self, TagEnds { tags: tags.clone(), which: which.to_vec() })
    }

    async fn end_tag(&self, tags: &Name, tag: &str, end: TagEnd) -> Result<u64, BackendError> {
        ask!(self, EndTag { tags: tags.clone(), tag: tag.to_owned(), end })
    }
}

impl<B: Store + Latches, H: Hook<B>> Latches for Interceptor<B, H> {
    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError> {
        ask!(self, SetLatch { name: name.clone(), id, count, ttl })
    }

    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError> {
        ask!(self, CountDown { name: name.clone(), id, by })
    }

    async fn latch(&self, name: &Name) -> Result<Option<Countdown>, BackendError> {
        ask!(self, Latch { name: name.clone() })
    }

    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError> {
        ask!(self, ClearLatch { name: name.clone() })
    }
}
