//! Kinds of memory.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

mod file;
mod foreign;
mod host;
mod limits;
mod mapped;
mod mapping;
#[cfg(test)]
mod scratch;

pub use file::File;
pub use foreign::Foreign;
pub use host::{Host, HostBuilder, HugePages};
pub use mapped::{Mapped, read_only};

use serde::{Deserialize, Serialize};

/// What memory is, as far as a transport needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Kind {
    /// Host memory that this library allocated: sealed, and shareable by its descriptor.
    Host,
    /// A file, mapped.
    File,
    /// Host memory that somebody else allocated.
    Foreign,
    /// Memory of a device: no host instruction may touch it.
    Device,
}

/// A descriptor from which another process of this host can map the same memory.
#[derive(Debug)]
pub struct Shared<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// Where in it the memory begins, in bytes: a multiple of the page size.
    pub offset: u64,
    /// Whether it is sealed against shrinking, so that no truncation can end a process that maps it.
    pub sealed: bool,
}

/// Memory that can be registered.
///
/// # Safety
/// - `as_ptr` is the same address for the whole life of the value, valid for reads (and for writes, unless
///   `is_read_only`) of `size` bytes from any thread; on [`Kind::Device`] it is never touched by the host;
/// - `size` never changes and is not zero;
/// - no Rust reference to these bytes exists while the value lives: peers write them at any time;
/// - what `share` returns maps the very same bytes.
pub unsafe trait Memory: Debug + Send + Sync {
    /// Its first byte.
    fn as_ptr(&self) -> NonNull<u8>;
    /// Its size in bytes.
    fn size(&self) -> usize;
    /// What it is.
    fn kind(&self) -> Kind;
    /// A descriptor for other processes of this host, where there is one.
    fn share(&self) -> Option<Shared<'_>> {
        None
    }
    /// Whether it can only be read.
    fn is_read_only(&self) -> bool {
        false
    }
    /// Whether peers can only read it, whatever this process does: rights to change it are never exported.
    fn is_read_only_to_peers(&self) -> bool {
        self.is_read_only()
    }
}
