//! Somebody on the way who reads everything, and changes, repeats, moves, leaves out or sends back frames.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::*;
use crate::tcp::frame::{Header, Opcode, SIZE};
use crate::{Cause, Failure, Incarnation};

/// Which way a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    ToOwner,
    ToUser,
}

/// What is sent on in the place of a frame.
type Meddle = Box<dyn FnMut(Way, Vec<u8>) -> Vec<Vec<u8>> + Send>;

fn read(stream: &mut TcpStream, size: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; size];
    stream.read_exact(&mut out).ok().map(|()| out)
}

fn relay(way: Way, mut from: TcpStream, mut to: TcpStream, meddle: &Mutex<Meddle>) -> Option<()> {
    // Each side of the handshake says two things.
    for _ in 0..2 {
        let prefix = read(&mut from, crate::handshake::PREFIX)?;
        let body = read(&mut from, usize::from(u16::from_le_bytes([prefix[12], prefix[13]])))?;
        to.write_all(&[prefix, body].concat()).ok()?;
    }
    loop {
        let mut frame = read(&mut from, SIZE)?;
        let size = Header::size_of(frame.first_chunk().unwrap());
        frame.extend(read(&mut from, size)?);
        let frames = meddle.lock().unwrap()(way, frame);
        to.write_all(&frames.concat()).ok()?;
    }
}

/// Stands between whoever connects to the address that it returns, once, and `owner`.
fn between(owner: &Context, meddle: Meddle) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", listener.local_addr().unwrap());
    let place = owner.addresses().into_iter().find_map(|a| a.strip_prefix("tcp:").map(str::to_owned));
    let thread = std::thread::spawn(move || {
        let (user, _) = listener.accept().unwrap();
        let owner = TcpStream::connect(place.unwrap()).unwrap();
        let meddle = Mutex::new(meddle);
        let run = |way, from: &TcpStream, to: &TcpStream| {
            relay(way, from.try_clone().unwrap(), to.try_clone().unwrap(), &meddle);
            for stream in [from, to] {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run(Way::ToOwner, &user, &owner));
            run(Way::ToUser, &owner, &user);
        });
    });
    (address, thread)
}

/// Gives a frame to `then` if it is the first of its kind, and lets all others pass.
fn first(way: Way, opcode: Opcode, mut then: impl FnMut(Vec<u8>) -> Vec<Vec<u8>> + Send + 'static) -> Meddle {
    let mut over = false;
    Box::new(move |goes, frame| {
        if over || goes != way || frame[0] != opcode as u8 {
            return vec![frame];
        }
        over = true;
        then(frame)
    })
}

fn failure(of: &Context, peer: Incarnation) -> Arc<Failure> {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(failure) = of.failure_of(peer) {
            return failure;
        }
        assert!(Instant::now() < until, "the failure is never told");
        of.poll();
        std::thread::yield_now();
    }
}

fn pair_with(specs: &str) -> (Context, Context) {
    let secret = Secret::random().unwrap();
    (context(&secret, specs), context(&secret, specs))
}

/// What a put with a signal, and a get of bytes that are 9, lead to.
struct Led {
    owner: Context,
    user: Context,
    region: MemoryRegion,
    own: MemoryRegion,
}

impl Led {
    fn by(specs: &str, size: usize, meddle: Meddle) -> Self {
        let (owner, user) = pair_with(specs);
        let region = owner.allocate(2 * size, 1).unwrap();
        region.write(size, &vec![9; size]).unwrap();
        let own = user.allocate(size, 0).unwrap();
        let (address, thread) = between(&owner, meddle);
        let mut remote = remote(&region, Access::ALL);
        remote.addresses = vec![address];
        let part = user.connect(&remote).unwrap().open(&remote).unwrap();
        let _ = part.put_signal(0, &pattern(size, 1), 0, 1);
        let _ = part.flush();
        let _ = part.get_into(size as u64, own.all()).map(|request| request.wait());
        drop(part);
        owner.poll();
        user.poll();
        let led = Self { owner, user, region, own };
        led.settle(thread);
        led
    }

    fn settle(&self, thread: std::thread::JoinHandle<()>) {
        while !thread.is_finished() {
            self.owner.poll();
            self.user.poll();
            std::thread::yield_now();
        }
        thread.join().unwrap();
    }

    fn put(&self) -> bool {
        self.region.signal(0).unwrap() == 1
    }

    fn got(&self) -> bool {
        bytes(&self.own, 0, self.own.size()).contains(&9)
    }

    fn accuses(&self, way: Way) -> String {
        let (of, peer) = match way {
            Way::ToOwner => (&self.owner, self.user.incarnation()),
            Way::ToUser => (&self.user, self.owner.incarnation()),
        };
        match &failure(of, peer).cause {
            Cause::ProtocolError(why) => why.clone(),
            cause => panic!("{cause}"),
        }
    }
}

const LEVELS: [&str; 2] = ["tcp:127.0.0.1:0", "tcp:127.0.0.1:0,protect=mac"];

#[test]
fn frames_that_nobody_meddles_with_arrive() {
    for specs in LEVELS {
        let led = Led::by(specs, 40_000, Box::new(|_, frame| vec![frame]));
        assert!(led.put() && led.got(), "{specs}");
        assert!(led.owner.failure_of(led.user.incarnation()).is_none());
    }
}

#[test]
fn one_bit_that_changes_on_the_way_ends_the_connection_and_delivers_nothing() {
    for specs in LEVELS {
        for size in [8, 40_000] {
            // The opcode, the flags, the size, the acknowledgement, the offset, the payload's check, the MAC, the payload.
            for (at, bit) in
                [(0, 0), (2, 0), (4, 3), (16, 7), (32, 1), (50, 4), (56, 0), (63, 7), (64, 5), (71, 2)]
            {
                let flip = move |mut frame: Vec<u8>| {
                    frame[at] ^= 1 << bit;
                    vec![frame]
                };
                let led = Led::by(specs, size, first(Way::ToOwner, Opcode::Put, flip));
                let why = led.accuses(Way::ToOwner);
                assert!(why.contains("is wrong"), "{why}");
                assert!(!led.put() && !led.got(), "{specs}, {size}, byte {at}");
                if size == 8 {
                    assert_eq!(bytes(&led.region, 0, size), vec![0; size]);
                }
                let led = Led::by(specs, size, first(Way::ToUser, Opcode::Data, flip));
                led.accuses(Way::ToUser);
                assert!(led.put(), "{specs}, {size}, byte {at}");
                assert!(size != 8 || !led.got(), "{specs}, {size}, byte {at}");
            }
        }
    }
}

#[test]
fn repeated_moved_missing_and_reflected_frames_end_the_connection() {
    for specs in LEVELS {
        let twice = first(Way::ToOwner, Opcode::Put, |frame| vec![frame.clone(), frame]);
        let led = Led::by(specs, 8, twice);
        assert!(led.accuses(Way::ToOwner).contains("MAC"), "repeated");
        assert_eq!(led.region.signal(0).unwrap(), 1);

        let led = Led::by(specs, 8, first(Way::ToOwner, Opcode::Put, |_| Vec::new()));
        assert!(led.accuses(Way::ToOwner).contains("MAC"), "missing");
        assert!(!led.put());

        let mut held = None;
        let swap: Meddle = Box::new(move |way, frame| match (way, frame[0], held.take()) {
            (Way::ToOwner, 1, None) => {
                held = Some(frame);
                Vec::new()
            }
            (Way::ToOwner, _, Some(before)) => vec![frame, before],
            (_, _, before) => {
                held = before;
                vec![frame]
            }
        });
        let led = Led::by(specs, 8, swap);
        assert!(led.accuses(Way::ToOwner).contains("MAC"), "moved");
        assert!(!led.put());

        // The first frame that the user gets is its own first one, under the number that is due.
        let (mut sent, mut held) = (None, Vec::new());
        let reflect: Meddle = Box::new(move |way, frame| {
            if way == Way::ToOwner {
                sent.get_or_insert_with(|| frame.clone());
                return vec![frame];
            }
            held.push(frame);
            let Some(first) = &sent else { return Vec::new() };
            [vec![first.clone()], std::mem::take(&mut held)].concat()
        });
        let (owner, user) = pair_with(specs);
        let region = owner.allocate(64, 1).unwrap();
        let (address, thread) = between(&owner, reflect);
        let mut remote = remote(&region, Access::ALL);
        remote.addresses = vec![address];
        let error = user.connect(&remote).and_then(|peer| peer.open(&remote)).unwrap_err().to_string();
        assert!(error.contains("the MAC of the header of frame 0"), "{error}");
        drop((owner, user));
        thread.join().unwrap();
    }
}

/// Bytes that can be added to any others without a change of their CRC-32C: its polynomial itself.
fn neutral() -> [u8; 5] {
    let mut out = [0; 5];
    let bits = (1_u64 << 32) | 0x1edc_6f41;
    for at in 0..=32 {
        out[at / 8] |= (((bits >> (32 - at)) & 1) as u8) << (at % 8);
    }
    out
}

#[test]
fn a_payload_changed_so_that_its_checksum_stays_is_taken_under_auth_and_refused_under_mac() {
    for (specs, size) in [(LEVELS[0], 64), (LEVELS[0], 40_000), (LEVELS[1], 64), (LEVELS[1], 40_000)] {
        let change = |mut frame: Vec<u8>| {
            let before = crc_fast::crc32_iscsi(&frame[SIZE..]);
            frame[SIZE + 20..].iter_mut().zip(neutral()).for_each(|(byte, bits)| *byte ^= bits);
            assert_eq!(crc_fast::crc32_iscsi(&frame[SIZE..]), before);
            vec![frame]
        };
        let led = Led::by(specs, size, first(Way::ToOwner, Opcode::Put, change));
        if specs == LEVELS[0] {
            assert!(led.put());
            assert_ne!(bytes(&led.region, 0, size), pattern(size, 1));
        } else {
            let why = led.accuses(Way::ToOwner);
            assert!(why.contains("the MAC of the"), "{why}");
            assert!(!led.put());
        }
    }
}

#[test]
fn sides_that_protect_differently_do_not_meet_and_are_told_both() {
    let secret = Secret::random().unwrap();
    for (ours, theirs) in [("auth", "mac"), ("mac", "auth")] {
        let side = |level: &str| context(&secret, &format!("tcp:127.0.0.1:0,protect={level}"));
        let (user, owner) = (side(ours), side(theirs));
        let region = owner.allocate(64, 0).unwrap();
        let error = user.connect(&remote(&region, Access::ALL)).unwrap_err().to_string();
        let both = format!("the peer has protect={theirs}, we have protect={ours}");
        assert!(error.contains(&both), "{error}");
        assert!(owner.failure_of(user.incarnation()).is_none());
    }
}
