//! The control page: the words of a process that its same-host peers look at, and the bell that wakes it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::event::{EventfdFlags, eventfd};
use transom_registry::exposed::Bell;
use transom_registry::{Error, Host, Mapped, Memory, Result, Shared};

/// Offsets of the words, each on a line of its own.
const ASLEEP: usize = 0;
const ALIVE: usize = 128;
const BEAT: usize = 256;

enum Backing {
    Own(Host),
    Peer(Mapped),
}

/// The control page of a process: its own, or a same-host peer's, mapped.
pub struct Page {
    backing: Backing,
    bell: OwnedFd,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("own", &matches!(self.backing, Backing::Own(_))).finish_non_exhaustive()
    }
}

impl Page {
    /// Size of the page in bytes.
    pub const SIZE: usize = 4096;

    /// A new page with its bell.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Limit`].
    pub fn new() -> Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::io("make an eventfd", e))?;
        Ok(Self { backing: Backing::Own(Host::new(Self::SIZE)?), bell })
    }

    /// A peer's page and bell, as they were received.
    ///
    /// # Errors
    /// [`Error::Malformed`] when the mapping is too small.
    pub fn map(mapped: Mapped, bell: OwnedFd) -> Result<Self> {
        if mapped.size() < Self::SIZE {
            return Err(Error::Malformed {
                what: "control page",
                why: format!("{} bytes where {} are needed", mapped.size(), Self::SIZE),
            });
        }
        Ok(Self { backing: Backing::Peer(mapped), bell })
    }

    /// The descriptor of the memory; `None` for a peer's.
    #[must_use]
    pub fn share(&self) -> Option<Shared<'_>> {
        match &self.backing {
            Backing::Own(host) => host.share(),
            Backing::Peer(_) => None,
        }
    }

    /// The bell's descriptor: readable once it was rung.
    #[must_use]
    pub fn bell_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Makes the bell silent again.
    pub fn hush(&self) {
        let mut count = [0; 8];
        // Nothing to read is as good as hushed.
        let _ = rustix::io::read(&self.bell, &mut count);
    }

    fn at(&self, offset: usize) -> *mut u8 {
        let base = match &self.backing {
            Backing::Own(host) => host.as_ptr(),
            Backing::Peer(mapped) => mapped.as_ptr(),
        };
        base.as_ptr().wrapping_add(offset)
    }

    /// The word of the alive lock: a robust futex that the driver thread holds for the life of the context.
    #[must_use]
    pub fn alive(&self) -> &AtomicU32 {
        // SAFETY: inside the page (`new` and `map` saw to its size), aligned, touched through atomics only.
        unsafe { AtomicU32::from_ptr(self.at(ALIVE).cast()) }
    }

    /// The heartbeat: the driver counts it up.
    #[must_use]
    pub fn beat(&self) -> &AtomicU64 {
        // SAFETY: as for `alive`.
        unsafe { AtomicU64::from_ptr(self.at(BEAT).cast()) }
    }
}

impl Bell for Page {
    fn asleep(&self) -> &AtomicU32 {
        // SAFETY: as for `alive`.
        unsafe { AtomicU32::from_ptr(self.at(ASLEEP).cast()) }
    }

    fn ring(&self) {
        // A full counter has rung already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}
