//! A cache of the user's own that is kept true.

use std::{collections::HashMap, sync::mpsc};

use bellwether::cache::{EntryWatch, LocalTier};
use tokio::runtime::Builder;

use crate::prelude::*;

/// A cache of the user's own in front of a cache.
#[derive(Clone, Default)]
struct Front(Arc<Mutex<HashMap<String, u64>>>);

impl Front {
    fn watch(&self, cache: &Cache<u64>) -> EntryWatch<u64> {
        let front = self.clone();
        cache.watch(move |key| {
            let mut rows = front.0.lock().unwrap();
            match key {
                Some(key) => drop(rows.remove(key)),
                None => rows.clear(),
            }
        })
    }

    fn get(&self, key: &str) -> Option<u64> {
        self.0.lock().unwrap().get(key).copied()
    }

    fn insert(&self, key: &str, value: u64) {
        self.0.lock().unwrap().insert(key.to_owned(), value);
    }
}

fn caches() -> [Cache<u64>; 2] {
    let backend = MemoryBackend::new();
    [(); 2].map(|()| Cache::builder(backend.clone(), "bellwether").build().unwrap())
}

#[tokio::test]
async fn each_change_is_told_wherever_it_was_made() {
    let [here, there] = caches();
    let front = Front::default();
    let watch = front.watch(&here);
    for actor in [&here, &there] {
        for act in 0..4 {
            let odd = "a{b}%:c";
            actor.insert(odd, &1).await.unwrap();
            let ticket = watch.ticket(odd).unwrap();
            let loaded = here.peek(odd).await.unwrap().unwrap();
            let insert = || front.insert(odd, loaded.value);
            assert!(watch.insert_if_current(&ticket, &loaded, insert));
            assert_eq!(front.get(odd), Some(1));
            match act {
                0 => drop(actor.insert(odd, &2).await.unwrap()),
                1 => drop(actor.invalidate(odd).await.unwrap()),
                2 => drop(actor.expire(odd).await.unwrap()),
                _ => drop(actor.request(odd).refresh(value(3)).await.unwrap()),
            }
            assert_eq!(front.get(odd), None, "act {act}");
        }
    }
}

#[tokio::test]
async fn a_value_from_before_a_change_is_not_kept() {
    let [here, there] = caches();
    let front = Front::default();
    let watch = front.watch(&here);
    for actor in [&here, &there] {
        actor.insert("k", &1).await.unwrap();
        let ticket = watch.ticket("k").unwrap();
        let old: Loaded<u64> = here.peek("k").await.unwrap().unwrap();
        actor.invalidate("k").await.unwrap();
        assert!(!watch.insert_if_current(&ticket, &old, || front.insert("k", 1)));
        assert_eq!(front.get("k"), None);
        // What was loaded here since a ticket is newer than its own commit.
        let ticket = watch.ticket("k").unwrap();
        let new = here.request("k").load(value(2)).await.unwrap();
        assert!(watch.insert_if_current(&ticket, &new, || front.insert("k", 2)));
        assert_eq!(front.get("k"), Some(2));
    }
    // Of what is not stored nothing is told.
    let ticket = watch.ticket("other").unwrap();
    let unstored = |lead: Lead<u64>| async move {
        lead.do_not_store();
        Ok::<_, BoxError>(1)
    };
    let loaded = here.request("other").load(unstored).await.unwrap();
    assert!(!watch.insert_if_current(&ticket, &loaded, || unreachable!("it is not stored")));
    assert_eq!(watch.ticket("").unwrap_err().kind(), ErrorKind::InvalidKey);
}

/// Another process writes, and the watch is told. Then commands fail, while pushes still come. What
/// this process remembers is older than the write, and the listener is told of it no more.
#[tokio::test(start_paused = true)]
async fn a_value_that_is_remembered_in_an_outage_is_not_kept() {
    for fault in [Fault::Refuse, Fault::Hang] {
        let faulty = Faulty::new(|_| None);
        let builder = Cache::builder(faulty.clone(), "bellwether").outage_memory(1 << 20);
        let here = builder.stale_while_revalidate(SECOND).build().unwrap();
        let there: Cache<u64> = Cache::builder(faulty.inner.clone(), "bellwether").build().unwrap();
        let front = Front::default();
        let watch = front.watch(&here);
        assert_eq!(here.get_or_load("k", value(1)).await.unwrap(), 1);
        faulty.plan(move |_| Some(fault));
        there.insert("k", &2).await.unwrap();
        let ticket = watch.ticket("k").unwrap();
        let old = here.request("k").load(value(3)).await.unwrap();
        assert_eq!((old.value, old.source), (1, Source::Degraded), "{fault:?}");
        assert!(!watch.insert_if_current(&ticket, &old, || front.insert("k", 1)), "{fault:?}");
        assert_eq!(front.get("k"), None);
    }
}

/// A listener that panics costs its own cache a change, and the others nothing.
#[tokio::test]
async fn a_listener_that_panics_stops_nothing() {
    let [here, there] = caches();
    let front = Front::default();
    let _bad = here.watch(|_| panic!("as planned"));
    let watch = front.watch(&here);
    for actor in [&there, &here] {
        front.insert("k", 1);
        actor.invalidate("k").await.unwrap();
        assert_eq!(front.get("k"), None);
    }
    drop(watch);
    front.insert("k", 1);
    here.invalidate("k").await.unwrap();
    assert_eq!(front.get("k"), Some(1), "the watch is gone");
}

/// A listener builds a cache with a local tier, and begins a watch. The backend and the cache hold
/// no lock meanwhile.
#[test]
fn a_listener_may_begin_another_watch() {
    let (sender, done) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let backend = MemoryBackend::new();
            let builder = move || Cache::<u64>::builder(backend.clone(), "bellwether");
            let here = builder().build().unwrap();
            let there = builder().build().unwrap();
            let begun = Mutex::new(Vec::new());
            let watched = here.clone();
            let _watch = here.watch(move |_| {
                let built = builder().local(LocalTier::default()).build().unwrap();
                begun.lock().unwrap().push((built, watched.watch(|_| {})));
            });
            for actor in [&there, &here] {
                actor.insert("k", &1).await.unwrap();
            }
        });
        sender.send(()).unwrap();
    });
    done.recv_timeout(10 * SECOND).expect("a listener waits for a lock that its own thread holds");
}
