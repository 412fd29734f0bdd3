//! A ping-pong of payload and flag over shared memory, one line each.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use rustix::thread::futex;
use transom_registry::{Error, Result};

use super::memory::{Board, Span};
use super::{LIMIT, Spin, Wait, silent, wrong_payload};

/// One side of the ping-pong.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    mine: &'a AtomicU64,
    theirs: &'a AtomicU64,
    my_bed: &'a AtomicU32,
    their_bed: &'a AtomicU32,
    out: Span<'a>,
    into: Span<'a>,
    payload: Vec<u8>,
    wait: Wait,
    yields: bool,
}

impl<'a> Line<'a> {
    /// The side of `rank`: payloads of `size` bytes go to `out` and come to `into`.
    pub(crate) fn new(
        board: Board<'a>,
        rank: usize,
        out: Span<'a>,
        into: Span<'a>,
        wait: Wait,
        yields: bool,
    ) -> Result<Self> {
        Ok(Self {
            mine: board.flag(rank)?,
            theirs: board.flag(1 - rank)?,
            my_bed: board.bed(rank)?,
            their_bed: board.bed(1 - rank)?,
            out,
            into,
            payload: vec![0; out.size()],
            wait,
            yields,
        })
    }

    /// Sends and waits for the answer, `rounds` times.
    pub(crate) fn drive(&mut self, rounds: u64) -> Result<()> {
        let from = self.mine.load(Ordering::Relaxed);
        for i in from + 1..=from + rounds {
            self.send(i);
            self.receive(i)?;
        }
        Ok(())
    }

    /// Waits and answers, `rounds` times.
    pub(crate) fn answer(&mut self, rounds: u64) -> Result<()> {
        let from = self.mine.load(Ordering::Relaxed);
        for i in from + 1..=from + rounds {
            self.receive(i)?;
            self.send(i);
        }
        Ok(())
    }

    #[inline]
    fn send(&mut self, i: u64) {
        let size = self.out.size();
        if size == 8 {
            // SAFETY: the view has 8 bytes.
            unsafe { self.out.start().cast::<u64>().write_unaligned(i) };
        } else {
            if size > 8 {
                self.payload[..8].copy_from_slice(&i.to_ne_bytes());
            }
            // SAFETY: both have `size` bytes, and the payload is a buffer of this process.
            unsafe { std::ptr::copy_nonoverlapping(self.payload.as_ptr(), self.out.start(), size) };
        }
        self.mine.store(i, Ordering::Release);
        if self.wait == Wait::Sleep {
            self.their_bed.fetch_add(1, Ordering::SeqCst);
            let _ = futex::wake(self.their_bed, futex::Flags::empty(), 1);
        }
    }

    #[inline]
    fn receive(&mut self, i: u64) -> Result<()> {
        match self.wait {
            Wait::Spin => {
                let mut spin = Spin::new(self.yields);
                while self.theirs.load(Ordering::Acquire) < i {
                    spin.pause()?;
                }
            }
            Wait::Sleep => self.sleep_until(i)?,
        }
        if self.into.size() >= 8 {
            // SAFETY: the view has at least 8 bytes.
            let seen = unsafe { self.into.start().cast::<u64>().read_unaligned() };
            if seen != i {
                return Err(wrong_payload(seen, i));
            }
        }
        Ok(())
    }

    fn sleep_until(&self, i: u64) -> Result<()> {
        let began = Instant::now();
        // A killed partner never wakes anybody: no sleep is endless.
        let at_most = futex::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        loop {
            let seen = self.my_bed.load(Ordering::SeqCst);
            if self.theirs.load(Ordering::Acquire) >= i {
                return Ok(());
            }
            match futex::wait(self.my_bed, futex::Flags::empty(), seen, Some(&at_most)) {
                Ok(())
                | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::TIMEDOUT) => {}
                Err(e) => return Err(Error::io("sleep on a futex", e)),
            }
            if began.elapsed() > LIMIT {
                return Err(silent("line ping-pong", began.elapsed()));
            }
        }
    }
}
