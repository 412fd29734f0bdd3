//! What surrounds a process: its variables, its limits, its namespaces, its forks, and those that came before it.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails where it cannot go on, and says what it skips"
)]

use std::ffi::CString;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use transom::{Access, Context, Error, Foreign, Host, Reduce, Store, Team, Window};
use transom_tests::process::{self, Ranks};
use transom_tests::ranks::{Processes, TIMEOUT, builder_of, secret, store_of_test};
use transom_tests::usage;

#[test]
fn a_variable_that_makes_no_sense_ends_in_an_error_that_names_it() {
    if let Some(me) = process::rank() {
        return me.say(&match Team::from_env() {
            Ok(team) => format!("a team of {}", team.size()),
            Err(error) => error.to_string().replace('\n', " "),
        });
    }
    let test = "a_variable_that_makes_no_sense_ends_in_an_error_that_names_it";
    let garbage =
        ["", "-1", "1e9", "99999999999999999999999", "\u{661}\u{fc}\u{1f980}", "\u{7f}\t%s%n", "999"];
    let names = [
        "TRANSOM_RANK",
        "TRANSOM_SIZE",
        "TRANSOM_STORE",
        "TRANSOM_TRANSPORTS",
        "TRANSOM_PROGRESS",
        "TRANSOM_SECRET_FD",
        "TRANSOM_SECRET_FILE",
    ];
    for name in names {
        for value in garbage {
            if (name, value) == ("TRANSOM_SIZE", "999") {
                continue; // As good as any.
            }
            let mut variables = vec![("TRANSOM_RANK", "0"), ("TRANSOM_SIZE", "1")];
            variables.retain(|(other, _)| *other != name);
            variables.push((name, value));
            let mut ranks = Ranks::start_with(test, 1, &variables);
            let said = ranks[0].hear();
            assert!(said.contains(name), "{name}={value:?}: {said}");
            ranks[0].ends_well();
        }
    }
    // What looks right and leads nowhere.
    for (name, value) in [
        ("TRANSOM_STORE", "nowhere://127.0.0.1:1"),
        ("TRANSOM_STORE", "tcp://127.0.0.1"),
        ("TRANSOM_STORE", "tcp://127.0.0.1:99999"),
        ("TRANSOM_TRANSPORTS", "shm,,tcp"),
        ("TRANSOM_TRANSPORTS", "telepathy"),
        ("TRANSOM_PROGRESS", "Thread"),
        ("TRANSOM_SECRET_FILE", "/"),
        ("TRANSOM_SECRET_FILE", "/dev/zero"),
        ("TRANSOM_SECRET_FD", "0"),
    ] {
        let variables = [("TRANSOM_RANK", "0"), ("TRANSOM_SIZE", "1"), (name, value)];
        let mut ranks = Ranks::start_with(test, 1, &variables);
        let said = ranks[0].hear();
        assert!(said.contains(name), "{name}={value:?}: {said}");
        ranks[0].ends_well();
    }
}

#[test]
fn too_few_descriptors_are_told_by_the_limit_and_what_was_there_works() {
    const TEST: &str = "too_few_descriptors_are_told_by_the_limit_and_what_was_there_works";
    if let Some(me) = process::rank() {
        let team = builder_of(&me).build().unwrap();
        let other = 1 - me.rank();
        let mut windows = vec![Window::allocate(&team, 4096).unwrap()];
        let before = getrlimit(Resource::Nofile);
        if me.rank() == 1 {
            let some = usage::descriptors() as u64 + 40;
            setrlimit(Resource::Nofile, Rlimit { current: Some(some), maximum: before.maximum }).unwrap();
        }
        let error = loop {
            match Window::allocate(&team, 4096) {
                Ok(window) => windows.push(window),
                Err(error) => break error,
            }
            assert!(windows.len() < 100, "40 descriptors are not enough for 100 windows");
        };
        let text = error.to_string();
        assert!(text.contains("RLIMIT_NOFILE") || text.contains("open files"), "{text}");
        assert!(me.rank() == 1 || text.contains("rank 1"), "{text}");
        for window in &windows {
            window.put_signal(other, 0, &[1; 100], 0, 1).unwrap();
            window.signal(0).unwrap().wait_at_least(1, TIMEOUT).unwrap();
            window.flush_all().unwrap();
        }
        team.barrier().unwrap();
        // With a higher limit it goes on.
        setrlimit(Resource::Nofile, before).unwrap();
        windows.push(Window::allocate(&team, 4096).unwrap());
        for window in windows {
            window.close().unwrap();
        }
        return;
    }
    for transport in ["shm", "tcp:127.0.0.1:0"] {
        let mut job = Processes::start(TEST, transport, 2);
        job.ranks[0].ends_well();
        job.ranks[1].ends_well();
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_small_dev_shm_is_no_limit() {
    const TEST: &str = "a_small_dev_shm_is_no_limit";
    if let Some(me) = process::rank() {
        small_dev_shm();
        let team = builder_of(&me).build().unwrap();
        let region =
            team.context().register(Host::builder(1 << 30).sparse(true).build().unwrap(), 1).unwrap();
        let window = Window::create(&team, &region).unwrap();
        let other = 1 - me.rank();
        window.put_signal(other, (1 << 30) - 100, &[4; 100], 0, 1).unwrap();
        window.put(other, 512 << 20, &vec![5; 65 << 20]).unwrap();
        window.flush(other).unwrap();
        window.signal(0).unwrap().wait_at_least(1, TIMEOUT).unwrap();
        team.barrier().unwrap();
        let mut there = [0; 100];
        region.read((1 << 30) - 100, &mut there).unwrap();
        assert_eq!(there, [4; 100]);
        region.read((512 << 20) + (65 << 20) - 100, &mut there).unwrap();
        assert_eq!(there, [5; 100]);
        window.close().unwrap();
        return;
    }
    if !is_root() {
        println!("skipped: only root may mount a small /dev/shm");
        return;
    }
    Processes::start(TEST, "shm", 2).ranks.end_well();
}

/// Gives this thread, and those that it starts, a /dev/shm of 64 MiB that nobody else sees.
fn small_dev_shm() {
    let text = |text: &str| CString::new(text).unwrap();
    let (root, shm, tmpfs, options) = (text("/"), text("/dev/shm"), text("tmpfs"), text("size=64m"));
    // SAFETY: the pointers are to strings that live until the end of the calls; only this thread changes its mounts.
    let done = unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(
                std::ptr::null(),
                root.as_ptr(),
                std::ptr::null(),
                libc::MS_REC | libc::MS_PRIVATE,
                std::ptr::null(),
            ) == 0
            && libc::mount(tmpfs.as_ptr(), shm.as_ptr(), tmpfs.as_ptr(), 0, options.as_ptr().cast()) == 0
    };
    assert!(done, "cannot mount: {}", std::io::Error::last_os_error());
    let stat = rustix::fs::statvfs("/dev/shm").unwrap();
    assert_eq!(stat.f_blocks * stat.f_frsize, 64 << 20);
}

#[test]
fn ranks_in_other_pid_and_ipc_namespaces_reach_each_other() {
    const TEST: &str = "ranks_in_other_pid_and_ipc_namespaces_reach_each_other";
    if process::is_rank() && std::env::var_os("TRANSOM_TEST_INSIDE").is_none() {
        // The same process, one level down.
        let error = Command::new("unshare")
            .args(["--pid", "--ipc", "--fork", "--kill-child"])
            .arg(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture"])
            .env("TRANSOM_TEST_INSIDE", "1")
            .exec();
        panic!("cannot start unshare: {error}");
    }
    if let Some(mut me) = process::rank() {
        assert!(std::process::id() < 5, "it is the first of its namespace");
        let team = builder_of(&me).build().unwrap();
        let window = Window::allocate(&team, 1 << 20).unwrap();
        let other = 1 - me.rank();
        window.put_signal(other, 0, &[me.rank() as u8 + 1; 8], 0, 1).unwrap();
        window.signal(0).unwrap().wait_at_least(1, TIMEOUT).unwrap();
        window.accumulate(other, 64, &[1_u32; 1000], Reduce::Sum).unwrap();
        window.flush(other).unwrap();
        // Memory of another making, which is reached by the kernel's copies, or else by tcp.
        let foreign = team.context().register(Foreign::from_vec(vec![0; 4096]).unwrap(), 1).unwrap();
        let second = Window::create(&team, &foreign).unwrap();
        second.put_signal(other, 8, &[7; 8], 0, 1).unwrap();
        second.signal(0).unwrap().wait_at_least(1, TIMEOUT).unwrap();
        assert_eq!(foreign.load(8).unwrap(), u64::from_le_bytes([7; 8]));
        team.barrier().unwrap();
        me.say(window.explain().lines().nth(other as usize).unwrap());
        if me.rank() == 0 {
            let error = second.signal(0).unwrap().wait_at_least(2, TIMEOUT).unwrap_err();
            assert!(error.root().is_some(), "{error}");
            me.say("missed");
        } else {
            let _ = me.hear();
        }
        return;
    }
    if !is_root() {
        println!("skipped: only root may make namespaces everywhere");
        return;
    }
    let mut job = Processes::start(TEST, "shm,tcp:127.0.0.1:0", 2);
    for line in job.ranks.hear() {
        assert!(line.contains(": shm") || line.contains(": tcp"), "{line}");
    }
    // With its parent, it is killed too.
    job.ranks[1].kill();
    assert_eq!(job.ranks[0].hear(), "missed");
    job.ranks[0].ends_well();
}

#[test]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    const TEST: &str = "a_forked_child_is_refused_and_its_parent_goes_on";
    if let Some(me) = process::rank() {
        let team = builder_of(&me).build().unwrap();
        let window = Window::allocate(&team, 4096).unwrap();
        let other = 1 - me.rank();
        let source = team.context().register(Foreign::from_vec(vec![1; 64]).unwrap(), 1).unwrap();
        window.put_signal(other, 0, &[1], 0, 1).unwrap();
        window.signal(0).unwrap().wait_at_least(1, TIMEOUT).unwrap();
        team.barrier().unwrap();
        for _ in 0..3 {
            // What ends in the child, and again here.
            let ends = (
                Window::allocate(&team, 4096).unwrap(),
                team.split(Some(0), me.rank()).unwrap().unwrap(),
                window.part(other).unwrap().clone(),
                Context::builder().transports("shm,tcp:127.0.0.1:0").secret(secret()).build().unwrap(),
            );
            let (window, team, source) = (&window, &team, source.clone());
            let said = in_a_child(move || {
                drop(ends);
                let slot = window.at(other, 8);
                let results = [
                    ("put", window.put(other, 0, &[9])),
                    ("get", window.get(other, 0, &mut [9])),
                    ("put_signal", window.put_signal(other, 0, &[9], 0, 1)),
                    ("send_signal", window.send_signal(other, 0, 1)),
                    ("fence", window.fence(other)),
                    ("flush", window.flush(other)),
                    ("put_from", window.put_from(other, 0, source.all()).map(drop)),
                    ("get_into", window.get_into(other, 0, source.all()).map(drop)),
                    ("fetch_add", window.fetch_add(other, 0, 1).map(drop)),
                    ("swap", window.swap(other, 0, 1).map(drop)),
                    ("accumulate", window.accumulate(other, 0, &[1_u32], Reduce::Sum)),
                    ("at", slot.and_then(|slot| slot.put(1))),
                    ("wait", window.signal(0).and_then(|s| s.wait_at_least(9, TIMEOUT)).map(drop)),
                    ("wait any", window.signals().wait_any(&[(0, 9)], TIMEOUT).map(drop)),
                    ("barrier", team.barrier()),
                    ("split", team.split(None, 0).map(drop)),
                    ("allocate", Window::allocate(team, 64).map(drop)),
                    ("register", team.context().allocate(64, 0).map(drop)),
                    ("context", Context::builder().transports("local").secret(secret()).build().map(drop)),
                    ("store", team.store().set("key", b"").map(drop)),
                ];
                let mut wrong = String::new();
                for (name, result) in results {
                    match result {
                        Err(Error::Forked { .. }) => {}
                        other => wrong.push_str(&format!("{name}: {other:?}; ")),
                    }
                }
                wrong
            });
            assert_eq!(said, "dropped", "in the child");
            // Ends of life in the child have ended nothing here.
            team.barrier().unwrap();
            window.put(other, 64, &[4; 64]).unwrap();
            window.flush(other).unwrap();
        }
        // The source too was dropped in each child.
        let sources = Window::create(&team, &source).unwrap();
        sources.put(other, 0, &[1; 64]).unwrap();
        sources.close().unwrap();
        window.put_signal(other, 0, &[2], 0, 1).unwrap();
        window.signal(0).unwrap().wait_at_least(2, TIMEOUT).unwrap();
        let again = Window::allocate(&team, 64).unwrap();
        again.close().unwrap();
        window.close().unwrap();
        return;
    }
    for transport in ["shm", "tcp:127.0.0.1:0"] {
        Processes::start(TEST, transport, 2).ranks.end_well();
    }
}

/// Runs `body` in a fork of this process, then drops it; what is wrong comes back, or "dropped".
fn in_a_child(body: impl FnOnce() -> String) -> String {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written to `ends`.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: the descriptors were made just now, for us alone.
    let [read, write] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    // SAFETY: the child runs `body`, writes, and ends by `_exit`: it never returns into code that other threads share.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let wrong = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        let said = match wrong {
            Ok(wrong) if wrong.is_empty() => "dropped".to_owned(),
            Ok(wrong) => wrong,
            Err(_) => "it panicked".to_owned(),
        };
        // SAFETY: the bytes are valid, and `_exit` ends only the child.
        unsafe {
            libc::write(write.as_raw_fd(), said.as_ptr().cast(), said.len());
            libc::_exit(0);
        }
    }
    drop(write);
    // A child that hangs is killed by the test's own end; the test by its deadline.
    let mut said = String::new();
    std::fs::File::from(read).read_to_string(&mut said).unwrap();
    let mut status = 0;
    // SAFETY: the child is ours and was not waited for.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    said
}

#[test]
fn ranks_that_are_killed_again_and_again_leave_nothing() {
    const TEST: &str = "ranks_that_are_killed_again_and_again_leave_nothing";
    const TIMES: usize = 50;
    if let Some(mut me) = process::rank() {
        let transport = transom_tests::ranks::transport_of_test();
        let context =
            Context::builder().transports(&transport).secret(secret()).timeout(TIMEOUT).build().unwrap();
        let store: Store = store_of_test();
        if std::env::var_os("TRANSOM_TEST_KEEPS").is_none() {
            // One that is killed: it has memory of its own, and writes to the one that stays.
            let kept = Window::open_published(&context, &store, "kept", 0, TIMEOUT).unwrap();
            let region = context.allocate(1 << 20, 4).unwrap();
            store.set("latest", &region.remote(Access::ALL).unwrap().to_bytes()).unwrap();
            kept.put_signal(0, &[1; 4096], 0, 1).unwrap();
            me.say("ready");
            loop {
                kept.put(0, &[2; 4096]).unwrap();
            }
        }
        let team = Team::builder().rank(0).size(1).context(context.clone()).build().unwrap();
        let window = Window::allocate(&team, 1 << 16).unwrap();
        window.publish(&store, "kept", Access::ALL).unwrap();
        me.say(&context.addresses().join(" "));
        let mut flat = None;
        for time in 1.. {
            if me.hear() == "end" {
                return;
            }
            // Puts to it until it is known to be dead.
            let latest = transom::RemoteRegion::from_bytes(&store.get("latest", TIMEOUT).unwrap()).unwrap();
            let peer = context.connect(&latest).unwrap();
            let part = peer.open(&latest).unwrap();
            window.signal(0).unwrap().wait_at_least(time, TIMEOUT).unwrap();
            me.say("go");
            while part.put(0, &[3; 4096]).and_then(|()| part.flush()).is_ok() {}
            drop((part, peer));
            let clock = std::time::Instant::now();
            // What is let go of is let go of by the driver, soon.
            let is_flat = || flat.is_none_or(|flat| usage::descriptors() <= flat);
            while !is_flat() && clock.elapsed() < TIMEOUT {
                std::thread::yield_now();
            }
            assert!(is_flat(), "{} descriptors after {time}, {flat:?} before", usage::descriptors());
            if time == 5 {
                flat = Some(usage::descriptors());
            }
            me.say("next");
        }
    }
    for transport in ["shm", "tcp:127.0.0.1:0"] {
        let names = || std::fs::read_dir("/dev/shm").map_or(0, Iterator::count);
        let before = names();
        let mut keeper = Processes::start_with(TEST, transport, 1, &[("TRANSOM_TEST_KEEPS", "1")]);
        let addresses = keeper.ranks[0].hear();
        let socket = addresses.split(' ').find_map(|address| address.strip_prefix("shm:"));
        let mut left = Vec::new();
        for _ in 0..TIMES {
            let mut victim = keeper.start_more(TEST, transport, 1);
            assert_eq!(victim[0].hear(), "ready");
            keeper.ranks[0].say("another");
            assert_eq!(keeper.ranks[0].hear(), "go");
            victim[0].kill();
            assert_eq!(keeper.ranks[0].hear(), "next");
            left.push(victim[0].pid());
        }
        keeper.ranks[0].say("end");
        keeper.ranks[0].ends_well();
        assert!(names() <= before, "{} names in /dev/shm, {before} before", names());
        if let Some(socket) = socket {
            // Those of the dead go when the next one looks, the last one's too: their keeper has seen them die.
            assert!(!Path::new(socket).exists());
        }
    }
}
