//! One process puts text into another's memory, without a team.
//!
//! Started alone it registers memory, prints the descriptor, and waits. Started with that descriptor and a text, in another
//! process of this user on this host, it puts the text there: `peer "$DESCRIPTOR" "over the transom"`.
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use transom::{Access, Context, RemoteRegion, Result};

/// Bytes in front of the text: its size.
const PREFIX: u64 = 8;
const ROOM: usize = 4096;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next() {
        None => receive(),
        Some(descriptor) => send(&descriptor.parse()?, &arguments.next().unwrap_or_else(|| "hello".into())),
    }
}

fn receive() -> Result<()> {
    let context = Context::builder().build()?;
    let region = context.allocate(ROOM, 1)?;
    println!("{}", region.remote(Access::WRITE | Access::SIGNAL)?);
    context.signals(&region).signal(0)?.wait_at_least(1, Duration::from_secs(600))?;
    // Whoever sees the signal sees the text, which was put before it. The size is the sender's word: bounded.
    let mut text = vec![0; (region.load(0)? as usize).min(ROOM - PREFIX as usize)];
    region.read(PREFIX as usize, &mut text)?;
    println!("{}", String::from_utf8_lossy(&text));
    Ok(())
}

fn send(descriptor: &RemoteRegion, text: &str) -> Result<()> {
    let context = Context::builder().build()?;
    let part = context.connect(descriptor)?.open(descriptor)?;
    println!("reached by {}", part.explain());
    part.put(PREFIX, text.as_bytes())?;
    part.put_signal(0, &(text.len() as u64).to_le_bytes(), 0, 1)?;
    part.flush()
}
