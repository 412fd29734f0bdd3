//! Frames through an authenticated connection: each message is sealed, and a message is a u16 length and its bytes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use transom_registry::{Cause, Failure};

use super::auth::{Cipher, FIRST_NUMBER, OVERHEAD};
use super::wire::{self, PREFIX};

const LARGEST_SEALED: usize = u16::MAX as usize;
const LARGEST_PLAIN: usize = LARGEST_SEALED - OVERHEAD;
/// How much is gathered before it is sealed and written.
pub(super) const GATHER: usize = 48 << 10;
/// Buffers that grew larger than this are given back.
const KEPT: usize = 64 << 10;

/// Sends small messages at once, and notices a host that is gone.
pub(super) fn tune(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(10));
    let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(stream, 3);
}

/// Both directions of a connection that has proven the secret.
pub(super) fn split(stream: TcpStream, cipher: Cipher) -> (Opener, Sealer) {
    let cipher = Arc::new(cipher);
    let (from, to) = stream.into_split();
    let from = BufReader::new(from);
    let opener = Opener {
        from,
        cipher: Arc::clone(&cipher),
        number: FIRST_NUMBER,
        sealed: Vec::new(),
        plain: Vec::new(),
        read: 0,
    };
    (opener, Sealer { to, cipher, number: FIRST_NUMBER, sealed: Vec::new() })
}

/// Seals and writes.
#[derive(Debug)]
pub(super) struct Sealer {
    to: OwnedWriteHalf,
    cipher: Arc<Cipher>,
    number: u64,
    sealed: Vec<u8>,
}

impl Sealer {
    /// Sends these bytes, which may be several frames.
    pub(super) async fn send(&mut self, plain: &[u8]) -> Result<(), Arc<Failure>> {
        for part in plain.chunks(LARGEST_PLAIN) {
            self.sealed.clear();
            self.sealed.extend_from_slice(&((part.len() + OVERHEAD) as u16).to_le_bytes());
            self.cipher.seal(self.number, part, &mut self.sealed).map_err(broken)?;
            self.number += 1;
            self.to.write_all(&self.sealed).await.map_err(lost)?;
        }
        Ok(())
    }
}

/// Reads and opens.
#[derive(Debug)]
pub(super) struct Opener {
    from: BufReader<OwnedReadHalf>,
    cipher: Arc<Cipher>,
    number: u64,
    sealed: Vec<u8>,
    plain: Vec<u8>,
    read: usize,
}

impl Opener {
    /// The next frame, without its length. Memory is taken for what has come, not for what a length says.
    ///
    /// # Cancel safety
    /// None: after it was dropped the connection is of no use.
    pub(super) async fn frame(&mut self) -> Result<&[u8], Arc<Failure>> {
        loop {
            let unread = &self.plain[self.read..];
            if let Some(prefix) = unread.first_chunk::<PREFIX>() {
                let length = wire::length(*prefix).map_err(|e| broken(e.to_string()))?;
                if unread.len() >= PREFIX + length {
                    let start = self.read + PREFIX;
                    self.read = start + length;
                    return Ok(&self.plain[start..start + length]);
                }
            }
            self.plain.drain(..self.read);
            self.read = 0;
            if self.plain.is_empty() {
                self.plain.shrink_to(KEPT);
            }
            self.message().await?;
        }
    }

    async fn message(&mut self) -> Result<(), Arc<Failure>> {
        let length = usize::from(self.from.read_u16_le().await.map_err(lost)?);
        if length <= OVERHEAD {
            return Err(broken(format!("a sealed message of {length} bytes")));
        }
        self.sealed.resize(length, 0);
        self.from.read_exact(&mut self.sealed).await.map_err(lost)?;
        self.cipher.open(self.number, &self.sealed, &mut self.plain).map_err(broken)?;
        self.number += 1;
        Ok(())
    }
}

fn lost(error: io::Error) -> Arc<Failure> {
    let observed = match error.kind() {
        io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
        _ => error.to_string(),
    };
    Failure::new(None, Cause::ConnectionLost, observed)
}

fn broken(why: String) -> Arc<Failure> {
    Failure::new(None, Cause::ProtocolError(why), "")
}
