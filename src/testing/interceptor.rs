//! A backend in front of another one, and a hook that meets each operation on its way.

use std::{
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;

use super::{Answer, Op, Operation};
use crate::{
    backend::{
        Acquired, BackOff, Changes, Claim, Claimed, Committed, Countdown, Edit, Entry, Failure,
        Grant, Holding, Kept, Latches, Leases, Marked, Mode, Owner, Renewal, SemaphoreKind, Store,
        TagEnd, TagEnds, Tap, Tick,
    },
    error::{BackendError, BackendErrorKind},
    key::{Name, Namespace},
};

/// Meets each operation of an [`Interceptor`].
///
/// # Examples
///
/// A hook that counts the loads that are stored, over any backend:
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
/// use bellwether::{
///     BoxError, Cache, MemoryBackend,
///     backend::{Latches, Store},
///     error::BackendError,
///     testing::{Answer, Hook, Interceptor, Operation},
/// };
///
/// #[derive(Clone, Default)]
/// struct Commits(Arc<AtomicUsize>);
///
/// impl<B: Store + Latches> Hook<B> for Commits {
///     async fn around(&self, backend: &B, operation: Operation) -> Result<Answer, BackendError> {
///         if let Operation::Commit { .. } = operation {
///             self.0.fetch_add(1, Ordering::SeqCst);
///         }
///         operation.perform(backend).await
///     }
/// }
///
/// # let mut runtime = tokio::runtime::Builder::new_current_thread();
/// # runtime.enable_time().start_paused(true).build().unwrap().block_on(async {
/// let commits = Commits::default();
/// let backend = Interceptor { inner: MemoryBackend::new(), hook: commits.clone() };
/// let cache: Cache<u64> = Cache::builder(backend, "shop").build()?;
/// cache.get_or_load("stock", |_lead| async { Ok::<_, BoxError>(17) }).await?;
/// assert_eq!(commits.0.load(Ordering::SeqCst), 1);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
pub trait Hook<B>: Clone + Send + Sync + 'static {
    /// Answers an operation.
    ///
    /// A hook that changes nothing [performs](Operation::perform) it on the backend.
    ///
    /// # Errors
    ///
    /// The answer for the caller of the operation.
    ///
    /// # Cancel safety
    ///
    /// The caller may drop the future at any point. The operation has happened then, or not.
    fn around(
        &self,
        backend: &B,
        operation: Operation,
    ) -> impl Future<Output = Result<Answer, BackendError>> + Send;

    /// Registers a waiter for pushes.
    ///
    /// The default registers it at the backend.
    fn listen(&self, backend: &B, name: &Name, claim: Option<&Claim>) -> Changes
    where
        B: Leases,
    {
        backend.listen(name, claim)
    }

    /// Has a local tier told of changes.
    #[doc(hidden)]
    fn tap(&self, backend: &B, tier: Weak<dyn Tap>, every: Duration) -> bool
    where
        B: Store,
    {
        backend.tap(tier, every)
    }

    /// Returns whether local tiers are told of the changes of a name.
    #[doc(hidden)]
    fn hears(&self, backend: &B, name: &Name, begins: bool) -> bool
    where
        B: Store,
    {
        backend.hears(name, begins)
    }
}

/// A backend that passes each operation to a [`Hook`].
///
/// The hook decides whether, when and where the operation is performed. Clones share the backend
/// and the hook, as far as the clones of these do.
///
/// A read of many names arrives as one [`Op::Get`] or [`Op::GetAged`] for each. Labels of processes
/// are not kept.
#[derive(Clone, Debug)]
pub struct Interceptor<B, H> {
    /// The backend behind the hook.
    pub inner: B,
    /// The hooks that meet each operation.
    pub hook: H,
}

/// Sends an operation to the hook of an interceptor.
macro_rules! ask {
    ($interceptor:ident, $op:ident { $($arguments:tt)* }) => {{
        let operation = Operation::$op { $($arguments)* };
        match $interceptor.hook.around(&$interceptor.inner, operation).await? {
            Answer::$op(answer) => Ok(answer),
            other => Err(not_an_answer(Op::$op, &other)),
        }
    }};
}

/// The error of a hook that gives the answer to another operation.
fn not_an_answer(op: Op, answer: &Answer) -> BackendError {
    let why = format!("the hook was asked for {op:?} and answered {answer:?}");
    BackendError::new(BackendErrorKind::Unknown, why)
}

#[async_trait]
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

    async fn set_fence(&self, claim: &Claim, fence: u64) -> Result<bool, BackendError> {
        ask!(self, SetFence { claim: claim.clone(), fence })
    }

    async fn mark(&self, claim: &Claim, tick: Tick) -> Result<Marked, BackendError> {
        ask!(self, Mark { claim: claim.clone(), tick })
    }

    async fn inspect(&self, name: &Name, kind: SemaphoreKind) -> Result<Holding, BackendError> {
        ask!(self, Inspect { name: name.clone(), kind })
    }

    async fn lock_names(
        &self,
        namespace: &Namespace,
    ) -> Result<Vec<(Name, SemaphoreKind)>, BackendError> {
        ask!(self, LockNames { namespace: namespace.clone() })
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

#[async_trait]
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

    async fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError> {
        ask!(self, Fail { claim: claim.clone(), failure: failure.clone(), back_off })
    }

    async fn edit(
        &self,
        name: &Name,
        edit: &Edit,
        fence_life: Duration,
    ) -> Result<u64, BackendError> {
        ask!(self, Edit { name: name.clone(), edit: edit.clone(), fence_life })
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

#[async_trait]
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
