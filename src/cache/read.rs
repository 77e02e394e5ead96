//! Reads: the answers of the backend and the copies of this process, and what they are good for.

use std::{
    error::Error as StdError,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    slice,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{
    Loaded, Source,
    core::{Core, LocalState},
    freshness::{self, Rules, Window},
    lead::Previous,
    loader,
    local::Fill,
    outcome::Record,
    settings::Options,
};
use crate::{
    backend::{Entry, EntryKind, TagEnd, Tagged, Windows},
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

/// A question to the backend for the entry of a key.
struct EntryQuestion<'a> {
    key: &'a Key,
    name: &'a Name,
    /// Taken before the question is sent. `None` if the process keeps no copies.
    fill: Option<Fill>,
}

/// An answer whose entry has tags.
struct TaggedAnswer<'a> {
    key: &'a Key,
    answer: &'a mut Answered,
    tagged: Arc<Tagged>,
    /// How a deferred write ends one of the tags.
    deferred: Option<TagEnd>,
}

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Returns the value that is in this process, if it may be served without a question.
    #[inline]
    pub(super) fn local_value(&self, key: &str, options: &Options) -> Option<Loaded<V>> {
        if let Some(values) = &self.local.fresh_values {
            return values.get(key, &options.rules);
        }
        let copies = self.local.copies.as_ref()?;
        let tier = copies.tier?;
        let row = copies.get(tier, key, &options.rules, |fence, window| {
            self.delay_of_copy(key, fence, window)
        })?;
        if row.entry.fence < options.rules.least_fence {
            return None;
        }
        self.meter.sample_local_age(|| row.asked.elapsed());
        Some(Loaded { value: row.value.clone(), source: Source::Local, record: row.record })
    }

    /// Returns how long this process leaves the refresh of a copy to others, within a window.
    fn delay_of_copy(&self, key: &str, fence: u64, window: Duration) -> Duration {
        match self.name(&key.into()) {
            Ok(name) => self.loads.refreshes.delay(&name, fence, window),
            Err(_) => window,
        }
    }

    /// Asks the backend for an entry, and decides what the entry is good for. Keeps a copy of the
    /// entry, if the copy may be served later.
    pub(super) async fn read(&self, key: &Key, name: &Name, rules: &Rules) -> Decision<V> {
        if let Err(error) = self.backend.writes_repeated(name).await {
            return self.no_entry(name, &error);
        }
        let store = self.backend.store.as_ref();
        let LocalState { copies, fresh_values, .. } = &self.local;
        let begun = fresh_values.as_ref().map(|values| (values, values.begin(name)));
        let fill = copies.as_ref().map(|copies| copies.begin(store, name, Instant::now()));
        let mut answer = store.read(name, self.backend.asks_age(rules)).await;
        self.judge(key, &mut answer).await;
        let question = EntryQuestion { key, name, fill };
        let Some((values, begun)) = begun else {
            return self.end_read(question, rules, answer);
        };
        let candidate = match &answer {
            Ok(Some(entry)) => values.candidate(begun, entry),
            _ => None,
        };
        let decision = self.end_read(question, rules, answer);
        if let Some(candidate) = candidate
            && let Decision::Served(loaded, None) = &decision
        {
            values.note(key, name, candidate, loaded, rules);
        }
        decision
    }

    /// Reads some entries with one question, as [`read`](Self::read) does.
    pub(super) async fn read_many<'a>(
        &'a self,
        keys: &'a [&'a Key],
        names: &'a [Name],
        rules: &'a Rules,
    ) -> impl Iterator<Item = Decision<V>> + 'a {
        let backend = &self.backend;
        let store = backend.store.as_ref();
        let mut unrepeated = Vec::new();
        if !backend.writes.is_empty() {
            unrepeated = join_all(names.iter().map(|name| backend.writes_repeated(name))).await;
        }
        let copies = self.local.copies.as_ref();
        let now = Instant::now();
        let mut questions = Vec::with_capacity(names.len());
        for (key, name) in keys.iter().zip(names) {
            let fill = copies.map(|copies| copies.begin(store, name, now));
            questions.push(EntryQuestion { key, name, fill });
        }
        let mut answers = match store.get_many(names, backend.asks_age(rules)).await {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); names.len()],
        };
        for (answer, repeated) in answers.iter_mut().zip(unrepeated) {
            if let Err(error) = repeated {
                *answer = Err(error);
            }
        }
        self.judge_all(keys, &mut answers).await;
        let answered = questions.into_iter().zip(answers);
        answered.map(|(question, answer)| self.end_read(question, rules, answer))
    }

    fn end_read(
        &self,
        question: EntryQuestion<'_>,
        rules: &Rules,
        mut answer: Answered,
    ) -> Decision<V> {
        let EntryQuestion { key, name, fill } = question;
        let mut size = 0;
        if let Ok(Some(entry)) = &answer {
            size = entry.payload.len();
            self.backend.note_read(entry);
        }
        let decision = self.decide(name, rules, &mut answer);
        let (Some(copies), Some(fill)) = (&self.local.copies, fill) else { return decision };
        let value = match &decision {
            Decision::Served(loaded, _) => Some(&loaded.value),
            Decision::Old(previous) => Some(&previous.loaded.value),
            _ => None,
        };
        let is_hit =
            matches!(&decision, Decision::Served(Loaded { source: Source::Hit, .. }, None));
        match (answer, value) {
            (Ok(Some(entry)), Some(value)) => {
                copies.note(fill, key, (entry, size), value, is_hit, rules);
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
        if self.format.codec.is_for_loader_only(&payload) {
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
        let mut judged = Vec::new();
        let mut tags = Vec::new();
        for (key, answer) in keys.iter().zip(answers) {
            let Ok(Some(Entry { tagged: Some(tagged), .. })) = answer else { continue };
            let tagged = tagged.clone();
            tags.extend(tagged.all());
            // Before the question: an end that is repeated meanwhile is in no answer.
            let deferred = self.backend.writes.end_of(&tagged);
            judged.push(TaggedAnswer { key, answer, tagged, deferred });
        }
        if judged.is_empty() {
            return;
        }
        let ends = self.backend.store.tag_ends(&self.local.tags.name, &tags).await;
        // The ends lie in the order of the tags.
        let mut ends = ends.map(IntoIterator::into_iter);
        for TaggedAnswer { key, answer, tagged, deferred } in judged {
            match &mut ends {
                Ok(ends) => {
                    let end = tagged.end(ends).max(deferred);
                    if let (Some(end), Ok(Some(entry))) = (end, answer) {
                        self.local.drop_copy(key);
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
        if self.backend.writes.is_old(name, entry) {
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
        let refreshes = &self.loads.refreshes;
        let window =
            freshness::decide(entry, rules, |window| refreshes.delay(name, entry.fence, window));
        let record = Record::of(entry);
        let hit = Loaded { value, source: Source::Hit, record };
        match window {
            Window::Fresh => Decision::Served(hit, None),
            Window::Early => {
                let previous = Previous::new(entry, rules, stale(hit.clone()));
                Decision::Served(hit, Some(previous))
            }
            Window::Deferred => Decision::Served(stale(hit), None),
            Window::Stale => {
                let served = stale(hit);
                let previous = Previous::new(entry, rules, served.clone());
                Decision::Served(served, Some(previous))
            }
            Window::OnError | Window::Over => {
                Decision::Old(Previous::new(entry, rules, stale(hit)))
            }
        }
    }

    /// Takes the value out of an entry. Returns `None` if it cannot be decoded.
    pub(super) fn decoded(&self, name: &Name, entry: &mut Entry) -> Option<V> {
        let decoded = if entry.tag == self.format.tag {
            self.decode(entry)
        } else {
            Err("it has another schema or codec; give each type its own namespace".into())
        };
        match decoded {
            Ok(value) => Some(value),
            Err(error) => {
                let words = "an entry cannot be decoded and counts as missing";
                self.undecodable(name, &*error, words);
                None
            }
        }
    }

    /// Decodes an entry. A codec that panics fails: otherwise the entry would be in the way of its
    /// own reload.
    fn decode(&self, entry: &mut Entry) -> Result<V, BoxError> {
        let decode = AssertUnwindSafe(|| self.format.codec.decode(self.take_payload(entry)));
        match catch_unwind(decode) {
            Ok(decoded) => decoded,
            Err(panic) => Err(loader::panicked(panic.as_ref()).into()),
        }
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
        if self.format.undecodable.first() {
            tracing::warn!(?name, %error, "{words}");
        } else {
            tracing::debug!(?name, %error, "{words}");
        }
        self.counters.undecodable.add();
    }
}

fn stale<V>(loaded: Loaded<V>) -> Loaded<V> {
    Loaded { source: Source::Stale, ..loaded }
}
