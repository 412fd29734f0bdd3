//! Every case on every transport: one line each.

use transom_tests::{Driverless, Real, Simulated, carrier, conformance};
use transom_transport::ProgressMode;

conformance!(local, Real::new("local"));
conformance!(third_party, Real::registered("carrier", carrier::opener("carrier")));
conformance!(shm, Real::new("shm"));
conformance!(tcp, Real::new("tcp"));
conformance!(tcp_inline, Driverless::new("tcp", ProgressMode::Inline));
conformance!(tcp_manual, Driverless::new("tcp", ProgressMode::Manual));
conformance!(shm_manual, Driverless::new("shm", ProgressMode::Manual));
conformance!(tcp_mac, Real::new("tcp:protect=mac"));
conformance!(sim, Simulated::new(1), simulated);
