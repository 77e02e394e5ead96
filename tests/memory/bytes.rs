//! The bytes of entries and changes.

use bellwether::backend::{Change, Entry, Tagged, Undecodable, Windows};
use bytes::Bytes;

use crate::prelude::*;

/// The header has room for what a later version writes.
#[test]
fn bytes_between_header_and_payload_are_passed_over() {
    let entry = Entry::value(7, Duration::ZERO, Bytes::from_static(b"v"));
    let mut bytes = entry.encode().to_vec();
    let header = bytes.len() - 1;
    bytes.splice(header - 6.., *b"000004morev");
    assert_eq!(Entry::decode(bytes.clone().into()), Ok(entry));
    bytes.truncate(header + 2);
    assert!(Entry::decode(bytes.into()).unwrap().payload.is_empty());
}

#[test]
fn an_encoded_entry_has_its_tags() {
    let tags = ["a", "ü b", "t"].map(Arc::from).to_vec();
    let tagged = Tagged { number: 1_790_000_000_000_001, tags };
    let entry = Entry::value(7, Duration::ZERO, Bytes::from_static(b"v")).with_tags(tagged);
    let bytes = entry.encode();
    assert_eq!(bytes.len(), entry.weight());
    assert_eq!(Entry::decode(bytes.clone()), Ok(entry.clone()));
    // A later version may write more behind them.
    let mut longer = bytes.to_vec();
    let end = bytes.len() - 1;
    longer.splice(82..88, format!("{:06x}", end - 88 + 4).into_bytes());
    longer.splice(end..end, *b"more");
    assert_eq!(Entry::decode(longer.into()), Ok(entry));
    // Without a whole list, it is not known what ends the entry.
    for cut in 89..end {
        assert_eq!(Entry::decode(bytes.slice(..cut)), Err(Undecodable), "{cut}");
    }
}

#[test]
fn any_other_bytes_are_no_entry() {
    let good = Entry::value(7, Duration::ZERO, Bytes::from_static(b"v")).encode();
    let header = good.len() - 1;
    for cut in 0..header {
        assert_eq!(Entry::decode(good.slice(..cut)), Err(Undecodable));
    }
    // The format and the kind, then the fence and the time, then numbers with letters as digits.
    let may_be = |at: usize, byte: u8| match at {
        0..3 => byte == good[at],
        3 => matches!(byte, b'v' | b'u'),
        4..36 => byte.is_ascii_digit(),
        _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
    };
    for at in 0..header {
        for byte in 0..=u8::MAX {
            let mut changed = good.to_vec();
            changed[at] = byte;
            let is_entry = Entry::decode(changed.into()).is_ok();
            assert_eq!(is_entry, may_be(at, byte), "byte {byte:#x} at {at}");
        }
    }
}

/// Each digit has its worth in its field, and in no other.
#[test]
fn each_digit_of_the_header_counts() {
    let header = "bw1v0123456789012345678901234567890109abcdef89abcdef\
                  0123456789fedcba98760a1b2c3d4e000000";
    let entry = Entry::decode(Bytes::from(header)).unwrap();
    assert_eq!((entry.fence, entry.stored_at), (123_456_789_012_345, 6_789_012_345_678_901));
    assert_eq!((entry.tag, entry.cost.as_millis()), (0x09ab_cdef, 0x89ab_cdef));
    let [fresh, stale, error] =
        [0x01_2345_6789, 0xfe_dcba_9876, 0x0a_1b2c_3d4e].map(Duration::from_millis);
    assert_eq!(entry.windows, Some(Windows::fresh(fresh).stale(stale).error(error)));
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
