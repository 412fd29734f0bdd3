//! Control messages of shm.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| transom_transport::fuzz_shm_message(bytes));
