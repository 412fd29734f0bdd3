use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use transom_registry::Slice;

use super::*;
use crate::backend::{Action, Endpoint, Op, Posted, Source};
use crate::handshake::{self, Hello, Purpose, Session};
use crate::late::Late;
use crate::request::Flight;
use crate::tcp::frame::{Header, Opcode, flag};
use crate::tcp::protect::{Check, Level, Seal};
use crate::token::Token;
use crate::{Cause, Error, Incarnation, Outcome};

/// An endpoint of `user` that leads to `owner`, without anything above it.
pub(super) fn endpoint(user: &Context, owner: &Context) -> Arc<dyn Endpoint> {
    let address = owner.addresses().into_iter().find(|a| a.starts_with("tcp:")).unwrap();
    let transports = user.transports();
    let tcp = transports.iter().find(|t| t.name() == "tcp").unwrap();
    let connect = tcp.connect(&address, Some(owner.incarnation()), Instant::now() + PATIENCE);
    user.block_on("connect", PATIENCE, connect).unwrap().unwrap()
}

/// What became of operations, in order.
#[derive(Default)]
pub(super) struct Outcomes(Mutex<Vec<(Arc<Flight>, Option<String>)>>);

impl Outcomes {
    fn token(&self, operation: &'static str) -> Token {
        let flight = Flight::new(operation, 1, &Arc::new(Late::default()));
        self.0.lock().push((flight.clone(), None));
        Token::flight(flight)
    }

    /// Waits for so many operations and returns their errors.
    pub(super) fn take(&self, context: &Context, count: usize) -> Vec<Option<String>> {
        let flights = std::mem::take(&mut *self.0.lock());
        assert_eq!(flights.len(), count);
        let until = Instant::now() + PATIENCE;
        let wait = |flight: &Arc<Flight>| loop {
            if let Some(result) = flight.result() {
                break result.err().map(|e| e.to_string());
            }
            assert!(Instant::now() < until, "an operation never ended");
            context.poll();
            std::thread::yield_now();
        };
        flights.iter().map(|(flight, _)| wait(flight)).collect()
    }
}

/// Posts a silent put of eight bytes, unchecked.
pub(super) fn put(
    endpoint: &dyn Endpoint,
    key: u64,
    offset: u64,
    signal: Option<(u32, u64)>,
    seen: &Outcomes,
) {
    let op = Op { key, offset, action: Action::Put(Source::Borrowed(&[7; 8])), signal, silent: true };
    post(endpoint, op, seen.token("put"));
}

pub(super) fn resume(endpoint: &dyn Endpoint, key: u64, seen: &Outcomes) {
    let op = Op { key, offset: 0, action: Action::Resume, signal: None, silent: false };
    post(endpoint, op, seen.token("resume"));
}

fn post(endpoint: &dyn Endpoint, op: Op<'_>, token: Token) {
    match endpoint.post(op, token) {
        Posted::Done(token, result) => token.complete(result),
        Posted::Pending => {}
        Posted::Full(_) => panic!("the queue is full"),
    }
}

/// A peer made by hand: a socket on which the handshake was done.
struct Puppet {
    stream: TcpStream,
    /// Of what it sends, and of what it receives.
    seals: [Seal; 2],
    sent: u64,
}

impl Puppet {
    fn meet(context: &Context) -> Self {
        let address = context.addresses().into_iter().find(|a| a.starts_with("tcp:")).unwrap();
        Self::connect(address.strip_prefix("tcp:").unwrap(), context.secret(), Incarnation::random().unwrap())
    }

    fn connect(place: &str, secret: &Secret, incarnation: Incarnation) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut stream = tokio::net::TcpStream::connect(place).await.unwrap();
            let hello = Hello {
                incarnation: Some(incarnation),
                addresses: Vec::new(),
                features: Level::Auth.feature(),
            };
            let (session, _) = handshake::initiate(&mut stream, secret, Purpose::Tcp, &hello).await.unwrap();
            Self::taken(stream, &session)
        })
    }

    fn taken(stream: tokio::net::TcpStream, session: &Session) -> Self {
        let stream = stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, seals: [Seal::new(&session.send_key), Seal::new(&session.receive_key)], sent: 0 }
    }

    fn seal(&mut self, mut head: [u8; 64]) -> [u8; 64] {
        self.seals[0].seal(&mut head);
        self.seals[0].advance();
        head
    }

    fn frame(&mut self, mut header: Header, payload: &[u8]) -> Vec<u8> {
        if header.opcode.is_request() {
            self.sent += 1;
            header.sequence = self.sent;
        }
        let mut sum = Check::Crc.begin();
        sum.add(payload);
        sum.seal(&mut header, payload.len() as u64);
        let mut out = self.seal(header.encode()).to_vec();
        out.extend(payload);
        out
    }

    fn send(&mut self, header: Header, payload: &[u8]) {
        let frame = self.frame(header, payload);
        self.stream.write_all(&frame).unwrap();
    }

    /// The next frame that is no ping.
    fn next(&mut self) -> Option<(Header, Vec<u8>)> {
        loop {
            let mut head = [0; 64];
            self.stream.read_exact(&mut head).ok()?;
            self.seals[1].check(&head).unwrap();
            self.seals[1].advance();
            let header = Header::decode(&head).unwrap();
            let mut payload = vec![0; header.size as usize];
            self.stream.read_exact(&mut payload).ok()?;
            if header.opcode != Opcode::Ping {
                return Some((header, payload));
            }
        }
    }

    fn attach(&mut self, region: &MemoryRegion) -> u32 {
        let asked = super::super::control::Attach::new(&remote(region, Access::ALL));
        let header = Header { flags: flag::LAST | flag::ACK_NOW, ..Header::new(Opcode::Attach) };
        self.send(header, &asked.encode());
        loop {
            let (header, _) = self.next().unwrap();
            if header.opcode == Opcode::Attached {
                return header.handle;
            }
        }
    }

    /// Whether the other side has hung up.
    fn is_over(&mut self) -> bool {
        while self.next().is_some() {}
        true
    }
}

fn put_header(handle: u32) -> Header {
    Header { handle, flags: flag::LAST | flag::SIGNAL | flag::SILENT, operand: 1, ..Header::new(Opcode::Put) }
}

#[test]
fn a_changed_payload_closes_the_connection_and_is_never_signalled() {
    let (owner, _) = pair();
    let region = owner.allocate(1 << 20, 1).unwrap();
    for size in [1, 8, 4096, 16_320, 16_321, 100_000, 600_000] {
        let mut puppet = Puppet::meet(&owner);
        let handle = puppet.attach(&region);
        let before = region.signal(0).unwrap();
        puppet.send(put_header(handle), &pattern(size, 1));
        let mut frame = puppet.frame(put_header(handle), &pattern(size, 2));
        let at = 64 + size / 2;
        frame[at] ^= 0x10;
        // The owner may hang up before it has read all of it.
        let _ = puppet.stream.write_all(&frame);
        let good = puppet.frame(put_header(handle), &pattern(size, 3));
        let _ = puppet.stream.write_all(&good);
        assert!(puppet.is_over());
        assert_eq!(region.signal(0).unwrap(), before + 1, "size {size}");
    }
}

#[test]
fn changed_headers_cut_frames_and_garbage_close_the_connection_and_nothing_else() {
    let (owner, user) = pair();
    let region = owner.allocate(1 << 20, 1).unwrap();
    let kept = open(&user, &region);
    for fault in 0..40 {
        let mut puppet = Puppet::meet(&owner);
        let handle = puppet.attach(&region);
        let mut frame = puppet.frame(put_header(handle), &pattern(64, 1));
        match fault {
            0 => frame.truncate(17),
            1 => frame.truncate(64),
            2 => frame.truncate(100),
            3 => frame = pattern(4096, 9),
            4 => frame = vec![0; 300],
            5 => frame = vec![0xff; 300],
            6 => frame = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".repeat(10),
            at => frame[(at * 7) % 64] ^= 1 << (at % 8),
        }
        puppet.stream.write_all(&frame).unwrap();
        puppet.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(puppet.is_over());
        assert_eq!(region.signal(0).unwrap(), 0, "fault {fault}");
    }
    kept.put_signal(0, b"x", 0, 1).unwrap();
    kept.flush().unwrap();
    assert_eq!(region.signal(0).unwrap(), 1);
}

#[test]
fn repeated_skipped_and_unasked_frames_close_the_connection() {
    let (owner, _) = pair();
    let region = owner.allocate(4096, 1).unwrap();
    for fault in 0..5 {
        let mut puppet = Puppet::meet(&owner);
        let handle = puppet.attach(&region);
        let before = region.signal(0).unwrap();
        let good = puppet.frame(put_header(handle), b"good");
        puppet.stream.write_all(&good).unwrap();
        let bad = match fault {
            0 => good,
            1 => {
                puppet.sent += 1;
                puppet.frame(put_header(handle), b"bad")
            }
            2 => puppet.frame(Header { sequence: 5, flags: flag::LAST, ..Header::new(Opcode::Data) }, b"bad"),
            3 => puppet.frame(Header { sequence: 1, ..Header::new(Opcode::AtomicReply) }, b""),
            _ => puppet.frame(Header { ack: 99, ..Header::new(Opcode::Ping) }, b""),
        };
        puppet.stream.write_all(&bad).unwrap();
        assert!(puppet.is_over());
        assert_eq!(region.signal(0).unwrap(), before + 1, "fault {fault}");
    }
}

#[test]
fn the_bytes_of_another_session_give_nothing() {
    let (owner, _) = pair();
    let region = owner.allocate(4096, 1).unwrap();
    let mut first = Puppet::meet(&owner);
    let handle = first.attach(&region);
    let recorded = first.frame(put_header(handle), b"recorded");
    first.stream.write_all(&recorded).unwrap();
    let mut second = Puppet::meet(&owner);
    assert_eq!(second.attach(&region), handle);
    second.stream.write_all(&recorded).unwrap();
    assert!(second.is_over());
    first.send(put_header(handle), b"again");
    first.send(Header { flags: flag::ACK_NOW, ..Header::new(Opcode::Flush) }, b"");
    while first.next().unwrap().0.ack < 4 {}
    assert_eq!(region.signal(0).unwrap(), 2);
}

/// A listener made by hand: what connects to it is given to `then`, on a thread of its own.
fn impostor(
    secret: &Secret,
    incarnation: Incarnation,
    then: impl FnOnce(Puppet) + Send + 'static,
) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", listener.local_addr().unwrap());
    let secret = secret.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let puppet = runtime.block_on(async {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let hello = Hello {
                incarnation: Some(incarnation),
                addresses: Vec::new(),
                features: Level::Auth.feature(),
            };
            let (session, _) = handshake::respond(&mut stream, &secret, Purpose::Tcp, &hello).await.unwrap();
            Puppet::taken(stream, &session)
        });
        then(puppet);
    });
    (address, thread)
}

/// A descriptor of a region that does not exist, at that address.
fn pretended(template: &MemoryRegion, incarnation: Incarnation, address: String) -> RemoteRegion {
    let mut remote = template.remote(Access::ALL).unwrap();
    remote.incarnation = incarnation;
    remote.addresses = vec![address];
    remote
}

/// Answers attachments until `enough`, then stops reading.
fn attach_only(mut puppet: Puppet, stop: &AtomicBool) {
    while let Some((header, _)) = puppet.next() {
        if header.opcode == Opcode::Attach {
            let reply =
                Header { sequence: header.sequence, ack: header.sequence, ..Header::new(Opcode::Attached) };
            puppet.send(reply, b"");
            break;
        }
    }
    while !stop.load(Ordering::Acquire) {
        // It lives and says so, and reads nothing.
        let ping = puppet.frame(Header::new(Opcode::Ping), b"");
        let _ = puppet.stream.write_all(&ping);
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

#[test]
fn a_peer_that_reads_nothing_costs_bounded_memory_and_puts_expire() {
    let (user, _) = pair();
    let template = user.allocate(64 << 20, 1).unwrap();
    let incarnation = Incarnation::random().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (address, thread) = impostor(user.secret(), incarnation, {
        let stop = stop.clone();
        move |puppet| attach_only(puppet, &stop)
    });
    let remote = pretended(&template, incarnation, address);
    let part = user.connect(&remote).unwrap().open(&remote).unwrap();
    let part = part.with_timeout(Duration::from_millis(300));
    let bytes = vec![1; 256 << 10];
    let mut taken = 0;
    let error = loop {
        match part.put(0, &bytes) {
            Ok(()) => taken += bytes.len(),
            Err(error) => break error,
        }
        assert!(taken < 256 << 20, "the queue has no bound");
    };
    assert!(matches!(error, Error::Expired { outcome: Some(Outcome::NotApplied), .. }), "{error}");
    // Small ones have the same bound.
    let error = (0..5000).find_map(|_| part.put(0, &[1; 512]).err()).unwrap();
    assert!(matches!(error, Error::Expired { .. }), "{error}");
    stop.store(true, Ordering::Release);
    thread.join().unwrap();
    let failure = wait_for_failure(&user, &part);
    assert!(matches!(failure.cause, Cause::ConnectionLost | Cause::LocalIo(_)), "{failure}");
}

pub(super) fn wait_for_failure(context: &Context, part: &PeerRegion) -> Arc<crate::Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(failure) = part.peer().failure() {
            return failure;
        }
        assert!(Instant::now() < until, "the failure is never told");
        context.poll();
        std::thread::yield_now();
    }
}

#[test]
fn what_is_in_flight_at_a_loss_is_in_doubt_and_what_never_left_is_not_applied() {
    let (user, _) = pair();
    let template = user.allocate(64 << 20, 1).unwrap();
    let incarnation = Incarnation::random().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (address, thread) = impostor(user.secret(), incarnation, {
        let stop = stop.clone();
        move |puppet| attach_only(puppet, &stop)
    });
    let remote = pretended(&template, incarnation, address);
    let part = user.connect(&remote).unwrap().open(&remote).unwrap();
    let first = part.put_from(0, template.all()).unwrap();
    let second = part.put_from(0, template.slice(0..1 << 20).unwrap()).unwrap();
    let got = part.get_into(0, template.slice(0..64).unwrap()).unwrap();
    stop.store(true, Ordering::Release);
    thread.join().unwrap();
    assert_eq!(first.wait().unwrap_err().outcome(), Some(Outcome::InDoubt));
    assert_eq!(second.wait().unwrap_err().outcome(), Some(Outcome::NotApplied));
    assert_eq!(got.wait().unwrap_err().outcome(), Some(Outcome::NotApplied));
    let failure = wait_for_failure(&user, &part);
    assert_eq!(failure.incarnation, Some(incarnation));
    assert_eq!(part.put(0, b"x").unwrap_err().outcome(), Some(Outcome::NotApplied));
}

#[test]
fn data_that_nobody_asked_for_or_too_much_of_it_writes_nothing() {
    for fault in 0..4 {
        let (user, _) = pair();
        let own = user.allocate(4096, 1).unwrap();
        let incarnation = Incarnation::random().unwrap();
        let (address, thread) = impostor(user.secret(), incarnation, move |mut puppet| {
            while let Some((header, _)) = puppet.next() {
                let mut reply =
                    Header { sequence: header.sequence, ack: header.sequence, ..Header::new(Opcode::Data) };
                match header.opcode {
                    Opcode::Attach => reply.opcode = Opcode::Attached,
                    Opcode::Get if fault == 0 => reply.offset = 64,
                    Opcode::Get if fault == 1 => reply.sequence += 1,
                    _ => {}
                }
                let size = match (reply.opcode, fault) {
                    (Opcode::Attached, _) => 0,
                    (_, 2) => 65,
                    (_, 3) => 64,
                    _ => 8,
                };
                // The third is not marked as the last.
                puppet.send(reply, &vec![9; size]);
            }
        });
        let remote = pretended(&own, incarnation, address);
        let part = user.connect(&remote).unwrap().open(&remote).unwrap();
        let slice: Slice = own.slice(64..128).unwrap();
        let error = part.get_into(0, slice).unwrap().wait().unwrap_err();
        assert!(error.to_string().contains("protocol error"), "{error}");
        assert_eq!(bytes(&own, 0, 4096), [0; 4096], "fault {fault}");
        thread.join().unwrap();
    }
}
