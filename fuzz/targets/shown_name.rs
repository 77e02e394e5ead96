#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bellwether::fuzzing::shown_name(data));
