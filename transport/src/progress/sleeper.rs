//! What a process sleeps on: the transports' descriptors and its bell, and the gate through which the driver sees them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};
use tokio::sync::Notify;
use transom_registry::{Error, Result};

/// Two epolls, one in the other. The inner one holds every descriptor that may bring work. The outer one holds only the
/// inner one, one-shot, and is what the driver sleeps on: closing the gate takes the inner one off it with one call, so
/// that the driver sleeps on while a waiting thread drives.
///
/// Opening and closing cost a third of a microsecond each, which is much beside a message on a socket. So a thread that
/// waited by spinning leaves the gate closed for whoever waits next, and the driver opens it when nobody came for a
/// [`LINGER`]: what arrives in between is applied that much later, once.
#[derive(Debug)]
pub(crate) struct Sleeper {
    inner: OwnedFd,
    outer: OwnedFd,
    gate: Mutex<Gate>,
    /// Tells the driver that the gate stays closed with nobody driving.
    closed: Notify,
}

#[derive(Debug)]
struct Gate {
    open: bool,
    /// How many threads drive by themselves.
    driving: usize,
    /// How many have ever begun.
    begun: u64,
    /// The driver looks whether it is to be opened.
    watched: bool,
}

/// How long the gate may stay closed with nobody driving: once or twice this.
const LINGER: Duration = Duration::from_millis(1);
/// Longest pause between two looks at a gate that is closed for long.
const LONGEST: Duration = Duration::from_millis(16);

const DATA: epoll::EventData = epoll::EventData::new_u64(0);
const BELL: epoll::EventData = epoll::EventData::new_u64(1);

impl Sleeper {
    /// `bell` becomes readable when this process is rung for.
    pub(crate) fn new(bell: BorrowedFd<'_>) -> Result<Self> {
        let make = || epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::io("make an epoll", e));
        let (inner, outer) = (make()?, make()?);
        epoll::add(&outer, &inner, DATA, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT)
            .map_err(|e| Error::io("nest an epoll", e))?;
        epoll::add(&inner, bell, BELL, epoll::EventFlags::IN).map_err(|e| Error::io("watch the bell", e))?;
        let gate = Mutex::new(Gate { open: true, driving: 0, begun: 0, watched: false });
        Ok(Self { inner, outer, gate, closed: Notify::new() })
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

    fn set(&self, gate: &mut Gate, open: bool) {
        let flags = if open {
            epoll::EventFlags::IN | epoll::EventFlags::ONESHOT
        } else {
            epoll::EventFlags::empty()
        };
        gate.open = open;
        // Both descriptors are ours and open: it cannot fail.
        let _ = epoll::modify(&self.outer, &self.inner, DATA, flags);
    }

    /// A thread drives from now on. `closing` is called when nobody did, while the gate is held.
    pub(crate) fn begin_driving(&self, closing: impl FnOnce()) {
        let mut gate = self.gate.lock();
        gate.driving += 1;
        gate.begun += 1;
        if gate.open {
            self.set(&mut gate, false);
            closing();
        }
    }

    /// A thread has stopped driving. `soon`: the driver is to see what comes from now on; else it may be late once.
    /// `opening` is called before the gate is opened, while it is held.
    pub(crate) fn end_driving(&self, soon: bool, opening: impl FnOnce()) {
        let mut gate = self.gate.lock();
        gate.driving -= 1;
        if gate.driving > 0 || gate.open {
            return;
        }
        if soon {
            opening();
            self.set(&mut gate, true);
        } else if !gate.watched {
            gate.watched = true;
            self.closed.notify_one();
        }
    }

    /// As [`begin_driving`](Self::begin_driving), where there is no driver: the gate stays as it is.
    pub(crate) fn begin_driving_alone(&self, closing: impl FnOnce()) {
        let mut gate = self.gate.lock();
        gate.driving += 1;
        // Who sleeps on the descriptors has armed them, and needs them so.
        if gate.driving == 1 {
            closing();
        }
    }

    /// The end of [`begin_driving_alone`](Self::begin_driving_alone).
    pub(crate) fn end_driving_alone(&self) {
        self.gate.lock().driving -= 1;
    }

    /// The driver has looked: it wants to be woken again, unless others drive.
    pub(crate) fn driver_looked(&self) {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: DATA }];
        let _ = epoll::wait(&self.outer, &mut events, Some(&Timespec::default()));
        let mut gate = self.gate.lock();
        if gate.open {
            self.set(&mut gate, true);
        }
    }

    /// Opens the gate whenever nobody drives any more: a task of the driver's.
    pub(crate) async fn keep_open(&self, opening: impl Fn()) {
        loop {
            self.closed.notified().await;
            let (mut pause, mut seen) = (LINGER, None);
            loop {
                tokio::time::sleep(pause).await;
                let mut gate = self.gate.lock();
                if gate.open {
                    gate.watched = false;
                    break;
                }
                if gate.driving > 0 {
                    // Whoever sleeps there opens the gate when it leaves: looking often would be for nothing.
                    pause = (pause * 2).min(LONGEST);
                    seen = None;
                } else if seen == Some(gate.begun) {
                    opening();
                    self.set(&mut gate, true);
                    gate.watched = false;
                    break;
                } else {
                    pause = LINGER;
                    seen = Some(gate.begun);
                }
            }
        }
    }

    /// Sleeps until there may be work, at most this long. Returns whether the bell was rung.
    pub(crate) fn sleep(&self, at_most: Duration) -> bool {
        let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: DATA }; 4];
        let timeout =
            Timespec { tv_sec: at_most.as_secs().min(3600) as i64, tv_nsec: at_most.subsec_nanos().into() };
        // An interrupted or refused sleep is a short one.
        let found = epoll::wait(&self.inner, &mut events, Some(&timeout)).unwrap_or(0);
        events[..found].iter().any(|event| event.data.u64() == BELL.u64())
    }
}
