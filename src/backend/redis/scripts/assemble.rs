//! Puts a script together: its file, with the functions and constants of `lib/` that it names.
//!
//! Lua creates a function whenever its line runs. So each stands just before the first block that
//! needs it: the usual case returns before the rest is created.
//!
//! A name counts wherever the word stands, except in a line that is a comment. Parts of `lib/` do
//! not need each other in a circle.

use std::collections::HashMap;

pub(super) fn assemble<'a>(file: &'a str, lib: &[&'a str]) -> String {
    let parts = lib.iter().flat_map(|file| blocks(file));
    let mut parts = parts.flat_map(|part| names(part).map(move |name| (name, part))).collect();
    let mut source = String::with_capacity(8 << 10);
    for block in blocks(file) {
        add(block, &mut parts, &mut source);
    }
    source
}

/// Adds to a script the parts that a block names and that are not there yet, then the block.
fn add<'a>(block: &'a str, parts: &mut HashMap<&'a str, &'a str>, source: &mut String) {
    let is_of_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
    for word in code(block).flat_map(|line| line.split(|it| !is_of_name(it))) {
        if let Some(part) = parts.remove(word)
            && !source.contains(part)
            && part != block
        {
            add(part, parts, source);
        }
    }
    source.push_str(block);
    source.push_str("\n\n");
}

/// Returns the blocks of a file. A blank line ends one, unless the next line is indented.
pub(super) fn blocks(file: &str) -> Vec<&str> {
    let ends = file.match_indices("\n\n").map(|(at, _)| at);
    let ends = ends.filter(|at| !file[at + 2..].starts_with(' ')).chain([file.len()]);
    ends.scan(0, |begin, end| Some(&file[std::mem::replace(begin, end + 2)..end])).collect()
}

fn code(block: &str) -> impl Iterator<Item = &str> {
    block.lines().filter(|line| !line.trim_start().starts_with("--"))
}

/// Returns the names that a block defines at the margin.
pub(super) fn names(block: &str) -> impl Iterator<Item = &str> {
    let defined = code(block).filter_map(|line| line.strip_prefix("local "));
    let listed = defined.flat_map(|it| {
        let it = it.strip_prefix("function ").unwrap_or(it);
        it.split(['=', '(']).next().unwrap_or_default().split(',')
    });
    listed.map(str::trim)
}
