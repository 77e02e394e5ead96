//! The Lua scripts of the crate, read from their files.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::Path,
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/backend/redis/scripts");
const INCLUDE: &str = "-- include: ";
const PART: &str = "\n-- part: ";

/// Returns a script as a server gets it, with the parts that it includes.
pub fn script(name: &str) -> String {
    let mut source = String::new();
    insert(&read(name), &parts(), &mut HashSet::new(), &mut source);
    source
}

/// Returns the parts of the files in `lib`, by their names.
fn parts() -> HashMap<String, String> {
    let files = fs::read_dir(Path::new(FOLDER).join("lib")).expect("the parts").flatten();
    let texts = files.map(|file| fs::read_to_string(file.path()).expect("the parts of a topic"));
    let parts =
        texts.flat_map(|text| text.split(PART).skip(1).map(str::to_owned).collect::<Vec<_>>());
    let named = |part: String| part.split_once('\n').map(|(name, text)| (name.into(), text.into()));
    parts.filter_map(named).collect()
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

pub(crate) fn count_of_scripts() -> usize {
    beginnings().len()
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(FOLDER).join(format!("{name}.lua")))
        .expect("a script of the crate")
}

fn insert(
    file: &str,
    parts: &HashMap<String, String>,
    included: &mut HashSet<String>,
    source: &mut String,
) {
    for line in file.lines() {
        match line.strip_prefix(INCLUDE) {
            Some(names) => {
                for name in names.split(", ") {
                    if included.insert(name.to_owned()) {
                        insert(&parts[name], parts, included, source);
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
