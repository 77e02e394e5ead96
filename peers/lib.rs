//! An empty library. This package consists of benches.
