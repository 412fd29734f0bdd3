//! Descriptors of regions, as bytes and as pasted text.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| transom_registry::fuzz_remote_region(bytes));
