#![doc = include_str!("../docs/guide.md")]
// It leads to `testing` as well.
#![cfg_attr(not(feature = "test-util"), allow(rustdoc::broken_intra_doc_links))]
