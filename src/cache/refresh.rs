//! Refreshes: loads that replace an entry, while their callers are served the old value.
//!
//! No caller waits for a refresh in the background, which claims the lease without waiting. If
//! another process has the lease, or this one refreshes, the key is quiet in this process for the
//! time of a lease. The [delays] of the processes keep most of them from claiming at all.
//!
//! A refresh that a caller asks for joins no other load, because what that one reads from the
//! origin may be older.
//!
//! [delays]: super::freshness::RefreshDelay

use std::{
    hash::{BuildHasher, Hash},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use futures_util::FutureExt;
use hashbrown::DefaultHashBuilder;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    Cache, Lead, Loaded, Request,
    freshness::RefreshDelay,
    loader::{self, Work},
    outcome::{Flown, cut_off, ended},
    run::{Run, RunStart},
};
use crate::{
    backend::Edit,
    error::{BoxError, Error},
    flight,
    key::Key,
};

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Loads the value of a key anew, and stores it. All other callers are served the old value
    /// meanwhile, if there is one. [`Request::refresh`] tells more.
    ///
    /// # Errors
    ///
    /// As with [`Request::refresh`].
    ///
    /// # Cancel safety
    ///
    /// As with [`Request::refresh`].
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{BoxError, Cache, MemoryBackend};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new(), "shop").build()?;
    /// cache.insert("stock:42", &17).await?;
    /// assert_eq!(cache.refresh("stock:42", |_lead| async { Ok::<_, BoxError>(16) }).await?, 16);
    /// assert_eq!(cache.get("stock:42").await?, Some(16));
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn refresh<F, Fut, E>(&self, key: impl Into<Key>, loader: F) -> Result<V, Error>
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        Ok(self.request(key).refresh(loader).await?.value)
    }
}

impl<V: Clone + Send + Sync + 'static> Request<V> {
    /// Loads the value anew, and stores it. All other callers are served the old value meanwhile,
    /// if there is one that may be served.
    ///
    /// The value of each load that began before is not stored, in the whole fleet. If another load
    /// begins during this call, its value is returned, and this loader may not run. So many
    /// refreshes at once are few loads. A [touch](Self::touch) during this call counts as well.
    ///
    /// The future waits for the value. To go on at once, spawn it. A load that fails leaves the old
    /// value as it is.
    ///
    /// # Errors
    ///
    /// - [`Load`](crate::ErrorKind::Load), [`Panicked`](crate::ErrorKind::Panicked) or
    ///   [`LoadTimeout`](crate::ErrorKind::LoadTimeout) if the load failed.
    /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer or refused, before
    ///   the load began.
    /// - [`InvalidKey`](crate::ErrorKind::InvalidKey) if the key is empty or too long.
    /// - [`Overloaded`](crate::ErrorKind::Overloaded) if too many loads are under way.
    /// - [`ShutDown`](crate::ErrorKind::ShutDown) if the cache is shut down.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after the load began, the load goes on in the background.
    pub fn refresh<F, Fut, E>(
        self,
        loader: F,
    ) -> impl Future<Output = Result<Loaded<V>, Error>> + Send + 'static
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let core = self.core.clone();
        let shared = core.clone();
        let work = move |lead: Lead<V>| loader::of_user(shared, lead.clone(), loader(lead));
        self.refresh_by(loader::boxed(work)).map(move |flown| flown?.shared(&core))
    }

    async fn refresh_by(mut self, work: Work<V>) -> Result<Flown<V>, Error> {
        // The entry to replace is read also if it is fresh.
        self.options_mut().rules.replaces = true;
        let Self { core, key, own } = self;
        let (name, life) = (core.name(&key)?, core.settings.fence_life());
        // First, so that each load that began before this call is beaten.
        let burnt = core.change(&key, core.store.edit(&name, &Edit::Supersede, life)).await?;
        if core.flights.is_closed() {
            return Err(Error::shut_down());
        }
        let run = Run::new(&core, &key, own, None, RunStart::Supersede(burnt))?;
        let load = run.load_in_task(work).in_current_span();
        // A loader that asks for a refresh is the one that loads.
        let load = match flight::current() {
            Some(number) => core.begun.spawn(flight::within(number, load)),
            None => core.begun.spawn(load),
        };
        ended(&core, load.await.map_err(|_| cut_off())?, true, None)
    }
}

pub(super) struct Refreshes {
    /// Notes about entries. Each stands under the fence of its entry, so a new entry has none. In
    /// each place are the upper half of a hash, and the tick at which the note ends. A note may
    /// lose its place to another one, which costs one claim.
    notes: OnceLock<Box<[AtomicU64]>>,
    begun: Instant,
    hasher: DefaultHashBuilder,
    /// Differs between processes, so that their delays differ.
    seed: u64,
    /// Cancelled when the cache is shut down.
    pub(super) stop: CancellationToken,
}

/// The notes of this process about an entry, for a while.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) enum EntryNote {
    /// It stored the entry, and is the first to refresh it.
    Stored,
    /// It begins no refresh of the entry: another process has its lease, or a refresh made nothing.
    Refreshed,
    /// It serves the entry in place of a load, because the key backs off.
    BacksOff,
}

impl Default for Refreshes {
    fn default() -> Self {
        Self {
            notes: OnceLock::new(),
            begun: Instant::now(),
            hasher: DefaultHashBuilder::default(),
            seed: fastrand::u64(..),
            stop: CancellationToken::new(),
        }
    }
}

impl Refreshes {
    /// Begins a refresh of the entry with this fence, and makes it quiet for a while. Returns false
    /// if it is quiet already, or the cache is shut down.
    pub(super) fn begin(&self, key: &Key, fence: u64) -> bool {
        let begins = !self.knows(EntryNote::Refreshed, key, fence) && !self.stop.is_cancelled();
        if begins {
            self.note(EntryNote::Refreshed, key, fence, PAUSE);
        }
        begins
    }

    /// Notes something of the entry with this fence for a time.
    pub(super) fn note(&self, what: EntryNote, key: &impl Hash, fence: u64, time: Duration) {
        let notes = self.notes.get_or_init(|| (0..NOTES).map(|_| AtomicU64::new(0)).collect());
        let hash = self.hasher.hash_one((what, key, fence));
        let ends = ticks(self.begun.elapsed().saturating_add(time)).saturating_add(1);
        let note = hash & !TICKS | ends.min(TICKS);
        notes[hash as usize % NOTES].store(note, Ordering::Relaxed);
    }

    /// Returns whether something is noted of the entry with this fence.
    pub(super) fn knows(&self, what: EntryNote, key: &impl Hash, fence: u64) -> bool {
        let Some(notes) = self.notes.get() else { return false };
        let hash = self.hasher.hash_one((what, key, fence));
        let note = notes[hash as usize % NOTES].load(Ordering::Relaxed);
        note & !TICKS == hash & !TICKS && ticks(self.begun.elapsed()) < note & TICKS
    }

    /// Returns the delay of this process for an entry. It is the same each time.
    pub(super) fn delay(&self, key: &impl Hash, fence: u64) -> RefreshDelay {
        if self.knows(EntryNote::Stored, key, fence) {
            return RefreshDelay::NONE;
        }
        let hash = self.hasher.hash_one((self.seed, key, fence));
        RefreshDelay::random(Rng::with_seed(hash).f64())
    }
}

/// How long a process does not refresh an entry after it began a refresh of it in vain, and the key
/// does not back off. A shorter time costs more claims of refreshes that make nothing.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
/// 32 KiB. With fewer notes, more of them are lost to other keys.
const NOTES: usize = 4096;
/// The lower half of a word.
const TICKS: u64 = u32::MAX as u64;

/// Returns a time in ticks of 16 ms. Half a word holds them for two years. After that no entry is
/// quiet any more, which costs claims.
fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_millis() / 16).unwrap_or(u64::MAX)
}
