#![doc = include_str!("../../docs/freshness.md")]
