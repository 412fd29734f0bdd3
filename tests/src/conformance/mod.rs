//! The cases, by topic. Each is named by what it proves.
#![allow(missing_docs, reason = "a case is named by what it proves")]

pub mod accumulate;
pub mod atomics;
pub mod bad_input;
pub mod blocking;
pub mod completion;
pub mod identity;
pub mod lifetime;
pub mod lists;
pub mod put_get;
pub mod rights;
pub mod signals;
pub mod sizes;
pub mod threads;
pub mod usage;
