//! What memory is registered, and how a peer names it.
//!
//! [`Memory`] is anything with an address and a size: shared host memory ([`Host`]), a file ([`File`]), or an address
//! that somebody else keeps alive ([`Foreign`]). A [`MemoryRegion`] is memory that has been registered: it has an
//! identity, rights, a generation and the library's own words beside it (signals, locks). A [`Slice`] is a checked
//! range of it that keeps it alive. A [`RemoteRegion`] is what a peer needs to reach it.
//!
//! This crate knows nothing of transports, ranks or windows. Sizes and offsets are bytes.

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
