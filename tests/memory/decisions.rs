//! The records in `docs/decisions` name the tests that guard them. A renamed test must not leave a
//! record behind.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|end| end == extension) {
            found.push(path);
        }
    }
}

/// Returns the names of functions in backticks: words that are joined by at least two underscores.
fn guards(record: &str) -> Vec<&str> {
    let guarded_by = record.split("\n## ").filter(|section| section.starts_with("Guarded by"));
    let quoted = guarded_by.flat_map(|section| section.split('`').skip(1).step_by(2));
    quoted
        .map(|text| text.rsplit("::").next().unwrap_or(text))
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
        .filter(|name| name.matches('_').count() >= 2)
        .collect()
}

#[test]
fn every_test_that_a_decision_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut code = Vec::new();
    for folder in ["src", "tests", "testkit", "loom"] {
        files(&root.join(folder), "rs", &mut code);
    }
    let code: String = code.into_iter().map(|file| fs::read_to_string(file).unwrap()).collect();

    let mut records = Vec::new();
    files(&root.join("docs/decisions"), "md", &mut records);
    for path in records {
        let record = fs::read_to_string(&path).unwrap();
        for name in guards(&record) {
            assert!(code.contains(&format!("fn {name}")), "{}: no {name}", path.display());
        }
    }
}
