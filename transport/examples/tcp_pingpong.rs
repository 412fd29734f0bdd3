//! Measures `tcp` against plain sockets in the same run: how long 8 bytes and a signal take one way, and how fast large
//! puts are. Rounds take turns, so that a busy machine troubles both sides alike.
//!
//! `cargo run --release -p transom-transport --example tcp_pingpong [ROUNDS]`
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example prints, and ends at the first error"
)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use transom_transport::{Access, Context, MemoryRegion, PeerRegion, Secret, Wait};

const PATIENCE: Duration = Duration::from_secs(60);
const TURNS: u64 = 300;
const PIECE: usize = 512 << 10;
const LARGE: usize = 64 << 20;

/// What half of the values are below, and what the best eighth reaches: on a busy machine only that says anything.
fn summary(mut values: Vec<f64>, more_is_better: bool) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let eighth = values.len() / 8;
    let best = if more_is_better { values.len() - 1 - eighth } else { eighth };
    (values[values.len() / 2], values[best])
}

/// Two ends of one plain connection.
fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    for end in [&one, &other] {
        end.set_nodelay(true).unwrap();
        end.set_nonblocking(true).unwrap();
    }
    (one, other)
}

/// Moves bytes by calls that never block, again and again.
fn all(size: usize, mut step: impl FnMut(usize) -> std::io::Result<usize>) {
    let mut at = 0;
    while at < size {
        match step(at) {
            Ok(0) => return,
            Ok(moved) => at += moved,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Nanoseconds one way, by plain sockets: as many bytes as a frame with 8 bytes has.
fn raw_turns() -> f64 {
    let (mut one, mut other) = sockets();
    let mut bytes = [0; 72];
    let echo = std::thread::spawn(move || {
        let mut bytes = [0; 72];
        for _ in 0..TURNS {
            all(72, |at| other.read(&mut bytes[at..]));
            all(72, |at| other.write(&bytes[at..]));
        }
    });
    let since = Instant::now();
    for _ in 0..TURNS {
        all(72, |at| one.write(&bytes[at..]));
        all(72, |at| one.read(&mut bytes[at..]));
    }
    let took = since.elapsed();
    echo.join().unwrap();
    took.as_nanos() as f64 / TURNS as f64 / 2.0
}

/// Bytes per nanosecond, by plain sockets.
fn raw_bytes(size: usize, crc: bool, from: &[u8], into: &mut [u8], count: usize) -> f64 {
    let (mut one, mut other) = sockets();
    let mut took = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..count {
                let mut sum = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
                all(size, |at| {
                    let end = size.min(at + PIECE);
                    let got = other.read(&mut into[at..end])?;
                    if crc {
                        sum.update(&into[at..at + got]);
                    }
                    Ok(got)
                });
                std::hint::black_box(sum.finalize());
                all(1, |_| other.write(&[1]));
            }
        });
        let since = Instant::now();
        for _ in 0..count {
            for piece in from[..size].chunks(PIECE) {
                if crc {
                    std::hint::black_box(crc_fast::crc32_iscsi(piece));
                }
                all(piece.len(), |at| one.write(&piece[at..]));
            }
            all(1, |_| one.read(&mut [0]));
        }
        took = since.elapsed();
    });
    (size * count) as f64 / took.as_nanos() as f64
}

struct Side {
    context: Context,
    region: MemoryRegion,
}

fn side(secret: &Secret, specs: &str) -> Side {
    let context =
        Context::builder().transports(specs).secret(secret.clone()).timeout(PATIENCE).build().unwrap();
    context.set_wait(Wait::Spin);
    let region = context.allocate(LARGE, 1).unwrap();
    region.write(0, &vec![3; LARGE]).unwrap();
    Side { context, region }
}

fn open(from: &Side, to: &Side) -> PeerRegion {
    let mut remote = to.region.remote(Access::ALL).unwrap();
    remote.addresses.retain(|a| a.starts_with("tcp:"));
    from.context.connect(&remote).unwrap().open(&remote).unwrap()
}

fn our_turns(sides: &[Side; 2], parts: &[PeerRegion; 2]) -> f64 {
    let base = sides.each_ref().map(|side| side.region.signal(0).unwrap());
    let play = |me: usize, turn: u64| parts[me].put_signal(0, &turn.to_le_bytes(), 0, 1).unwrap();
    let wait = |me: usize, turn: u64| {
        let signals = sides[me].context.signals(&sides[me].region);
        signals.signal(0).unwrap().wait_at_least(base[me] + turn, PATIENCE).unwrap();
    };
    let mut took = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1..=TURNS {
                wait(1, turn);
                play(1, turn);
            }
        });
        let since = Instant::now();
        for turn in 1..=TURNS {
            play(0, turn);
            wait(0, turn);
        }
        took = since.elapsed();
    });
    took.as_nanos() as f64 / TURNS as f64 / 2.0
}

fn our_bytes(size: usize, sides: &[Side; 2], part: &PeerRegion, count: usize) -> f64 {
    let over = AtomicBool::new(false);
    let mut took = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The target's side polls too, as one that waits does.
            while !over.load(Ordering::Relaxed) {
                sides[1].context.poll();
            }
        });
        let slice = sides[0].region.slice(0..size).unwrap();
        let since = Instant::now();
        for _ in 0..count {
            part.put_from(0, slice.clone()).unwrap().wait().unwrap();
        }
        took = since.elapsed();
        over.store(true, Ordering::Relaxed);
    });
    (size * count) as f64 / took.as_nanos() as f64
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(25, |text| text.parse().unwrap());
    let secret = Secret::random().unwrap();
    let checked = [side(&secret, "tcp"), side(&secret, "tcp")];
    let parts = [open(&checked[0], &checked[1]), open(&checked[1], &checked[0])];
    let plain = [side(&secret, "tcp:crc=off"), side(&secret, "tcp:crc=off")];
    let unchecked = open(&plain[0], &plain[1]);

    let (mut raw, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..rounds * 4 {
        raw.push(raw_turns());
        ours.push(our_turns(&checked, &parts));
    }
    let (raw, ours) = (summary(raw, false), summary(ours, false));
    println!(
        "8 bytes and a signal, one way: {:.2} us, plain sockets {:.2} us, ratio {:.2} (best eighth: {:.2}, {:.2}, {:.2})",
        ours.0 / 1e3,
        raw.0 / 1e3,
        raw.0 / ours.0,
        ours.1 / 1e3,
        raw.1 / 1e3,
        raw.1 / ours.1
    );

    let from = vec![1; LARGE];
    let mut into = vec![2; LARGE];
    for (size, count) in [(1 << 20, 16), (LARGE, 1)] {
        let mut found: [Vec<f64>; 4] = Default::default();
        for _ in 0..rounds {
            found[0].push(our_bytes(size, &checked, &parts[0], count));
            found[1].push(raw_bytes(size, true, &from, &mut into, count));
            found[2].push(raw_bytes(size, false, &from, &mut into, count));
            found[3].push(our_bytes(size, &plain, &unchecked, count));
        }
        let [ours, checked, bare, plain] = found.map(|values| summary(values, true));
        for (what, ours, with, without, off) in [
            ("median", ours.0, checked.0, bare.0, plain.0),
            ("best eighth", ours.1, checked.1, bare.1, plain.1),
        ] {
            println!(
                "{:>3} MiB, {what}: {ours:.2} GB/s; sockets with a checksum {with:.2} (ratio {:.2}), without {without:.2} \
                 (ratio {:.2}); crc=off {off:.2} (ratio {:.2})",
                size >> 20,
                ours / with,
                ours / without,
                off / without
            );
        }
    }
}
