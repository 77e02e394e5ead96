//! No character of a key has a meaning, and different names never share anything.

use crate::harness::*;

/// Returns texts that are known to cause trouble, and pairs that an escape must keep apart.
fn odd_names() -> Vec<Name> {
    let long = ["ü".repeat(256), format!("{}x", "k".repeat(511)), "\"quoted\"".to_owned()];
    let odd = [
        "plain", "a{b}c", "{a}bc", "{", "}", "{}", "}{", "{{a}}", "a%7Bb", "a{b", "%", "%25",
        "%%25", " ", "  ", "a b", "a\tb", "a\nb", "a\r\nb", "\0", "a\0b", "*", "?", "[a]", "a:e",
        "e", "l", "ключ", "鍵", "🔑", "é", "'", "\\", "-1", "0", "c@3",
    ];
    // One letter in two forms, and a byte order mark.
    let forms = ["e\u{301}", "\u{feff}"];
    odd.into_iter().chain(forms).chain(long.iter().map(String::as_str)).map(name).collect()
}

pub async fn any_text_is_a_name_of_its_own<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let names = odd_names();
    for (at, name) in names.iter().enumerate() {
        stored(&backend, name, &at.to_string()).await;
    }
    for (at, name) in names.iter().enumerate() {
        assert_eq!(read(&backend, name).await, Some(at.to_string()), "{name:?}");
    }
    for name in &names {
        invalidated(&backend, name).await;
        assert_eq!(read(&backend, name).await, None, "{name:?}");
        begun(&backend, &claim(name)).await;
    }
}

pub async fn any_name_gets_its_own_pushes<H: FullHarness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    let names = odd_names();
    let mut listeners = Vec::new();
    for name in &names {
        listeners.push(listen(&there, name).await);
    }
    for (name, changes) in names.iter().zip(&mut listeners) {
        let burnt = invalidated(&here, name).await;
        assert_eq!(next(changes).await, Change::Invalidated(burnt), "{name:?}");
    }
}

pub async fn namespaces_do_not_meet<H: FullHarness>(h: &H) {
    let shop = name_in("shop", Family::Cache, "k");
    let eu = name_in("shop.eu", Family::Cache, "k");
    apart(h, &shop, &eu).await;
}

pub async fn caches_and_locks_do_not_meet<H: FullHarness>(h: &H) {
    let cache = name_in("shop", Family::Cache, "k");
    let lock = name_in("shop", Family::Lock, "k");
    apart(h, &cache, &lock).await;
}

async fn apart<H: FullHarness>(h: &H, this: &Name, other: &Name) {
    let backend = h.backend();
    let mut to_this = listen(&backend, this).await;
    let mut to_other = listen(&backend, other).await;
    granted(&backend, &claim(this)).await;
    let there = claim(other);
    granted(&backend, &there).await;
    let first = put(&backend, this, "this").await;
    assert_eq!(read(&backend, other).await, None);
    // The put ended only the lease of its own name.
    assert_eq!(
        bellwether::backend::Leases::renew(&backend, &[there]).await.unwrap(),
        [Renewal::Held]
    );
    let second = invalidated(&backend, other).await;
    assert_eq!(read(&backend, this).await.as_deref(), Some("this"));
    assert_eq!(next(&mut to_this).await, Change::Entry(value("this").with_fence(first)));
    assert_eq!(next(&mut to_other).await, Change::Invalidated(second));
}
