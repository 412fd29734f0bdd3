//! Conformance, process and fault tests of transom.
