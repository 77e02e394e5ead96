//! A backend in front of another backend, with a hook that gets each operation. Operations are
//! values, so that a hook can delay, repeat or drop an operation.

use std::{
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;

use crate::{
    backend::{
        ANSWER_LIMIT, BackOff, Changes, Claim, Claimed, Committed, Connections, Countdown, Edit,
        Entry, Failure, FoundLocks, Grant, Holders, Holding, Kept, Leases, Marked, Mode, Owner,
        ProcessId, Renewal, SearchFrom, SemaphoreKind, Store, TagEnd, TagEnds, Tap, Tick, in_time,
    },
    error::{BackendError, BackendErrorKind},
    key::{Name, Namespace},
};

/// Gets each operation of an [`Interceptor`].
///
/// ```
/// use bellwether::{backend::Store, error::BackendError, testing::{Answer, Hook, Operation}};
///
/// /// Changes nothing.
/// #[derive(Clone)]
/// struct Passes;
///
/// impl<B: Store> Hook<B> for Passes {
///     async fn around(&self, backend: &B, operation: Operation) -> Result<Answer, BackendError> {
///         operation.perform(backend).await
///     }
/// }
/// ```
pub trait Hook<B: Store>: Clone + Send + Sync + 'static {
    /// Answers an operation. A hook that changes nothing [performs](Operation::perform) the
    /// operation on the backend. The caller may drop the future at any point.
    fn around(
        &self,
        backend: &B,
        operation: Operation,
    ) -> impl Future<Output = Result<Answer, BackendError>> + Send;

    /// Registers a waiter for pushes. The default registers the waiter at the backend.
    fn listen(&self, backend: &B, name: &Name, claim: Option<&Claim>) -> Changes {
        backend.listen(name, claim)
    }

    /// Subscribes a local tier to changes.
    fn tap(&self, backend: &B, tier: Weak<dyn Tap>, every: Duration) -> bool {
        backend.tap(tier, every)
    }

    /// Returns whether the local tiers of this process get the changes of a name.
    fn hears(&self, backend: &B, name: &Name, begins: bool) -> bool {
        backend.hears(name, begins)
    }
}

/// A backend that passes each operation to a [`Hook`].
///
/// The hook decides whether, when and where the operation is performed. A clone has clones of the
/// backend and of the hook.
///
/// An operation may take a second, or as long as the backend allows if that is longer. A read of
/// many names arrives as one [`Op::Get`] for each name. Labels of processes are not kept.
#[derive(Clone, Debug)]
pub struct Interceptor<B, H> {
    /// The backend behind the hook.
    pub inner: B,
    /// The hook that gets each operation.
    pub hook: H,
}

impl<B: Store, H: Hook<B>> Interceptor<B, H> {
    async fn ask(&self, operation: Operation) -> Result<Answer, BackendError> {
        let limit = self.inner.time_limit().unwrap_or_default();
        let limit = limit.max(ANSWER_LIMIT);
        in_time(limit, self.hook.around(&self.inner, operation)).await
    }
}

fn not_an_answer(op: Op, answer: &Answer) -> BackendError {
    let why = format!("the hook answered {op:?} with {answer:?}");
    BackendError::new(BackendErrorKind::Unknown, why)
}

/// Declares the operations of a backend: the name, the type in which each argument is kept and the
/// type that the method takes, the answer, and the call of the method. The methods behind `also`
/// are written by hand.
macro_rules! operations {
    ($($Trait:ident {
        $(
            $(#[$doc:meta])*
            $op:ident { $($argument:ident: $kind:ty = $given:ty),+ } -> $answer:ty =
                $method:ident($($pass:expr),+);
        )+
    } also { $($also:tt)* })+) => {
        /// Names an operation of a backend.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Op {
            $($($(#[$doc])* $op,)+)+
        }

        /// An operation of a backend, with the arguments of its method.
        #[derive(Clone, Debug)]
        #[non_exhaustive]
        #[allow(missing_docs)]
        pub enum Operation {
            $($($op { $($argument: $kind),+ },)+)+
        }

        /// The answer to the [`Operation`] of the same name.
        #[derive(Debug)]
        #[non_exhaustive]
        #[allow(missing_docs)]
        pub enum Answer {
            $($($op($answer),)+)+
        }

        impl Operation {
            /// Returns which operation this is.
            pub fn op(&self) -> Op {
                match self {
                    $($(Self::$op { .. } => Op::$op,)+)+
                }
            }

            /// Performs the operation on a backend, as its method does. A hook may call this more
            /// than once.
            pub async fn perform<B: Store>(&self, backend: &B) -> Result<Answer, BackendError> {
                match self {
                    $($(Self::$op { $($argument),+ } => {
                        backend.$method($($pass),+).await.map(Answer::$op)
                    })+)+
                }
            }
        }

        $(
            #[async_trait]
            impl<B: Store, H: Hook<B>> $Trait for Interceptor<B, H> {
                $(async fn $method(
                    &self,
                    $($argument: $given),+
                ) -> Result<$answer, BackendError> {
                    let operation = Operation::$op { $($argument: $argument.to_owned()),+ };
                    match self.ask(operation).await? {
                        Answer::$op(answer) => Ok(answer),
                        other => Err(not_an_answer(Op::$op, &other)),
                    }
                })+

                $($also)*
            }
        )+
    };
}

operations! {
    Leases {
        /// Takes the lease of a lock.
        Acquire { claim: Claim = &Claim } -> Claimed = acquire(claim);
        /// Renews leases.
        Renew { claims: Vec<Claim> = &[Claim] } -> Vec<Renewal> = renew(claims);
        /// Keeps places in the queue of a lock.
        Keep { claims: Vec<Claim> = &[Claim], life: Duration = Duration } -> Kept =
            keep(claims, *life);
        /// Ends a lease.
        Release { claim: Claim = &Claim } -> bool = release(claim);
        /// Passes a lease on.
        Pass { from: Claim = &Claim, to: Claim = &Claim } -> Option<Grant> = pass(from, to);
        /// Gives the lease of a [`Redlock`](crate::Redlock) a fence.
        SetFence { claim: Claim = &Claim, fence: u64 = u64 } -> bool = set_fence(claim, *fence);
        /// Marks the tick of a job.
        Mark { claim: Claim = &Claim, tick: Tick = Tick } -> Marked = mark(claim, *tick);
        /// Looks into a lock or a load.
        Inspect { name: Name = &Name, kind: SemaphoreKind = SemaphoreKind } -> Holding =
            inspect(name, *kind);
        /// Lists locks.
        LockNames { namespace: Namespace = &Namespace, from: SearchFrom = &SearchFrom }
            -> FoundLocks = lock_names(namespace, from);
        /// Ends a lease by force.
        Clear { name: Name = &Name, mode: Mode = Mode } -> bool = clear(name, *mode);
        /// Registers a waiter for pushes.
        Changes { name: Name = &Name } -> Changes = changes(name);
    } also {
        fn listen(&self, name: &Name, claim: Option<&Claim>) -> Changes {
            self.hook.listen(&self.inner, name, claim)
        }

        fn time_limit(&self) -> Option<Duration> {
            self.inner.time_limit()
        }

        async fn tell_ended(&self, name: &Name, owner: Owner) -> Result<(), BackendError> {
            self.inner.tell_ended(name, owner).await
        }

        fn watch(&self, holders: Weak<dyn Holders>) {
            self.inner.watch(holders);
        }

        fn process(&self) -> ProcessId {
            self.inner.process()
        }

        fn is_shared(&self) -> bool {
            self.inner.is_shared()
        }

        fn connections(&self) -> Connections {
            self.inner.connections()
        }

        fn shard(&self, name: &Name) -> usize {
            self.inner.shard(name)
        }

        fn new_connections(&self) -> tokio::sync::watch::Receiver<()> {
            self.inner.new_connections()
        }
    }
    Store {
        /// Reads an entry, `aged` if the cache needs its age. A hit of a cache is this.
        Get { name: Name = &Name, aged: bool = bool } -> Option<Entry> = read(name, *aged);
        /// Takes the lease of a load.
        Claim { claim: Claim = &Claim, seen: u64 = u64 } -> Claimed = claim(claim, *seen);
        /// Stores a loaded value.
        Commit { claim: Claim = &Claim, grant: Grant = &Grant, entry: Entry = &Entry,
            ttl: Option<Duration> = Option<Duration> } -> Committed =
            commit(claim, grant, entry, *ttl);
        /// Tells the waiters that a load failed.
        Fail { claim: Claim = &Claim, failure: Failure = &Failure,
            back_off: Option<BackOff> = Option<BackOff> } -> bool =
            fail(claim, failure, *back_off);
        /// Changes an entry without a load.
        Edit { name: Name = &Name, edit: Edit = &Edit, fence_life: Duration = Duration } -> u64 =
            edit(name, edit, *fence_life);
        /// Reads the last number of the tags.
        TagNumber { tags: Name = &Name } -> u64 = tag_number(tags);
        /// Reads when tags ended.
        TagEnds { tags: Name = &Name, which: Vec<Arc<str>> = &[Arc<str>] } -> Vec<TagEnds> =
            tag_ends(tags, which);
        /// Ends a tag.
        EndTag { tags: Name = &Name, tag: String = &str, end: TagEnd = TagEnd } -> u64 =
            end_tag(tags, tag, *end);
        /// Sets a latch.
        SetLatch { name: Name = &Name, id: Owner = Owner, count: u32 = u32,
            ttl: Duration = Duration } -> bool = set_latch(name, *id, *count, *ttl);
        /// Counts a latch down.
        CountDown { name: Name = &Name, id: Owner = Owner, by: u32 = u32 } -> Option<Countdown> =
            count_down(name, *id, *by);
        /// Reads a latch.
        Latch { name: Name = &Name } -> Option<Countdown> = latch(name);
        /// Removes a latch.
        ClearLatch { name: Name = &Name } -> bool = clear_latch(name);
    } also {
        fn tap(&self, tier: Weak<dyn Tap>, every: Duration) -> bool {
            self.hook.tap(&self.inner, tier, every)
        }

        fn hears(&self, name: &Name, begins: bool) -> bool {
            self.hook.hears(&self.inner, name, begins)
        }
    }
}
