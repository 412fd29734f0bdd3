//! Requests to a store.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| transom::store::fuzz_store_request(bytes));
