//! Histories written by hand: a good one, and one that breaks each rule that no backend of
//! `schedules` breaks. Those of loads, fences and invalidations are here as well.

use super::{
    checker::{Rule, check},
    history::{
        Act, Answer, COUNT, Event, Family, History, Kind, LatchStep, Line, LoadStep, LockStep,
        PERMITS, Process, Source, Time, TurnStep, Value, Windows,
    },
};

const KEY: &str = "k0";

fn value(by: Process, number: u64, began: Time) -> Value {
    Value { by, number, began }
}

/// A history that is written in milliseconds.
#[derive(Default)]
struct Written(History);

impl Written {
    fn line(mut self, process: Process, at: Time, event: Event) -> Self {
        self.0.lines.push((process, Line { at: at * 1000, event }));
        self
    }

    /// Adds a lease that is taken at a time, and under it a load from then until another time.
    fn load(self, by: Process, number: u64, fence: u64, from: Time, to: Time) -> Self {
        let key = KEY.to_owned();
        let owner = format!("{by}/{number}");
        let family = Family::Cache;
        let sent = from * 1000 - 500;
        self.line(by, from, Event::Granted { family, key: key.clone(), owner, fence, sent })
            .line(
                by,
                from,
                Event::LoadBegan { key, value: value(by, number, from * 1000), fence: Some(fence) },
            )
            .line(by, to, Event::Load { number, step: LoadStep::Ended })
    }

    fn degraded(self, by: Process, number: u64, from: Time, to: Time) -> Self {
        let key = KEY.to_owned();
        let value = value(by, number, from * 1000);
        self.line(by, from, Event::LoadBegan { key, value, fence: None }).line(
            by,
            to,
            Event::Load { number, step: LoadStep::Ended },
        )
    }

    fn stored(self, by: Process, fence: u64, from: Time, to: Time) -> Self {
        self.line(by, to, Event::Stored { key: KEY.to_owned(), fence, sent: from * 1000 })
    }

    fn read(self, process: Process, value: Value, source: Source, from: Time, to: Time) -> Self {
        let answer = Answer::Value { value, source };
        self.line(
            process,
            to,
            Event::Read { key: KEY.to_owned(), asked: from * 1000, patience: None, answer },
        )
    }

    /// Adds an invalidation that the backend does not answer.
    fn asked(self, process: Process, write: u64, at: Time) -> Self {
        let act = Act::Invalidate;
        let key = KEY.to_owned();
        self.line(process, at, Event::WriteAsked { write, act, key, tag: None, value: None })
    }

    fn answered(self, process: Process, write: u64, at: Time) -> Self {
        self.line(process, at, Event::WriteAnswered { write, error: None, deferred: false })
    }

    /// Adds an invalidation that fails, and is deferred.
    fn deferred(self, process: Process, write: u64, from: Time, to: Time) -> Self {
        let error = Some("the backend is away".to_owned());
        let answered = Event::WriteAnswered { write, error, deferred: true };
        self.asked(process, write, from).line(process, to, answered)
    }

    fn written(self, by: Process, act: Act, fence: u64, from: Time, to: Time) -> Self {
        let key = KEY.to_owned();
        let value = None;
        let sent = from * 1000;
        self.line(by, to, Event::Written { act, key, fence, value, sent })
    }

    fn step(self, by: Process, number: u64, at: Time, step: LoadStep) -> Self {
        self.line(by, at, Event::Load { number, step })
    }

    /// Adds an invalidation from one time to another.
    fn invalidated(self, by: Process, write: u64, fence: u64, from: Time, to: Time) -> Self {
        self.asked(by, write, from)
            .written(by, Act::Invalidate, fence, from, to)
            .answered(by, write, to)
    }

    /// Adds a lock that is held from one time to another, under a fence if it is held alone.
    fn held(self, kind: Kind, by: Process, fence: u64, from: Time, to: Time) -> Self {
        let hold = u64::from(by);
        let name = "l0".to_owned();
        let sent = from * 1000 - 500;
        let family = Family::Lock;
        let key = name.clone();
        let owner = by.to_string();
        let held = match fence {
            0 => self,
            _ => self.line(by, from, Event::Granted { family, key, owner, fence, sent }),
        };
        held.line(by, from, Event::Locked { hold, name, kind, fence, asked: sent }).line(
            by,
            to,
            Event::Lock { hold, step: LockStep::Unlocking },
        )
    }

    /// Returns the rules that the history breaks.
    fn breaks(&self) -> Vec<Rule> {
        let mut rules: Vec<_> = check(&self.0).0.iter().map(|broken| broken.rule).collect();
        rules.sort_unstable();
        rules.dedup();
        rules
    }
}

/// Returns the plain history with windows of 100, 50 and 200 ms, the first of which ends at 212.
fn with_windows() -> Written {
    let [fresh, stale, error] = [100, 50, 200].map(|millis| millis * 1000);
    let mut written = plain();
    written.0.windows =
        Some(Windows { fresh, stale, error, slack: 1_000, refreshes: true, tags: false });
    written
}

/// Returns a history with a load by process 1 that is stored under fence 10, and read.
fn plain() -> Written {
    let loaded = value(1, 1, 100_000);
    Written::default()
        .load(1, 1, 10, 100, 110)
        .stored(1, 10, 111, 112)
        .read(1, loaded, Source::Shared, 95, 113)
        .read(2, loaded, Source::Shared, 120, 121)
}

#[test]
fn a_load_that_is_read_and_invalidated_breaks_no_rule() {
    let later = value(2, 1, 140_000);
    let written = plain()
        .invalidated(1, 7, 20, 130, 131)
        .load(2, 1, 30, 140, 150)
        .stored(2, 30, 151, 152)
        .read(1, later, Source::Shared, 132, 153);
    assert_eq!(written.breaks(), []);
}

#[test]
fn two_loads_at_once_are_found() {
    let one = || Written::default().load(1, 1, 10, 100, 110);
    assert_eq!(one().load(2, 1, 11, 105, 108).breaks(), [Rule::OneLoad]);
    assert_eq!(one().load(1, 2, 11, 105, 108).breaks(), [Rule::OneLoad]);
    assert_eq!(one().load(2, 1, 11, 110, 120).breaks(), []);
}

#[test]
fn two_loads_at_once_with_an_excuse_are_accepted() {
    let written = Written::default().load(1, 1, 10, 100, 110).load(2, 1, 12, 105, 108);
    assert_eq!(written.invalidated(3, 7, 11, 101, 103).breaks(), []);
    let unknown = Written::default().load(1, 1, 10, 100, 110).load(2, 1, 12, 105, 108);
    assert_eq!(unknown.asked(3, 7, 90).breaks(), []);
    let lost = Written::default().load(1, 1, 10, 100, 300).load(2, 1, 12, 205, 208);
    assert_eq!(lost.breaks(), [Rule::OneLoad]);
    assert_eq!(lost.step(1, 1, 203, LoadStep::Lost).breaks(), []);
    let late = Written::default().load(1, 1, 10, 100, 300).load(2, 1, 12, 205, 208);
    assert_eq!(late.step(1, 1, 280, LoadStep::Lost).breaks(), [Rule::OneLoad]);
    let suspended = Written::default().load(1, 1, 10, 100, 300).load(2, 1, 12, 205, 208);
    assert_eq!(suspended.line(1, 250, Event::Paused { from: 110_000 }).breaks(), []);
    let mut evicted = Written::default().load(1, 1, 10, 100, 300).load(2, 1, 12, 205, 208);
    evicted.0.evicted.push((Family::Cache, "k1".to_owned(), 150_000, 151_000));
    assert_eq!(evicted.breaks(), [Rule::OneLoad]);
    evicted.0.evicted.push((Family::Cache, KEY.to_owned(), 150_000, 151_000));
    assert_eq!(evicted.breaks(), []);
    evicted.0.loss_known = Some(60_000);
    assert_eq!(evicted.breaks(), []);
    evicted.0.loss_known = Some(5_000);
    assert_eq!(evicted.breaks(), [Rule::OneLoad], "the loss was reported too late");
    let mut killed = Written::default().load(1, 1, 10, 100, 300).load(2, 1, 12, 205, 208);
    killed.0.killed.push((1, 150_000, 151_000));
    assert_eq!(killed.breaks(), []);
}

#[test]
fn an_older_value_over_a_newer_one_is_found() {
    let over = plain().load(2, 1, 20, 300, 310).stored(1, 10, 320, 321);
    assert_eq!(over.breaks(), [Rule::StoreGoesOn]);
}

#[test]
fn a_read_that_goes_back_is_found() {
    let newer = value(2, 1, 300_000);
    let back = plain().load(2, 1, 20, 300, 310).stored(2, 20, 311, 312).read(
        3,
        newer,
        Source::Shared,
        313,
        314,
    );
    let older = value(1, 1, 100_000);
    assert_eq!(back.read(4, older, Source::Shared, 315, 316).breaks(), [Rule::NeverBack]);
    // The newer value was not to be stored.
    let unstored = plain()
        .load(2, 1, 20, 300, 310)
        .step(2, 1, 310, LoadStep::Unstored)
        .read(3, newer, Source::Shared, 313, 314)
        .read(4, older, Source::Shared, 315, 316);
    assert_eq!(unstored.breaks(), []);
    // The store refused it.
    let refused = || {
        let load = plain().load(2, 1, 20, 300, 310);
        load.line(2, 312, Event::Refused { key: KEY.to_owned(), fence: Some(20) })
    };
    let served = refused().read(2, newer, Source::Shared, 313, 314);
    assert_eq!(served.read(4, older, Source::Shared, 315, 316).breaks(), []);
    let pushed = refused().read(3, newer, Source::Shared, 313, 314);
    assert_eq!(pushed.read(4, older, Source::Shared, 315, 316).breaks(), [Rule::NeverBack]);
    // The second try has stored it.
    let repeated = plain()
        .load(2, 1, 20, 300, 310)
        .line(2, 311, Event::Refused { key: KEY.to_owned(), fence: Some(20) })
        .stored(2, 20, 311, 312)
        .read(2, newer, Source::Shared, 313, 314);
    assert_eq!(repeated.read(4, older, Source::Shared, 315, 316).breaks(), [Rule::NeverBack]);
    // A refresh kept it from the store.
    let superseded = plain()
        .load(2, 1, 20, 300, 310)
        .written(4, Act::Refresh, 21, 311, 312)
        .read(3, newer, Source::Shared, 313, 314)
        .read(4, older, Source::Shared, 315, 316);
    assert_eq!(superseded.breaks(), []);
}

#[test]
fn a_read_of_a_value_loaded_before_an_invalidation_is_found() {
    let older = value(1, 1, 100_000);
    let served = plain().invalidated(3, 7, 20, 130, 140).read(4, older, Source::Shared, 141, 142);
    assert_eq!(served.breaks(), [Rule::NotBeforeWrite]);
    // The rule also holds when no fence was recorded.
    let served =
        plain().asked(3, 7, 130).answered(3, 7, 140).read(4, older, Source::Shared, 141, 142);
    assert_eq!(served.breaks(), [Rule::NotBeforeWrite]);
    // A read that was asked for before the invalidation returned may get the old value.
    let served = plain().invalidated(3, 7, 20, 130, 140).read(4, older, Source::Shared, 139, 142);
    assert_eq!(served.breaks(), []);
    // An invalidation that failed promises nothing.
    let served = plain().asked(3, 7, 130).read(4, older, Source::Shared, 141, 142);
    assert_eq!(served.breaks(), []);
}

/// The end of a tag may be lost between the question for the entry and the one for its tags.
#[test]
fn a_read_during_a_loss_of_data_may_miss_the_end_of_a_tag() {
    let older = value(1, 1, 100_000);
    let read_while_lost = |tag: Option<&str>, lost: Time| {
        let key = KEY.to_owned();
        let tag = tag.map(str::to_owned);
        let act = Act::Invalidate;
        let asked = Event::WriteAsked { write: 7, act, key, tag, value: None };
        let ended = plain().line(3, 130, asked).answered(3, 7, 140);
        let mut read = ended.read(4, older, Source::Shared, 141, 150);
        read.0.data_lost.push(lost * 1000);
        read.breaks()
    };
    assert_eq!(read_while_lost(Some("of k0"), 145), []);
    assert_eq!(read_while_lost(Some("of k0"), 120), [Rule::NotBeforeWrite]);
    assert_eq!(read_while_lost(Some("of k0"), 151), [Rule::NotBeforeWrite]);
    assert_eq!(read_while_lost(None, 145), [Rule::NotBeforeWrite]);
}

#[test]
fn two_flights_in_one_process_are_found() {
    let twice = || Written::default().degraded(1, 1, 100, 300).degraded(1, 2, 200, 400);
    assert_eq!(twice().breaks(), [Rule::OneFlight]);
    assert_eq!(twice().asked(1, 7, 150).answered(1, 7, 160).breaks(), []);
    assert_eq!(Written::default().degraded(1, 1, 100, 300).degraded(2, 2, 200, 400).breaks(), []);
}

#[test]
fn copies_that_are_too_old_are_found() {
    let older = value(1, 1, 100_000);
    let read = |process, at| {
        let invalidated = plain().invalidated(3, 7, 20, 130, 140);
        invalidated.read(process, older, Source::Local, at, at + 1).breaks()
    };
    // Another process may be behind for 200 ms.
    assert_eq!(read(4, 141), []);
    assert_eq!(read(4, 340), []);
    assert_eq!(read(4, 342), [Rule::NotBeforeWrite]);
    // That which has invalidated is not behind.
    assert_eq!(read(3, 140), []);
    assert_eq!(read(3, 141), [Rule::Local]);
}

#[test]
fn a_deferred_write_that_is_forgotten_or_weaker_or_late_is_found() {
    let deferred = || plain().deferred(3, 7, 130, 140);
    let repeated = |by, act| deferred().written(by, act, 20, 200, 201);
    assert_eq!(deferred().breaks(), [Rule::Deferred]);
    assert_eq!(repeated(3, Act::Invalidate).breaks(), []);
    assert_eq!(repeated(3, Act::Expire).breaks(), [Rule::Deferred]);
    assert_eq!(repeated(4, Act::Invalidate).breaks(), [Rule::Deferred]);
    // Other processes do not know of it before it is repeated.
    let older = value(1, 1, 100_000);
    let read = |process, source| {
        let read = repeated(3, Act::Invalidate).read(process, older, source, 150, 151);
        read.breaks()
    };
    assert_eq!(read(4, Source::Hit), []);
    assert_eq!(read(3, Source::Hit), [Rule::Deferred]);
    assert_eq!(read(3, Source::Local), [Rule::Deferred]);
    assert_eq!(read(3, Source::Shared), [Rule::Deferred]);
}

#[test]
fn a_shared_value_that_was_loaded_without_a_lease_is_found() {
    let loaded = value(1, 1, 100_000);
    let degraded = || Written::default().degraded(1, 1, 100, 110);
    let followed = degraded().read(1, loaded, Source::Degraded, 90, 111).read(
        1,
        loaded,
        Source::Degraded,
        105,
        112,
    );
    assert_eq!(followed.breaks(), []);
    // The process remembers the value, but not beyond an answer of the store.
    let remembered = followed.read(1, loaded, Source::Degraded, 115, 116);
    assert_eq!(remembered.breaks(), []);
    let newer = value(2, 1, 300_000);
    let heard = remembered
        .load(2, 1, 20, 300, 310)
        .stored(2, 20, 311, 312)
        .read(1, newer, Source::Hit, 313, 314)
        .read(1, loaded, Source::Degraded, 313, 316);
    assert_eq!(heard.breaks(), []);
    assert_eq!(heard.read(1, loaded, Source::Degraded, 315, 316).breaks(), [Rule::Degraded]);
    // A store that refuses writes still has the value from before.
    let older = value(2, 1, 50_000);
    let stored = Written::default().load(2, 1, 10, 50, 60).stored(2, 10, 61, 62);
    let back = stored
        .degraded(1, 1, 100, 110)
        .read(1, loaded, Source::Degraded, 90, 111)
        .read(1, older, Source::Hit, 113, 114)
        .read(1, loaded, Source::Degraded, 115, 116);
    assert_eq!(back.breaks(), [Rule::Degraded]);
    let refused = Event::Refused { key: KEY.to_owned(), fence: None };
    assert_eq!(back.line(1, 112, refused).breaks(), []);
    let elsewhere = degraded().read(2, loaded, Source::Degraded, 90, 111);
    assert_eq!(elsewhere.breaks(), [Rule::Degraded]);
    let seen = Event::Seen { key: KEY.to_owned(), value: loaded, fence: 10 };
    assert_eq!(degraded().line(2, 120, seen).breaks(), [Rule::Degraded]);
    let written =
        degraded().asked(1, 7, 101).answered(1, 7, 102).read(1, loaded, Source::Degraded, 103, 111);
    assert_eq!(written.breaks(), [Rule::Degraded]);
}

#[test]
fn a_value_of_the_store_that_is_remembered_for_too_long_is_found() {
    let loaded = value(1, 1, 100_000);
    let read = |written: Written, at| written.read(2, loaded, Source::Degraded, at, at + 1);
    // Stored at 112, and kept for 300 ms.
    assert_eq!(read(with_windows(), 412).breaks(), []);
    assert_eq!(read(with_windows(), 414).breaks(), [Rule::Remembered]);
    let fresh_only = || {
        let mut written = with_windows();
        let windows = written.0.windows.as_mut().unwrap();
        (windows.stale, windows.error) = (0, 0);
        written
    };
    assert_eq!(read(fresh_only(), 200).breaks(), [Rule::Remembered]);
    // A load without a lease has found it unchanged.
    let renewed = fresh_only().degraded(2, 1, 190, 200);
    let renewed = renewed.step(2, 1, 200, LoadStep::Unchanged(loaded));
    assert_eq!(read(renewed, 201).breaks(), []);
    // Another process may have invalidated it meanwhile, and this process may not.
    assert_eq!(read(with_windows().invalidated(3, 7, 20, 130, 140), 150).breaks(), []);
    let ours = with_windows().invalidated(2, 7, 20, 130, 140);
    assert_eq!(read(ours, 150).breaks(), [Rule::Remembered]);
    let newer = value(3, 1, 130_000);
    let served = with_windows()
        .invalidated(3, 7, 20, 120, 125)
        .load(3, 1, 30, 130, 140)
        .stored(3, 30, 141, 142)
        .read(2, newer, Source::Hit, 143, 144);
    assert_eq!(read(served, 150).breaks(), [Rule::Remembered]);
}

/// A process looked at a newer value while its own load was under way. The server then went away,
/// and the commit of the load had no answer.
#[test]
fn a_value_of_an_own_load_that_is_older_than_what_was_seen_since_is_found() {
    let own = value(2, 1, 120_000);
    let newer = value(3, 1, 140_000);
    let seen_at = |at: Time| {
        with_windows()
            .load(2, 1, 15, 120, 200)
            .invalidated(3, 7, 20, 130, 135)
            .load(3, 1, 30, 140, 150)
            .stored(3, 30, 151, 152)
            .read(2, newer, Source::Stored, at, at + 1)
            .read(2, own, Source::Shared, 119, 201)
    };
    let late = |written: Written, at| written.read(2, own, Source::Degraded, at, at.max(201) + 1);
    assert_eq!(late(seen_at(153), 160).breaks(), []);
    assert_eq!(late(seen_at(153), 203).breaks(), []);
    assert_eq!(late(seen_at(203), 203).breaks(), []);
    assert_eq!(late(seen_at(203), 205).breaks(), [Rule::Remembered]);
}

#[test]
fn values_without_an_origin_are_found() {
    let [unknown, unfinished] = [value(5, 1, 90_000), value(1, 1, 100_000)];
    assert_eq!(plain().read(2, unknown, Source::Shared, 120, 121).breaks(), [Rule::Origin]);
    assert_eq!(plain().read(2, unfinished, Source::Shared, 101, 105).breaks(), [Rule::Origin]);
    let read = Event::Read {
        key: "k1".to_owned(),
        asked: 120_000,
        patience: None,
        answer: Answer::Value { value: unfinished, source: Source::Shared },
    };
    assert_eq!(plain().line(2, 121, read).breaks(), [Rule::Origin]);
}

#[test]
fn fences_that_do_not_grow_are_found() {
    assert_eq!(plain().load(2, 1, 9, 200, 210).breaks(), [Rule::Fences]);
    assert_eq!(plain().load(2, 1, 10, 200, 210).breaks(), [Rule::Fences]);
    assert_eq!(plain().invalidated(2, 7, 9, 200, 210).breaks(), [Rule::Fences]);
}

/// A process holds a lock from 100 to 300 ms, and another one takes it at 200 ms.
#[test]
fn two_holders_of_a_lock_are_found() {
    let all = PERMITS;
    let lock = |step| Event::Lock { hold: 1, step };
    for (first, second, rule) in [
        ((Kind::Mutex, 10), (Kind::Mutex, 20), Some(Rule::OneHolder)),
        ((Kind::Leader, 10), (Kind::Leader, 20), Some(Rule::OneHolder)),
        ((Kind::Leader, 10), (Kind::Mutex, 20), Some(Rule::OneHolder)),
        ((Kind::Writer, 10), (Kind::Writer, 20), Some(Rule::OneHolder)),
        ((Kind::Reader, 0), (Kind::Writer, 20), Some(Rule::NoneBesideWriter)),
        ((Kind::Writer, 20), (Kind::Reader, 0), Some(Rule::NoneBesideWriter)),
        ((Kind::Reader, 0), (Kind::Reader, 0), None),
        ((Kind::Permits(all - 1), 0), (Kind::Permits(2), 0), Some(Rule::Limit)),
        ((Kind::Permits(all - 1), 0), (Kind::Permits(1), 0), None),
    ] {
        let first_held = Written::default().held(first.0, 1, first.1, 100, 300);
        let both = || Written(first_held.0.clone()).held(second.0, 2, second.1, 200, 210);
        let what = format!("{first:?} {second:?}");
        assert_eq!(both().breaks(), Vec::from_iter(rule), "{what}");
        // A hold counts as long as its holder may take it for one.
        assert_eq!(both().line(1, 199, lock(LockStep::Lost)).breaks(), [], "{what}");
        let suspended = both().line(1, 290, Event::Paused { from: 110_000 });
        assert_eq!(suspended.breaks(), [], "{what}");
        // It was unlocked as held to the end.
        let to_the_end = suspended.line(1, 301, lock(LockStep::Unlocked(Some(true))));
        assert_eq!(to_the_end.breaks(), Vec::from_iter(rule), "{what}");
        let late = both().line(1, 290, lock(LockStep::Lost));
        assert_eq!(late.breaks(), Vec::from_iter(rule), "{what}: the loss was reported too late");
        let mut evicted = both();
        evicted.0.evicted.push((Family::Lock, "l0".to_owned(), 150_000, 151_000));
        assert_eq!(evicted.breaks(), [], "{what}");
        evicted.0.loss_known = Some(5_000);
        assert_eq!(evicted.breaks(), Vec::from_iter(rule), "{what}: the holder goes on");
        let after = Written(first_held.0).held(second.0, 2, second.1, 301, 310);
        assert_eq!(after.breaks(), [], "{what}");
    }
}

#[test]
fn latches_with_a_wrong_count_are_found() {
    let event = |step| Event::Latch { name: "l1".to_owned(), step };
    let set = |did| event(LatchStep::Set { did });
    let begins = || event(LatchStep::Begins);
    let left = |left| event(LatchStep::Left(left));
    let done = || event(LatchStep::Done);
    let steps = |count: u32| {
        let set = Written::default().line(1, 10, set(true)).line(2, 11, set(false));
        (0..count).fold(set, |all, step| all.line(1, 20 + u64::from(step), begins()))
    };
    let all = || steps(COUNT).line(1, 30, left(COUNT - 1)).line(1, 31, left(0));
    assert_eq!(all().line(2, 40, done()).breaks(), []);
    assert_eq!(all().line(1, 41, left(0)).breaks(), [], "the latch stays at zero");
    assert_eq!(
        all().line(2, 22, done()).breaks(),
        [Rule::Latch],
        "the wait ended before the last step"
    );
    assert_eq!(all().line(2, 12, set(true)).breaks(), [Rule::Latch], "the latch was set twice");
    assert_eq!(
        all().line(2, 32, left(COUNT - 1)).breaks(),
        [Rule::Latch],
        "two steps counted as one"
    );
    let few = || steps(COUNT - 1);
    assert_eq!(few().line(1, 30, left(1)).breaks(), []);
    assert_eq!(few().line(1, 30, left(0)).breaks(), [Rule::Latch], "one step counted twice");
    assert_eq!(few().line(1, 30, left(COUNT)).breaks(), [Rule::Latch], "one step did not count");
    assert_eq!(few().line(1, 30, done()).breaks(), [Rule::Latch]);
    let missing = |asked| event(LatchStep::Missing { asked });
    assert_eq!(few().line(2, 12, missing(9_000)).breaks(), []);
    assert_eq!(few().line(2, 12, missing(11_000)).breaks(), [Rule::Latch]);
}

#[test]
fn calls_without_an_answer_are_found() {
    let mut hanging = plain();
    hanging.0.hanging.push(2);
    assert_eq!(hanging.breaks(), [Rule::Answered]);
    let answer = Answer::Error("Overloaded: 4 loads are running already".to_owned());
    let failed = plain().line(
        1,
        120,
        Event::Read { key: KEY.to_owned(), asked: 119_000, patience: None, answer },
    );
    assert_eq!(failed.breaks(), [Rule::Answered]);
}

#[test]
fn a_tick_that_is_begun_twice_is_found() {
    let event = |job: &str, tick, fence, step| {
        let job = job.to_owned();
        Event::Turn { job, tick, fence, step }
    };
    let begun = |job, tick, fence| event(job, tick, fence, TurnStep::Began);
    let one = |job| Written::default().line(1, 11, begun(job, 7, 1));
    let done = |job| one(job).line(1, 20, event(job, 7, 1, TurnStep::Done));
    assert_eq!(one("j0").line(2, 31, begun("j0", 8, 2)).breaks(), []);
    assert_eq!(one("j0").line(2, 31, begun("j0", 7, 2)).breaks(), [Rule::Ticks]);
    // A tick that runs at least once may be begun again until it is done.
    assert_eq!(one("j1").line(2, 31, begun("j1", 7, 2)).breaks(), []);
    assert_eq!(done("j1").line(2, 31, begun("j1", 7, 2)).breaks(), [Rule::Ticks]);
    assert_eq!(one("j1").line(2, 31, begun("j1", 6, 2)).breaks(), [Rule::Ticks]);
}
