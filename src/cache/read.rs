//! Reads: the answers of the backend and the copies of this process, and what they are good for.

use std::{
    error::Error as StdError,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    slice,
    sync::{Arc, atomic::Ordering},
};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    Loaded, Source,
    core::Core,
    freshness::{self, Rules, Window},
    lead::Previous,
    loader,
    local::Fill,
    outcome::Record,
    settings::Options,
};
use crate::{
    backend::{Entry, EntryKind, Tagged, Windows},
    error::{BackendError, BackendErrorKind, BoxError, Chain, Error},
    key::{Key, Name},
    observe::Counters,
};

pub(super) type Answered = Result<Option<Entry>, BackendError>;

/// The use of an answer of the backend.
pub(super) enum Decision<V> {
    /// The value is served. With the entry to refresh if it is time for that.
    Served(Loaded<V>, Option<Arc<Previous<V>>>),
    /// The value is loaded under the lease. This entry may be served if the load fails.
    Old(Arc<Previous<V>>),
    /// There is no entry that can be read, so the value is loaded under the lease. `seen` is the
    /// fence of the entry, or 0 if there is none.
    Miss {
        seen: u64,
    },
    /// The load cannot be shared, so no caller waits for another. `seen` is the fence of the mark.
    Uncacheable {
        seen: u64,
    },
    Unanswered(BackendError),
}

impl<V> Decision<V> {
    /// Returns the value that is served, if there is one.
    pub(super) fn value(self) -> Option<Loaded<V>> {
        match self {
            Self::Served(loaded, _) => Some(loaded),
            _ => None,
        }
    }

    /// Returns the value that is served, for a caller that loads none, and counts the caller.
    pub(super) fn found(self, counters: &Counters) -> Result<Option<V>, Error> {
        match self {
            Self::Unanswered(error) => Err(error.into()),
            Self::Served(loaded, _) => {
                counters.served(loaded.source);
                Ok(Some(loaded.value))
            }
            _ => Ok(None),
        }
    }

    /// Returns the value that is served, also one that is kept for failures only.
    pub(super) fn value_or_fallback(self) -> Option<Loaded<V>>
    where
        V: Clone + 'static,
    {
        match self {
            Self::Old(previous) => previous.fallback(),
            decision => decision.value(),
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Returns the value that is in this process, if it may be served without a question.
    #[inline]
    pub(super) fn local(&self, key: &str, options: &Options) -> Option<Loaded<V>> {
        if let Some(values) = &self.fresh_values {
            return values.get(key, &options.rules);
        }
        let copies = self.copies.as_ref()?;
        let tier = copies.tier?;
        let delay = |fence, window| {
            let name = self.name(&key.into());
            name.map_or(window, |name| self.refreshes.delay(&name, fence, window))
        };
        let row = copies.get(tier, key, &options.rules, delay)?;
        if row.entry.fence < options.rules.least_fence {
            return None;
        }
        self.meter.sample_local_age(|| row.asked.elapsed());
        Some(Loaded { value: row.value.clone(), source: Source::Local, record: row.record })
    }

    /// Asks the backend for an entry, and decides what it is good for. [Keeps](Self::keeps_copies)
    /// a copy of it.
    pub(super) async fn read(&self, key: &Key, name: &Name, rules: &Rules) -> Decision<V> {
        if let Err(error) = self.writes_repeated(name).await {
            return self.no_entry(name, &error);
        }
        let begun = self.fresh_values.as_ref().map(|values| (values, values.begin(name)));
        let mut keeps = self.keeps_copies(&[]);
        let (asked, mut answer) = loop {
            let copies = self.copies.as_ref().filter(|_| keeps);
            let asked = copies.map(|copies| copies.begin(&*self.store, name, Instant::now()));
            let aged = rules.aged || self.asks_age.load(Ordering::Relaxed);
            let answer = self.store.read(name, aged).await;
            let keeps_now = self.keeps_copies(slice::from_ref(&answer));
            if keeps_now == keeps {
                break (asked, answer);
            }
            keeps = keeps_now;
        };
        self.judge(key, &mut answer).await;
        let Some((values, begun)) = begun else {
            return self.end_read((key, name), rules, asked, answer);
        };
        let candidate = match &answer {
            Ok(Some(entry)) => values.candidate(begun, entry),
            _ => None,
        };
        let decision = self.end_read((key, name), rules, asked, answer);
        if let Some(candidate) = candidate
            && let Decision::Served(loaded, None) = &decision
        {
            values.note(key, name, candidate, loaded, rules);
        }
        decision
    }

    /// Returns whether reads keep copies: from the first entry on that has windows, or the first
    /// copy that an answer may replace. Until then none is of use. The answers that tell of it are
    /// asked for once more, since a copy is kept only if nothing has changed since its question.
    fn keeps_copies(&self, answers: &[Answered]) -> bool {
        let mut windows = answers.iter().flatten().flatten().filter_map(|entry| entry.windows);
        let mut asks_age = self.asks_age.load(Ordering::Relaxed);
        if !asks_age && windows.any(|windows| !windows.is_fresh_only()) {
            // From here on, reads also ask for the age at once.
            self.asks_age.store(true, Ordering::Relaxed);
            asks_age = true;
        }
        let copies = self.copies.as_ref();
        copies.is_some_and(|copies| asks_age || copies.has_rows.load(Ordering::Relaxed))
    }

    /// Reads some entries with one question, as [`read`](Self::read) does.
    pub(super) async fn read_many<'a>(
        &'a self,
        keys: &'a [&'a Key],
        names: &'a [Name],
        rules: &'a Rules,
    ) -> impl Iterator<Item = Decision<V>> + 'a {
        let mut unrepeated = Vec::new();
        if !self.writes.is_empty() {
            unrepeated = join_all(names.iter().map(|name| self.writes_repeated(name))).await;
        }
        let mut keeps = self.keeps_copies(&[]);
        let (asked, mut answers) = loop {
            let (now, copies) = (Instant::now(), self.copies.as_ref().filter(|_| keeps));
            let begin = |name| copies.map(|copies| copies.begin(&*self.store, name, now));
            let asked: Vec<_> = names.iter().map(begin).collect();
            let aged = rules.aged || self.asks_age.load(Ordering::Relaxed);
            let answers = match self.store.get_many(names, aged).await {
                Ok(answers) => answers,
                Err(error) => names.iter().map(|_| Err(error.clone())).collect(),
            };
            let keeps_now = self.keeps_copies(&answers);
            if keeps_now == keeps {
                break (asked, answers);
            }
            keeps = keeps_now;
        };
        for (answer, repeated) in answers.iter_mut().zip(unrepeated) {
            if let Err(error) = repeated {
                *answer = Err(error);
            }
        }
        self.judge_all(keys, &mut answers).await;
        let each = keys.iter().copied().zip(names).zip(asked).zip(answers);
        let decide =
            |(((key, name), asked), answer)| self.end_read((key, name), rules, asked, answer);
        each.map(decide)
    }

    fn end_read(
        &self,
        (key, name): (&Key, &Name),
        rules: &Rules,
        asked: Option<Fill>,
        mut answer: Answered,
    ) -> Decision<V> {
        let mut size = 0;
        if let Ok(Some(entry)) = &answer {
            size = entry.payload.len();
        }
        let decision = self.decide(name, rules, &mut answer);
        let Some((copies, asked)) = self.copies.as_ref().zip(asked) else { return decision };
        let value = match &decision {
            Decision::Served(loaded, _) => Some(&loaded.value),
            Decision::Old(previous) => Some(&previous.loaded.value),
            _ => None,
        };
        let is_hit =
            matches!(&decision, Decision::Served(Loaded { source: Source::Hit, .. }, None));
        match (answer, value) {
            (Ok(Some(entry)), Some(value)) => {
                copies.note(asked, key, (entry, size), value, is_hit, rules);
            }
            (Ok(Some(_)), None) => copies.remove(key),
            _ if matches!(decision, Decision::Unanswered(_)) => {}
            _ => copies.missed(key),
        }
        decision
    }

    /// Takes the payload out of an entry of this codec. What is left is what the entry is good for
    /// in this process.
    pub(super) fn take_payload(&self, entry: &mut Entry) -> Bytes {
        let payload = mem::take(&mut entry.payload);
        if self.codec.is_for_loader_only(&payload) {
            entry.windows = entry.windows.map(|windows| Windows::fresh(windows.fresh));
        }
        payload
    }

    /// Judges an answer, if its entry has tags.
    pub(super) async fn judge(&self, key: &Key, answer: &mut Answered) {
        if let Ok(Some(Entry { tagged: Some(_), .. })) = answer {
            // In a box, which an entry without tags does not need.
            Box::pin(self.judge_all(&[key], slice::from_mut(answer))).await;
        }
    }

    /// Asks what the ends of their tags say of some entries, with one question, and notes it in the
    /// entries. An error takes the place of an answer.
    pub(super) async fn judge_all(&self, keys: &[&Key], answers: &mut [Answered]) {
        let tagged = |answer: &'_ Answered| answer.as_ref().ok()?.as_ref()?.tagged.clone();
        let tagged: Vec<_> = answers.iter().map(tagged).collect();
        let which: Vec<_> = tagged.iter().flatten().flat_map(|tagged| tagged.all()).collect();
        if which.is_empty() {
            return;
        }
        let deferred = |tagged: &Option<Arc<Tagged>>| self.writes.end_of(tagged.as_ref()?);
        // Before the question: an end that is repeated meanwhile is in no answer.
        let deferred: Vec<_> = tagged.iter().map(deferred).collect();
        let ends = self.store.tag_ends(&self.tags.name, &which).await;
        let mut ends = ends.map(IntoIterator::into_iter);
        let tagged = tagged.into_iter().zip(deferred);
        for ((key, answer), (tagged, deferred)) in keys.iter().zip(answers).zip(tagged) {
            let (Some(tagged), Ok(Some(entry))) = (tagged, &mut *answer) else { continue };
            match &mut ends {
                Ok(ends) => {
                    if let Some(end) = tagged.end(ends).max(deferred) {
                        self.drop_copy(key);
                        entry.end_by_tag(end);
                    }
                }
                Err(error) => *answer = Err(error.clone()),
            }
        }
    }

    /// Decides what an answer about a name is good for, with the schema and the codec of this
    /// process, and the rules of the caller. Takes the payload out of the entry.
    pub(super) fn decide(&self, name: &Name, rules: &Rules, answer: &mut Answered) -> Decision<V> {
        let entry = match answer {
            Ok(Some(entry)) => entry,
            Ok(None) => return Decision::Miss { seen: 0 },
            Err(error) => return self.no_entry(name, error),
        };
        if self.writes.is_old(name, entry) {
            return Decision::Miss { seen: entry.fence };
        }
        match entry.kind {
            EntryKind::Value => {}
            EntryKind::Uncacheable => return Decision::Uncacheable { seen: entry.fence },
            EntryKind::Ended => return Decision::Miss { seen: entry.fence },
        }
        let Some(value) = self.decoded(name, entry) else {
            return Decision::Miss { seen: entry.fence };
        };
        let delay = |window| self.refreshes.delay(name, entry.fence, window);
        let window = freshness::decide(entry, rules, delay);
        let is_stale = matches!(window, Window::Stale | Window::Deferred);
        let source = if is_stale { Source::Stale } else { Source::Hit };
        let loaded = |value| Loaded { value, source, record: Record::of(entry) };
        let previous = |value| {
            let record = Record::of(entry);
            Previous::new(entry, rules, Loaded { value, source: Source::Stale, record })
        };
        match window {
            Window::Fresh | Window::Deferred => Decision::Served(loaded(value), None),
            Window::Early | Window::Stale => {
                Decision::Served(loaded(value.clone()), Some(previous(value)))
            }
            Window::OnError | Window::Over => Decision::Old(previous(value)),
        }
    }

    /// Takes the value out of an entry. Returns `None` if it cannot be decoded.
    pub(super) fn decoded(&self, name: &Name, entry: &mut Entry) -> Option<V> {
        let is_own = entry.tag == self.tag;
        let decode = AssertUnwindSafe(|| self.codec.decode(self.take_payload(entry)));
        let decoded = match is_own {
            // Otherwise an entry that panics would be in the way of its own reload.
            true => catch_unwind(decode)
                .unwrap_or_else(|panic| Err(loader::panicked(panic.as_ref()).into())),
            false => Err("it has another schema or codec; give each type its own namespace".into()),
        };
        let warn = |error: &BoxError| {
            self.undecodable(name, &**error, "an entry cannot be decoded and counts as missing");
        };
        decoded.inspect_err(warn).ok()
    }

    /// Decides about an error. Stored bytes that are no entry count as missing.
    fn no_entry(&self, name: &Name, error: &BackendError) -> Decision<V> {
        self.counters.backend_errors.add();
        if error.kind() != BackendErrorKind::Foreign {
            return Decision::Unanswered(error.clone());
        }
        self.undecodable(name, error, "the stored bytes are no entry and count as missing");
        Decision::Miss { seen: 0 }
    }

    /// Counts stored bytes that are of no use.
    fn undecodable(&self, name: &Name, error: &(dyn StdError + 'static), words: &str) {
        let error = Chain(error);
        match self.undecodable.first() {
            true => tracing::warn!(?name, %error, "{words}"),
            false => tracing::debug!(?name, %error, "{words}"),
        }
        self.counters.undecodable.add();
    }
}
