use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::*;
use crate::{Error, Incarnation};

fn place(context: &Context) -> String {
    let address = context.addresses().into_iter().find(|a| a.starts_with("tcp:")).unwrap();
    address.strip_prefix("tcp:").unwrap().to_owned()
}

#[test]
fn another_secret_is_turned_down_and_named() {
    let (owner, _) = pair();
    let region = owner.allocate(64, 0).unwrap();
    let stranger = context(&Secret::random().unwrap(), "tcp");
    let error = stranger.connect(&remote(&region, Access::ALL)).unwrap_err();
    assert!(matches!(error, Error::Auth { .. }), "{error}");
}

#[test]
fn another_incarnation_at_the_address_is_stale() {
    let (owner, user) = pair();
    let region = owner.allocate(64, 0).unwrap();
    let mut remote = remote(&region, Access::ALL);
    remote.incarnation = Incarnation::random().unwrap();
    let error = user.connect(&remote).unwrap_err();
    assert!(matches!(error, Error::Stale { .. }), "{error}");
}

#[test]
fn an_address_at_which_somebody_else_is_leads_on_to_the_next() {
    let secret = Secret::random().unwrap();
    let [owner, user, third] = [(); 3].map(|()| context(&secret, "tcp"));
    let another_job = context(&Secret::random().unwrap(), "tcp");
    let region = owner.allocate(64, 1).unwrap();
    let mut remote = remote(&region, Access::ALL);
    // Such addresses are the same on several hosts: there are the peer, others of this job, others, and we.
    for somebody in [&third, &another_job, &user] {
        remote.addresses.insert(0, format!("tcp:{}", place(somebody)));
    }
    let part = user.connect(&remote).unwrap().open(&remote).unwrap();
    part.put_signal(0, b"found", 0, 1).unwrap();
    part.flush().unwrap();
    assert_eq!(region.signal(0).unwrap(), 1);
    // Whoever was met by mistake has lost nobody.
    let own = third.allocate(64, 1).unwrap();
    let back = open(&user, &own);
    back.put(0, b"x").unwrap();
    back.flush().unwrap();
    for one in [&third, &user, &owner] {
        assert!(one.failure_of(user.incarnation()).is_none(), "{:?}", one.failure_of(user.incarnation()));
    }
}

#[test]
fn half_open_connections_and_a_browser_keep_no_peer_out() {
    let (owner, user) = pair();
    let region = owner.allocate(64, 1).unwrap();
    let place = place(&owner);
    let mut half: Vec<TcpStream> = Vec::new();
    for round in 0..300 {
        let mut stream = TcpStream::connect(&place).unwrap();
        if round % 3 == 0 {
            let _ = stream.write_all(b"transom");
        }
        half.push(stream);
    }
    let mut browser = TcpStream::connect(&place).unwrap();
    browser.set_read_timeout(Some(PATIENCE)).unwrap();
    browser.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let part = open(&user, &region);
    part.put_signal(0, b"in", 0, 1).unwrap();
    part.flush().unwrap();
    assert_eq!(region.signal(0).unwrap(), 1);
    // The browser is hung up on, without a word.
    let mut said = Vec::new();
    let _ = browser.read_to_end(&mut said);
    assert!(said.is_empty());
    drop(half);
}

#[test]
fn a_peer_that_starts_later_is_waited_for() {
    let secret = Secret::random().unwrap();
    let user = context(&secret, "tcp");
    // A port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let user = &user;
        let waiting = scope.spawn(move || {
            let transports = user.transports();
            let tcp = transports.iter().find(|t| t.name() == "tcp").unwrap();
            let attempt = tcp.connect(&format!("tcp:{free}"), None, std::time::Instant::now() + PATIENCE);
            sender.send(()).unwrap();
            user.block_on("connect", PATIENCE, attempt).unwrap().unwrap().peer()
        });
        receiver.recv().unwrap();
        std::thread::park_timeout(Duration::from_millis(30));
        let later = context(&secret, &format!("tcp:{free}"));
        assert_eq!(waiting.join().unwrap(), later.incarnation());
    });
}

#[test]
fn nobody_there_is_told_at_the_deadline() {
    let user = Context::builder()
        .transports("tcp")
        .secret(Secret::random().unwrap())
        .timeout(Duration::from_millis(200))
        .build()
        .unwrap();
    let region = user.allocate(64, 0).unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut remote = remote(&region, Access::ALL);
    remote.incarnation = Incarnation::random().unwrap();
    remote.addresses = vec![format!("tcp:{free}")];
    let error = user.connect(&remote).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. } | Error::Expired { .. }), "{error}");
}

#[test]
fn ipv6_and_all_addresses_of_both_families_are_served() {
    let secret = Secret::random().unwrap();
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    for specs in ["tcp:[::1]:0", "tcp:[::]:0", "tcp:0.0.0.0:0"] {
        let (owner, user) = (context(&secret, specs), context(&secret, "tcp"));
        let region = owner.allocate(64, 0).unwrap();
        let remote = remote(&region, Access::ALL);
        let all = remote.addresses.clone();
        assert!(!all.is_empty(), "{specs}");
        let loopback = |a: &String| a.contains("127.0.0.1") || a.contains("[::1]");
        for address in all.iter().filter(|a| loopback(a)) {
            let mut remote = remote.clone();
            remote.addresses = vec![address.clone()];
            let part = user.connect(&remote).unwrap().open(&remote).unwrap();
            part.put(0, b"six").unwrap();
            part.flush().unwrap();
        }
        if specs != "tcp:[::1]:0" {
            let first = all.iter().position(loopback);
            assert!(first.is_none_or(|at| all[at..].iter().all(loopback)), "loopback is last: {all:?}");
        }
        assert_eq!(bytes(&region, 0, 3), b"six", "{specs}");
    }
}

#[test]
fn a_taken_port_makes_the_transport_unusable_and_says_so() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap();
    let opened = Context::builder()
        .transports(&format!("tcp:{place}"))
        .secret(Secret::random().unwrap())
        .build()
        .map(drop);
    let error = opened.unwrap_err();
    assert!(matches!(error, Error::Unusable { .. }), "{error}");
    assert!(error.to_string().contains("the port free"), "{error}");
}

#[test]
fn a_closed_context_says_goodbye() {
    let (owner, user) = pair();
    let region = owner.allocate(64, 0).unwrap();
    let part = open(&user, &region);
    part.put(0, b"x").unwrap();
    part.flush().unwrap();
    owner.close();
    let failure = faults::wait_for_failure(&user, &part);
    assert_eq!(failure.cause, crate::Cause::Left, "{failure}");
}
