//! `transom send` and `transom recv`: a file into another process's memory, between two processes that know nothing of
//! each other but an address and a pass phrase.
//!
//! The receiver registers a small region (`control`) and shows its descriptor. The sender takes it, puts an `offer`
//! there and signals. The receiver makes the file (`part`), registers it, and replies with its descriptor (`reply`). The
//! sender puts the file straight into that memory and signals; the receiver checks and keeps the file, and replies
//! again.
#![forbid(unsafe_code)]

mod control;
mod offer;
mod part;
mod phrase;
mod recv;
mod reply;
#[cfg(test)]
mod scratch;
mod send;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};
use transom::{Context, Error, MemoryRegion, RemoteRegion, Result, Secret};

use part::Place;
use recv::Receiver;
use send::Source;

/// Bytes that are checked in one go.
const CHECKED_AT_ONCE: usize = 1 << 20;
/// Bytes that a slow disk takes in a second: what the other side is given time for where it cannot tell how far it is.
const SLOW_DISK: u64 = 8 << 20;

/// How long the other side may take to hear a last word.
const HEAR: Duration = Duration::from_secs(10);

/// Receive a file from `transom send`, once
#[derive(Debug, Args)]
pub(crate) struct RecvOptions {
    /// Where the sender can reach this: tcp:HOST:PORT, where 0.0.0.0 is every interface of this host and port 0 any free
    /// one, or shm for senders of this user on this host
    #[arg(long, default_value = "tcp:0.0.0.0:0", value_name = "TRANSPORT")]
    listen: String,
    /// The file to make, which must not exist; without it, the sender's name for it
    #[arg(long, value_name = "FILE", conflicts_with = "directory")]
    output: Option<PathBuf>,
    /// The directory to make it in
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// How many seconds to wait for a sender
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u32).range(1..))]
    wait: u32,
    /// After how many seconds without progress to give up
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
}

/// Send a file to `transom recv`; asks for the pass phrase that it shows
#[derive(Debug, Args)]
pub(crate) struct SendOptions {
    /// The file
    file: PathBuf,
    /// The address that `transom recv` shows
    #[arg(long, value_name = "ADDRESS")]
    to: String,
    /// Read the pass phrase from a file that only this user can read, instead of asking for it
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,
    /// After how many seconds without progress to give up
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
}

/// A file that has arrived: the last line of both sides.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Arrived {
    name: String,
    size: u64,
    checksum: u32,
}

impl fmt::Display for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} bytes, crc32c {:08x}", self.name, self.size, self.checksum)
    }
}

/// Sends a file.
///
/// # Errors
/// [`Error::Auth`] for another pass phrase; [`Error::Refused`] with the receiver's reason; what reading, connecting and
/// putting tell.
pub(crate) fn run_send(options: &SendOptions) -> Result<ExitCode> {
    let address: RemoteRegion = options.to.parse()?;
    let transports = transports_of(&address)?;
    let source = Source::open(&options.file)?;
    let secret = match &options.passphrase_file {
        Some(path) => phrase::from_file(path)?,
        None => phrase::from_terminal()?,
    };
    let timeout = Duration::from_secs(options.timeout.into());
    let context = Context::builder().transports(&transports).secret(secret).timeout(timeout).build()?;
    let sent = send::send(&context, &address, source, timeout, &bar())?;
    context.close();
    say(&format!("sent {sent}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Receives a file.
///
/// # Errors
/// What the sender did, or did not do; what making and syncing the file tell. Nothing of the file is left then.
pub(crate) fn run_recv(options: &RecvOptions) -> Result<ExitCode> {
    let place = match &options.output {
        Some(path) => Place::file(path)?,
        None => Place::directory(&options.directory)?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::io("start the receiver", e))?;
    let ended = runtime.block_on(async {
        let mut interrupted =
            signal(SignalKind::interrupt()).map_err(|e| Error::io("watch for SIGINT", e))?;
        let mut terminated =
            signal(SignalKind::terminate()).map_err(|e| Error::io("watch for SIGTERM", e))?;
        let (timeout, wait) = (seconds(options.timeout), seconds(options.wait));
        let (listen, place) = (options.listen.clone(), place.clone());
        let receiving = tokio::task::spawn_blocking(move || receive(&listen, &place, wait, timeout));
        tokio::select! {
            done = receiving => done
                .unwrap_or_else(|e| Err(Error::invalid("receive", e.to_string())))
                .map(|()| ExitCode::SUCCESS),
            _ = interrupted.recv() => Ok(ExitCode::from(128 + 2)),
            _ = terminated.recv() => Ok(ExitCode::from(128 + 15)),
        }
    });
    // Whether it failed or was told to end: what is not complete does not stay.
    let _ = std::fs::remove_file(place.draft());
    runtime.shutdown_background();
    ended
}

fn receive(listen: &str, place: &Place, wait: Duration, timeout: Duration) -> Result<()> {
    let (phrase, secret) = Secret::passphrase()?;
    let context = Context::builder().transports(listen).secret(secret).timeout(timeout).build()?;
    if let Some((_, error)) = context.unusable().first() {
        return Err(error.clone());
    }
    let receiver = Receiver::new(&context)?;
    let address = reachable(receiver.address()?, listen)?;
    say(&format!("address: {address}\npass phrase: {}", *phrase))?;
    let received = receiver.receive(place, wait, timeout, &bar())?;
    context.close();
    say(&format!("received {received}"))
}

/// The address without what no other process can use.
fn reachable(mut address: RemoteRegion, listen: &str) -> Result<RemoteRegion> {
    address.addresses.retain(|a| !a.starts_with("local:"));
    if address.addresses.is_empty() {
        return Err(Error::Config {
            name: "--listen".into(),
            value: listen.into(),
            why: "no other process can reach this (try tcp:0.0.0.0:0 or shm)".into(),
        });
    }
    Ok(address)
}

/// The transports by which an address can be reached, in its order.
fn transports_of(address: &RemoteRegion) -> Result<String> {
    let known = transom::transport_names();
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in address.addresses.iter().filter_map(|a| a.split_once(':')) {
        if name != "local" && known.iter().any(|k| k == name) && !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Err(Error::Config {
            name: "--to".into(),
            value: address.to_string(),
            why: format!("it is reached by none of these transports: {}", known.join(", ")),
        });
    }
    Ok(names.join(","))
}

fn seconds(count: u32) -> Duration {
    Duration::from_secs(count.into())
}

/// How long the other side may take over so many bytes without a word: a disk's time on top of the deadline.
fn patience(timeout: Duration, size: u64) -> Duration {
    timeout.saturating_add(Duration::from_secs(size / SLOW_DISK))
}

/// CRC-32C of all of a region; `None`, which has no bytes, has 0. Tells after each piece how many bytes are done.
fn checksum(region: Option<&MemoryRegion>, mut done: impl FnMut(u64) -> Result<()>) -> Result<u32> {
    let Some(region) = region else { return Ok(0) };
    let mut piece = vec![0; CHECKED_AT_ONCE.min(region.size())];
    let (mut crc, mut at) = (crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi), 0);
    while at < region.size() {
        let now = piece.len().min(region.size() - at);
        region.read(at, &mut piece[..now])?;
        crc.update(&piece[..now]);
        at += now;
        done(at as u64)?;
    }
    Ok(crc.finalize() as u32)
}

/// A bar on standard error, hidden unless that is a terminal.
fn bar() -> ProgressBar {
    let bar = ProgressBar::no_length();
    if let Ok(style) =
        ProgressStyle::with_template("{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
    {
        bar.set_style(style);
    }
    bar
}

/// Begins a part of the work on a bar.
fn begin(bar: &ProgressBar, what: &str, name: &str, size: u64) {
    bar.set_message(format!("{what} {name}"));
    bar.set_length(size);
    bar.reset();
}

fn say(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|e| Error::io("write to standard output", e))
}
