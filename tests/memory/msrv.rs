//! Checks that the declared Rust version is the one that the dependencies demand. A lower version
//! would be a promise that cannot be kept, and a higher one is not needed. A lint of the compiler
//! watches over the standard library.

use std::{collections::HashMap, env, process::Command};

use serde_json::Value;

#[test]
fn the_declared_rust_version_is_what_the_dependencies_demand() {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--all-features", "--locked"])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml")])
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();

    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let nodes: HashMap<_, _> = list(&metadata["resolve"]["nodes"])
        .into_iter()
        .map(|node| (text(&node["id"]), node))
        .collect();
    let mut needed = vec![text(&metadata["resolve"]["root"])];
    let mut at = 0;
    while let Some(node) = needed.get(at).map(|id| &nodes[id]) {
        for dependency in list(&node["deps"]) {
            let normal = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            let id = text(&dependency["pkg"]);
            if normal && !needed.contains(&id) {
                needed.push(id);
            }
        }
        at += 1;
    }

    let demands: HashMap<_, _> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text(&package["id"]), package["rust_version"].as_str().map(version)))
        .collect();
    let declared = demands[&needed[0]];
    let demanded = needed[1..].iter().filter_map(|id| demands[id]).max();
    assert_eq!(declared, demanded);
}

fn version(text: &str) -> (u32, u32) {
    let mut parts = text.split('.').map(|part| part.parse().unwrap());
    (parts.next().unwrap(), parts.next().unwrap())
}
