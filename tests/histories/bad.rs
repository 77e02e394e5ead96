//! Histories written by hand: a good one, and one that breaks each rule that no backend of `broken`
//! or `schedules` breaks.

use super::{
    checker::{Rule, check},
    history::{Answer, COUNT, Event, Family, History, Line, Process, Source, Time, Value, Windows},
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
        let (key, owner) = (KEY.to_owned(), format!("{by}/{number}"));
        let (family, sent) = (Family::Cache, from * 1000 - 500);
        self.line(by, from, Event::Granted { family, key: key.clone(), owner, fence, sent })
            .line(
                by,
                from,
                Event::LoadBegan { key, value: value(by, number, from * 1000), fence: Some(fence) },
            )
            .line(by, to, Event::LoadEnded { number })
    }

    fn degraded(self, by: Process, number: u64, from: Time, to: Time) -> Self {
        let (key, value) = (KEY.to_owned(), value(by, number, from * 1000));
        self.line(by, from, Event::LoadBegan { key, value, fence: None }).line(
            by,
            to,
            Event::LoadEnded { number },
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
        self.line(process, at, Event::WriteAsked { write, key: KEY.to_owned(), value: None })
    }

    fn answered(self, process: Process, write: u64, at: Time) -> Self {
        self.line(process, at, Event::WriteAnswered { write, error: None })
    }

    /// Adds an invalidation from one time to another.
    fn invalidated(self, by: Process, write: u64, fence: u64, from: Time, to: Time) -> Self {
        let (key, sent) = (KEY.to_owned(), from * 1000);
        self.asked(by, write, from)
            .line(by, to, Event::Burnt { key, fence, value: None, sent })
            .answered(by, write, to)
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
    written.0.windows = Some(Windows { fresh, stale, error, slack: 1_000, refreshes: true });
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
    let unchanged = Event::LoadUnchanged { number: 1, value: loaded };
    let renewed = fresh_only().degraded(2, 1, 190, 200).line(2, 200, unchanged);
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
    let (own, newer) = (value(2, 1, 120_000), value(3, 1, 140_000));
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
fn latches_with_a_wrong_count_are_found() {
    let name = || "l1".to_owned();
    let set = |did| Event::LatchSet { name: name(), did };
    let begins = || Event::CountingDown { name: name() };
    let left = |left| Event::CountedDown { name: name(), left };
    let done = || Event::LatchDone { name: name() };
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
    let missing = |asked| Event::LatchMissing { name: name(), asked };
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
