//! Tags of a cache: what the backend and this process know of their ends.
//!
//! An entry that the backend returns is checked against the ends of its tags, which are asked for
//! after its callers have asked. What this process keeps itself, such as the copies of a local
//! tier, is checked against the ends that it was told of.

use std::{
    collections::HashMap,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{Cache, core::Core, local, settings::Settings};
use crate::{
    backend::{Entry, TAGGED_LIFE, TagEnd, TagVerdict, Tagged, Windows, answered_by},
    error::{BackendError, Error, ErrorKind},
    key::Name,
    sync::{read, write},
};

/// How many tags an entry has at most, and how long each is in bytes. RFC 9875, section 2.1, asks
/// for 32 of 32 characters at least.
const MOST_TAGS: usize = 128;
const LONGEST_TAG: usize = 512;
/// How many ends a process remembers.
const MOST_ENDS: usize = 10_000;

/// The tags of a cache.
pub(super) struct Tags {
    /// The entries of this cache have tags.
    pub(super) is_on: bool,
    /// The name under which the namespace keeps its tags.
    pub(super) name: Name,
    told: RwLock<ToldEnds>,
    /// The greatest number that this process was told.
    greatest: AtomicU64,
    /// How often all that this process keeps may have ended.
    losses: AtomicU64,
}

/// The ends that this process was told.
#[derive(Default)]
struct ToldEnds {
    /// The number of each tag.
    numbers: HashMap<Box<str>, u64>,
    /// The greatest number that is not among them any more.
    forgotten: u64,
}

/// An answer of the backend.
type Answered = Result<Option<Entry>, BackendError>;

/// The same, and what the tags of its entry say.
pub(super) type Judged = (Answered, TagVerdict);

/// Returns an answer with what its tags say. An error takes the place of the answer.
pub(super) fn judged(answer: Answered, verdict: Result<TagVerdict, BackendError>) -> Judged {
    match verdict {
        Ok(verdict) => (answer, verdict),
        Err(error) => (Err(error), TagVerdict::Current),
    }
}

/// Returns the tags of the entry, if it has any.
pub(super) fn tags_of(answer: &Answered) -> Option<&Tagged> {
    answer.as_ref().ok()?.as_ref()?.tagged.as_deref()
}

impl Tags {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            is_on: settings.has_tags,
            name: Name::of_tags(&settings.namespace),
            told: RwLock::default(),
            greatest: AtomicU64::new(0),
            losses: AtomicU64::new(0),
        }
    }

    /// Returns the greatest number that this process was told.
    pub(super) fn greatest(&self) -> u64 {
        self.greatest.load(Ordering::Acquire)
    }

    /// Returns how often all that this process keeps may have ended.
    pub(super) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Returns whether one of these tags is known to have ended.
    pub(super) fn have_ended(&self, tagged: &Tagged) -> bool {
        self.have_ended_since(tagged, tagged.number)
    }

    /// Returns whether one of these tags is known to have ended with a greater number than this,
    /// and than that of the entry.
    fn have_ended_since(&self, tagged: &Tagged, number: u64) -> bool {
        let number = number.max(tagged.number);
        self.greatest() > number && {
            let told = read(&self.told);
            let has_ended = |tag: &str| told.numbers.get(tag).is_some_and(|last| *last > number);
            told.forgotten > number || tagged.all().any(|tag| has_ended(&tag))
        }
    }

    /// Returns whether a copy with these tags is still good. `checked` is the greatest number that
    /// this process was told before the copy was last checked.
    pub(super) fn are_current(&self, tagged: &Tagged, checked: &AtomicU64) -> bool {
        let (greatest, last) = (self.greatest(), checked.load(Ordering::Relaxed));
        if greatest <= last {
            return true;
        }
        let are_current = !self.have_ended_since(tagged, last);
        if are_current {
            checked.store(greatest, Ordering::Relaxed);
        }
        are_current
    }

    /// Notes the end of a tag. If there are too many, each older value counts as ended.
    pub(super) fn note(&self, tag: &str, number: u64) {
        let mut told = write(&self.told);
        if told.numbers.len() >= MOST_ENDS {
            told.forgotten = self.greatest();
            told.numbers.clear();
        }
        let last = told.numbers.entry(tag.into()).or_default();
        *last = number.max(*last);
        self.greatest.fetch_max(number, Ordering::AcqRel);
    }

    /// Returns the tags of a value that is read after this tag number.
    pub(super) fn of_value(&self, number: u64, tags: &[Arc<str>]) -> Option<Tagged> {
        let has_any = self.is_on || !tags.is_empty();
        has_any.then(|| Tagged { number, tags: tags.to_vec() })
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

    /// Checks that the cache has tags.
    fn check_on(&self) -> Result<(), Error> {
        let words = "this cache has no tags; build it with `tags()`";
        self.is_on.then_some(()).ok_or_else(|| Error::new(ErrorKind::InvalidConfig, words))
    }

    /// Checks the tags of a value that is to be stored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the cache has no tags. [`ErrorKind::InvalidKey`] if there
    /// are too many, or one is empty or too long.
    pub(super) fn check<'a>(
        &self,
        tags: impl ExactSizeIterator<Item = &'a str>,
    ) -> Result<(), Error> {
        let invalid = |words: String| Err(Error::new(ErrorKind::InvalidKey, words));
        if tags.len() > 0 {
            self.check_on()?;
        }
        if tags.len() > MOST_TAGS {
            return invalid(format!("{} tags: at most {MOST_TAGS} are allowed", tags.len()));
        }
        for tag in tags {
            if tag.is_empty() || tag.len() > LONGEST_TAG {
                let length = tag.len();
                return invalid(format!("a tag has {length} bytes; give 1 to {LONGEST_TAG}"));
            }
        }
        Ok(())
    }
}

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Asks what the ends of its tags say of an entry.
    pub(super) async fn ask_tags(&self, tagged: &Tagged) -> Result<TagVerdict, BackendError> {
        let which: Vec<_> = tagged.all().collect();
        let ends = self.store.tag_ends(&self.tags.name, &which).await?;
        Ok(tagged.verdict(&ends))
    }

    /// Asks what the tags of the entry say, if it has any. An error takes the place of the answer.
    pub(super) async fn judge(&self, answer: Answered) -> Judged {
        let verdict = match tags_of(&answer) {
            // In a box, which an entry without tags does not need.
            Some(tagged) => Box::pin(self.ask_tags(tagged)).await,
            None => Ok(TagVerdict::Current),
        };
        judged(answer, verdict)
    }

    /// Judges some answers with one question.
    pub(super) async fn judge_many(&self, answers: Vec<Answered>) -> Vec<Judged> {
        let which: Vec<_> = answers.iter().filter_map(tags_of).flat_map(|it| it.all()).collect();
        let ends = match which.is_empty() {
            true => Ok(Vec::new()),
            false => self.store.tag_ends(&self.tags.name, &which).await,
        };
        let mut at = 0;
        let judge = |answer: Answered| match (tags_of(&answer), &ends) {
            (None, _) => (answer, TagVerdict::Current),
            (Some(_), Err(error)) => (Err(error.clone()), TagVerdict::Current),
            (Some(tagged), Ok(ends)) => {
                let first = at;
                at += tagged.tags.len() + 1;
                let verdict = tagged.verdict(ends.get(first..at).unwrap_or_default());
                (answer, verdict)
            }
        };
        answers.into_iter().map(judge).collect()
    }

    /// Returns the last tag number, for a value that is read from now on. Without an answer, any
    /// end of its tags ends the value.
    pub(super) async fn tag_number(&self) -> u64 {
        match self.counted(self.store.tag_number(&self.tags.name).await) {
            Ok(number) => number,
            Err(error) => {
                tracing::debug!(%error, "a value is stored without a tag number");
                0
            }
        }
    }

    /// Gives a tag its next number.
    async fn end_tag(&self, tag: &str, end: TagEnd) -> Result<(), Error> {
        let mut ending = EndingTag { core: self, tag, number: None };
        let (backend, limit) = (self.engine.backend().as_ref(), self.try_limit);
        let ended = self.store.end_tag(&self.tags.name, tag, end);
        let number = self.counted(answered_by(backend, limit, ended).await)?;
        ending.number = Some(number);
        Ok(())
    }

    /// Lets go of all that this process keeps.
    fn forget_all(&self) {
        self.tags.losses.fetch_add(1, Ordering::AcqRel);
        self.tier.iter().for_each(|tier| tier.forget_all());
        self.memory.forget_all();
        local::tell_all_of_loss(&self.watches);
    }
}

/// Notes the end of a tag when its act ends, also if the caller goes away.
struct EndingTag<'a, V: Clone + Send + Sync + 'static> {
    core: &'a Core<V>,
    tag: &'a str,
    /// `None` if it is not known whether the tag has ended.
    number: Option<u64>,
}

impl<V: Clone + Send + Sync + 'static> Drop for EndingTag<'_, V> {
    fn drop(&mut self) {
        let core = self.core;
        match self.number {
            Some(number) => {
                core.tags.note(self.tag, number);
                local::tell_all_of_loss(&core.watches);
            }
            None => core.forget_all(),
        }
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
    /// use bellwether::{BoxError, Cache, MemoryBackend};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new()).tags().build()?;
    /// for order in ["order:1", "order:2"] {
    ///     let load = |lead: bellwether::cache::Lead<u64>| async move {
    ///         lead.tag("customer:7");
    ///         Ok::<_, BoxError>(17)
    ///     };
    ///     cache.get_or_load(order, load).await?;
    /// }
    /// cache.invalidate_tag("customer:7").await?;
    /// assert_eq!(cache.get("order:1").await?, None);
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn invalidate_tag(&self, tag: impl AsRef<str>) -> Result<(), Error> {
        self.core.tags.check([tag.as_ref()].into_iter())?;
        self.core.end_tag(tag.as_ref(), TagEnd::Invalidated).await
    }

    /// Makes all values that carry a tag stale, with one command. They are kept for the case that
    /// their load [fails](super::Builder::stale_if_error) or is [too
    /// slow](super::Builder::serve_stale_after), and otherwise served no more. Everything else is
    /// as for [`invalidate_tag`](Self::invalidate_tag).
    ///
    /// # Errors
    ///
    /// As for [`invalidate_tag`](Self::invalidate_tag).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the values may or may not be stale.
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use bellwether::{BoxError, Cache, MemoryBackend};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new())
    ///     .tags()
    ///     .stale_if_error(Duration::from_secs(600))
    ///     .build()?;
    /// cache.request("order:1").tag("customer:7").insert(&17).await?;
    /// cache.expire_tag("customer:7").await?;
    /// let load = |_lead| async { Err::<u64, _>(BoxError::from("the database is down")) };
    /// assert_eq!(cache.get_or_load("order:1", load).await?, 17);
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn expire_tag(&self, tag: impl AsRef<str>) -> Result<(), Error> {
        self.core.tags.check([tag.as_ref()].into_iter())?;
        self.core.end_tag(tag.as_ref(), TagEnd::Expired).await
    }

    /// Removes all values of the namespace, with one command: those that a cache with
    /// [`tags`](super::Builder::tags) has stored. Everything else is as for
    /// [`invalidate_tag`](Self::invalidate_tag).
    ///
    /// # Errors
    ///
    /// As for [`invalidate_tag`](Self::invalidate_tag).
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
    /// use bellwether::{Cache, MemoryBackend};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new()).tags().build()?;
    /// cache.insert("order:1", &17).await?;
    /// cache.clear().await?;
    /// assert_eq!(cache.get("order:1").await?, None);
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn clear(&self) -> Result<(), Error> {
        self.core.tags.check_on()?;
        self.core.end_tag("", TagEnd::Invalidated).await
    }
}
