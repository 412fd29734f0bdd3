//! The conformance suite: what every transport has to do, told as cases that know none of them.
//!
//! A case is a function over a [`World`]: three contexts that reach each other by the transport under test only. Those
//! in the topics of [`mod@conformance`] never block, so that they run under a virtual clock too; those in
//! [`conformance::blocking`] and [`conformance::threads`] are for transports in real time. One line of [`conformance!`]
//! makes a test of each case for one transport.
#![forbid(unsafe_op_in_unsafe_fn)]
#![allow(clippy::unwrap_used, reason = "a case fails by a panic that says where")]

pub mod carrier;
mod cases;
pub mod conformance;
pub mod countdown;
pub mod fabric;
pub mod network;
pub mod pattern;
pub mod process;
pub mod ranks;
pub mod usage;
pub mod world;

pub use fabric::{Driverless, Fabric, Real, Simulated, blocking, case, case_alone};
pub use world::{Target, World};

/// Whether the long forms of cases were asked for, by `TRANSOM_LONG=1`.
#[must_use]
pub fn is_long() -> bool {
    std::env::var("TRANSOM_LONG").is_ok_and(|value| value == "1")
}
