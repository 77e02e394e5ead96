//! Properties that hold for any name and any bytes.
//!
//! A failing case is made small and written to `tests/memory/properties.proptest-regressions`. It
//! is tried first from then on. Commit it with the repair. `PROPTEST_CASES` sets the number of
//! cases of each property, 256 by default.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Debug,
};

use bellwether::{
    backend::{Announcement, Change, Entry, HandedHold, Handover, Owner, Windows},
    cache::{Codec, Json, Postcard, Raw},
    lease::{Retry, RetryStrategy},
};
use bytes::Bytes;
use proptest::{
    prelude::*,
    test_runner::{FailurePersistence, FileFailurePersistence},
};
use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// Returns the configuration, which tries earlier failures first.
fn config() -> ProptestConfig {
    let regressions = FileFailurePersistence::WithSource("proptest-regressions");
    let failure_persistence: Option<Box<dyn FailurePersistence>> = Some(Box::new(regressions));
    ProptestConfig { failure_persistence, ..ProptestConfig::default() }
}

/// Generates keys, many of them made of characters with a meaning in names.
fn key() -> impl Strategy<Value = String> {
    let tricky =
        prop::sample::select(vec!["{", "}", "%", "%7B", "%25", "7", "B", "D", ":", "e", "\0", "é"]);
    prop_oneof![
        any::<String>(),
        prop::collection::vec(tricky, 1..8).prop_map(|parts| parts.concat()),
    ]
    .prop_filter("a key is not empty", |key| !key.is_empty())
}

fn name(key: &str) -> Name {
    name_of(Family::Cache, key)
}

fn name_of(family: Family, key: &str) -> Name {
    Name::new(&Namespace::standard(), family, &Key::from(key), usize::MAX).unwrap()
}

/// Returns the part of a key that a Redis Cluster hashes.
fn hash_tag(key: &str) -> &str {
    let (_, rest) = key.split_once('{').expect("a brace");
    let (tag, _) = rest.split_once('}').expect("the tag has no closing brace");
    tag
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_name_has_one_hash_tag_and_all_keys_of_it_share_that(key in key(), schema: u16) {
        let name = name(&key).with_schema(schema);
        let mut keys = vec![name.prefix().to_string(), name.entry(), name.suffixed("l")];
        let others = [1, u16::MAX].map(|step| schema.wrapping_add(step));
        keys.extend(others.map(|schema| name.clone().with_schema(schema).entry()));
        for key in &keys {
            prop_assert_eq!(key.matches('{').count(), 1);
            prop_assert_eq!(key.matches('}').count(), 1);
            prop_assert!(!hash_tag(key).is_empty());
            prop_assert_eq!(hash_tag(key), hash_tag(&keys[0]));
        }
        let distinct: HashSet<_> = keys.iter().collect();
        prop_assert_eq!(distinct.len(), keys.len());
    }

    /// A name that can be read back belongs to one key only.
    #[test]
    fn a_name_can_be_read_back(key in key()) {
        let name = name(&key);
        let escaped = hash_tag(name.prefix());
        let read = escaped.replace("%7B", "{").replace("%7D", "}").replace("%25", "%");
        prop_assert_eq!(read, key);
    }

    #[test]
    fn two_keys_never_share_a_name(one in key(), two in key()) {
        prop_assert_eq!(one == two, name(&one) == name(&two));
        prop_assert_eq!(one == two, name(&one).entry() == name(&two).entry());
        let lock = name_of(Family::Lock, &one);
        let cache = name(&two);
        prop_assert_ne!(lock.prefix(), cache.prefix());
    }

    #[test]
    fn a_key_may_be_as_long_as_its_limit(key in key(), limit in 0_usize..40) {
        let name = Name::new(&Namespace::standard(), Family::Cache, &Key::from(&key), limit);
        prop_assert_eq!(name.is_ok(), key.len() <= limit);
    }
}

fn entry() -> impl Strategy<Value = Entry> {
    // Sixteen digits: microseconds until the year 2286.
    let fence = 0..10_u64.pow(16);
    let payload = prop::collection::vec(any::<u8>(), 0..64);
    let windows = prop::option::of(prop::array::uniform3(0..1_u64 << 42));
    (any::<bool>(), fence, any::<u32>(), any::<u32>(), windows, payload).prop_map(
        |(value, fence, tag, cost, windows, payload)| {
            let cost = Duration::from_millis(u64::from(cost));
            let entry = if value {
                Entry::value(tag, cost, payload.into())
            } else {
                Entry::uncacheable(cost)
            };
            let entry = entry.with_fence(fence);
            match windows.map(|windows| windows.map(Duration::from_millis)) {
                Some([fresh, stale, error]) => {
                    entry.with_windows(Windows::fresh(fresh).stale(stale).error(error))
                }
                None => entry,
            }
        },
    )
}

/// Generates bytes, many of them nearly an entry or a message.
fn bytes() -> impl Strategy<Value = Bytes> {
    let letters = prop::sample::select(b"wefix".to_vec());
    let broken = (
        entry(),
        prop::option::of(letters),
        any::<prop::sample::Index>(),
        any::<u8>(),
        0..160_usize,
    )
        .prop_map(|(entry, letter, at, byte, cut)| {
            let mut bytes: Vec<u8> = letter.into_iter().chain(entry.encode()).collect();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(cut);
            bytes
        });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..80), broken].prop_map(Bytes::from)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn an_entry_is_read_as_it_was_written(entry in entry()) {
        prop_assert_eq!(Entry::decode(entry.encode()), Ok(entry.clone()));
        let change = Change::Entry(entry);
        prop_assert_eq!(Change::decode(&change.encode()), change);
    }

    #[test]
    fn a_change_is_read_as_it_was_written(
        fence in 0..10_u64.pow(16),
        bytes: usize,
        crowd: u32,
        millis: u64,
    ) {
        let owner = Owner::fresh();
        let ends = Duration::from_millis(millis);
        for change in [
            Change::Wake,
            Change::Announced(Announcement { fence, bytes, crowd }),
            Change::Invalidated(fence),
            Change::Granted(Handover { owner, fence, ends, hold: HandedHold::Mutex }),
            Change::Granted(Handover { owner, fence, ends, hold: HandedHold::Writer }),
            Change::Granted(Handover { owner, fence, ends, hold: HandedHold::Shared }),
            Change::Ended(owner),
        ] {
            prop_assert_eq!(Change::decode(&change.encode()), change);
        }
    }
}

/// A value with fields of many kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Product {
    name: String,
    prices: Vec<i64>,
    parts: BTreeMap<String, Option<Part>>,
    picture: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Part {
    Screw,
    Sheet { width: u32, letter: char },
    Several(Vec<Part>),
}

fn product() -> impl Strategy<Value = Product> {
    let leaf = prop_oneof![
        Just(Part::Screw),
        (any::<u32>(), any::<char>()).prop_map(|(width, letter)| Part::Sheet { width, letter }),
    ];
    let part = leaf.prop_recursive(3, 12, 4, |inner| {
        prop::collection::vec(inner, 0..4).prop_map(Part::Several)
    });
    let parts = prop::collection::btree_map(any::<String>(), prop::option::of(part), 0..4);
    let picture = prop::collection::vec(any::<u8>(), 0..16);
    (any::<String>(), prop::collection::vec(any::<i64>(), 0..6), parts, picture)
        .prop_map(|(name, prices, parts, picture)| Product { name, prices, parts, picture })
}

/// Checks that an encoded value is decoded, and that other bytes are an error or some value.
fn round_trip<V: Clone + Debug + PartialEq, C: Codec<V>>(
    codec: &C,
    value: &V,
    damage: Option<(prop::sample::Index, u8)>,
) -> Result<(), TestCaseError> {
    let encoded = codec.encode(value).unwrap();
    prop_assert_eq!(&codec.decode(encoded.clone()).unwrap(), value);
    let mut damaged = encoded.to_vec();
    if let Some((at, byte)) = damage
        && !damaged.is_empty()
    {
        let at = at.index(damaged.len());
        damaged[at] = byte;
        let _ = codec.decode(damaged.clone().into());
        damaged.truncate(at);
        let _ = codec.decode(damaged.into());
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn values_survive_their_codec(product in product(), damage: Option<(prop::sample::Index, u8)>) {
        round_trip::<Product, _>(&Json, &product, damage)?;
        round_trip::<Product, _>(&Postcard, &product, damage)?;
        round_trip::<Vec<u8>, _>(&Raw, &product.picture, damage)?;
        round_trip::<Bytes, _>(&Raw, &product.picture.into(), damage)?;
    }

    #[test]
    fn any_bytes_are_a_value_or_an_error(bytes in bytes(), brackets in 0..2000_usize) {
        let _ = Codec::<Product>::decode(&Json, bytes.clone());
        let _ = Codec::<Product>::decode(&Postcard, bytes.clone());
        prop_assert_eq!(&Codec::<Bytes>::decode(&Raw, bytes.clone()).unwrap(), &bytes);
        let _ = Codec::<Part>::decode(&Postcard, vec![2; brackets].into());
        let nested = Bytes::from("[".repeat(brackets));
        prop_assert!(Codec::<serde_json::Value>::decode(&Json, nested).is_err());
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn waits_stay_within_their_bounds(
        base: Duration,
        cap: Duration,
        times in prop::option::of(0..40_usize),
        exponential: bool,
    ) {
        let mut retry = if exponential {
            Retry::exponential(base, cap)
        } else {
            Retry::fixed(base)
        };
        if let Some(times) = times {
            retry = retry.times(times);
        }
        let waits: Vec<_> = retry.waits().take(100).collect();
        prop_assert_eq!(waits.len(), times.unwrap_or(100));
        for (turn, wait) in (0_u32..).zip(&waits) {
            let mut bound = base;
            if exponential {
                bound = base.saturating_mul(1 << turn.min(31)).min(cap);
            }
            prop_assert!(*wait <= bound);
        }
    }
}

#[test]
fn exponential_waits_spread() {
    let longest = Duration::from_millis(80);
    let waits: Vec<_> = Retry::exponential(longest, longest).times(40).waits().collect();
    let is_short = |wait: &Duration| *wait < longest / 2;
    assert!(waits.iter().any(is_short) && !waits.iter().all(is_short));
}
