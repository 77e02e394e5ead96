#![doc = include_str!("../../docs/ladder.md")]
