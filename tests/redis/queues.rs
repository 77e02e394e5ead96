//! Long queues: a script touches a bounded number of entries, and is called again for the rest.

use testkit::proxy::Request;

use crate::prelude::*;

const MANY: usize = 10_000;
/// How many entries one script touches at most, as in `scripts/lib/batch.lua`.
const BATCH: usize = 100;

/// A server, and the claims of one name in it.
pub(super) struct Scene {
    pub(super) server: RedisServer,
    pub(super) backend: RedisBackend,
    pub(super) raw: Raw,
    pub(super) name: Name,
}

impl Scene {
    pub(super) async fn start() -> Self {
        let server = RedisServer::start().await;
        let backend = testkit::open(server.url());
        let raw = server.raw().await;
        Self { server, backend, raw, name: name_in(Family::Lock, "k") }
    }

    fn claim(&self, mode: Mode) -> Claim {
        Claim::new(self.name.clone(), mode, LEASE, 2 * LEASE)
    }

    /// Adds many entries to a queue, before all others. Each is of a process of its own, whose
    /// deadline is `left` milliseconds ahead.
    async fn fill(&mut self, queue: &str, deadlines: &str, suffix: &str, left: i64) {
        const FILL: &str = "
            local time = redis.call('TIME')
            local ends = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[2]
            for number = 1, tonumber(ARGV[1]) do
              local process = string.format('%016x', number)
              redis.call('ZADD', KEYS[1], 2 * number, process .. process .. ARGV[3])
              redis.call('ZADD', KEYS[2], ends, process)
            end
            redis.call('PEXPIRE', KEYS[1], 60000)
            redis.call('PEXPIRE', KEYS[2], 60000)";
        let keys = [queue, deadlines].map(|suffix| self.name.suffixed(suffix));
        let count = MANY.to_string();
        let left = left.to_string();
        let words = ["EVAL", FILL, "2", &keys[0], &keys[1], &count, &left, suffix];
        self.raw.run::<()>(&words).await;
        self.raw.reset_stats().await;
    }

    /// Returns how many scripts were called since the queue was filled, and how many commands they
    /// have called themselves.
    async fn called(&mut self) -> (usize, usize) {
        let info: String = self.raw.run(&["INFO", "commandstats"]).await;
        let mut scripts = 0;
        let mut commands = 0;
        for line in info.lines() {
            let Some((name, rest)) = line.split_once(":calls=") else { continue };
            let calls: usize = rest.split(',').next().unwrap().parse().unwrap();
            match name {
                "cmdstat_evalsha" => scripts += calls,
                "cmdstat_info" | "cmdstat_config|resetstat" | "cmdstat_ping" => {}
                _ => commands += calls,
            }
        }
        (scripts, commands)
    }

    /// Runs the first script of a release, and leaves it.
    pub(super) async fn released_once(&mut self, claim: &Claim) {
        let before = self.raw.scripts_called().await;
        let backend = self.backend.clone();
        let mut release = std::pin::pin!(backend.release(claim));
        let sent = futures_util::poll!(&mut release);
        assert!(sent.is_pending());
        let raw = &mut self.raw;
        assert!(comes_true(LIMIT, async || raw.scripts_called().await > before).await);
    }

    async fn held_by_readers(&self) -> u64 {
        testkit::holder(&self.backend, &self.name, Mode::Read)
            .await
            .unwrap()
            .unwrap()
            .holders
            .into()
    }

    /// Checks that the scripts since the queue was filled touched one batch of it each.
    async fn assert_batches(&mut self) {
        let (scripts, commands) = self.called().await;
        assert!((MANY / BATCH..MANY / BATCH + 4).contains(&scripts), "{scripts} scripts");
        assert!(commands < scripts * 4 * BATCH, "{commands} commands in {scripts} scripts");
    }
}

#[tokio::test]
async fn a_claim_for_a_held_lock_does_not_look_at_the_queue() {
    let mut scene = Scene::start().await;
    let [holder, waiting] = [Mode::Exclusive, Mode::Fair].map(|mode| scene.claim(mode));
    granted(&scene.backend, &holder).await;
    scene.fill("q", "d", ":x:0:60000:", 60_000).await;
    held(&scene.backend, &waiting).await;
    let (scripts, commands) = scene.called().await;
    assert!(scripts == 1 && commands < 20, "{commands} commands in {scripts} scripts");
}

#[tokio::test]
async fn a_release_removes_dead_waiters_in_batches() {
    for (mode, queue, deadlines, suffix) in [
        (Mode::Exclusive, "q", "d", ":x:0:60000:"),
        (Mode::Fair, "q", "d", ":f:0:60000:"),
        (Mode::Write, "rq", "rd", ":f:0:60000:"),
        (Mode::Permit { limit: 1, count: 1 }, "pq", "pd", ":1:1:60000:"),
    ] {
        let mut scene = Scene::start().await;
        let holder = scene.claim(mode);
        let last = scene.claim(mode);
        granted(&scene.backend, &holder).await;
        scene.fill(queue, deadlines, suffix, -1).await;
        assert!(scene.backend.release(&holder).await.unwrap());
        scene.assert_batches().await;
        granted(&scene.backend, &last).await;
        assert!(scene.backend.release(&last).await.unwrap());
        let keys = scene.raw.keys("*").await;
        assert!(keys.iter().all(|key| key.ends_with(":f")), "{keys:?}");
    }
}

/// The first run ended the lease, and the second had no answer.
#[tokio::test]
async fn a_release_in_batches_that_ended_the_lease_needs_no_further_answer() {
    let mut scene = Scene::start().await;
    let holder = scene.claim(Mode::Fair);
    // The scripts are known to the server after this.
    granted(&scene.backend, &holder).await;
    assert!(scene.backend.release(&holder).await.unwrap());
    granted(&scene.backend, &holder).await;
    scene.fill("q", "d", ":f:0:60000:", -1).await;
    let proxy = Proxy::start(scene.server.port());
    let runs = AtomicUsize::new(0);
    let is_second_run = move |request: &Request| {
        request.kind == "release" && runs.fetch_add(1, Ordering::SeqCst) == 1
    };
    let lost = proxy.when(is_second_run, Fault::Silence);
    let builder = RedisBackend::builder().server(proxy.url()).command_timeout(1000 * MS);
    assert!(builder.build().unwrap().release(&holder).await.unwrap());
    assert_eq!(lost.count(), 1);
}

#[tokio::test]
async fn a_claim_passes_dead_waiters_in_batches() {
    for (mode, queue, deadlines, suffix) in [
        (Mode::Fair, "q", "d", ":f:0:60000:"),
        (Mode::Write, "rq", "rd", ":f:0:60000:"),
        (Mode::Permit { limit: 1, count: 1 }, "pq", "pd", ":1:1:60000:"),
    ] {
        let mut scene = Scene::start().await;
        let claim = scene.claim(mode);
        // The scripts are known to the server after this.
        granted(&scene.backend, &claim).await;
        assert!(scene.backend.release(&claim).await.unwrap());
        scene.fill(queue, deadlines, suffix, -1).await;
        granted(&scene.backend, &scene.claim(mode)).await;
        scene.assert_batches().await;
    }
}

/// The life of a deadline tells a step of the clock. A life that is too long for the fraction of
/// the score is left out.
#[tokio::test]
async fn a_deadline_has_the_life_that_it_was_given() {
    let mut scene = Scene::start().await;
    let [holder, waiting] = [scene.claim(Mode::Fair), scene.claim(Mode::Fair)];
    granted(&scene.backend, &holder).await;
    held(&scene.backend, &waiting).await;
    let process = &waiting.owner.to_string()[..16];
    let deadlines = scene.name.suffixed("d");
    let mut before = 0;
    for millis in [2_000, 2_001, 64_000, 204_700, 204_701, 3_600_000, 2_000, 2_000] {
        let life = Duration::from_millis(millis);
        let kept = scene.backend.keep(std::slice::from_ref(&waiting), life).await.unwrap();
        assert!(!kept.has_lapsed && kept.stands == [true], "{life:?}: {kept:?}");
        let score: f64 = scene.raw.run(&["ZSCORE", &deadlines, process]).await;
        let (seconds, micros) = scene.raw.run::<(u64, u64)>(&["TIME"]).await;
        let left = score.floor() - (seconds * 1_000 + micros / 1_000) as f64;
        assert!(left <= millis as f64 && left > millis as f64 - 1_000.0, "{life:?}: {left}");
        let told = score.fract() * 204_800.0;
        let expected = if millis > 204_700 { 0 } else { millis.next_multiple_of(100) };
        assert_eq!(told, expected as f64, "{life:?}");
        // The keys last as long as the last deadline that is there before.
        let ends = scene.raw.pttl(&deadlines).await;
        assert!(ends as f64 >= left - 1_000.0, "{life:?}: {ends}");
        assert!(ends <= millis.max(before) as i64, "{life:?}: {ends}");
        before = millis;
    }
}

/// No process hears of it, so no reader is granted the lock, and the release ends.
#[tokio::test]
async fn readers_that_do_not_hear_keep_their_entries() {
    let mut scene = Scene::start().await;
    let holder = scene.claim(Mode::Write);
    granted(&scene.backend, &holder).await;
    scene.fill("rq", "rd", ":1:2147483648:60000:", 60_000).await;
    assert!(scene.backend.release(&holder).await.unwrap());
    let (scripts, commands) = scene.called().await;
    assert!(scripts == 1 && commands < 4 * BATCH, "{commands} commands in {scripts} scripts");
    let queue = scene.name.suffixed("rq");
    assert_eq!(scene.raw.run::<usize>(&["ZCARD", &queue]).await, MANY);
    drop(scene.server);
}

/// Readers of this process wait behind a writer. Its release grants the lock to all of them.
#[tokio::test]
async fn readers_are_granted_in_batches() {
    let mut scene = Scene::start().await;
    let holder = scene.claim(Mode::Write);
    granted(&scene.backend, &holder).await;
    let mut readers = Vec::new();
    for _ in 0..2 * BATCH + 50 {
        let reader = scene.claim(Mode::Read);
        held(&scene.backend, &reader).await;
        readers.push((testkit::changes_for(&scene.backend, &reader).await.unwrap(), reader));
    }
    scene.raw.reset_stats().await;
    assert!(scene.backend.release(&holder).await.unwrap());
    let (scripts, _) = scene.called().await;
    assert_eq!(scripts, 3);
    for (changes, reader) in &mut readers {
        let change = tokio::time::timeout(LIMIT, changes.next()).await.unwrap();
        assert_eq!(change.addressee(), Some(reader.owner));
    }
    let holds = testkit::holder(&scene.backend, &scene.name, Mode::Read).await.unwrap().unwrap();
    assert_eq!(holds.holders as usize, readers.len());
}

/// A process ends after the first script of a release, which grants the lock to a batch of readers.
/// The others are behind no writer. So the next look at the queue lets them in, although the lock
/// is held.
#[tokio::test]
async fn the_next_look_grants_the_readers_that_a_release_has_left() {
    let mut scene = Scene::start().await;
    let holder = scene.claim(Mode::Write);
    granted(&scene.backend, &holder).await;
    let mut readers = Vec::new();
    for _ in 0..BATCH + 50 {
        let reader = scene.claim(Mode::Read);
        held(&scene.backend, &reader).await;
        readers.push(reader);
    }
    let _changes = testkit::changes_for(&scene.backend, &readers[0]).await.unwrap();
    scene.released_once(&holder).await;
    assert_eq!(scene.held_by_readers().await, BATCH as u64);
    assert!(scene.backend.keep(&readers[BATCH..], LEASE).await.unwrap().handed_over);
    assert_eq!(scene.held_by_readers().await, BATCH as u64 + 50);
}

/// `DEL` frees each entry of a queue in the script: 10,000 of them took more than 2 ms.
#[tokio::test]
async fn a_queue_that_is_cleared_is_freed_after_the_script() {
    for (mode, queue, deadlines, suffix) in [
        (Mode::Exclusive, "q", "d", ":x:0:60000:"),
        (Mode::Write, "rq", "rd", ":f:0:60000:"),
        (Mode::Permit { limit: 1, count: 1 }, "pq", "pd", ":1:1:60000:"),
    ] {
        let mut scene = Scene::start().await;
        let holder = scene.claim(mode);
        granted(&scene.backend, &holder).await;
        scene.fill(queue, deadlines, suffix, 60_000).await;
        assert!(scene.backend.clear(&scene.name, mode).await.unwrap());
        let info: String = scene.raw.run(&["INFO", "commandstats"]).await;
        assert!(
            info.contains("cmdstat_unlink:calls=2,") && !info.contains("cmdstat_del:"),
            "{info}"
        );
        let (scripts, commands) = scene.called().await;
        // Each process with a queue entry is woken, up to a bound.
        assert!(scripts == 1 && commands < 6 * BATCH, "{commands} commands in {scripts} scripts");
        let keys = scene.raw.keys("*").await;
        assert!(keys.iter().all(|key| key.ends_with(":f")), "{keys:?}");
    }
}
