//! The Lua scripts of the crate, read from their files.

use std::{fs, path::Path};

#[path = "../../src/backend/redis/scripts/assemble.rs"]
mod assemble;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/backend/redis/scripts");

/// Returns a script as a server gets it.
pub fn script(name: &str) -> String {
    let lib: Vec<_> = files("lib").into_iter().map(|(_, text)| text).collect();
    let lib: Vec<_> = lib.iter().map(String::as_str).collect();
    let file = fs::read_to_string(Path::new(FOLDER).join(format!("{name}.lua")));
    assemble::assemble(&file.expect("a script of the crate"), &lib)
}

/// Returns the first line of each script, which no other has, by the names of their files.
pub(crate) fn first_lines() -> Vec<(String, String)> {
    let first = |text: String| text.lines().next().unwrap_or_default().to_owned();
    files("").into_iter().map(|(name, text)| (name, first(text))).collect()
}

pub(crate) fn count_of_scripts() -> usize {
    files("").len()
}

/// Returns the names and the texts of the files in a folder.
fn files(folder: &str) -> Vec<(String, String)> {
    let files = fs::read_dir(Path::new(FOLDER).join(folder)).expect("the scripts of the crate");
    let paths = files.flatten().map(|file| file.path());
    let lua = paths.filter(|path| path.extension().is_some_and(|end| end == "lua"));
    let text = |path: &Path| fs::read_to_string(path).expect("a script of the crate");
    lua.map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), text(&path)))
        .collect()
}
