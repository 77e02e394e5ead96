//! Reads: what a caller may be served of the backend's answers and of this process's copies.

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
    local::{CopiedEntry, Fill},
    outcome::Record,
    settings::Options,
};
use crate::{
    backend::{Entry, EntryKind, TagEnd, Tagged, Windows},
    error::{BackendError, BackendErrorKind, BoxError, Chain, Error},
    key::{Key, Name},
    observe::Counters,
};

/// What the backend answered about one name.
pub(super) type Answered = Result<Option<Entry>, BackendError>;

/// What a read means for its caller.
pub(super) enum Decision<V> {
    /// The caller is served the value. If this caller is to refresh the entry, the entry comes with
    /// the value.
    Served(Loaded<V>, Option<Arc<Previous<V>>>),
    /// The caller loads under the lease of the key. If the load fails, the caller may be served
    /// this entry.
    Old(Arc<Previous<V>>),
    /// The caller loads under the lease of the key, because there is no entry, or the entry is of
    /// no use. `seen` is the fence of the stored entry, or 0 if none is known.
    Miss { seen: u64 },
    /// The load cannot be shared, so no caller waits for another caller. `seen` is the fence of the
    /// stored mark of that.
    Uncacheable { seen: u64 },
    /// The read failed.
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

    /// Returns the value that is served, for a caller that does not load, and counts the hit.
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

    /// Returns the value that is served. If there is none, returns the value that is kept for
    /// failed loads.
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

/// A read of the entry of a key.
struct EntryRead<'a> {
    key: &'a Key,
    name: &'a Name,
    /// Taken before the command is sent, so that a change during the read voids the fill. `None` if
    /// the process keeps no copies.
    fill: Option<Fill>,
}

/// An answer whose entry has tags.
struct TaggedAnswer<'a> {
    key: &'a Key,
    answer: &'a mut Answered,
    tagged: Arc<Tagged>,
    /// The strongest end that a deferred write of this process gives one of the tags. `None` if no
    /// deferred write does.
    deferred: Option<TagEnd>,
}

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Returns the value of this process, if it may be served without asking the backend.
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
        self.meter.sample_local_age(|| row.read_at.elapsed());
        Some(Loaded { value: row.value.clone(), source: Source::Local, record: row.record })
    }

    /// Returns how long this process leaves the refresh of a copy to other processes, within a
    /// window.
    fn delay_of_copy(&self, key: &str, fence: u64, window: Duration) -> Duration {
        match self.name(&key.into()) {
            Ok(name) => self.loads.refreshes.delay(&name, fence, window),
            Err(_) => window,
        }
    }

    /// Reads an entry from the backend, and decides what it means for the caller. Keeps a copy of
    /// the entry, if the copy may be served later.
    pub(super) async fn read(&self, key: &Key, name: &Name, rules: &Rules) -> Decision<V> {
        let store = self.backend.store.as_ref();
        let LocalState { copies, fresh_values, .. } = &self.local;
        // Before the look at the deferred writes: a write that fails and is repeated while this
        // read is under way keeps what the read finds from becoming a copy.
        let begun = fresh_values.as_ref().map(|values| (values, values.begin(name)));
        let fill = copies.as_ref().map(|copies| copies.begin(store, name, Instant::now()));
        if let Err(error) = self.backend.writes_repeated(name).await {
            return self.no_entry(name, &error);
        }
        let mut answer = store.read(name, self.backend.asks_age(rules)).await;
        self.judge(key, &mut answer).await;
        let read = EntryRead { key, name, fill };
        let Some((values, begun)) = begun else {
            return self.end_read(read, rules, answer);
        };
        let candidate = match &answer {
            Ok(Some(entry)) => values.candidate(begun, entry),
            _ => None,
        };
        let decision = self.end_read(read, rules, answer);
        if let Some(candidate) = candidate
            && let Decision::Served(loaded @ Loaded { source: Source::Hit, .. }, None) = &decision
        {
            values.note(key, name, candidate, loaded, rules);
        }
        decision
    }

    /// Reads some entries with one command, each as [`read`](Self::read) does.
    pub(super) async fn read_many<'a>(
        &'a self,
        keys: &'a [&'a Key],
        names: &'a [Name],
        rules: &'a Rules,
    ) -> impl Iterator<Item = Decision<V>> + 'a {
        let backend = &self.backend;
        let store = backend.store.as_ref();
        let copies = self.local.copies.as_ref();
        let now = Instant::now();
        let mut reads = Vec::with_capacity(names.len());
        // Before the look at the deferred writes, as in `read`.
        for (key, name) in keys.iter().zip(names) {
            let fill = copies.map(|copies| copies.begin(store, name, now));
            reads.push(EntryRead { key, name, fill });
        }
        // Empty if no write is deferred.
        let mut repeats = Vec::new();
        if !backend.writes.is_empty() {
            repeats = join_all(names.iter().map(|name| backend.writes_repeated(name))).await;
        }
        let mut answers = match store.get_many(names, backend.asks_age(rules)).await {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); names.len()],
        };
        for (answer, repeated) in answers.iter_mut().zip(repeats) {
            if let Err(error) = repeated {
                *answer = Err(error);
            }
        }
        self.judge_all(keys, &mut answers).await;
        let answered = reads.into_iter().zip(answers);
        answered.map(|(read, answer)| self.end_read(read, rules, answer))
    }

    /// Decides what an answer means for the caller, and keeps or drops the copy of the entry.
    fn end_read(&self, read: EntryRead<'_>, rules: &Rules, mut answer: Answered) -> Decision<V> {
        let EntryRead { key, name, fill } = read;
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
                let copied = CopiedEntry { entry, size };
                copies.note(fill, key, copied, value, is_hit, rules);
            }
            (Ok(Some(_)), None) => copies.remove(key),
            _ if matches!(decision, Decision::Unanswered(_)) => {}
            _ => copies.missed(key),
        }
        decision
    }

    /// Takes the payload out of an entry of this codec. The codec may keep a stale value for its
    /// loader alone. Then only the fresh window stays, because other callers get no stale value.
    pub(super) fn take_payload(&self, entry: &mut Entry) -> Bytes {
        let payload = mem::take(&mut entry.payload);
        if self.format.codec.is_for_loader_only(&payload) {
            entry.windows = entry.windows.map(|windows| Windows::fresh(windows.fresh));
        }
        payload
    }

    /// Ends the entry of an answer if one of its tags was invalidated.
    pub(super) async fn judge(&self, key: &Key, answer: &mut Answered) {
        if let Ok(Some(Entry { tagged: Some(_), .. })) = answer {
            // The box keeps the caller's future small. An entry without tags does not need it.
            Box::pin(self.judge_all(&[key], slice::from_mut(answer))).await;
        }
    }

    /// Reads the tags of some entries with one command, and ends the entries whose tags were
    /// invalidated. If the read fails, its error takes the place of these answers.
    pub(super) async fn judge_all(&self, keys: &[&Key], answers: &mut [Answered]) {
        let mut judged = Vec::new();
        let mut tags = Vec::new();
        for (key, answer) in keys.iter().zip(answers) {
            let Ok(Some(Entry { tagged: Some(tagged), .. })) = answer else { continue };
            let tagged = tagged.clone();
            tags.extend(tagged.all());
            // Look at the deferred writes before the tags are read. In the other order, both looks
            // would miss a write that is repeated between them.
            let deferred = self.backend.writes.end_of(&tagged);
            judged.push(TaggedAnswer { key, answer, tagged, deferred });
        }
        if judged.is_empty() {
            return;
        }
        let ends = self.backend.store.tag_ends(&self.local.tags.name, &tags).await;
        // `ends` has an item for each of `tags`, in their order. Each entry takes its own items.
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

    /// Decides what an answer means for the caller, by the schema and the codec of this process and
    /// the rules of the caller. Takes the payload out of the entry.
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

    /// Decodes an entry. A panic of the codec is an error, because otherwise the entry could never
    /// be loaded anew.
    fn decode(&self, entry: &mut Entry) -> Result<V, BoxError> {
        let decode = AssertUnwindSafe(|| self.format.codec.decode(self.take_payload(entry)));
        match catch_unwind(decode) {
            Ok(decoded) => decoded,
            Err(panic) => Err(loader::panicked(panic.as_ref()).into()),
        }
    }

    /// Decides what an error of the backend means. Stored bytes that are no entry count as missing.
    fn no_entry(&self, name: &Name, error: &BackendError) -> Decision<V> {
        self.counters.backend_errors.add();
        if error.kind() != BackendErrorKind::Foreign {
            return Decision::Unanswered(error.clone());
        }
        self.undecodable(name, error, "the stored bytes are no entry and count as missing");
        Decision::Miss { seen: 0 }
    }

    /// Counts and logs an entry that cannot be decoded.
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
