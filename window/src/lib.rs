//! Registered memory windows into other processes.

pub mod store;

pub use store::{Store, StoreServer};
