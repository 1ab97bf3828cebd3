#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| kaskade_fuzz_targets::wire::body(input));
