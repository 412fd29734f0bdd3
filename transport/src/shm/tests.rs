use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use rustix::process::Signal;
use transom_registry::element::Reduce;
use transom_registry::exposed::Locker;
use transom_registry::header::lock_owner;
use transom_registry::{
    Access, Cause, Error, File, Foreign, Host as HostMemory, MemoryRegion, Outcome, RemoteRegion, Stale, word,
};

use super::*;
use crate::{Dtype, List, Peer, PeerRegion, Secret};

const SECOND: Duration = Duration::from_secs(1);
/// Long enough for any machine; nothing waits that long.
const LIMIT: Duration = Duration::from_secs(30);

fn context() -> crate::Context {
    context_of([7; 32])
}

fn context_of(secret: [u8; 32]) -> crate::Context {
    crate::Context::builder().transports("shm").secret(Secret::from_bytes(secret)).build().unwrap()
}

/// A context and its transport.
fn opened() -> (crate::Context, Arc<Shm>) {
    let (give, take) = mpsc::channel();
    let context = crate::Context::builder()
        .transports("local")
        .secret(Secret::from_bytes([7; 32]))
        .transport(Box::new(move |host| {
            let shm = Shm::open("", host)?;
            give.send(shm.clone()).unwrap();
            Ok(shm)
        }))
        .build()
        .unwrap();
    (context, take.recv().unwrap())
}

/// A descriptor that leads over this transport only: `local` would be the first one in one process.
fn over_shm(mut region: RemoteRegion) -> RemoteRegion {
    region.addresses.retain(|address| address.starts_with("shm:"));
    assert_eq!(region.addresses.len(), 1);
    region
}

fn export(region: &MemoryRegion, access: Access) -> RemoteRegion {
    over_shm(region.remote(access).unwrap())
}

fn open(context: &crate::Context, region: &RemoteRegion) -> crate::Result<(Peer, PeerRegion)> {
    let peer = context.connect(region)?;
    let opened = peer.open(region)?;
    Ok((peer, opened))
}

fn until(what: &str, mut over: impl FnMut() -> bool) {
    let since = Instant::now();
    while !over() {
        assert!(since.elapsed() < LIMIT, "{what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// What every kind of memory has to do, whichever way it is reached.
fn everything_works(memory: impl transom_registry::Memory + 'static, mapped: bool) {
    let (owner, other) = (context(), context());
    let region = owner.register(memory, 3).unwrap();
    let (_peer, part) = open(&other, &export(&region, Access::ALL)).unwrap();
    let explained = part.explain();
    assert!(explained.starts_with("shm") && explained.contains("mapped") == mapped, "{explained}");
    let size = region.size();

    let bytes: Vec<u8> = (0..size).map(|i| (i * 7) as u8).collect();
    part.put(0, &bytes).unwrap();
    part.flush().unwrap();
    let mut seen = vec![0; size];
    region.read(0, &mut seen).unwrap();
    assert!(seen == bytes);
    let mut back = vec![0; size];
    part.get(0, &mut back).unwrap();
    assert!(back == bytes);
    part.put(5, &[]).unwrap();

    part.put_signal(16, b"hello", 2, 3).unwrap();
    owner.signals(&region).signal(2).unwrap().wait_at_least(3, LIMIT).unwrap();
    let mut hello = [0; 5];
    region.read(16, &mut hello).unwrap();
    assert_eq!(&hello, b"hello");

    let list = List::new([(8, 3), (100, 5), (64, 2)]).unwrap();
    part.put_list(&list, b"abcdefghij").unwrap();
    let mut gathered = [0; 10];
    part.get_list(&list, &mut gathered).unwrap();
    assert_eq!(&gathered, b"abcdefghij");

    let ours = other.allocate(4096, 0).unwrap();
    ours.write(0, &[9; 4096]).unwrap();
    part.put_from(0, ours.slice(0..256).unwrap()).unwrap().wait().unwrap();
    part.get_into(0, ours.slice(1000..1256).unwrap()).unwrap().wait().unwrap();
    let mut nines = [0; 256];
    ours.read(1000, &mut nines).unwrap();
    assert_eq!(nines, [9; 256]);

    region.store(8, 40).unwrap();
    assert_eq!(part.fetch_add(8, 2).unwrap(), 40);
    assert_eq!(part.swap(8, 7).unwrap(), 42);
    assert_eq!(part.compare_swap(8, 7, 9).unwrap(), 7);
    assert_eq!(part.compare_swap(8, 7, 10).unwrap(), 9);
    assert_eq!(region.load(8).unwrap(), 9);

    region.write(0, &vec![0; size]).unwrap();
    let count = (size / 4).min(50_000);
    for _ in 0..3 {
        part.accumulate(0, &vec![1.5_f32; count], Reduce::Sum).unwrap();
    }
    // A signal never overtakes what was before it.
    part.signal(1, 1).unwrap();
    owner.signals(&region).signal(1).unwrap().wait_at_least(1, LIMIT).unwrap();
    let mut sums = vec![0; count * 4];
    region.read(0, &mut sums).unwrap();
    assert!(sums.chunks(4).all(|c| f32::from_le_bytes(c.try_into().unwrap()) == 4.5));
    ours.write(0, &2.0_f32.to_le_bytes()).unwrap();
    let from = ours.slice(0..4).unwrap();
    part.accumulate_from(0, from, Dtype::F32, Reduce::Max).unwrap().wait().unwrap();
    part.fence().unwrap();
    // Nor does a put go past a fence.
    part.put(0, &0.5_f32.to_le_bytes()).unwrap();
    part.flush().unwrap();
    let mut first = [0; 4];
    region.read(0, &mut first).unwrap();
    assert_eq!(f32::from_le_bytes(first), 0.5);
}

#[test]
fn host_memory_is_mapped_and_does_everything() {
    everything_works(HostMemory::new(200_000).unwrap(), true);
    everything_works(HostMemory::new(300).unwrap(), true);
}

#[test]
fn memory_of_somebody_else_is_copied_by_the_kernel_and_does_everything() {
    everything_works(map::foreign(200_000, ()), false);
}

#[test]
fn a_file_is_mapped_and_does_everything_and_keeps_it() {
    let directory = std::env::temp_dir().join(format!("transom-shm-{}", Incarnation::random().unwrap()));
    std::fs::create_dir(&directory).unwrap();
    let path = directory.join("file");
    everything_works(File::create(&path, 10_000).unwrap(), true);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[4..8], 4.5_f32.to_le_bytes());
    // A file that is only read.
    let (owner, other) = (context(), context());
    let region = owner.register(File::open(&path).unwrap(), 0).unwrap();
    let (_peer, part) = open(&other, &export(&region, Access::READ)).unwrap();
    let mut seen = [0; 4];
    part.get(4, &mut seen).unwrap();
    assert_eq!(f32::from_le_bytes(seen), 4.5);
    assert!(matches!(part.put(0, b"x"), Err(Error::Access { .. })));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_part_of_a_region_is_a_region_of_its_own_wherever_it_begins() {
    let (owner, other) = (context(), context());
    let page = rustix::param::page_size();
    let region = owner.allocate(4 * page, 1).unwrap();
    for (start, size) in
        [(0, 1), (1, 8), (page - 4, 8), (page, page), (2 * page + 40, 2 * page - 40), (4 * page, 0)]
    {
        region.write(0, &vec![0; 4 * page]).unwrap();
        let remote = over_shm(region.export(start..start + size, Access::ALL).unwrap());
        let (_peer, part) = open(&other, &remote).unwrap();
        part.put(0, &vec![3; size]).unwrap();
        let mut seen = vec![0; 4 * page];
        region.read(0, &mut seen).unwrap();
        assert!(
            seen.iter().enumerate().all(|(i, b)| (*b == 3) == (start..start + size).contains(&i)),
            "{start}"
        );
        assert!(matches!(part.put(size as u64, b"x"), Err(Error::OutOfRange { .. })));
        if size >= 4 && start % 4 == 0 {
            part.accumulate(0, &[1_u32], Reduce::Replace).unwrap();
            assert_eq!(region.exposed().word32("load", start as u64).unwrap().load(Ordering::Relaxed), 1);
        }
        part.signal(0, 1).unwrap();
    }
    assert_eq!(region.signal(0).unwrap(), 6);
}

#[test]
fn rights_that_were_not_granted_are_refused_by_the_owner_and_what_was_given_read_only_stays_so() {
    let (owner, other) = (context(), context());
    for foreign in [false, true] {
        let region = if foreign {
            owner.register(Foreign::from_vec(vec![5; 4096]).unwrap(), 1).unwrap()
        } else {
            owner.allocate(4096, 1).unwrap()
        };
        let remote = export(&region, Access::READ);
        let (peer, part) = open(&other, &remote).unwrap();
        part.get(0, &mut [0; 8]).unwrap();
        assert!(matches!(part.put(0, b"x"), Err(Error::Access { .. })));
        assert!(matches!(part.signal(0, 1), Err(Error::Access { .. })));
        assert!(matches!(part.fetch_add(0, 1), Err(Error::Access { .. })));
        let forged = RemoteRegion { access: Access::ALL, ..remote.clone() };
        let refused = peer.open(&forged);
        assert!(matches!(refused, Err(Error::Access { granted: Access::READ, .. })), "{refused:?}");
        let larger = RemoteRegion { size: 8192, ..remote.clone() };
        assert!(matches!(peer.open(&larger), Err(Error::Access { .. })));
        let old = RemoteRegion { epoch: 4, ..remote };
        assert!(matches!(peer.open(&old), Err(Error::Stale { what: Stale::Epoch, .. })));
    }
}

#[test]
fn a_region_that_was_dropped_is_refused_and_its_memory_stays_until_the_peer_lets_go() {
    struct Guard(mpsc::Sender<()>);
    impl Drop for Guard {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }
    let (owner, other) = (context(), context());
    let (dropped, is_dropped) = mpsc::channel();
    let foreign = owner.register(map::foreign(4096, Guard(dropped)), 0).unwrap();
    let host = owner.allocate(4096, 0).unwrap();
    let remotes = [export(&foreign, Access::ALL), export(&host, Access::ALL)];
    let opened: Vec<_> = remotes.iter().map(|remote| open(&other, remote).unwrap()).collect();
    drop((foreign, host));
    for ((peer, part), remote) in opened.iter().zip(&remotes) {
        let refused = part.accumulate(0, &[1_u64], Reduce::Sum).and_then(|()| part.flush());
        assert!(matches!(refused, Err(Error::Stale { what: Stale::Generation, .. })), "{refused:?}");
        part.flush().unwrap();
        for refused in [part.put(0, b"x"), part.get(0, &mut [0]), part.fetch_add(0, 1).map(drop)] {
            assert!(matches!(refused, Err(Error::Stale { what: Stale::Generation, .. })), "{refused:?}");
        }
        assert!(matches!(peer.open(remote), Err(Error::Stale { what: Stale::Generation, .. })));
    }
    assert!(is_dropped.try_recv().is_err(), "it is kept for the peer");
    drop(opened);
    is_dropped.recv_timeout(LIMIT).unwrap();
}

#[test]
fn another_life_at_the_address_is_told_and_so_is_nobody() {
    let (owner, other) = (context(), context());
    let region = owner.allocate(64, 0).unwrap();
    let mut remote = export(&region, Access::ALL);
    remote.incarnation = Incarnation::from_u64(77).unwrap();
    let refused = other.connect(&remote).unwrap_err();
    assert!(matches!(refused, Error::Stale { what: Stale::Incarnation, held: 77, .. }), "{refused}");
    let gone = RemoteRegion { addresses: vec!["shm:/nowhere/at-all.sock".into()], ..remote };
    let text = other.connect(&gone).unwrap_err().to_string();
    assert!(text.contains("not on this host, or gone"), "{text}");
}

#[test]
fn a_wrong_secret_is_refused_before_any_descriptor_passes() {
    let (owner, stranger) = (context(), context_of([8; 32]));
    let region = owner.allocate(64, 0).unwrap();
    let refused = stranger.connect(&export(&region, Access::ALL)).unwrap_err();
    assert!(matches!(refused, Error::Auth { .. }), "{refused}");
}

#[test]
fn strangers_that_say_nothing_or_garbage_disturb_nobody() {
    let (owner, other) = (context(), context());
    let region = owner.allocate(64, 0).unwrap();
    let remote = export(&region, Access::ALL);
    let path = remote.addresses[0].strip_prefix("shm:").unwrap();
    let mut strangers = Vec::new();
    for round in 0..32 {
        let mut stranger = UnixStream::connect(path).unwrap();
        stranger.set_read_timeout(Some(LIMIT)).unwrap();
        if round % 2 == 0 {
            stranger.write_all(&[round; 100]).unwrap();
        }
        strangers.push(stranger);
    }
    let (_peer, part) = open(&other, &remote).unwrap();
    part.put(0, b"hello").unwrap();
    for (round, mut stranger) in strangers.into_iter().enumerate() {
        // Those with garbage at once, the silent ones after a while: all are hung up on, and told nothing.
        let mut said = Vec::new();
        let ended = stranger.read_to_end(&mut said);
        assert!(said.is_empty() && (ended.is_ok() || round % 2 == 0), "{round}: {ended:?} {said:?}");
    }
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed_and_the_sender_is_hung_up_on() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        let (pipe, writer) = rustix::pipe::pipe().unwrap();
        use std::os::fd::AsFd;
        let flush = message::Message::Flush { id: 1, key: 2 };
        frame::send(&ours, &flush, &[writer.as_fd(), writer.as_fd()]).await.unwrap();
        drop(writer);
        let refused = frame::receive(&theirs).await;
        assert!(matches!(refused, Err(Error::Malformed { .. })), "{refused:?}");
        // Every copy of the writing end is closed: the pipe is at its end.
        assert_eq!(rustix::io::read(&pipe, &mut [0; 1]).unwrap(), 0);

        let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        let many: Vec<_> = (0..9).map(|_| pipe.as_fd()).collect();
        assert!(frame::send(&ours, &flush, &many).await.is_err());
        frame::send(&ours, &message::Message::Page, &many[..2]).await.unwrap();
        let (message, fds) = frame::receive(&theirs).await.unwrap().unwrap();
        assert_eq!((message, fds.len()), (message::Message::Page, 2));
        let flags = rustix::io::fcntl_getfd(&fds[0]).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        drop(ours);
        assert!(frame::receive(&theirs).await.unwrap().is_none());
    });
}

#[test]
fn a_context_that_leaves_is_told_as_such_and_its_socket_file_is_gone() {
    for foreign in [false, true] {
        let (owner, other) = (context(), context());
        let region = if foreign {
            owner.register(Foreign::from_vec(vec![5; 4096]).unwrap(), 1).unwrap()
        } else {
            owner.allocate(4096, 1).unwrap()
        };
        let remote = export(&region, Access::ALL);
        let path = Path::new(remote.addresses[0].strip_prefix("shm:").unwrap()).to_owned();
        let (peer, part) = open(&other, &remote).unwrap();
        assert!(path.exists());
        assert!(sockets_of_this_process().values().all(|path| !path.starts_with('@')), "no abstract socket");
        assert!(sockets_of_this_process().values().any(|p| Path::new(p).with_extension("sock") == path));
        owner.close();
        assert!(!path.exists());
        until("it left", || peer.failure().is_some());
        assert_eq!(peer.failure().unwrap().cause, Cause::Left);
        let refused = part.put(0, b"x").unwrap_err();
        assert_eq!(refused.outcome(), Some(Outcome::NotApplied), "{refused}");
        let refused = peer.open(&remote).unwrap_err();
        assert!(matches!(refused, Error::Failed(_)), "{refused}");
        until("the owner knows that it is closed", || other.connect(&remote).is_err());
    }
}

/// The paths of the Unix sockets that this process has open, by inode.
fn sockets_of_this_process() -> BTreeMap<String, String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let paths: BTreeMap<&str, &str> = table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut fields = line.split_whitespace().skip(6);
            Some((fields.next()?, fields.next().unwrap_or("")))
        })
        .collect();
    descriptors()
        .into_keys()
        .filter_map(|target| {
            let inode = target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
            let path = (*paths.get(inode.as_str())?).to_owned();
            Some((inode, path))
        })
        .collect()
}

/// How many descriptors this process has, by what they are.
fn descriptors() -> BTreeMap<String, usize> {
    let mut count = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        if let Ok(target) = std::fs::read_link(entry.path()) {
            *count.entry(target.to_string_lossy().into_owned()).or_insert(0) += 1;
        }
    }
    count
}

fn kinds_of_descriptors() -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for (target, count) in descriptors() {
        let kind = target.split(['[', ' ']).next().unwrap_or_default().to_owned();
        *kinds.entry(kind).or_insert(0) += count;
    }
    kinds
}

// What needs a process of its own. A test starts its own program again, with the test below as the only one, and a role.

const ROLE: &str = "TRANSOM_TEST_SHM_ROLE";

#[test]
fn role_of_a_child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut lines = std::io::stdin().lines();
    let mut line = || lines.next().unwrap().unwrap();
    let say = |what: &str| {
        let mut out = std::io::stdout();
        writeln!(out, "\nSAYS {what}").unwrap();
        out.flush().unwrap();
    };
    match role.as_str() {
        "owner" => {
            let owner = context();
            let region = owner.allocate(1 << 20, 4).unwrap();
            let foreign = owner.register(Foreign::from_vec(vec![1; 4096]).unwrap(), 1).unwrap();
            say(&region.remote(Access::ALL).unwrap().to_string());
            say(&foreign.remote(Access::ALL).unwrap().to_string());
            line();
        }
        "holder" => {
            let (context, shm) = opened();
            let remote: RemoteRegion = line().parse().unwrap();
            let deadline = Instant::now() + LIMIT;
            let endpoint = shm.connect(&remote.addresses[0], Some(remote.incarnation), deadline);
            let endpoint = context.block_on("test", LIMIT, endpoint).unwrap().unwrap();
            let attached =
                context.block_on("test", LIMIT, endpoint.attach(&remote, deadline)).unwrap().unwrap();
            let exposed = attached.mapped.unwrap();
            let lock = map::lock_word(exposed.header().unwrap(), 1);
            assert_eq!(word::try_lock(lock, lock_owner(context.incarnation())), Ok(false));
            say("held");
            line();
        }
        "counter" => counts_descriptors(),
        other => panic!("{other}"),
    }
}

struct Child {
    process: std::process::Child,
    says: BufReader<std::process::ChildStdout>,
}

impl Child {
    fn start(role: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["shm::tests::role_of_a_child", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(process.stdout.take().unwrap());
        Self { process, says }
    }

    /// The next thing it says; it ends at the end of its input, so that this is bounded.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.says.read_line(&mut line).unwrap() > 0, "the child ended");
            if let Some(said) = line.trim_end().strip_prefix("SAYS ") {
                return said.to_owned();
            }
        }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.process)
    }

    /// Stops it, and waits until it is.
    fn stop(&self) {
        rustix::process::kill_process(self.pid(), Signal::STOP).unwrap();
        let waited = rustix::process::waitpid(Some(self.pid()), rustix::process::WaitOptions::UNTRACED);
        assert!(waited.unwrap().unwrap().1.stopped());
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn the_death_of_an_owner_is_noticed_and_named_and_operations_are_not_applied() {
    let context = context();
    let mut child = Child::start("owner");
    let remotes: Vec<RemoteRegion> = (0..2).map(|_| child.hear().parse().unwrap()).collect();
    let opened: Vec<_> = remotes.iter().map(|remote| open(&context, remote).unwrap()).collect();
    assert!(opened[0].1.explain().contains("mapped") && !opened[1].1.explain().contains("mapped"));
    for (_, part) in &opened {
        part.put(0, b"hello").unwrap();
        part.accumulate(8, &[1_u64], Reduce::Sum).unwrap();
        assert_eq!(part.fetch_add(8, 1).unwrap() & 0xff, if part.size() == 4096 { 2 } else { 1 });
        part.flush().unwrap();
    }
    child.process.kill().unwrap();
    let peer = &opened[0].0;
    until("its death is noticed", || peer.failure().is_some());
    let failure = peer.failure().unwrap();
    assert_eq!(failure.cause, Cause::Exited(None));
    assert!(failure.observed.contains("alive lock"), "{failure}");
    assert_eq!(failure.incarnation, Some(remotes[0].incarnation));
    let left_behind = remotes[0].addresses.iter().find_map(|a| a.strip_prefix("shm:")).unwrap();
    assert!(!Path::new(left_behind).exists());
    for (_, part) in &opened {
        for refused in [part.put(0, b"x"), part.get(0, &mut [0]), part.fetch_add(8, 1).map(drop)] {
            let refused = refused.unwrap_err();
            assert!(matches!(&refused, Error::Failed(f) if f.failure.cause == failure.cause), "{refused}");
            assert_eq!(refused.outcome(), Some(Outcome::NotApplied));
        }
    }
    drop(opened);
    let error = context.connect(&remotes[0]).unwrap_err();
    assert!(
        matches!(&error, Error::Failed(f) if f.failure.cause == failure.cause),
        "the known reason: {error}"
    );
}

#[test]
fn a_stopped_owner_is_told_as_frozen_and_operations_end() {
    let context = context();
    let mut child = Child::start("owner");
    let remotes: Vec<RemoteRegion> = (0..2).map(|_| child.hear().parse().unwrap()).collect();
    let (peer, _mapped) = open(&context, &remotes[0]).unwrap();
    let foreign = peer.open(&remotes[1]).unwrap();
    child.stop();
    let request = foreign.atomic_request(crate::Atomic::Add, 8, 0, 1, 0).unwrap();
    let ended = request.wait_timeout(LIMIT).unwrap_err();
    assert_eq!(ended.outcome(), Some(Outcome::InDoubt), "{ended}");
    assert_eq!(peer.failure().unwrap().cause, Cause::Frozen);
    // To connect to it takes a deadline, and no longer.
    let other = crate::Context::builder()
        .transports("shm")
        .secret(Secret::from_bytes([7; 32]))
        .timeout(SECOND / 2)
        .build()
        .unwrap();
    let expired = other.connect(&remotes[0]).unwrap_err();
    assert!(matches!(expired, Error::Expired { .. } | Error::Unreachable { .. }), "{expired}");
    rustix::process::kill_process(child.pid(), Signal::CONT).unwrap();
    assert!(foreign.put(0, b"x").is_err(), "a failed connection stays failed");
    let (_peer, again) = open(&context, &remotes[0]).unwrap();
    again.put(0, b"again").unwrap();
}

#[test]
fn a_dead_holders_lock_is_broken_and_its_stripe_told_as_torn_once() {
    let owner = context();
    let region = owner.allocate(1 << 20, 0).unwrap();
    let mut child = Child::start("holder");
    child.tell(&over_shm(region.remote(Access::ALL).unwrap()).to_string());
    assert_eq!(child.hear(), "held");
    let by = |patience| Locker { incarnation: owner.incarnation(), patience };
    let add = |by| map::accumulate(region.exposed(), Dtype::U32, Reduce::Sum, 0, &[1; 16 << 10], by);
    let held = add(by(Duration::from_millis(50)));
    assert!(matches!(held, Err(Error::Expired { .. })), "{held:?}");
    child.process.kill().unwrap();
    let torn = add(by(LIMIT));
    assert!(matches!(torn, Err(Error::Torn { offset: 4096, size: 4096, .. })), "{torn:?}");
    add(by(LIMIT)).unwrap();
}

#[test]
fn connecting_two_hundred_times_leaves_no_descriptor_behind() {
    let mut child = Child::start("counter");
    assert_eq!(child.hear(), "counted");
    assert!(child.process.wait().unwrap().success());
}

fn counts_descriptors() {
    let (owner, other) = (context(), context());
    let host = owner.allocate(8192, 1).unwrap();
    let foreign = owner.register(Foreign::from_vec(vec![1; 4096]).unwrap(), 1).unwrap();
    let remotes = [export(&host, Access::ALL), export(&host, Access::READ), export(&foreign, Access::ALL)];
    let round = || {
        for remote in &remotes {
            let (_peer, part) = open(&other, remote).unwrap();
            part.get(0, &mut [0; 8]).unwrap();
        }
    };
    round();
    let settled = |wanted: Option<&BTreeMap<String, usize>>| {
        let mut last = kinds_of_descriptors();
        let mut same = 0;
        until("the number of descriptors settles", || {
            let now = kinds_of_descriptors();
            same = if now == last { same + 1 } else { 0 };
            last = now;
            wanted.map_or(same > 300, |wanted| *wanted == last)
        });
        last
    };
    let before = settled(None);
    for _ in 0..200 {
        round();
    }
    assert_eq!(settled(Some(&before)), before);
    let mut out = std::io::stdout();
    writeln!(out, "\nSAYS counted").unwrap();
}

#[test]
fn without_a_driver_it_says_what_to_use_instead() {
    #[derive(Debug)]
    struct Still;
    impl crate::clock::Virtual for Still {
        fn now(&self) -> Instant {
            Instant::now()
        }
        fn sleep(&self, _: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
            Box::pin(std::future::pending())
        }
    }
    let built = crate::Context::builder()
        .transports("shm")
        .secret(Secret::from_bytes([7; 32]))
        .clock(crate::clock::Clock::Virtual(Arc::new(Still)))
        .build();
    let text = built.unwrap_err().to_string();
    assert!(text.contains("needs a driver"), "{text}");
    let built =
        crate::Context::builder().transports("shm:fast=1").secret(Secret::from_bytes([7; 32])).build();
    assert!(matches!(built, Err(Error::Config { .. })));
}
