# Commands for maintainers. CONTRIBUTING.md has each of them as a plain command.

# List the commands.
default:
    @just --list

# Run the tests. Arguments go to `cargo test`: `just test --test memory`.
test *arguments:
    scripts/test {{ arguments }}

# Run all checks that must pass before a change is merged.
ci:
    .ci/run

# Measure what each operation costs: CPU time, commands and memory.
bench *arguments:
    cargo bench --bench costs {{ arguments }}

# Measure floors, peers and this crate in one run, and write docs/benchmarks.md.
report *arguments:
    scripts/report {{ arguments }}

# Take the figures of the demo anew: its run, its chart, its picture and the tables of the guide.
demo *arguments:
    scripts/demo-figures {{ arguments }}

# Check what a release needs beyond `just ci`.
release *arguments:
    scripts/release {{ arguments }}

# Build the documentation and open it.
docs:
    cargo doc --all-features --no-deps --open

# Run every fuzz target for some seconds. Needs nightly Rust and cargo-fuzz.
fuzz seconds="30":
    fuzz/run {{ seconds }}
