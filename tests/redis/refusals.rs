//! A server that answers reads and refuses writes: each process loads once for each life, as if the
//! server were away.

use std::path::Path;

use crate::prelude::*;

const LIFE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// `maxmemory` with `noeviction`.
    Full,
    /// `min-replicas-to-write`, and no replica.
    Alone,
    /// An ACL without `EVALSHA`.
    Acl,
    /// Grants that no replica confirms.
    Unconfirmed,
    /// `stop-writes-on-bgsave-error`, and no directory to save in.
    Snapshot,
}

impl Refusal {
    async fn begin(self, raw: &mut Raw, dir: &Path) {
        if matches!(self, Self::Snapshot) {
            std::fs::remove_dir_all(dir).unwrap();
            raw.run::<String>(&["BGSAVE"]).await;
            let fails = async || {
                let refused = raw.try_run::<()>(&["SET", "x", "y"]).await;
                refused.is_err_and(|error| error.to_string().contains("MISCONF"))
            };
            assert!(comes_true(LIMIT, fails).await, "the snapshot does not fail");
        }
        self.begin_again(raw).await;
    }

    async fn begin_again(self, raw: &mut Raw) {
        match self {
            Self::Full => raw.config_set("maxmemory", "1").await,
            Self::Alone => raw.config_set("min-replicas-to-write", "1").await,
            Self::Acl => raw.run::<()>(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]).await,
            Self::Unconfirmed => {}
            Self::Snapshot => raw.config_set("stop-writes-on-bgsave-error", "yes").await,
        }
    }

    async fn end(self, raw: &mut Raw) {
        match self {
            Self::Full => raw.config_set("maxmemory", "0").await,
            Self::Alone => raw.config_set("min-replicas-to-write", "0").await,
            Self::Acl => raw.run::<()>(&["ACL", "SETUSER", "default", "+evalsha", "+eval"]).await,
            Self::Unconfirmed => {}
            Self::Snapshot => raw.config_set("stop-writes-on-bgsave-error", "no").await,
        }
    }
}

struct Scene {
    refusal: Refusal,
    _server: RedisServer,
    raw: Raw,
    backend: RedisBackend,
}

/// Plays a scene with each kind of refusal.
async fn in_each_scene(play: impl AsyncFn(&mut Scene)) {
    use Refusal::{Acl, Alone, Full, Snapshot, Unconfirmed};
    for refusal in [Full, Alone, Acl, Unconfirmed, Snapshot] {
        static SCENES: AtomicUsize = AtomicUsize::new(0);
        let process = std::process::id();
        let number = SCENES.fetch_add(1, Ordering::SeqCst);
        let dir = std::env::temp_dir().join(format!("bellwether-refusals-{process}-{number}"));
        std::fs::create_dir_all(&dir).unwrap();
        let place = dir.to_string_lossy().into_owned();
        let server = RedisServer::start_with(&["--dir", &place, "--save", "3600 1"]).await;
        let mut raw = server.raw().await;
        let builder = testkit::builder().server(server.url());
        let builder = match refusal {
            Unconfirmed => builder.replicas(1, Duration::from_millis(100)),
            _ => builder,
        };
        let backend = builder.build().unwrap();
        backend.ping().await.unwrap();
        refusal.begin(&mut raw, &dir).await;
        play(&mut Scene { refusal, _server: server, raw, backend }).await;
        let _ = std::fs::remove_dir_all(&dir);
    }
}

#[tokio::test]
async fn a_server_that_refuses_writes_costs_one_load_for_each_life() {
    in_each_scene(async |scene| {
        let refusal = scene.refusal;
        let builder = Cache::<usize>::builder(scene.backend.clone(), "refusals");
        let cache = builder.ttl(LIFE).build().unwrap();
        let ask = async |life: Duration| {
            let number = cache.stats().loads as usize;
            let load = cache
                .request("k")
                .ttl(life)
                .load(move |_| async move { Ok::<_, BoxError>(number) });
            let loaded = load.await.unwrap();
            (loaded.value, loaded.source)
        };
        for _ in 0..100 {
            assert_eq!(ask(LIFE).await, (0, Source::Degraded), "{refusal:?}");
        }
        assert_eq!(cache.stats().loads, 1, "{refusal:?}");
        // An act of this process ends the value, also if the server refuses it.
        let _ = cache.invalidate("k").await;
        assert_eq!(ask(200 * MS).await, (1, Source::Degraded), "{refusal:?}");
        sleep(250 * MS).await;
        assert_eq!(ask(LIFE).await, (2, Source::Degraded), "{refusal:?}");
        assert_eq!(ask(LIFE).await, (2, Source::Degraded), "{refusal:?}");
        scene.refusal.end(&mut scene.raw).await;
        if !matches!(refusal, Refusal::Unconfirmed) {
            assert_eq!(ask(LIFE).await, (3, Source::Led), "{refusal:?}");
            assert_eq!(ask(LIFE).await, (3, Source::Hit), "{refusal:?}");
        }
    })
    .await;
}

/// The old entry is read each time, and must not take the place of the one that was loaded since.
#[tokio::test]
async fn a_server_that_refuses_writes_keeps_an_old_entry() {
    in_each_scene(async |scene| {
        let refusal = scene.refusal;
        if matches!(refusal, Refusal::Unconfirmed) {
            return;
        }
        scene.refusal.end(&mut scene.raw).await;
        let builder = Cache::<u32>::builder(scene.backend.clone(), "refusals");
        let cache = builder.ttl(LIFE).stale_if_error(LIFE).build().unwrap();
        cache.request("k").ttl(50 * MS).insert(&7).await.unwrap();
        scene.refusal.begin_again(&mut scene.raw).await;
        sleep(60 * MS).await;
        for _ in 0..100 {
            let load = cache.get_or_load("k", |_| async { Ok::<_, BoxError>(8) });
            assert_eq!(load.await.unwrap(), 8, "{refusal:?}");
        }
        assert_eq!(cache.stats().loads, 1, "{refusal:?}");
    })
    .await;
}
