//! Headers of the frames of tcp.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| transom_transport::fuzz_tcp_frame(bytes));
