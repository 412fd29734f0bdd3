//! Whoever has the seat, nothing that is rung for is slept through.

#![expect(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use transom_tests::process::{self, Ranks};
use transom_tests::ranks;
use transom_transport::backend::{Caps, Endpoint, Host, Pending, Transport};
use transom_transport::token::Completion;
use transom_transport::{
    Access, Cause, Context, Error, Foreign, Incarnation, List, MemoryRegion, PeerRegion, ProgressMode, Wait,
};

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

/// A context over this transport, in this mode.
fn context_of(transport: &str, mode: ProgressMode) -> Context {
    let builder = Context::builder().transports(transport).secret(ranks::secret()).progress(mode);
    builder.timeout(SOON).build().unwrap()
}

/// A region of the first, opened by the second over this transport. The first is polled meanwhile.
fn opened(owner: &Context, other: &Context, transport: &str) -> (MemoryRegion, PeerRegion) {
    let region = owner.allocate(SIZE, 1).unwrap();
    let mut remote = region.remote(Access::ALL).unwrap();
    remote.addresses.retain(|address| address.starts_with(transport));
    let done = AtomicBool::new(false);
    let opened = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                owner.poll();
                std::thread::yield_now();
            }
        });
        let opened = other.connect(&remote).and_then(|peer| peer.open(&remote));
        done.store(true, Ordering::SeqCst);
        opened
    });
    (region, opened.unwrap())
}

const SIZE: usize = 4096;
const DRIVERLESS: [ProgressMode; 2] = [ProgressMode::Inline, ProgressMode::Manual];
/// Longer than silence and a beat that stands still are taken for a frozen process.
const LONG_SILENCE: Duration = Duration::from_millis(3500);

#[test]
fn without_a_driver_nothing_is_applied_between_calls_and_nobody_is_taken_for_frozen() {
    std::thread::scope(|scope| {
        for mode in DRIVERLESS {
            scope.spawn(move || {
                let (owner, other) = (context_of("tcp", mode), context_of("tcp", ProgressMode::Thread));
                let (region, opened) = opened(&owner, &other, "tcp");
                let source = other.register(Foreign::from_vec(vec![7; SIZE]).unwrap(), 0).unwrap();
                let request = opened.put_from(0, source.all()).unwrap();
                let waited = request.wait_timeout(LONG_SILENCE);
                assert!(matches!(waited, Err(Error::Expired { .. })), "{mode:?}: {waited:?}");
                assert_eq!(region.load(0).unwrap(), 0, "{mode:?}: nothing is applied");
                assert!(other.failures().is_empty(), "{mode:?}: {:?}", other.failures());
                until("the put is applied", || {
                    owner.poll();
                    request.is_done()
                });
                request.wait().unwrap();
                assert_eq!(region.load(0).unwrap(), u64::from_ne_bytes([7; 8]));
            });
        }
    });
}

#[test]
fn inline_a_call_that_begins_something_drives_and_manual_it_does_not() {
    for mode in DRIVERLESS {
        let (owner, other) = (context_of("tcp", mode), context_of("tcp", ProgressMode::Thread));
        let (region, theirs) = opened(&owner, &other, "tcp");
        let (_back, ours) = opened(&other, &owner, "tcp");
        theirs.put(0, &[1]).unwrap();
        let since = Instant::now();
        let patience = if mode == ProgressMode::Inline { SOON } else { Duration::from_millis(300) };
        let mut seen = [0];
        while seen == [0] && since.elapsed() < patience {
            // Its queue has room: the call does not wait.
            ours.put(0, &[2]).unwrap();
            region.read(0, &mut seen).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(seen == [1], mode == ProgressMode::Inline, "{mode:?}");
    }
}

#[test]
fn waits_of_every_kind_drive_where_no_thread_does() {
    for mode in DRIVERLESS {
        for wait in [Wait::Adaptive, Wait::Spin, Wait::Sleep] {
            let (owner, other) = (context_of("tcp", mode), context_of("tcp", ProgressMode::Thread));
            let (region, theirs) = opened(&owner, &other, "tcp");
            owner.set_wait(wait);
            theirs.put_signal(8, &[9; 8], 0, 1).unwrap();
            owner.signals(&region).signal(0).unwrap().wait_at_least(1, SOON).unwrap();
            assert_eq!(region.load(8).unwrap(), u64::from_ne_bytes([9; 8]));
            let (back, ours) = opened(&other, &owner, "tcp");
            ours.put(0, &[3; 8]).unwrap();
            ours.flush().unwrap();
            assert_eq!(back.load(0).unwrap(), u64::from_ne_bytes([3; 8]));
            let into = owner.allocate(8, 0).unwrap();
            ours.get_into(0, into.all()).unwrap().wait().unwrap();
            assert_eq!(into.load(0).unwrap(), back.load(0).unwrap());
            assert_eq!(ours.fetch_add(0, 1).unwrap(), into.load(0).unwrap());
        }
    }
}

#[test]
fn a_future_of_a_signal_in_mapped_memory_is_woken_where_no_thread_drives() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for mode in DRIVERLESS {
        let (owner, other) = (context_of("shm", mode), context_of("shm", ProgressMode::Thread));
        let (region, theirs) = opened(&owner, &other, "shm");
        let signal = owner.signals(&region).signal(0).unwrap();
        let waits = async {
            let wait = signal.wait_at_least_async(1, SOON);
            let put = async { theirs.put_signal(0, &[1], 0, 1) };
            let (waited, put) = tokio::join!(wait, put);
            put.unwrap();
            waited
        };
        let waited = runtime.block_on(async { tokio::time::timeout(SOON, waits).await });
        waited.expect("it is woken").unwrap();
    }
}

/// A rank without a driver is killed while it drives nothing, and is seen by one without a driver too.
fn a_death_is_seen(test: &str, transport: &str) {
    if let Some(mut me) = process::rank() {
        let mode =
            if me.rank() == 0 && me.hear() == "thread" { ProgressMode::Thread } else { ProgressMode::Manual };
        let context = context_of(transport, mode);
        if me.rank() == 1 {
            let region = context.allocate(SIZE, 1).unwrap();
            me.say(&region.remote(Access::ALL).unwrap().to_string());
            while me.heard().is_none() {
                context.poll();
            }
            // It computes, and calls nothing.
            loop {
                std::thread::park();
            }
        }
        let remote = me.hear().parse().unwrap();
        let opened = context.connect(&remote).unwrap().open(&remote).unwrap();
        opened.put(0, &[1; 8]).unwrap();
        opened.flush().unwrap();
        me.say("opened");
        assert_eq!(me.hear(), "killed");
        // A call that waits drives, where that is needed.
        let since = Instant::now();
        let error = loop {
            match opened.put(0, &[1; 8]).and_then(|()| opened.flush()) {
                Ok(()) => assert!(since.elapsed() < SOON, "no death is seen"),
                Err(error) => break error,
            }
        };
        let failure = error.root().unwrap();
        assert!(matches!(failure.cause, Cause::Exited(_) | Cause::ConnectionLost), "{error}");
        me.say("seen");
        return;
    }
    for mode in ["thread", "manual"] {
        let mut ranks = Ranks::start(test, 2);
        ranks[0].say(mode);
        let text = ranks[1].hear();
        ranks[0].say(&text);
        assert_eq!(ranks[0].hear(), "opened");
        ranks[1].say("compute");
        ranks[1].kill();
        ranks[0].say("killed");
        assert_eq!(ranks[0].hear(), "seen");
    }
}

#[test]
fn a_death_without_a_driver_is_seen_on_this_host() {
    a_death_is_seen("a_death_without_a_driver_is_seen_on_this_host", "shm");
}

#[test]
fn a_death_without_a_driver_is_seen_over_tcp() {
    a_death_is_seen("a_death_without_a_driver_is_seen_over_tcp", "tcp");
}

#[test]
fn a_call_of_many_pieces_has_one_deadline_while_bytes_move() {
    let (owner, other) = (context_of("tcp", ProgressMode::Manual), context_of("tcp", ProgressMode::Thread));
    let region = owner.allocate(64 << 20, 0).unwrap();
    let mut remote = region.remote(Access::ALL).unwrap();
    remote.addresses.retain(|address| address.starts_with("tcp"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Slow, and never as slow as a deadline.
            while !done.load(Ordering::SeqCst) {
                owner.poll();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let opened = other.connect(&remote).unwrap().open(&remote).unwrap();
        let opened = opened.with_timeout(Duration::from_millis(150));
        let mut bytes = vec![1; 64 << 20];
        let list = List::new((0..16).map(|i| (i << 22, 1 << 22))).unwrap();
        let calls = [
            opened.put(0, &bytes),
            opened.put_list(&list, &bytes),
            opened.get(0, &mut bytes),
            opened.get_list(&list, &mut bytes),
        ];
        done.store(true, Ordering::SeqCst);
        for (index, call) in calls.into_iter().enumerate() {
            assert!(matches!(call, Err(Error::Expired { outcome: Some(_), .. })), "call {index}: {call:?}");
        }
    });
}

#[test]
fn a_dead_first_address_costs_a_moment_and_no_share_of_the_deadline() {
    let (owner, other) = (context_of("tcp", ProgressMode::Thread), context_of("tcp", ProgressMode::Thread));
    let region = owner.allocate(SIZE, 0).unwrap();
    let mut remote = region.remote(Access::ALL).unwrap();
    remote.addresses.retain(|address| address.starts_with("tcp"));
    // They take connections, by the kernel's hand, and never say a word.
    let silent: Vec<_> = (0..2).map(|_| std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap()).collect();
    for listener in &silent {
        remote.addresses.insert(0, format!("tcp:{}", listener.local_addr().unwrap()));
    }
    let since = Instant::now();
    let opened = other.connect(&remote).unwrap().open(&remote).unwrap();
    // A third of the deadline for each address was more than three seconds.
    assert!(since.elapsed() < SOON / 4, "{:?}", since.elapsed());
    opened.put(0, &[1]).unwrap();
    opened.flush().unwrap();
}
