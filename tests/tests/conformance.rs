//! Every case on every transport: one line each.

use transom_tests::{Real, conformance};

conformance!(local, Real::new("local"));
