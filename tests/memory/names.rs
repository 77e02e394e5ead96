//! Names, and the Redis keys that are made of them.

use crate::prelude::*;

fn name(key: &str) -> Result<Name, Error> {
    Name::new(&Namespace::standard(), Family::Cache, &Key::from(key), 512)
}

#[test]
fn braces_never_reach_the_hash_tag() {
    assert_eq!(name("a{b}c%").unwrap().entry(), "bellwether:c:{a%7Bb%7Dc%25}:e");
    assert_ne!(name("a%7Bb").unwrap().entry(), name("a{b").unwrap().entry());
}

#[test]
fn a_log_shows_the_redis_key_and_a_schema_other_than_zero() {
    let name = name("k").unwrap();
    assert_eq!(format!("{name:?}"), "bellwether:c:{k}");
    assert_eq!(format!("{:?}", name.with_schema(2)), "bellwether:c:{k} of schema 2");
}

#[test]
fn an_invalid_namespace_is_refused() {
    for bad in ["", "a:b", "a b", "{a}", &"n".repeat(65)] {
        assert!(Namespace::new(bad).is_err(), "{bad:?} was taken");
    }
    assert!(Namespace::new("shop.eu-1_a").is_ok());
}
