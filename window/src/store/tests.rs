use std::future::Future;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::{Duration, Instant};

use transom_registry::{Cause, Error, Incarnation, Outcome};

use super::*;
use transom_transport::Secret;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(50);

fn secret(n: u8) -> Secret {
    Secret::from_bytes([n; 32])
}

fn server() -> StoreServer {
    StoreServer::bind((Ipv4Addr::LOCALHOST, 0).into(), &secret(1)).unwrap()
}

fn client(server: &StoreServer) -> Store {
    Store::connect(&server.address().to_string(), &secret(1), LONG).unwrap().within(LONG)
}

/// A directory that goes with its test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("transom-store-{}", Incarnation::random().unwrap())))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a check on two handles of one store, for each kind of store.
fn on_each_kind(check: impl Fn(&Store, &Store)) {
    let store = Store::in_process();
    check(&store, &store.clone());
    let directory = Directory::new();
    check(&Store::file(&directory.0).unwrap(), &Store::file(&directory.0).unwrap());
    let server = server();
    check(&client(&server), &client(&server));
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An executor that knows nothing of tokio.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = Arc::new(Unpark(thread::current())).into();
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

fn assert_lost(error: &Error) {
    let failure = error.root().unwrap_or_else(|| panic!("not a failure: {error}"));
    assert_eq!(failure.cause, Cause::ConnectionLost, "{error}");
    assert!(error.to_string().contains("not made again"), "{error}");
}

#[test]
fn two_clients_meet_in_every_kind_of_store() {
    on_each_kind(|here, there| {
        assert_eq!(there.try_get("k").unwrap(), None);
        here.set("k", b"one").unwrap();
        assert_eq!(there.get("k", LONG).unwrap(), b"one");
        there.set("k", b"").unwrap();
        assert_eq!(here.try_get("k").unwrap().as_deref(), Some(&b""[..]));
        assert!(there.delete("k").unwrap());
        assert!(!here.delete("k").unwrap());
        let large: Vec<u8> = (0..1 << 20).map(|n| (n / 251) as u8).collect();
        let (first, last) = ("a".repeat(256), "z".repeat(256));
        here.set(&first, &large).unwrap();
        here.set(&last, b"last").unwrap();
        let values = there.get_many(&[&last, &first, &last], LONG).unwrap();
        assert_eq!(values, [b"last".to_vec(), large, b"last".to_vec()]);
        assert_eq!(there.get_many(&[] as &[&str], LONG).unwrap(), Vec::<Vec<u8>>::new());
    });
}

#[test]
fn a_get_waits_until_the_key_is_set() {
    on_each_kind(|here, there| {
        thread::scope(|scope| {
            let one = scope.spawn(|| there.get("b", LONG).unwrap());
            let many = scope.spawn(|| there.get_many(&["a", "b", "c"], LONG).unwrap());
            let future = scope.spawn(|| block_on(there.get_async("c", LONG)).unwrap());
            for key in ["c", "b", "a"] {
                here.set(key, key.as_bytes()).unwrap();
            }
            assert_eq!(one.join().unwrap(), b"b");
            assert_eq!(many.join().unwrap(), [b"a", b"b", b"c"]);
            assert_eq!(future.join().unwrap(), b"c");
        });
    });
}

/// Each try expires and names the first key. On a machine that is too busy to say more in time, another try may do.
fn expires_with(call: impl Fn() -> Error, text: &str) {
    let mut error = call();
    for _ in 0..50 {
        assert!(matches!(error, Error::Expired { outcome: None, .. }), "{error}");
        assert!(error.to_string().contains("job/0"), "{error}");
        if error.to_string().contains(text) {
            return;
        }
        error = call();
    }
    panic!("{error}, not {text}");
}

#[test]
fn a_deadline_that_passes_names_the_missing_keys() {
    on_each_kind(|here, there| {
        here.set("job/1", b"x").unwrap();
        let started = Instant::now();
        let one = || there.get("job/0", SHORT).unwrap_err();
        expires_with(one, "store get: no answer after 50 ms (key job/0 is not set)");
        let keys: Vec<String> = (0..30).map(|n| format!("job/{n}")).collect();
        let many = || block_on(there.get_many_async(&keys, SHORT)).unwrap_err();
        let named = (0..17).filter(|n| *n != 1).map(|n| format!("job/{n}")).collect::<Vec<_>>().join(", ");
        expires_with(many, &format!("(29 of 30 keys are not set: {named} and 13 more)"));
        assert!(started.elapsed() < LONG, "it does return");
        here.set("job/0", b"y").unwrap();
        assert_eq!(there.get("job/0", LONG).unwrap(), b"y");
    });
}

#[test]
fn sixteen_threads_add_to_one_key_and_no_count_is_lost() {
    on_each_kind(|here, there| {
        thread::scope(|scope| {
            for n in 0..16 {
                scope.spawn(move || {
                    for _ in 0..10 {
                        if n % 2 == 0 { here } else { there }.add("sum", n + 1).unwrap();
                    }
                });
            }
        });
        assert_eq!(here.add("sum", 0).unwrap(), 10 * (16 * 17 / 2));
        assert_eq!(there.get("sum", LONG).unwrap(), b"1360");
        here.set("text", b"seven").unwrap();
        let error = there.add("text", 1).unwrap_err();
        assert!(matches!(&error, Error::Invalid { why, .. } if why.contains("\"text\"")), "{error}");
        here.set("most", i64::MAX.to_string().as_bytes()).unwrap();
        assert!(matches!(there.add("most", 1).unwrap_err(), Error::Invalid { .. }));
        assert_eq!(there.add("most", -1).unwrap(), i64::MAX - 1);
    });
}

#[test]
fn of_those_who_compare_and_set_one_wins() {
    on_each_kind(|here, there| {
        let start = Barrier::new(8);
        let seen: Vec<Vec<u8>> = thread::scope(|scope| {
            let racers: Vec<_> = (0..8)
                .map(|n| {
                    let (start, store) = (&start, if n % 2 == 0 { here } else { there });
                    scope.spawn(move || {
                        start.wait();
                        store.compare_set("leader", None, format!("{n}").as_bytes()).unwrap()
                    })
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        let winner = here.try_get("leader").unwrap().unwrap();
        assert!(seen.iter().all(|value| *value == winner), "{seen:?}");
        assert_eq!(there.compare_set("leader", Some(b"nobody"), b"x").unwrap(), winner);
        assert_eq!(there.compare_set("leader", Some(&winner), b"next").unwrap(), b"next");
        assert!(matches!(here.compare_set("absent", Some(b"x"), b"y").unwrap_err(), Error::Invalid { .. }));
        assert_eq!(here.try_get("absent").unwrap(), None);
    });
}

#[test]
fn a_prefix_is_a_view_and_bad_keys_and_values_never_leave_the_process() {
    on_each_kind(|here, there| {
        let team = here.prefix("job").prefix("team");
        team.set("k", b"v").unwrap();
        assert_eq!(there.get("job/team/k", LONG).unwrap(), b"v");
        assert_eq!(there.prefix("job").get("team/k", LONG).unwrap(), b"v");
        for (store, key) in [
            (here, ""),
            (here, "/k"),
            (here, "a b"),
            (&team, ".."),
            (&team, &"k".repeat(250)),
            (&here.prefix(""), "k"),
        ] {
            assert!(matches!(store.set(key, b"v").unwrap_err(), Error::Invalid { .. }), "{key:?}");
            assert!(matches!(store.get(key, SHORT).unwrap_err(), Error::Invalid { .. }), "{key:?}");
            assert!(
                matches!(block_on(store.delete_async(key)).unwrap_err(), Error::Invalid { .. }),
                "{key:?}"
            );
        }
        let large = vec![0; (1 << 20) + 1];
        assert!(matches!(here.set("k", &large).unwrap_err(), Error::Invalid { .. }));
        let error = here.compare_set("k", Some(&large[..1 << 19]), &large[..(1 << 19) + 1]).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }));
    });
}

#[test]
fn async_forms_do_nothing_before_their_first_poll_and_a_dropped_wait_leaves_the_store_usable() {
    on_each_kind(|here, there| {
        drop(here.set_async("never", b"x"));
        assert_eq!(there.try_get("never").unwrap(), None);
        let mut waits: Vec<_> = (0..100).map(|_| Box::pin(here.get_async("later", LONG))).collect();
        let waker = Arc::new(Unpark(thread::current())).into();
        for wait in &mut waits {
            assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        waits.truncate(1);
        block_on(there.set_async("later", b"now")).unwrap();
        assert_eq!(block_on(waits.remove(0)).unwrap(), b"now");
        assert_eq!(block_on(there.try_get_async("later")).unwrap().as_deref(), Some(&b"now"[..]));
        assert_eq!(block_on(there.add_async("n", 2)).unwrap(), 2);
        assert_eq!(block_on(there.compare_set_async("n", Some(b"2"), b"3")).unwrap(), b"3");
        assert!(block_on(there.delete_async("n")).unwrap());
    });
}

#[test]
fn futures_of_a_store_are_send_and_static_and_run_under_tokio() {
    let server = server();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let store = Store::connect_async(&server.address().to_string(), &secret(1), LONG).await.unwrap();
        let wait = tokio::spawn(store.get_async("k", LONG));
        store.set_async("k", b"v").await.unwrap();
        assert_eq!(wait.await.unwrap().unwrap(), b"v");
    });
}

#[test]
fn ranks_may_start_before_their_server() {
    let reserved = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let early = thread::spawn(move || Store::connect(&address.to_string(), &secret(1), LONG).unwrap());
    let late = Store::connect(&address.to_string(), &secret(1), SHORT).unwrap_err();
    assert!(matches!(&late, Error::Expired { .. }), "{late}");
    assert!(late.to_string().contains("is the server running there?"), "{late}");
    let _server = StoreServer::bind(address, &secret(1)).unwrap();
    early.join().unwrap().set("k", b"v").unwrap();
}

#[test]
fn names_and_ipv6_addresses_reach_a_server() {
    let server = server();
    let port = server.address().port();
    Store::connect(&format!("localhost:{port}"), &secret(1), LONG).unwrap().set("k", b"v").unwrap();
    // A machine may have no IPv6.
    if let Ok(server) = StoreServer::bind((Ipv6Addr::LOCALHOST, 0).into(), &secret(1)) {
        let address = server.address().to_string();
        assert!(address.starts_with("[::1]:"));
        Store::connect(&address, &secret(1), LONG).unwrap().set("k", b"v").unwrap();
    }
}

#[test]
fn another_secret_is_refused_at_once_on_both_sides() {
    let server = server();
    let address = server.address().to_string();
    let error = Store::connect(&address, &secret(2), LONG).unwrap_err();
    assert!(matches!(&error, Error::Auth { .. }), "{error}");
    assert_eq!(client(&server).try_get("k").unwrap(), None);
}

#[test]
fn a_real_client_gets_in_through_half_open_connections_and_scanners() {
    let server = server();
    let before = client(&server);
    let mut guests: Vec<TcpStream> = Vec::new();
    for n in 0..300 {
        let mut guest = TcpStream::connect(server.address()).unwrap();
        match n % 3 {
            0 => {}
            // The beginning of a length, and a length without a message.
            1 => guest.write_all(&[1]).unwrap(),
            _ => guest.write_all(&[32, 0]).unwrap(),
        }
        guests.push(guest);
    }
    let mut scanner = TcpStream::connect(server.address()).unwrap();
    scanner.write_all(b"GET / HTTP/1.1\r\nHost: store\r\n\r\n").unwrap();
    let wrong = Store::connect(&server.address().to_string(), &secret(2), LONG).unwrap_err();
    assert!(matches!(wrong, Error::Auth { .. }), "{wrong}");
    client(&server).set("k", b"v").unwrap();
    assert_eq!(before.get("k", LONG).unwrap(), b"v");
    scanner.set_read_timeout(Some(LONG)).unwrap();
    let mut answer = Vec::new();
    let _ = scanner.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("HTTP"));
    // Each guest is turned away, or closed when it has proven nothing in time.
    for mut guest in guests {
        guest.set_read_timeout(Some(LONG)).unwrap();
        let mut byte = [0; 1];
        match guest.read(&mut byte) {
            Ok(0) => {}
            Ok(_) => panic!("an answer without a handshake"),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn two_hundred_ranks_that_come_at_once_all_get_in() {
    let server = server();
    let address = server.address().to_string();
    let clients: Vec<_> = (0..200).map(|_| Store::connect_async(&address, &secret(1), LONG)).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = clients
            .into_iter()
            .map(|connecting| {
                tokio::spawn(async move { connecting.await.unwrap().add_async("n", 1).await.unwrap() })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(client(&server).add("n", 0).unwrap(), 200);
}

#[test]
fn dropping_the_server_fails_waits_and_later_calls_with_the_lost_connection() {
    let server = server();
    let store = client(&server);
    let mut pending = Box::pin(store.get_async("never", LONG));
    let waker = Arc::new(Unpark(thread::current())).into();
    assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // This answer comes after the wait has reached the server.
    store.set("k", b"v").unwrap();
    drop(server);
    let error = block_on(pending).unwrap_err();
    assert_lost(&error);
    assert_eq!(error.outcome(), Some(Outcome::NotApplied));
    let error = store.set("k", b"v").unwrap_err();
    assert_lost(&error);
    assert_eq!(error.outcome(), Some(Outcome::NotApplied));
    assert_lost(&store.get("k", LONG).unwrap_err());
}

#[test]
fn a_server_that_says_nothing_does_not_hold_a_call_beyond_its_deadline() {
    let started = Instant::now();
    // Nobody accepts.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let error = Store::connect(&address, &secret(1), SHORT).unwrap_err();
    assert!(matches!(&error, Error::Expired { .. }), "{error}");
    drop(listener);
    // Somebody proves the secret, and stops.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connecting = thread::spawn(move || Store::connect(&address, &secret(1), LONG).unwrap().within(SHORT));
    let _stopped = runtime.block_on(async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let cipher = auth::respond(&mut stream, &secret(1), || {}).await.unwrap();
        auth::welcome(&mut stream, &secret(1), &cipher).await.unwrap();
        (stream, cipher)
    });
    let store = connecting.join().unwrap();
    let error = store.get("k", SHORT).unwrap_err();
    assert!(matches!(&error, Error::Expired { outcome: None, .. }), "{error}");
    assert!(error.to_string().contains("says nothing of key k"), "{error}");
    let error = store.add("k", 1).unwrap_err();
    assert!(matches!(&error, Error::Expired { outcome: Some(Outcome::InDoubt), .. }), "{error}");
    assert!(started.elapsed() < LONG);
}

#[test]
fn a_client_that_asks_and_does_not_read_is_read_no_further_and_stops_nobody_else() {
    let server = server();
    let other = client(&server);
    let large = vec![7; 1 << 20];
    other.set("large", &large).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut stream = tokio::net::TcpStream::connect(server.address()).await.unwrap();
        let cipher = auth::initiate(&mut stream, &secret(1)).await.unwrap();
        let (_opener, mut sealer) = channel::split(stream, cipher);
        let mut asked = 0;
        loop {
            let mut frames = Vec::new();
            for id in 0..100 {
                wire::Request::Call(Call::TryGet { key: "large".into() }).encode(id, &mut frames);
            }
            wire::Request::Call(Call::Set { key: "ignored".into(), value: large.clone() })
                .encode(100, &mut frames);
            match tokio::time::timeout(Duration::from_millis(300), sealer.send(&frames)).await {
                Ok(sent) => sent.unwrap(),
                Err(_) => break,
            }
            asked += 1;
            assert!(asked < 100, "the server goes on reading");
        }
        assert_eq!(other.add_async("n", 1).await.unwrap(), 1);
    });
    assert_eq!(other.get("large", LONG).unwrap(), large);
}

#[test]
fn a_file_store_keeps_its_files_private_and_refuses_a_directory_that_others_write_to() {
    use std::os::unix::fs::PermissionsExt;
    let directory = Directory::new();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let store = Store::file(&directory.0).unwrap();
    store.set("a/b", b"v").unwrap();
    assert_eq!(mode(&directory.0), 0o700);
    assert_eq!(mode(&directory.0.join("612f62")), 0o600);
    let mut names: Vec<_> =
        std::fs::read_dir(&directory.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["612f62", "lock"], "no temporary file is left");
    std::os::unix::fs::symlink("/dev/null", directory.0.join("6c")).unwrap();
    assert!(matches!(store.try_get("l").unwrap_err(), Error::Io { .. }));
    std::fs::set_permissions(&directory.0, std::fs::Permissions::from_mode(0o722)).unwrap();
    let error = Store::file(&directory.0).unwrap_err();
    assert!(matches!(&error, Error::Config { .. }), "{error}");
    std::fs::set_permissions(&directory.0, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_held_lock_is_named_when_a_change_expires() {
    let directory = Directory::new();
    let store = Store::file(&directory.0).unwrap();
    let lock = std::fs::File::create(directory.0.join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let error = store.within(Duration::from_secs(1)).add("k", 1).unwrap_err();
    assert!(error.to_string().contains("lock is held by another process"), "{error}");
    assert_eq!(error.outcome(), Some(Outcome::NotApplied));
    drop(lock);
    assert_eq!(store.add("k", 1).unwrap(), 1);
}

#[test]
fn urls_open_every_kind_and_an_unknown_scheme_lists_the_known_ones() {
    let server = server();
    let directory = Directory::new();
    let tcp = format!("tcp://{}", server.address());
    let file = format!("file://{}", directory.0.display());
    for url in [tcp.as_str(), file.as_str(), "inproc://urls_open_every_kind"] {
        let (here, there) = (Store::open(url, &secret(1), LONG), Store::open(url, &secret(1), LONG));
        here.unwrap().set("k", url.as_bytes()).unwrap();
        // The first handle of an inproc store is gone, but not the second.
        assert_eq!(there.unwrap().get("k", LONG).unwrap(), url.as_bytes());
    }
    let again = Store::open("inproc://urls_open_every_kind", &secret(1), LONG).unwrap();
    assert_eq!(again.try_get("k").unwrap(), None, "it went with its last handle");

    let kept = Store::in_process();
    let given = kept.clone();
    Store::register_scheme("etcd", move |url, _secret, _timeout| {
        given.set("url", url.as_bytes())?;
        Ok(given.clone())
    })
    .unwrap();
    Store::open("etcd://host/path", &secret(1), LONG).unwrap().set("k", b"v").unwrap();
    assert_eq!(kept.try_get("k").unwrap().unwrap(), b"v");
    assert_eq!(kept.try_get("url").unwrap().unwrap(), b"etcd://host/path");
    for taken in ["etcd", "tcp", "", "A b"] {
        assert!(matches!(
            Store::register_scheme(taken, |_, _, _| Ok(Store::in_process())).unwrap_err(),
            Error::Invalid { .. }
        ));
    }
    let error = Store::open("zookeeper://host", &secret(1), LONG).unwrap_err();
    assert!(matches!(&error, Error::Config { .. }));
    assert!(error.to_string().contains("etcd, file, inproc, tcp"), "{error}");
    for bad in ["host:1", "file://relative", "inproc://"] {
        assert!(matches!(Store::open(bad, &secret(1), SHORT).unwrap_err(), Error::Config { .. }), "{bad}");
    }
    assert!(matches!(Store::open("tcp://host", &secret(1), SHORT).unwrap_err(), Error::Invalid { .. }));
}

/// A backend that never answers, or panics.
#[derive(Debug)]
struct Broken(bool);

impl Backend for Broken {
    fn call(
        self: Arc<Self>,
        _call: Call,
        _deadline: Deadline,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<Answer>> + Send>> {
        Box::pin(async move {
            if self.0 {
                std::panic::panic_any("a backend's own fault");
            }
            std::future::pending().await
        })
    }
}

#[test]
fn a_backend_that_hangs_or_panics_gives_an_error() {
    let started = Instant::now();
    let error = Store::new(Broken(false)).within(SHORT).set("k", b"v").unwrap_err();
    assert!(matches!(error, Error::Expired { outcome: Some(Outcome::InDoubt), .. }), "{error}");
    let error = Store::new(Broken(false)).get("k", SHORT).unwrap_err();
    assert!(matches!(error, Error::Expired { outcome: None, .. }), "{error}");
    let error = Store::new(Broken(true)).set("k", b"v").unwrap_err();
    assert!(matches!(error, Error::Closed { .. }), "{error}");
    assert!(started.elapsed() < LONG);
}

#[test]
fn a_server_out_of_descriptors_waits_and_goes_on() {
    const CHILD: &str = "TRANSOM_STORE_TEST_DESCRIPTORS";
    let name = "store::tests::a_server_out_of_descriptors_waits_and_goes_on";
    if std::env::var_os(CHILD).is_none() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
        return;
    }
    let server = server();
    let store = client(&server);
    // The runtimes and the standard streams have theirs: a few more, and accept fails.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let lower = rustix::process::Rlimit { current: Some(64), maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, lower).unwrap();
    let address: SocketAddr = server.address();
    let mut guests = Vec::new();
    while let Ok(guest) = TcpStream::connect(address) {
        guests.push(guest);
    }
    // This connection is in the server's queue, and no descriptor is left for it.
    store.set("k", b"v").unwrap();
    drop(guests);
    let late = client(&server);
    assert_eq!(late.get("k", LONG).unwrap(), b"v");
}
