//! The program of every target: it runs the one whose name it has.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kaskade_fuzz_targets::run(env!("CARGO_BIN_NAME"), input));
