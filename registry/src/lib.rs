//! What memory is registered, and how a peer names it.
//!
//! [`Memory`] is anything with an address and a size: shared host memory ([`Host`]), a file ([`File`]), or an address
//! that somebody else keeps alive ([`Foreign`]). A [`MemoryRegion`] is memory that has been registered: it has an
//! identity, rights, a generation and the library's own words beside it (signals, locks). A [`Slice`] is a checked
//! range of it that keeps it alive. A [`RemoteRegion`] is what a peer needs to reach it.
//!
//! | word | meaning |
//! |---|---|
//! | [`Memory`] | an address and a size that stay; yours too, by an unsafe trait |
//! | [`MemoryRegion`], [`Slice`] | memory that was registered, and a checked range that keeps it alive |
//! | [`RemoteRegion`] | what a peer needs to ask for it: owner, life, range, rights, addresses; no key |
//! | [`Access`] | read, write, atomic, signal: each granted by itself |
//! | [`Incarnation`], generation, epoch | which life of a process, of a region, of a team |
//! | signal | a 64-bit counter beside a region, in memory of the library |
//!
//! This crate knows nothing of transports, ranks or windows. Sizes and offsets are bytes. A program gets its regions from
//! a `Context` of the crate `transom-transport`, which has a [`Registry`] inside; here is one by itself:
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::AtomicU32;
//! use transom_registry::exposed::Bell;
//! use transom_registry::{Access, Host, Incarnation, Registry, RemoteRegion};
//!
//! struct Nobody(AtomicU32);
//! impl Bell for Nobody {
//!     fn asleep(&self) -> &AtomicU32 {
//!         &self.0
//!     }
//!     fn ring(&self) {}
//! }
//!
//! let registry = Registry::new(Incarnation::random()?, Arc::new(Nobody(AtomicU32::new(0))));
//! let region = registry.register(Host::new(4096)?, 1)?;
//! region.write(16, b"hello")?;
//!
//! // What a peer is told, as text, and what it gets for that.
//! let text = region.export(0..64, Access::READ)?.to_string();
//! let asked: RemoteRegion = text.parse()?;
//! let grant = registry.grant(&asked)?;
//! let mut seen = [0; 5];
//! grant.exposed.read(16, &mut seen)?;
//! assert_eq!(&seen, b"hello");
//! assert!(grant.check("put", Access::WRITE).is_err());
//!
//! drop(region);
//! assert!(grant.check("get", Access::READ).is_err(), "its region is gone");
//! # Ok::<(), transom_registry::Error>(())
//! ```
//!
//! Where to read on: [`copy`], the one routine by which bytes enter and leave such memory; [`exposed`], what that memory is
//! to the code; [`header`] and [`word`], the library's words beside it; [`element`], reductions; [`Error`].

#[cfg(not(all(
    target_os = "linux",
    target_endian = "little",
    any(target_arch = "x86_64", target_arch = "aarch64")
)))]
compile_error!("transom needs Linux 5.10 or newer on little-endian x86-64 or aarch64");

mod access;
pub mod copy;
pub mod element;
mod error;
pub mod exposed;
pub mod header;
mod incarnation;
mod memory;
mod region;
mod remote;
mod table;
pub mod word;

pub use access::Access;
pub use error::{Cause, Error, Failed, Failure, Outcome, Result, Stale};
pub use incarnation::Incarnation;
pub use memory::{File, Foreign, Host, HostBuilder, HugePages, Kind, Mapped, Memory, Shared, read_only};
pub use region::{MemoryRegion, Slice};
pub use remote::{RemoteRegion, fuzz_remote_region};
pub use table::{Grant, MOST_SIGNALS, Registry};
