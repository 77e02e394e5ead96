//! A process keeps the queue entries of all its waiters for a name by one script.

use std::time::Duration;

use bellwether::{
    RedisBackend,
    backend::{Acquired, Claim, Leases, Mode},
    error::BackendErrorKind,
    key::{Family, Key, Name, Namespace},
};
use futures_util::future::join_all;
use testkit::{RedisServer, open, queue_entry_life};

const LEASE: Duration = Duration::from_secs(60);

/// Returns a claim for each name that waits behind a holder of a live lease.
async fn queued(backend: &RedisBackend, mode: Mode, names: usize) -> Vec<Vec<Claim>> {
    // All at once, because an entry that is not kept ends after 2 s.
    join_all((0..names).map(async |number| {
        let (namespace, key) = (Namespace::new("t").unwrap(), Key::from(number.to_string()));
        let name = Name::new(&namespace, Family::Lock, &key, 512).unwrap();
        let [holder, waiting] = [(); 2].map(|()| Claim::new(name.clone(), mode, LEASE, LEASE));
        let granted = backend.acquire(&holder).await.unwrap();
        assert!(matches!(granted, Acquired::Granted(_)), "{granted:?}");
        let held = backend.acquire(&waiting).await.unwrap();
        assert!(matches!(held, Acquired::Occupied(_)), "{held:?}");
        vec![waiting]
    }))
    .await
}

/// One name holds something that is not a lease, another one something that is not a queue.
#[tokio::test]
async fn a_foreign_key_costs_other_queues_nothing() {
    for (mode, lease, deadlines) in [
        (Mode::Fair, "l", "d"),
        (Mode::Write, "w", "rd"),
        (Mode::Permit { limit: 1, count: 1 }, "p", "pd"),
    ] {
        let server = RedisServer::start().await;
        let (backend, mut raw) = (open(server.url()), server.raw().await);
        let queues = queued(&backend, mode, 4).await;
        for (queue, suffix) in [(&queues[1], lease), (&queues[2], deadlines)] {
            raw.run::<()>(&["SET", &queue[0].name.suffixed(suffix), "foreign"]).await;
        }
        let kept = queues.iter().map(|claims| backend.keep(claims, queue_entry_life()));
        let kept = join_all(kept).await;
        for at in [0, 3] {
            assert_eq!(kept[at].as_ref().unwrap().stands, [true], "{mode:?}");
        }
        assert_eq!(kept[1].as_ref().unwrap_err().kind(), BackendErrorKind::Foreign);
        assert!(kept[2].is_err(), "{:?}", kept[2]);
    }
}
