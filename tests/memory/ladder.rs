//! Checks that the tests that `docs/ladder.md` names exist.

use std::{collections::HashSet, fs, path::Path};

const LADDER: &str = include_str!("../../docs/ladder.md");

#[test]
fn each_test_that_the_ladder_names_exists() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let steps = LADDER.matches("\n# ").count();
    let proofs: Vec<_> =
        LADDER.split("\n\n").filter_map(|part| part.strip_prefix("Tests: ")).collect();
    assert_eq!((steps, proofs.len()), (11, 11), "a step has no proof");
    let mut named = HashSet::new();
    for proof in proofs {
        let mut file = None;
        for word in proof.split('`').skip(1).step_by(2) {
            if word.starts_with("tests/") {
                file = Some(fs::read_to_string(root.join(word)).expect(word));
                continue;
            }
            let file = file.as_ref().expect("a test is named before its file");
            let is_there = ["(", "<"].iter().any(|end| file.contains(&format!("fn {word}{end}")));
            assert!(is_there, "the named test {word} does not exist");
            named.insert(word);
        }
    }
    assert!(named.len() > 30, "only {} tests are named", named.len());
}
