//! The Lua scripts of the crate.

use std::collections::HashMap;

#[path = "../../src/backend/redis/scripts/sources.rs"]
mod sources;

/// Returns the names of the scripts, each with its text as a server gets it.
pub(crate) fn scripts() -> Vec<(&'static str, &'static str)> {
    let scripts = sources::Scripts::from_sources(|source| source);
    let all = scripts.all();
    all.map(|(name, source)| (name, *source)).collect()
}

/// Returns the name of each script by the digest by which a server knows the script.
pub(crate) fn names_by_digest() -> HashMap<String, &'static str> {
    scripts().into_iter().map(|(name, source)| (digest(source), name)).collect()
}

pub(crate) fn digest(source: &str) -> String {
    redis::Script::new(source).get_hash().to_owned()
}
