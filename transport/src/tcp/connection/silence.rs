//! What time tells: something is said now and then, and a peer that says nothing is given up.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;
use std::time::Duration;

use transom_registry::Cause;

use super::Connection;
use crate::tcp::frame::{Header, Opcode};
use crate::tcp::receive::End;
use crate::tcp::send::Lane;

/// How often something is sent at least.
const PING: Duration = Duration::from_millis(250);
/// How long a peer may say nothing.
const SILENCE: Duration = Duration::from_secs(2);
/// How recently the kernel of a frozen process has acknowledged something,
const RECENT: Duration = Duration::from_millis(1000);
/// or how long, in milliseconds, it went on to do so after the process fell silent: of a stopped process with a full
/// window it is asked after 0.2, 0.6 and 1.4 s only, and it does not answer twice within half a second.
const OUTLIVED: u64 = 600;
/// How often in a row something is sent again, unanswered, to a host that hears nothing.
const AGAIN: u8 = 3;

impl Connection {
    fn now(&self) -> u64 {
        self.around.began.elapsed().as_millis() as u64
    }

    pub(super) fn hear(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
    }

    /// Nothing came for too long: whether the process or its host is silent, its kernel's acknowledgements tell.
    pub(super) fn fail_silent(&self) {
        let silent = self.now().saturating_sub(self.heard.load(Ordering::Relaxed));
        let observed = format!("nothing came for {silent} ms");
        let Some(heard) = self.socket.heard() else { return self.fail(Cause::HostUnreachable, observed) };
        let kernel = heard.ack.as_millis() as u64;
        let observed = format!("{observed}, its kernel acknowledged {kernel} ms ago");
        let answers = heard.ack < RECENT || silent.saturating_sub(kernel) >= OUTLIVED;
        // What it answers to must be what we sent: it may send its own again and again because it hears nothing.
        let frozen = answers && heard.again < AGAIN;
        self.fail(if frozen { Cause::Frozen } else { Cause::HostUnreachable }, observed);
    }

    /// Does what is due by time.
    pub(crate) fn tick(&self, late: bool) {
        if self.failure.get().is_some() {
            return;
        }
        let now = self.now();
        let since = |then: u64| Duration::from_millis(now.saturating_sub(then));
        if self.fresh.swap(false, Ordering::Relaxed) || late {
            self.hear();
        }
        let mut out = self.out.lock();
        if out.queue.take_wrote() {
            out.last_write = now;
            out.last_use = now;
        }
        if let Some(errno) = out.queue.broken() {
            // Reading tells more about the end, and comes first; an error of writing alone counts after a while.
            out.broken += 1;
            if out.broken > 5 {
                drop(out);
                self.ended(End::Io(errno));
                return;
            }
        }
        // Where no thread drives, what was begun still says that we live.
        if !out.queue.is_empty() {
            out.queue.flush();
        }
        if out.queue.is_empty() {
            if out.queue.owed() > 0 {
                out.queue.acknowledge();
            } else if since(out.last_write) >= PING {
                out.last_write = now;
                out.queue.frame(Lane::Replies, Header::new(Opcode::Ping), [&[], &[]]);
            }
            if since(out.last_use) >= SILENCE {
                out.queue.shrink();
            }
            self.watch(&mut out);
        }
        drop(out);
        if since(self.heard.load(Ordering::Relaxed)) >= SILENCE {
            // What waits here to be received is our own delay.
            if self.socket.has_input() { self.hear() } else { self.fail_silent() }
        }
    }
}
