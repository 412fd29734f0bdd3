//! Manifests of checkpoints, and what writers send to each other.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| transom_checkpoint::fuzz_manifest(bytes));
