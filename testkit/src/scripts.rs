//! The Lua scripts of the crate, read from their files.

use std::{collections::HashSet, fs, path::Path};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/backend/redis/scripts");
const INCLUDE: &str = "-- include: ";

/// Returns a script as a server gets it, with the parts that it includes.
pub fn script(name: &str) -> String {
    let mut source = String::new();
    insert(&read(name), &mut HashSet::new(), &mut source);
    source
}

/// Returns the text with which each script begins, by the names of their files.
pub(crate) fn beginnings() -> Vec<(String, String)> {
    let files = fs::read_dir(FOLDER).expect("the scripts of the crate").flatten();
    let lua = files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|end| end == "lua"));
    let beginning = |path: &Path| {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let beginning = read(&name).split(INCLUDE).next().unwrap().to_owned();
        (name, beginning)
    };
    lua.map(|path| beginning(&path)).collect()
}

/// Returns the line by which a server says in `INFO memory` that it knows all scripts.
pub fn all_scripts_cached() -> String {
    format!("number_of_cached_scripts:{}\r\n", beginnings().len())
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(FOLDER).join(format!("{name}.lua")))
        .expect("a script of the crate")
}

fn insert(file: &str, included: &mut HashSet<String>, source: &mut String) {
    for line in file.lines() {
        match line.strip_prefix(INCLUDE) {
            Some(parts) => {
                for part in parts.split(", ") {
                    if included.insert(part.to_owned()) {
                        insert(&read(&format!("lib/{part}")), included, source);
                    }
                }
            }
            None => {
                source.push_str(line);
                source.push('\n');
            }
        }
    }
}
