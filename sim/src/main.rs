//! Plays schedules: `scripts/sim` says how.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    collections::BTreeMap,
    env,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bellwether_sim::{
    oracle::{checker::Tally, worker::quiet_planned_panics},
    plan::Plan,
    planted::{self, Planted},
    play::{Outcome, play, shrink},
};

/// Takes a tenth less time than the allocator of the system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often a schedule is played twice, to see that the second run is the same.
const TWICE_IN: u64 = 50;

fn main() -> ExitCode {
    quiet_planned_panics();
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["seed", seed] => show(number(seed), None),
        ["seed", seed, name] => show(number(seed), Some(named(name))),
        ["survey", seconds] => survey(number(seconds)),
        ["planted", seconds] => look_for_all(number(seconds)),
        ["planted", seconds, name] => look_for(named(name), number(seconds)),
        [seconds] => run(number(seconds), first_seed()),
        [seconds, seed] => run(number(seconds), number(seed)),
        _ => {
            eprintln!("give the seconds to play, `seed SEED` or `planted SECONDS`");
            ExitCode::FAILURE
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

fn named(name: &str) -> &'static Planted {
    Planted::named(name).unwrap_or_else(|| panic!("there is no planted fault {name:?}"))
}

fn first_seed() -> u64 {
    fastrand::u64(..1_000_000_000) * 1000
}

/// Plays schedules for a time, on each core.
fn run(seconds: u64, first: u64) -> ExitCode {
    println!("the first seed is {first}");
    let begun = Instant::now();
    let found = search(None, Duration::from_secs(seconds), first);
    println!("{} schedules in {:.0?}: {}", found.played, begun.elapsed(), found.tally);
    let rate = found.played as f64 / begun.elapsed().as_secs_f64();
    println!("{rate:.0} schedules a second, {} of them played twice", found.twice);
    match found.broken {
        None => ExitCode::SUCCESS,
        Some(seed) => show(seed, None),
    }
}

/// Plays schedules for a time, whatever they break, and prints how often each rule is broken.
fn survey(seconds: u64) -> ExitCode {
    let end = Instant::now() + Duration::from_secs(seconds);
    let next = AtomicU64::new(first_seed());
    let kinds = Mutex::new(BTreeMap::<String, Vec<u64>>::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while Instant::now() < end {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let plan = Plan::new(seed);
                    let [one, two] = [(); 2].map(|()| play(&plan, None, false));
                    let mut kinds = kinds.lock().unwrap();
                    kinds.entry("all".to_owned()).or_default().push(seed);
                    if one.sum != two.sum {
                        kinds.entry("not the same".to_owned()).or_default().push(seed);
                    }
                    if let Some((rule, text)) = one.violations.first() {
                        let short: String = match rule {
                            Some(_) => String::new(),
                            None => text.chars().take(80).collect(),
                        };
                        let kind = format!("{:?} {rule:?} {short}", plan.class);
                        kinds.entry(kind).or_default().push(seed);
                    }
                }
            });
        }
    });
    for (kind, seeds) in kinds.into_inner().unwrap() {
        println!("{:>6}  {kind}: {:?}", seeds.len(), &seeds[..seeds.len().min(4)]);
    }
    ExitCode::SUCCESS
}

/// What a search found.
struct Found {
    played: u64,
    twice: u64,
    tally: Tally,
    /// The seed of a schedule that breaks a rule.
    broken: Option<u64>,
}

/// Plays one schedule after another on each core, until one breaks a rule or the time is over.
fn search(planted: Option<&'static Planted>, time: Duration, first: u64) -> Found {
    let end = Instant::now() + time;
    let next = AtomicU64::new(first);
    let twice = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    let found = Mutex::new((None::<u64>, Tally::default()));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let mut tally = Tally::default();
                while !is_over.load(Ordering::Relaxed) && Instant::now() < end {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let plan = Plan::new(seed);
                    let outcome = play(&plan, planted, false);
                    tally.take_in(&outcome.tally);
                    let is_twice = planted.is_none() && seed.is_multiple_of(TWICE_IN);
                    let mut is_broken = outcome.broken().is_some();
                    if is_twice {
                        twice.fetch_add(1, Ordering::Relaxed);
                        let again = play(&plan, None, false);
                        if again.sum != outcome.sum {
                            println!("seed {seed} was played twice, and was not the same");
                            is_broken = true;
                        }
                    }
                    if is_broken {
                        is_over.store(true, Ordering::Relaxed);
                        let mut found = found.lock().unwrap();
                        found.0 = Some(found.0.map_or(seed, |other| other.min(seed)));
                    }
                }
                found.lock().unwrap().1.take_in(&tally);
            });
        }
    });
    let (broken, tally) = found.into_inner().unwrap();
    let played = next.into_inner() - first;
    Found { played, twice: twice.into_inner(), tally, broken }
}

/// Plays a seed twice and, if it breaks a rule, shows what happened in the smallest plan that does.
fn show(seed: u64, planted: Option<&'static Planted>) -> ExitCode {
    let plan = Plan::new(seed);
    let [one, two] = [(); 2].map(|()| play(&plan, planted, true));
    if one.sum != two.sum {
        println!("seed {seed}: two runs are not the same; they differ first at");
        let pairs = one.texts.iter().zip(&two.texts);
        for (one, two) in pairs.filter(|(one, two)| one != two).take(3) {
            println!("  {one}\n  {two}");
        }
    }
    println!(
        "seed {seed} is {:?} and has {} events, hash {:016x}",
        plan.class, one.sum.1, one.sum.0
    );
    if one.violations.is_empty() {
        if one.sum != two.sum {
            return ExitCode::FAILURE;
        }
        if env::var_os("BELLWETHER_SIM_EVENTS").is_some() {
            one.texts.iter().for_each(|text| println!("{text}"));
        }
        return ExitCode::SUCCESS;
    }
    report(&plan, &one);
    let (smallest, outcome) = shrink(&plan, planted);
    println!("\nthe smallest plan that breaks the same rule:");
    outcome.texts.iter().for_each(|text| println!("{text}"));
    report(&smallest, &outcome);
    ExitCode::FAILURE
}

fn report(plan: &Plan, outcome: &Outcome) {
    println!("{:?}, {} processes, {:?}", plan.class, plan.processes, plan.weather);
    println!("{:?}", plan.load);
    for caller in &plan.callers {
        println!("{caller:?}");
    }
    for fault in &plan.faults {
        println!("{fault:?}");
    }
    for (rule, text) in outcome.violations.iter().take(5) {
        println!("broken: {rule:?}: {text}");
    }
}

/// Looks for each planted fault for at most so long, and prints when it was found.
fn look_for_all(seconds: u64) -> ExitCode {
    let mut missed = 0;
    println!("| fault | schedules | seconds | rule |\n|---|---|---|---|");
    for planted in planted::ALL {
        let begun = Instant::now();
        let first = first_seed();
        let found = search(Some(planted), Duration::from_secs(seconds), first);
        let took = begun.elapsed().as_secs_f64();
        let (schedules, rule) = match found.broken {
            Some(seed) => {
                let outcome = play(&Plan::new(seed), Some(planted), false);
                let rule = outcome.broken().flatten();
                (seed - first + 1, rule.map_or("a panic".to_owned(), |rule| format!("{rule:?}")))
            }
            None => {
                missed += 1;
                (found.played, "not found".to_owned())
            }
        };
        println!("| {} | {schedules} | {took:.1} | {rule} |", planted.what);
    }
    println!("{missed} of {} were not found", planted::ALL.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn look_for(planted: &'static Planted, seconds: u64) -> ExitCode {
    let found = search(Some(planted), Duration::from_secs(seconds), first_seed());
    println!("{} schedules", found.played);
    match found.broken {
        Some(seed) => show(seed, Some(planted)),
        None => ExitCode::FAILURE,
    }
}
