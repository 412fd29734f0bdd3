//! Headers of model files: the size of the file, then the text.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| transom_checkpoint::fuzz_header(bytes));
