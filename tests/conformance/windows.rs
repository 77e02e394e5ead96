//! The age of entries, by the clock of the backend, and their windows.

use crate::harness::*;

fn assert_age(entry: &Entry, age: Duration) {
    let told = entry.age.expect("the age is unknown");
    assert!(told >= age && told < age + MOMENT, "{entry:?}");
}

/// Returns the present entry after checking that it is at least this old, and hardly older.
async fn aged(backend: &impl Store, age: Duration) -> Entry {
    let entry = backend.read(&name("k"), true).await.unwrap().expect("there is no entry");
    assert_age(&entry, age);
    entry
}

pub async fn an_entry_tells_its_age<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    stored(&here, &name("k"), "v").await;
    aged(&there, Duration::ZERO).await;
    h.pass(TTL / 2).await;
    let committed = aged(&there, TTL / 2).await;
    put(&here, &name("k"), "put").await;
    let put = aged(&there, Duration::ZERO).await;
    assert!(put.stored_at > committed.stored_at && committed.stored_at > 0);
}

/// A reader that was told the time once must not go on with it for ever.
pub async fn an_entry_grows_older_between_two_reads<H: FullHarness>(h: &H) {
    let backend = h.backend();
    stored(&backend, &name("k"), "v").await;
    for passed in 1..4 {
        aged(&backend, (passed - 1) * TTL / 4).await;
        h.pass(TTL / 4).await;
        aged(&backend, passed * TTL / 4).await;
    }
}

pub async fn a_newer_entry_tells_its_age<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let late = claim(&name("k"));
    let grant = begun(&backend, &late).await;
    put(&backend, &name("k"), "put").await;
    h.pass(TTL / 2).await;
    let Claimed::Newer(newer) = backend.claim(&claim(&name("k")), 0).await.unwrap() else {
        panic!("the claim was not told of the newer entry");
    };
    assert_age(&newer, TTL / 2);
    let outcome = backend.commit(&late, &grant, &value("late"), Some(TTL)).await.unwrap();
    let Committed::Newer(newer) = outcome else {
        panic!("the commit was not told of the newer entry: {outcome:?}");
    };
    assert_age(&newer, TTL / 2);
}

pub async fn an_entry_is_read_with_its_windows<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    let windows = Windows::fresh(TTL / 4).stale(TTL / 2).error(TTL / 4);
    let entry = value("v").with_windows(windows);
    let mut changes = listen(&there, &name("k")).await;
    let claim = claim(&name("k"));
    let grant = begun(&here, &claim).await;
    here.commit(&claim, &grant, &entry, Some(windows.kept())).await.unwrap();
    let entry = entry.with_fence(grant.fence());
    assert_eq!(next(&mut changes).await, Change::Entry(entry.clone()));
    assert_eq!(there.get(&name("k")).await.unwrap(), Some(entry.clone()));
    // It is there to the end of its last window.
    h.pass(TTL / 2).await;
    let stale = there.get(&name("k")).await.unwrap();
    assert_eq!(stale, Some(entry));
    // The age is what its windows are compared with.
    stale.iter().for_each(|entry| assert_age(entry, TTL / 2));
    h.pass(TTL / 4).await;
    assert_eq!(there.get(&name("k")).await.unwrap(), None);
}

/// The windows of the entries below.
fn windows() -> Windows {
    Windows::fresh(TTL / 4).stale(TTL / 2).error(TTL)
}

/// Puts an entry with windows, and begins a load beside it.
async fn put_and_loading<B: Store>(backend: &B) -> (Claim, Grant, u64) {
    let entry = value("v").with_windows(windows());
    let fence = edit(backend, &name("k"), &Edit::Put(entry.clone(), windows().kept())).await;
    let load = claim(&name("k"));
    let grant = begun_over(backend, &load, fence).await;
    (load, grant, fence)
}

pub async fn a_touch_begins_the_windows_anew<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    let (late, grant, _) = put_and_loading(&here).await;
    h.pass(TTL / 2).await;
    let touched = Windows::fresh(TTL).error(TTL);
    let mut changes = listen(&here, &name("k")).await;
    let fence = edit(&there, &name("k"), &Edit::Touch { windows: touched, seen: 0 }).await;
    assert!(fence > grant.fence());
    assert_eq!(next(&mut changes).await, Change::Invalidated(fence));
    let entry = aged(&here, Duration::ZERO).await;
    assert_eq!(entry, value("v").with_windows(touched).with_fence(fence));
    // The load began before it.
    let outcome = here.commit(&late, &grant, &value("late"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Newer(entry.clone()));
    h.pass(TTL * 3 / 2).await;
    assert_eq!(there.get(&name("k")).await.unwrap(), Some(entry));
    h.pass(TTL / 2).await;
    assert_eq!(there.get(&name("k")).await.unwrap(), None);
}

pub async fn a_touch_of_nothing_changes_nothing<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let load = claim(&name("k"));
    let grant = begun(&backend, &load).await;
    assert_eq!(edit(&backend, &name("k"), &Edit::Touch { windows: windows(), seen: 0 }).await, 0);
    let outcome = backend.commit(&load, &grant, &value("v"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
}

/// The entry was replaced between the look of the caller and the touch.
pub async fn a_touch_leaves_another_entry_as_it_is<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let put = Edit::Put(value("v").with_windows(windows()), windows().kept());
    let seen = edit(&backend, &name("k"), &put).await;
    let fence = edit(&backend, &name("k"), &put).await;
    let touched = Windows::fresh(3 * TTL);
    let touch = Edit::Touch { windows: touched, seen };
    assert_eq!(edit(&backend, &name("k"), &touch).await, 0);
    let entry = backend.get(&name("k")).await.unwrap().unwrap();
    assert_eq!((entry.fence, entry.windows), (fence, Some(windows())));
    let touch = Edit::Touch { windows: touched, seen: fence };
    assert!(edit(&backend, &name("k"), &touch).await > fence);
    let entry = backend.get(&name("k")).await.unwrap().unwrap();
    assert_eq!(entry.windows, Some(touched));
}

/// One caller knows that the entry is wrong, and the other one does not know of it.
pub async fn a_touch_does_not_revive_an_expired_entry<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    edit(&here, &name("k"), &Edit::Put(value("v").with_windows(windows()), TTL)).await;
    let expired = edit(&here, &name("k"), &Edit::Expire).await;
    assert_eq!(edit(&there, &name("k"), &Edit::Touch { windows: windows(), seen: 0 }).await, 0);
    let entry = there.get(&name("k")).await.unwrap().unwrap();
    let left = entry.windows.unwrap();
    assert_eq!((entry.fence, left.fresh, left.stale), (expired, Duration::ZERO, Duration::ZERO));
}

/// The entry says that loads cannot be shared. With a longer life, every load would go on alone.
pub async fn a_touch_leaves_an_uncacheable_entry_as_it_is<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    let entry = Entry::uncacheable(Duration::ZERO).with_windows(windows());
    let fence = edit(&here, &name("k"), &Edit::Put(entry.clone(), windows().kept())).await;
    for seen in [0, fence] {
        let touch = Edit::Touch { windows: Windows::fresh(3 * TTL), seen };
        assert_eq!(edit(&there, &name("k"), &touch).await, 0, "{seen}");
    }
    assert_eq!(here.get(&name("k")).await.unwrap(), Some(entry.with_fence(fence)));
}

pub async fn an_expired_entry_is_kept_for_failures<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    let (late, grant, _) = put_and_loading(&here).await;
    h.pass(TTL / 8).await;
    let fence = edit(&there, &name("k"), &Edit::Expire).await;
    assert!(fence > grant.fence());
    let entry = aged(&here, TTL / 8).await;
    let left = entry.windows.expect("there are windows");
    assert_eq!((entry.fence, left.fresh, left.stale), (fence, Duration::ZERO, Duration::ZERO));
    assert!(left.error >= TTL * 9 / 8 && left.error < TTL * 9 / 8 + MOMENT, "{left:?}");
    let outcome = here.commit(&late, &grant, &value("late"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Newer(entry));
    h.pass(TTL * 7 / 8).await;
    assert!(there.get(&name("k")).await.unwrap().is_some());
    // Its end does not move if it expires once more.
    edit(&there, &name("k"), &Edit::Expire).await;
    h.pass(TTL / 8).await;
    assert_eq!(there.get(&name("k")).await.unwrap(), None);
}

pub async fn an_entry_without_an_error_window_expires_for_good<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let plain = value("v").with_windows(Windows::fresh(TTL).stale(TTL));
    for entry in [Some(value("v")), Some(plain), None] {
        if let Some(entry) = entry {
            edit(&backend, &name("k"), &Edit::Put(entry.clone(), TTL)).await;
        }
        let late = claim(&name("k"));
        let grant = begun_over(&backend, &late, u64::MAX).await;
        assert!(edit(&backend, &name("k"), &Edit::Expire).await > grant.fence());
        assert_eq!(backend.get(&name("k")).await.unwrap(), None);
        let outcome = backend.commit(&late, &grant, &value("late"), Some(TTL)).await.unwrap();
        assert_eq!(outcome, Committed::Refused);
    }
}
