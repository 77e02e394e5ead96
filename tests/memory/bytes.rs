//! The bytes of entries and changes.

use std::time::Duration;

use bellwether::backend::{Change, Entry, Undecodable};
use bytes::Bytes;

#[test]
fn an_encoded_entry_is_decoded() {
    let entry = Entry::value(7, Duration::from_millis(210), Bytes::from_static(b"\0\xffv"))
        .with_fence(1_790_000_000_000_001)
        .with_ttl(Duration::from_millis(60_001));
    assert_eq!(Entry::decode(entry.encode()), Ok(entry));
    let uncacheable = Entry::uncacheable(Duration::ZERO).with_fence(1);
    assert_eq!(Entry::decode(uncacheable.encode()), Ok(uncacheable));
}

#[test]
fn any_other_bytes_are_no_entry() {
    let good = Entry::value(7, Duration::ZERO, Bytes::from_static(b"v")).encode();
    let header = good.len() - 1;
    for cut in 0..header {
        assert_eq!(Entry::decode(good.slice(..cut)), Err(Undecodable));
    }
    for at in 0..header {
        let mut bad = good.to_vec();
        bad[at] = b'\xc3';
        assert_eq!(Entry::decode(bad.into()), Err(Undecodable), "byte {at}");
    }
}

#[test]
fn any_other_bytes_mean_look_again() {
    for bytes in [
        "",
        "x",
        "e",
        "ebw1v",
        "f",
        "f12",
        "i",
        "i-",
        "t",
        "t12",
        "f0000000000000001",
        "F0000000000000001l",
        "F0000000000000001l00000002x",
        "F0000000000000001lffffffffx",
        "g",
        "g0000000000000001",
        "g000000000000000100",
        "g0000000000000001000102030405060708090a0b0c0d0e0f",
        "g0000000000000001000102030405060708090a0b0c0d0e0f-1",
    ] {
        assert_eq!(Change::decode(&Bytes::from(bytes)), Change::Wake, "{bytes:?}");
    }
}
