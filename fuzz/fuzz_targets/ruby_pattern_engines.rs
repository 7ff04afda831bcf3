#![no_main]
#![expect(missing_docs, reason = "the target is documented in the library")]

libfuzzer_sys::fuzz_target!(|input: &[u8]| h2o_fuzz::ruby_pattern_engines(input));
