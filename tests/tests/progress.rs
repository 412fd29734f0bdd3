//! Whoever has the seat, nothing that is rung for is slept through.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use transom_transport::backend::{Caps, Endpoint, Host, Pending, Transport};
use transom_transport::token::Completion;
use transom_transport::{Context, Error, Incarnation};

const SOON: Duration = Duration::from_secs(10);

/// Work that is a number, and one poll that can be held up after it has looked.
#[derive(Debug, Default)]
struct Numbers {
    left: AtomicUsize,
    hold: AtomicBool,
    is_held: AtomicBool,
}

impl Transport for Numbers {
    fn name(&self) -> &str {
        "numbers"
    }

    fn caps(&self) -> Caps {
        Caps { mapped: false, remote: false, polled: true }
    }

    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }

    fn connect(&self, _: &str, _: Option<Incarnation>, _: Instant) -> Pending<Arc<dyn Endpoint>> {
        let error = Error::Unusable { transport: "numbers".into(), why: "it connects nobody".into() };
        Box::pin(std::future::ready(Err(error)))
    }

    fn poll(&self, _: &mut Vec<Completion>) -> usize {
        let found = self.left.swap(0, Ordering::SeqCst);
        if self.hold.swap(false, Ordering::SeqCst) {
            self.is_held.store(true, Ordering::SeqCst);
            while self.is_held.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        }
        found
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < SOON, "{what}: not within {SOON:?}");
        std::thread::yield_now();
    }
}

#[test]
fn work_that_comes_while_another_thread_polls_is_not_slept_through() {
    let numbers = Arc::new(Numbers::default());
    let host: Arc<Mutex<Option<Host>>> = Arc::default();
    let (inner, given) = (numbers.clone(), host.clone());
    let context = Context::builder()
        .transports("local")
        .transport(Box::new(move |host| {
            *given.lock() = Some(host.clone());
            Ok(inner)
        }))
        .build()
        .unwrap();
    let host = host.lock().take().unwrap();
    for _ in 0..20 {
        numbers.hold.store(true, Ordering::SeqCst);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while numbers.hold.load(Ordering::SeqCst) {
                    context.poll();
                }
            });
            // That thread, or the driver, has looked and found nothing.
            until("a poll is held up", || numbers.is_held.load(Ordering::SeqCst));
            numbers.left.store(1, Ordering::SeqCst);
            (host.kick)();
            // The driver silences the bell when it looks; one that has passed it on may be seen ringing.
            let since = Instant::now();
            let rings = || {
                let mut fds = [PollFd::from_borrowed_fd(host.page.bell_fd(), PollFlags::IN)];
                poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
            };
            while rings() && since.elapsed() < Duration::from_millis(100) {
                std::thread::yield_now();
            }
            numbers.is_held.store(false, Ordering::SeqCst);
        });
        // Nobody else polls now.
        until("the work is done", || numbers.left.load(Ordering::SeqCst) == 0);
    }
}
