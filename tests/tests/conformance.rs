//! Every case on every transport: one line each.

use transom_tests::{Real, Simulated, carrier, conformance};

conformance!(local, Real::new("local"));
conformance!(third_party, Real::registered("carrier", carrier::opener("carrier")));
conformance!(shm, Real::new("shm"));
conformance!(tcp, Real::new("tcp"));
conformance!(tcp_mac, Real::new("tcp:protect=mac"));
conformance!(sim, Simulated::new(1), simulated);
