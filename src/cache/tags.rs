//! Tags of a cache.
//!
//! An entry that the backend returns is checked against the ends of its tags, which are asked for
//! after its callers have asked. A copy in this process is checked against the ends that were told.

use std::{
    slice,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Cache,
    core::Core,
    settings::{Options, Settings},
};
use crate::{
    backend::{
        Entry, STRIPES, TAGGED_LIFE, TagEnd, TagVerdict, Tagged, Windows, answered_by, stripe_of,
    },
    error::{BackendError, Error, ErrorKind},
    key::{Key, Name},
};

/// How many tags an entry has at most, and how long each is in bytes. RFC 9875, section 2.1, asks
/// for 32 of 32 characters at least.
const MOST_TAGS: usize = 128;
const LONGEST_TAG: usize = 512;

/// The tags of a cache.
pub(super) struct Tags {
    /// The entries of this cache have tags.
    pub(super) is_on: bool,
    /// The name under which the namespace keeps its tags.
    pub(super) name: Name,
    /// The greatest number of an end that this process was told, for each stripe of tags. A tag
    /// whose stripe has another one that ended is asked for once more.
    ends: Box<[AtomicU64]>,
    /// The greatest of all.
    greatest: AtomicU64,
}

/// An answer of the backend.
pub(super) type Answered = Result<Option<Entry>, BackendError>;

/// Returns the tags of the entry, if it has any.
fn tags_of(answer: &Answered) -> Option<&Tagged> {
    answer.as_ref().ok()?.as_ref()?.tagged.as_deref()
}

impl Tags {
    pub(super) fn new(settings: &Settings) -> Self {
        let is_told = settings.has_tags || settings.local.is_some();
        Self {
            is_on: settings.has_tags,
            name: Name::of_tags(&settings.namespace),
            ends: (0..if is_told { STRIPES } else { 1 }).map(|_| AtomicU64::new(0)).collect(),
            greatest: AtomicU64::new(0),
        }
    }

    /// Returns the greatest number that this process was told.
    pub(super) fn greatest(&self) -> u64 {
        self.greatest.load(Ordering::Acquire)
    }

    /// Returns whether a tag of these stripes may have ended with a greater number than this.
    pub(super) fn have_ended(&self, stripes: impl IntoIterator<Item = usize>, number: u64) -> bool {
        let last = |stripe: usize| self.ends[stripe % self.ends.len()].load(Ordering::Acquire);
        stripes.into_iter().any(|stripe| last(stripe) > number)
    }

    /// Notes the end of a tag.
    pub(super) fn note(&self, tag: &str, number: u64) {
        self.ends[stripe_of(tag) % self.ends.len()].fetch_max(number, Ordering::AcqRel);
        self.greatest.fetch_max(number, Ordering::AcqRel);
    }

    /// Returns the windows of a value, which the ends of its tags are to outlive.
    pub(super) fn limit(&self, windows: Windows) -> Windows {
        if !self.is_on {
            return windows;
        }
        let fresh = windows.fresh.min(TAGGED_LIFE);
        let left = TAGGED_LIFE - fresh;
        Windows { fresh, stale: windows.stale.min(left), error: windows.error.min(left) }
    }

    /// Checks the tags of a value that is to be stored, or one that is to end.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the cache has no tags. [`ErrorKind::InvalidKey`] if there
    /// are too many, or one is empty or too long.
    pub(super) fn check(&self, tags: &[Arc<str>]) -> Result<(), Error> {
        if !self.is_on {
            let words = "this cache has no tags; build it with `tags()`";
            return Err(Error::new(ErrorKind::InvalidConfig, words));
        }
        let is_fit = |tag: &Arc<str>| (1..=LONGEST_TAG).contains(&tag.len());
        if tags.len() > MOST_TAGS || !tags.iter().all(is_fit) {
            let (count, longest) = (tags.len(), tags.iter().map(|tag| tag.len()).max());
            let words = format!(
                "{count} tags of up to {} bytes: give at most {MOST_TAGS}, each of 1 to \
                 {LONGEST_TAG} bytes",
                longest.unwrap_or_default()
            );
            return Err(Error::new(ErrorKind::InvalidKey, words));
        }
        Ok(())
    }
}

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Judges an answer, if its entry has tags.
    pub(super) async fn judge(&self, key: &Key, answer: &mut Answered) {
        if tags_of(answer).is_some() {
            // In a box, which an entry without tags does not need.
            Box::pin(self.judge_all(&[key], slice::from_mut(answer))).await;
        }
    }

    /// Asks what the ends of their tags say of some entries, with one question, and notes it in the
    /// entries. An error takes the place of an answer.
    pub(super) async fn judge_all(&self, keys: &[&Key], answers: &mut [Answered]) {
        let which: Vec<_> = answers.iter().filter_map(tags_of).flat_map(|it| it.all()).collect();
        if which.is_empty() {
            return;
        }
        let ends = self.store.tag_ends(&self.tags.name, &which).await;
        let mut ends = ends.map(IntoIterator::into_iter);
        for (key, answer) in keys.iter().zip(answers) {
            let (Some(tagged), Ok(Some(entry))) = (tags_of(answer).cloned(), &mut *answer) else {
                continue;
            };
            match &mut ends {
                Ok(ends) => {
                    let verdict = tagged.verdict(ends);
                    if verdict != TagVerdict::Current {
                        self.drop_copy(key);
                    }
                    entry.judge(verdict);
                }
                Err(error) => *answer = Err(error.clone()),
            }
        }
    }

    /// Returns whether no tag of a value has ended since its number.
    pub(super) async fn are_current(&self, tagged: &Tagged) -> bool {
        let which: Vec<_> = tagged.all().collect();
        let ends = self.counted(self.store.tag_ends(&self.tags.name, &which).await);
        ends.is_ok_and(|ends| tagged.verdict(&mut ends.into_iter()) == TagVerdict::Current)
    }

    /// Returns the tags that a caller gives a value that is read from now on, and the last tag
    /// number. Without an answer, any end of its tags ends the value.
    pub(super) async fn begin_tags(&self, options: &Options) -> Tagged {
        let mut tagged = options.tagged.clone();
        if self.tags.is_on && tagged.number == 0 {
            let asked = Box::pin(self.store.tag_number(&self.tags.name));
            tagged.number = self.counted(asked.await).unwrap_or_default();
        }
        tagged
    }

    /// Gives a tag its next number.
    async fn end_tag(&self, tag: &str, end: TagEnd) -> Result<(), Error> {
        let (backend, limit) = (self.engine.backend().as_ref(), self.try_limit);
        let ended = self.store.end_tag(&self.tags.name, tag, end);
        let ended = self.counted(answered_by(backend, limit, ended).await);
        match &ended {
            Ok(number) => self.tags.note(tag, *number),
            // It may have ended. So nothing is kept that may have the tag.
            Err(_) => {
                self.copies.iter().for_each(|copies| copies.forget_all());
            }
        }
        self.flights.detach_all();
        self.watches.tell_loss();
        Ok(ended.map(drop)?)
    }
}

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Removes all values that carry a tag, with one command, whatever their number.
    ///
    /// A caller that asks after this returned is served nothing that was read before, in the whole
    /// fleet. The value of a load that is under way is served to its earlier callers. Another
    /// process with a [local tier](super::Builder::local) may serve its copies for as long as its
    /// bound allows, as after [`invalidate`](Self::invalidate).
    ///
    /// Nothing is deleted: the values end by their time to live, or are replaced. A value that was
    /// read before this call, and is [inserted](Self::insert) after it, counts as new. While the
    /// backend is away, [`Degraded`](super::Source::Degraded) says what another process may serve.
    ///
    /// # Errors
    ///
    /// - [`InvalidConfig`](ErrorKind::InvalidConfig) if the cache was built without
    ///   [`tags`](super::Builder::tags).
    /// - [`InvalidKey`](ErrorKind::InvalidKey) if the tag is empty, or longer than 512 bytes.
    /// - [`Backend`](ErrorKind::Backend) if the backend did not answer. The values may then be
    ///   removed or not.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the values may or may not be removed.
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use bellwether::{BoxError, Cache, MemoryBackend, cache::Lead};
    ///
    /// let orders: Cache<u64> = Cache::builder(MemoryBackend::new(), "orders")
    ///     .tags()
    ///     .stale_if_error(Duration::from_secs(600))
    ///     .build()?;
    /// orders.request("1").tag("customer:7").insert(&16).await?;
    /// let load = |lead: Lead<u64>| async move {
    ///     lead.tag("customer:7");
    ///     Ok::<_, BoxError>(17)
    /// };
    /// orders.get_or_load("2", load).await?;
    ///
    /// orders.expire_tag("customer:7").await?;
    /// let fails = |_lead| async { Err::<u64, _>(BoxError::from("the database is down")) };
    /// assert_eq!(orders.get_or_load("2", fails).await?, 17);
    ///
    /// orders.invalidate_tag("customer:7").await?;
    /// assert!(orders.get_or_load("2", fails).await.is_err());
    /// orders.clear().await?;
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn invalidate_tag(&self, tag: impl AsRef<str>) -> Result<(), Error> {
        self.core.tags.check(&[tag.as_ref().into()])?;
        self.core.end_tag(tag.as_ref(), TagEnd::Invalidated).await
    }

    /// Makes all values that carry a tag stale, with one command. They are kept for the case that
    /// their load [fails](super::Builder::stale_if_error) or is [too
    /// slow](super::Builder::serve_stale_after), and otherwise served no more. Everything else is
    /// as for [`invalidate_tag`](Self::invalidate_tag), which also has an example.
    ///
    /// # Errors
    ///
    /// As for [`invalidate_tag`](Self::invalidate_tag).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the values may or may not be stale.
    pub async fn expire_tag(&self, tag: impl AsRef<str>) -> Result<(), Error> {
        self.core.tags.check(&[tag.as_ref().into()])?;
        self.core.end_tag(tag.as_ref(), TagEnd::Expired).await
    }

    /// Removes all values of the namespace, with one command: those that a cache with
    /// [`tags`](super::Builder::tags) has stored. Everything else is as for
    /// [`invalidate_tag`](Self::invalidate_tag), which also has an example.
    ///
    /// # Errors
    ///
    /// As for [`invalidate_tag`](Self::invalidate_tag).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the values may or may not be removed.
    pub async fn clear(&self) -> Result<(), Error> {
        self.core.tags.check(&[])?;
        self.core.end_tag("", TagEnd::Invalidated).await
    }
}
