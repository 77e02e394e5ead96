//! The bytes of entries and changes.

use std::time::Duration;

use bellwether::backend::{Change, Entry, Undecodable, Windows};
use bytes::Bytes;

#[test]
fn an_encoded_entry_is_decoded() {
    let entry = Entry::value(7, Duration::from_millis(210), Bytes::from_static(b"\0\xffv"))
        .with_fence(1_790_000_000_000_001)
        .with_stored_at(1_790_000_000_210_001)
        .with_spread(Duration::from_millis(20));
    let windows = Windows::fresh(Duration::from_millis(60_001)).stale(Duration::MAX);
    for entry in [entry.clone(), entry.with_windows(windows)] {
        let decoded = Entry::decode(entry.encode()).unwrap();
        assert_eq!(decoded, entry);
        assert_eq!(decoded.stored_at, entry.stored_at);
    }
    let uncacheable = Entry::uncacheable(Duration::ZERO).with_fence(1);
    assert_eq!(Entry::decode(uncacheable.encode()), Ok(uncacheable));
}

/// Entries of the first format are still there when a fleet is updated.
#[test]
fn an_entry_of_format_1_is_fresh_until_it_is_gone() {
    let bytes = Bytes::from("bw1v179000000000000100000007000000d20000ea61payload");
    let decoded = Entry::decode(bytes.clone()).unwrap();
    let payload = Bytes::from_static(b"payload");
    let entry = Entry::value(7, Duration::from_millis(210), payload);
    assert_eq!(decoded, entry.with_fence(1_790_000_000_000_001));
    assert_eq!((decoded.windows, decoded.stored_at), (None, 0));
    for cut in 0..44 {
        assert_eq!(Entry::decode(bytes.slice(..cut)), Err(Undecodable));
    }
}

/// The header has room for what a later version writes.
#[test]
fn bytes_between_header_and_payload_are_passed_over() {
    let entry = Entry::value(7, Duration::ZERO, Bytes::from_static(b"v"));
    let mut bytes = entry.encode().to_vec();
    let header = bytes.len() - 1;
    bytes.splice(header - 6.., *b"000004tagsv");
    assert_eq!(Entry::decode(bytes.clone().into()), Ok(entry));
    bytes.truncate(header + 2);
    assert!(Entry::decode(bytes.into()).unwrap().payload.is_empty());
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
        "ebw2v",
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
