//! The promises of jobs that run once. `Locks` over one memory backend stand for processes.
//!
//! Time is paused, so every wait here is exact and takes no time.

use std::time::SystemTime;

use bellwether::lock::{PreviousTick, Turn};

use crate::prelude::*;

const HOUR: Duration = Duration::from_secs(3600);
/// A period that is too long for a second tick to begin in a test, as a day is not.
const LONGEST: Duration = Duration::from_secs(720 * 3600);

fn process(backend: &MemoryBackend) -> Locks {
    Locks::new(backend.clone(), "bellwether")
}

/// Returns the tick of this number, an hour after the one before it.
fn tick(number: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + number * HOUR
}

async fn begun(locks: &Locks, number: u32) -> Turn {
    locks.once("job", tick(number)).begin().await.unwrap().expect("the tick was not begun")
}

async fn is_refused(locks: &Locks, number: u32) -> bool {
    locks.once("job", tick(number)).begin().await.unwrap().is_none()
}

// Ticks that are given

/// The clocks of the processes differ by more than the work takes.
#[tokio::test(start_paused = true)]
async fn each_tick_runs_once_though_clocks_differ() {
    let backend = MemoryBackend::new();
    let runs = Arc::<Mutex<Vec<u32>>>::default();
    let processes = (0..5).map(|late| {
        let locks = process(&backend);
        let runs = runs.clone();
        spawn(async move {
            sleep(late * 50 * MS).await;
            for number in 1..=60 {
                if let Some(turn) = locks.once("job", tick(number)).begin().await.unwrap() {
                    runs.lock().unwrap().push(number);
                    turn.run(sleep(20 * MS)).await.unwrap();
                    turn.done().await.unwrap();
                }
                sleep(SECOND).await;
            }
        })
    });
    all(processes).await;
    assert_eq!(*runs.lock().unwrap(), (1..=60).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_is_not_greater_gets_no_turn() {
    let backend = MemoryBackend::new();
    let [one, two] = [process(&backend), process(&backend)];
    let turn = begun(&one, 5).await;
    assert_eq!((turn.tick(), turn.previous()), (tick(5), None));
    let fence = turn.fence();
    turn.done().await.unwrap();
    for number in [5, 4, 0] {
        assert!(is_refused(&two, number).await, "{number} was begun");
    }
    assert!(begun(&two, 6).await.fence() > fence);
    // Another job has other ticks.
    assert!(two.once("other", tick(5)).begin().await.unwrap().is_some());
    // The tick is remembered for 30 days.
    sleep(719 * HOUR).await;
    assert!(is_refused(&one, 6).await);
    sleep(2 * HOUR).await;
    begun(&one, 6).await.done().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_turn_tells_what_became_of_the_ticks_before_it() {
    let locks = process(&MemoryBackend::new());
    drop(begun(&locks, 1).await);
    // The lease is released in the background.
    sleep(MS).await;
    assert!(is_refused(&locks, 1).await, "a tick that crashed was begun again");
    let turn = begun(&locks, 2).await;
    assert_eq!(turn.previous(), Some(PreviousTick::Crashed(tick(1))));
    turn.done().await.unwrap();
    // The ticks between were missed.
    assert_eq!(begun(&locks, 7).await.previous(), Some(PreviousTick::Done(tick(2))));
}

#[tokio::test(start_paused = true)]
async fn a_tick_does_not_begin_beside_an_earlier_one() {
    let backend = MemoryBackend::new();
    let [one, two] = [process(&backend), process(&backend)];
    let turn = begun(&one, 1).await;
    sleep(HOUR).await;
    let asked = Instant::now();
    assert!(is_refused(&two, 2).await && asked.elapsed() < MS);
    turn.done().await.unwrap();
    begun(&two, 2).await.done().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tick_that_crashed_runs_again_where_a_process_waits() {
    let backend = MemoryBackend::new();
    let again = |number| {
        let job = process(&backend).once("job", tick(number)).at_least_once();
        async move { job.begin().await.unwrap() }
    };
    let crashes = again(1).await.unwrap();
    let waiting = [spawn(again(1)), spawn(again(1))];
    sleep(HOUR).await;
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()), "one did not wait");
    let fence = crashes.fence();
    drop(crashes);
    let [first, second] = waiting;
    let turn = first.await.unwrap().expect("the tick did not run again");
    assert!(turn.fence() > fence);
    assert_eq!(turn.previous(), Some(PreviousTick::Crashed(tick(1))));
    turn.done().await.unwrap();
    assert!(second.await.unwrap().is_none(), "a tick that was done ran again");
    // A later tick ends the right to run again.
    drop(again(2).await.unwrap());
    drop(again(3).await.unwrap());
    assert!(again(2).await.is_none());
    assert!(again(3).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_is_lost_is_not_done() {
    let backend = MemoryBackend::new();
    let [one, two] = [process(&backend), process(&backend)];
    for told in [false, true] {
        let number = 1 + u32::from(told);
        let job = |locks: &Locks| locks.once("lost", tick(number)).at_least_once();
        let turn = job(&one).begin().await.unwrap().unwrap();
        assert!(two.mutex("lost").force_unlock().await.unwrap());
        if told {
            let work = turn.run(pending::<()>()).await;
            assert_eq!(work.unwrap_err().kind(), ErrorKind::Lost);
        }
        assert_eq!(turn.done().await.unwrap_err().kind(), ErrorKind::Lost);
        let turn = job(&two).begin().await.unwrap().expect("the tick counts as done");
        turn.done().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn ids_run_beside_each_other_and_are_forgotten_after_their_time() {
    let locks = process(&MemoryBackend::new());
    let begins = async |name: &str, id: &str| {
        locks.once_id(name, id, HOUR).begin().await.unwrap().map(Turn::done)
    };
    let mut turns = Vec::new();
    for (name, id) in [("a", "2"), ("a", "1"), ("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c")] {
        turns.push(begins(name, id).await.unwrap_or_else(|| panic!("{name} and {id} are taken")));
    }
    for done in turns {
        done.await.unwrap();
    }
    sleep(HOUR - SECOND).await;
    assert!(begins("a", "1").await.is_none());
    sleep(SECOND).await;
    assert!(begins("a", "1").await.is_some());
}

/// Returns locks for which these answers to requests for marks are lost.
fn losing(lost: std::ops::Range<usize>) -> Locks {
    let mut marks = 0;
    let backend = Faulty::new(move |op| {
        marks += usize::from(op == Op::Mark);
        (op == Op::Mark && lost.contains(&marks)).then_some(Fault::LoseReply)
    });
    Locks::new(backend, "bellwether")
}

#[tokio::test(start_paused = true)]
async fn one_lost_answer_costs_no_tick() {
    // The first request only looks, the second one begins, and the fourth one is sent when done.
    let locks = losing(2..3);
    begun(&locks, 1).await.done().await.unwrap();
    let turn = begun(&locks, 2).await;
    assert_eq!(turn.previous(), Some(PreviousTick::Done(tick(1))));
    let locks = losing(3..4);
    begun(&locks, 1).await.done().await.unwrap();
    assert_eq!(begun(&locks, 2).await.previous(), Some(PreviousTick::Done(tick(1))));
}

/// The work may be at another backend, which does not know that the answers were lost.
#[tokio::test(start_paused = true)]
async fn a_tick_with_lost_answers_is_not_begun_again() {
    let locks = losing(2..5);
    let error = locks.once("job", tick(1)).begin().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    sleep(MS).await;
    assert!(is_refused(&locks, 1).await);
    let turn = begun(&locks, 2).await;
    assert_eq!(turn.previous(), Some(PreviousTick::Crashed(tick(1))));
}

#[tokio::test(start_paused = true)]
async fn a_tick_whose_lease_ends_before_it_begins_may_be_asked_for_again() {
    let mut marks = 0;
    let backend = Faulty::new(move |op| {
        marks += usize::from(op == Op::Mark);
        (op == Op::Mark && marks == 2).then_some(Fault::Late(900 * MS))
    });
    let job = Locks::new(backend, "bellwether").once("job", tick(1)).lease(500 * MS).fixed_lease();
    assert_eq!(job.begin().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(job.begin().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_wrong_setting_of_a_job_is_told() {
    let locks = process(&MemoryBackend::new());
    let before = SystemTime::UNIX_EPOCH - SECOND;
    for (job, kind) in [
        (locks.once("job", before), ErrorKind::InvalidConfig),
        (locks.once("job", tick(3_000_000)), ErrorKind::InvalidConfig),
        (locks.once("job", tick(1)).lease(MS), ErrorKind::InvalidConfig),
        (locks.once("", tick(1)), ErrorKind::InvalidKey),
    ] {
        assert_eq!(job.begin().await.unwrap_err().kind(), kind);
    }
    for period in [Duration::ZERO, MS, 721 * HOUR, Duration::MAX] {
        let error = locks.every("job", period).next().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{period:?}");
    }
    locks.shutdown(SECOND).await;
    let begun = locks.once("job", tick(1)).begin().await;
    assert_eq!(begun.unwrap_err().kind(), ErrorKind::ShutDown);
}

#[tokio::test(start_paused = true)]
async fn work_is_tried_again_after_a_delay_up_to_a_limit() {
    let locks = process(&MemoryBackend::new());
    let turn = begun(&locks, 1).await;
    let tries = AtomicUsize::new(0);
    let fails_until = async |success: usize| {
        let made = tries.fetch_add(1, Ordering::Relaxed) + 1;
        if made == success { Ok(made) } else { Err(made) }
    };
    let retry = |success| turn.retry(10 * SECOND, 3, move || fails_until(success));
    for (success, result, took) in [(9, Err(3), 20), (5, Ok(5), 10), (6, Ok(6), 0)] {
        let begun = Instant::now();
        assert_eq!(retry(success).await.unwrap(), result);
        assert_eq!(begun.elapsed(), took * SECOND);
    }
    turn.done().await.unwrap();
}

// Ticks in the future

const DAY: Duration = Duration::from_secs(86_400);

/// The clock of one replica was a year ahead. The mark of its tick stopped the job of the fleet for
/// the 30 days of a mark, without a word.
#[tokio::test(start_paused = true)]
async fn a_replica_whose_clock_is_a_year_ahead_stops_nobody() {
    let backend = MemoryBackend::new();
    let [ahead, others] = [process(&backend), process(&backend)];
    let mut now = SystemTime::now();
    let mut runs = 0;
    for _ in 0..5 {
        let error = ahead.once("report", now + 365 * DAY).begin().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        let told = error.to_string();
        assert_eq!(told.matches("T").count(), 2, "not both times are told: {told}");
        assert!(told.contains("max_ahead"), "{told}");
        let turn = others.once("report", now).begin().await.unwrap();
        turn.expect("the tick of a year ahead was begun").done().await.unwrap();
        runs += 1;
        sleep(DAY).await;
        now += DAY;
    }
    assert_eq!(runs, 5);
}

#[tokio::test(start_paused = true)]
async fn a_tick_may_be_as_far_ahead_as_the_job_says() {
    let locks = process(&MemoryBackend::new());
    let now = SystemTime::now();
    let begin = async |name: &str, ahead: Duration, limit: Option<Duration>| {
        let job = locks.once(name, now + ahead);
        let job = match limit {
            Some(limit) => job.max_ahead(limit),
            None => job,
        };
        job.begin().await.map(|turn| turn.is_some())
    };
    let refused = |begun: Result<bool, Error>| kind(begun) == ErrorKind::InvalidConfig;
    assert!(begin("a", DAY - HOUR, None).await.unwrap());
    assert!(refused(begin("b", DAY + HOUR, None).await));
    assert!(refused(begin("b", HOUR, Some(Duration::ZERO)).await));
    assert!(begin("b", 40 * DAY, Some(60 * DAY)).await.unwrap());
    assert!(begin("c", 40 * DAY, Some(Duration::MAX)).await.unwrap());
    // An id has no time, so the setting would have no effect.
    let job = locks.once_id("d", "7", HOUR);
    assert!(refused(job.clone().max_ahead(Duration::ZERO).begin().await.map(|_| true)));
    assert!(job.begin().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_mark_in_the_future_is_shown_and_removed() {
    let backend = MemoryBackend::new();
    let [ahead, operator] = [process(&backend), process(&backend)];
    let now = SystemTime::now();
    let job = operator.once("job", now);
    assert_eq!(job.mark().await.unwrap(), None);
    assert!(!job.clear_mark().await.unwrap());
    let far = now + 365 * DAY;
    let turn = ahead.once("job", far).max_ahead(400 * DAY).begin().await.unwrap().unwrap();
    let mark = job.mark().await.unwrap().unwrap();
    assert!(!mark.is_done && mark.tick == turn.tick() && mark.server_time < now + HOUR, "{mark:?}");
    assert!(mark.to_string().contains("not done; it is ahead of the server"), "{mark}");
    turn.done().await.unwrap();
    assert!(operator.every("job", HOUR).mark().await.unwrap().unwrap().is_done);
    // The mark is never taken for dead, as long as it is remembered.
    sleep(29 * DAY).await;
    assert!(operator.once("job", now + 29 * DAY).begin().await.unwrap().is_none());
    assert!(job.clear_mark().await.unwrap());
    assert_eq!(job.mark().await.unwrap(), None);
    let turn = operator.once("job", now + 28 * DAY).begin().await.unwrap().unwrap();
    assert_eq!(turn.previous(), None);
    assert!(
        !operator.once("job", now).mark().await.unwrap().unwrap().to_string().contains("ahead")
    );
}

/// An operator has read the mark, and a later tick begins before the removal. Without its mark,
/// that tick would run twice.
#[tokio::test(start_paused = true)]
async fn a_mark_is_removed_only_if_it_is_the_one_that_was_read() {
    let locks = process(&MemoryBackend::new());
    let now = SystemTime::now();
    let job = locks.once("job", now);
    let begin = async |tick| locks.once("job", tick).begin().await.unwrap();
    let turn = begin(now - DAY).await.unwrap();
    let begun = job.mark().await.unwrap().unwrap();
    turn.done().await.unwrap();
    let done = job.mark().await.unwrap().unwrap();
    begin(now).await.unwrap().done().await.unwrap();
    for seen in [begun, done] {
        assert!(!job.clear_mark_if(seen).await.unwrap(), "{seen}");
    }
    assert!(begin(now).await.is_none(), "the tick runs twice");
    let last = job.mark().await.unwrap().unwrap();
    assert!(job.clear_mark_if(last).await.unwrap());
    assert!(begin(now).await.is_some());
}

/// The clock of the server was ahead and came back, or another job has set the mark of this name.
/// The ticks begin again within a minute of the removal, and not with the next one.
#[tokio::test(start_paused = true)]
async fn an_interval_waits_for_a_mark_in_the_future_until_it_is_removed() {
    let locks = process(&MemoryBackend::new());
    let far = SystemTime::now() + 10 * DAY;
    let turn = locks.once("job", far).max_ahead(20 * DAY).begin().await.unwrap().unwrap();
    turn.done().await.unwrap();
    let mut ticks = locks.every("job", LONGEST);
    let waits = spawn(async move { ticks.next().await.unwrap() });
    sleep(DAY).await;
    assert!(!waits.is_finished(), "the mark was taken for dead");
    assert!(locks.once("job", far).clear_mark().await.unwrap());
    let turn = timeout(61 * SECOND, waits).await.expect("the mark still counts").unwrap();
    assert!(turn.tick() < far);
}

// Ticks at intervals

/// Returns how long after 1970 a tick is.
fn since_1970(turn: &Turn) -> Duration {
    turn.tick().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

#[tokio::test(start_paused = true)]
async fn each_tick_of_an_interval_runs_in_one_process() {
    let backend = MemoryBackend::new();
    let runs = Arc::<Mutex<Vec<Duration>>>::default();
    let processes = (0..5).map(|late| {
        let locks = process(&backend);
        let runs = runs.clone();
        spawn(async move {
            sleep(late * 70 * MS).await;
            let mut ticks = locks.every("job", SECOND);
            loop {
                let turn = ticks.next().await.unwrap();
                runs.lock().unwrap().push(since_1970(&turn));
                sleep(20 * MS).await;
                turn.done().await.unwrap();
            }
        })
    });
    let processes: Vec<JoinHandle<()>> = processes.collect();
    sleep(60 * SECOND).await;
    processes.iter().for_each(JoinHandle::abort);
    let runs = runs.lock().unwrap();
    assert!((60..=61).contains(&runs.len()), "{runs:?}");
    assert!(runs.iter().all(|tick| tick.subsec_nanos() == 0), "{runs:?}");
    assert!(runs.windows(2).all(|pair| pair[1] - pair[0] == SECOND), "{runs:?}");
}

#[tokio::test(start_paused = true)]
async fn of_the_ticks_that_were_missed_the_latest_runs() {
    let backend = MemoryBackend::new();
    let mut ticks = process(&backend).every("job", HOUR);
    let mut others = process(&backend).every("job", HOUR);
    // The tick that was due when no process ran.
    let first = ticks.next().await.unwrap();
    let next = spawn(async move { others.next().await.unwrap() });
    sleep(3 * HOUR + HOUR / 2).await;
    assert!(!next.is_finished(), "two ticks run at a time");
    let tick = since_1970(&first);
    first.done().await.unwrap();
    let next = timeout(SECOND, next).await.expect("the next tick waits").unwrap();
    let hours = (since_1970(&next) - tick).as_secs() / 3600;
    assert!((3..=4).contains(&hours), "{hours}");
    assert!(matches!(next.previous(), Some(PreviousTick::Done(_))));
}

/// A process that drops each turn would else keep the server busy.
#[tokio::test(start_paused = true)]
async fn work_that_always_crashes_is_done_once_in_a_lease() {
    let locks = process(&MemoryBackend::new());
    let mut ticks = locks.every("job", LONGEST).at_least_once().lease(5 * SECOND);
    let begun = Instant::now();
    let mut turns = 0;
    let first = since_1970(&ticks.next().await.unwrap());
    while begun.elapsed() < 60 * SECOND {
        let turn = ticks.next().await.unwrap();
        turns += u32::from(since_1970(&turn) == first);
    }
    assert!((11..=13).contains(&turns), "{turns} turns in 60 s");
}

#[tokio::test(start_paused = true)]
async fn a_job_waits_through_an_outage() {
    let backend = Faulty::new(|_| Some(Fault::Refuse));
    let locks = Locks::new(backend.clone(), "bellwether");
    let mut ticks = locks.every("job", SECOND);
    let waits = spawn(async move { ticks.next().await.unwrap().done().await });
    sleep(600 * SECOND).await;
    assert!(!waits.is_finished(), "an outage ended the wait");
    backend.plan(|_| None);
    timeout(3 * SECOND, waits).await.expect("no tick begins").unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_ends_the_wait_for_a_tick() {
    let locks = process(&MemoryBackend::new());
    let mut ticks = locks.every("job", LONGEST);
    ticks.next().await.unwrap().done().await.unwrap();
    let waits = spawn(async move { ticks.next().await.map(drop) });
    sleep(SECOND).await;
    locks.shutdown(SECOND).await;
    let ended = timeout(SECOND, waits).await.expect("the wait goes on").unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::ShutDown);
}
