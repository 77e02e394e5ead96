//! Histories written by hand: good ones, and for each rule one that breaks it.

use super::{
    checker::{Rule, check},
    history::{
        Answer, COUNT, Event, Family, History, Kind, Line, PERMITS, Process, Source, Time, Value,
        Windows,
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

    /// Adds a mutex that is held from one time to another.
    fn held(self, by: Process, hold: u64, fence: u64, from: Time, to: Time) -> Self {
        self.alone("m0", Kind::Mutex, by, hold, fence, from, to)
    }

    /// Adds a read-write lock that a writer holds from one time to another.
    fn written(self, by: Process, hold: u64, fence: u64, from: Time, to: Time) -> Self {
        self.alone("w0", Kind::Writer, by, hold, fence, from, to)
    }

    #[allow(clippy::too_many_arguments)]
    fn alone(
        self,
        name: &str,
        kind: Kind,
        by: Process,
        hold: u64,
        fence: u64,
        from: Time,
        to: Time,
    ) -> Self {
        let (name, owner) = (name.to_owned(), format!("{by}/{hold}"));
        let (family, key, sent) = (Family::Lock, name.clone(), from * 1000 - 500);
        self.line(by, from, Event::Granted { family, key, owner, fence, sent })
            .line(by, from, Event::Locked { hold, name, kind, fence, asked: sent })
            .line(by, to, Event::Unlocking { hold })
    }

    /// Adds a hold of a kind that permits others beside it.
    fn beside(self, kind: Kind, by: Process, hold: u64, from: Time, to: Time) -> Self {
        let name = if kind == Kind::Reader { "w0" } else { "s0" }.to_owned();
        let asked = from * 1000 - 500;
        self.line(by, from, Event::Locked { hold, name, kind, fence: 0, asked }).line(
            by,
            to,
            Event::Unlocking { hold },
        )
    }

    fn read_lock(self, by: Process, hold: u64, from: Time, to: Time) -> Self {
        self.beside(Kind::Reader, by, hold, from, to)
    }

    fn permits(self, count: u32, by: Process, hold: u64, from: Time, to: Time) -> Self {
        self.beside(Kind::Permits(count), by, hold, from, to)
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
    assert_eq!(lost.line(1, 203, Event::LoadLost { number: 1 }).breaks(), []);
    let late = Written::default().load(1, 1, 10, 100, 300).load(2, 1, 12, 205, 208);
    assert_eq!(late.line(1, 280, Event::LoadLost { number: 1 }).breaks(), [Rule::OneLoad]);
    let suspended = Written::default().load(1, 1, 10, 100, 300).load(2, 1, 12, 205, 208);
    assert_eq!(suspended.line(1, 250, Event::Paused { from: 110_000 }).breaks(), []);
    let mut evicted = Written::default().load(1, 1, 10, 100, 300).load(2, 1, 12, 205, 208);
    evicted.0.evicted.push((Family::Cache, "k1".to_owned(), 150_000, 151_000));
    assert_eq!(evicted.breaks(), [Rule::OneLoad]);
    evicted.0.evicted.push((Family::Cache, KEY.to_owned(), 150_000, 151_000));
    assert_eq!(evicted.breaks(), []);
    let mut killed = Written::default().load(1, 1, 10, 100, 300).load(2, 1, 12, 205, 208);
    killed.0.killed.push((1, 150_000, 151_000));
    assert_eq!(killed.breaks(), []);
}

#[test]
fn two_flights_in_one_process_are_found() {
    let twice = || Written::default().degraded(1, 1, 100, 300).degraded(1, 2, 200, 400);
    assert_eq!(twice().breaks(), [Rule::OneFlight]);
    assert_eq!(twice().asked(1, 7, 150).answered(1, 7, 160).breaks(), []);
    assert_eq!(Written::default().degraded(1, 1, 100, 300).degraded(2, 2, 200, 400).breaks(), []);
}

#[test]
fn fences_that_do_not_grow_are_found() {
    assert_eq!(plain().load(2, 1, 9, 200, 210).breaks(), [Rule::Fences]);
    assert_eq!(plain().load(2, 1, 10, 200, 210).breaks(), [Rule::Fences]);
    assert_eq!(plain().invalidated(2, 7, 9, 200, 210).breaks(), [Rule::Fences]);
    let again = Event::Seen { key: KEY.to_owned(), value: value(1, 1, 100_000), fence: 11 };
    assert_eq!(plain().line(3, 120, again).breaks(), [Rule::Fences]);
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
        .line(2, 310, Event::LoadUnstored { number: 1 })
        .read(3, newer, Source::Shared, 313, 314)
        .read(4, older, Source::Shared, 315, 316);
    assert_eq!(unstored.breaks(), []);
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
fn reads_outside_of_the_windows_are_found() {
    let loaded = value(1, 1, 100_000);
    let read = |source, at| with_windows().read(2, loaded, source, at, at + 1).breaks();
    for (source, end) in [(Source::Hit, 212), (Source::Stored, 262), (Source::Stale, 412)] {
        assert_eq!(read(source, end), [], "{source:?}");
        assert_eq!(read(source, end + 2), [Rule::Windows], "{source:?}");
    }
    // The windows begin anew under fence 20.
    let key = || KEY.to_owned();
    let touched = || {
        with_windows()
            .line(3, 200, Event::TouchAsked { write: 7, key: key() })
            .line(3, 210, Event::Touched { key: key(), fence: 20, sent: 200_001 })
            .answered(3, 7, 211)
            .line(2, 250, Event::Seen { key: key(), value: loaded, fence: 20 })
    };
    assert_eq!(touched().read(2, loaded, Source::Hit, 300, 301).breaks(), []);
    assert_eq!(touched().read(2, loaded, Source::Hit, 312, 313).breaks(), [Rule::Windows]);
    let unanswered = with_windows().line(3, 200, Event::TouchAsked { write: 7, key: key() });
    assert_eq!(unanswered.read(2, loaded, Source::Hit, 300, 301).breaks(), []);
}

/// A touch at 210, then an expiry, and only then a read. The value has the fence of the expiry, so
/// no process has seen it under the fence of the touch. Its windows have begun at the touch all the
/// same: a read as the stand-in of a failed load is right until 510, and not until 412 only.
#[test]
fn a_touch_before_an_expiry_begins_the_windows_anew() {
    let loaded = value(1, 1, 100_000);
    let key = || KEY.to_owned();
    let expired = |written: Written| {
        let burnt = Event::Burnt { key: key(), fence: 30, value: None, sent: 250_001 };
        written
            .line(3, 250, Event::ExpireAsked { write: 8, key: key() })
            .line(3, 251, burnt)
            .answered(3, 8, 252)
            .line(2, 253, Event::Seen { key: key(), value: loaded, fence: 30 })
            .load(2, 1, 40, 440, 500)
            .line(2, 499, Event::LoadFailed { number: 1 })
            .load(2, 2, 50, 515, 540)
            .line(2, 539, Event::LoadFailed { number: 2 })
    };
    let touched = || {
        let asked = with_windows().line(3, 200, Event::TouchAsked { write: 7, key: key() });
        let touched = Event::Touched { key: key(), fence: 20, sent: 200_001 };
        expired(asked.line(3, 210, touched).answered(3, 7, 211))
    };
    assert_eq!(touched().read(2, loaded, Source::Stale, 450, 501).breaks(), []);
    assert_eq!(touched().read(2, loaded, Source::Stale, 520, 541).breaks(), [Rule::Windows]);
    let untouched = expired(with_windows());
    assert_eq!(untouched.read(2, loaded, Source::Stale, 450, 501).breaks(), [Rule::Windows]);
}

#[test]
fn an_expired_value_that_stands_in_for_no_failure_is_found() {
    let loaded = value(1, 1, 100_000);
    let expired = || {
        with_windows()
            .line(3, 130, Event::ExpireAsked { write: 7, key: KEY.to_owned() })
            .line(
                3,
                131,
                Event::Burnt { key: KEY.to_owned(), fence: 20, value: None, sent: 130_001 },
            )
            .answered(3, 7, 132)
            .line(2, 133, Event::Seen { key: KEY.to_owned(), value: loaded, fence: 20 })
    };
    for source in [Source::Hit, Source::Stored, Source::Stale] {
        let read = expired().read(2, loaded, source, 140, 141);
        assert_eq!(read.breaks(), [Rule::NotBeforeWrite], "{source:?}");
    }
    let failed =
        || expired().load(2, 1, 30, 142, 150).line(2, 149, Event::LoadFailed { number: 1 });
    assert_eq!(failed().read(2, loaded, Source::Stale, 140, 151).breaks(), []);
    // The flight takes callers until it has landed, which its process may be late for.
    let late = |mut written: Written| {
        written.0.windows.as_mut().unwrap().error = 5_000_000;
        written.read(2, loaded, Source::Stale, 2_120, 2_121).breaks()
    };
    assert_eq!(late(failed()), [Rule::NotBeforeWrite]);
    assert_eq!(late(failed().line(2, 2_100, Event::Paused { from: 149_000 })), []);
    // An invalidated value stands in for nothing.
    let gone = failed().invalidated(3, 8, 40, 151, 152).read(2, loaded, Source::Stale, 153, 154);
    assert_eq!(gone.breaks(), [Rule::NotBeforeWrite]);
}

#[test]
fn a_read_of_a_value_inserted_before_an_invalidation_is_found() {
    let inserted = value(1, 1, 100_000);
    let insert = |answered: bool| {
        let asked = Event::WriteAsked { write: 6, key: KEY.to_owned(), value: Some(inserted) };
        let written = Written::default().line(1, 100, asked).invalidated(3, 7, 20, 130, 140);
        let written = if answered { written.answered(1, 6, 110) } else { written };
        written.read(4, inserted, Source::Shared, 141, 142)
    };
    assert_eq!(insert(true).breaks(), [Rule::NotBeforeWrite]);
    assert_eq!(insert(false).breaks(), []);
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
fn a_load_of_a_key_that_backs_off_is_found() {
    let failed = |at: Time| {
        let back_off = Event::BackedOff { key: KEY.to_owned(), wait: 100_000, sent: at * 1000 };
        Written::default()
            .load(1, 1, 10, 100, 110)
            .line(1, 109, Event::LoadFailed { number: 1 })
            .line(1, at + 1, back_off)
    };
    assert_eq!(failed(110).load(2, 1, 20, 150, 160).breaks(), [Rule::BackOff]);
    assert_eq!(failed(110).load(2, 1, 20, 210, 220).breaks(), []);
    // Each act ends it, and so may one without an answer.
    assert_eq!(failed(110).invalidated(3, 7, 15, 120, 130).load(2, 1, 20, 150, 160).breaks(), []);
    assert_eq!(failed(110).asked(3, 7, 120).load(2, 1, 20, 150, 160).breaks(), []);
}

#[test]
fn a_failure_without_a_failed_load_is_found() {
    let read =
        |asked| Event::Read { key: KEY.to_owned(), asked, patience: None, answer: Answer::Failed };
    assert_eq!(plain().line(2, 130, read(120_000)).breaks(), [Rule::Failure]);
    let failed = || plain().line(1, 109, Event::LoadFailed { number: 1 });
    assert_eq!(failed().line(2, 130, read(120_000)).breaks(), []);
    assert_eq!(failed().line(2, 2_130, read(2_120_000)).breaks(), [Rule::Failure]);
    // The flight does not land before its process goes on. It takes callers for a second of that.
    let paused = |process, to: Time| {
        let by_its_parent = Event::Paused { from: 105_000 };
        let by_itself = Event::Paused { from: 106_000 };
        let paused = failed().line(process, to, by_its_parent).line(process, to + 1, by_itself);
        paused.line(1, 2_130, read(2_120_000)).breaks()
    };
    assert_eq!(paused(1, 2_100), []);
    assert_eq!(paused(1, 1_200), []);
    assert_eq!(paused(1, 1_000), [Rule::Failure]);
    assert_eq!(paused(2, 2_100), [Rule::Failure]);
}

#[test]
fn a_refresh_that_returns_an_older_value_is_found() {
    let refreshed = |value| {
        plain()
            .line(2, 130, Event::RefreshAsked { write: 7, key: KEY.to_owned() })
            .line(2, 131, Event::Superseded { key: KEY.to_owned(), fence: 20, sent: 130_001 })
            .load(2, 1, 30, 132, 140)
            .stored(2, 30, 141, 142)
            .line(2, 143, Event::Refreshed { write: 7, value })
            .answered(2, 7, 144)
    };
    assert_eq!(refreshed(value(2, 1, 132_000)).breaks(), []);
    assert_eq!(refreshed(value(1, 1, 100_000)).breaks(), [Rule::Refreshed]);
    // A refresh ends the loads before it, and no value.
    let older = value(1, 1, 100_000);
    let late = refreshed(value(2, 1, 132_000)).read(3, older, Source::Shared, 135, 136);
    assert_eq!(late.breaks(), []);
    let superseded = Event::Superseded { key: KEY.to_owned(), fence: 20, sent: 110_001 };
    let stored = Written::default().load(1, 1, 10, 100, 110).line(2, 111, superseded);
    assert_eq!(stored.stored(1, 10, 112, 113).breaks(), [Rule::StoreGoesOn]);
}

#[test]
fn an_unchanged_value_from_before_an_invalidation_is_found() {
    let older = value(1, 1, 100_000);
    let renewed = |from, to| {
        plain()
            .load(2, 1, 30, from, to)
            .line(2, to, Event::LoadUnchanged { number: 1, value: older })
            .line(2, to + 1, Event::Stored { key: KEY.to_owned(), fence: 30, sent: to * 1000 })
    };
    let expired = |written: Written, fence, at| {
        written
            .line(3, at, Event::ExpireAsked { write: 7, key: KEY.to_owned() })
            .line(
                3,
                at + 1,
                Event::Burnt { key: KEY.to_owned(), fence, value: None, sent: at * 1000 + 1 },
            )
            .answered(3, 7, at + 2)
    };
    // The load has looked at the origin after the expiry.
    let after = expired(renewed(140, 150), 20, 130);
    assert_eq!(after.read(4, older, Source::Shared, 160, 161).breaks(), []);
    let before = expired(renewed(140, 150), 40, 145);
    let read = before.read(4, older, Source::Shared, 160, 161);
    // It is stored after the expiry, too.
    assert_eq!(read.breaks(), [Rule::StoreGoesOn, Rule::NotBeforeWrite]);
}

#[test]
fn a_stale_value_before_the_end_of_patience_is_found() {
    let loaded = value(1, 1, 100_000);
    let read = |patience: Option<Time>| {
        let answer = Answer::Value { value: loaded, source: Source::Stale };
        let burnt = Event::Burnt { key: KEY.to_owned(), fence: 20, value: None, sent: 130_001 };
        with_windows()
            .line(3, 130, Event::ExpireAsked { write: 7, key: KEY.to_owned() })
            .line(3, 131, burnt)
            .answered(3, 7, 132)
            .line(2, 133, Event::Seen { key: KEY.to_owned(), value: loaded, fence: 20 })
            .line(2, 160, Event::Read { key: KEY.to_owned(), asked: 140_000, patience, answer })
            .breaks()
    };
    assert_eq!(read(Some(20_000)), []);
    assert_eq!(read(Some(22_000)), [Rule::NotBeforeWrite]);
    assert_eq!(read(None), [Rule::NotBeforeWrite]);
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
fn two_holders_of_a_lock_are_found() {
    let twice = || Written::default().held(1, 1, 10, 100, 300).held(2, 1, 20, 200, 210);
    assert_eq!(twice().breaks(), [Rule::OneHolder]);
    let told = twice().line(1, 199, Event::LockLost { hold: 1 });
    assert_eq!(told.breaks(), []);
    let held = Event::Unlocked { hold: 1, held: Some(true) };
    assert_eq!(told.line(1, 301, held.clone()).breaks(), []);
    // The lock was unlocked as held to the end, but another process had been granted it.
    let suspended = twice().line(1, 290, Event::Paused { from: 110_000 });
    assert_eq!(suspended.breaks(), []);
    assert_eq!(suspended.line(1, 301, held).breaks(), [Rule::OneHolder]);
    let after = Written::default().held(1, 1, 10, 100, 200).held(2, 1, 20, 201, 210);
    assert_eq!(after.breaks(), []);
    // Nor does a leader lead beside a holder, or beside another leader.
    let leads = |by, from| {
        let first = Written::default().alone("m0", Kind::Leader, 1, 1, 10, 100, 300);
        first.alone("m0", by, 2, 1, 20, from, 310)
    };
    for by in [Kind::Leader, Kind::Mutex] {
        assert_eq!(leads(by, 200).breaks(), [Rule::OneHolder]);
        assert_eq!(leads(by, 301).breaks(), []);
    }
    let back = Written::default().held(1, 1, 20, 100, 200).held(2, 1, 10, 201, 210);
    assert_eq!(back.breaks(), [Rule::Fences]);
}

#[test]
fn two_writers_of_a_lock_are_found() {
    let twice = || Written::default().written(1, 1, 10, 100, 300).written(2, 1, 20, 200, 210);
    assert_eq!(twice().breaks(), [Rule::OneHolder]);
    assert_eq!(twice().line(1, 199, Event::LockLost { hold: 1 }).breaks(), []);
    let after = Written::default().written(1, 1, 10, 100, 200).written(2, 1, 20, 201, 210);
    assert_eq!(after.breaks(), []);
    let back = Written::default().written(1, 1, 20, 100, 200).written(2, 1, 10, 201, 210);
    assert_eq!(back.breaks(), [Rule::Fences]);
    // Locks of other names and other kinds do not conflict.
    let apart = Written::default().written(1, 1, 10, 100, 300).held(2, 1, 10, 200, 210);
    assert_eq!(apart.permits(PERMITS, 3, 1, 200, 210).breaks(), []);
}

#[test]
fn a_reader_beside_a_writer_is_found() {
    let readers = Written::default().read_lock(1, 1, 100, 300).read_lock(2, 1, 150, 400);
    assert_eq!(readers.breaks(), []);
    let early = || Written::default().read_lock(1, 1, 100, 300).written(2, 1, 20, 200, 210);
    let late = || Written::default().written(2, 1, 20, 100, 300).read_lock(1, 1, 200, 210);
    for beside in [early, late] {
        assert_eq!(beside().breaks(), [Rule::NoneBesideWriter]);
        // A hold counts as long as its holder may take it for one.
        assert_eq!(beside().line(1, 199, Event::LockLost { hold: 1 }).breaks(), []);
        assert_eq!(beside().line(2, 205, Event::Paused { from: 110_000 }).breaks(), []);
        let before = Event::Paused { from: 110_000 };
        assert_eq!(beside().line(1, 140, before).breaks(), [Rule::NoneBesideWriter]);
        let mut evicted = beside();
        evicted.0.evicted.push((Family::Lock, "w0".to_owned(), 150_000, 151_000));
        assert_eq!(evicted.breaks(), []);
        let mut killed = beside();
        killed.0.killed.push((1, 150_000, 151_000));
        killed.0.killed.push((2, 150_000, 151_000));
        assert_eq!(killed.breaks(), []);
        // The lock was unlocked as held to the end, so it was held all the time.
        let suspended = || {
            beside().line(1, 290, Event::Paused { from: 110_000 }).line(
                1,
                301,
                Event::Unlocked { hold: 1, held: Some(true) },
            )
        };
        assert_eq!(suspended().breaks(), [Rule::NoneBesideWriter]);
    }
    assert_eq!(
        early().line(1, 290, Event::LockLost { hold: 1 }).breaks(),
        [Rule::NoneBesideWriter],
        "the loss was reported too late"
    );
    let after = Written::default().read_lock(1, 1, 100, 200).written(2, 1, 20, 201, 210);
    assert_eq!(after.read_lock(3, 1, 211, 220).breaks(), []);
}

#[test]
fn more_permits_than_the_limit_are_found() {
    let all = || Written::default().permits(2, 1, 1, 100, 300).permits(1, 2, 1, 150, 300);
    assert_eq!(all().breaks(), []);
    assert_eq!(all().permits(1, 3, 1, 300, 400).breaks(), []);
    let more = || all().permits(1, 3, 1, 200, 250);
    assert_eq!(more().breaks(), [Rule::Limit]);
    assert_eq!(more().line(2, 199, Event::LockLost { hold: 1 }).breaks(), []);
    assert_eq!(more().line(1, 290, Event::Paused { from: 110_000 }).breaks(), []);
    // One permit less is not enough for two.
    let two = || all().permits(2, 3, 1, 200, 250);
    assert_eq!(two().line(2, 199, Event::LockLost { hold: 1 }).breaks(), [Rule::Limit]);
    assert_eq!(two().line(1, 199, Event::LockLost { hold: 1 }).breaks(), []);
    let held = Event::Unlocked { hold: 1, held: Some(true) };
    let suspended = more().line(1, 290, Event::Paused { from: 110_000 }).line(1, 301, held);
    assert_eq!(suspended.breaks(), [Rule::Limit]);
    let mut evicted = more();
    evicted.0.evicted.push((Family::Lock, "s0".to_owned(), 180_000, 181_000));
    assert_eq!(evicted.breaks(), []);
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
