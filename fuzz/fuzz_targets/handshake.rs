//! The first message of a stranger, and a hello.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| transom_transport::handshake::fuzz_handshake(bytes));
