//! What the transport promises, over loopback.

mod faults;
mod meddling;
mod moving;
mod processes;
mod strangers;

use std::time::Duration;

use crate::{Access, Context, MemoryRegion, PeerRegion, RemoteRegion, Secret};

const PATIENCE: Duration = Duration::from_secs(20);

fn context(secret: &Secret, specs: &str) -> Context {
    Context::builder().transports(specs).secret(secret.clone()).timeout(PATIENCE).build().unwrap()
}

/// Two contexts that reach each other.
fn pair() -> (Context, Context) {
    let secret = Secret::random().unwrap();
    (context(&secret, "tcp:127.0.0.1:0"), context(&secret, "tcp:127.0.0.1:0"))
}

/// The descriptor without the way inside this process.
fn remote(region: &MemoryRegion, access: Access) -> RemoteRegion {
    let mut remote = region.remote(access).unwrap();
    remote.addresses.retain(|a| a.starts_with("tcp:"));
    remote
}

fn open(from: &Context, region: &MemoryRegion) -> PeerRegion {
    let remote = remote(region, Access::ALL);
    from.connect(&remote).unwrap().open(&remote).unwrap()
}

/// Bytes that differ from place to place.
fn pattern(size: usize, seed: usize) -> Vec<u8> {
    (0..size).map(|at| ((at * 31 + seed * 17) ^ (at >> 8)) as u8).collect()
}

fn bytes(region: &MemoryRegion, at: usize, size: usize) -> Vec<u8> {
    let mut out = vec![0; size];
    region.read(at, &mut out).unwrap();
    out
}
