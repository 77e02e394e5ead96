//! The Lua scripts of the crate.

#[path = "../../src/backend/redis/scripts/sources.rs"]
mod sources;

/// Returns the names of the scripts, each with its text as a server gets it.
pub(crate) fn scripts() -> Vec<(&'static str, &'static str)> {
    let scripts = sources::Scripts::from_sources(|source| source);
    let all = scripts.all();
    all.map(|(name, source)| (name, *source)).collect()
}
