//! Every case on every transport: one line each.

use transom_tests::{Real, carrier, conformance};

conformance!(local, Real::new("local"));
conformance!(third_party, Real::registered("carrier", carrier::opener("carrier")));
