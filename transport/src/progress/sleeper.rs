//! What a process sleeps on: the transports' descriptors and its bell, and the gate through which the driver sees them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};
use transom_registry::{Error, Result};

/// Two epolls, one in the other. The inner one holds every descriptor that may bring work. The outer one holds only the
/// inner one, one-shot, and is what the driver sleeps on: closing the gate takes the inner one off it with one call, so
/// that the driver sleeps on while a waiting thread drives.
#[derive(Debug)]
pub(crate) struct Sleeper {
    inner: OwnedFd,
    outer: OwnedFd,
    /// How many threads drive by themselves; the gate is open when there is none.
    driving: Mutex<usize>,
}

const DATA: epoll::EventData = epoll::EventData::new_u64(0);

impl Sleeper {
    pub(crate) fn new() -> Result<Self> {
        let make = || epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::io("make an epoll", e));
        let (inner, outer) = (make()?, make()?);
        epoll::add(&outer, &inner, DATA, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT)
            .map_err(|e| Error::io("nest an epoll", e))?;
        Ok(Self { inner, outer, driving: Mutex::new(0) })
    }

    /// Adds a descriptor that becomes readable when there is work.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        epoll::add(&self.inner, fd, DATA, epoll::EventFlags::IN)
            .map_err(|e| Error::io("watch a descriptor", e))
    }

    /// What the driver sleeps on.
    pub(crate) fn driver_fd(&self) -> BorrowedFd<'_> {
        self.outer.as_fd()
    }

    fn gate(&self, open: bool) {
        let flags = if open {
            epoll::EventFlags::IN | epoll::EventFlags::ONESHOT
        } else {
            epoll::EventFlags::empty()
        };
        // Both descriptors are ours and open: it cannot fail.
        let _ = epoll::modify(&self.outer, &self.inner, DATA, flags);
    }

    /// A thread drives from now on.
    pub(crate) fn begin_driving(&self) {
        let mut driving = self.driving.lock();
        *driving += 1;
        if *driving == 1 {
            self.gate(false);
        }
    }

    /// A thread has stopped driving. Returns whether others go on.
    pub(crate) fn end_driving(&self) -> bool {
        let mut driving = self.driving.lock();
        *driving -= 1;
        if *driving == 0 {
            self.gate(true);
        }
        *driving != 0
    }

    /// The driver has looked: it wants to be woken again, unless others drive.
    pub(crate) fn driver_looked(&self) {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: DATA }];
        let _ = epoll::wait(&self.outer, &mut events, Some(&Timespec::default()));
        let driving = self.driving.lock();
        if *driving == 0 {
            self.gate(true);
        }
    }

    /// Sleeps until there may be work, at most this long.
    pub(crate) fn sleep(&self, at_most: Duration) {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: DATA }; 4];
        let timeout =
            Timespec { tv_sec: at_most.as_secs().min(3600) as i64, tv_nsec: at_most.subsec_nanos().into() };
        // An interrupted or refused sleep is a short one.
        let _ = epoll::wait(&self.inner, &mut events, Some(&timeout));
    }
}
